"""`torpor snapshot` and the snapshots that sessions have."""

import asyncio
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.store.made import session
from tests.vm.real_snapshots import a_manifest, make_snapshot
from torpor.cli.app import app
from torpor.sessions.hosts import SESSION
from torpor.settings.presence import announce
from torpor.store import sessions
from torpor.store.database import Database
from torpor.store.records import Session, Status
from torpor.vm import Store

Says = Callable[..., Any]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home with snapshots of a session that is there, of one that is gone, and of nobody."""
    root = tmp_path / "home"
    store = Store(root)
    for name, owner in (("mine", "there"), ("newest", "there"), ("theirs", "gone"), ("lone", None)):
        labels = {SESSION: f"id-of-{owner}"} if owner is not None else {}
        make_snapshot(store, replace(a_manifest(), labels=labels), name)
    fill(
        root,
        session("there", status=Status.PAUSED, snapshot="newest"),
        session("gone", status=Status.DESTROYED),
    )
    return root


def fill(home: Path, *records: Session) -> None:
    async def work() -> None:
        database = await Database.open(f"sqlite:///{home}/database/torpor.db")
        try:
            async with database.write() as conn:
                for record in records:
                    await sessions.insert(conn, record)
        finally:
            await database.close()

    asyncio.run(work())


@pytest.fixture
def says(home: Path, tmp_path: Path) -> Says:
    def says(*arguments: str) -> Any:
        environment = {"TORPOR_HOME": str(home), "TORPOR_CACHE": str(tmp_path / "cache")}
        return CliRunner(env=environment).invoke(app, ["snapshot", *arguments])

    return says


@pytest.mark.parametrize("how", [(), ("--force",), ("--erase",)])
def test_a_snapshot_of_a_session_is_not_removed(
    says: Says, home: Path, how: tuple[str, ...]
) -> None:
    said = says("rm", "lone", "mine", *how)
    assert said.exit_code == 1
    assert "Snapshot mine is one of session there. Nothing was removed." in said.stderr
    assert "torpor rm there" in said.stderr
    assert set(Store(home).ids()) == {"mine", "newest", "theirs", "lone"}, "none of them was"


def test_that_of_a_session_that_is_gone_and_of_nobody_is(says: Says, home: Path) -> None:
    assert says("rm", "theirs", "lone").exit_code == 0
    assert set(Store(home).ids()) == {"mine", "newest"}


def test_a_policy_leaves_sessions_alone(says: Says, home: Path) -> None:
    said = says("prune", "--keep", "0", "--newest-too", "--json")
    plan = json.loads(said.stdout)["plan"]
    assert {each["id"] for each in plan["removals"]} == {"theirs", "lone"}
    assert set(plan["left_alone"]) == {"mine", "newest"}
    assert set(Store(home).ids()) == {"mine", "newest"}
    assert "2 are sessions' own" in says("prune", "--keep", "0").stdout


def test_what_a_fork_stands_on_is_kept_though_its_parent_is_gone(says: Says, home: Path) -> None:
    fill(home, session("fork", status=Status.PAUSED, snapshot="theirs", parent="id-of-gone"))
    assert "is one of session fork" in says("rm", "theirs").stderr


def test_without_the_database_nobody_knows_which_sessions_are_there(says: Says, home: Path) -> None:
    (home / "database" / "torpor.db").unlink()
    assert "is one of session id-of-gone" in says("rm", "theirs").stderr
    assert says("rm", "lone").exit_code == 0


def test_while_a_server_runs_it_is_named_and_what_to_do(says: Says, home: Path) -> None:
    announce(home, "http://127.0.0.1:1234", "1")
    for command in (("rm", "lone"), ("prune", "--keep", "1"), ("keep", "lone")):
        said = says(*command)
        assert said.exit_code == 1
        assert f"(process {os.getpid()}, at http://127.0.0.1:1234) has {home} open" in said.stderr
        assert "`torpor rm`" in said.stderr
    assert says("list").exit_code == 0, "looking is no change"
