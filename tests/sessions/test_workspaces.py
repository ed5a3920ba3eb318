"""Workspaces, and the sessions that have them, on a host whose disks are files."""

import asyncio
from typing import Any

import pytest

from tests.sessions.conftest import ANN, Service, full_disk
from tests.waiting import eventually
from torpor.images import ImageError
from torpor.sessions import (
    Actor,
    ConflictError,
    FailedError,
    InvalidError,
    Key,
    NewSession,
    NewWorkspace,
    NoRoomError,
    NotFoundError,
    SessionError,
    WorkspaceLimits,
)
from torpor.sessions.errors import KeyReusedError, NoSpaceError
from torpor.sessions.hosts import SESSION
from torpor.store.records import Session, Status, Workspace
from torpor.store.workspaces import WorkspaceQuery
from torpor.vm import HostError, MachineDiedError, SnapshotError

BEN = Actor("tok_ben", "ben")


async def made(service: Service, name: str | None = "notes", gib: int = 1) -> Workspace:
    """Return a new workspace."""
    new = NewWorkspace(gib, name)
    return (await service.sessions.workspaces.create(new, ANN)).workspace


async def of(service: Service, workspace: Workspace) -> Workspace:
    """Return a workspace as it stands now."""
    return await service.sessions.workspaces.get(workspace.id)


async def stands(service: Service, workspace: Workspace, state: str) -> Workspace:
    """Return a workspace once it is in a state."""
    return await eventually(lambda: of(service, workspace), lambda w: w.state == state)


def lines(service: Service, session: Session) -> list[str] | None:
    """Return what a session finds on its disk."""
    return service.host.read_disk(service.machine(session))


async def with_disk(service: Service, name: str, workspace: Workspace) -> Session:
    """Return a new session that has a workspace, and runs."""
    session = await service.ready(name, workspace=workspace.id)
    assert session.failure is None
    return session


# Made, found, deleted


async def test_a_workspace_is_made_found_and_deleted(service: Service) -> None:
    workspace = await made(service, gib=3)
    assert (workspace.state, workspace.size_bytes) == ("AVAILABLE", 3 << 30)
    assert workspace.stored_bytes > 0
    assert (workspace.saved_at, workspace.session, workspace.error) == (None, None, None)
    assert (workspace.created_by, workspace.updated_by) == (ANN.id, ANN.id)
    assert workspace.created_at == workspace.updated_at
    assert service.host.disks().keys() == {workspace.id}
    for called in (workspace.id, workspace.id.upper(), "notes", "NOTES"):
        assert await service.sessions.workspaces.get(called) == workspace
    page = await service.sessions.workspaces.page(WorkspaceQuery())
    assert page.items == [workspace]
    await service.sessions.workspaces.delete("notes", BEN)
    assert service.host.disks() == {}
    with pytest.raises(NotFoundError):
        await service.sessions.workspaces.get(workspace.id)
    with pytest.raises(NotFoundError):
        await service.sessions.workspaces.delete(workspace.id, ANN)
    events = await service.sessions.events.after(None, None)
    told = [each for each in events if each.type.startswith("workspace")]
    assert [(each.type, each.actor) for each in told] == [
        ("workspace.created", ANN.id),
        ("workspace.deleted", BEN.id),
    ]
    assert {each.data["workspace_id"] for each in told} == {workspace.id}


async def test_a_name_is_for_people_and_finds_only_what_it_names_alone(service: Service) -> None:
    first, second = await made(service), await made(service)
    assert first.id != second.id
    for work in (
        service.sessions.workspaces.get("notes"),
        service.sessions.workspaces.delete("Notes", ANN),
        service.sessions.create(NewSession(workspace="notes"), ANN),
    ):
        with pytest.raises(ConflictError, match="More than one") as refused:
            await work
        assert refused.value.code == "ambiguous"
    await service.sessions.workspaces.delete(second.id, ANN)
    assert await service.sessions.workspaces.get("notes") == first
    nameless = await made(service, None)
    assert nameless.name is None


@pytest.mark.parametrize("gib", [0, -1, 101, 1 << 70])
async def test_a_size_that_cannot_be_is_refused(service: Service, gib: int) -> None:
    with pytest.raises(InvalidError, match="1 to 100"):
        await made(service, gib=gib)
    assert service.host.disks() == {}


@pytest.mark.parametrize(
    "name", ["", "a" * 65, "a\nb", "\x1b[2J", "8d0a6c1f-3c1b-4c55-9a8e-7f0b2f1a9c1e"]
)
async def test_a_name_that_cannot_be_is_refused(service: Service, name: str) -> None:
    with pytest.raises(InvalidError, match="cannot be called"):
        await made(service, name)


async def test_there_are_no_more_and_none_larger_than_allowed(service: Service) -> None:
    service.options["workspaces"] = WorkspaceLimits(largest=2, default=1, most=2)
    await service.again()
    with pytest.raises(InvalidError, match="1 to 2"):
        await made(service, gib=3)
    first = await made(service)
    session = await service.ready(persistent_workspace=True)
    for work in (
        made(service),
        service.sessions.create(NewSession(name="two", persistent_workspace=True), ANN),
    ):
        with pytest.raises(ConflictError, match="at most 2") as refused:
            await work
        assert refused.value.code == "limit_reached"
    await service.sessions.workspaces.delete(first.id, ANN)
    await made(service)
    assert session.workspace is not None


async def test_one_that_cannot_be_made_leaves_nothing(service: Service) -> None:
    service.host.refuse["make_disk"] = OSError(28, "No space left on device")
    with pytest.raises(NoSpaceError, match="could not be made"):
        await made(service)
    assert (await service.sessions.workspaces.page(WorkspaceQuery())).items == []
    assert (await made(service)).state == "AVAILABLE"


async def test_what_is_asked_for_twice_with_a_key_is_made_once(service: Service) -> None:
    workspaces = service.sessions.workspaces
    key, new = Key("k", "d"), NewWorkspace(1, "notes")
    service.host.step = 0.02
    first, same = await asyncio.gather(
        workspaces.create(new, ANN, key=key), workspaces.create(new, ANN, key=key)
    )
    assert first.workspace == same.workspace
    await service.again()
    workspaces = service.sessions.workspaces
    again = await workspaces.create(new, ANN, key=key)
    assert (again.workspace, again.before) == (first.workspace, True)
    with pytest.raises(KeyReusedError):
        await workspaces.create(new, ANN, key=Key("k", "another"))
    others = await workspaces.create(new, BEN, key=key)
    assert (others.before, others.workspace.id == first.workspace.id) == (False, False)
    # After it was deleted the same call makes another one.
    await workspaces.delete(first.workspace.id, ANN)
    anew = await workspaces.create(new, ANN, key=key)
    assert (anew.before, anew.workspace.id == first.workspace.id) == (False, False)
    repeated = await workspaces.create(new, ANN, key=key)
    assert (repeated.workspace, repeated.before) == (anew.workspace, True)


async def test_a_key_of_what_failed_is_good_again(service: Service) -> None:
    service.host.refuse["make_disk"] = HostError("It has no mkfs.")
    new, key = NewWorkspace(1), Key("k", "d")
    with pytest.raises(FailedError, match="no mkfs"):
        await service.sessions.workspaces.create(new, ANN, key=key)
    done = await service.sessions.workspaces.create(new, ANN, key=key)
    assert (done.before, done.workspace.state) == (False, "AVAILABLE")


async def test_one_that_cannot_be_removed_is_removed_later(service: Service) -> None:
    workspace = await made(service)
    service.host.refuse["remove_disk"] = OSError(5, "Input/output error")
    with pytest.raises(FailedError, match="tried again"):
        await service.sessions.workspaces.delete(workspace.id, ANN)
    assert (await of(service, workspace)).state == "DELETING"
    for work in (
        service.sessions.workspaces.delete(workspace.id, ANN),
        service.sessions.create(NewSession(workspace="notes"), ANN),
    ):
        with pytest.raises(ConflictError, match="is being deleted") as refused:
            await work
        assert refused.value.code == "workspace_in_use"
    await service.sessions._watch.tidy()
    assert service.host.disks() == {}
    assert (await service.sessions.workspaces.page(WorkspaceQuery())).items == []


# With a session


async def test_what_one_session_wrote_the_next_one_finds(service: Service) -> None:
    workspace = await made(service)
    session = await with_disk(service, "one", workspace)
    assert session.workspace == workspace.id
    held = await of(service, workspace)
    assert (held.state, held.session) == ("ATTACHED", session.id)
    service.host.write_disk(service.machine(session), "hello")
    await service.sessions.destroy(session.id, ANN)
    free = await of(service, workspace)
    assert (free.state, free.session) == ("AVAILABLE", None)
    assert free.saved_at is not None
    assert free.stored_bytes > workspace.stored_bytes
    assert (await service.get(session)).workspace is None
    other = await with_disk(service, "two", workspace)
    assert lines(service, other) == ["hello"]
    types = await service.types(session)
    assert types == [
        "session.created", "session.progress", "workspace.attached", "session.ready",
        "session.destroying", "workspace.released", "session.destroyed",
    ]  # fmt: skip


async def test_a_session_that_wants_none_has_none(service: Service) -> None:
    await made(service)
    session = await service.ready()
    assert session.workspace is None
    assert lines(service, session) is None


async def test_only_what_somebody_asks_for_moves_the_time_of_the_change(service: Service) -> None:
    workspace = await made(service)
    session = await service.sessions.create(NewSession(workspace=workspace.id), BEN)
    taken = await of(service, workspace)
    assert (taken.updated_by, taken.created_by) == (BEN.id, ANN.id)
    assert taken.updated_at > workspace.updated_at
    await service.sessions.ready(session.id, 10)
    await service.sessions.pause(session.id, ANN)
    saved = await of(service, workspace)
    assert saved.saved_at is not None
    assert (saved.updated_at, saved.updated_by) == (taken.updated_at, BEN.id)
    await service.sessions.destroy(session.id, ANN)
    given_up = await of(service, workspace)
    assert given_up.updated_at > taken.updated_at
    assert given_up.updated_by == ANN.id


async def test_one_session_at_a_time_has_it(service: Service) -> None:
    workspace = await made(service)
    session = await with_disk(service, "one", workspace)
    before = await service.types()
    with pytest.raises(ConflictError, match=f"is that of session {session.id}") as refused:
        await service.sessions.create(NewSession(name="two", workspace="notes"), ANN)
    assert refused.value.code == "workspace_in_use"
    assert refused.value.facts == {
        "workspace_id": workspace.id, "workspace_state": "ATTACHED", "session_id": session.id,
    }  # fmt: skip
    with pytest.raises(ConflictError) as refused:
        await service.sessions.workspaces.delete(workspace.id, ANN)
    assert refused.value.code == "workspace_in_use"
    assert await service.types() == before  # nothing was created, the name is free
    await service.ready("two")


async def test_of_two_that_want_it_at_once_one_has_it(service: Service) -> None:
    workspace = await made(service)
    service.host.step = 0.01
    got = await asyncio.gather(
        *(
            service.sessions.create(NewSession(name=f"s{n}", workspace=workspace.id), ANN)
            for n in range(8)
        ),
        return_exceptions=True,
    )
    winners = [each for each in got if isinstance(each, Session)]
    losers = [each for each in got if isinstance(each, ConflictError)]
    assert (len(winners), len(losers)) == (1, 7)
    assert {each.code for each in losers} == {"workspace_in_use"}
    held = await stands(service, workspace, "ATTACHED")
    assert held.session == winners[0].id
    assert len(service.host.machines()) == 1


async def test_a_workspace_that_is_not_there_is_not_found(service: Service) -> None:
    with pytest.raises(NotFoundError, match="no workspace 'notes'"):
        await service.sessions.create(NewSession(workspace="notes"), ANN)
    assert await service.types() == ["server.reconciled"]


async def test_it_goes_with_its_session_through_pauses_and_checkpoints(service: Service) -> None:
    workspace = await made(service)
    session = await with_disk(service, "one", workspace)
    service.host.write_disk(service.machine(session), "before the pause")
    await service.sessions.pause(session.id, ANN, durable=True)
    paused = await of(service, workspace)
    assert (paused.state, paused.session) == ("ATTACHED", session.id)
    assert service.host.saved_on(workspace.id) == ["before the pause"]
    assert paused.saved_at is not None
    session = await service.sessions.resume(session.id, ANN)
    service.host.write_disk(service.machine(session), "before the checkpoint")
    checkpoint = await service.sessions.checkpoint(session.id, ANN)
    assert checkpoint.workspace == workspace.id
    saved = await of(service, workspace)
    assert saved.saved_at is not None
    assert saved.saved_at > paused.saved_at
    assert saved.stored_bytes > paused.stored_bytes
    assert service.host.saved_on(workspace.id) == ["before the pause", "before the checkpoint"]
    assert lines(service, session) == ["before the pause", "before the checkpoint"]


async def test_a_way_back_brings_the_disk_back_too(service: Service) -> None:
    workspace = await made(service)
    session = await with_disk(service, "one", workspace)
    service.host.write_disk(service.machine(session), "kept")
    checkpoint = await service.sessions.checkpoint(session.id, ANN)
    service.host.write_disk(service.machine(session), "given up")
    await service.sessions.pause(session.id, ANN)
    done = await service.sessions.rollback(session.id, ANN, checkpoint.checkpoint or "")
    assert lines(service, done.session) == ["kept"]
    assert service.host.saved_on(workspace.id) == ["kept"]
    await service.sessions.destroy(session.id, ANN)
    assert lines(service, await with_disk(service, "two", workspace)) == ["kept"]


async def test_so_does_one_of_a_session_that_runs_whose_machine_goes_first(
    service: Service,
) -> None:
    workspace = await made(service)
    session = await with_disk(service, "one", workspace)
    checkpoint = await service.sessions.checkpoint(session.id, ANN)
    service.host.write_disk(service.machine(session), "given up")
    done = await service.sessions.rollback(session.id, ANN, checkpoint.checkpoint or "")
    assert lines(service, done.session) == []
    assert service.host.machines() == [done.session.machine]
    types = await service.types(session)
    assert types[-3:] == ["checkpoint.created", "session.paused", "session.rolled_back"]
    # What it stood on in between is needed no more.
    await service.again()
    kept = {snapshot for snapshot in service.host.snapshots() if "golden" not in snapshot}
    assert kept == {checkpoint.id}


async def test_a_way_back_that_fails_goes_on_where_it_was(service: Service) -> None:
    workspace = await made(service)
    session = await with_disk(service, "one", workspace)
    checkpoint = await service.sessions.checkpoint(session.id, ANN)
    service.host.write_disk(service.machine(session), "kept")
    counted = service.host.count(service.machine(session))
    service.host.refuse["start rollback"] = HostError("It does not thaw.")
    with pytest.raises(FailedError, match="does not thaw"):
        await service.sessions.rollback(session.id, ANN, checkpoint.checkpoint or "")
    back = await service.get(session)
    assert back.status is Status.READY
    assert lines(service, back) == ["kept"]
    assert service.host.counted(service.machine(back)) == counted
    # And if that fails too, it is paused, and nothing is lost.
    service.host.refuse |= {"start rollback": HostError("no"), "start resume": HostError("no")}
    with pytest.raises(FailedError):
        await service.sessions.rollback(session.id, ANN, checkpoint.checkpoint or "")
    assert (await service.get(session)).status is Status.PAUSED
    assert lines(service, await service.sessions.resume(session.id, ANN)) == ["kept"]


async def test_a_way_back_for_which_there_is_no_room_goes_on_where_it_was(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace = await made(service)
    session = await with_disk(service, "one", workspace)
    checkpoint = await service.sessions.checkpoint(session.id, ANN)
    service.host.write_disk(service.machine(session), "kept")
    room = service.sessions._room
    take = room.take

    def refuse_once(*asked: Any) -> None:
        monkeypatch.setattr(room, "take", take)
        raise NoRoomError("There is no room.")

    monkeypatch.setattr(room, "take", refuse_once)
    with pytest.raises(NoRoomError):
        await service.sessions.rollback(session.id, ANN, checkpoint.checkpoint or "")
    back = await service.get(session)
    assert (back.status, lines(service, back)) == (Status.READY, ["kept"])


async def test_a_disk_that_cannot_be_mounted_is_told_and_the_session_runs(
    service: Service,
) -> None:
    workspace = await made(service)
    service.host.not_mounted = "There is no file system on it."
    session = await with_disk(service, "one", workspace)
    assert session.status is Status.READY
    service.host.reboot(service.machine(session))
    await eventually(lambda: service.types(session), lambda t: "session.rebooted" in t)
    events = await service.sessions.events.after(None, session.id)
    told = [each.data for each in events if each.type == "workspace.not_mounted"]
    assert told == [{"workspace_id": workspace.id, "error": "There is no file system on it."}] * 2


async def test_a_disk_that_is_gone_is_noted_at_the_next_start(service: Service) -> None:
    workspace, other = await made(service), await made(service)
    await service.host.remove_disk(workspace.id)
    await service.again()
    gone = await of(service, workspace)
    assert (gone.state, gone.error) == ("FAILED", "Its disk is gone.")
    assert (await of(service, other)).state == "AVAILABLE"


async def test_children_have_copies_and_the_parent_keeps_it(service: Service) -> None:
    workspace = await made(service)
    session = await with_disk(service, "one", workspace)
    service.host.write_disk(service.machine(session), "common")
    key = Key("k", "d")
    forked = await service.sessions.fork(session.id, ANN, count=2, key=key)
    assert len(forked.warnings) == 1
    assert f"a copy of workspace {workspace.id}" in forked.warnings[0]
    again = await service.sessions.fork(session.id, ANN, count=2, key=key)
    assert again.warnings == forked.warnings
    children = []
    for child in forked.children:
        assert isinstance(child, Session)
        children.append(await service.sessions.ready(child.id, 10))
    for number, child in enumerate(children):
        assert child.workspace is None
        assert lines(service, child) == ["common"]
        service.host.write_disk(service.machine(child), f"of child {number}")
    service.host.write_disk(service.machine(session), "of the parent")
    for child in children:
        await service.sessions.destroy(child.id, ANN)
    assert (await of(service, workspace)).session == session.id
    await service.sessions.destroy(session.id, ANN)
    assert service.host.saved_on(workspace.id) == ["common", "of the parent"]


async def test_a_child_of_a_session_without_one_has_no_warning(service: Service) -> None:
    session = await service.ready()
    assert (await service.sessions.fork(session.id, ANN)).warnings == []


# Made for a session


async def test_one_is_made_for_a_session_and_outlives_it(service: Service) -> None:
    session = await service.ready("one", persistent_workspace=True)
    workspace = await service.sessions.workspaces.get("one")
    assert session.workspace == workspace.id
    assert (workspace.state, workspace.session) == ("ATTACHED", session.id)
    assert workspace.size_bytes == 10 << 30
    service.host.write_disk(service.machine(session), "hello")
    await service.sessions.destroy(session.id, ANN)
    other = await service.ready("two", workspace="one")
    assert lines(service, other) == ["hello"]
    # And with a workspace that is named none is made.
    await service.sessions.destroy(other.id, ANN)
    await service.ready("three", workspace="one", persistent_workspace=True)
    assert service.host.disks().keys() == {workspace.id}


async def test_one_that_cannot_be_made_fails_its_session_and_is_gone(service: Service) -> None:
    service.host.refuse["make_disk"] = OSError(28, "No space left on device")
    session = await service.ready("one", persistent_workspace=True)
    assert session.status is Status.FAILED
    assert "No space left" in (session.failure or "")
    await eventually(
        lambda: service.sessions.workspaces.page(WorkspaceQuery()), lambda page: page.items == []
    )
    assert (await service.get(session)).workspace is None
    assert service.host.disks() == {}


async def test_a_start_that_fails_gives_it_back(service: Service) -> None:
    workspace = await made(service)
    service.host.refuse["start"] = HostError("QEMU does not start.")
    session = await service.ready("one", workspace=workspace.id)
    assert session.status is Status.FAILED
    free = await stands(service, workspace, "AVAILABLE")
    assert free.session is None
    assert (await service.get(session)).workspace is None
    await with_disk(service, "two", workspace)
    await service.sessions.destroy(session.id, ANN)  # which has nothing to give up any more
    assert (await of(service, workspace)).state == "ATTACHED"


async def test_so_does_an_image_that_is_not_there(service: Service) -> None:
    service.host.refuse["image_start"] = ImageError("It is broken.", "", "")
    session = await service.ready("one", persistent_workspace=True)
    assert session.status is Status.FAILED
    await eventually(
        lambda: service.sessions.workspaces.page(WorkspaceQuery()), lambda page: page.items == []
    )


async def test_what_cannot_be_given_back_at_once_is_given_back_later(service: Service) -> None:
    workspace = await made(service)
    service.host.refuse |= {"start": HostError("no"), "release_disk": OSError(5, "I/O error")}
    session = await service.ready("one", workspace=workspace.id)
    await stands(service, workspace, "RELEASING")
    await service.sessions._watch.tidy()
    assert (await of(service, workspace)).state == "AVAILABLE"
    assert (await service.get(session)).workspace is None


# Given up


async def in_state(service: Service, session: Session, state: Status) -> None:
    """Bring a session into a state."""
    if state is Status.PAUSED:
        await service.sessions.pause(session.id, ANN)
    elif state is Status.FAILED:
        service.host.die(service.machine(session), files=True)
        await service.status(session, Status.FAILED)


@pytest.mark.parametrize("state", [Status.READY, Status.PAUSED, Status.FAILED])
async def test_it_is_saved_from_whatever_state_its_session_is_destroyed(
    service: Service, state: Status
) -> None:
    workspace = await made(service)
    session = await with_disk(service, "one", workspace)
    service.host.write_disk(service.machine(session), "hello")
    await in_state(service, session, state)
    assert (await of(service, workspace)).session == session.id
    await service.sessions.destroy(session.id, ANN)
    free = await of(service, workspace)
    assert (free.state, free.session) == ("AVAILABLE", None)
    assert service.host.machines() == []
    service.host.power_cut()
    assert service.host.saved_on(workspace.id) == ["hello"]


async def test_a_failed_session_keeps_it_and_can_be_recovered_with_it(service: Service) -> None:
    workspace = await made(service)
    session = await with_disk(service, "one", workspace)
    service.host.write_disk(service.machine(session), "saved")
    await service.sessions.pause(session.id, ANN)
    session = await service.sessions.resume(session.id, ANN)
    service.host.write_disk(service.machine(session), "lost")
    service.host.die(service.machine(session))
    await service.status(session, Status.FAILED)
    with pytest.raises(ConflictError):
        await service.sessions.create(NewSession(workspace=workspace.id), ANN)
    (found,) = await service.sessions.recoverable(session.id)
    back = await service.sessions.resume(session.id, ANN, snapshot=found.id)
    assert lines(service, back) == ["saved"]


async def test_a_session_that_is_still_being_started_gives_it_up(service: Service) -> None:
    workspace = await made(service)
    service.host.step = 3600
    session = await service.sessions.create(NewSession(workspace=workspace.id), ANN)
    fresh = await service.sessions.create(NewSession(persistent_workspace=True), ANN)
    assert (await of(service, workspace)).state == "ATTACHING"
    assert fresh.workspace is not None
    assert (await service.sessions.workspaces.get(fresh.workspace)).state == "PENDING"
    await eventually(lambda: asyncio.sleep(0, service.host.calls), lambda c: "image_start" in c)
    service.host.step = 0.0
    for each in (session, fresh):
        await service.sessions.destroy(each.id, ANN)
        assert (await service.get(each)).workspace is None
    assert (await of(service, workspace)).state == "AVAILABLE"
    page = await service.sessions.workspaces.page(WorkspaceQuery())
    assert [each.id for each in page.items] == [workspace.id]  # the other one never came to be


async def test_a_machine_is_not_ended_before_its_disk_is_saved(service: Service) -> None:
    workspace = await made(service)
    session = await with_disk(service, "one", workspace)
    service.host.write_disk(service.machine(session), "hello")
    service.host.refuse["release_disk"] = OSError(28, "No space left on device")
    with pytest.raises(NoSpaceError, match="could not be saved"):
        await service.sessions.destroy(session.id, ANN)
    stuck = await service.get(session)
    assert (stuck.status, stuck.machine) == (Status.DESTROYING, session.machine)
    assert service.host.machines() == [session.machine]
    assert (await of(service, workspace)).state == "RELEASING"
    with pytest.raises(ConflictError, match="is that of session"):
        await service.sessions.create(NewSession(workspace=workspace.id), ANN)
    # It is tried again by itself, and by whoever asks again.
    await service.sessions._watch.tidy()
    assert (await service.get(session)).status is Status.DESTROYED
    assert service.host.machines() == []
    assert (await of(service, workspace)).state == "AVAILABLE"
    assert service.host.saved_on(workspace.id) == ["hello"]
    types = await service.types(session)
    assert types.count("session.destroying") == 1


async def test_asking_again_goes_on_with_the_end(service: Service) -> None:
    workspace = await made(service)
    session = await with_disk(service, "one", workspace)
    service.host.refuse["release_disk"] = HostError("busy")
    with pytest.raises(FailedError):
        await service.sessions.destroy(session.id, ANN)
    await service.sessions.destroy(session.id, ANN)
    assert (await of(service, workspace)).state == "AVAILABLE"


async def test_a_machine_that_dies_just_then_leaves_what_was_kept(service: Service) -> None:
    workspace = await made(service)
    session = await with_disk(service, "one", workspace)
    service.host.write_disk(service.machine(session), "hello")
    await service.sessions.checkpoint(session.id, ANN)
    service.host.refuse["release_disk"] = MachineDiedError("It has just ended.")
    await service.sessions.destroy(session.id, ANN)
    assert service.host.saved_on(workspace.id) == ["hello"]
    assert (await of(service, workspace)).state == "AVAILABLE"


@pytest.mark.parametrize("how", ["damaged", "gone"])
async def test_one_of_which_nothing_is_left_has_failed_and_can_be_deleted(
    service: Service, how: str
) -> None:
    workspace = await made(service)
    session = await with_disk(service, "one", workspace)
    if how == "damaged":
        service.host.refuse["release_disk"] = SnapshotError("Its layer is damaged.")
    else:
        (service.host.root / "disks" / workspace.id).unlink()
    await service.sessions.destroy(session.id, ANN)
    failed = await of(service, workspace)
    assert (failed.state, failed.session) == ("FAILED", None)
    assert failed.error == ("Its layer is damaged." if how == "damaged" else "Its disk is gone.")
    assert "workspace.failed" in await service.types(session)
    with pytest.raises(ConflictError, match="cannot be used: Its"):
        await service.sessions.create(NewSession(workspace=workspace.id), ANN)
    await service.sessions.workspaces.delete(workspace.id, ANN)
    assert (await service.sessions.workspaces.page(WorkspaceQuery())).items == []


async def test_a_machine_that_is_left_of_an_earlier_state_saves_nothing(service: Service) -> None:
    workspace = await made(service)
    session = await with_disk(service, "one", workspace)
    service.host.write_disk(service.machine(session), "kept")
    session = await service.sessions.pause(session.id, ANN)
    left = await service.host.start(
        session.snapshot or "", {SESSION: session.id}, "resume", disk=workspace.id
    )
    service.host.write_disk(left.id, "given up")
    await service.sessions.destroy(session.id, ANN)
    assert service.host.machines() == []
    assert service.host.saved_on(workspace.id) == ["kept"]


# What cannot be written down


async def test_a_disk_that_is_full_takes_nothing_from_anybody(service: Service) -> None:
    workspace = await made(service)

    def claims(said: str) -> bool:
        return "UPDATE workspaces" in said and "ATTACHING" in said

    with full_disk(service.database, claims), pytest.raises(Exception, match="disk is full"):
        await service.sessions.create(NewSession(name="one", workspace=workspace.id), ANN)
    assert await of(service, workspace) == workspace
    await with_disk(service, "one", workspace)


async def counted(service: Service) -> dict[str, Any]:
    """Return the sessions and workspaces that there are, by state."""
    page = await service.sessions.workspaces.page(WorkspaceQuery(200))
    states: dict[str, Any] = {}
    for each in page.items:
        states[each.state] = states.get(each.state, 0) + 1
    return states


async def test_a_destruction_that_is_cut_off_is_finished_by_the_next_program(
    service: Service,
) -> None:
    workspace = await made(service)
    session = await with_disk(service, "one", workspace)
    service.host.write_disk(service.machine(session), "hello")
    service.host.refuse["release_disk"] = OSError(28, "No space left on device")
    with pytest.raises(SessionError):
        await service.sessions.destroy(session.id, ANN)
    await service.again()
    assert (await service.get(session)).status is Status.DESTROYED
    assert await counted(service) == {"AVAILABLE": 1}
    assert service.host.saved_on(workspace.id) == ["hello"]


async def test_a_start_of_the_server_does_not_wait_for_what_cannot_be_saved(
    service: Service,
) -> None:
    workspace = await made(service)
    session = await with_disk(service, "one", workspace)
    service.host.write_disk(service.machine(session), "hello")
    service.host.refuse_always["release_disk"] = HostError("not now")
    with pytest.raises(FailedError):
        await service.sessions.destroy(session.id, ANN)
    await service.close()
    host = type(service.host)(service.root / "world")
    host.refuse_always["release_disk"] = HostError("not now")
    service.host = host
    await service.open()
    said = service.sessions.report.sessions[session.id]
    assert any("still is" in each for each in said)
    assert (await service.get(session)).status is Status.DESTROYING
    assert host.machines() == [session.machine]
    host.refuse_always.clear()
    await service.sessions._watch.tidy()
    assert (await service.get(session)).status is Status.DESTROYED
    assert host.saved_on(workspace.id) == ["hello"]


async def test_a_session_that_was_being_started_is_begun_anew_with_it(service: Service) -> None:
    workspace = await made(service)
    service.host.step = 0.2
    session = await service.sessions.create(NewSession(name="one", workspace=workspace.id), ANN)
    fresh = await service.sessions.create(NewSession(name="two", persistent_workspace=True), ANN)
    await service.close()
    service.host.step = 0.0
    await service.open()
    for each in (session, fresh):
        ready = await service.sessions.ready(each.id, 10)
        assert ready.status is Status.READY
        assert lines(service, ready) == []
    assert await counted(service) == {"ATTACHED": 2}
    assert len(service.host.disks()) == 2
