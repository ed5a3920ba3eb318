"""`torpor database copy`."""

import asyncio
import json
from pathlib import Path

from typer.testing import CliRunner

from tests.postgres import Cluster
from tests.store.made import session
from torpor.cli.app import app
from torpor.store import Database, hosts, sessions


def ask(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["database", *arguments])
    return done.exit_code, done.output


def fill(url: str, *, held: bool = False) -> None:
    async def work() -> None:
        database = await Database.open(url)
        async with database.write() as conn:
            await sessions.insert(conn, session("one", labels={"a": "b"}))
            if held:
                claim = hosts.Claim("h", "box", "http://box", "1", "place", "server")
                await hosts.take(conn, claim, 60)
        await database.close()

    asyncio.run(work())


def names(url: str) -> list[str]:
    async def work() -> list[str]:
        database = await Database.open(url)
        async with database.read() as conn:
            found = [each.name for each in await sessions.live(conn)]
        await database.close()
        return found

    return asyncio.run(work())


def test_it_goes_to_postgresql_and_back(tmp_path: Path, cluster: Cluster) -> None:
    first, last = (f"sqlite:///{tmp_path}/{name}.db" for name in ("first", "last"))
    fill(first)
    with cluster.migrated() as url:
        status, said = ask("copy", first, url)
        assert (status, "2 rows are in postgresql://postgres@/torpor" in said) == (0, True), said
        status, said = ask("copy", url, last, "--output", "json")
        assert status == 0
        assert json.loads(said) == {"rows": 2, "database": f"{tmp_path}/last.db"}
        assert names(url) == names(last) == ["one"]
        status, said = ask("copy", first, url)
        assert status == 1
        assert "is not empty" in said


def test_one_that_a_server_uses_or_that_is_not_there_is_refused(tmp_path: Path) -> None:
    first, last = (f"sqlite:///{tmp_path}/{name}.db" for name in ("first", "last"))
    status, said = ask("copy", first, last)
    assert status == 1
    assert "There is no database" in said
    fill(first, held=True)
    status, said = ask("copy", first, last)
    assert status == 1
    assert "The host box is held by another server, reached at http://box" in " ".join(said.split())
    assert not (tmp_path / "last.db").exists()
    status, said = ask("copy", first, "mysql://here/torpor")
    assert status == 1
    assert "not in mysql" in said
