"""A host of machines that are files and have files: those of a session lie in a directory of it.

They come and go piece by piece, each step as long as the host's are, so that a program that brings
or fetches them can be killed in the middle. A machine that is gone answers nothing any more.
"""

import asyncio
import os
from collections.abc import AsyncGenerator, AsyncIterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.sessions.world import WorldHost
from torpor.sessions.hosts import SESSION
from torpor.vm import ChannelLostError, GuestError

PIECE = 1 << 10


class FilingHost(WorldHost):
    """A world in which the agents of machines know about files."""

    def __init__(self, root: Path, step: float = 0.0) -> None:
        super().__init__(root, step)
        self.written: list[bytes] = []
        """What was put in its place, each time."""

    def home(self, session: str) -> Path:
        """Return the directory that is the root of a session's machine."""
        return self.root / "homes" / session

    async def agent(self, machine: str) -> Any:
        await super().agent(machine)
        session = self._read("machines", machine)["labels"][SESSION]
        return SimpleNamespace(files=Filing(self, machine, self.home(session)))


class Filing:
    """The files of one machine."""

    def __init__(self, host: FilingHost, machine: str, home: Path) -> None:
        self._host = host
        self._machine = machine
        self._home = home
        home.mkdir(parents=True, exist_ok=True)

    def _at(self, path: bytes) -> Path:
        return self._home / os.fsdecode(path).lstrip("/")

    async def _step(self) -> None:
        await asyncio.sleep(self._host.step)
        if self._machine not in self._host.machines():
            raise ChannelLostError("The machine was ended.")

    async def status(self, path: bytes, *, follow: bool, user: str = "0") -> Any:
        await self._step()
        file = self._at(path)
        if not file.exists():
            return None
        kind = "directory" if file.is_dir() else "file"
        return SimpleNamespace(type=kind, size=file.stat().st_size)

    async def make_directory(self, path: bytes, *, mode: int) -> None:
        await self._step()
        self._at(path).mkdir(mode=mode)

    async def change(self, path: bytes, *, owner: str) -> None:
        await self._step()

    async def move(self, path: bytes, to: bytes, *, replace: bool = True) -> None:
        await self._step()
        if not replace and self._at(to).exists():
            raise GuestError("EEXIST", "it is there")
        self._at(path).rename(self._at(to))

    async def remove(self, path: bytes) -> None:
        await self._step()
        self._at(path).rmdir()

    async def write(
        self,
        path: bytes,
        data: AsyncIterable[bytes],
        *,
        parents: bool,
        atomic: bool,
        part: str,
        user: str,
    ) -> int:
        assert parents
        assert atomic
        target = self._at(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        beside = target.parent / f".torpor-{part}"
        size = 0
        try:
            with beside.open("wb") as file:
                async for piece in data:
                    for start in range(0, len(piece), PIECE):
                        await self._step()
                        size += file.write(piece[start : start + PIECE])
            await self._step()
            if target.is_dir():
                raise GuestError("EISDIR", "it is a directory")
            beside.rename(target)
        except BaseException:
            beside.unlink(missing_ok=True)
            raise
        self._host.written.append(path)
        return size

    async def read_pieces(self, path: bytes, *, user: str) -> AsyncGenerator[bytes, None]:
        with self._at(path).open("rb") as file:
            while piece := file.read(PIECE):
                await self._step()
                yield piece
