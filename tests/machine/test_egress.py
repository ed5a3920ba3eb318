"""The wall of a real server over real machines: what a session reaches, what is seen of it, and
that it stays so over pauses, forks and a killed server."""

import asyncio
import json
from typing import Any

import httpx
import pytest

from tests.machine.conftest import Start
from tests.machine.serving import a_server
from torpor.lab.server import Server
from torpor.network.link import probe

pytestmark = pytest.mark.machine

SESSIONS = "/v2/agents/sessions"
ASK = """
exec 3<>"/dev/tcp/$0/$1" || exit 7
printf 'GET /health HTTP/1.1\\r\\nHost: %s\\r\\nConnection: close\\r\\n\\r\\n' "$0" >&3
cat <&3
"""
"""A program in the machine: asks a name and a port, and says what it gets; 7 if it is refused."""
OWN = ("gateway.torpor.internal", "80")


async def asked(client: httpx.AsyncClient, session: str, name: str, port: str) -> str:
    """Return what a machine gets where it asks."""
    argv = ["bash", "-c", ASK, name, port]
    answer = await client.post(f"{SESSIONS}/{session}/sandbox/exec", json={"argv": argv})
    assert answer.status_code == 200, answer.text
    said = answer.json()
    return "refused" if said["exit_code"] == 7 else str(said["stdout"])


async def made(client: httpx.AsyncClient, **wanted: Any) -> str:
    said = {"idle_timeout": 0, **wanted}
    answer = await client.post(SESSIONS, params={"wait": "ready"}, json=said)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["session"]["session_id"])


async def denied(client: httpx.AsyncClient, session: str) -> list[dict[str, Any]]:
    where = f"{SESSIONS}/{session}/egress/decisions"
    answer = await client.get(where, params={"allowed": "false"})
    return list(answer.json()["decisions"])


def test_a_session_is_kept_to_its_policy_by_itself_its_forks_and_the_next_server(
    start: Start,
) -> None:
    if not asyncio.run(probe()).works:
        pytest.skip("this host cannot build links")
    with a_server(start) as server:
        asyncio.run(_through_its_life(server))


def _client(server: Server) -> httpx.AsyncClient:
    shown = {"authorization": f"Bearer {server.token}"}
    return httpx.AsyncClient(base_url=server.url, headers=shown, timeout=120.0)


async def _through_its_life(server: Server) -> None:
    async with _client(server) as client:
        session = await made(client, egress=["good.test"])
        own = await asked(client, session, *OWN)
        assert "200" in own.splitlines()[0]
        assert session in own  # whose wire it is
        assert await asked(client, session, "evil.test", "443") == "refused"
        await asyncio.sleep(1)
        found = await denied(client, session)
        assert [(each["host"], each["add"]) for each in found[:1]] == [("evil.test", "evil.test")]
        assert (await client.post(f"{SESSIONS}/{session}/pause")).status_code == 204
        assert session in await asked(client, session, *OWN)  # which wakes it
        forked = await client.post(f"{SESSIONS}/{session}/fork", json={"count": 1})
        child = forked.json()["sessions"][0]["session_id"]
        assert child in await asked(client, child, *OWN)  # and not its parent
        assert await asked(client, child, "evil.test", "443") == "refused"
    await server.kill()
    await server.start()
    async with _client(server) as client:
        assert session in await asked(client, session, *OWN)
        assert await asked(client, session, "other.test", "443") == "refused"
        await asyncio.sleep(1)
        assert (await denied(client, session))[0]["host"] == "other.test"
        changed = await client.patch(f"{SESSIONS}/{session}/egress", json={"policy": "none"})
        assert json.loads(changed.text)["egress"]["mode"] == "none"
        for each in (session, child):
            assert (await client.delete(f"{SESSIONS}/{each}")).status_code == 204
