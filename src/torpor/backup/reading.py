"""The sections of a backup, as they come: in their order, and each checked before it is used."""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import BinaryIO, TypeVar

from torpor.backup.contents import (
    ABOUT,
    DATABASE,
    DISK,
    IMAGE,
    MOST_TEXT,
    SNAPSHOT,
    SUMMARY,
    About,
    NamedImage,
    SavedDisk,
    Summary,
    parse,
)
from torpor.backup.disks import check_disk
from torpor.backup.errors import wrong
from torpor.backup.framing import FrameReader
from torpor.backup.writing import DATABASE_HEAD, LENGTH, READ
from torpor.vm.exported import File, Piece, Trailer, read_exactly, read_next, zstd

_ORDER = (ABOUT, DATABASE, SNAPSHOT, DISK, IMAGE, SUMMARY)
_ONCE = frozenset((ABOUT, DATABASE, SUMMARY))

T = TypeVar("T", About, Summary)


@dataclass(frozen=True)
class Taken:
    """Who takes what is in a backup. ``snapshot`` is given an exported snapshot, ``disk`` and
    ``image`` a disk or a named image and what its pieces follow in, ``database`` pieces of the
    database."""

    database: Callable[[bytes], object]
    snapshot: Callable[[BinaryIO], str]
    disk: Callable[[SavedDisk, BinaryIO], object]
    image: Callable[[NamedImage, BinaryIO], object]


def read_backup(source: BinaryIO, taken: Taken) -> tuple[About, Summary]:
    """Read a whole backup and hand on what is in it; return what it says of itself.

    It is known to be whole only when this returns. Raises :exc:`BackupError`, and what those raise
    who take it.
    """
    about: About | None = None
    summary: Summary | None = None
    snapshots: list[str] = []
    disks: list[str] = []
    images: list[str] = []
    last = -1
    for kind, content in FrameReader(source).sections():
        place = _ORDER.index(kind) if kind in _ORDER else -1
        if place < last or (place == last and kind in _ONCE) or (last < 1 and place > last + 1):
            raise wrong(f"a section {kind!r} is not in its place")
        last = place
        if kind == ABOUT:
            about = _document(About, content, "what it says of itself")
        elif kind == DATABASE:
            _read_database(content, taken.database)
        elif kind == SNAPSHOT:
            snapshots.append(taken.snapshot(content))
        elif kind == DISK:
            disks.append(_read_disk(content, taken))
        elif kind == IMAGE:
            images.append(_read_image(content, taken))
        else:
            summary = _document(Summary, content, "its summary")
        if content.read(1):
            raise wrong(f"something stands behind the content of a section {kind!r}")
    if about is None or summary is None:
        raise wrong("it has no summary")
    found = tuple(snapshots), tuple(disks), tuple(images)
    if found != (summary.snapshots, summary.disks, summary.images):
        raise wrong("it does not hold what its summary says")
    return about, summary


def _document(kind: type[T], content: BinaryIO, what: str) -> T:
    text = content.read(MOST_TEXT + 1)
    if len(text) > MOST_TEXT:
        raise wrong(f"{what} is too long")
    return parse(kind, text, what)


def _read_database(content: BinaryIO, take: Callable[[bytes], object]) -> None:
    size, digest = DATABASE_HEAD.unpack(read_exactly(content, DATABASE_HEAD.size, "its database"))
    sha = hashlib.sha256()
    for piece in _unpacked(content, size):
        sha.update(piece)
        take(piece)
    if sha.digest() != digest:
        raise wrong("its database does not have the content that was saved")


def _unpacked(content: BinaryIO, size: int) -> Iterator[bytes]:
    """Yield the content of a zstd frame, of which no more is unpacked than ``size`` bytes."""
    reader = zstd.ZstdDecompressor()
    left = size
    try:
        while not reader.eof:
            data = content.read(READ) if reader.needs_input else b""
            if not data and reader.needs_input:
                raise wrong("its database ends early")
            piece = reader.decompress(data, max_length=READ)
            left -= len(piece)
            if left < 0:
                break
            yield piece
    except zstd.ZstdError as error:
        raise wrong(f"its database cannot be unpacked ({error})") from None
    if left or reader.unused_data:
        raise wrong("its database does not have the size that it says")


def _text(content: BinaryIO, what: str) -> bytes:
    (length,) = LENGTH.unpack(read_exactly(content, LENGTH.size, what))
    if length > MOST_TEXT:
        raise wrong(f"{what} says too much of itself")
    return read_exactly(content, length, what)


def _read_disk(content: BinaryIO, taken: Taken) -> str:
    found = parse(SavedDisk, _text(content, "a disk"), "a disk")
    check_disk(found)
    taken.disk(found, content)
    return found.id


def _read_image(content: BinaryIO, taken: Taken) -> str:
    found = parse(NamedImage, _text(content, "an image"), "an image")
    taken.image(found, content)
    return found.record.name


def pieces_of(
    files: tuple[File, ...], what: str, content: BinaryIO
) -> Iterator[tuple[Piece, bytes]]:
    """Yield the pieces of files, packed, of those that were not left out. Raises
    :exc:`BackupError`, :exc:`torpor.vm.SnapshotError`."""
    if all(file.left_out for file in files):
        return
    sha = hashlib.sha256()
    number = 0
    counts = [0] * len(files)
    while True:
        piece, head = read_next(content)
        if isinstance(piece, Trailer):
            break
        sha.update(head)
        number += 1
        if piece.file >= len(files) or files[piece.file].left_out:
            raise wrong(f"{what} has more in it than it should")
        counts[piece.file] += piece.blocks
        if counts[piece.file] > files[piece.file].blocks:
            raise wrong(f"{what} has more in it than it should")
        yield piece, read_exactly(content, piece.packed, what)
    wanted = [0 if file.left_out else file.blocks for file in files]
    if piece.pieces != number or piece.sha256 != sha.digest() or counts != wanted:
        raise wrong(f"{what} lacks blocks")
