"""Checking the layers of an image, and keeping what is in them.

Each layer is read once, as a stream: its digest, that of its unpacked content, its size, every
header in it. What is kept are the contents of its files, under names of ours, and in memory the
tree that all layers come to: nobody else reads what a stranger has packed.
"""

from __future__ import annotations

import asyncio
import hashlib
import subprocess
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from torpor.images.ahead import ahead
from torpor.images.confine import Room, confined
from torpor.images.contents import Contents
from torpor.images.errors import HostileImageError
from torpor.images.layer_tree import LayerTree, too_large
from torpor.images.layout import CHUNK, Layout
from torpor.images.oci_image import Compression, Descriptor, OciImage, lying
from torpor.images.programs import Words
from torpor.images.progress import Report, Step
from torpor.images.tar_stream import Reader, entries

ZSTD_MEMORY = "256MB"
"""The window that zstd may ask for; its own default is 128 MiB."""
EMPTY_MEMBERS = 1000
REPORT_S = 0.1


@dataclass(frozen=True)
class Limits:
    """What an image may come to: bytes and entries of all layers together, unpacked."""

    unpacked_bytes: int = 32 << 30
    entries: int = 500_000


@dataclass(frozen=True)
class Source:
    """Where one layer comes from: ``chunks`` opens it, ``size`` is how much there is to read (0:
    not known). ``diff`` is the digest that its content must have, None for what was just made."""

    name: str
    size: int
    chunks: Callable[[], Iterator[bytes]]
    diff: str | None


@dataclass(frozen=True)
class Kept:
    """Layers that were kept: what they come to, and the SHA-256 digest that each had."""

    tree: LayerTree
    digests: tuple[str, ...]


def layer_sources(layout: Layout, image: OciImage) -> list[Source]:
    """The layers of an image of a layout; each checks what it gives."""

    def opened(descriptor: Descriptor, compression: Compression) -> Callable[[], Iterator[bytes]]:
        def chunks() -> Iterator[bytes]:
            raw = layout.read(descriptor.file_name, descriptor.size)
            return UNPACKERS[compression](_checked(raw, descriptor.digest))

        return chunks

    return [
        Source(descriptor.digest, descriptor.size, opened(descriptor, compression), diff)
        for descriptor, compression, diff in image.layers
    ]


async def keep_layers(
    sources: Sequence[Source],
    out: Path,
    limits: Limits,
    report: Report,
    *,
    whiteouts: bool = True,
) -> Kept:
    """Check layers and write the contents of their files to ``out``, which is made; return what
    they come to.

    Raises HostileImageError, and OSError.
    """
    stopped = threading.Event()
    loop = asyncio.get_running_loop()
    due = 0.0

    def told(step: Step) -> None:
        # Each wakes the loop, and the check waits for Python's lock meanwhile.
        nonlocal due
        if (now := time.monotonic()) >= due:
            due = now + REPORT_S
            loop.call_soon_threadsafe(report, step)

    work = asyncio.ensure_future(
        asyncio.to_thread(_keep, sources, out, limits, told, stopped.is_set, whiteouts=whiteouts)
    )
    try:
        return await asyncio.shield(work)
    finally:
        # A thread cannot be cancelled, and must not write where others clear up.
        stopped.set()
        await asyncio.wait([work])
        work.exception()


def _keep(
    sources: Sequence[Source],
    out: Path,
    limits: Limits,
    report: Report,
    stopped: Callable[[], bool],
    *,
    whiteouts: bool,
) -> Kept:
    out.mkdir()
    tree = LayerTree(
        max_entries=limits.entries, max_bytes=limits.unpacked_bytes, whiteouts=whiteouts
    )
    unpacked = 0
    digests: list[str] = []
    for number, source in enumerate(sources):
        plain = hashlib.sha256()
        try:
            with (
                closing(ahead(source.chunks())) as chunks,
                closing(Contents(out, number)) as contents,
            ):
                content = _passed(chunks, limits.unpacked_bytes, unpacked, plain, report, stopped)
                reader = Reader(content, contents.write)
                for entry in entries(reader):
                    tree.add(entry, number, contents.begin(entry))
                contents.end()
                reader.drain()
            if source.diff not in (None, f"sha256:{plain.hexdigest()}"):
                raise lying(str(source.diff))
        except HostileImageError as error:
            what = f"{error.what} (Layer {number + 1}, {source.name}.)"
            raise HostileImageError(what, error.advice) from None
        unpacked += reader.position
        digests.append(f"sha256:{plain.hexdigest()}")
    return Kept(tree, tuple(digests))


def _passed(
    chunks: Iterator[bytes],
    limit: int,
    before: int,
    plain: hashlib._Hash,
    report: Report,
    stopped: Callable[[], bool],
) -> Iterator[bytes]:
    """Pass on what layers unpack to, and add it to a digest.

    Raises HostileImageError if that comes to more than ``limit`` with the ``before`` of others.
    """
    done = before
    for chunk in chunks:
        if stopped():
            raise InterruptedError
        done += len(chunk)
        if done > limit:
            raise too_large(limit)
        report(Step("checking layers", done, None, "bytes"))
        plain.update(chunk)
        yield chunk


def _checked(chunks: Iterator[bytes], digest: str) -> Iterator[bytes]:
    """Pass chunks on, and raise HostileImageError at the end if they are not what was promised."""
    algorithm, _, wanted = digest.partition(":")
    found = hashlib.new(algorithm)
    for chunk in chunks:
        found.update(chunk)
        yield chunk
    if found.hexdigest() != wanted:
        raise lying(digest)


def _plain(chunks: Iterator[bytes]) -> Iterator[bytes]:
    return chunks


def _gunzip(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """Unpack gzip: one member or several, one after the other, never more than a chunk at once."""
    unpacker = zlib.decompressobj(zlib.MAX_WBITS | 16)
    fresh = False
    empty = 0
    try:
        for chunk in chunks:
            pending = chunk
            while pending:
                if unpacker.eof:
                    unpacker, fresh = zlib.decompressobj(zlib.MAX_WBITS | 16), True
                    empty += 1
                content = unpacker.decompress(pending, CHUNK)
                fresh = False
                if content:
                    empty = 0
                    yield content
                elif empty > EMPTY_MEMBERS:  # each has all that follows copied
                    raise HostileImageError(
                        f"A layer has more than {EMPTY_MEMBERS} empty gzip members in a row."
                    )
                pending = unpacker.unused_data if unpacker.eof else unpacker.unconsumed_tail
        while not unpacker.eof and (content := unpacker.decompress(b"", CHUNK)):
            yield content
    except zlib.error as error:
        raise HostileImageError(f"A layer is not sound gzip: {error}.") from None
    if not unpacker.eof or fresh:
        raise HostileImageError("A layer is not sound gzip: it ends too early.")


def _unzstd(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """Unpack zstd, by the program."""
    line = confined(Room(None, 0), ["zstd", "-dcq", f"--memory={ZSTD_MEMORY}"])
    with subprocess.Popen(
        line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        words = Words(process.stderr, 2000)
        failed: list[BaseException] = []
        feeder = threading.Thread(target=_feed, args=(process, chunks, failed))
        feeder.start()
        try:
            while content := process.stdout.read(CHUNK):
                yield content
            feeder.join()
            said = words.text()
        finally:
            process.kill()
            feeder.join()
            words.text()
        if failed:
            raise failed[0]
        if said or process.wait() not in (0, -9):
            raise HostileImageError(f"A layer is not sound zstd: {said or 'no word of why'}.")


def _feed(
    process: subprocess.Popen[bytes], chunks: Iterator[bytes], failed: list[BaseException]
) -> None:
    assert process.stdin is not None
    try:
        with process.stdin as pipe:
            for chunk in chunks:
                pipe.write(chunk)
    except BrokenPipeError:
        pass  # it has ended, and says why
    except BaseException as error:
        failed.append(error)


UNPACKERS: Mapping[Compression, Callable[[Iterator[bytes]], Iterator[bytes]]] = {
    "none": _plain,
    "gzip": _gunzip,
    "zstd": _unzstd,
}
