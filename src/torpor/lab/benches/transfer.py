"""Files and archives on their way in and out, beside what the same channel carries at best."""

import io
import os
import tarfile
from collections.abc import AsyncIterator

from torpor.lab.benches.group import Group, Stopwatch, said
from torpor.lab.figures import Figure, Notebook
from torpor.lab.laboratory import Laboratory
from torpor.vm import Command, GuestAgent, GuestError, Output

CARRIED = 32
"""MiB of random bytes in each direction, in one file."""
PIECE = 1 << 20
FILE, TREE = "/srv/bench/file", "/srv/bench"

FIGURES = (
    Figure("channel_out_32mib", "s", "a process writes 32 MiB from its memory to its output"),
    Figure("channel_in_32mib", "s", "a process reads 32 MiB of input and drops it"),
    Figure("file_read_32mib", "s", "a file of 32 MiB is read"),
    Figure("file_write_32mib", "s", "a file of 32 MiB is written"),
    Figure("tar_out_32mib", "s", "a directory with that file is packed into an archive"),
    Figure("tar_in_32mib", "s", "an archive of that file is unpacked"),
)

WRITES = """
import os, sys
data = memoryview(os.urandom(1 << 20))
print("ready", flush=True)
sys.stdin.readline()
for _ in range(int(sys.argv[1])):
    at = 0
    while at < len(data):
        at += os.write(1, data[at:])
"""
READS = """
import os
print("ready", flush=True)
while os.read(0, 1 << 20):
    pass
"""


async def measure(lab: Laboratory, runs: int, book: Notebook) -> None:
    """Carry the same amount in six ways, in one machine, after a first round that does not
    count."""
    machine = await lab.machine("bench")
    agent = machine.agent
    data = os.urandom(CARRIED << 20)
    for counts in (False, *(True for _ in book.runs(runs))):
        seconds = {
            "channel_out_32mib": await channel_out(agent, CARRIED),
            "channel_in_32mib": await channel_in(agent, data),
            "file_write_32mib": await _file_write(agent, data),
            "file_read_32mib": await _file_read(agent, data),
            "tar_out_32mib": await _tar_out(agent),
            "tar_in_32mib": await _tar_in(agent, data),
        }
        for name, value in seconds.items() if counts else ():
            book.note(name, value)
        await agent.files.remove(TREE, recursive=True)
    await lab.host.end(machine)


async def channel_out(agent: GuestAgent, mib: int) -> float:
    """Have a process write so much from its memory; return the seconds."""
    program = await agent.start(Command(["python3", "-c", WRITES, str(mib)], stdin=True))
    await said(program, "ready")
    clock = Stopwatch()
    await program.write(b"\n")
    size = 0
    async for item in program.output():
        size += len(item.data) if isinstance(item, Output) else 0
    _check(size, mib << 20)
    return clock.seconds()


async def channel_in(agent: GuestAgent, data: bytes, times: int = 1) -> float:
    """Have a process read ``data`` so many times, and drop it; return the seconds."""
    program = await agent.start(Command(["python3", "-c", READS], stdin=True))
    await said(program, "ready")
    clock = Stopwatch()
    for _ in range(times):
        for start in range(0, len(data), PIECE):
            await program.write(data[start : start + PIECE])
    await program.close_stdin()
    ended = await program.wait()
    _check(ended.code, 0)
    return clock.seconds()


async def _file_write(agent: GuestAgent, data: bytes) -> float:
    async def pieces() -> AsyncIterator[bytes]:
        for start in range(0, len(data), PIECE):
            yield data[start : start + PIECE]

    clock = Stopwatch()
    await agent.files.write(FILE, pieces(), parents=True)
    return clock.seconds()


async def _file_read(agent: GuestAgent, data: bytes) -> float:
    clock = Stopwatch()
    size = 0
    async for piece in agent.files.read_pieces(FILE):
        size += len(piece)
    _check(size, len(data))
    return clock.seconds()


async def _tar_out(agent: GuestAgent) -> float:
    clock = Stopwatch()
    packing = await agent.files.pack(TREE)
    async for _ in packing.pieces():
        pass
    _check(packing.report.get("members"), 2)
    return clock.seconds()


async def _tar_in(agent: GuestAgent, data: bytes) -> float:
    text = io.BytesIO()
    with tarfile.open(fileobj=text, mode="w") as archive:
        member = tarfile.TarInfo("unpacked")
        member.size = len(data)
        archive.addfile(member, io.BytesIO(data))
    whole = text.getvalue()
    clock = Stopwatch()
    unpacking = await agent.files.unpack(TREE)
    for start in range(0, len(whole), PIECE):
        await unpacking.write(whole[start : start + PIECE])
    report = await unpacking.finish()
    _check(report.get("members"), 1)
    return clock.seconds()


def _check(seen: object, wanted: object) -> None:
    if seen != wanted:
        raise GuestError("EPROTO", f"{seen} where {wanted} was expected")


GROUP = Group("transfers", FIGURES, measure)
