"""The files of an OCI image layout: in a directory, or in a tar archive that is left as it is."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from torpor.images.errors import HostileImageError
from torpor.images.tar_stream import Reader, entries

CHUNK = 1 << 18
MAX_ARCHIVE_ENTRIES = 10_000
MAX_FILE_NAME = 255
"""Bytes; a blob's name has 141."""
MAX_DOCUMENT = 4 << 20
"""Bytes of a manifest, an index or a config: what registries and their clients take at most."""


@dataclass(frozen=True)
class Layout:
    """A layout on disk. ``files`` says where each of its files lies: path, offset, size; for a
    directory it is empty, and the files are looked up in ``root``."""

    root: Path
    files: Mapping[str, tuple[int, int]] | None = None

    def read(self, name: str, size: int | None = None) -> Iterator[bytes]:
        """Yield a file's content in chunks. It must have ``size`` bytes, if that is given.

        Raises HostileImageError if it has not, is missing, or is no plain file.
        """
        if self.files is not None and name not in self.files:
            raise HostileImageError(f"The image lacks its file {name}.")
        path = self.root if self.files is not None else self.root / name
        # A fifo would make us wait, and a link lead elsewhere.
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        try:
            fd = os.open(path, flags)
        except OSError as error:
            raise HostileImageError(f"The image lacks its file {name}: {error.strerror}.") from None
        with open(fd, "rb", buffering=0) as file:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode):
                raise HostileImageError(f"{name} is not a plain file.")
            offset, length = self.files[name] if self.files is not None else (0, status.st_size)
            if size is not None and length != size:
                raise HostileImageError(f"{name} has {length} bytes; it should have {size}.")
            file.seek(offset)
            while length:
                chunk = file.read(min(CHUNK, length))
                if not chunk:
                    raise HostileImageError(f"{name} became shorter while it was read.")
                length -= len(chunk)
                yield chunk

    def has(self, name: str) -> bool:
        """Whether there is a file of this name."""
        return name in self.files if self.files is not None else (self.root / name).is_file()


def archive_layout(path: Path) -> Layout:
    """The layout in a tar archive, which is left where it is; nothing is unpacked.

    Raises HostileImageError, and OSError. An archive that is something else gives a layout without
    the files of one.
    """
    files: dict[str, tuple[int, int]] = {}
    with open(path, "rb", buffering=0) as file:
        reader = Reader(iter(lambda: file.read(CHUNK), b""))
        for count, entry in enumerate(entries(reader)):
            if count == MAX_ARCHIVE_ENTRIES:
                raise HostileImageError(f"{path} has more than {MAX_ARCHIVE_ENTRIES} files.")
            sound = entry.kind == "file" and entry.size == entry.stored
            if sound and len(entry.name) <= MAX_FILE_NAME:
                name = os.fsdecode(entry.name).removeprefix("./")
                files[name] = (reader.position, entry.size)
    return Layout(path, files)


def bounded(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """Pass chunks on, as long as they come to no more than a document may have."""
    total = 0
    for chunk in chunks:
        total += len(chunk)
        if total > MAX_DOCUMENT:
            raise HostileImageError(f"The index has more than {MAX_DOCUMENT} bytes.")
        yield chunk
