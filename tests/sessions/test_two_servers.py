"""Two servers on one database: each has its own host, and both see all sessions."""

import asyncio
import contextlib
import inspect
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.postgres import Cluster
from tests.sessions.conftest import ANN, Service
from tests.waiting import eventually
from torpor.sessions import ConflictError, Key, NewSession, NewTransfer, Sessions, previews
from torpor.sessions.model import Changes, now
from torpor.sessions.ports import Ports
from torpor.sessions.previews import Previews
from torpor.sessions.receiving import Receiving
from torpor.sessions.template_model import NewTemplate, TemplateChanges, image_of
from torpor.sessions.transfers import Transfers
from torpor.sessions.workspace_model import NewWorkspace
from torpor.store import builds, operations, snapshots, transfers, workspaces
from torpor.store.hosts import Claim, take
from torpor.store.records import Build, Event, Operation, Session, Status, Template, Transfer
from torpor.store.sessions import SessionQuery
from torpor.store.workspaces import WorkspaceQuery
from torpor.vm import Terminal

SOURCE = "registry.test/team/tools:1"


async def server(root: Path, url: str, host: str) -> Service:
    """Return a server that holds a host of its own."""
    made = Service(root / host, url)
    made.options["me"] = host
    await made.open()
    async with made.database.write() as conn:
        claim = Claim(host, host, f"http://{host}", "1", host, "server")
        made.database.hold(await take(conn, claim, 60))
    return made


@pytest.fixture
async def pair(tmp_path: Path, database_url: str) -> AsyncIterator[tuple[Service, Service]]:
    """Two servers, ``here`` and ``there``."""
    here = await server(tmp_path, database_url, "here")
    there = await server(tmp_path, database_url, "there")
    yield here, there
    await here.close()
    await there.close()


Call = Callable[[Sessions, str, str], Awaitable[Any]]


async def _use(sessions: Sessions, session: str) -> None:
    async with sessions.use(session, ANN):
        pass


REFUSED: dict[str, Call] = {
    "update": lambda s, one, _: s.update(one, ANN, Changes(name="other")),
    "pause": lambda s, one, _: s.pause(one, ANN, durable=True),
    "resume": lambda s, one, _: s.resume(one, ANN),
    "destroy": lambda s, one, _: s.destroy(one, ANN),
    "checkpoint": lambda s, one, _: s.checkpoint(one, ANN),
    "delete_checkpoint": lambda s, one, checkpoint: s.delete_checkpoint(one, checkpoint, ANN),
    "fork": lambda s, one, _: s.fork(one, ANN),
    "rollback": lambda s, one, checkpoint: s.rollback(one, ANN, checkpoint),
    "use": lambda s, one, _: _use(s, one),
    "attached": lambda s, one, _: s.attached(one),
    "statistics": lambda s, one, _: s.statistics(one),
}
"""What is refused for a session on another host."""
COMMANDS: dict[str, Call] = {
    "start": lambda s, one, _: s.execs.start(one, ANN, ["true"], key=Key("k", "d")),
    "run": lambda s, one, _: s.execs.run(one, ANN, ["true"], limit=1, most=1),
    "list": lambda s, one, _: s.execs.list(one, ANN),
    "signal": lambda s, one, _: s.execs.signal(one, ANN, "e", 9),
    "resize": lambda s, one, _: s.execs.resize(one, ANN, "e", Terminal(80, 25)),
}
TRANSFER = "x" * 32
UPLOAD = NewTransfer("upload", b"/workspace/a", size=1)


async def _piece(data: bytes) -> AsyncIterator[bytes]:
    yield data


PARTS: dict[str, Call] = {
    "find": lambda s, one, _: s.transfers.parts.find(one, TRANSFER),
    "in_time": lambda s, one, _: s.transfers.parts.in_time(one, TRANSFER),
    "pending": lambda s, one, _: s.transfers.parts.pending(one, TRANSFER),
    "check": lambda s, one, _: s.transfers.parts.check(one, TRANSFER, [1]),
    "put": lambda s, one, _: s.transfers.parts.put(one, TRANSFER, 1, 1, _piece(b"x")),
}
TRANSFERS: dict[str, Call] = {
    "create": lambda s, one, _: s.transfers.create(one, ANN, UPLOAD),
    "get": lambda s, one, _: s.transfers.get(one, TRANSFER),
    "commit": lambda s, one, _: s.transfers.commit(one, TRANSFER, ANN),
    "cancel": lambda s, one, _: s.transfers.cancel(one, TRANSFER, ANN),
}
PORTS: dict[str, Call] = {
    "connect": lambda s, one, _: s.ports.connect(one, 8000, ANN),
    "machine": lambda s, one, _: s.ports.machine(one, ANN),
    "opened": lambda s, one, _: s.ports.opened(one, ANN, 8000),
}
PREVIEWS: dict[str, Call] = {
    "share": lambda s, one, _: s.previews.share(one, 8000, ANN, seconds=60),
}
ALL = {
    f"{kind}{name}": call
    for kind, calls in (
        ("", REFUSED), ("execs.", COMMANDS), ("parts.", PARTS), ("transfers.", TRANSFERS),
        ("ports.", PORTS), ("previews.", PREVIEWS),
    )
    for name, call in calls.items()
}  # fmt: skip
SEEN = {
    "find", "get", "ready", "checkpoints", "get_checkpoint", "tree", "recoverable", "samples",
    "follow", "doing",
}  # fmt: skip
"""What anybody is told of it."""
OF_NONE = {
    "open", "close", "page", "counts", "create", "snapshots_held", "durable", "host", "measure",
    "free_memory",
}  # fmt: skip
"""What is of no one session."""


def test_nothing_that_can_be_done_with_a_session_is_forgotten_here() -> None:
    known = {*REFUSED, *SEEN, *OF_NONE}
    found = {name for name, _ in inspect.getmembers(Sessions) if not name.startswith("_")}
    assert found == known
    assert not set(REFUSED) & (SEEN | OF_NONE)


@pytest.mark.parametrize(
    ("kind", "refused", "others"),
    [
        (Receiving, PARTS, set()),
        # A payload is that of a transfer that was found; the rest is for this server's own.
        (Transfers, TRANSFERS, {"payload", "end_of", "begin", "tidy", "close"}),
        (Ports, PORTS, {"counted"}),
        # A link is shown and revoked everywhere.
        (Previews, PREVIEWS, {"of_session", "revoke", "standing", "ended"}),
    ],
)
def test_nothing_of_its_parts_is_forgotten_here(
    kind: type, refused: dict[str, Call], others: set[str]
) -> None:
    found = {name for name, _ in inspect.getmembers(kind) if not name.startswith("_")}
    assert found == {*refused, *others}


async def everything(service: Service) -> list[Any]:
    """What the database says of snapshots, operations and transfers, and what events there are."""
    told = await service.sessions.events.after(None, None)
    async with service.database.read() as conn:
        found = await snapshots.of_all(conn), await operations.unfinished(conn)
        return [told, *found, await transfers.unfinished(conn)]


@pytest.mark.parametrize("name", ALL)
async def test_what_changes_or_uses_a_session_is_refused_elsewhere(
    pair: tuple[Service, Service], name: str
) -> None:
    here, there = pair
    session = await there.ready()
    checkpoint = await there.sessions.checkpoint(session.id, ANN, durable=True)
    await eventually(
        lambda: there.sessions.get_checkpoint(session.id, checkpoint.checkpoint or ""),
        lambda row: row.durable,
    )
    moment = now()
    transfer = Transfer(
        TRANSFER, session.id, moment, moment, moment + timedelta(hours=1), ANN.id, "upload",
        "/workspace/a", False, "pending", 1, 1,
    )  # fmt: skip
    async with there.database.write() as conn:
        await transfers.insert(conn, transfer)
    before, machines = await everything(there), there.host.machines()
    call = ALL[name]
    with pytest.raises(ConflictError, match="on the host there") as refused:
        await asyncio.wait_for(call(here.sessions, session.id, checkpoint.checkpoint or ""), 10)
    assert refused.value.code == "on_another_host"
    assert refused.value.facts == {"host": "there", "url": "http://there"}
    assert "http://there" in refused.value.todo
    assert await everything(there) == before
    assert there.host.machines() == machines


async def test_both_see_all_sessions_and_each_counts_its_own(
    pair: tuple[Service, Service],
) -> None:
    here, there = pair
    one, two = await here.ready("one"), await there.ready("two")
    assert (one.host, two.host) == ("here", "there")
    for each in pair:
        page = await each.sessions.page(SessionQuery())
        assert {found.id for found in page.items} == {one.id, two.id}
        assert await each.sessions.find("two") == await each.sessions.get(two.id)
    with pytest.raises(ConflictError, match="already"):
        await here.ready("TWO")
    assert len(here.host.machines()) == len(there.host.machines()) == 1


async def nothing() -> None:
    pass


async def unfinished(service: Service) -> list[Operation]:
    async with service.database.read() as conn:
        return await operations.unfinished(conn)


async def test_what_starts_anew_leaves_what_is_on_the_other_host(
    pair: tuple[Service, Service],
) -> None:
    here, there = pair
    running = await there.ready("running")
    paused = await there.ready("paused")
    await there.sessions.pause(paused.id, ANN)
    await there.sessions.fork(running.id, ANN)
    await here.sessions.close()
    async with contextlib.AsyncExitStack() as stack:
        # What nothing needs is kept there, and an operation is under way.
        first = await there.sessions.checkpoint(running.id, ANN)
        await there.sessions.checkpoint(running.id, ANN)
        await stack.enter_async_context(there.sessions.snapshots_held(nothing))
        await there.sessions.delete_checkpoint(running.id, first.checkpoint or "", ANN)
        there.host.step = 1.0
        making = asyncio.create_task(there.sessions.checkpoint(running.id, ANN))
        await eventually(lambda: unfinished(there), lambda found: len(found) == 1)
        here.sessions = await Sessions.open(here.database, here.host, **here.options)
        await here.sessions._watch.tidy()
        assert len(await unfinished(there)) == 1
        async with there.database.read() as conn:
            assert await snapshots.get(conn, first.id) is not None
        there.host.step = 0.0
        await making
    assert here.sessions.report.plain() == {
        "adopted": 0, "sessions": {}, "machines_ended": [], "snapshots_removed": [],
        "workspaces_undone": 0,
    }  # fmt: skip
    await here.sessions._watch.look()
    await here.sessions._watch.tidy()
    await here.sessions.close(freeze=True)
    here.sessions = await Sessions.open(here.database, here.host, **here.options)
    assert (await there.get(running)).status is Status.READY
    await there.sessions.resume(paused.id, ANN)
    async with there.database.read() as conn:
        assert {row.status for row in await snapshots.of_all(conn)} == {"READY"}


async def test_one_key_at_both_makes_one_session(pair: tuple[Service, Service]) -> None:
    here, there = pair
    chance = random.Random(5)
    for turn in range(10):
        key = Key(f"k{turn}", "d")

        async def ask(service: Service, key: Key = key, turn: int = turn) -> Session | str:
            await asyncio.sleep(chance.random() * 0.004)
            try:
                return await service.sessions.create(NewSession(name=f"n{turn}"), ANN, key=key)
            except ConflictError as error:
                return error.code

        answers = await asyncio.gather(ask(here), ask(there), ask(here), ask(there))
        made = {each.id for each in answers if isinstance(each, Session)}
        assert len(made) == 1
        assert {each for each in answers if isinstance(each, str)} <= {"in_progress"}
        again = [await ask(service) for service in pair]
        assert {each.id for each in again if isinstance(each, Session)} == made


async def test_what_is_under_way_at_one_is_not_begun_at_the_other(
    pair: tuple[Service, Service],
) -> None:
    here, there = pair
    session = await there.ready()
    there.host.step = 0.3
    key = Key("k", "d")
    pausing = asyncio.create_task(there.sessions.pause(session.id, ANN, key=key))
    await asyncio.sleep(0.1)
    with pytest.raises(ConflictError, match="under way at another server") as refused:
        await here.sessions.pause(session.id, ANN, key=key)
    assert refused.value.code == "in_progress"
    await pausing
    assert (await here.sessions.pause(session.id, ANN, key=key)).status is Status.PAUSED


async def test_one_key_at_both_makes_one_template(pair: tuple[Service, Service]) -> None:
    new, key = NewTemplate("tools", "sandbox", SOURCE), Key("k", "d")

    async def ask(service: Service) -> str:
        try:
            return (await service.sessions.templates.create(new, ANN, key=key)).id
        except ConflictError as error:
            return error.code

    answers = set(await asyncio.gather(*(ask(each) for each in pair)))
    assert len(answers - {"in_progress"}) == 1
    page = await pair[0].sessions.templates.page(10)
    assert [each.id for each in page.items] == list(answers - {"in_progress"})


async def built(service: Service, called: str, count: int) -> list[Build]:
    """Return the builds of a template as soon as so many have succeeded."""

    async def found() -> list[Build]:
        return (await service.sessions.templates.builds(called, 10))[1].items

    return await eventually(
        found, lambda some: [each.status for each in some] == ["SUCCEEDED"] * count
    )


async def test_each_builds_what_it_was_asked_for_and_makes_the_image_where_it_is_needed(
    pair: tuple[Service, Service],
) -> None:
    here, there = pair
    for each in pair:
        each.host.step = 0.02
    new = NewTemplate("tools", "sandbox", SOURCE)
    template = await there.sessions.templates.create(new, ANN)
    here.sessions.templates._builder.tell()
    (build,) = await built(there, "tools", 1)
    assert build.host == "there"
    assert (here.host.images(), there.host.images()) == ([], [image_of(build.id)])
    async with there.database.read() as conn:
        told = [line.text for line in await builds.lines(conn, build.id)]
    assert len([line for line in told if line.startswith("begun")]) == 1
    # Those that start together have it made once.
    sessions = [
        await here.sessions.create(NewSession(name=name, template="tools"), ANN)
        for name in ("one", "two")
    ]
    for each in sessions:
        ready = await here.sessions.ready(each.id, 10)
        assert (ready.status, ready.template) == (Status.READY, template.id)
    assert here.host.images() == [image_of(build.id)]
    # And have it removed when it is needed no longer.
    await there.sessions.templates.update("tools", TemplateChanges(), ANN)
    newest, _ = await built(there, "tools", 2)
    await here.sessions.templates._builder.tidy()
    assert here.host.images() == []
    await eventually(
        lambda: asyncio.sleep(0, there.host.images()), lambda f: f == [image_of(newest.id)]
    )


async def test_a_template_that_is_deleted_at_one_is_not_built_by_the_other(
    pair: tuple[Service, Service],
) -> None:
    here, there = pair
    there.host.step = 0.2
    template = await there.sessions.templates.create(NewTemplate("tools", "sandbox", SOURCE), ANN)

    async def status() -> Template:
        return await here.sessions.templates.get("tools")

    await eventually(status, lambda found: found.status == "BUILDING")
    await here.sessions.templates.delete("tools", ANN)

    async def left() -> list[Build]:
        async with here.database.read() as conn:
            return (await builds.page(conn, template.id, 10)).items

    def is_over(found: list[Build]) -> bool:
        return [(each.status, each.image) for each in found] == [("FAILED", None)]

    await eventually(left, is_over)
    assert there.host.images() == []


async def test_each_goes_on_with_its_own_transfers(pair: tuple[Service, Service]) -> None:
    here, there = pair
    one, two = await here.ready("one"), await there.ready("two")
    size = (8 << 20) + 1  # two parts, the second of one byte
    mine = await here.sessions.transfers.create(one.id, ANN, NewTransfer("upload", b"/a", size=1))
    theirs = await there.sessions.transfers.create(
        two.id, ANN, NewTransfer("upload", b"/a", size=size)
    )
    assert theirs.part_size == size - 1
    await there.sessions.transfers.parts.put(two.id, theirs.id, 2, 1, _piece(b"x"))
    async with here.database.read() as conn:
        assert await transfers.unfinished(conn, host="here") == [mine]
        assert await transfers.promised(conn, "here") == 2
        assert await transfers.promised(conn, "there") == 2 * size - 1
    await here.again()
    await here.sessions.transfers.tidy()
    assert (await there.sessions.transfers.get(two.id, theirs.id)).received == [2]


async def test_a_link_that_is_revoked_at_one_ends_at_the_other_with_news_or_without(
    pair: tuple[Service, Service], monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = pair
    monkeypatch.setattr(previews, "LOOK_SECONDS", 0.1)
    session = await there.ready()
    link = await there.sessions.previews.share(session.id, 80, ANN, seconds=600)
    ended = asyncio.create_task(there.sessions.previews.ended(link))
    await asyncio.sleep(0.3)
    assert not ended.done()
    await here.sessions.previews.revoke(session.id, link.id, ANN)
    await asyncio.wait_for(ended, 5)
    assert await there.sessions.previews.standing(link.id) is None


@pytest.fixture
def shared(cluster: Cluster) -> Iterator[str]:
    """A database over which servers tell each other news; those of one file do not."""
    with cluster.migrated() as url:
        yield url


async def test_who_follows_at_one_sees_what_happens_at_the_other(
    tmp_path: Path, shared: str
) -> None:
    here = await server(tmp_path, shared, "here")
    there = await server(tmp_path, shared, "there")
    seen: list[Event] = []

    async def follow() -> None:
        async for event in here.sessions.follow(None, None):
            seen.append(event)
            if event.type == "session.paused":
                return

    following = asyncio.create_task(follow())
    try:
        session = await there.sessions.create(NewSession(name="one"), ANN)
        ready = await here.sessions.ready(session.id, 5)
        assert ready.status is Status.READY
        await there.sessions.pause(session.id, ANN)
        await asyncio.wait_for(following, 5)
        assert [event.id for event in seen] == sorted({event.id for event in seen})
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        await here.close()
        await there.close()


async def test_what_a_link_has_under_way_at_one_ends_when_it_is_revoked_at_the_other(
    tmp_path: Path, shared: str
) -> None:
    here = await server(tmp_path, shared, "here")
    there = await server(tmp_path, shared, "there")
    try:
        session = await there.ready()
        links = [
            await there.sessions.previews.share(session.id, 80, ANN, seconds=600) for _ in range(2)
        ]
        ended = [asyncio.create_task(there.sessions.previews.ended(each)) for each in links]
        await asyncio.sleep(0.1)
        await here.sessions.previews.revoke(session.id, links[0].id, ANN)
        await asyncio.wait_for(ended[0], 5)
        assert not ended[1].done()
        there.sessions.previews._look("")  # news were missed, and it stands
        await asyncio.sleep(0.1)
        assert not ended[1].done()
        ended[1].cancel()
        await asyncio.gather(*ended, return_exceptions=True)
    finally:
        await here.close()
        await there.close()


async def test_a_workspace_is_used_and_looked_after_where_its_disk_is(
    pair: tuple[Service, Service],
) -> None:
    here, there = pair
    made = (await there.sessions.workspaces.create(NewWorkspace(1, "notes"), ANN)).workspace
    assert made.host == "there"
    assert (await here.sessions.workspaces.get("notes")).id == made.id
    page = await here.sessions.workspaces.page(WorkspaceQuery())
    assert [each.id for each in page.items] == [made.id]
    for call in (
        here.sessions.workspaces.delete("notes", ANN),
        here.sessions.create(NewSession(name="one", workspace="notes"), ANN),
    ):
        with pytest.raises(ConflictError, match="on the host there") as refused:
            await call
        assert refused.value.code == "on_another_host"
        assert refused.value.facts == {"host": "there", "url": "http://there"}
    # One that is being made, given back or removed there is none of what was cut off here.
    async with there.database.write() as conn:
        for name, state in (("b", "PENDING"), ("c", "DELETING"), ("d", "RELEASING")):
            other = replace(made, id=name, name=None, state=state)
            await workspaces.insert(conn, other)
    await here.sessions.close()
    here.sessions = await Sessions.open(here.database, here.host, **here.options)
    await here.sessions._watch.tidy()
    page = await here.sessions.workspaces.page(WorkspaceQuery())
    assert {each.id: each.state for each in page.items} == {
        made.id: "AVAILABLE", "b": "PENDING", "c": "DELETING", "d": "RELEASING",
    }  # fmt: skip
