"""What an operation costs: it is noted before it is begun, and when it has ended. Each of the two
is forced to disk, and nothing else is."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import event
from sqlalchemy.engine import Engine

from tests.sessions.conftest import ANN, Service, full_disk
from torpor.sessions import NewSession
from torpor.store import operations
from torpor.store.records import Operation, Session, Status
from torpor.vm import LaunchError


@contextmanager
def counted() -> Iterator[list[None]]:
    """Count the commits while the block lasts."""
    commits: list[None] = []

    def note(_: Any) -> None:
        commits.append(None)

    event.listen(Engine, "commit", note)
    try:
        yield commits
    finally:
        event.remove(Engine, "commit", note)


@contextmanager
def nothing_durable(service: Service) -> Iterator[None]:
    """Have no snapshot become durable while the block lasts: that is noted in the background."""
    later = asyncio.Event()
    service.host.durable = lambda *_, **__: later.wait()  # type: ignore[assignment, method-assign]
    try:
        yield
    finally:
        later.set()
        del service.host.durable  # type: ignore[method-assign]


async def under_way(service: Service) -> list[Operation]:
    async with service.database.read() as conn:
        return await operations.unfinished(conn)


async def paused(service: Service, session: Session) -> Session:
    return await service.sessions.pause(session.id, ANN)


async def resumed(service: Service, session: Session) -> Session:
    return await service.sessions.resume(session.id, ANN)


async def checked(service: Service, session: Session) -> object:
    return await service.sessions.checkpoint(session.id, ANN)


async def destroyed(service: Service, session: Session) -> object:
    return await service.sessions.destroy(session.id, ANN)


Doing = Callable[[Service, Session], Awaitable[object]]


async def forked(service: Service, session: Session) -> object:
    return await service.sessions.fork(session.id, ANN, count=3)


@pytest.mark.parametrize(
    ("before", "doing"),
    [(None, paused), (paused, resumed), (None, checked), (paused, checked), (None, destroyed),
     (None, forked), (paused, forked)],
)  # fmt: skip
async def test_an_operation_takes_two_commits(
    service: Service, before: Doing | None, doing: Doing
) -> None:
    session = await service.ready()
    with nothing_durable(service):
        if before is not None:
            await before(service, session)
        with counted() as commits:
            await doing(service, session)
    assert len(commits) == 2


async def test_a_session_is_there_after_one_commit_and_ready_after_two(service: Service) -> None:
    await service.ready("first")  # makes the golden snapshot, and tells of it
    service.host.image_start = asked_nothing(service)  # type: ignore[method-assign]
    with counted() as commits:
        made = await service.sessions.create(NewSession(name="second"), ANN)
        assert len(commits) == 1
        (start,) = await under_way(service)
        assert (start.kind, start.session) == ("provision", made.id)
        assert (await service.sessions.ready(made.id, 10)).status is Status.READY
        assert len(commits) == 2
    assert await under_way(service) == []


async def test_a_fork_takes_one_commit_for_all_children_and_one_for_each(service: Service) -> None:
    parent = await service.ready()
    with nothing_durable(service), counted() as commits:
        point = await service.sessions.checkpoint(parent.id, ANN)
        commits.clear()
        forked = await service.sessions.fork(parent.id, ANN, count=3, checkpoint=point.checkpoint)
        assert len(commits) == 1
        for child in forked.children:
            assert isinstance(child, Session)
            await service.sessions.ready(child.id, 10)
        assert len(commits) == 4


async def test_the_end_of_a_start_and_the_failure_of_its_session_are_one(service: Service) -> None:
    service.host.refuse["start"] = LaunchError("QEMU did not come up.")
    with full_disk(service.database, lambda said: "session.failed" in said):
        made = await service.sessions.create(NewSession(name="one"), ANN)
        with pytest.raises(TimeoutError):
            await service.sessions.ready(made.id, 0.2)
        assert [each.kind for each in await under_way(service)] == ["provision"]
        assert await service.types(made) == ["session.created", "session.progress"]
    assert (await service.sessions.ready(made.id, 10)).status is Status.FAILED
    assert await under_way(service) == []
    assert (await service.types(made))[2:] == ["operation.failed", "session.failed"]


async def test_what_is_destroyed_before_its_start_was_begun_leaves_nothing_under_way(
    service: Service,
) -> None:
    made = await service.sessions.create(NewSession(name="one"), ANN)
    live = service.sessions._lives.of(made.id)
    assert live.provisioning is not None
    live.provisioning.cancel()  # before its first step
    await service.sessions.destroy(made.id, ANN)
    assert await under_way(service) == []
    assert service.host.machines() == []


def asked_nothing(service: Service) -> Any:
    """What the host says of an image, of which there is nothing to be made or told."""
    real = service.host.image_start

    async def start(image: str, size: str, _: object) -> Any:
        async def silent(_: str) -> None:
            pass

        return await real(image, size, silent)

    return start
