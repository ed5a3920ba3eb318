"""Bytes between a machine and the other end of its connection, both ways, with what is counted."""

import asyncio
import contextlib
import socket

from torpor.network.flow import Flow
from torpor.network.readiness import readable, writable
from torpor.network.turns import PIECE

LINGER_SECONDS, LINGER_BYTES = 2.0, 1 << 20
"""How much is still taken from a machine that sends more than anybody reads, so that it gets what
was said to it and no reset before that."""


class NoMoreError(Exception):
    """The other side takes no more. It may still have something to say."""


async def relay(machine: socket.socket, upstream: socket.socket, flow: Flow) -> None:
    """Carry bytes until both sides have said that they are done. Each may end its own direction
    before. Raises OSError if one of them is reset, :exc:`CutError` if a limit is met."""
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(downward(upstream, machine, flow))
        await upward(machine, upstream, flow)


async def upward(machine: socket.socket, upstream: socket.socket, flow: Flow) -> None:
    """Carry what the machine says, to its end."""
    try:
        while await carry_up(machine, upstream, flow):
            pass
    except NoMoreError:
        flow.unread = True
    else:
        end_up(upstream, flow)


def end_up(upstream: socket.socket, flow: Flow) -> None:
    """Say that the machine is done."""
    with contextlib.suppress(OSError):  # it may have gone, having said all
        upstream.shutdown(socket.SHUT_WR)
    flow.half_closed()


async def carry_up(
    machine: socket.socket, upstream: socket.socket, flow: Flow, most: int = PIECE
) -> int:
    """Carry one piece of what the machine says, of ``most`` bytes. Returns how many there were, 0
    at the end. Raises OSError if the machine has reset it, :exc:`NoMoreError` if the other side
    takes no more."""
    while True:
        await flow.turn()
        piece = flow.buffer[:most]
        try:
            count = machine.recv_into(piece)
        except BlockingIOError:
            await readable(machine)
            continue
        if count:
            flow.sent(count)
            await send_up(upstream, piece[:count])
            if flow.owes:
                await flow.pay()
        return count


async def downward(upstream: socket.socket, machine: socket.socket, flow: Flow) -> None:
    """Carry what the other side says, to its end."""
    await carry_down(upstream, machine, flow)
    await end_down(machine, flow)


async def carry_down(upstream: socket.socket, machine: socket.socket, flow: Flow) -> None:
    """Carry what the other side says, to its end, and do not say that it has ended. While the
    machine sleeps nothing is read but the one piece that waits to be written to it."""
    while True:
        await flow.turn()
        piece = flow.buffer
        try:
            count = upstream.recv_into(piece)
        except BlockingIOError:
            await readable(upstream)
            continue
        if not count:
            return
        flow.received(count)
        await send_down(machine, piece[:count], flow)
        if flow.owes:
            await flow.pay()


async def end_down(machine: socket.socket, flow: Flow) -> None:
    """Say that the other side is done."""
    await flow.hold.awake()
    with contextlib.suppress(OSError):
        machine.shutdown(socket.SHUT_WR)
    flow.half_closed()


async def send_up(upstream: socket.socket, piece: memoryview | bytes) -> None:
    """Send all of a piece. It may lie in the buffer that all share, and is copied before anybody
    else has a turn. Raises :exc:`NoMoreError`."""
    try:
        try:
            sent = upstream.send(piece)
        except BlockingIOError:
            sent = 0
        if sent == len(piece):
            return
        left = memoryview(bytes(piece[sent:]))
        while left:
            await writable(upstream)
            with contextlib.suppress(BlockingIOError):
                left = left[upstream.send(left) :]
    except OSError as error:
        raise NoMoreError from error


async def send_down(machine: socket.socket, piece: memoryview | bytes, flow: Flow) -> None:
    """Send all of a piece to the machine, and nothing of it while it sleeps."""
    hold = flow.hold
    if not hold.asleep():
        try:
            sent = machine.send(piece)
        except BlockingIOError:
            sent = 0
        if sent == len(piece):
            return
        piece = piece[sent:]
    left = memoryview(bytes(piece))
    while left:
        if hold.asleep():
            await hold.awake()
        else:
            await writable(machine)
            if hold.asleep():
                continue
            with contextlib.suppress(BlockingIOError):
                left = left[machine.send(left) :]


async def linger(machine: socket.socket) -> None:
    """Have a machine that sends more than was read get what was said to it, and then an end."""
    with contextlib.suppress(OSError, TimeoutError):
        machine.shutdown(socket.SHUT_WR)
        async with asyncio.timeout(LINGER_SECONDS):
            left = LINGER_BYTES
            while left > 0:
                try:
                    data = machine.recv(64 << 10)
                except BlockingIOError:
                    await readable(machine)
                    continue
                if not data:
                    return
                left -= len(data)
