"""The life of a session."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from tests.sessions.conftest import ANN, Service
from tests.waiting import eventually
from torpor.sessions import (
    ConflictError,
    DestroyedError,
    FailedError,
    InvalidError,
    Key,
    NewSession,
    NotFoundError,
)
from torpor.sessions.model import Changes
from torpor.store.records import Session, Status
from torpor.store.sessions import SessionQuery
from torpor.vm import FreezeError, LaunchError


async def test_a_new_session_becomes_ready_and_tells_how(service: Service) -> None:
    made = await service.sessions.create(NewSession(name="one"), ANN)
    assert made.status is Status.PROVISIONING
    ready = await service.sessions.ready(made.id, 10)
    assert ready.status is Status.READY
    assert ready.machine in service.host.machines()
    assert ready.defaults["env"] == {"IMAGE": "default"}
    assert await service.types(ready) == ["session.created", "session.progress", "session.ready"]


async def test_a_session_counts_on_after_pause_and_resume(service: Service) -> None:
    session = await service.ready()
    for turn in range(1, 4):
        assert service.host.count(service.machine(session)) == turn
        paused = await service.sessions.pause(session.id, ANN)
        assert (paused.status, paused.machine, paused.generation) == (Status.PAUSED, None, turn)
        assert service.host.machines() == []
        session = await service.sessions.resume(session.id, ANN)
        assert session.boot_id == paused.boot_id


async def test_only_the_newest_pause_is_kept(service: Service) -> None:
    session = await service.ready()
    for _ in range(5):
        await service.sessions.pause(session.id, ANN, durable=True)
        await service.sessions.resume(session.id, ANN)
    await service.again()
    assert len(service.host.snapshots()) == 2  # the golden one, and the newest


async def test_pausing_twice_and_resuming_twice_are_no_errors(service: Service) -> None:
    session = await service.ready()
    first = await service.sessions.pause(session.id, ANN)
    assert await service.sessions.pause(session.id, ANN) == first
    again = await service.sessions.resume(session.id, ANN)
    assert (await service.sessions.resume(session.id, ANN)).machine == again.machine
    assert service.host.calls.count("start resume") == 1


async def test_metadata_env_and_labels_come_back_as_they_were(service: Service) -> None:
    given = {
        "env": {"Z": "1", "A": "ü\n"},
        "labels": {"z": "1", "a/b": ""},
        "metadata": {"z": [1, {"y": None}], "a": {"c": 1.5, "b": "\u2028"}},
    }
    session = await service.ready(**given)
    await service.sessions.pause(session.id, ANN)
    await service.again()
    await service.sessions.resume(session.id, ANN)
    forked = await service.sessions.fork(session.id, ANN)
    for found in (await service.get(session), forked.children[0]):
        for name, value in given.items():
            assert repr(getattr(found, name)) == repr(value)


async def test_a_freeze_that_fails_leaves_the_session_running(service: Service) -> None:
    session = await service.ready()
    service.host.refuse["freeze"] = FreezeError("The disk is full.")
    with pytest.raises(FailedError, match="disk is full"):
        await service.sessions.pause(session.id, ANN)
    assert (await service.get(session)).status is Status.READY
    assert "operation.failed" in await service.types(session)
    assert (await service.sessions.pause(session.id, ANN)).status is Status.PAUSED


async def test_a_resume_that_fails_leaves_the_session_paused(service: Service) -> None:
    session = await service.ready()
    await service.sessions.pause(session.id, ANN)
    service.host.refuse["start"] = LaunchError("QEMU did not come up.")
    with pytest.raises(FailedError, match="did not come up"):
        await service.sessions.resume(session.id, ANN)
    assert (await service.get(session)).status is Status.PAUSED
    assert (await service.sessions.resume(session.id, ANN)).status is Status.READY


async def test_a_start_that_fails_fails_the_session_and_frees_its_name(service: Service) -> None:
    service.host.refuse["start"] = LaunchError("QEMU did not come up.")
    failed = await service.ready()
    assert failed.status is Status.FAILED
    assert "did not come up" in (failed.failure or "")
    assert (await service.ready()).status is Status.READY


async def test_a_machine_that_dies_fails_its_session_and_leaves_what_can_be_recovered(
    service: Service,
) -> None:
    session = await service.ready()
    service.host.count(service.machine(session))
    checkpoint = await service.sessions.checkpoint(session.id, ANN)
    service.host.die(service.machine(session), files=True)
    failed = await service.status(session, Status.FAILED)
    assert "crash" in (failed.failure or "")
    found = await service.sessions.recoverable(session.id)
    assert [row.kind for row in found] == ["files", "checkpoint"]
    with pytest.raises(ConflictError, match="without being asked"):
        await service.sessions.resume(session.id, ANN)
    back = await service.sessions.resume(session.id, ANN, snapshot=checkpoint.id)
    assert back.status is Status.READY
    assert service.host.counted(service.machine(back)) == 1
    assert back.generation > failed.generation


async def test_a_machine_that_is_switched_off_pauses_its_session_with_its_files(
    service: Service,
) -> None:
    session = await service.ready()
    service.host.die(service.machine(session), "power-off", files=True)
    paused = await service.status(session, Status.PAUSED)
    assert paused.pause_reason == "power-off"
    assert (await service.sessions.resume(session.id, ANN)).status is Status.READY


async def test_a_reboot_from_inside_is_told(service: Service) -> None:
    session = await service.ready()
    service.host.reboot(service.machine(session))
    await service.sessions.close()
    rebooted = await service.get(session)
    assert rebooted.boot_id != session.boot_id
    assert "session.rebooted" in await service.types(session)


async def test_destroying_needs_neither_machine_nor_snapshots(service: Service) -> None:
    session = await service.ready()
    await service.sessions.checkpoint(session.id, ANN)
    for kind in ("machines", "snapshots"):
        for file in (service.host.root / kind).iterdir():
            file.unlink()
    await service.sessions.destroy(session.id, ANN)
    assert (await service.get(session)).status is Status.DESTROYED
    await service.sessions.destroy(session.id, ANN)
    with pytest.raises(DestroyedError):
        await service.sessions.resume(session.id, ANN)


async def test_nothing_of_a_destroyed_session_is_left(service: Service) -> None:
    session = await service.ready()
    await service.sessions.checkpoint(session.id, ANN)
    await service.sessions.pause(session.id, ANN)
    await service.sessions.destroy(session.id, ANN)
    await service.again()
    assert service.host.machines() == []
    assert [each for each in service.host.snapshots() if not each.startswith("golden")] == []


async def test_a_name_is_free_as_soon_as_its_session_is_destroyed(service: Service) -> None:
    for _ in range(100):
        made = await service.sessions.create(NewSession(name="same"), ANN)
        with pytest.raises(ConflictError, match="already"):
            await service.sessions.create(NewSession(name="same"), ANN)
        await service.sessions.destroy(made.id, ANN)
    assert service.host.machines() == []


async def test_one_key_makes_one_session(service: Service) -> None:
    key = Key("k1", "digest")
    new = NewSession(name="one")
    made = await asyncio.gather(*(service.sessions.create(new, ANN, key=key) for _ in range(20)))
    assert len({session.id for session in made}) == 1
    await service.again()
    assert (await service.sessions.create(new, ANN, key=key)).id == made[0].id
    with pytest.raises(ConflictError, match="another request"):
        await service.sessions.create(new, ANN, key=Key("k1", "other"))


async def test_what_failed_under_a_key_is_tried_again_under_it(service: Service) -> None:
    session = await service.ready()
    key = Key("k1", "digest")
    service.host.refuse["freeze"] = FreezeError("The disk is full.")
    with pytest.raises(FailedError):
        await service.sessions.checkpoint(session.id, ANN, key=key)
    made = await service.sessions.checkpoint(session.id, ANN, key=key)
    again = await service.sessions.checkpoint(session.id, ANN, key=key)
    assert (again.id, again.event) == (made.id, made.event)


@pytest.mark.parametrize("what", ["pause", "resume"])
async def test_what_had_nothing_to_do_does_nothing_later_under_its_key(
    service: Service, what: str
) -> None:
    session = await service.ready()
    other = {"pause": "resume", "resume": "pause"}[what]

    async def do(name: str, key: Key | None = None) -> Session:
        return await getattr(service.sessions, name)(session.id, ANN, key=key)

    await do(what)
    key = Key("k1", "digest")
    there = await do(what, key)
    await do(other)
    for _ in range(2):
        assert (await do(what, key)).status is not there.status
        with pytest.raises(ConflictError, match="another request"):
            await do(what, Key("k1", "other"))
        await service.again()


async def test_an_operation_goes_on_when_who_asked_goes_away(service: Service) -> None:
    session = await service.ready()
    service.host.step = 0.05
    asking = asyncio.create_task(service.sessions.pause(session.id, ANN))
    await asyncio.sleep(0.02)
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    assert (await service.status(session, Status.PAUSED)).machine is None


async def test_a_session_that_is_kept_warm_is_not_paused(service: Service) -> None:
    session = await service.ready(keep_warm=True)
    with pytest.raises(ConflictError, match="kept warm"):
        await service.sessions.pause(session.id, ANN)
    await service.sessions.update(session.id, ANN, Changes(keep_warm=False))
    assert (await service.sessions.pause(session.id, ANN)).status is Status.PAUSED


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": ""},
        {"name": "a" * 65},
        {"name": "../x"},
        {"name": "9f2b6f5e-52a1-4b0e-9a4e-0f5f4b9c6b7a"},
        {"size": "huge"},
        {"image": "missing"},
        {"env": {"1A": "x"}},
        {"env": {"A": "a\0b"}},
        {"labels": {"-a": "x"}},
        {"labels": {"a": "x" * 256}},
        {"metadata": {"a": "x" * 100_000}},
        {"idle_timeout": -1},
        {"idle_timeout": 3},
    ],
)
async def test_what_no_session_can_be_is_refused(service: Service, wrong: dict) -> None:
    with pytest.raises(InvalidError):
        await service.sessions.create(NewSession(**wrong), ANN)
    assert (await service.sessions.page(SessionQuery())).items == []


async def test_a_session_is_found_by_id_name_or_the_beginning_of_its_id(service: Service) -> None:
    session = await service.ready("one")
    for called in (session.id, "one", "ONE", session.id[:6]):
        assert (await service.sessions.find(called)).id == session.id
    for called in ("two", session.id[:3], "ffff"):
        if not session.id.startswith(called) or len(called) < 4:
            with pytest.raises(NotFoundError):
                await service.sessions.find(called)


async def test_stopping_the_server_freezes_the_machines_if_it_is_to(service: Service) -> None:
    session = await service.ready()
    await service.close(freeze=True)
    assert service.host.machines() == []
    await service.open()
    paused = await service.get(session)
    assert (paused.status, paused.pause_reason) == (Status.PAUSED, "server_stop")


async def test_stopping_the_server_freezes_warm_ones_too(service: Service) -> None:
    session = await service.ready(keep_warm=True)
    await service.close(freeze=True)
    assert service.host.machines() == []
    await service.open()
    assert (await service.get(session)).status is Status.PAUSED


async def test_machines_whose_turn_has_not_come_are_left_when_it_is_enough(
    service: Service,
) -> None:
    sessions = [await service.ready(f"s{number}") for number in range(3)]
    await service.close(freeze=True, enough=lambda: True)
    assert len(service.host.machines()) == 3
    await service.open()
    for session in sessions:
        assert (await service.get(session)).status is Status.READY


async def test_a_machine_that_cannot_be_frozen_keeps_no_other_from_it(service: Service) -> None:
    for number in range(3):
        await service.ready(f"s{number}")
    service.host.refuse["freeze"] = FreezeError("It does not answer.")
    await service.close(freeze=True)
    assert len(service.host.machines()) == 1
    await service.open()


async def test_a_session_can_be_destroyed_while_its_image_is_still_being_made(
    service: Service,
) -> None:
    service.host.step = 30.0
    made = await service.sessions.create(NewSession(name="slow"), ANN)
    await asyncio.sleep(0.05)
    service.host.step = 0.0
    async with asyncio.timeout(5):
        await service.sessions.destroy(made.id, ANN)
    assert (await service.get(made)).status is Status.DESTROYED
    assert (await service.ready("slow")).status is Status.READY


async def test_a_stop_does_not_wait_for_an_image_and_the_next_start_makes_it(
    service: Service,
) -> None:
    service.host.step = 30.0
    made = await service.sessions.create(NewSession(name="slow"), ANN)
    await asyncio.sleep(0.05)
    async with asyncio.timeout(5):
        await service.close()
    service.host.step = 0.0
    await service.open()
    assert (await service.sessions.ready(made.id, 10)).status is Status.READY


async def test_the_files_of_a_machine_that_died_stay_until_they_are_deleted(
    service: Service,
) -> None:
    session = await service.ready()
    checkpoint = await service.sessions.checkpoint(session.id, ANN)
    service.host.die(service.machine(session), files=True)
    await service.status(session, Status.FAILED)
    await service.sessions.resume(session.id, ANN, snapshot=checkpoint.id)
    await service.sessions.pause(session.id, ANN, durable=True)
    await service.again()
    found, _ = await service.sessions.checkpoints(session.id)
    files = [row for row in found if row.kind == "files"]
    assert [row.label for row in files] == ["crash"]
    await service.sessions.delete_checkpoint(session.id, files[0].checkpoint or "", ANN)
    assert files[0].id not in service.host.snapshots()


async def test_a_child_that_dies_before_its_first_snapshot_can_go_back_to_its_fork(
    service: Service,
) -> None:
    parent = await service.ready()
    service.host.count(service.machine(parent))
    forked = await service.sessions.fork(parent.id, ANN)
    assert isinstance(forked.children[0], Session)
    child = await service.sessions.ready(forked.children[0].id, 10)
    service.host.die(service.machine(child))
    await service.status(child, Status.FAILED)
    found = await service.sessions.recoverable(child.id)
    assert [row.id for row in found] == [child.snapshot]
    back = await service.sessions.resume(child.id, ANN, snapshot=child.snapshot)
    assert service.host.counted(service.machine(back)) == 1


@pytest.mark.parametrize("how", ["resume", "rollback"])
async def test_a_failed_session_whose_name_is_taken_does_not_come_back(
    service: Service, how: str
) -> None:
    session = await service.ready("one")
    checkpoint = await service.sessions.checkpoint(session.id, ANN)
    service.host.die(service.machine(session))
    await service.status(session, Status.FAILED)
    other = await service.ready("one")
    coming_back: Coroutine[Any, Any, object] = (
        service.sessions.resume(session.id, ANN, snapshot=checkpoint.id)
        if how == "resume"
        else service.sessions.rollback(session.id, ANN, checkpoint.checkpoint or "")
    )
    with pytest.raises(ConflictError, match="There is a session one already"):
        await coming_back
    assert service.host.machines() == [other.machine]
    assert (await service.get(session)).status is Status.FAILED
    await service.sessions.destroy(other.id, ANN)
    await service.sessions.resume(session.id, ANN, snapshot=checkpoint.id)


async def test_a_name_that_is_taken_while_a_session_comes_back_leaves_no_machine(
    service: Service,
) -> None:
    session = await service.ready("one")
    checkpoint = await service.sessions.checkpoint(session.id, ANN)
    service.host.die(service.machine(session))
    await service.status(session, Status.FAILED)
    service.host.step = 0.4
    resuming = asyncio.create_task(service.sessions.resume(session.id, ANN, snapshot=checkpoint.id))

    async def calls() -> list[str]:
        return service.host.calls

    await eventually(calls, lambda found: "start resume" in found)
    other = await service.ready("one")
    with pytest.raises(ConflictError):
        await resuming
    assert service.host.machines() == [other.machine]


async def test_a_durable_pause_that_is_asked_for_again_is_durable_or_fails_again(
    service: Service,
) -> None:
    session = await service.ready()
    key = Key("k", "d")
    for _ in range(2):
        service.host.durable = _full  # type: ignore[method-assign]
        with pytest.raises(FailedError, match="durable"):
            await service.sessions.pause(session.id, ANN, durable=True, key=key)
    del service.host.durable  # type: ignore[method-assign]
    found = await service.sessions.pause(session.id, ANN, durable=True, key=key)
    kept = service.host.found(found.snapshot or "")
    assert kept is not None
    assert kept.durable


async def _full(snapshot: str, **_: bool) -> None:
    raise OSError(28, "No space left on device")
