"""What a start makes of what it finds."""

from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import event
from sqlalchemy.engine import Engine

from tests.sessions.conftest import ANN, Service, full_disk
from torpor.sessions import ConflictError, Key, Sessions
from torpor.sessions.hosts import SESSION, End
from torpor.sessions.model import NewSession, now
from torpor.store import operations, sessions, snapshots
from torpor.store.database import Database
from torpor.store.errors import DiskFullError
from torpor.store.records import Operation, Session, Status


class Killed(BaseException):
    """The program was killed here."""


async def killed_in(service: Service, step: str, doing) -> None:  # type: ignore[no-untyped-def]
    """Have the program end in a step of the host, with nothing done after it."""
    service.host.refuse[step] = Killed()  # type: ignore[assignment]
    with pytest.raises(Killed):
        await doing
    service.host.refuse.clear()


async def test_running_machines_are_adopted(service: Service) -> None:
    session = await service.ready()
    service.host.count(service.machine(session))
    await service.again()
    after = await service.get(session)
    assert (after.status, after.machine) == (Status.READY, session.machine)
    assert service.sessions.report.adopted == 1


async def test_a_machine_that_died_meanwhile_fails_its_session(service: Service) -> None:
    session = await service.ready()
    checkpoint = await service.sessions.checkpoint(session.id, ANN, durable=True)
    service.host.die(service.machine(session))
    await service.close()
    # As if it had happened while no server ran.
    await service.open()
    failed = await service.get(session)
    assert failed.status is Status.FAILED
    assert [row.id for row in await service.sessions.recoverable(session.id)] == [checkpoint.id]


async def test_one_that_was_switched_off_meanwhile_is_paused_with_its_files(
    service: Service,
) -> None:
    session = await service.ready()
    machine = service.machine(session)
    host = service.host
    await service.close()
    content = host._read("machines", machine)
    (host.root / "machines" / machine).unlink()
    host._write("snapshots", "files", {**content, "memory": False, "durable": True})
    host.left = {machine: End(machine, "power-off", "It was switched off.", "files")}
    await service.open()
    assert (await service.get(session)).pause_reason == "power-off"
    assert (await service.sessions.resume(session.id, ANN)).status is Status.READY


async def test_a_pause_that_had_come_to_its_snapshot_is_finished(service: Service) -> None:
    session = await service.ready()
    service.host.count(service.machine(session))
    real = service.host.freeze

    async def freeze(*args, **kwargs):  # type: ignore[no-untyped-def]
        await real(*args, **kwargs)
        raise Killed

    service.host.freeze = freeze  # type: ignore[method-assign]
    with pytest.raises(Killed):
        await service.sessions.pause(session.id, ANN, reason="mine")
    await service.again()
    paused = await service.get(session)
    assert (paused.status, paused.pause_reason, paused.generation) == (Status.PAUSED, "mine", 1)
    back = await service.sessions.resume(session.id, ANN)
    assert service.host.counted(service.machine(back)) == 1


async def test_a_pause_that_had_not_is_undone(service: Service) -> None:
    session = await service.ready()
    await killed_in(service, "freeze", service.sessions.pause(session.id, ANN))
    await service.again()
    after = await service.get(session)
    assert (after.status, after.machine) == (Status.READY, session.machine)
    assert "operation.interrupted" in await service.types(session)


async def test_a_checkpoint_that_had_come_to_its_snapshot_is_there(service: Service) -> None:
    session = await service.ready()
    real = service.host.freeze

    async def freeze(*args, **kwargs):  # type: ignore[no-untyped-def]
        await real(*args, **kwargs)
        raise Killed

    service.host.freeze = freeze  # type: ignore[method-assign]
    with pytest.raises(Killed):
        await service.sessions.checkpoint(session.id, ANN, label="mine")
    await service.again()
    found, _ = await service.sessions.checkpoints(session.id)
    assert [row.label for row in found] == ["mine"]


@pytest.mark.parametrize("kind", ["resume", "rollback"])
async def test_a_start_that_had_come_to_its_machine_is_finished(
    service: Service, kind: str
) -> None:
    session = await service.ready()
    checkpoint = await service.sessions.checkpoint(session.id, ANN)
    await service.sessions.ports.opened(session.id, ANN, 80)
    reached_out = await service.sessions.events.last()
    key = Key("k", "d")
    real = service.host.start

    async def start(*args, **kwargs):  # type: ignore[no-untyped-def]
        await real(*args, **kwargs)
        raise Killed

    if kind == "resume":
        await service.sessions.pause(session.id, ANN)
    service.host.start = start  # type: ignore[method-assign]
    cut_off = (
        service.sessions.resume(session.id, ANN, key=key)
        if kind == "resume"
        else service.sessions.rollback(session.id, ANN, checkpoint.checkpoint or "", key=key)
    )
    with pytest.raises(Killed):
        await cut_off
    assert len(service.host.machines()) == (1 if kind == "resume" else 2)
    await service.again()
    after = await service.get(session)
    assert after.status is Status.READY
    assert service.host.machines() == [after.machine]
    assert after.machine != session.machine
    if kind == "rollback":
        again = await service.sessions.rollback(
            session.id, ANN, checkpoint.checkpoint or "", key=key
        )
        assert (again.session, again.not_undone) == (after, [reached_out])


@pytest.mark.parametrize("kind", ["create", "fork"])
async def test_a_session_that_was_being_created_is_created(service: Service, kind: str) -> None:
    parent = await service.ready("parent")
    service.host.count(service.machine(parent))
    service.host.refuse["start"] = Killed()  # type: ignore[assignment]
    if kind == "create":
        made = await service.sessions.create(NewSession(name="new"), ANN)
    else:
        forked = await service.sessions.fork(parent.id, ANN)
        assert isinstance(forked.children[0], Session)
        made = forked.children[0]
    with pytest.raises(TimeoutError):
        await service.sessions.ready(made.id, 0.2)
    await service.again()
    ready = await service.sessions.ready(made.id, 10)
    assert ready.status is Status.READY
    assert service.host.counted(service.machine(ready)) == (0 if kind == "create" else 1)


async def test_a_session_that_was_being_destroyed_is_destroyed(service: Service) -> None:
    session = await service.ready()
    await killed_in(service, "end", service.sessions.destroy(session.id, ANN))
    await service.again()
    assert (await service.get(session)).status is Status.DESTROYED
    assert service.host.machines() == []


async def test_machines_and_snapshots_that_nobody_knows_are_removed(service: Service) -> None:
    session = await service.ready()
    operation = Operation("01JT9Q0M7V3WZ2K4N8XG5B6C1D", "checkpoint", ANN.id, now(), session.id)
    async with service.database.write() as conn:
        await operations.insert(conn, operation)
        await operations.finish(conn, operation.id, "interrupted")
    labels = {"torpor.session": session.id, "torpor.operation": operation.id}
    stranger = await service.host.start("golden-default-mars-2vcpu-1gb", labels, "create", "x")
    await service.host.freeze(stranger.id, "stray", labels, stop=False)
    await service.again()
    assert service.host.machines() == [session.machine]
    assert "stray" not in service.host.snapshots()
    report = (await service.sessions.events.before(None, None, 1))[-1]
    assert report.type == "server.reconciled"
    assert report.data["machines_ended"] == [stranger.id]
    assert report.data["snapshots_removed"] == ["stray"]


async def test_a_snapshot_that_was_brought_from_elsewhere_stays(service: Service) -> None:
    session = await service.ready()
    for place, labels in enumerate(
        (
            {"torpor.session": "of-another-server", "torpor.operation": "01JT9Q0M7V"},
            {"torpor.session": session.id, "torpor.operation": "of-another-server"},
        )
    ):
        content = service.host._read("machines", service.machine(session))
        service.host._write(
            "snapshots", f"brought-{place}", {**content, "labels": labels, "durable": True}
        )
    await service.again()
    assert {"brought-0", "brought-1"} <= set(service.host.snapshots())


async def test_what_a_power_cut_left_of_a_snapshot_that_nobody_knows_is_removed(
    service: Service,
) -> None:
    session = await service.ready()
    paused = await service.sessions.pause(session.id, ANN)
    (service.host.root / "snapshots" / "torn").touch()
    await service.again()
    assert "torn" not in service.host.snapshots()
    assert paused.snapshot in service.host.snapshots()
    report = (await service.sessions.events.before(None, None, 1))[-1]
    assert report.data["snapshots_removed"] == ["torn"]


async def test_after_a_power_cut_the_durable_are_resumed_and_the_lost_are_named(
    service: Service,
) -> None:
    durable, lost, running = [await service.ready(name) for name in ("durable", "lost", "running")]
    for session in (durable, lost):
        service.host.count(service.machine(session))
    await service.sessions.checkpoint(lost.id, ANN, durable=True)
    service.host.count(service.machine(lost))

    async def never(snapshot: str, **_: bool) -> None:
        raise OSError(28, "No space left on device")

    await service.sessions.pause(durable.id, ANN, durable=True)
    service.host.durable = never  # type: ignore[method-assign]
    await service.sessions.pause(lost.id, ANN)
    await service.close()
    service.host.power_cut()
    del service.host.durable  # type: ignore[method-assign]
    await service.open()

    back = await service.sessions.resume(durable.id, ANN)
    assert service.host.counted(service.machine(back)) == 1
    for session in (lost, running):
        assert (await service.get(session)).status is Status.FAILED
        with pytest.raises(ConflictError, match="without being asked"):
            await service.sessions.resume(session.id, ANN)
    assert "snapshot.lost" in await service.types(lost)
    older = await service.sessions.recoverable(lost.id)
    assert [row.kind for row in older] == ["checkpoint"]
    back = await service.sessions.resume(lost.id, ANN, snapshot=older[0].id)
    assert service.host.counted(service.machine(back)) == 1


async def test_no_operation_is_left_under_way(service: Service) -> None:
    session = await service.ready()
    await killed_in(service, "freeze", service.sessions.pause(session.id, ANN))
    await service.again()
    async with service.database.read() as conn:
        assert await operations.unfinished(conn) == []


async def test_a_session_whose_snapshot_is_lost_has_failed_however_its_start_ends(
    service: Service,
) -> None:
    session = await service.ready()
    paused = await service.sessions.pause(session.id, ANN, durable=True)
    await service.close()
    (service.host.root / "snapshots" / (paused.snapshot or "")).unlink()
    database = await Database.open(service.url)
    with full_disk(database, lambda said: "session.failed" in said), pytest.raises(DiskFullError):
        await Sessions.open(database, service.host, **service.options)
    await database.close()
    await service.open()
    failed = await service.get(session)
    assert failed.status is Status.FAILED
    assert "in which it was paused" in (failed.failure or "")


async def test_a_start_asks_no_more_of_its_database_for_more_sessions(service: Service) -> None:
    model = await service.sessions.pause((await service.ready()).id, ANN, durable=True)

    async def statements() -> int:
        await service.close()
        said: list[str] = []

        def note(_c: Any, _u: Any, statement: str, *_: Any) -> None:
            said.append(statement)

        event.listen(Engine, "before_cursor_execute", note)
        try:
            await service.open()
        finally:
            event.remove(Engine, "before_cursor_execute", note)
        return len(said)

    few = await statements()
    await many_paused(service, model, 50)
    assert await statements() == few
    assert (await service.sessions.counts())[Status.PAUSED] == 51


async def many_paused(service: Service, model: Session, count: int) -> None:
    """Add sessions that are paused as ``model`` is, each in a snapshot of its own."""
    content = service.host._read("snapshots", model.snapshot or "")
    async with service.database.write() as conn:
        row = await snapshots.get(conn, model.snapshot or "")
        assert row is not None
        for number in range(count):
            name = f"{model.id}-{number}"
            new = replace(model, id=name, name=name, snapshot=name)
            await sessions.insert(conn, new)
            await snapshots.insert(conn, replace(row, id=name, session=name))
            service.host._write("snapshots", name, {**content, "labels": {SESSION: name}})
