"""Homes with a database, snapshots in the real formats, and a named image: without machines."""

import asyncio
import contextlib
import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tests.postgres import kinds_for
from tests.store.made import later, operation, session, snapshot, token
from tests.vm.real_snapshots import DISK, a_manifest, make_snapshot
from torpor.backup import Summary, back_up_alone
from torpor.images.config import ImageConfig
from torpor.images.names import Names, Record
from torpor.sessions.hosts import SESSION
from torpor.store import operations, sessions, snapshots, tokens
from torpor.store.database import Database
from torpor.store.records import Session, Snapshot, Status
from torpor.vm.home import opened_store
from torpor.vm.store import Store

SETTINGS = {"on_stop": "freeze"}


@dataclass(frozen=True)
class Home:
    """A home, and where its database is: a file in it, or at ``server``."""

    root: Path
    server: str = ""

    @property
    def database(self) -> Path:
        return self.root / "database" / "torpor.db"

    @property
    def url(self) -> str:
        return self.server or f"sqlite:///{self.database}"

    def read(self, what: Callable[[Any], Any]) -> Any:
        """Return what a function of a connection finds in the database."""

        async def work() -> Any:
            database = await Database.open(self.url)
            try:
                async with database.read() as conn:
                    return await what(conn)
            finally:
                await database.close()

        return asyncio.run(work())

    def sessions(self) -> dict[str, Session]:
        """Return the sessions, by name."""
        return {each.name: each for each in self.read(sessions.live)}

    def snapshots(self) -> dict[str, Snapshot]:
        """Return the rows of snapshots, by id."""
        return {each.id: each for each in self.read(snapshots.of_all)}

    def back_up(self, file: Path) -> Summary:
        """Back it up, with no server."""

        async def work() -> Summary:
            out = io.BytesIO()
            async with opened_store(self.root, None) as store:
                summary = await back_up_alone(store, self.url, SETTINGS, out)
            file.write_bytes(out.getvalue())
            return summary

        return asyncio.run(work())


def make_home(root: Path, server: str = "") -> Home:
    """A home with a session in each state, that share bases and layers."""
    store, home = Store(root), Home(root, server)
    for name, owner, base in (
        ("s-paused", "paused", "base"),
        ("s-older", "paused", "base"),
        ("s-running", "running", "base"),
        ("s-forked", "running", "other"),
        ("s-superseded", "running", "base"),
    ):
        labels = {SESSION: f"id-of-{owner}"}
        make_snapshot(store, replace(a_manifest(), labels=labels), name, base=base)
    put_image(Names(root), root / "layers" / "root.raw", "same", "a" * 64)
    other = root / "image.raw"
    with open(other, "wb") as new:
        new.truncate(DISK)
        new.seek(1 << 20)
        new.write(b"another image" * 1000)
    put_image(Names(root), other, "own", "b" * 64)
    other.unlink()
    asyncio.run(_fill(home))
    return home


def put_image(names: Names, disk: Path, name: str, digest: str) -> None:
    record = Record(
        1, name, digest, DISK, "2026-03-01T00:00:00+00:00", "tree:/somewhere", None, None, (),
        None, None, ImageConfig(env={"A": "b"}), (),
    )  # fmt: skip
    names.put(record, disk, replace=False)


async def _fill(home: Home) -> None:
    database = await Database.open(home.url)
    rich = {"labels": {"team": "blue"}, "metadata": {"n": [1, {"x": None}]}, "env": {"K": "v"}}
    try:
        async with database.write() as conn:
            await sessions.insert(
                conn, session("paused", status=Status.PAUSED, snapshot="s-paused", generation=7,
                              pause_reason="manual", **rich),
            )  # fmt: skip
            for name, status, where in (
                ("running", Status.READY, "s-running"),
                ("never-saved", Status.READY, None),
                ("failed", Status.FAILED, None),
                ("new", Status.PROVISIONING, None),
                ("child", Status.PROVISIONING, "s-forked"),
                ("ending", Status.DESTROYING, None),
                ("gone", Status.DESTROYED, None),
            ):
                machine = f"m-{name}" if status is Status.READY else None
                made = session(name, status=status, snapshot=where, machine=machine)
                await sessions.insert(conn, made)
            for name, of, kind, checkpoint in (
                ("s-older", "paused", "checkpoint", "cp_older"),
                ("s-paused", "paused", "pause", None),
                ("s-running", "running", "checkpoint", "cp_running"),
                ("s-forked", "running", "fork", "cp_forked"),
                ("s-superseded", "running", "pause", None),
            ):
                made_row = snapshot(
                    name, f"id-of-{of}", kind=kind, checkpoint=checkpoint,
                    created_at=later(len(name)),
                )  # fmt: skip
                await snapshots.insert(conn, made_row)
            await operations.insert(conn, operation("01HZX5Z5Z5Z5Z5Z5Z5Z5Z5Z5Z5"))
            await tokens.insert(conn, token("t1", role="admin"))
    finally:
        await database.close()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run each test of a home that was made on each kind of database (:mod:`tests.postgres`)."""
    if "made_home" in metafunc.fixturenames:
        kinds = kinds_for(metafunc.module)
        metafunc.parametrize("made_home", kinds, indirect=True, scope="package")


@pytest.fixture(scope="package")
def made_home(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Home]:
    """A home that nobody changes, with its database in a file of its own or in PostgreSQL."""
    with contextlib.ExitStack() as stack:
        server = ""
        if request.param == "postgresql":
            server = stack.enter_context(request.getfixturevalue("cluster").migrated())
        yield make_home(tmp_path_factory.mktemp("made") / "home", server)


@pytest.fixture(scope="package")
def backup(made_home: Home, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A backup of it."""
    file = tmp_path_factory.mktemp("backup") / "file"
    made_home.back_up(file)
    return file
