"""Images by name: what a user has built or imported, kept where it is not lost with the cache.

    names/<name>.json   what the name stands for (docs/images.md)
    disks/<digest>.raw  root disks: hard links into the cache, or copies on another file system

A name is one file, put in place by a rename, so it stands for the old image or the new one. A disk
stays while a name stands for it; machines and snapshots have links of their own to what they need.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import ConfigDict, TypeAdapter, ValidationError

from torpor.images.authorities import wanted_authorities
from torpor.images.config import ImageConfig
from torpor.images.debian import Recipe, debian_image
from torpor.images.errors import ImageError
from torpor.images.image import Image
from torpor.images.importing import Imported
from torpor.images.progress import Report
from torpor.vm.base import link_or_copy
from torpor.vm.syncing import fsync

VERSION = 1
DEFAULT = "default"
NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")


@dataclass(frozen=True)
class Record:
    """What a name stands for. ``source`` is where the image came from, ``manifest`` the digest of
    its OCI manifest; ``recipe`` what it was built from, if it was. ``authorities`` are the SHA-256
    sums of the certificates that were added, ``content_bytes`` what its files have together."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    version: int
    name: str
    digest: str
    size_bytes: int
    created_at: str
    source: str
    manifest: str | None
    recipe: Recipe | None
    authorities: tuple[str, ...]
    content_bytes: int | None
    files: int | None
    config: ImageConfig
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Listed:
    """A named image and what its disk takes: ``stored_bytes`` on disk, ``alone_bytes`` of them for
    this name only (0 while the cache, another name, a snapshot or a machine has it too)."""

    record: Record
    stored_bytes: int
    alone_bytes: int


class Names:
    """The named images of one installation, below ``home/images``."""

    def __init__(self, home: Path) -> None:
        self.root = home / "images"

    def records(self) -> list[Record]:
        """Return all records, by name. Raises ImageError if one is damaged."""
        try:
            files = sorted((self.root / "names").glob("*.json"))
        except OSError:
            return []
        return [_read(file) for file in files]

    def record(self, name: str) -> Record:
        """Return the record of a name. Raises ImageError if there is none."""
        check_name(name)
        file = self.root / "names" / f"{name}.json"
        if not file.exists():
            raise _no_image(name)
        return _read(file)

    def image(self, name: str) -> Image:
        """Return the image of a name. Raises ImageError."""
        found = self.record(name)
        disk = self._disk(found.digest)
        if not disk.is_file():
            raise ImageError(
                f"The disk of the image {name} is missing: {disk}.",
                "Its name is still there.",
                f"Import it again from {found.source}, under the same name with --replace.",
            )
        return Image(name, found.digest, disk, found.size_bytes, found.config)

    def listed(self, name: str) -> Listed:
        """Return a name's record, and what its disk takes. Raises ImageError."""
        found = self.record(name)
        others = [each for each in self.records() if each.digest == found.digest]
        stored = alone = 0
        with contextlib.suppress(FileNotFoundError):
            status = self._disk(found.digest).stat()
            stored = status.st_blocks * 512
            alone = stored if status.st_nlink == 1 and len(others) == 1 else 0
        return Listed(found, stored, alone)

    def put(self, record: Record, root: Path, *, replace: bool) -> Image:
        """Give an image a name; ``root`` is its disk, which is linked to or copied. Blocks.

        Raises ImageError if the name is taken and not to be replaced, and OSError.
        """
        with self._locked():
            file = self.root / "names" / f"{record.name}.json"
            if file.exists() and not replace:
                raise taken(record.name)
            disk = self._disk(record.digest)
            if not disk.exists():
                new = disk.with_name(f".{disk.name}.{secrets.token_hex(4)}")
                try:
                    link_or_copy(root, new)
                    fsync(new)
                    new.rename(disk)
                finally:
                    new.unlink(missing_ok=True)
                fsync(disk.parent)
            written = file.with_name(f".{file.name}")
            written.write_bytes(TypeAdapter(Record).dump_json(record, indent=1))
            fsync(written)
            written.rename(file)
            fsync(file.parent)
            self._collect()
        return self.image(record.name)

    def remove(self, name: str) -> int:
        """Remove a name, and its disk if no other stands for it; return the bytes that are free
        now. Machines and snapshots that came from it go on. Blocks. Raises ImageError."""
        self.record(name)
        with self._locked():
            file = self.root / "names" / f"{name}.json"
            if not file.exists():
                raise _no_image(name)
            file.unlink()
            fsync(file.parent)
            return self._collect()

    def _disk(self, digest: str) -> Path:
        return self.root / "disks" / f"{digest}.raw"

    def _collect(self) -> int:
        """Remove the disks that no name stands for. None goes while a record cannot be read."""
        try:
            wanted = {self._disk(each.digest) for each in self.records()}
        except ImageError:
            return 0
        freed = 0
        for disk in (self.root / "disks").iterdir():
            if disk not in wanted:
                status = disk.stat()
                freed += status.st_blocks * 512 if status.st_nlink == 1 else 0
                disk.unlink()
        return freed

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        for part in ("names", "disks"):
            (self.root / part).mkdir(parents=True, exist_ok=True)
        # An image may hold what is nobody else's business.
        self.root.chmod(0o700)
        fd = os.open(self.root / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)


async def open_image(cache: Path, home: Path, name: str, report: Report) -> Image:
    """Return the image of a name, to be booted or made golden. Raises ImageError.

    ``default`` is the one that Torpor brings; it is built if it is not in the cache.
    """
    if name == DEFAULT:
        return await debian_image(cache, Recipe(), report)
    return Names(home).image(name)


def check_name(name: str) -> None:
    """Raise ImageError if an image cannot be called ``name``."""
    if not NAME.fullmatch(name) or name == DEFAULT:
        raise ImageError(
            f"An image cannot be called {name!r}.",
            "Nothing was changed.",
            "Use up to 63 small letters, digits, dots, hyphens and underscores, the first a letter "
            f"or a digit; {DEFAULT!r} is Torpor's own.",
        )


def imported_record(name: str, imported: Imported) -> Record:
    """The record of an image that was just imported."""
    return Record(
        VERSION, name, imported.image.digest, imported.image.size_bytes, _now(),
        str(imported.source), imported.manifest, None, imported.authorities.digests,
        imported.content_bytes, imported.files, imported.image.config, imported.notes,
    )  # fmt: skip


def built_record(name: str, recipe: Recipe, image: Image) -> Record:
    """The record of an image that was just built of a recipe."""
    return Record(
        VERSION, name, image.digest, image.size_bytes, _now(), f"debian:{recipe.suite}", None,
        recipe, wanted_authorities().digests, None, None, image.config, (),
    )  # fmt: skip


def taken(name: str) -> ImageError:
    """The error for a name that another image has."""
    return ImageError(
        f"There is an image called {name} already.",
        "It was left as it is.",
        "Choose another name, or say --replace.",
    )


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _no_image(name: str) -> ImageError:
    return ImageError(
        f"There is no image called {name}.", "Nothing was changed.", "See `torpor image list`."
    )


def _read(file: Path) -> Record:
    try:
        text = file.read_bytes()
        version = TypeAdapter(dict[str, Any]).validate_json(text).get("version")
        if version != VERSION:
            raise ImageError(
                f"{file} has version {version!r}; this Torpor reads version {VERSION}.",
                "Nothing was changed.",
                "Use the Torpor that wrote it.",
            )
        found = TypeAdapter(Record).validate_json(text)
    except (ValidationError, OSError) as error:
        raise ImageError(
            f"The record of an image, {file}, is damaged: {str(error)[:500]}",
            "It was left as it is; no image's disk is removed meanwhile.",
            f"Remove it (rm {file}) and make the image again.",
        ) from None
    if found.name != file.name.removesuffix(".json"):
        raise ImageError(
            f"{file} is the record of an image called {found.name!r}.",
            "It was left as it is.",
            "Give the file its own name again.",
        )
    return found
