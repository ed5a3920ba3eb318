"""A backup of a service that goes on: one moment of it, held until it is done."""

import asyncio
import io
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

import httpx
import pytest

from tests.sessions.conftest import ANN, Service
from tests.store.made import session, snapshot
from tests.vm.real_snapshots import a_manifest, make_snapshot
from tests.waiting import eventually
from torpor.api import create_app
from torpor.api.bearers import Bearers
from torpor.api.signing import Signer
from torpor.backup import Backups, verify
from torpor.backup.piped import AHEAD, piped
from torpor.settings import Settings
from torpor.store import sessions as sessions_table
from torpor.store import snapshots as snapshots_table
from torpor.store.records import Role, Status
from torpor.vm.stoppable import StoppedError
from torpor.vm.store import Store


@pytest.fixture
async def service(tmp_path: Path, database_url: str) -> AsyncIterator[Service]:
    """A service with a paused session, whose snapshots are in a store of real files."""
    opened = await Service(tmp_path, database_url).open()
    store = Store(tmp_path / "home")
    for name in ("newest", "older"):
        make_snapshot(store, replace(a_manifest(), labels={}), name)
    async with opened.database.write() as conn:
        await sessions_table.insert(
            conn, session("one", status=Status.PAUSED, snapshot="newest", generation=2)
        )
        for name, checkpoint in (("newest", None), ("older", "cp_older")):
            row = snapshot(name, "id-of-one", checkpoint=checkpoint, durable=True)
            await snapshots_table.insert(conn, row)
    yield opened
    await opened.close()


@pytest.fixture
def backups(service: Service, tmp_path: Path) -> Backups:
    store = Store(tmp_path / "home")
    return Backups(service.sessions, service.database, store, store.root, {"on_stop": "freeze"})


async def rows(service: Service) -> set[str]:
    async with service.database.read() as conn:
        return {row.id for row in await snapshots_table.of_all(conn)}


async def test_what_the_server_sends_is_a_whole_backup(backups: Backups) -> None:
    content = b"".join([piece async for piece in backups.pieces(ANN, freeze_running=False)])
    about, summary = verify(io.BytesIO(content))
    assert about.settings == {"on_stop": "freeze"}
    assert set(summary.snapshots) == {"newest", "older"}
    assert [(each.name, each.becomes) for each in summary.sessions] == [("one", "paused")]


async def test_what_is_no_longer_needed_meanwhile_is_in_it_and_goes_afterwards(
    service: Service, backups: Backups
) -> None:
    content = bytearray()
    async with aclosing(backups.pieces(ANN, freeze_running=False)) as pieces:
        async for piece in pieces:
            if not content:
                await service.sessions.delete_checkpoint("id-of-one", "cp_older", ANN)
                assert "older" in await rows(service), "it is held"
            content += piece
    assert "older" in verify(io.BytesIO(bytes(content)))[1].snapshots
    await eventually(lambda: rows(service), lambda found: found == {"newest"})


async def test_who_goes_away_leaves_nothing_behind(service: Service, backups: Backups) -> None:
    before = threading.active_count()
    async with aclosing(backups.pieces(ANN, freeze_running=False)) as pieces:
        async for _ in pieces:
            break
    assert list(backups.home.glob(".backup-*")) == []
    await service.sessions.delete_checkpoint("id-of-one", "cp_older", ANN)
    await eventually(lambda: rows(service), lambda found: found == {"newest"})
    assert threading.active_count() <= before + 2, "only threads that are kept for later work"


async def test_sessions_that_run_are_frozen_if_asked_and_the_checkpoint_goes(
    service: Service, backups: Backups
) -> None:
    """The host of this test has no real snapshots: what it makes cannot be read, and is told."""
    running = await service.ready("two")
    content = b"".join([piece async for piece in backups.pieces(ANN, freeze_running=True)])
    summary = verify(io.BytesIO(content))[1]
    (lost,) = summary.missing
    assert (lost.what, lost.session) == ("snapshot", running.id)
    assert not summary.complete
    assert "checkpoint.created" in await service.types(running)
    assert (await service.sessions.checkpoints(running.id))[0] == []
    assert (await service.get(running)).status is Status.READY


@pytest.mark.parametrize(
    ("role", "status"), [("viewer", 403), ("approver", 403), ("operator", 403), ("admin", 200)]
)
async def test_only_an_admin_may_take_everything_away(
    service: Service, backups: Backups, role: Role, status: int
) -> None:
    bearers = await Bearers.open(service.database)
    _, token = await bearers.make("who", role)
    app = create_app(service.sessions, bearers, Settings(), Signer([]), copies=backups)
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app=app),
        base_url="http://torpor/v2/agents",
        headers={"authorization": f"Bearer {token}"},
    ) as client:
        answer = await client.post("/backup")
        assert answer.status_code == status
        if status == 200:
            assert verify(io.BytesIO(answer.content))[1].complete
            told = await service.sessions.events.after(None, None)
            assert told[-1].type == "server.backed_up"
            unknown = await client.post("/backup?frieze_running=true")
            assert unknown.status_code == 400


async def test_a_server_that_cannot_read_its_host_says_so(service: Service) -> None:
    app = create_app(service.sessions, None, Settings(authentication="none"), Signer([]))
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app=app), base_url="http://127.0.0.1/v2/agents"
    ) as client:
        answer = await client.post("/backup")
    assert (answer.status_code, answer.json()["id"]) == (409, "no_backup")


# What a thread writes


def writing(count: int, error: Exception | None = None) -> Callable[..., None]:
    def work(out: BinaryIO, check: Callable[[], None]) -> None:
        for number in range(count):
            check()
            out.write(bytes([number]))
        if error is not None:
            raise error

    return work


async def test_pieces_come_in_order_and_an_error_behind_them() -> None:
    assert b"".join([piece async for piece in piped(writing(200))]) == bytes(range(200))
    found = []
    with pytest.raises(OSError, match="broken"):  # noqa: PT012
        async for piece in piped(writing(3, OSError("broken"))):
            found.append(piece)  # noqa: PERF401 - what came before the error counts
    assert b"".join(found) == bytes(range(3))


async def test_a_thread_does_not_run_ahead_of_its_reader_and_ends_with_it() -> None:
    written: list[int] = []
    ended = threading.Event()

    def work(out: BinaryIO, check: Callable[[], None]) -> None:
        try:
            for number in range(1000):
                out.write(b"x")
                written.append(number)
        except StoppedError:
            ended.set()
            raise

    async with aclosing(piped(work)) as pieces:
        await anext(pieces)
        await asyncio.sleep(0.2)
        assert len(written) <= AHEAD + 2
    assert ended.is_set()
