"""An archive of gibibytes that goes into a machine and out again, while that is frozen."""

import hashlib
import io
import random
import tarfile
from collections.abc import Awaitable, Callable, Iterator

from torpor.images import Report, Step
from torpor.lab.check import Check
from torpor.vm import GuestAgent, Machine, Packing

BLOCK = 1 << 20
FREEZES = 3
"""Freezes in each direction at least, evenly spread."""
DIRECTORY = "/srv/archive"

Cycle = Callable[[Machine], Awaitable[Machine]]
"""Freezes a machine and thaws it."""


async def archived(
    machine: Machine, mib: int, cycle: Cycle, report: Report
) -> tuple[Machine, Check]:
    """Unpack a file of ``mib`` MiB of random bytes, look at it from inside, pack it and compare.

    Returns the machine as it is after the last freeze, and the check.
    """
    step = f"archive of {mib} MiB"
    every = max(1, mib // (FREEZES + 1))
    freezes = 0
    wanted = hashlib.sha256()
    unpacking = await machine.agent.files.unpack(DIRECTORY, parents=True)
    await unpacking.write(_header(mib * BLOCK))
    for number, block in enumerate(_blocks(mib), 1):
        wanted.update(block)
        await unpacking.write(block)
        report(Step(step, number, 2 * mib, "MiB"))
        if number % every == 0 and number < mib:
            machine, freezes = await cycle(machine), freezes + 1
            await unpacking.attach(machine.agent.channel)
    await unpacking.write(bytes(2 * tarfile.BLOCKSIZE))
    await unpacking.finish()
    inside = await _inside(machine.agent)

    packing = await machine.agent.files.pack(DIRECTORY, name=".")
    outside = _Outside(mib * BLOCK)
    told = 0
    while packing.running.exit is None:
        await _take(packing, outside, (told + 1) * every * BLOCK)
        told += 1
        report(Step(step, min(2 * mib, mib + told * every), 2 * mib, "MiB"))
        if packing.running.exit is None:
            machine, freezes = await cycle(machine), freezes + 1
            await packing.attach(machine.agent.channel)
    seen = {"inside": inside, "outside": outside.digest.hexdigest()}
    wrong = [f"{name}: {value}" for name, value in seen.items() if value != wanted.hexdigest()]
    return machine, Check(
        "archive",
        not wrong,
        f"{mib} MiB in an archive have the right SHA-256 inside a machine and outside again",
        "; ".join(wrong) or f"{mib} MiB in and out through {freezes} freezes",
    )


def _blocks(mib: int) -> Iterator[bytes]:
    chance = random.Random(mib)  # noqa: S311  (data, no secret)
    for _ in range(mib):
        yield chance.randbytes(BLOCK)


def _header(size: int) -> bytes:
    member = tarfile.TarInfo("file")
    member.size = size
    return member.tobuf(tarfile.PAX_FORMAT)


async def _inside(agent: GuestAgent) -> str | None:
    async for each in agent.files.list(DIRECTORY, digest=True):
        return each.sha256
    return None


async def _take(packing: Packing, outside: "_Outside", until: int) -> None:
    async for piece in packing.pieces():
        outside.take(piece)
        if outside.received >= until:
            return


class _Outside:
    """Finds the content of the one file in an archive, and its digest, without keeping it."""

    def __init__(self, size: int) -> None:
        self.digest = hashlib.sha256()
        self.received = 0
        self._left = size
        self._start: bytes | None = b""

    def take(self, data: bytes) -> None:
        """Take the next bytes of the archive."""
        self.received += len(data)
        if self._start is not None:
            self._start += data
            if len(self._start) < BLOCK // 4:
                return
            with tarfile.open(fileobj=io.BytesIO(self._start)) as archive:
                file = next(each for each in archive if each.isfile())
            data, self._start = self._start[file.offset_data :], None
        self.digest.update(data[: self._left])
        self._left -= len(data[: self._left])
