"""Looking at what comes without taking it: in pieces, to an end, and not all the time."""

import asyncio
import socket

import pytest

from torpor.network.peek import peek


@pytest.fixture
def ends() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        one = socket.create_connection(listening.getsockname())
        other, _ = listening.accept()
    for each in (one, other):
        each.setblocking(False)
        each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return one, other


async def test_what_was_looked_at_is_still_there_and_wakes_nobody_again(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    looks: list[tuple[int, bool]] = []

    def find(data: bytes, ended: bool) -> bytes | None:
        looks.append((len(data), ended))
        return data if data.endswith(b"!") else None

    one, other = ends
    with one, other:
        peeking = asyncio.create_task(peek(other, find, 1000))
        for byte in b"hello, wall!":
            one.send(bytes([byte]))
            await asyncio.sleep(0.02)
        assert await peeking == b"hello, wall!"
        # Once for each byte, and now and then once more; not all the time between them.
        assert 2 <= len(looks) <= 3 * len(b"hello, wall!")
        assert not any(ended for _, ended in looks)
        assert other.recv(100) == b"hello, wall!"
        assert other.getsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT) == 1


@pytest.mark.parametrize("said", [b"", b"half"])
async def test_an_end_is_noticed_also_behind_what_lies_there(
    said: bytes, ends: tuple[socket.socket, socket.socket]
) -> None:
    one, other = ends
    with one, other:
        if said:
            one.send(said)
        peeking = asyncio.create_task(
            peek(other, lambda data, ended: data + b"." if ended else None, 1000)
        )
        await asyncio.sleep(0.05)
        assert not peeking.done()
        one.shutdown(socket.SHUT_WR)
        async with asyncio.timeout(5):
            assert await peeking == said + b"."


async def test_there_is_an_end_to_looking(ends: tuple[socket.socket, socket.socket]) -> None:
    one, other = ends
    with one, other:
        one.send(bytes(100))
        async with asyncio.timeout(5):
            assert await peek(other, lambda data, ended: None, 64) is None
            assert await peek(other, lambda data, ended: len(data) if ended else None, 64) == 64
