"""What the server tells of commands, files and processes in a session's machine, as plain data."""

import base64
import binascii
from dataclasses import dataclass

from torpor.client import fields
from torpor.client.errors import AnswerError
from torpor.client.fields import Said


@dataclass(frozen=True)
class Terminal:
    """A terminal's size in characters."""

    rows: int = 24
    columns: int = 80


@dataclass(frozen=True)
class Ran:
    """A command that has ended: with ``status``, as a shell has it, which is its exit code, or 128
    and the number of the ``signal`` that killed it.

    ``stdout`` and ``stderr`` are what it wrote, the first MiB of each; ``cut`` says that there was
    more. ``timed_out`` says that its time was over.
    """

    status: int
    signal: int | None
    stdout: bytes
    stderr: bytes
    seconds: float
    timed_out: bool = False
    cut: bool = False
    exec_id: str | None = None


def status_of(code: int | None, signal: int | None) -> int:
    """Return what a shell has as the status of a command that ended so."""
    return 128 + signal if signal is not None else 255 if code is None else code


def output(said: Said, name: str) -> bytes:
    """Read output: its bytes where the server has them, for text stands for UTF-8 alone."""
    exact = fields.perhaps_text(said, f"{name}_base64")
    if exact is None:
        return fields.text(said, name, "").encode()
    return decoded(exact)


def decoded(text: str) -> bytes:
    """Return what a text in base64 stands for."""
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise AnswerError(f"The server sent base64 that is none: {error}.") from error


@dataclass(frozen=True)
class Exec:
    """A command in a session's machine, that runs or has ended: with ``status``, as a shell has it,
    by ``signal`` if there was one. Of its output, bytes ``output_start`` to ``output_end`` are
    kept."""

    id: str
    pid: int | None
    argv: tuple[str, ...]
    running: bool
    output_start: int
    output_end: int
    status: int | None
    signal: int | None
    timed_out: bool


def exec_(said: Said) -> Exec:
    """Read what the server says of a command."""
    code, killer = (fields.perhaps_number(said, name) for name in ("exit_code", "signal"))
    return Exec(
        id=fields.text(said, "exec_id"),
        pid=fields.perhaps_number(said, "pid"),
        argv=fields.texts(said, "argv"),
        running=fields.flag(said, "running", True),
        output_start=fields.number(said, "output_start", 0),
        output_end=fields.number(said, "output_end", 0),
        status=None if code is None and killer is None else status_of(code, killer),
        signal=killer,
        timed_out=fields.flag(said, "timed_out", False),
    )


@dataclass(frozen=True)
class FileStatus:
    """What ``lstat`` says of a file in the machine. ``type`` is file, directory, link, fifo,
    socket, block, character or unknown; ``mode`` has the bits of permissions; ``target`` is a
    link's."""

    type: str
    mode: int
    size: int
    uid: int
    gid: int
    mtime_ns: int
    stored: int = 0
    links: int = 1
    target: str | None = None


def file_status(said: Said) -> FileStatus:
    """Read the status of a file."""
    return FileStatus(
        type=fields.text(said, "type"),
        mode=_octal(said, "mode"),
        size=fields.number(said, "size"),
        uid=fields.number(said, "uid"),
        gid=fields.number(said, "gid"),
        mtime_ns=fields.number(said, "mtime_ns"),
        stored=fields.number(said, "stored", 0),
        links=fields.number(said, "links", 1),
        target=fields.perhaps_text(said, "target"),
    )


def _octal(said: Said, name: str) -> int:
    digits = fields.text(said, name)
    try:
        return int(digits, 8)
    except ValueError as error:
        raise AnswerError(f"The server's answer has {digits!r} for {name!r}.") from error


@dataclass(frozen=True)
class FileEntry:
    """Something in a directory, by its ``path`` from there. ``error`` says why its ``status`` or
    its ``sha256`` is not known."""

    path: str
    status: FileStatus | None
    sha256: str | None = None
    error: str | None = None


def file_entry(said: Said) -> FileEntry:
    """Read an entry of a directory."""
    return FileEntry(
        path=fields.text(said, "path"),
        status=None if said.get("file") is None else file_status(fields.part(said, "file")),
        sha256=fields.perhaps_text(said, "sha256"),
        error=fields.perhaps_text(said, "error"),
    )


@dataclass(frozen=True)
class Process:
    """A process in the machine; ``exec`` is the command that it belongs to. ``cpu`` is in seconds,
    ``memory`` in resident bytes. ``user``: that it is the user's, and may be sent signals."""

    pid: int
    ppid: int
    uid: int
    name: str
    argv: tuple[str, ...]
    state: str
    cpu: float
    memory: int
    threads: int
    exec: str | None
    user: bool


def process(said: Said) -> Process:
    """Read a process."""
    return Process(
        pid=fields.number(said, "pid"),
        ppid=fields.number(said, "ppid", 0),
        uid=fields.number(said, "uid", 0),
        name=fields.text(said, "name", ""),
        argv=fields.texts(said, "argv"),
        state=fields.text(said, "state", ""),
        cpu=fields.real(said, "cpu", 0.0),
        memory=fields.number(said, "memory", 0),
        threads=fields.number(said, "threads", 1),
        exec=fields.perhaps_text(said, "exec_id"),
        user=fields.flag(said, "user", False),
    )


@dataclass(frozen=True)
class FileChange:
    """Something that happened in what is watched: ``ready`` first, ``overflow`` when something may
    have been missed, else what happened to ``path``."""

    event: str
    path: str


def file_change(said: Said) -> FileChange:
    """Read what happened to a file."""
    return FileChange(fields.text(said, "event"), fields.text(said, "path", ""))


@dataclass(frozen=True)
class Unpacked:
    """What came of an archive: ``members`` that were made, ``attributes`` of them that could not be
    given, members that were ``skipped`` for their kind."""

    members: int
    attributes: int
    skipped: int


def unpacked(said: Said) -> Unpacked:
    """Read what came of an archive."""
    names = ("members", "attributes", "skipped")
    return Unpacked(*(fields.number(said, name, 0) for name in names))
