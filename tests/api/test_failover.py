"""Two servers of one home: one is killed while a thaw runs, the other one ends it or undoes it."""

import asyncio
import contextlib
import json
import os
import re
import signal
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.waiting import eventually
from torpor.api import server as module
from torpor.store import Database, hosts, operations
from torpor.store.errors import UnreachableError

ROOT = Path(__file__).parents[2]
BASE = "/v2/agents/sessions"


class Server:
    """A server in a process of its own. ``address`` is where a standby waits, too."""

    def __init__(self, process: asyncio.subprocess.Process, port: int) -> None:
        self.process = process
        self.client = httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=30)

    async def serves(self) -> None:
        """Wait until it says that it serves."""
        assert self.process.stderr is not None
        async with asyncio.timeout(60):
            said = ""
            while not re.search(r"Torpor is at \S+\. ", said):
                line = (await self.process.stderr.readline()).decode()
                assert line, said
                said += line

    async def session(self, path: str) -> dict[str, Any]:
        answer = await self.client.get(f"{BASE}/{path}")
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()["session"]
        return found


@contextlib.asynccontextmanager
async def server(home: Path, url: str, port: int, **given: Any) -> AsyncIterator[Server]:
    settings = {
        "database": url, "listen": f"127.0.0.1:{port}", "preview_listen": "127.0.0.1:0",
        "standby": False, **given,
    }  # fmt: skip
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.api.standing_by", json.dumps(settings),
        cwd=ROOT, stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "TORPOR_HOME": str(home), "TORPOR_CACHE": str(home)},
    )  # fmt: skip
    made = Server(process, port)
    try:
        yield made
    finally:
        await made.client.aclose()
        if process.returncode is None:
            process.kill()
        await process.communicate()


def free_ports(count: int = 2) -> list[int]:
    with contextlib.ExitStack() as stack:
        found = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [each.getsockname()[1] for each in found]


def machines(home: Path) -> list[str]:
    """Return the machines that run in a home."""
    found = (each.name for each in (home / "world" / "machines").iterdir())
    return [each for each in found if not each.startswith(".")]  # half written


async def waits(standby: Server) -> None:
    """See that a standby waits, and says so."""
    async with asyncio.timeout(60):
        while True:
            with contextlib.suppress(httpx.TransportError):
                answer = await standby.client.get("/readyz")
                break
            await asyncio.sleep(0.1)
    assert answer.status_code == 503
    assert answer.json()["id"] == "standby"
    assert (await standby.client.get("/healthz")).status_code == 200
    assert (await standby.client.get(BASE)).status_code == 503


@pytest.mark.parametrize("moment", ["before its machine is there", "with its machine"])
async def test_a_standby_ends_or_undoes_what_the_killed_server_was_at(
    tmp_path: Path, database_url: str, moment: str
) -> None:
    home, (port, other) = tmp_path / "home", free_ports()
    home.mkdir(mode=0o700)
    async with contextlib.AsyncExitStack() as stack:
        first = await stack.enter_async_context(server(home, database_url, port))
        await first.serves()
        second = await stack.enter_async_context(server(home, database_url, other, standby=True))
        await waits(second)
        database = await Database.open(database_url)
        stack.push_async_callback(database.close)

        async def under_way() -> list[str]:
            async with database.read() as conn:
                return [each.kind for each in await operations.unfinished(conn)]

        made = await first.client.post(BASE, params={"wait": "ready"}, json={"name": "one"})
        assert made.status_code == 200, made.text
        session = made.json()["session"]["session_id"]
        assert (await first.client.post(f"{BASE}/one/pause")).status_code == 204
        assert machines(home) == []
        resuming = asyncio.create_task(first.client.post(f"{BASE}/one/resume"))
        await eventually(under_way, lambda kinds: kinds == ["resume"])
        if moment == "with its machine":
            await eventually(lambda: asyncio.sleep(0, machines(home)), bool)
        first.process.send_signal(signal.SIGKILL)
        with pytest.raises(httpx.TransportError):
            await resuming
        await first.process.wait()
        thawed = machines(home)
        await second.serves()
        assert (await second.client.get("/readyz")).status_code == 200
        found = await second.session("one")
        assert found["session_id"] == session
        # What had come so far that its machine is there is finished, with that one; else undone.
        assert machines(home) == thawed
        status = "SESSION_STATUS_READY" if thawed else "SESSION_STATUS_PAUSED"
        assert found["status"] == status
        assert await under_way() == []
        assert (await second.client.post(f"{BASE}/one/resume")).status_code == 204
        assert (await second.session("one"))["status"] == "SESSION_STATUS_READY"
        assert (await second.client.delete(f"{BASE}/one")).status_code == 204
        assert machines(home) == []
        second.process.send_signal(signal.SIGTERM)
        assert await second.process.wait() == 0


async def test_a_standby_that_is_stopped_ends(tmp_path: Path, database_url: str) -> None:
    home, (port, other, previews) = tmp_path / "home", free_ports(3)
    home.mkdir(mode=0o700)
    async with contextlib.AsyncExitStack() as stack:
        first = await stack.enter_async_context(server(home, database_url, port))
        await first.serves()
        given = {"standby": True, "preview_listen": f"127.0.0.1:{previews}"}
        second = await stack.enter_async_context(server(home, database_url, other, **given))
        await waits(second)
        async with httpx.AsyncClient(base_url=f"http://localhost:{previews}") as visitor:
            for path in ("/", "/healthz"):  # each may be a session's own
                assert (await visitor.get(path)).json()["id"] == "standby"
        second.process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(second.process.wait(), 30) == 0
        assert (await first.client.get("/readyz")).status_code == 200


async def test_a_server_whose_host_was_taken_ends_with_its_status_and_leaves_its_machines(
    tmp_path: Path, database_url: str
) -> None:
    home, (port, _) = tmp_path / "home", free_ports()
    home.mkdir(mode=0o700)
    given = {"lease_seconds": 6, "on_stop": "freeze"}
    async with server(home, database_url, port, **given) as first:
        await first.serves()
        made = await first.client.post(BASE, params={"wait": "ready"}, json={"name": "one"})
        assert made.status_code == 200, made.text
        database = await Database.open(database_url)
        async with database.write() as conn:
            (row,) = await hosts.held(conn)
            place = (row.holder or "").partition("/")[0]
            claim = hosts.Claim(row.id, "other", None, "1", place, "other")
            await hosts.take(conn, claim, 60)
        await database.close()
        _, said = await asyncio.wait_for(first.process.communicate(), 60)
        assert first.process.returncode == 75, said.decode()
        assert "Another server has taken the host of this one." in said.decode()
        assert len(machines(home)) == 1


async def test_a_server_waits_for_a_database_that_is_just_starting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real, left = Database.open, 2

    async def opens(url: str) -> Database:
        nonlocal left
        left -= 1
        if left >= 0:
            raise UnreachableError("The database x cannot be reached: connection refused.")
        return await real(url)

    monkeypatch.setattr(Database, "open", opens)
    monkeypatch.setattr(module, "AGAIN_SECONDS", 0.01)
    url = f"sqlite:///{tmp_path}/torpor.db"
    await (await module._opened_database(url)).close()
    assert left == -1
    assert caplog.text.count("cannot be reached") == 1
    monkeypatch.setattr(module, "PATIENCE_SECONDS", 0.05)
    left = 1000
    with pytest.raises(UnreachableError):
        await module._opened_database(url)
    assert left > 900
