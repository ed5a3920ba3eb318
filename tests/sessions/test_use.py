"""Using a session wakes it, once."""

import asyncio
from typing import Any

import pytest

from tests.sessions.conftest import ANN, Service
from torpor.sessions import ConflictError, DestroyedError, FailedError, NoRoomError
from torpor.sessions.hosts import Running
from torpor.store.records import Status
from torpor.vm import ChannelLostError, LaunchError


async def test_a_hundred_uses_of_a_paused_session_are_one_thaw(service: Service) -> None:
    session = await service.ready()
    await service.sessions.pause(session.id, ANN)
    service.host.step = 0.01

    async def use() -> str:
        async with service.sessions.use(session.id, ANN) as used:
            return str(used.agent)

    machines = await asyncio.gather(*(use() for _ in range(100)))
    assert len(set(machines)) == 1
    assert service.host.calls.count("start resume") == 1


async def test_pausing_resuming_and_using_all_at_once_answers_everybody(service: Service) -> None:
    session = await service.ready()
    service.host.step = 0.001

    async def one() -> None:
        await service.sessions.pause(session.id, ANN)
        await service.sessions.resume(session.id, ANN)
        async with service.sessions.use(session.id, ANN) as used:
            assert used.session.status is Status.READY

    await asyncio.gather(*(one() for _ in range(50)))
    assert len(service.host.machines()) == 1


async def test_a_use_waits_for_a_session_that_is_being_created(service: Service) -> None:
    from torpor.sessions import NewSession

    service.host.step = 0.02
    made = await service.sessions.create(NewSession(), ANN)
    async with service.sessions.use(made.id, ANN) as used:
        assert used.session.status is Status.READY


async def test_a_use_that_cannot_wake_a_session_says_why(service: Service) -> None:
    session = await service.ready()
    await service.sessions.pause(session.id, ANN)
    service.host.refuse["start"] = LaunchError("QEMU did not come up.")
    with pytest.raises(FailedError, match="did not come up"):
        async with service.sessions.use(session.id, ANN):
            pass
    service.host.memory = 0
    with pytest.raises(NoRoomError) as refused:
        async with service.sessions.use(session.id, ANN):
            pass
    assert refused.value.facts["free"] == 0
    assert (await service.get(session)).status is Status.PAUSED


async def test_a_wake_that_fails_is_tried_once_for_all_who_wait_for_it(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = await service.ready()
    await service.sessions.pause(session.id, ANN)
    tries = 0

    async def start(*_: Any, **__: Any) -> Running:
        nonlocal tries
        tries += 1
        await asyncio.sleep(0.05)
        raise LaunchError("QEMU did not come up.")

    async def use() -> None:
        async with service.sessions.use(session.id, ANN):
            pass

    monkeypatch.setattr(service.host, "start", start)
    ended = await asyncio.gather(*(use() for _ in range(20)), return_exceptions=True)
    assert [type(error) for error in ended] == [FailedError] * 20
    assert tries == 1


async def test_a_failed_or_destroyed_session_is_not_used(service: Service) -> None:
    session = await service.ready()
    service.host.die(service.machine(session))
    await service.status(session, Status.FAILED)
    with pytest.raises(ConflictError, match="has failed"):
        async with service.sessions.use(session.id, ANN):
            pass
    await service.sessions.destroy(session.id, ANN)
    with pytest.raises(DestroyedError):
        async with service.sessions.use(session.id, ANN):
            pass


async def test_an_agent_that_does_not_answer_detaches_its_session(service: Service) -> None:
    session = await service.ready()
    service.host.refuse["agent"] = ChannelLostError("The agent is silent.")
    with pytest.raises(ChannelLostError):
        async with service.sessions.use(session.id, ANN):
            pass
    assert (await service.get(session)).status is Status.DETACHED
    async with service.sessions.use(session.id, ANN):
        pass
    assert (await service.get(session)).status is Status.READY
