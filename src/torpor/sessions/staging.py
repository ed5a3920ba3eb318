"""What is on its way into sessions and out of them, as it lies on the server's disk meanwhile.

Each transfer has a directory: an upload the parts that have come, each under its number and its
SHA-256, a download one ``payload``. A file has its name only when it is whole and on the disk; the
beginning of one has a name that begins with a dot, and is nobody's after a restart.
"""

import asyncio
import errno
import hashlib
import os
import secrets
import shutil
from collections.abc import AsyncGenerator, Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import ParamSpec, Self, TypeVar

from torpor.store.driver import finished
from torpor.store.records import Part
from torpor.vm.sizes import free_bytes

P = ParamSpec("P")
T = TypeVar("T")

PIECE = 1 << 20
"""Bytes that are read or written at once, in a thread."""
RESERVE = 1 << 30
"""Bytes of the disk that stay free whatever comes: others have to write too."""
LOOK_EVERY = 64 << 20
"""After how many bytes it is seen anew whether there is still space."""
PAYLOAD = "payload"
_FLAGS = os.O_CLOEXEC | os.O_NOFOLLOW


async def aside(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Do something that blocks in a thread, to its end: what it works on may be closed then."""
    loop = asyncio.get_running_loop()
    return await finished(loop.run_in_executor(None, lambda: call(*args, **kwargs)))


def part_name(part: Part) -> str:
    """Return the name of the file that a part is in."""
    return f"{part.number}-{part.sha256}"


class Incoming:
    """A file that is being written. ``size`` and ``sha256`` are of what has come so far. A context:
    what was not kept at its end is removed."""

    def __init__(self, directory: Path) -> None:
        self.size = 0
        self._directory = directory
        self._beginning = directory / f".{secrets.token_hex(8)}"
        self._fd = -1
        self._digest = hashlib.sha256()
        self._waiting = bytearray()
        self._looked = 0

    @property
    def sha256(self) -> str:
        """The SHA-256, in hexadecimal digits."""
        return self._digest.hexdigest()

    async def __aenter__(self) -> Self:
        try:
            await aside(self._open)
        except BaseException:
            await aside(self._remove)
            raise
        return self

    async def __aexit__(self, *_error: object) -> None:
        await aside(self._remove)

    async def write(self, data: bytes) -> None:
        """Write some more. Raises OSError, of a full disk before it is quite full."""
        self.size += len(data)
        self._waiting += data
        if len(self._waiting) >= PIECE:
            await aside(self._flush)

    async def keep(self, name: Callable[[], str]) -> None:
        """See that all of it is on the disk, and give it the name that ``name`` returns then."""
        await aside(self._keep, name)

    def _open(self) -> None:
        for directory in (self._directory.parent, self._directory):
            if not directory.is_dir():
                directory.mkdir(mode=0o700, exist_ok=True)
                _sync(directory.parent)
        self._fd = os.open(self._beginning, _FLAGS | os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)

    def _flush(self) -> None:
        waiting = memoryview(bytes(self._waiting))
        self._waiting.clear()
        if self.size - self._looked >= LOOK_EVERY:
            self._looked = self.size
            if free_bytes(self._directory) < RESERVE:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._directory))
        self._digest.update(waiting)
        while waiting:
            waiting = waiting[os.write(self._fd, waiting) :]

    def _keep(self, name: Callable[[], str]) -> None:
        self._flush()
        os.fdatasync(self._fd)
        self._beginning.rename(self._directory / name())
        _sync(self._directory)

    def _remove(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._beginning.unlink(missing_ok=True)


@dataclass(frozen=True)
class Staging:
    """The directory with all of it, which is made when it is needed."""

    directory: Path

    def receive(self, transfer: str) -> Incoming:
        """Return a new file of a transfer."""
        return Incoming(self.directory / transfer)

    async def part_pieces(self, part: Part) -> AsyncGenerator[bytes, None]:
        """Yield a part. Raises OSError if it is gone."""
        file = self.directory / part.transfer / part_name(part)
        async for piece in _pieces(file, 0, part.size):
            yield piece

    def payload_pieces(self, transfer: str, start: int, end: int) -> AsyncGenerator[bytes, None]:
        """Yield what a download has brought, bytes ``start`` to ``end``. Raises OSError if it is
        gone."""
        return _pieces(self.directory / transfer / PAYLOAD, start, end)

    async def has_payload(self, transfer: str) -> bool:
        """Return whether what a download has brought is still there."""
        return await aside((self.directory / transfer / PAYLOAD).exists)

    async def names(self, transfer: str) -> set[str]:
        """Return the names of the files that there are of a transfer."""
        return set(await aside(_names, self.directory / transfer))

    async def transfers(self) -> list[str]:
        """Return the transfers of which there is something."""
        return await aside(_names, self.directory)

    async def remove(self, transfer: str) -> None:
        """Remove all that there is of a transfer."""
        await aside(shutil.rmtree, self.directory / transfer, ignore_errors=True)

    async def drop(self, transfer: str, name: str) -> None:
        """Remove one file of a transfer."""
        file = self.directory / transfer / name
        await aside(lambda: file.unlink(missing_ok=True))

    async def keep_only(self, transfer: str, names: Collection[str]) -> None:
        """Remove the files of a transfer that have none of these names."""

        def keep() -> None:
            for name in set(_names(self.directory / transfer)) - set(names):
                with suppress(FileNotFoundError):
                    (self.directory / transfer / name).unlink()

        await aside(keep)

    async def free(self) -> int:
        """Return how many bytes may be taken beyond what stays free."""

        def free() -> int:
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            return free_bytes(self.directory) - RESERVE

        return await aside(free)


def _sync(directory: Path) -> None:
    fd = os.open(directory, _FLAGS | os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _names(directory: Path) -> list[str]:
    try:
        return [each.name for each in directory.iterdir()]
    except FileNotFoundError:
        return []


async def _pieces(file: Path, start: int, end: int) -> AsyncGenerator[bytes, None]:
    opened: list[int] = []
    try:
        await aside(lambda: opened.append(os.open(file, _FLAGS | os.O_RDONLY)))
        while start < end:
            piece = await aside(os.pread, opened[0], min(PIECE, end - start), start)
            if not piece:
                raise OSError(errno.EIO, "It is shorter than it was", str(file))
            yield piece
            start += len(piece)
    finally:
        for fd in opened:
            os.close(fd)
