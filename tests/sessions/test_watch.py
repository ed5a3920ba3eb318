"""What is done all the time."""

import asyncio
from typing import Any

import pytest

from tests.sessions.conftest import ANN, Service
from tests.waiting import eventually
from torpor.sessions import Defaults, Keeping, NewSession, NoRoomError, RoomLimits, watch
from torpor.sessions.room import OVERHEAD
from torpor.store import sessions as table
from torpor.store.errors import DiskFullError
from torpor.store.records import Event, Status
from torpor.vm import MIB, FreezeError


@pytest.fixture
async def quick(service: Service) -> Service:
    """A service that looks often, and pauses nobody unless told."""
    service.options |= {
        "keeping": Keeping(sample_seconds=0.02),
        "defaults": Defaults(idle_timeout=0),
    }
    await service.again()
    return service


async def idle_limit(service: Service, session: str, seconds: int) -> None:
    """Give a session a time limit that is shorter than users may ask for."""
    async with service.database.write() as conn:
        await table.update(conn, session, idle_timeout=seconds)


async def test_an_idle_session_is_paused_and_says_so(quick: Service) -> None:
    session = await quick.ready()
    await idle_limit(quick, session.id, 1)
    paused = await quick.status(session, Status.PAUSED)
    assert paused.pause_reason == "idle"
    async with quick.sessions.use(session.id, ANN) as used:
        assert used.session.status is Status.READY


async def test_a_session_in_use_is_not_idle(quick: Service) -> None:
    session = await quick.ready()
    await idle_limit(quick, session.id, 1)
    async with quick.sessions.use(session.id, ANN):
        await asyncio.sleep(1.5)
        assert (await quick.get(session)).status is Status.READY
    await quick.status(session, Status.PAUSED)


async def test_an_idle_session_that_cannot_be_paused_is_tried_again(quick: Service) -> None:
    session = await quick.ready()
    quick.host.refuse["freeze"] = FreezeError("The disk is full.")
    await idle_limit(quick, session.id, 1)
    await quick.status(session, Status.PAUSED)
    assert "operation.failed" in await quick.types(session)


async def test_no_limit_and_kept_warm_are_never_idle(quick: Service) -> None:
    endless = await quick.ready("endless", idle_timeout=0)
    warm = await quick.ready("warm", keep_warm=True)
    await idle_limit(quick, warm.id, 1)
    await asyncio.sleep(1.3)
    for session in (endless, warm):
        assert (await quick.get(session)).status is Status.READY


async def test_what_a_session_uses_is_sampled_while_it_runs(quick: Service) -> None:
    session = await quick.ready()
    quick.host.count(quick.machine(session))
    await eventually(
        lambda: quick.sessions.samples(session.id), lambda found: found and found[-1].vcpu == 1.0
    )
    await quick.sessions.pause(session.id, ANN)
    samples = await quick.sessions.samples(session.id)
    assert samples[-1].vcpu == 1.0
    assert samples[-1].private == 40 * MIB
    assert samples[-1].stored == 1 * MIB
    assert [sample.at for sample in samples] == sorted(sample.at for sample in samples)
    before = len(samples)
    await asyncio.sleep(0.2)
    assert len(await quick.sessions.samples(session.id)) == before


@pytest.mark.parametrize("odd", [ValueError("no such form"), KeyError("VmRSS"), None])
async def test_a_machine_that_cannot_be_counted_keeps_no_other_from_its_care(
    quick: Service, monkeypatch: pytest.MonkeyPatch, odd: Exception | None
) -> None:
    bad, good = await quick.ready("bad"), await quick.ready("good")
    usage, asked = quick.host.usage, 0

    async def lying(machine: str) -> Any:
        nonlocal asked
        if machine != quick.machine(bad):
            return await usage(machine)
        asked += 1
        if odd is not None:
            raise odd
        return await asyncio.Event().wait()

    async def often() -> int:
        return asked

    monkeypatch.setattr(watch, "SAMPLE_LIMIT", 0.05)
    monkeypatch.setattr(quick.host, "usage", lying)
    await eventually(often, bool)
    before = len(await quick.sessions.samples(good.id))
    await eventually(lambda: quick.sessions.samples(good.id), lambda found: len(found) > before)
    await idle_limit(quick, good.id, 1)
    await quick.status(good, Status.PAUSED)


async def test_a_machine_that_is_held_by_a_full_disk_is_told(quick: Service) -> None:
    session = await quick.ready()

    async def told() -> list[str]:
        return [each for each in await quick.types(session) if each.endswith(("held", "released"))]

    quick.host.holding = "the host's disk is full"
    await eventually(told, lambda types: types == ["session.held"])
    quick.host.holding = None
    await eventually(told, lambda types: types == ["session.held", "session.released"])


@pytest.mark.parametrize("still", [False, True])
async def test_a_hold_that_another_program_told_is_told_to_be_over(
    quick: Service, still: bool
) -> None:
    session = await quick.ready()
    other = await quick.ready("other")

    async def told() -> list[str]:
        return [each for each in await quick.types(session) if each.endswith(("held", "released"))]

    for _ in range(2):
        quick.host.holding = "the host's disk is full"
        await eventually(told, lambda types: types[-1:] == ["session.held"])
        quick.host.holding = None
        await eventually(told, lambda types: types[-1:] == ["session.released"])
    quick.host.holding = "the host's disk is full"
    await eventually(told, lambda types: types[-1:] == ["session.held"])
    await quick.sessions.destroy(other.id, ANN)
    quick.host.holding = "the host's disk is full" if still else None
    await quick.again(quick.host)
    if still:
        await eventually(lambda: quick.sessions.samples(session.id), lambda found: len(found) > 2)
        quick.host.holding = None
    await eventually(told, lambda types: types == ["session.held", "session.released"] * 3)


async def test_a_hold_that_could_not_be_written_down_is_told_when_it_can(
    quick: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = await quick.ready()
    add, full, asked = quick.sessions.events.add, asyncio.Event(), 0

    async def refused(*args: Any, **data: Any) -> Event:
        nonlocal asked
        asked += 1
        if not full.is_set():
            raise DiskFullError("The disk is full.")
        return await add(*args, **data)

    async def often() -> int:
        return asked

    async def told() -> list[str]:
        return [each for each in await quick.types(session) if each.endswith(("held", "released"))]

    monkeypatch.setattr(quick.sessions.events, "add", refused)
    quick.host.holding = "the host's disk is full"
    await eventually(often, bool)
    quick.host.holding = None
    before = asked
    await eventually(often, lambda now: now > before)
    full.set()
    await eventually(told, lambda types: types == ["session.held", "session.released"])


async def test_a_session_for_which_there_is_no_room_is_refused_before_anything(
    service: Service,
) -> None:
    service.options["limits"] = RoomLimits(reserve=0, most=OVERHEAD + 128 * MIB)
    await service.again()
    await service.ready("one")
    with pytest.raises(NoRoomError, match="0 MiB are free"):
        await service.sessions.create(NewSession(name="two"), ANN)
    assert service.host.calls.count("start create") == 1
    await service.sessions.pause((await service.sessions.find("one")).id, ANN)
    assert (await service.ready("two")).status is Status.READY


async def test_room_is_taken_by_what_a_machine_is_still_going_to_write(service: Service) -> None:
    one = OVERHEAD + 128 * MIB
    service.host.memory = 512 * MIB + 2 * one
    await service.ready("one")
    service.host.memory += 60 * MIB  # that the machine has taken
    await service.ready("two")
    service.host.memory += 60 * MIB
    with pytest.raises(NoRoomError):
        await service.sessions.create(NewSession(name="three"), ANN)
