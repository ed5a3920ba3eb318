"""The content of files on its way in and out, several pieces at once.

One request at a time would leave the channel idle while an answer is thought about. The pieces
are bounded, and so is how much of them is under way: answers go ahead of all streams, and a
terminal is not to wait behind a file.
"""

import asyncio
import os
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Coroutine
from pathlib import Path
from typing import Any

from torpor.guest.files import data_ranges
from torpor.vm.answers import broken, number
from torpor.vm.channel import Channel
from torpor.vm.errors import GuestError

PIECE = 256 << 10
"""Bytes of a file that cross the channel in one frame."""
AHEAD = 3
"""Pieces that are under way at once."""
SIZE_LIMIT = 1 << 62

Asking = asyncio.Task[tuple[dict[str, Any], bytes]]


class _Pipeline:
    """Requests that are under way, in order. Those that are left when it ends are called off."""

    def __init__(self) -> None:
        self._waiting: deque[Asking] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def ask(self, request: Coroutine[Any, Any, tuple[dict[str, Any], bytes]]) -> None:
        self._waiting.append(asyncio.ensure_future(request))

    async def next(self) -> tuple[dict[str, Any], bytes]:
        answer = await self._waiting[0]
        self._waiting.popleft()
        return answer

    async def end(self) -> None:
        for each in self._waiting:
            each.cancel()
        await asyncio.gather(*self._waiting, return_exceptions=True)
        self._waiting.clear()


async def read_pieces(
    channel: Channel, about: dict[str, Any], offset: int, size: int | None = None
) -> AsyncGenerator[bytes, None]:
    """Yield a file from ``offset`` on, at most ``size`` bytes, in order."""
    stop = SIZE_LIMIT if size is None else offset + size
    asked = offset
    known = 0  # up to where the file went when it was last asked
    pipeline = _Pipeline()
    ended = offset >= stop
    try:
        while not ended:
            # The first answer says how far there is something to read ahead.
            while len(pipeline) < AHEAD and asked < stop and (not pipeline or asked < known):
                count = min(PIECE, stop - asked)
                wanted = about | {"offset": asked, "size": count}
                pipeline.ask(channel.request("file.read", wanted))
                asked += count
            wanted_here = min(PIECE, stop - offset)
            answer, data = await pipeline.next()
            if len(data) > wanted_here:
                raise broken("size")
            known = min(number(answer, "size"), stop)
            offset += len(data)
            ended = not data or answer.get("end") is True or offset >= stop
            if len(data) < wanted_here:  # what was asked for beyond it does not follow it
                await pipeline.end()
                asked = offset
            if data:
                yield data
    finally:
        await pipeline.end()


async def located(data: bytes | AsyncIterable[bytes]) -> AsyncIterator[tuple[int, bytes]]:
    """Yield ``data`` in pieces that fit into a frame, each with where it belongs."""
    at = 0
    if isinstance(data, bytes):
        for at in range(0, len(data), PIECE):
            yield at, data[at : at + PIECE]
        return
    async for each in data:
        for start in range(0, len(each), PIECE):
            yield at + start, each[start : start + PIECE]
        at += len(each)


async def write_pieces(
    channel: Channel,
    about: dict[str, Any],
    pieces: AsyncIterable[tuple[int, bytes]],
    *,
    truncate: bool,
) -> int:
    """Write pieces to where they belong; return where the last one ends. ``truncate``: into an
    empty file, which is made even if there is no piece.

    A piece is written only once those before it are: after an error the file's size tells up to
    where it is whole.
    """
    end = 0
    first = truncate
    pipeline = _Pipeline()
    try:
        async for offset, piece in pieces:
            wanted = about | {"offset": offset, "after": end}
            if first:  # awaited: if it is refused, nothing may follow
                wanted |= {"truncate": True}
                await channel.request("file.write", wanted, piece)
                about, first = about | {"parents": False, "new": False}, False
            else:
                if len(pipeline) >= AHEAD:
                    await pipeline.next()
                pipeline.ask(channel.request("file.write", wanted, piece))
            end = offset + len(piece)
        while pipeline:
            await pipeline.next()
        if first:
            await channel.request("file.write", about | {"offset": 0, "truncate": True})
    finally:
        await pipeline.end()
    return end


# Whole files, with their holes


async def download(channel: Channel, about: dict[str, Any], target: Path, resume: bool) -> int:
    """Copy a file out of the machine; see :meth:`Files.download`.

    The target always ends where the copy has come to, so its size says where to go on.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | (0 if resume else os.O_TRUNC)
    fd = await asyncio.to_thread(os.open, target, flags, 0o644)
    try:
        done = os.fstat(fd).st_size
        while True:
            begun = done
            wanted = about | {"offset": done}
            answer, _ = await channel.request("file.ranges", wanted)
            size, following = number(answer, "size"), number(answer, "next")
            if size < done:
                raise GuestError("ESTALE", f"{about['path']} is shorter than what was copied of it")
            for start, end in _checked_ranges(answer, done, size):
                async for piece in read_pieces(channel, about, start, end - start):
                    await asyncio.to_thread(os.pwrite, fd, piece, start)
                    start += len(piece)
                    done = start
            if not done <= following <= size:
                raise broken("next")
            if begun == following < size:  # it would be asked for ever
                raise broken("next")
            if following > done:
                await asyncio.to_thread(os.ftruncate, fd, following)
            done = following
            if done == size:
                return size
    finally:
        os.close(fd)


def _checked_ranges(answer: dict[str, Any], last: int, size: int) -> list[tuple[int, int]]:
    """Return the ranges of data that a guest tells, if they are in order."""
    said = answer.get("ranges")
    if not isinstance(said, list):
        raise broken("ranges")
    found = []
    for each in said:
        if not isinstance(each, list) or len(each) != 2 or any(type(n) is not int for n in each):
            raise broken("ranges")
        start, end = each
        if not last <= start < end <= size:
            raise broken("ranges")
        found.append((start, end))
        last = end
    return found


async def upload(channel: Channel, source: Path, about: dict[str, Any], start: int) -> int:
    """Copy a file into the machine from ``start`` on; see :meth:`Files.upload`."""
    fd = await asyncio.to_thread(os.open, source, os.O_RDONLY | os.O_CLOEXEC)
    try:
        size = os.fstat(fd).st_size
        if start > size:
            raise GuestError("ESTALE", f"{about['path']} is longer than {source}")
        pieces = _local_pieces(fd, start, size)
        end = await write_pieces(channel, about, pieces, truncate=not start)
        if end < size:
            await channel.request("file.change", {**about, "mode": None, "size": size})
        return size
    finally:
        os.close(fd)


async def _local_pieces(fd: int, start: int, size: int) -> AsyncIterator[tuple[int, bytes]]:
    """Yield the data of a file of ours, each piece with where it belongs."""
    for begin, end in data_ranges(fd, size, start):
        while begin < end:
            data = await asyncio.to_thread(os.pread, fd, min(PIECE, end - begin), begin)
            if not data:
                return  # it has become shorter
            yield begin, data
            begin += len(data)
