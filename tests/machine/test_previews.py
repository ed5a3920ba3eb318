"""Previews of real machines: woken by a request, the same after a pause, a rollback and a kill of
the server."""

import asyncio
import hashlib
import socket
from collections.abc import Iterator

import httpx
import pytest

from tests.machine.conftest import Start
from tests.machine.serving import a_server, destroy_all, status, until
from torpor.client import Client
from torpor.lab.server import Server

pytestmark = pytest.mark.machine

SERVE = "mkdir -p /srv/www; echo one > /srv/www/page; exec python3 -m http.server 8000 -d /srv/www"
DATA = "head -c 8000000 /dev/urandom > /srv/www/data; sha256sum /srv/www/data"


@pytest.fixture
def server(start: Start) -> Iterator[Server]:
    """A server with previews."""
    with socket.create_server(("127.0.0.1", 0)) as free:  # it has the same one after a kill
        port = free.getsockname()[1]
    with a_server(start, preview_listen=f"127.0.0.1:{port}") as served:
        yield served


def browser(url: str, **headers: str) -> httpx.Client:
    """Return a client whose paths are those of a preview."""
    found = httpx.URL(url)
    host = f"{found.host}:{found.port}"
    return httpx.Client(
        base_url=f"http://127.0.0.1:{found.port}",
        headers={"host": host, **headers},
        timeout=120,
        trust_env=False,
    )


def test_a_page_of_a_session_is_there_whenever_it_is_asked_for(server: Server) -> None:
    with server.waiting_client() as client:
        session = client.create_session("web", idle_timeout=0, wait=True)
        client.start_exec(session.id, SERVE)
        until(lambda: _listens(client, session.id))
        url = client.get_ingress(session.id).url
        link = client.create_preview(session.id, 8000, lifetime_seconds=3600).link_url or ""
        before = client.create_checkpoint(session.id, label="before")
        with browser(url) as looking:
            assert looking.get("/page").status_code == 401
            assert looking.get(link.partition("/?")[2].join(("/?", ""))).status_code == 303
            assert looking.get("/page").text == "one\n"
            client.pause_session(session.id)
            assert looking.get("/page").text == "one\n"
            assert status(client, session.id) == "READY"
            said = client.run(session.id, DATA).stdout.decode()
            assert hashlib.sha256(looking.get("/data").content).hexdigest() == said.split()[0]
            client.run(session.id, "echo two > /srv/www/page")
            assert looking.get("/page").text == "two\n"
            client.roll_back(session.id, before.id)
            assert looking.get("/page").text == "one\n"
            client.pause_session(session.id)
            asyncio.run(server.kill())
            asyncio.run(server.start())
            assert looking.get("/page").text == "one\n"
        (child,) = client.fork_session(session.id).sessions
        with browser(client.get_ingress(child.id).url) as looking:
            assert looking.get("/page").status_code == 401
            show = {"torpor-authorization": f"Bearer {server.token}"}
            assert looking.get("/page", headers=show).text == "one\n"
        destroy_all(client)


def _listens(client: Client, session: str) -> bool:
    line = "exec 3<>/dev/tcp/127.0.0.1/8000"
    return client.run(session, ["bash", "-c", line]).status == 0
