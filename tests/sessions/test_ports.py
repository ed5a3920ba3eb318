"""Connections to ports, below HTTP: attached again by whoever finds them lost first.

The machines are agents on this host, whose loopback is theirs.
"""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.api.guests import GuestHost
from tests.guest.conftest import server
from tests.sessions.conftest import ANN
from torpor.sessions import NewSession, Sessions, TransferLimits
from torpor.store.database import Database
from torpor.vm import GuestError


class Guests:
    """A service whose machines have agents, and a session of it."""

    def __init__(self, host: GuestHost, sessions: Sessions, session: str) -> None:
        self.host, self.sessions, self.session = host, sessions, session

    async def machine(self) -> str:
        """Return the machine that runs the session."""
        return (await self.sessions.get(self.session)).machine or ""


@pytest.fixture
async def guests(tmp_path: Path, database_url: str) -> AsyncIterator[Guests]:
    database = await Database.open(database_url)
    host = GuestHost(tmp_path / "world")
    sessions = await Sessions.open(database, host, transfers=TransferLimits(tmp_path / "transfers"))
    made = await sessions.create(NewSession(name="one"), ANN)
    await sessions.ready(made.id, 10)
    yield Guests(host, sessions, made.id)
    await sessions.close()
    await host.close()
    await database.close()


async def shout(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer each piece in capitals."""
    while data := await reader.read(1 << 16):
        writer.write(data.upper())
        await writer.drain()


async def test_a_connection_says_which_machine_it_goes_to(guests: Guests) -> None:
    async with server(shout) as port:
        connection = await guests.sessions.ports.connect(guests.session, port, ANN)
        first = await guests.machine()
        assert (connection.machine, connection.port) == (first, port)
        await guests.sessions.pause(guests.session, ANN)
        await connection.write(b"hello")
        assert await asyncio.wait_for(connection.read(), 10) == b"HELLO"
        assert connection.machine == await guests.machine() != first
        connection.close()


async def test_reader_and_writer_that_both_find_it_lost_attach_it_once(guests: Guests) -> None:
    async with server(shout) as port:
        connection = await guests.sessions.ports.connect(guests.session, port, ANN)
        for times in range(5):
            reading = asyncio.create_task(connection.read())
            await asyncio.sleep(0)
            guests.host.lose_channel(await guests.machine())
            await asyncio.wait_for(connection.write(b"again%d" % times), 10)
            assert await asyncio.wait_for(reading, 10) == b"AGAIN%d" % times
        connection.close()


async def test_a_writer_alone_attaches_it_when_nobody_reads(guests: Guests) -> None:
    taken = asyncio.Event()

    async def take(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        await reader.readexactly(1_000_000)
        taken.set()

    async with server(take) as port:
        connection = await guests.sessions.ports.connect(guests.session, port, ANN)
        guests.host.lose_channel(await guests.machine())
        await asyncio.wait_for(connection.write(bytes(1_000_000)), 20)
        await asyncio.wait_for(taken.wait(), 10)
        connection.close()


async def test_a_machine_that_knows_it_no_more_is_a_reset(guests: Guests) -> None:
    async with server(shout) as port:
        connection = await guests.sessions.ports.connect(guests.session, port, ANN)
        await guests.host.boot(await guests.machine())
        with pytest.raises(GuestError) as reset:
            await asyncio.wait_for(connection.read(), 10)
        assert reset.value.code == "ECONNRESET"
        with pytest.raises(GuestError):
            await asyncio.wait_for(connection.write(b"x"), 10)
