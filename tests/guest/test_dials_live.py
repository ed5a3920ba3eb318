"""Connections to ports under a real agent, see conftest.py."""

import asyncio
import hashlib
import os
import socket

import pytest

from tests.guest.conftest import Guest, server
from torpor.guest import dials
from torpor.vm import ChannelLostError, Command, Connection, GuestError


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    writer.write(b"goodbye")
    writer.close()


async def read_all(connection: Connection) -> bytes:
    parts = []
    async with asyncio.timeout(30):
        while data := await connection.read():
            parts.append(data)
    return b"".join(parts)


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
async def test_bytes_go_both_ways_and_each_side_can_end_first(guest: Guest, address: str) -> None:
    agent = await guest.attach()
    async with server(echo, address) as port:
        connection = await agent.dial(port)
        await connection.write(b"hello")
        assert await connection.read() == b"hello"
        await connection.close_stdin()  # the server is told, and answers once more
        assert await read_all(connection) == b"goodbye"
    await agent.channel.close()


async def test_a_megabyte_each_way_is_the_same(guest: Guest) -> None:
    agent = await guest.attach()
    data = os.urandom(1 << 20)
    async with server(echo) as port:
        connection = await agent.dial(port)

        async def send() -> None:
            await connection.write(data)
            await connection.close_stdin()

        _, got = await asyncio.gather(send(), read_all(connection))
    assert hashlib.sha256(got).digest() == hashlib.sha256(data + b"goodbye").digest()
    await agent.channel.close()


async def test_a_connection_survives_a_lost_channel(guest: Guest) -> None:
    agent = await guest.attach()
    async with server(echo) as port:
        connection = await agent.dial(port)
        await connection.write(b"before ")
        await agent.channel.close()
        again = await guest.attach()
        await connection.attach(again.channel)
        await connection.write(b"after")
        await connection.close_stdin()
        assert await read_all(connection) == b"before aftergoodbye"
    await again.channel.close()


async def test_nobody_listens(guest: Guest) -> None:
    agent = await guest.attach()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, but not listening
        port = taken.getsockname()[1]
        with pytest.raises(GuestError) as refused:
            await agent.dial(port)
    assert refused.value.code == "ECONNREFUSED"
    assert str(port) in refused.value.message
    await agent.channel.close()


@pytest.mark.parametrize("port", [0, -1, 1 << 16, 1 << 80])
async def test_what_is_no_port_is_refused(guest: Guest, port: int) -> None:
    agent = await guest.attach()
    with pytest.raises(GuestError):
        await agent.dial(port)
    await agent.channel.close()


async def test_whoever_leaves_closes_the_connection(guest: Guest) -> None:
    agent = await guest.attach()
    before = await guest.descriptors()
    closed = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        closed.set()
        writer.close()

    async with server(serve) as port:
        connection = await agent.dial(port)
        connection.close()
        async with asyncio.timeout(10):
            await closed.wait()
    with pytest.raises(ChannelLostError):
        await connection.read()
    await guest.closes_all_but(before)
    await agent.channel.close()


async def test_a_server_that_ends_first_is_told_with_all_it_sent(guest: Guest) -> None:
    agent = await guest.attach()
    before = await guest.descriptors()

    async def serve(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"x" * 300_000)
        writer.close()

    async with server(serve) as port:
        connection = await agent.dial(port)
        assert await read_all(connection) == b"x" * 300_000
        with pytest.raises(GuestError) as ended:
            await connection.write(b"too late" * 100_000)
        assert ended.value.code == "EPIPE"
    await guest.closes_all_but(before)
    await agent.channel.close()


async def test_connections_do_not_push_out_what_commands_have_said(guest: Guest) -> None:
    agent = await guest.attach()
    running = await agent.start(Command(("echo", "remembered")))
    await running.wait()
    async with server(echo) as port:
        for _ in range(100):
            connection = await agent.dial(port)
            await connection.close_stdin()
            await read_all(connection)
    again = await agent.attach(running.id)
    assert await again.collect() == (b"remembered\n", b"")
    await agent.channel.close()


async def test_there_is_a_limit_and_it_is_told(guest: Guest) -> None:
    agent = await guest.attach()
    with socket.create_server(("127.0.0.1", 0), backlog=2 * dials.MOST) as listening:
        port = listening.getsockname()[1]
        opened = [await agent.dial(port) for _ in range(dials.MOST)]
        with pytest.raises(GuestError) as refused:
            await agent.dial(port)
        assert refused.value.code == "EMFILE"
        opened[0].close()
        await agent.channel.request("ping")
        await agent.dial(port)
    await agent.channel.close()
