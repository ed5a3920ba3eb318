"""Large files into real machines and out of them, over a pause and a server that is killed."""

import asyncio
import hashlib
import os
from collections.abc import Iterator

import pytest

from tests.machine.conftest import Start
from tests.machine.serving import a_server, destroy_all, status, until
from torpor.client import Client, Transfer
from torpor.lab.server import Server

pytestmark = pytest.mark.machine

DATA = os.urandom(20 << 20)
SHA256 = hashlib.sha256(DATA).hexdigest()
NAME = "caf\udce9 \n%"
SHOWN = "caf\\xe9 \n%"
"""A name that is no UTF-8, and as lists show it."""


@pytest.fixture
def server(start: Start) -> Iterator[Server]:
    with a_server(start) as opened:
        yield opened
        with opened.waiting_client() as client:
            destroy_all(client)
        assert list((opened.home / "transfers").iterdir()) == []


def upload(client: Client, session: str, path: str) -> Transfer:
    """Upload all, and commit it."""
    made = client.create_upload(session, path, size=len(DATA))
    assert made.part_size == 8 << 20
    for number, url in client.get_part_urls(session, made.id, [1, 2, 3]).items():
        start = (number - 1) * made.part_size
        client.put_part(url, DATA[start : start + made.part_size])
    client.commit_upload(session, made.id, sha256=SHA256)
    return made


def completed(client: Client, session: str, transfer: str) -> Transfer:
    """Return a transfer once it is completed."""
    until(lambda: client.get_transfer(session, transfer).over, 120)
    found = client.get_transfer(session, transfer)
    assert found.status == "completed", found.error
    assert found.sha256 == SHA256
    return found


def on_its_way(client: Client, session: str, transfer: str) -> None:
    """Wait until something of a transfer is in the machine, and not all of it."""
    until(lambda: client.get_transfer(session, transfer).done > 0)
    assert client.get_transfer(session, transfer).status == "in_progress"


def sums(client: Client, session: str) -> dict[str, str]:
    """Return the SHA-256 of each file in the workspace, as the machine finds them."""
    entries = client.list_files(session, "/workspace", recursive=True, sha256=True).items
    return {each.path: each.sha256 or "" for each in entries}


def test_a_pause_and_a_killed_server_in_the_middle_are_no_matter(server: Server) -> None:
    with server.waiting_client() as client:
        one = client.create_session("one", wait=True).id
        first = upload(client, one, f"/workspace/{NAME}")
        on_its_way(client, one, first.id)
        client.pause_session(one)
        completed(client, one, first.id)
        assert status(client, one) == "READY"
        second = upload(client, one, "second")
        on_its_way(client, one, second.id)
        asyncio.run(server.kill())
        asyncio.run(server.start())
        completed(client, one, second.id)
        assert sums(client, one) == {SHOWN: SHA256, "second": SHA256}
        assert client.get_file_status(one, "/workspace").mode & 0o777 == 0o755

        client.pause_session(one)
        third = client.create_download(one, f"/workspace/{NAME}")
        on_its_way(client, one, third.id)
        asyncio.run(server.kill())
        asyncio.run(server.start())
        ready = completed(client, one, third.id)
        assert b"".join(client.read_download_pieces(ready.url or "")) == DATA
