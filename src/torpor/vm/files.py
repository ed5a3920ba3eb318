"""The files of one machine.

A path is a string or bytes. A string stands for bytes as ``os.fsencode`` has it, so that a name
which is not UTF-8 comes and goes as it is. ``user`` is as whom something is done, root if nothing
else is said; what the guest says is checked before it is believed.
"""

import contextlib
import os
import re
import secrets
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torpor.guest.files import KINDS
from torpor.vm import transfers
from torpor.vm.answers import broken, file_name, number
from torpor.vm.channel import MAX_MESSAGE, Channel, plain
from torpor.vm.errors import GuestError
from torpor.vm.works import Packing, Unpacking, Watch, Work

READ_LIMIT = 256 << 20
"""Bytes of a file that are read into memory unless another amount is asked for."""
_DIGEST = re.compile(r"[0-9a-f]{64}")
TYPES = frozenset((*KINDS.values(), "unknown"))


@dataclass(frozen=True)
class FileStatus:
    """What ``lstat`` says of a file in the guest: ``mode`` with the bits of its type, ``size`` and
    what is ``stored`` of it in bytes, ``major`` and ``minor`` of a device, ``target`` of a link."""

    type: str
    mode: int
    size: int
    stored: int
    uid: int
    gid: int
    mtime_ns: int
    links: int
    inode: int
    device: int
    major: int = 0
    minor: int = 0
    target: str | None = None


@dataclass(frozen=True)
class Listed:
    """Something in a directory: its ``path`` from there, its status, and the SHA-256 of a file if
    it was asked for. ``error`` says why something is not known."""

    path: str
    status: FileStatus | None
    sha256: str | None = None
    error: str | None = None


class Files:
    """The files of one machine. All methods raise :exc:`GuestError` and the channel's errors."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    async def status(
        self, path: str | bytes, *, follow: bool = False, user: str = "0"
    ) -> FileStatus | None:
        """Return the status of ``path``, or None if there is nothing. ``follow``: of what a link
        leads to."""
        try:
            found = await self._ask("stat", path, user, follow=follow)
        except GuestError as error:
            if error.code == "ENOENT":
                return None
            raise
        return status_of(found)

    # Content

    async def read(self, path: str | bytes, *, limit: int = READ_LIMIT, user: str = "0") -> bytes:
        """Return the content of a file. Raises :exc:`GuestError` (EFBIG) if there is more than
        ``limit``."""
        pieces = []
        size = 0
        async with contextlib.aclosing(self.read_pieces(path, user=user)) as reading:
            async for piece in reading:
                size += len(piece)
                if size > limit:
                    raise GuestError("EFBIG", f"{_text(path)} has more than {limit} bytes")
                pieces.append(piece)
        return b"".join(pieces)

    def read_pieces(
        self, path: str | bytes, offset: int = 0, size: int | None = None, *, user: str = "0"
    ) -> AsyncGenerator[bytes, None]:
        """Yield the content of a file from ``offset`` on, in pieces, up to where it ends when that
        is reached, or at most ``size`` bytes."""
        return transfers.read_pieces(self._channel, _about(path, user), offset, size)

    async def write(
        self,
        path: str | bytes,
        data: bytes | AsyncIterable[bytes],
        *,
        mode: int = 0o644,
        parents: bool = False,
        atomic: bool = False,
        part: str | None = None,
        user: str = "0",
    ) -> int:
        """Make ``path`` a file with ``data`` and return its size.

        A file that is there is emptied first and keeps its mode. ``atomic``: it is replaced, at the
        end and at once, so nobody ever sees half. Until then it has a name beside it, in which is
        ``part``: what a try before has left under that is written over. ``parents`` makes
        directories that are missing.
        """
        if not atomic:
            wanted = _about(path, user) | {"mode": mode, "parents": parents}
            pieces = transfers.located(data)
            return await transfers.write_pieces(self._channel, wanted, pieces, truncate=True)
        above, slash, _ = _text(path).rpartition("/")
        beside = f"{above}{slash}.torpor-{part or secrets.token_hex(8)}"
        wanted = _about(beside, user) | {"mode": mode, "parents": parents, "new": part is None}
        try:
            pieces = transfers.located(data)
            size = await transfers.write_pieces(self._channel, wanted, pieces, truncate=True)
            await self.move(beside, path, user=user)
        except BaseException:
            self._channel.tell("file.remove", _about(beside, user))
            raise
        return size

    async def download(
        self, path: str | bytes, target: Path, *, resume: bool = False, user: str = "0"
    ) -> int:
        """Copy a file out of the machine, its holes as holes, and return its size.

        ``resume`` goes on where ``target`` ends, after an error; that the file has not changed
        meanwhile is for the caller to know.
        """
        return await transfers.download(self._channel, _about(path, user), target, resume)

    async def upload(
        self,
        source: Path,
        path: str | bytes,
        *,
        mode: int = 0o644,
        parents: bool = False,
        resume: bool = False,
        user: str = "0",
    ) -> int:
        """Copy a file into the machine, its holes as holes, and return its size. ``resume`` goes on
        where the machine's file ends, after an error."""
        start = 0
        if resume:
            found = await self.status(path, follow=True, user=user)
            start = 0 if found is None else found.size
        wanted = _about(path, user) | {"mode": mode, "parents": parents}
        return await transfers.upload(self._channel, source, wanted, start)

    # Names

    async def make_directory(
        self, path: str | bytes, *, mode: int = 0o755, parents: bool = False, user: str = "0"
    ) -> None:
        """Make a directory; ``parents`` makes those above it too, and is content with one that is
        there."""
        await self._ask("make_directory", path, user, mode=mode, parents=parents)

    async def make_link(self, path: str | bytes, target: str | bytes, *, user: str = "0") -> None:
        """Make a symbolic link to ``target``."""
        await self._ask("make_link", path, user, target=_text(target))

    async def move(
        self, path: str | bytes, to: str | bytes, *, replace: bool = True, user: str = "0"
    ) -> None:
        """Give something another name in the same file system (else EXDEV). What has that name is
        replaced, or refused (EEXIST)."""
        await self._ask("move", path, user, to=_text(to), replace=replace)

    async def remove(self, path: str | bytes, *, recursive: bool = False, user: str = "0") -> None:
        """Remove a file, a link or an empty directory; ``recursive``: with all that is in it."""
        if not recursive:
            await self._ask("remove", path, user)
            return
        async with await Work.start(self._channel, "remove", {"path": _text(path)}, user) as work:
            await work.finish()

    async def change(
        self,
        path: str | bytes,
        *,
        mode: int | None = None,
        owner: str | None = None,
        size: int | None = None,
        mtime_ns: int | None = None,
        user: str = "0",
    ) -> None:
        """Change mode, owner (``user`` or ``user:group``, names or numbers), size or time of a
        file; what is None stays."""
        changes = {"mode": mode, "owner": owner, "size": size, "mtime_ns": mtime_ns}
        await self._ask("change", path, user, **changes)

    # Trees

    async def list(
        self,
        path: str | bytes,
        *,
        recursive: bool = False,
        digest: bool = False,
        exclude: Sequence[str] = (),
        user: str = "0",
    ) -> AsyncIterator[Listed]:
        """Yield what is in a directory, in no order; ``recursive``: below it. What matches one of
        ``exclude`` (patterns as of a shell, for a name or for a path) is left out. ``digest`` adds
        the SHA-256 of files."""
        wanted = {
            "path": _text(path),
            "recursive": recursive,
            "digest": digest,
            "exclude": list(exclude),
        }
        async with await Work.start(self._channel, "list", wanted, user) as work:
            while (line := await work.next_line()) is not None:
                yield _listed(line)

    async def watch(self, path: str | bytes, *, recursive: bool = False, user: str = "0") -> Watch:
        """Watch a file or directory; ``recursive``: all that is below it. Close it when done."""
        wanted = {"path": _text(path), "recursive": recursive}
        return await Watch.start(self._channel, "watch", wanted, user)

    async def pack(
        self,
        path: str | bytes,
        *,
        name: str | None = None,
        exclude: Sequence[str] = (),
        one_file_system: bool = False,
        user: str = "0",
    ) -> Packing:
        """Read a file or a tree as a tar archive (POSIX pax), under ``name`` (its own if None,
        ``.`` for no leading directory), without what matches ``exclude``."""
        wanted = {
            "path": _text(path),
            "root": name,
            "exclude": list(exclude),
            "one_file_system": one_file_system,
        }
        return await Packing.start(self._channel, "pack", wanted, user)

    async def unpack(
        self,
        path: str | bytes,
        *,
        owner: str | None = None,
        parents: bool = False,
        user: str = "0",
    ) -> Unpacking:
        """Write a tar archive below the directory ``path``. Owners are those in the archive, or all
        ``owner``; ``parents`` makes the directory."""
        wanted = {"path": _text(path), "owner": owner, "parents": parents}
        return await Unpacking.start(self._channel, "unpack", wanted, user, stdin=True)

    async def _ask(self, op: str, path: str | bytes, user: str, **more: Any) -> dict[str, Any]:
        answer, _ = await self._channel.request(f"file.{op}", _about(path, user) | more)
        return answer


def _text(path: str | bytes) -> str:
    return os.fsdecode(path)


def _about(path: str | bytes, user: str) -> dict[str, Any]:
    return {"path": _text(path), "user": user}


def status_of(said: dict[str, Any]) -> FileStatus:
    """Return the status that a guest tells. Raises :exc:`GuestError` if it is none."""
    numbers = {name: number(said, name) for name in ("size", "stored", "links")}
    for name in ("mode", "uid", "gid"):
        numbers[name] = number(said, name, most=(1 << 32) - 1)
    for name in ("inode", "device"):  # unsigned in the kernel, and some file systems use all of it
        numbers[name] = number(said, name, most=(1 << 64) - 1)
    numbers["mtime_ns"] = number(said, "mtime_ns", least=-1 << 64, most=1 << 64)
    for name in ("major", "minor"):
        numbers[name] = number(said, name) if name in said else 0
    kind = said.get("type")
    if not isinstance(kind, str) or kind not in TYPES:
        raise broken("type")
    target = None if said.get("target") is None else file_name(said, "target")
    return FileStatus(type=kind, target=target, **numbers)


def _listed(line: dict[str, Any]) -> Listed:
    path, digest, error = file_name(line, "path"), line.get("sha256"), line.get("error")
    if digest is not None and not (isinstance(digest, str) and _DIGEST.fullmatch(digest)):
        raise broken("sha256")
    if isinstance(error, dict):
        error = plain(f"{error.get('message')} ({error.get('code')})", MAX_MESSAGE)
    elif error is not None:
        raise broken("error")
    return Listed(path, status_of(line) if "mode" in line else None, digest, error)
