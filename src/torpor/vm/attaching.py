"""The way from a machine's directory to its guest agent."""

import os
from collections.abc import Awaitable, Callable
from pathlib import Path

from torpor.vm.agent import GuestAgent
from torpor.vm.channel import Channel
from torpor.vm.errors import ChannelLostError, UnansweredError, VmError
from torpor.vm.holding import Holding
from torpor.vm.launch import AGENT
from torpor.vm.machine_process import MachineProcess
from torpor.vm.qmp import connect_unix

FIRST_TRY = 1 / 3
"""The part of the time for an answer after which we connect anew. A connection that is closed
while the guest sends may leave QEMU's port throttled, with nobody to wake it, until the next one is
closed too (seen with QEMU 7.2; ``hw/char/virtio-console.c``, ``flush_buf``)."""


async def attach_agent(
    directory: Path,
    process: MachineProcess,
    explain: Callable[[VmError], Awaitable[VmError]],
    holding: Holding,
    limit: float,
) -> GuestAgent:
    """Begin a new epoch with the guest agent of a machine. Raises :exc:`ChannelLostError`,
    :exc:`HeldError`, or why the process went."""

    async def connect(seconds: float) -> GuestAgent:
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            channel = Channel(connect_unix(fd, AGENT), explain, holding)
        finally:
            os.close(fd)
        try:
            welcome = await process.or_gone(channel.attach(seconds))
        except BaseException:
            await channel.close()
            raise
        return GuestAgent(channel, welcome)

    try:
        first = limit * FIRST_TRY
        try:
            return await connect(first)
        except UnansweredError:
            return await connect(limit - first)
    except OSError as error:
        name = directory.name
        raise ChannelLostError(f"Machine {name} cannot be reached: {error}.") from error
