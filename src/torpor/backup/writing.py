"""A backup on its way into a file or through a connection: one section after another. It blocks,
and so runs in a thread."""

import hashlib
import os
import struct
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from typing import BinaryIO, cast

from torpor.backup.contents import (
    ABOUT,
    DATABASE,
    DISK,
    IMAGE,
    SNAPSHOT,
    SUMMARY,
    About,
    Missing,
    NamedImage,
    Summary,
    Wanted,
    saved,
    write,
)
from torpor.backup.disks import opened_disk
from torpor.backup.framing import VERSION, WITH_DISKS, FrameWriter
from torpor.images import ImageError
from torpor.images.names import Names, Record
from torpor.store.records import Snapshot
from torpor.vm import SnapshotError
from torpor.vm.base import count_and_digest, data_blocks
from torpor.vm.export import Report, export_part, silent
from torpor.vm.exported import BLOCKS, LEVEL, File, Trailer, object_name, pack, zstd
from torpor.vm.store import Store

DATABASE_HEAD = struct.Struct("<Q32s")
"""Before the database: its size in bytes, and its SHA-256."""
LENGTH = struct.Struct("<I")
READ = 1 << 20


@dataclass(frozen=True)
class Source:
    """What a backup is made of. ``database`` is an open copy of the database that nobody changes,
    ``wanted`` what it says is to be in it; ``missing`` what is known already not to be."""

    about: About
    database: BinaryIO
    wanted: Wanted
    store: Store
    names: Names
    missing: tuple[Missing, ...] = ()


@dataclass
class _Written:
    """What is in the backup so far."""

    objects: dict[str, int] = field(default_factory=dict)
    snapshots: dict[str, Snapshot] = field(default_factory=dict)
    disks: list[str] = field(default_factory=list)
    images: list[str] = field(default_factory=list)
    missing: list[Missing] = field(default_factory=list)
    stored: int = 0


def write_backup(
    source: Source,
    out: BinaryIO,
    *,
    report: Report = silent,
    check: Callable[[], None] = lambda: None,
) -> Summary:
    """Write a backup to ``out``, and return what is in it.

    A snapshot, a disk or an image that cannot be read is left out, and told of. ``check`` is called
    between pieces and may raise. Raises OSError.
    """
    disks = source.store.heads.ids()
    frame = FrameWriter(out, WITH_DISKS if disks else VERSION)
    done = _Written(missing=list(source.missing))
    with frame.section(ABOUT) as section:
        section.write(write(source.about))
    with frame.section(DATABASE) as section:
        _write_database(source.database, section, check)
    lost = {each.name for each in source.missing}
    for row in source.wanted.snapshots:
        if row.id not in lost:
            _write_snapshot(source.store, row, frame, done, report, check)
    for disk in disks:
        _write_disk(source.store, disk, frame, done, check)
    _write_images(source.names, frame, done, check)
    sessions = tuple(saved(each, done.snapshots) for each in source.wanted.sessions)
    summary = Summary(
        sessions, tuple(done.snapshots), tuple(done.images), tuple(done.missing), done.stored,
        tuple(done.disks),
    )  # fmt: skip
    with frame.section(SUMMARY) as section:
        section.write(write(summary))
    frame.close()
    out.flush()
    return summary


def _write_database(database: BinaryIO, section: BinaryIO, check: Callable[[], None]) -> None:
    sha = hashlib.sha256()
    size = 0
    database.seek(0)
    while data := database.read(READ):
        sha.update(data)
        size += len(data)
    section.write(DATABASE_HEAD.pack(size, sha.digest()))
    database.seek(0)
    packer = zstd.ZstdCompressor(level=LEVEL)
    while data := database.read(READ):
        check()
        section.write(packer.compress(data))
    section.write(packer.flush())


def _write_snapshot(
    store: Store,
    row: Snapshot,
    frame: FrameWriter,
    done: _Written,
    report: Report,
    check: Callable[[], None],
) -> None:
    check()
    late = _Late(frame)
    try:
        with closing(late):
            export_part(
                store, row.id, cast("BinaryIO", late), done.objects, report=report, check=check
            )
    except (SnapshotError, OSError) as error:
        if late.begun:  # it is in the frame by half, and so is the backup
            raise
        done.missing.append(Missing("snapshot", row.id, str(error), row.session))
        return
    done.snapshots[row.id] = row
    done.stored += late.size


class _Late:
    """A section of a snapshot that begins with its first byte: an export checks all that it is
    going to write before that, and may find that it cannot be."""

    def __init__(self, frame: FrameWriter) -> None:
        self._section = frame.section(SNAPSHOT)
        self._out: BinaryIO | None = None
        self.size = 0

    @property
    def begun(self) -> bool:
        return self._out is not None

    def write(self, data: bytes) -> int:
        if self._out is None:
            self._out = self._section.__enter__()
        self.size += len(data)
        return self._out.write(data)

    def flush(self) -> None:
        pass

    def close(self) -> None:
        if self._out is not None:
            self._section.__exit__(None, None, None)


def _write_disk(
    store: Store,
    disk: str,
    frame: FrameWriter,
    done: _Written,
    check: Callable[[], None],
) -> None:
    """Write what a disk that outlives machines holds; of one that a machine has, what was saved
    last."""
    check()
    with ExitStack() as stack:
        try:
            saved_disk, fds = opened_disk(store, disk, done.objects, stack)
        except (SnapshotError, OSError) as error:
            done.missing.append(Missing("disk", disk, str(error)))
            return
        section = stack.enter_context(frame.section(DISK))
        text = write(saved_disk)
        section.write(LENGTH.pack(len(text)) + text)
        new = {number: fd for number, fd in enumerate(fds) if not saved_disk.files[number].left_out}
        if new:
            _write_pieces(new, section, check)
    done.objects.update(
        (object_name(file.name, file.sha256), file.blocks) for file in saved_disk.files
    )
    done.disks.append(disk)


def _write_images(
    names: Names, frame: FrameWriter, done: _Written, check: Callable[[], None]
) -> None:
    try:
        records = names.records()
    except ImageError as error:
        done.missing.append(Missing("image", "all images", str(error)))
        return
    for record in records:
        check()
        try:
            disk = os.open(names.image(record.name).root, os.O_RDONLY | os.O_CLOEXEC)
        except (ImageError, OSError) as error:
            done.missing.append(Missing("image", record.name, str(error)))
            continue
        try:
            with frame.section(IMAGE) as section:
                _write_image(record, disk, section, done.objects, check)
        finally:
            os.close(disk)
        done.images.append(record.name)


def _write_image(
    record: Record,
    fd: int,
    section: BinaryIO,
    objects: dict[str, int],
    check: Callable[[], None],
) -> None:
    count, digest = count_and_digest(fd)
    # Sessions of this image stand on the same disk, as the lowest layer of theirs.
    name = object_name("layers/image.raw", digest)
    size = os.fstat(fd).st_size
    text = write(NamedImage(record, File(name, size, count, digest, name in objects)))
    section.write(LENGTH.pack(len(text)) + text)
    if name in objects:
        return
    objects[name] = count
    _write_pieces({0: fd}, section, check)


def _write_pieces(files: Mapping[int, int], section: BinaryIO, check: Callable[[], None]) -> None:
    """Write the content of open files, by their numbers."""
    sha = hashlib.sha256()
    pieces = 0
    for number, fd in files.items():
        for blocks, content in _gathered(fd):
            check()
            piece, packed = pack(number, blocks, content)
            head = piece.write()
            sha.update(head)
            section.write(head + packed)
            pieces += 1
    section.write(Trailer(pieces, sha.digest()).write())


def _gathered(fd: int) -> Iterable[tuple[list[int], bytes]]:
    blocks: list[int] = []
    content = bytearray()
    for block, buffer in data_blocks(fd):
        blocks.append(block)
        content += buffer
        if len(blocks) == BLOCKS:
            yield blocks, bytes(content)
            blocks, content = [], bytearray()
    if blocks:
        yield blocks, bytes(content)
