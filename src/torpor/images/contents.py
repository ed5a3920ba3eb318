"""The contents of a layer's files, each in a file of its own that is called as we like.

Whoever makes the tree moves them to where they belong, so each is written once, nobody but the
check reads it, and its holes stay holes.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import BinaryIO

from torpor.images.tar_stream import BLOCK, Entry

PACKED = ".tar"
"""How the name ends of what is an archive of one file: a sparse one, as tar stores it."""
HOLE = 64 << 10
ZEROS = bytes(HOLE)
END = bytes(2 * BLOCK)


class Contents:
    """Takes a layer as it comes, headers and all, with ``begin`` after each header.

    The files are in ``place``, which is there; ``number`` is the layer's.
    """

    def __init__(self, place: Path, number: int) -> None:
        self._place = place
        self._number = number
        self._count = 0
        self._header = bytearray()
        self._body = 0
        self._left = 0
        self._file: BinaryIO | None = None
        self._packed = False

    def write(self, piece: bytes | memoryview) -> None:
        """Take the next bytes of the layer."""
        while piece:
            if not self._body:
                self._header += piece
                return
            part = piece[: self._body]
            self._body -= len(part)
            if self._file is not None:
                self._write(part[: self._left])
            piece = piece[len(part) :]

    def begin(self, entry: Entry) -> str:
        """Say that the header of ``entry`` is complete and its content follows.

        Return the name of the file that its content goes to, empty if it has none.
        """
        self.close()
        self._body = self._left = -(-entry.stored // BLOCK) * BLOCK
        name = ""
        if entry.kind == "file" and entry.size:
            self._packed = entry.sparse
            name = f"{self._number}-{self._count}{PACKED if self._packed else ''}"
            self._count += 1
            self._file = (self._place / name).open("xb", buffering=0)
            if self._packed:
                self._file.write(self._header)
            else:
                self._file.truncate(entry.size)
                self._left = entry.size
        self._header.clear()
        return name

    def end(self) -> None:
        """Say that the archive has ended: what follows is no file's."""
        self.close()
        self._body = 1 << 62

    def close(self) -> None:
        """Close the file that is being written, if there is one."""
        if self._file is not None:
            if self._packed:
                self._file.write(END)
            self._file.close()
            self._file = None

    def _write(self, content: bytes | memoryview) -> None:
        assert self._file is not None
        self._left -= len(content)
        while content:
            part = content[:HOLE]
            if part == ZEROS[: len(part)]:
                self._file.seek(len(part), os.SEEK_CUR)
            else:
                self._file.write(part)
            content = content[len(part) :]
