"""A database that is copied into another one is the same there."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.postgres import Cluster
from tests.store import made
from torpor.store import (
    Database,
    copying,
    egress_log,
    events,
    flows,
    hosts,
    offline,
    operations,
    samples,
    sessions,
    traffic,
)
from torpor.store import snapshots as snapshots_table
from torpor.store.errors import HostHeldError, MissingError, NotEmptyError, UrlError
from torpor.store.records import Status

WAYS = [(a, b) for a in ("sqlite", "postgresql") for b in ("sqlite", "postgresql")]


@pytest.fixture(params=WAYS, ids=lambda way: "-to-".join(way))
def both(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, str]]:
    """Where one database is, and where another one may come to be."""
    first, second = request.param
    with (
        place(request, first, tmp_path / "first.db") as source,
        place(request, second, tmp_path / "second.db") as target,
    ):
        yield source, target


def place(request: pytest.FixtureRequest, kind: str, file: Path) -> Any:
    import contextlib

    if kind == "sqlite":
        return contextlib.nullcontext(f"sqlite:///{file}")
    cluster: Cluster = request.getfixturevalue("cluster")
    return cluster.migrated()


async def fill(url: str) -> None:
    """With a child that is older than its parent, in ids and in time, and rows for many pages."""
    database = await Database.open(url)
    async with database.write() as conn:
        await sessions.insert(
            conn, made.session("parent", id="z", created_at=made.later(5), labels={"a": "b"})
        )
        await sessions.insert(
            conn, made.session("child", id="a", parent="z", metadata={"z": [1.5]})
        )
        for number in range(25):
            await events.append(conn, made.event(f"e{number:02}", session="a", data={"n": number}))
            await samples.append(conn, [made.sample("z", at=made.later(number))])
            await egress_log.append(conn, [made.entry(f"l{number:02}", "z", secrets=("s",))])
            await traffic.append(conn, [made.traffic("z", host=f"{number}.test")])
            await flows.insert(conn, [made.flow("a", name=f"{number}.test", inspected=True)])
        await snapshots_table.insert(conn, made.snapshot("s1", "a", durable=True))
        await operations.insert(conn, made.operation("o1", key="k", plan={"b": 1, "a": None}))
        claim = hosts.Claim("h", "here", None, "1", "place", "server")
        await hosts.give_back(conn, await hosts.take(conn, claim, 60))
    await database.close()


async def content(url: str) -> list[Any]:
    """All rows of all tables."""
    database = await Database.open(url)
    async with database.read() as conn:
        found = [
            sorted(map(repr, (await conn.execute(table.select())).all()))
            for table in copying.metadata.sorted_tables
        ]
    await database.close()
    return found


async def test_all_rows_are_the_same_there(
    both: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copying, "AT_ONCE", 4)
    source, target = both
    await fill(source)
    before = await content(source)
    assert await offline.copy(source, target) == sum(map(len, before))
    assert await content(target) == before
    assert await content(source) == before
    assert await offline.is_copy(source, target)
    database = await Database.open(target)
    async with database.write() as conn:
        await sessions.update(conn, "a", status=Status.PAUSED)
        await events.append(conn, made.event("e99"))
    await database.close()
    assert not await offline.is_copy(source, target)


async def test_one_that_has_something_in_it_is_left(both: tuple[str, str]) -> None:
    source, target = both
    await fill(source)
    await fill(target)
    before = await content(target)
    with pytest.raises(NotEmptyError, match="not empty"):
        await offline.copy(source, target)
    assert await content(target) == before


async def test_a_copy_that_is_cut_off_leaves_nothing(
    both: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = both
    await fill(source)
    real: Callable[..., Any] = copying._refer

    async def fails(*given: Any) -> None:
        await real(*given)
        raise OSError("out of luck")

    monkeypatch.setattr(copying, "_refer", fails)
    with pytest.raises(OSError, match="out of luck"):
        await offline.copy(source, target)
    assert await offline.is_empty(target)
    monkeypatch.undo()
    await offline.copy(source, target)
    assert await content(target) == await content(source)


async def test_one_that_a_server_uses_is_not_copied(both: tuple[str, str]) -> None:
    source, target = both
    database = await Database.open(source)
    async with database.write() as conn:
        claim = hosts.Claim("h", "here", "http://here", "1", "place", "server")
        await hosts.take(conn, claim, 60)
    with pytest.raises(HostHeldError, match="reached at http://here"):
        await offline.copy(source, target)
    await database.close()
    assert await offline.is_empty(target)


async def test_one_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(MissingError, match=r"no database .*a\.db"):
        await offline.copy(f"sqlite:///{tmp_path}/a.db", f"sqlite:///{tmp_path}/b.db")
    assert list(tmp_path.iterdir()) == []


async def test_what_is_no_address_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UrlError):
        await offline.copy(f"sqlite:///{tmp_path}/a.db", "nonsense")
