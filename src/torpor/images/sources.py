"""What a user may name to make an image of: the words, and what they lead to."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from torpor.images.errors import ImageError
from torpor.images.layers import UNPACKERS, Source
from torpor.images.layout import CHUNK, Layout, archive_layout
from torpor.images.oci_image import Compression
from torpor.images.programs import SEARCH, Words, find_program

Kind = Literal["oci", "oci-archive", "docker-archive", "docker", "tree", "tar"]
KINDS: tuple[Kind, ...] = ("oci", "oci-archive", "docker-archive", "docker", "tree", "tar")
FORMS = (
    "oci:DIRECTORY[:NAME], oci-archive:FILE[:NAME], docker-archive:FILE[:TAG], docker://REFERENCE, "
    "tree:DIRECTORY, tar:FILE, or just a path"
)
MAGIC: tuple[tuple[bytes, Compression], ...] = (
    (b"\x1f\x8b", "gzip"),
    (b"\x28\xb5\x2f\xfd", "zstd"),
)


@dataclass(frozen=True)
class Named:
    """What a user's words name: a path and the name of an image in it, or a registry's
    reference."""

    kind: Kind
    path: Path = Path()
    name: str | None = None
    reference: str = ""

    def __str__(self) -> str:
        if self.kind == "docker":
            return f"docker://{self.reference}"
        return f"{self.kind}:{self.path}" + (f":{self.name}" if self.name else "")


def read_source(words: str) -> Named:
    """Understand what a user wrote; a path alone is looked at. Raises ImageError."""
    if words.startswith("docker://"):
        reference = words.removeprefix("docker://")
        if not reference or any(each.isspace() for each in reference):
            raise _unknown(words)
        return Named("docker", reference=reference)
    scheme, colon, rest = words.partition(":")
    for kind in KINDS:
        if colon and scheme == kind and kind != "docker":
            return _checked(_located(kind, rest))
    path = Path(words)
    try:
        if path.is_dir():
            return Named("oci" if (path / "oci-layout").is_file() else "tree", path.absolute())
        if path.is_file():
            return Named(_kind_of_archive(path), path.absolute())
    except OSError as error:
        raise _unreadable(path, error) from None
    raise _unknown(words)


def _located(kind: Kind, rest: str) -> Named:
    path = Path(rest)
    if kind in ("tree", "tar") or path.exists() or ":" not in rest:
        return Named(kind, path.absolute())
    before, _, name = rest.rpartition(":")
    return Named(kind, Path(before).absolute(), name)


def _checked(named: Named) -> Named:
    wanted = "directory" if named.kind in ("oci", "tree") else "file"
    there = named.path.is_dir() if wanted == "directory" else named.path.is_file()
    if not there:
        raise ImageError(
            f"There is no {wanted} {named.path}.", "Nothing was changed.", "Name one that is there."
        )
    return named


def _kind_of_archive(path: Path) -> Kind:
    """Whether a file is an archive of an OCI layout, one of Docker's, or just a tree."""
    if _compression(path) != "none":
        return "tar"
    layout = archive_layout(path)
    if layout.has("oci-layout") and layout.has("index.json"):
        return "oci-archive"
    return "docker-archive" if layout.has("manifest.json") else "tar"


def _compression(path: Path) -> Compression:
    with path.open("rb") as file:
        start = file.read(8)
    return next((name for magic, name in MAGIC if start.startswith(magic)), "none")


def layout_of(named: Named) -> Layout:
    """The layout that a directory or an archive is. Raises ImageError and OSError."""
    return Layout(named.path) if named.kind == "oci" else archive_layout(named.path)


def tree_source(named: Named) -> Source:
    """A directory tree, or an archive of one, as if it were a layer. Raises ImageError."""
    if named.kind == "tree":
        return Source(str(named.path), 0, _packed(named.path), None)
    try:
        compression = _compression(named.path)
    except OSError as error:
        raise _unreadable(named.path, error) from None

    def chunks() -> Iterator[bytes]:
        with named.path.open("rb", buffering=0) as file:
            yield from UNPACKERS[compression](iter(lambda: file.read(CHUNK), b""))

    return Source(str(named.path), named.path.stat().st_size, chunks, None)


def _packed(directory: Path) -> Callable[[], Iterator[bytes]]:
    line = [
        find_program("tar"), "--create", "--format=pax", "--sort=name", "--numeric-owner",
        "--pax-option=delete=atime,delete=ctime,exthdr.name=%d/PaxHeaders/%f",
        "--xattrs", "--xattrs-include=*", "--acls", "--one-file-system",
        "--directory", str(directory), ".",
    ]  # fmt: skip

    def chunks() -> Iterator[bytes]:
        environment = {**os.environ, "PATH": SEARCH, "LC_ALL": "C.UTF-8"}
        with _owners() as maps, subprocess.Popen(
            [*line, *(f"--{what}-map=/proc/self/fd/{fd}" for what, fd in maps.items())],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env=environment, pass_fds=tuple(maps.values()),
        ) as process:  # fmt: skip
            assert process.stdout is not None
            assert process.stderr is not None
            words = Words(process.stderr, 4000)
            try:
                while chunk := process.stdout.read(CHUNK):
                    yield chunk
                said = words.text()
                status = process.wait()
            finally:
                process.kill()
                words.text()
        if status != 0:
            raise ImageError(
                f"The directory {directory} could not be read as a whole. tar said:\n{said}",
                "Nothing was changed.",
                "See that you may read all of it, and that nothing changes it meanwhile.",
            )

    return chunks


@contextmanager
def _owners() -> Iterator[dict[str, int]]:
    """Descriptors of tar's maps of owners and groups: an ordinary user's own files are root's, as
    they are to be in an image. (Under fakeroot they were, but had no extended attributes.)"""
    own = {"owner": os.geteuid(), "group": os.getegid()} if os.geteuid() != 0 else {}
    with ExitStack() as stack:
        maps = {}
        for what, number in own.items():
            file = stack.enter_context(tempfile.TemporaryFile())
            file.write(f"+{number} root:0\n".encode())
            file.flush()
            maps[what] = file.fileno()
        yield maps


def _unreadable(path: Path, error: OSError) -> ImageError:
    return ImageError(
        f"{path} cannot be read: {error.strerror}.", "Nothing was changed.", "See that it can."
    )


def _unknown(words: str) -> ImageError:
    return ImageError(
        f"There is nothing called {words!r} to make an image of.",
        "Nothing was changed.",
        f"Say where it is: {FORMS}.",
    )
