"""Whether a backup is whole: everything of it is read, and nothing written."""

import hashlib
from collections.abc import Callable
from typing import BinaryIO

from torpor.backup.contents import About, NamedImage, SavedDisk, Summary
from torpor.backup.errors import BackupError, wrong
from torpor.backup.reading import Taken, pieces_of, read_backup
from torpor.vm import SnapshotError
from torpor.vm.exported import (
    File,
    Trailer,
    object_name,
    read_beginning,
    read_exactly,
    read_next,
    unpack,
)
from torpor.vm.imported import check_index


def verify(source: BinaryIO, check: Callable[[], None] = lambda: None) -> tuple[About, Summary]:
    """Read a whole backup, unpack all of it, and return what it says of itself. Blocks.

    What a snapshot leaves out must stand before it. Raises :exc:`BackupError`.
    """
    verifier = _Verifier(check)
    try:
        taken = Taken(lambda _: check(), verifier.snapshot, verifier.disk, verifier.image)
        return read_backup(source, taken)
    except SnapshotError as error:
        raise BackupError(
            f"The file is not a whole backup: {error.happened}",
            todo="Make another one, or copy it again from where it is whole.",
        ) from error


class _Verifier:
    def __init__(self, check: Callable[[], None]) -> None:
        self._check = check
        self._objects: set[str] = set()

    def snapshot(self, content: BinaryIO) -> str:
        """Check an exported snapshot as far as it can be without a store."""
        index, beginning = read_beginning(content)
        check_index(index)
        name = index.manifest.id
        sha = hashlib.sha256(beginning)
        counts = [0] * len(index.files)
        number = 0
        while True:
            self._check()
            piece, head = read_next(content)
            if isinstance(piece, Trailer):
                break
            sha.update(head)
            number += 1
            if piece.file >= len(counts) or index.files[piece.file].left_out:
                raise wrong(f"a piece of snapshot {name} is of no file")
            counts[piece.file] += piece.blocks
            unpack(piece, read_exactly(content, piece.packed, "a piece"))
        if piece.pieces != number or piece.sha256 != sha.digest():
            raise wrong(f"the end of snapshot {name} does not fit the rest")
        for file, count in zip(index.files, counts, strict=True):
            if "/" in file.name:
                self._know(file.name, file.sha256, left_out=file.left_out)
            if count != (0 if file.left_out else file.blocks):
                raise wrong(f"{file.name} of snapshot {name} lacks blocks")
        return name

    def disk(self, found: SavedDisk, content: BinaryIO) -> None:
        """Check a disk that outlives machines."""
        self._pieces(found.files, f"disk {found.id}", content)

    def image(self, found: NamedImage, content: BinaryIO) -> None:
        """Check the disk of an image."""
        self._pieces((found.disk,), f"the disk of the image {found.record.name}", content)

    def _pieces(self, files: tuple[File, ...], what: str, content: BinaryIO) -> None:
        for file in files:
            self._know(file.name, file.sha256, left_out=file.left_out)
        for piece, packed in pieces_of(files, what, content):
            self._check()
            unpack(piece, packed)

    def _know(self, name: str, digest: str, *, left_out: bool) -> None:
        known = object_name(name, digest)
        if left_out and known not in self._objects:
            raise wrong(f"{known} is left out, and does not stand before")
        self._objects.add(known)
