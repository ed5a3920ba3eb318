"""A snapshot that nothing needs is removed; one that a session is just resumed from is not, and one
that is just removed is not resumed from."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from tests.sessions.conftest import ANN, Service
from tests.waiting import eventually
from torpor.sessions import FailedError, NotFoundError
from torpor.store import snapshots
from torpor.store.records import Session, Status
from torpor.vm import LaunchError


class Gate:
    """Holds up a step of the host from now on, until it is opened."""

    def __init__(self, service: Service, step: str) -> None:
        self.reached, self._opened = asyncio.Event(), asyncio.Event()
        real = getattr(service.host, step)

        async def gated(*args: Any, **kwargs: Any) -> Any:
            self.reached.set()
            await self._opened.wait()
            return await real(*args, **kwargs)

        setattr(service.host, step, gated)

    def open(self) -> None:
        self._opened.set()


Gates = Callable[[str], Gate]


@pytest.fixture
def gate(service: Service) -> Iterator[Gates]:
    """Makes gates, all of which are open in the end: nothing waits for a test that failed."""
    made: list[Gate] = []

    def make(step: str) -> Gate:
        made.append(Gate(service, step))
        return made[-1]

    yield make
    for each in made:
        each.open()


async def until(gate: Gate, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    """Begin work, and return when it has come to a gate."""
    task = asyncio.create_task(work)
    await asyncio.wait_for(gate.reached.wait(), 10)
    return task


async def noted(service: Service) -> set[str]:
    """The snapshots that the database has."""
    async with service.database.read() as conn:
        return await snapshots.ids(conn)


async def paused_over_an_older(service: Service, gate: Gates) -> tuple[Session, str, Gate]:
    """A session that is paused, an older pause of it that nothing needs any more, and what keeps
    that from being removed."""
    session = await service.ready()
    older = await service.sessions.pause(session.id, ANN, durable=True)
    assert older.snapshot is not None
    service.host.count(service.machine(await service.sessions.resume(session.id, ANN)))
    durable = gate("durable")
    return await service.sessions.pause(session.id, ANN), older.snapshot, durable


async def test_what_is_just_removed_is_not_resumed_from(service: Service, gate: Gates) -> None:
    session = await service.ready()
    checkpoint = await service.sessions.checkpoint(session.id, ANN, durable=True)
    paused = await service.sessions.pause(session.id, ANN, durable=True)
    removal = gate("remove")
    deleting = await until(
        removal, service.sessions.delete_checkpoint(session.id, checkpoint.checkpoint or "", ANN)
    )
    resuming = asyncio.create_task(service.sessions.resume(session.id, ANN, snapshot=checkpoint.id))
    await eventually(lambda: under_way(service, session), lambda doing: doing == "resume")
    removal.open()
    await deleting
    with pytest.raises(NotFoundError, match="has no snapshot"):
        await resuming
    after = await service.get(session)
    assert (after.status, after.snapshot) == (Status.PAUSED, paused.snapshot)
    assert service.host.calls.count("start resume") == 0
    assert (await service.sessions.resume(session.id, ANN)).status is Status.READY


async def under_way(service: Service, session: Session) -> str | None:
    return service.sessions.doing(session.id)


async def test_what_a_session_is_just_resumed_from_is_not_removed(
    service: Service, gate: Gates
) -> None:
    session, older, durable = await paused_over_an_older(service, gate)
    start = gate("start")
    resuming = await until(start, service.sessions.resume(session.id, ANN, snapshot=older))
    durable.open()
    await service.sessions._snapshots.tidy()
    assert older in service.host.snapshots()
    start.open()
    resumed = await resuming
    assert (resumed.status, resumed.snapshot) == (Status.READY, older)
    assert service.host.counted(service.machine(resumed)) == 0
    assert older in await noted(service)
    # The session has moved on, and what it was resumed from is needed no longer than by it.
    await service.sessions.pause(session.id, ANN)
    await eventually(lambda: noted(service), lambda ids: older not in ids)
    assert older not in service.host.snapshots()


async def test_what_could_not_be_resumed_from_is_removed_after_that(
    service: Service, gate: Gates
) -> None:
    session, older, durable = await paused_over_an_older(service, gate)
    service.host.refuse["start"] = LaunchError("QEMU did not come up.")
    start = gate("start")
    resuming = await until(start, service.sessions.resume(session.id, ANN, snapshot=older))
    durable.open()
    await service.sessions._snapshots.tidy()
    start.open()
    with pytest.raises(FailedError, match="did not come up"):
        await resuming
    after = await service.get(session)
    assert (after.status, after.snapshot) == (Status.PAUSED, session.snapshot)
    await eventually(lambda: noted(service), lambda ids: ids == {session.snapshot})
    assert older not in service.host.snapshots()
