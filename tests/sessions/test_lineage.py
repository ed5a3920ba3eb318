"""Checkpoints, forks and rollbacks."""

import asyncio
from typing import Any

import pytest

from tests.sessions.conftest import ANN, Service, full_disk
from tests.waiting import eventually
from torpor.sessions import (
    ConflictError,
    Defaults,
    FailedError,
    InvalidError,
    Key,
    NewSession,
    NoRoomError,
    NotFoundError,
    RoomLimits,
    SessionError,
)
from torpor.sessions.lineage import MOST_LISTED
from torpor.sessions.room import OVERHEAD
from torpor.store import operations
from torpor.store.records import Session, Status
from torpor.vm import MIB, LaunchError


async def test_a_checkpoint_leaves_the_session_running(service: Service) -> None:
    session = await service.ready()
    service.host.count(service.machine(session))
    made = await service.sessions.checkpoint(session.id, ANN, label="before", durable=True)
    assert (made.label, made.durable, made.generation) == ("before", True, 1)
    assert (await service.get(session)).machine == session.machine
    assert await service.sessions.get_checkpoint(session.id, made.checkpoint or "") == made


async def test_checkpoints_are_listed_newest_first_by_pages(service: Service) -> None:
    session = await service.ready()
    made = [
        await service.sessions.checkpoint(session.id, ANN, label=str(number)) for number in range(5)
    ]
    first, cursor = await service.sessions.checkpoints(session.id, 3)
    rest, end = await service.sessions.checkpoints(session.id, 3, cursor)
    assert [row.label for row in (*first, *rest)] == ["4", "3", "2", "1", "0"]
    assert end is None
    await service.sessions.pause(session.id, ANN)  # a pause is no checkpoint
    listed, _ = await service.sessions.checkpoints(session.id)
    assert len(listed) == len(made)


async def test_a_paused_session_is_checkpointed_where_it_stands(service: Service) -> None:
    session = await service.ready()
    paused = await service.sessions.pause(session.id, ANN)
    made = await service.sessions.checkpoint(session.id, ANN, label="here")
    assert made.id == paused.snapshot
    assert service.host.machines() == []
    await service.sessions.resume(session.id, ANN)
    await service.sessions.pause(session.id, ANN, durable=True)
    assert made.id in service.host.snapshots()


async def test_a_deleted_checkpoint_goes_unless_the_session_stands_on_it(service: Service) -> None:
    session = await service.ready()
    older = await service.sessions.checkpoint(session.id, ANN)
    newer = await service.sessions.checkpoint(session.id, ANN)
    for row in (older, newer):
        await service.sessions.delete_checkpoint(session.id, row.checkpoint or "", ANN)
        await service.sessions.delete_checkpoint(session.id, row.checkpoint or "", ANN)
        with pytest.raises(NotFoundError):
            await service.sessions.get_checkpoint(session.id, row.checkpoint or "")
    assert older.id not in service.host.snapshots()
    assert newer.id in service.host.snapshots()
    await service.sessions.pause(session.id, ANN, durable=True)
    await service.again()
    assert newer.id not in service.host.snapshots()


async def test_a_checkpoint_goes_though_who_asked_for_it_goes_away(service: Service) -> None:
    session = await service.ready()
    older = await service.sessions.checkpoint(session.id, ANN, durable=True)
    await service.sessions.checkpoint(session.id, ANN, durable=True)
    service.host.step = 0.2
    service.host.calls.clear()
    asking = asyncio.create_task(
        service.sessions.delete_checkpoint(session.id, older.checkpoint or "", ANN)
    )
    await eventually(lambda: asked(service), lambda calls: "remove" in calls)
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    service.host.step = 0.0
    await service.close()
    assert older.id not in service.host.snapshots()
    await service.open()


async def asked(service: Service) -> list[str]:
    """Return what was asked of the host."""
    return list(service.host.calls)


async def test_children_count_on_from_the_fork_and_their_own_way_from_there(
    service: Service,
) -> None:
    parent = await service.ready(labels={"team": "a"})
    for _ in range(3):
        service.host.count(service.machine(parent))
    forked = await service.sessions.fork(parent.id, ANN, count=3)
    children = [
        await service.sessions.ready(child.id, 10)
        for child in forked.children
        if isinstance(child, Session)
    ]
    assert len(children) == 3
    for number, child in enumerate(children, start=1):
        assert (child.parent, child.fork_id) == (parent.id, f"fork-{number}")
        assert child.labels == {"team": "a"}
        assert child.boot_id != parent.boot_id
        assert service.host.count(service.machine(child)) == 4
    assert service.host.counted(service.machine(parent)) == 3
    assert len({child.name for child in (parent, *children)}) == 4


async def test_a_fork_of_a_paused_session_does_not_wake_it(service: Service) -> None:
    parent = await service.ready()
    service.host.count(service.machine(parent))
    await service.sessions.pause(parent.id, ANN)
    forked = await service.sessions.fork(parent.id, ANN)
    child = forked.children[0]
    assert isinstance(child, Session)
    child = await service.sessions.ready(child.id, 10)
    assert service.host.counted(service.machine(child)) == 1
    assert (await service.get(parent)).status is Status.PAUSED


async def test_ten_children_with_room_for_six_are_six_and_four_reasons(service: Service) -> None:
    each = OVERHEAD + 128 * MIB + 10 * MIB
    service.options["limits"] = RoomLimits(reserve=0, most=OVERHEAD + 128 * MIB + 6 * each + MIB)
    await service.again()
    parent = await service.ready()
    forked = await service.sessions.fork(parent.id, ANN, count=10)
    sessions = [child for child in forked.children if isinstance(child, Session)]
    errors = [child for child in forked.children if isinstance(child, NoRoomError)]
    assert (len(sessions), len(errors)) == (6, 4)
    for child in sessions:
        assert (await service.sessions.ready(child.id, 10)).status is Status.READY
    assert len(service.host.machines()) == 7
    await service.sessions.destroy(sessions[0].id, ANN)
    again = await service.sessions.fork(parent.id, ANN, count=1)
    assert isinstance(again.children[0], Session)


@pytest.mark.parametrize("count", [0, -1, 65])
async def test_a_session_is_forked_into_1_to_64(service: Service, count: int) -> None:
    parent = await service.ready()
    with pytest.raises(InvalidError):
        await service.sessions.fork(parent.id, ANN, count=count)


async def test_a_fork_asked_for_twice_under_a_key_is_one(service: Service) -> None:
    parent = await service.ready()
    key = Key("k", "d")
    first = await service.sessions.fork(parent.id, ANN, count=2, key=key)
    again = await service.sessions.fork(parent.id, ANN, count=2, key=key)
    assert [c.id for c in first.children] == [c.id for c in again.children]  # type: ignore[union-attr]


async def test_a_fork_asked_for_again_says_of_each_child_what_it_said_at_first(
    service: Service,
) -> None:
    each = OVERHEAD + 128 * MIB + 10 * MIB
    service.options["limits"] = RoomLimits(reserve=0, most=OVERHEAD + 128 * MIB + 2 * each + MIB)
    await service.again()
    parent = await service.ready()
    checkpoint = await service.sessions.checkpoint(parent.id, ANN)
    await service.sessions.ports.opened(parent.id, ANN, 80)
    key = Key("k", "d")

    async def said() -> tuple[list[Any], list[str]]:
        forked = await service.sessions.fork(
            parent.id, ANN, count=4, checkpoint=checkpoint.checkpoint, key=key
        )
        children = [
            (type(child), child.plain()) if isinstance(child, SessionError) else child.id
            for child in forked.children
        ]
        return children, forked.not_undone

    first = await said()
    errors = [child for child in first[0] if not isinstance(child, str)]
    assert len(errors) == 2
    assert {kind for kind, _ in errors} == {NoRoomError}
    assert errors[0][1]["facts"].keys() == {"needed", "free"}
    await service.sessions.ports.opened(parent.id, ANN, 8080)
    assert await said() == first
    await service.again()
    assert await said() == first


async def test_a_child_outlives_the_session_that_it_was_forked_from(service: Service) -> None:
    parent = await service.ready()
    service.host.count(service.machine(parent))
    forked = await service.sessions.fork(parent.id, ANN)
    assert isinstance(forked.children[0], Session)
    child = await service.sessions.ready(forked.children[0].id, 10)
    source = child.snapshot
    await service.sessions.destroy(parent.id, ANN)
    await service.again()
    assert source in service.host.snapshots()  # what the child would be recovered from
    child = await service.sessions.pause(child.id, ANN, durable=True)
    await service.again()
    assert source not in service.host.snapshots()
    child = await service.sessions.resume(child.id, ANN)
    grand = await service.sessions.fork(child.id, ANN)
    assert isinstance(grand.children[0], Session)
    grandchild = await service.sessions.ready(grand.children[0].id, 10)
    await service.sessions.destroy(child.id, ANN)
    assert service.host.counted(service.machine(grandchild)) == 1


async def test_a_rollback_goes_back_and_then_on_as_the_same_session(service: Service) -> None:
    session = await service.ready()
    service.host.count(service.machine(session))
    checkpoint = await service.sessions.checkpoint(session.id, ANN)
    for _ in range(5):
        service.host.count(service.machine(session))
    rolled = await service.sessions.rollback(session.id, ANN, checkpoint.checkpoint or "")
    assert rolled.session.id == session.id
    assert rolled.session.generation == 2
    assert service.host.machines() == [rolled.session.machine]
    assert service.host.count(service.machine(rolled.session)) == 2


async def test_a_rollback_that_fails_leaves_the_session_as_it_was(service: Service) -> None:
    session = await service.ready()
    checkpoint = await service.sessions.checkpoint(session.id, ANN)
    service.host.count(service.machine(session))
    service.host.refuse["start"] = LaunchError("The snapshot is damaged.")
    with pytest.raises(FailedError, match="damaged"):
        await service.sessions.rollback(session.id, ANN, checkpoint.checkpoint or "")
    after = await service.get(session)
    assert (after.status, after.machine) == (Status.READY, session.machine)
    assert service.host.counted(service.machine(after)) == 1
    assert (await service.sessions.pause(session.id, ANN)).status is Status.PAUSED


async def test_a_paused_session_can_be_rolled_back(service: Service) -> None:
    session = await service.ready()
    checkpoint = await service.sessions.checkpoint(session.id, ANN)
    await service.sessions.pause(session.id, ANN)
    rolled = await service.sessions.rollback(session.id, ANN, checkpoint.checkpoint or "")
    assert rolled.session.status is Status.READY


async def test_what_a_rollback_and_a_fork_do_not_undo_is_listed(service: Service) -> None:
    session = await service.ready()
    await service.sessions.ports.opened(session.id, ANN, 80)
    checkpoint = await service.sessions.checkpoint(session.id, ANN)
    await service.sessions.ports.opened(session.id, ANN, 8080)
    found = await service.sessions.events.after(None, session.id)
    since = [event.id for event in found if event.data.get("port") == 8080]
    forked = await service.sessions.fork(session.id, ANN, checkpoint=checkpoint.checkpoint)
    assert forked.not_undone == since
    key = Key("k", "d")
    for _ in range(2):
        rolled = await service.sessions.rollback(
            session.id, ANN, checkpoint.checkpoint or "", key=key
        )
        assert rolled.not_undone == since
    assert (await service.sessions.fork(session.id, ANN)).not_undone == []


async def test_what_is_not_undone_is_found_behind_all_else_that_happened(
    service: Service,
) -> None:
    session = await service.ready()
    checkpoint = await service.sessions.checkpoint(session.id, ANN)
    async with service.database.write() as conn:
        for _ in range(MOST_LISTED + 1):
            await service.sessions.events.append(conn, "note", session.id, ANN)
    await service.sessions.ports.opened(session.id, ANN, 80)
    last = await service.sessions.events.last()
    rolled = await service.sessions.rollback(session.id, ANN, checkpoint.checkpoint or "")
    assert rolled.not_undone == [last]


async def test_a_lost_checkpoint_is_refused_by_name(service: Service) -> None:
    session = await service.ready()
    checkpoint = await service.sessions.checkpoint(session.id, ANN)
    await service.sessions.checkpoint(session.id, ANN)
    (service.host.root / "snapshots" / checkpoint.id).unlink()
    await service.again()
    with pytest.raises(ConflictError, match="lost"):
        await service.sessions.rollback(session.id, ANN, checkpoint.checkpoint or "")
    assert (await service.get(session)).machine == session.machine


async def test_the_tree_has_snapshots_and_children(service: Service) -> None:
    session = await service.ready()
    first = await service.sessions.checkpoint(session.id, ANN)
    second = await service.sessions.checkpoint(session.id, ANN)
    forked = await service.sessions.fork(session.id, ANN, checkpoint=first.checkpoint)
    tree = await service.sessions.tree(session.id)
    assert [(row.id, row.parent) for row in tree.snapshots] == [
        (first.id, None),
        (second.id, first.id),
    ]
    assert [child.id for child in tree.children] == [
        child.id for child in forked.children if isinstance(child, Session)
    ]


async def test_forks_are_sessions_too_of_which_there_may_not_be_too_many(
    service: Service,
) -> None:
    session = await service.ready()
    service.sessions._creation._defaults = Defaults(most_sessions=3)
    with pytest.raises(ConflictError, match="at most 3"):
        await service.sessions.fork(session.id, ANN, count=3)
    assert (await service.get(session)).generation == 0
    made = await service.sessions.fork(session.id, ANN, count=2)
    assert len(made.children) == 2
    with pytest.raises(ConflictError, match="at most 3"):
        await service.sessions.create(NewSession(), ANN)


async def test_a_fork_that_finds_no_place_after_its_freeze_leaves_a_checkpoint_and_no_more(
    service: Service,
) -> None:
    session = await service.ready()
    service.sessions._creation._defaults = Defaults(most_sessions=3)
    free = service.sessions._room.free()
    service.host.step = 0.2
    asking = asyncio.create_task(service.sessions.fork(session.id, ANN, count=2))
    await eventually(lambda: asked(service), lambda calls: "freeze" in calls)
    other = await service.sessions.create(NewSession(), ANN)  # meanwhile
    with pytest.raises(ConflictError, match="at most 3"):
        await asking
    service.host.step = 0.0
    assert [each.kind for each in (await service.sessions.tree(session.id)).snapshots] == ["fork"]
    assert (await service.get(session)).generation == 1
    assert "session.forked" not in await service.types()
    await service.sessions.ready(other.id, 10)
    await service.sessions.destroy(other.id, ANN)
    assert service.sessions._room.free() == free
    await service.again()
    assert "checkpoint" not in await kinds_under_way(service)


async def kinds_under_way(service: Service) -> list[str]:
    async with service.database.read() as conn:
        return [each.kind for each in await operations.unfinished(conn)]


async def test_a_fork_that_is_written_down_at_the_second_try_takes_room_once(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torpor.sessions.operations.AGAIN_SECONDS", 0.05)
    session = await service.ready()
    free = service.sessions._room.free()
    with full_disk(service.database, lambda said: "session.forked" in said):
        asking = asyncio.create_task(service.sessions.fork(session.id, ANN, count=2))
        await asyncio.sleep(0.3)
        assert not asking.done()
    made = await asking
    children = [each for each in made.children if isinstance(each, Session)]
    assert len(children) == 2
    for child in children:
        await service.sessions.ready(child.id, 10)
        await service.sessions.destroy(child.id, ANN)
    assert service.sessions._room.free() == free


async def test_a_fork_of_which_nothing_came_is_tried_again_with_its_key(service: Service) -> None:
    session = await service.ready()
    made = await service.sessions.checkpoint(session.id, ANN)
    key, memory = Key("k", "d"), service.host.memory
    for free, kind in ((0, NoRoomError), (memory, Session)):
        service.host.memory = free
        forked = await service.sessions.fork(session.id, ANN, checkpoint=made.checkpoint, key=key)
        assert isinstance(forked.children[0], kind)
