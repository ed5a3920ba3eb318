"""Copying files and trees between here and a session's machine.

A file goes as it is; a directory as a tar archive. An archive that comes out of a machine is not
trusted: nothing of it is written outside of where it belongs, and links that lead there are left
out and named.
"""

import os
import stat
import sys
import tarfile
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING

from torpor.cli.progress import Shown
from torpor.cli.untrusted_archive import NOT_SOUND, Checked, Member

if TYPE_CHECKING:
    from torpor.client import Client, FileStatus

PIECE = 256 << 10
STDIO = "-"


class CopyError(Exception):
    """It cannot be copied like this. The text says why, and what to do."""


@dataclass(frozen=True)
class There:
    """A path in a session's machine."""

    session: str
    path: str


@dataclass(frozen=True)
class Amount:
    """How far a copy is, in bytes."""

    name: str
    done: int | None
    total: int | None
    unit: str = "bytes"


Report = Callable[[Amount], None]


def place(said: str) -> There | Path | None:
    """Return where ``SESSION:PATH``, a path here, or ``-`` (None) is."""
    if said == STDIO:
        return None
    before, colon, after = said.partition(":")
    if colon and before and "/" not in before:
        return There(before, after or "/")
    return Path(said)


def copy(client: "Client", source: str, target: str, resume: str | None = None) -> None:
    """Copy a file or a tree; ``resume`` is the transfer of a large file that is gone on with.
    Raises :exc:`CopyError`, OSError and the client's errors."""
    start, end = place(source), place(target)
    if isinstance(start, There) and isinstance(end, There):
        raise CopyError(
            "One of the two must be here. Between sessions: torpor cp A:PATH - | torpor cp - B:PATH"
        )
    if isinstance(end, There) and not isinstance(start, There):
        with Shown() as shown:
            _put(client, start, end, resume, shown.report)
    elif isinstance(start, There) and not isinstance(end, There):
        with Shown() as shown:
            _get(client, start, end, resume, shown.report)
    else:
        raise CopyError("One of the two must be in a session: SESSION:PATH.")


# Into the machine


def _put(
    client: "Client", source: Path | None, target: There, resume: str | None, report: Report
) -> None:
    from torpor.cli.large import is_large, put_large

    if source is None:
        _check_resumable(resume, file=False)
    found = _status(client, target)
    inside = found is not None and found.type == "directory"
    if source is None:
        stdin = _pieces_of(sys.stdin.buffer)
        if inside:
            archive = _counted(stdin, f"unpacking into {target.path}", None, report)
            client.write_archive(target.session, target.path, archive)
        else:
            _write(client, target, target.path, stdin, None, 0o644, report)
        return
    info = source.stat()
    if not inside and target.path.endswith("/"):
        raise CopyError(f"There is no directory {target.path} in {target.session}. Make it first.")
    path = _joined(target.path, source.resolve().name) if inside else target.path
    regular, mode = stat.S_ISREG(info.st_mode), stat.S_IMODE(info.st_mode) & 0o777
    _check_resumable(resume, file=regular)
    if resume is not None or (regular and is_large(path, info.st_size)):
        put_large(client, source, There(target.session, path), mode, resume, report)
        return
    if stat.S_ISDIR(info.st_mode):
        whole = PurePosixPath(path)
        with _packed(source, whole.name) as pieces:
            archive = _counted(pieces, f"copying {source}", None, report)
            client.write_archive(target.session, str(whole.parent), archive)
        return
    with source.open("rb") as file:
        total = info.st_size if regular else None
        _write(client, target, path, _pieces_of(file), total, mode, report)


def _write(
    client: "Client",
    target: There,
    path: str,
    pieces: Iterable[bytes],
    total: int | None,
    mode: int,
    report: Report,
) -> None:
    counted = _counted(pieces, f"copying to {path}", total, report)
    client.write_file(target.session, path, counted, mode=mode)


@contextmanager
def _packed(source: Path, name: str) -> Iterator[Iterator[bytes]]:
    """Yield the pieces of a tar archive of a directory, which is made as it is read."""
    failed: list[BaseException] = []
    reading, writing = os.pipe()

    def pack() -> None:
        try:
            with (
                os.fdopen(writing, "wb") as end,
                tarfile.open(fileobj=end, mode="w|", format=tarfile.PAX_FORMAT) as archive,
            ):
                archive.add(source, name, filter=_owned_by_root)
        except BrokenPipeError:
            pass  # the server has refused it, and has said why
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=pack, daemon=True)
    thread.start()
    try:
        with os.fdopen(reading, "rb") as start:

            def pieces() -> Iterator[bytes]:
                yield from _pieces_of(start)
                thread.join()
                if failed:
                    raise failed[0]  # and not the end of an archive that is not whole

            yield pieces()
    finally:
        thread.join()


def _owned_by_root(member: tarfile.TarInfo) -> tarfile.TarInfo:
    # Numbers of users here mean others there.
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


# Out of the machine


def _get(
    client: "Client", source: There, target: Path | None, resume: str | None, report: Report
) -> None:
    from torpor.cli.large import get_large, is_large

    found = client.get_file_status(source.session, source.path, follow=True)
    name = PurePosixPath(source.path).name or "root"
    tree = found.type == "directory"
    _check_resumable(resume, file=target is not None and found.type == "file")
    if target is None:
        read = client.read_archive_pieces if tree else client.read_file_pieces
        with closing(read(source.session, source.path)) as pieces:
            total = None if tree else found.size
            for piece in _counted(pieces, f"reading {source.path}", total, report):
                sys.stdout.buffer.write(piece)
        sys.stdout.buffer.flush()
        return
    into = target / name if target.is_dir() else target
    if tree:
        _get_tree(client, source, into, report)
        return
    ordinary = found.type == "file" and (into.is_file() or not into.exists())
    if resume is not None or (ordinary and is_large(source.path, found.size)):
        get_large(client, source, into, found, resume, report)
        return
    with _replacing(into, found) as file, closing(
        client.read_file_pieces(source.session, source.path)
    ) as pieces:  # fmt: skip
        for piece in _counted(pieces, f"copying {source.path}", found.size or None, report):
            file.write(piece)


@contextmanager
def _replacing(target: Path, found: "FileStatus") -> Iterator[IO[bytes]]:
    """Yield a file that takes the place of ``target`` once it is whole; nobody sees half of it."""
    if target.exists() and not target.is_file():
        with target.open("wb") as file:  # a device, or a pipe, is written to
            yield file
        return
    with tempfile.NamedTemporaryFile(
        dir=target.parent, prefix=f".{target.name}.", delete=False
    ) as file:
        part = Path(file.name)
        try:
            yield file
            file.flush()
            put_in_place(part, target, found.mode)
        except BaseException:
            part.unlink(missing_ok=True)
            raise


def put_in_place(part: Path, target: Path, mode: int) -> None:
    """Have a file that is whole take the place of ``target``, with its rights, or as a new one with
    those of ``mode``."""
    mask = os.umask(0)
    os.umask(mask)
    kept = stat.S_IMODE(target.stat().st_mode) if target.exists() else mode & ~mask
    part.chmod(kept & 0o777)
    part.replace(target)


def _get_tree(client: "Client", source: There, into: Path, report: Report) -> None:
    if not hasattr(tarfile, "data_filter"):
        raise CopyError(
            "This Python unpacks archives without checking them. Take 3.11.4 or later, or copy to"
            " standard output and unpack that yourself."
        )
    if into.exists() and not into.is_dir():
        raise CopyError(f"{into} is there, and is no directory.")
    checked = Checked()
    # Beside the target, so that it is the same file system: one name, and all of it is there.
    with tempfile.TemporaryDirectory(dir=into.parent, prefix=f".{into.name}.") as name:
        part = Path(name) / "tree"
        part.mkdir()
        unpacked = into if into.is_dir() else part
        with closing(
            client.read_archive_pieces(source.session, source.path, name=".")
        ) as pieces:  # fmt: skip
            reader = _Reader(_counted(pieces, f"copying {source.path}", None, report))
            try:
                with tarfile.open(  # type: ignore[call-overload]
                    fileobj=reader, mode="r|", tarinfo=Member
                ) as archive:
                    archive.extractall(unpacked, filter=checked)  # noqa: S202 (checked)
            except NOT_SOUND as error:
                raise CopyError(
                    f"What came from {source.session} is no sound archive: {error}. What was there"
                    " before it broke off may have been copied."
                ) from None
            finally:
                checked.remove_links_out(unpacked)
            reader.drain()
        if unpacked is part:
            part.rename(into)
    left_out = checked.left_out
    if left_out:
        raise CopyError(
            f"{into} is copied, but for what leads out of it: {', '.join(left_out[:10])}"
            + (f" and {len(left_out) - 10} more." if len(left_out) > 10 else ".")
            + f" All of it, as an archive: torpor cp {source.session}:{source.path} -"
        )


class _Reader:
    """Pieces as a file that can only be read, as tarfile wants it."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._rest = b""

    def read(self, size: int) -> bytes:
        """Return ``size`` bytes, fewer only at the end."""
        parts, missing = [], size
        while missing:
            if not self._rest:
                self._rest = next(self._pieces, b"")
                if not self._rest:
                    break
            part, self._rest = self._rest[:missing], self._rest[missing:]
            parts.append(part)
            missing -= len(part)
        return b"".join(parts)

    def drain(self) -> None:
        """Read what is left, so that an answer that breaks off is not taken for whole."""
        for _ in self._pieces:
            pass


# Both ways


def _check_resumable(resume: str | None, *, file: bool) -> None:
    if resume is not None and not file:
        raise CopyError("Only the copy of a single file to another place can be gone on with.")


def _status(client: "Client", where: There) -> "FileStatus | None":
    from torpor.client import NotFoundError

    try:
        return client.get_file_status(where.session, where.path, follow=True)
    except NotFoundError as error:
        if error.id == "guest_enoent":
            return None
        raise  # there is no such session


def _joined(directory: str, name: str) -> str:
    return str(PurePosixPath(directory) / name)


def _pieces_of(file: IO[bytes]) -> Iterator[bytes]:
    while piece := file.read(PIECE):
        yield piece


def _counted(
    pieces: Iterable[bytes], name: str, total: int | None, report: Report
) -> Iterator[bytes]:
    done = 0
    report(Amount(name, done, total))
    for piece in pieces:
        yield piece
        done += len(piece)
        report(Amount(name, done, total))
