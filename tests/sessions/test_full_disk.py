"""What has happened on the host while the database takes nothing, and is written down later."""

import asyncio

import pytest

from tests.sessions.conftest import ANN, Service, full_disk
from tests.waiting import eventually
from torpor.sessions import FailedError, NewSession, operations
from torpor.store import operations as operations_table
from torpor.store.errors import DiskFullError
from torpor.store.records import Status
from torpor.vm import MIB, SnapshotError


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask the database again at once."""
    monkeypatch.setattr(operations, "AGAIN_SECONDS", 0.05)


async def calls(service: Service, name: str) -> None:
    """Return once the host has been asked for something by this name."""

    async def asked() -> list[str]:
        return service.host.calls

    await eventually(asked, lambda found: name in found)


async def stopped(service: Service) -> None:
    """Return once no machine runs any more."""

    async def machines() -> list[str]:
        return service.host.machines()

    await eventually(machines, lambda found: not found)


def paused(statement: str) -> bool:
    return "session.paused" in statement


async def test_a_pause_is_written_down_when_there_is_space_again(service: Service) -> None:
    session = await service.ready()
    service.host.count(service.machine(session))
    with full_disk(service.database, paused):
        pausing = asyncio.create_task(service.sessions.pause(session.id, ANN))
        await stopped(service)
        await asyncio.sleep(0.2)
        assert not pausing.done()
    assert (await pausing).status is Status.PAUSED
    back = await service.sessions.resume(session.id, ANN)
    assert service.host.counted(service.machine(back)) == 1


async def test_a_pause_that_never_could_be_written_down_is_finished_by_the_next_program(
    service: Service,
) -> None:
    session = await service.ready()
    service.host.count(service.machine(session))
    with full_disk(service.database, paused):
        pausing = asyncio.create_task(service.sessions.pause(session.id, ANN, reason="mine"))
        await stopped(service)
        await service.close()
        with pytest.raises(DiskFullError):
            await pausing
    await service.open()
    found = await service.get(session)
    assert (found.status, found.pause_reason) == (Status.PAUSED, "mine")
    back = await service.sessions.resume(session.id, ANN)
    assert service.host.counted(service.machine(back)) == 1


async def test_a_checkpoint_is_written_down_when_there_is_space_again(service: Service) -> None:
    session = await service.ready()
    with full_disk(service.database, lambda said: "checkpoint.created" in said):
        making = asyncio.create_task(service.sessions.checkpoint(session.id, ANN))
        await calls(service, "freeze")
        await asyncio.sleep(0.2)
        assert not making.done()
    made = await making
    assert (await service.get(session)).snapshot == made.id


async def test_a_machine_whose_start_cannot_be_written_down_is_ended(service: Service) -> None:
    session = await service.ready()
    await service.sessions.pause(session.id, ANN)
    with (
        full_disk(service.database, lambda said: "session.resumed" in said),
        pytest.raises(DiskFullError),
    ):
        await service.sessions.resume(session.id, ANN)
    assert service.host.machines() == []
    back = await service.sessions.resume(session.id, ANN)
    assert service.host.machines() == [back.machine]
    service.host.count(service.machine(back))
    await service.again()
    assert (await service.get(session)).machine == back.machine
    assert service.host.machines() == [back.machine]


async def test_an_operation_whose_failure_cannot_be_noted_fails_as_itself(
    service: Service,
) -> None:
    session = await service.ready()
    await service.sessions.pause(session.id, ANN)
    service.host.refuse["start"] = SnapshotError("It is damaged.")
    with (
        full_disk(service.database, lambda said: "operation.failed" in said),
        pytest.raises(FailedError, match="damaged"),
    ):
        await service.sessions.resume(session.id, ANN)
    await service.again()
    async with service.database.read() as conn:
        assert await operations_table.unfinished(conn) == []
    assert (await service.get(session)).status is Status.PAUSED


async def test_the_end_of_a_machine_is_written_down_when_there_is_space_again(
    service: Service,
) -> None:
    session = await service.ready()
    with full_disk(service.database, lambda said: "session.failed" in said):
        service.host.die(service.machine(session))
        await asyncio.sleep(0.3)
        assert (await service.get(session)).status is Status.READY
    await service.status(session, Status.FAILED)


@pytest.mark.parametrize("refused", [("session.ready",), ("session.ready", "session.failed")])
async def test_a_new_session_whose_start_cannot_be_written_down_has_failed(
    service: Service, refused: tuple[str, ...]
) -> None:
    with full_disk(service.database, lambda said: any(word in said for word in refused)):
        made = await service.sessions.create(NewSession(name="one"), ANN)
        await calls(service, "end")
    failed = await service.status(made, Status.FAILED)
    assert service.host.machines() == []
    assert "The disk is full" in (failed.failure or "")
    assert service.sessions.free_memory() == service.host.free_memory() - 512 * MIB
