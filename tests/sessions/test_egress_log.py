"""What the wall decided is kept, in few transactions, and followed; what went through it counts."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.sessions.conftest import ANN, Service, full_disk
from tests.sessions.decided import allowed, denied, ended, later
from tests.waiting import eventually
from torpor.sessions import egress_log
from torpor.sessions.egress_batch import MOST_LINES
from torpor.sessions.egress_log import EgressLog
from torpor.sessions.flows import MOST_PLACES
from torpor.store import sessions as sessions_table
from torpor.store.egress_log import EgressQuery
from torpor.store.errors import StoreError
from torpor.store.records import EgressEntry, Flow, Session


@pytest.fixture
async def one(service: Service) -> Session:
    return await service.ready()


@pytest.fixture
def log(service: Service) -> EgressLog:
    return service.sessions.egress_log


async def lines(service: Service, session: Session) -> list[EgressEntry]:
    return await service.sessions.egress_log.after(EgressQuery(session.id), None, 20_000)


async def flows(service: Service, session: Session) -> dict[str, Flow]:
    found = await service.sessions.egress_log.flows(session.id)
    return {flow.name: flow for flow in found}


class Writes:
    """How many transactions have written."""

    def __init__(self, service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        real = service.database.write

        @contextlib.asynccontextmanager
        async def write() -> AsyncIterator[Any]:
            self.count += 1
            async with real() as conn:
                yield conn

        monkeypatch.setattr(service.database, "write", write)


async def test_what_is_decided_is_written_by_itself_and_what_is_denied_says_what_would_allow_it(
    service: Service, one: Session
) -> None:
    service.host.decide(service.machine(one), denied())
    (line,) = await eventually(lambda: lines(service, one), bool)
    assert (line.host, line.allowed, line.add) == ("evil.test", False, "evil.test:443")
    told = await eventually(lambda: service.types(one), lambda types: "egress.denied" in types)
    assert told.count("egress.denied") == 1


async def test_thousands_of_short_connections_are_few_transactions_and_none_is_lost(
    service: Service, one: Session, log: EgressLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = service.machine(one)
    writes = Writes(service, monkeypatch)
    for number in range(10_000):
        at = later(number / 100)
        service.host.decide(machine, allowed(at=at))
        service.host.decide(machine, ended(at=at))
        service.host.decide(machine, denied(f"h{number % 50}.test", at=at))
        if number % 1000 == 0:
            await flows(service, one)  # whoever looks makes no more events of it
    service.host.reach(machine, "a.test", 100_000, 200_000, connections=10_000)
    await log.flush()
    assert writes.count < 100  # with those that come by themselves
    found = await lines(service, one)
    assert sum(line.count for line in found if line.allowed) == 10_000
    assert sum(line.count for line in found if not line.allowed) == 10_000
    assert sum(line.sent_bytes for line in found) == 100_000
    places = await flows(service, one)
    assert places["a.test"].connections == 10_000
    assert sum(flow.denied for flow in places.values()) == 10_000
    events = await service.types(one)
    assert events.count("egress.connected") == 1
    assert events.count("egress.denied") <= 3


async def test_nothing_new_costs_no_transaction(
    service: Service, one: Session, log: EgressLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    service.host.reach(service.machine(one), "a.test", 1, 1)
    await log.flush()
    writes = Writes(service, monkeypatch)
    await log.flush()
    await flows(service, one)
    assert writes.count == 0


async def test_what_could_not_be_written_is_written_later_and_counted_once(
    service: Service, one: Session, log: EgressLog
) -> None:
    machine = service.machine(one)
    await asyncio.sleep(0)
    with full_disk(service.database, lambda said: "INSERT INTO egress_log" in said):
        for _ in range(2):
            service.host.decide(machine, denied())
            service.host.reach(machine, "a.test", 5, 7)
            with pytest.raises(StoreError):
                await log.flush()
    assert await lines(service, one) == []
    await log.flush()
    (line,) = await lines(service, one)
    assert line.count == 2
    places = await flows(service, one)
    assert places["evil.test"].denied == 2
    assert (places["a.test"].sent_bytes, places["a.test"].received_bytes) == (10, 14)
    assert (await service.types(one)).count("egress.denied") == 1


async def test_who_is_cancelled_in_the_middle_of_writing_counts_nothing_twice(
    service: Service, one: Session, log: EgressLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, committed = service.database.write, asyncio.Event()

    @contextlib.asynccontextmanager
    async def write() -> AsyncIterator[Any]:
        async with real() as conn:
            yield conn
        committed.set()
        await asyncio.sleep(0.1)  # where a cancellation comes too late

    with monkeypatch.context() as slow:
        slow.setattr(service.database, "write", write)
        log.take(one.id, denied())
        writing = asyncio.create_task(log.flush())
        await committed.wait()
        writing.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await writing
    await log.flush()
    assert [line.count for line in await lines(service, one)] == [1]
    assert (await flows(service, one))["evil.test"].denied == 1


async def test_the_machine_of_a_session_that_is_not_known_keeps_no_other_from_being_written(
    service: Service, one: Session, log: EgressLog
) -> None:
    log.take("nobody", denied())
    log.take(one.id, denied())
    await log.flush()
    assert len(await lines(service, one)) == 1


async def test_bytes_are_counted_over_pauses_and_to_the_end_of_a_machine(
    service: Service, one: Session, log: EgressLog
) -> None:
    service.host.reach(service.machine(one), "a.test", 10, 100)
    await log.flush()
    service.host.reach(service.machine(one), "a.test", 1, 2)
    await service.sessions.pause(one.id, ANN)  # what was counted since is told once more
    resumed = await service.sessions.resume(one.id, ANN)
    service.host.reach(service.machine(resumed), "a.test", 5, 50)
    service.host.reach(service.machine(resumed), "b.test", 1, 0)
    await service.sessions.destroy(one.id, ANN)
    places = await flows(service, one)
    assert (places["a.test"].sent_bytes, places["a.test"].received_bytes) == (16, 152)
    assert places["a.test"].connections == 3
    samples = await log.traffic(one.id)
    assert sum(sample.sent_bytes for sample in samples) == 17
    assert len({(sample.at, sample.host) for sample in samples}) == len(samples)


async def test_a_server_that_is_started_anew_counts_on_and_loses_nothing(
    service: Service, one: Session
) -> None:
    machine = service.machine(one)
    service.host.reach(machine, "a.test", 10, 0)
    service.host.decide(machine, denied())
    await service.again()
    service.host.decide(machine, denied())
    service.host.reach(machine, "a.test", 5, 0)
    places = await flows(service, one)
    assert places["a.test"].sent_bytes == 15
    assert places["evil.test"].denied == 2
    assert [line.count for line in await lines(service, one)] == [1, 1]


async def test_a_session_that_makes_names_up_is_kept_in_bounds_and_what_it_did_is_counted(
    service: Service, one: Session, log: EgressLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(egress_log, "MOST_KEPT", 400)
    monkeypatch.setattr(egress_log, "MOST_BEYOND", 100)
    machine = service.machine(one)
    total = MOST_PLACES + 500
    for number in range(total):
        service.host.decide(machine, denied(f"h{number}.test", at=later(number)))
        if number % 200 == 199:
            await log.flush()
    await log.flush()
    kept = await lines(service, one)
    assert 400 <= len(kept) <= 500 + MOST_LINES
    assert kept[-1].host == f"h{total - 1}.test"
    places = await flows(service, one)
    assert len(places) == MOST_PLACES + 1
    assert places[""].denied == 500
    assert sum(flow.denied for flow in places.values()) == total


async def test_secrets_and_inspection_are_part_of_where_data_went(
    service: Service, one: Session, log: EgressLog
) -> None:
    machine = service.machine(one)
    service.host.decide(machine, ended(inspected=True, secrets=("b", "a")))
    service.host.decide(machine, ended(secrets=("c",), at=later(1)))
    service.host.decide(machine, ended("plain.test"))
    service.host.reach(machine, "a.test", 1, 1)
    places = await flows(service, one)
    assert places.keys() == {"a.test"}  # to the other nothing was counted
    assert (places["a.test"].inspected, places["a.test"].secrets) == (True, ("a", "b", "c"))


async def test_following_yields_each_line_once_and_ends_with_the_session(
    service: Service, one: Session, log: EgressLog
) -> None:
    machine = service.machine(one)
    service.host.decide(machine, denied("first.test"))
    await log.flush()
    found: list[str] = []

    async def follow() -> None:
        async for entry in log.follow(EgressQuery(one.id, allowed=False), None):
            found.append(entry.host)  # noqa: PERF401 - one by one, as they come

    following = asyncio.create_task(follow())
    for number in range(3):
        service.host.decide(machine, denied(f"h{number}.test", at=later(number)))
        service.host.decide(machine, allowed())
        await eventually(lambda: asyncio.sleep(0, len(found)), lambda n, w=number: n == w + 2)
    service.host.decide(machine, denied("last.test"))
    await service.sessions.destroy(one.id, ANN)
    async with asyncio.timeout(10):
        await following
    assert found == ["first.test", "h0.test", "h1.test", "h2.test", "last.test"]
    async with asyncio.timeout(10):
        again = [entry.host async for entry in log.follow(EgressQuery(one.id), None)]
    assert again[-1] == "last.test"  # one that is destroyed already ends too


async def test_what_is_old_is_forgotten_by_itself(service: Service, one: Session) -> None:
    service.host.decide(service.machine(one), denied())  # in the spring of a year that is over
    await service.sessions.egress_log.flush()
    assert len(await lines(service, one)) == 1
    await service.sessions._watch.tidy()
    assert await lines(service, one) == []


# What a rollback and a fork do not undo


async def not_undone(service: Service, session: Session, checkpoint: str | None) -> list[list[str]]:
    rolled = await service.sessions.rollback(session.id, ANN, checkpoint or "")
    events = {each.id: each for each in await service.sessions.events.after(None, session.id)}
    return [events[each].data["hosts"] for each in rolled.not_undone]


async def test_a_rollback_lists_the_hosts_that_were_reached_since_and_no_others(
    service: Service, one: Session
) -> None:
    machine = service.machine(one)
    service.host.decide(machine, allowed("before.test"))
    service.host.decide(machine, denied("denied.test"))
    await service.sessions.egress_log.flush()
    checkpoint = await service.sessions.checkpoint(one.id, ANN)
    service.host.decide(machine, allowed("after.test"))
    service.host.decide(machine, allowed("before.test", at=later(5)))
    service.host.decide(machine, denied("denied.test", at=later(5)))
    found = await not_undone(service, one, checkpoint.checkpoint)
    assert found == [["after.test", "before.test"]]


async def test_a_connection_that_was_open_over_the_snapshot_is_listed_if_anything_went_over_it(
    service: Service, one: Session
) -> None:
    machine = service.machine(one)
    for host in ("busy.test", "idle.test"):
        service.host.decide(machine, allowed(host))
        service.host.reach(machine, host, 1, 1)
    await service.sessions.egress_log.flush()
    checkpoint = await service.sessions.checkpoint(one.id, ANN)
    service.host.reach(machine, "busy.test", 10, 0, connections=0)
    found = await not_undone(service, one, checkpoint.checkpoint)
    assert found == [["busy.test"]]


async def test_a_connection_in_the_middle_of_a_snapshot_is_told_after_it(
    service: Service, one: Session
) -> None:
    machine = service.machine(one)
    freeze = service.host.freeze

    async def freeze_meanwhile(*args: Any, **more: Any) -> Any:
        service.host.decide(machine, allowed("meanwhile.test"))
        await service.sessions.egress_log.flush()
        return await freeze(*args, **more)

    service.host.freeze = freeze_meanwhile  # type: ignore[method-assign]
    checkpoint = await service.sessions.checkpoint(one.id, ANN)
    assert await not_undone(service, one, checkpoint.checkpoint) == [["meanwhile.test"]]


async def test_a_fork_of_a_checkpoint_lists_them_too(service: Service, one: Session) -> None:
    checkpoint = await service.sessions.checkpoint(one.id, ANN)
    service.host.decide(service.machine(one), allowed())
    forked = await service.sessions.fork(one.id, ANN, checkpoint=checkpoint.checkpoint)
    assert len(forked.not_undone) == 1
    now = await service.sessions.fork(one.id, ANN)
    assert now.not_undone == []


async def test_a_create_and_a_fork_need_no_statement_more_for_the_wall(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    writes = Writes(service, monkeypatch)
    plain = await service.ready("plain")
    first, writes.count = writes.count, 0
    listed = await service.ready("listed", egress=["a.test"])
    assert writes.count == first
    counts = []
    for session in (plain, listed):
        writes.count = 0
        (child,) = (await service.sessions.fork(session.id, ANN)).children
        assert isinstance(child, Session)
        await service.sessions.ready(child.id, 10)
        counts.append(writes.count)
    assert counts[0] == counts[1]
    async with service.database.read() as conn:
        assert (await sessions_table.get(conn, child.id)).egress == listed.egress  # type: ignore[union-attr]
