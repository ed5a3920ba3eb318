import json
from dataclasses import fields
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import Table
from sqlalchemy.dialects.sqlite import dialect

from tests.store import made
from torpor.store import (
    Database,
    SessionQuery,
    events,
    operations,
    samples,
    sessions,
    snapshots,
    tables,
    tokens,
)
from torpor.store.columns import Document, Id, Moment, StatusWord, Words
from torpor.store.records import (
    EgressEntry,
    Event,
    Flow,
    HostRow,
    Operation,
    Sample,
    Session,
    Snapshot,
    Status,
    Token,
    Traffic,
)

HERE = dialect()
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=12,
)
ODD = {"z": 1, "a": {"ü": "\x00 \ud800 \U0001f9ca", "": [None, True, 1.0, 1e300]}, "B": 2**80}


@given(st.dictionaries(st.text(), VALUES))
def test_a_document_comes_back_to_the_byte(document: dict[str, Any]) -> None:
    text = Document().process_bind_param(document, HERE)
    back = Document().process_result_value(text, HERE)
    assert json.dumps(back) == json.dumps(document)


@given(st.text())
def test_a_text_has_nothing_that_a_database_cannot_hold(text: str) -> None:
    for kind in (Words(), Id()):
        kept = kind.process_bind_param(text, HERE)
        assert kept is not None
        assert "\0" not in kept
        kept.encode()
        if "\0" not in text and text.isprintable():
            assert kept == text
        assert kind.process_bind_param(kept, HERE) == kept


@pytest.mark.parametrize("odd", ["a\0b", "\ud800", "\udcff x", "ü\0", "\U0001f9ca"])
async def test_odd_texts_are_kept_and_found(database: Database, odd: str) -> None:
    """They come from guests, images and requests, and lie in many columns."""
    async with database.write() as conn:
        session = made.session("odd", failure=odd, labels={"a": odd}, metadata={"m": odd})
        await sessions.insert(conn, session)
        await snapshots.insert(conn, made.snapshot("s", session.id, label=odd, error=odd))
        await operations.insert(conn, made.operation("o", key=odd, error=odd))
        await events.append(conn, made.event("e", data={"said": odd}))
    async with database.read() as conn:
        page = await sessions.page(conn, SessionQuery(labels={"a": odd}))
        assert [each.id for each in page.items] == [session.id]
        assert page.items[0].metadata == {"m": odd}
        assert await operations.by_key(conn, "someone", odd) is not None
        assert await sessions.get(conn, odd) is None
        assert await sessions.find(conn, odd) is None
        assert (await sessions.page(conn, SessionQuery(search=odd))).items == []
        assert await sessions.beginning_with(conn, odd) == []
        (found,) = await events.after(conn, None, None, 1)
        assert found.data == {"said": odd}


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_a_document_that_is_no_json_is_refused(number: float) -> None:
    with pytest.raises(ValueError, match="JSON"):
        Document().process_bind_param({"a": [number]}, HERE)


@given(st.datetimes(timezones=st.timezones(), allow_imaginary=False))
def test_a_time_comes_back_to_the_microsecond(at: datetime) -> None:
    back = Moment().process_result_value(Moment().process_bind_param(at, HERE), HERE)
    assert back == at.astimezone(UTC)
    assert back is not None
    assert back.tzinfo is UTC


def test_times_are_kept_in_the_order_in_which_they_were() -> None:
    east = timezone(timedelta(hours=9))
    first = datetime(2026, 3, 1, 9, tzinfo=east)
    second = datetime(2026, 3, 1, 0, 0, 0, 1, tzinfo=UTC)
    kept = [Moment().process_bind_param(each, HERE) for each in (first, second)]
    assert kept[1] - kept[0] == 1  # type: ignore[operator]


def test_a_time_of_no_zone_is_refused() -> None:
    with pytest.raises(TypeError):
        Moment().process_bind_param(datetime(2026, 3, 1), HERE)  # noqa: DTZ001


def test_a_status_that_nobody_knows_is_refused() -> None:
    with pytest.raises(ValueError, match="ASLEEP"):
        StatusWord().process_bind_param("ASLEEP", HERE)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="ASLEEP"):
        StatusWord().process_result_value("ASLEEP", HERE)


@pytest.mark.parametrize(
    ("record", "table"),
    [
        (Session, tables.sessions),
        (Snapshot, tables.snapshots),
        (Event, tables.events),
        (Operation, tables.operations),
        (Token, tables.tokens),
        (Sample, tables.samples),
        (HostRow, tables.hosts),
        (EgressEntry, tables.egress_log),
        (Flow, tables.flows),
        (Traffic, tables.traffic),
    ],
)
def test_each_field_has_its_column(record: Any, table: Table) -> None:
    assert [column.name for column in table.columns] == [each.name for each in fields(record)]
    optional = {each.name for each in fields(record) if "None" in str(each.type)}
    assert {column.name for column in table.columns if column.nullable} == optional


async def test_each_record_comes_back_as_it_was(database: Database) -> None:
    session = made.session(
        "full",
        status=Status.FAILED,
        generation=2**40,
        env={"Z": "1", "A": "ü\n"},
        labels={"z": "", "a": "b"},
        metadata=ODD,
        idle_timeout=0,
        keep_warm=True,
        pause_reason="idle",
        fork_id="f",
        forked_from="c",
        machine="m",
        snapshot="s",
        boot_id="b",
        failure="It broke.",
        last_event_at=made.later(0.000001),
        defaults={"user": None, "env": {}},
        host="h",
        egress={"allow": [{"host": "b.test"}, {"host": "a.test"}]},
        names='{"b.test":"198.18.1.1"}',
    )
    child = made.session("child", parent=session.id, egress="none")
    snapshot = made.snapshot(
        "s1",
        session.id,
        kind="files",
        status="LOST",
        parent="s0",
        event="e",
        error="x",
        stored_bytes=1 << 50,
        durable=True,
        label="before lunch",
    )
    event = made.event("e1", session=session.id, actor="a", data=ODD)
    operation = made.operation(
        "o1",
        session="s",
        key="k",
        digest="d",
        plan=ODD,
        result={"b": 1, "a": 2},
        error="x",
        state="failed",
        ended_at=made.later(1),
    )
    token = made.token(
        "t", role="admin", expires_at=made.later(2), used_at=made.later(1), revoked_at=made.START
    )
    sample = made.sample(session.id, machine=None)
    async with database.write() as conn:
        await sessions.insert(conn, session)
        await sessions.insert(conn, child)
        await snapshots.insert(conn, snapshot)
        await events.append(conn, event)
        await operations.insert(conn, operation)
        await tokens.insert(conn, token)
        await samples.append(conn, [sample])
    async with database.read() as conn:
        found = await sessions.get(conn, session.id)
        assert repr(found) == repr(session)  # equal, and in the order in which keys were
        assert await sessions.get(conn, child.id) == child
        assert await snapshots.get(conn, "s1") == snapshot
        assert repr(await events.after(conn, None, None, 9)) == repr([event])
        assert repr(await operations.get(conn, "o1")) == repr(operation)
        assert await tokens.get(conn, "t") == token
        assert await samples.of_session(conn, session.id) == [sample]


async def test_what_is_not_there_is_none(database: Database) -> None:
    async with database.read() as conn:
        assert await sessions.get(conn, "x") is None
        assert await sessions.find(conn, "x") is None
        assert await snapshots.get(conn, "x") is None
        assert await snapshots.by_checkpoint(conn, "x", "x") is None
        assert await operations.get(conn, "x") is None
        assert await operations.by_key(conn, "x", "x") is None
        assert await tokens.get(conn, "x") is None
        assert await events.last_id(conn) is None
