"""Servers for tests, each with a home of its own, and what tests ask of them."""

import asyncio
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.machine.conftest import Start
from torpor.client import Client
from torpor.lab.remains import machine_processes, remains
from torpor.lab.server import Server, end_machines

COUNTER = "n=0; while :; do n=$((n+1)); echo $n >> /root/count; sleep 0.05; done"


@contextmanager
def a_server(
    start: Start,
    home: Path | None = None,
    within: Sequence[str] = (),
    authority: Path | None = None,
    **settings: int | str,
) -> Iterator[Server]:
    """A server that ends well, with nothing running. ``home`` is a new directory if none is
    given; what runs in it at the end is ended, and it is removed."""
    directory = home or Path(tempfile.mkdtemp(prefix="torpor-test-", dir="/var/tmp"))
    server = Server(directory, start.maker.cache, settings, within, authority)
    try:
        asyncio.run(server.start())
        yield server
        asyncio.run(server.stop())
        assert machine_processes(directory) == {}
    finally:
        asyncio.run(_ended(server, start))
        shutil.rmtree(directory, ignore_errors=True)


async def _ended(server: Server, start: Start) -> None:
    await server.kill()
    await end_machines(start.maker, server.home)


def destroy_all(client: Client) -> None:
    for session in client.list_sessions(status="ALL", limit=200).items:
        if session.status != "DESTROYED":
            client.destroy_session(session.id)


def left_over(server: Server) -> list[str]:
    async def look() -> list[str]:
        async with server.client() as client:
            return await remains(server, client)

    return asyncio.run(look())


def until(what: Callable[[], bool], seconds: float = 60.0) -> None:
    """Wait until something is so."""
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, "it did not come to be so in time"
        time.sleep(0.1)


def numbers(client: Client, session: str, file: str = "/root/count") -> list[int]:
    return [int(line) for line in client.read_file(session, file).split()]


def status(client: Client, session: str) -> str:
    return client.get_session(session).status


def counting(client: Client, session: str) -> None:
    """Start a counter in a session."""
    client.start_exec(session, COUNTER)
    until(lambda: client.run(session, "test -s /root/count").status == 0)


def goes_on(client: Client, session: str) -> int:
    """Check that a counter counts on without a gap, and return where it was at first."""
    before = numbers(client, session)
    assert before == list(range(1, len(before) + 1))
    until(lambda: len(numbers(client, session)) > len(before))
    return len(before)
