"""A layer as it is kept: a plain tar archive, the contents of its large files beside it.

Who unpacks the archive makes those files empty, and they are put in their places afterwards. So a
large file is written once and not twice, nobody but the check reads its content, and its holes stay
holes.
"""

from __future__ import annotations

import hashlib
import os
import tarfile
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

from torpor.images.tar_stream import BLOCK, Entry

APART = "apart"
"""The directory of the large files in a layout that is kept."""
LARGE = 64 << 10
"""From this size on a file is large. In the default image one file in fifteen is, and they have
three quarters of all content; each costs a header of our own and a rename (docs/decisions/0049)."""
HOLE = 64 << 10
ZEROS = bytes(HOLE)


class KeptLayer:
    """Writes what it is given: headers and contents as they come, with ``begin`` after each header.

    ``digest`` is the SHA-256 of the archive once it is complete, or empty if the archive is what
    was written, byte by byte.
    """

    def __init__(self, place: Path, apart: Path, number: int) -> None:
        self.digest = ""
        self._place = place
        self._apart = apart
        self._number = number
        self._count = 0
        self._file: BinaryIO = place.open("xb")
        self._header = bytearray()
        self._body = 0
        self._large: BinaryIO | None = None
        self._large_left = 0

    def __enter__(self) -> KeptLayer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.write(self._header)
        self._file.close()
        if self._large is not None:
            self._large.close()
        if self._count and error is None:
            with self._place.open("rb") as file:
                self.digest = hashlib.file_digest(file, "sha256").hexdigest()

    def write(self, piece: bytes | memoryview) -> None:
        """Take the next bytes of the layer."""
        while piece:
            if not self._body:
                self._header += piece
                return
            part = piece[: self._body]
            self._body -= len(part)
            if self._large is None:
                self._file.write(part)
            else:
                self._write_large(part[: self._large_left])
            piece = piece[len(part) :]

    def begin(self, entry: Entry) -> str:
        """Say that the header of ``entry`` is complete and its content follows.

        Return the name of the file that its content goes to, empty if it is left in the archive.
        """
        if self._large is not None:
            self._large.close()
            self._large = None
        self._body = -(-entry.stored // BLOCK) * BLOCK
        name = ""
        if entry.kind == "file" and entry.stored == entry.size >= LARGE:
            self._apart.mkdir(exist_ok=True)
            name = f"{self._number}-{self._count}"
            self._count += 1
            self._large = (self._apart / name).open("xb", buffering=0)
            self._large.truncate(entry.size)
            self._large_left = entry.size
            self._header[:] = _header_of(entry)
        self._file.write(self._header)
        self._header.clear()
        return name

    def end(self) -> None:
        """Say that the archive has ended; what follows is kept as it is."""
        self._file.write(self._header)
        self._header.clear()
        self._body = 1 << 62
        if self._large is not None:
            self._large.close()
            self._large = None

    def _write_large(self, content: bytes | memoryview) -> None:
        assert self._large is not None
        self._large_left -= len(content)
        while content:
            part = content[:HOLE]
            if part == ZEROS[: len(part)]:
                self._large.seek(len(part), os.SEEK_CUR)
            else:
                self._large.write(part)
            content = content[len(part) :]


def _header_of(entry: Entry) -> bytes:
    """A header for the same file without its content."""
    member = tarfile.TarInfo(os.fsdecode(entry.name))
    member.mode, member.uid, member.gid = entry.mode, entry.uid, entry.gid
    member.mtime = max(0, entry.mtime)  # the time is set afterwards, as all is
    return member.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")
