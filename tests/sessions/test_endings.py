"""Machines that cannot be ended at once are ended later, and that is told."""

import asyncio

import pytest

from tests.sessions.conftest import ANN, Service, full_disk
from tests.waiting import eventually
from torpor.sessions import FailedError
from torpor.store.errors import DiskFullError
from torpor.store.records import Event, Session, Status
from torpor.vm import HostError, LaunchError, leftovers

STUCK = HostError("Its process does not end.")


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Try again at once."""
    monkeypatch.setattr(leftovers, "FIRST", 0.02)
    monkeypatch.setattr(leftovers, "SLOWEST", 0.05)


async def told(service: Service, session: Session) -> list[Event]:
    found = await service.sessions.events.after(None, session.id)
    return [event for event in found if event.type.startswith("machine.")]


async def tries(service: Service) -> int:
    return service.host.calls.count("end")


async def ended_at_last(service: Service, session: Session, machine: str, left: list[str]) -> None:
    """Check that a machine which stays is told, tried again, and gone in the end."""
    await eventually(lambda: tries(service), lambda count: count > 4)
    assert machine in service.host.machines()
    (stays,) = await told(service, session)
    assert stays.type == "machine.stays"
    assert stays.data == {"machine": machine, "error": str(STUCK)}
    service.host.refuse_always.clear()

    async def machines() -> list[str]:
        return service.host.machines()

    await eventually(machines, lambda found: found == left)
    types = [event.type for event in await told(service, session)]
    await eventually(lambda: told(service, session), lambda found: len(found) == 2)
    types = [event.type for event in await told(service, session)]
    assert types == ["machine.stays", "machine.ended"]
    before = await tries(service)
    await asyncio.sleep(0.2)
    assert await tries(service) == before


async def test_of_a_session_that_is_destroyed(service: Service) -> None:
    session = await service.ready()
    service.host.refuse_always["end"] = STUCK
    await service.sessions.destroy(session.id, ANN)
    assert (await service.get(session)).status is Status.DESTROYED
    await ended_at_last(service, session, service.machine(session), [])


async def test_of_a_session_that_is_rolled_back(service: Service) -> None:
    session = await service.ready()
    made = await service.sessions.checkpoint(session.id, ANN)
    service.host.refuse_always["end"] = STUCK
    rolled = await service.sessions.rollback(session.id, ANN, made.checkpoint or "")
    new = service.machine(rolled.session)
    await ended_at_last(service, session, service.machine(session), [new])
    assert (await service.get(session)).machine == new


async def test_of_a_start_that_could_not_be_noted(service: Service) -> None:
    session = await service.ready()
    await service.sessions.pause(session.id, ANN)
    service.host.refuse_always["end"] = STUCK
    with (
        full_disk(service.database, lambda said: "session.resumed" in said),
        pytest.raises(DiskFullError),
    ):
        await service.sessions.resume(session.id, ANN)
    (machine,) = service.host.machines()
    await ended_at_last(service, session, machine, [])
    back = await service.sessions.resume(session.id, ANN)
    assert service.host.machines() == [back.machine]


async def test_of_a_new_session_that_could_not_be_noted(service: Service) -> None:
    service.host.refuse_always["end"] = STUCK
    with full_disk(service.database, lambda said: "session.ready" in said):
        session = await service.ready()
    assert session.status is Status.FAILED
    (machine,) = service.host.machines()
    await ended_at_last(service, session, machine, [])


async def test_that_a_start_finds(service: Service) -> None:
    session = await service.ready()
    service.host.refuse_always["end"] = STUCK
    await service.sessions.destroy(session.id, ANN)
    await service.close()
    assert service.host.machines() == [session.machine]
    service.host.calls.clear()
    await service.open()
    await eventually(lambda: tries(service), lambda count: count > 2)
    service.host.refuse_always.clear()

    async def machines() -> list[str]:
        return service.host.machines()

    await eventually(machines, lambda found: not found)


async def test_a_database_that_does_not_take_it_is_told_later(service: Service) -> None:
    session = await service.ready()
    service.host.refuse_always["end"] = STUCK
    with full_disk(service.database, lambda said: "machine.stays" in said):
        await service.sessions.destroy(session.id, ANN)
        await eventually(lambda: tries(service), lambda count: count > 2)
        assert await told(service, session) == []
    await ended_at_last(service, session, service.machine(session), [])


async def test_a_service_that_is_closed_does_not_wait_for_it(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leftovers, "FIRST", 1000.0)
    session = await service.ready()
    service.host.refuse_always["end"] = STUCK
    await service.sessions.destroy(session.id, ANN)
    async with asyncio.timeout(10):
        await service.close()
    service.host.refuse_always.clear()
    await service.open()
    assert service.host.machines() == []


async def test_a_machine_that_is_a_sessions_after_all_is_left(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who was cut off right after the commit finds that out, though the database is busy first."""
    session = await service.ready()
    await service.sessions.pause(session.id, ANN)
    get = service.sessions._standing.get
    refusals = 0

    async def busy(wanted: str) -> Session:
        nonlocal refusals
        if refusals:
            refusals -= 1
            raise DiskFullError("The disk is full.")
        return await get(wanted)

    monkeypatch.setattr(service.sessions._standing, "get", busy)
    service.host.refuse["start"] = LaunchError("QEMU did not come up.")
    with pytest.raises(FailedError):
        await service.sessions.resume(session.id, ANN)
    back = await service.sessions.resume(session.id, ANN)
    refusals = 2
    (running,) = service.host.running().values()
    await service.sessions._standing._end_unless_noted(back, running)
    assert refusals == 1

    async def left() -> int:
        return refusals

    await eventually(left, lambda count: count == 0)
    await asyncio.sleep(0.2)
    assert service.host.machines() == [back.machine]
    assert "end" not in service.host.calls
