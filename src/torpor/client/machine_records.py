"""What the server tells of commands, files and processes in a session's machine, as plain data."""

import base64
import binascii
from dataclasses import dataclass
from datetime import datetime
from typing import Any

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
    """A command that has ended: its exit ``code``, or the number of the ``signal`` that killed it.

    ``stdout`` and ``stderr`` are what it wrote, the first MiB of each; ``cut`` says that there was
    more. ``timed_out`` says that its time was over.
    """

    code: int | None
    signal: int | None
    stdout: bytes
    stderr: bytes
    seconds: float
    timed_out: bool = False
    cut: bool = False

    @property
    def status(self) -> int:
        """What a shell would have as its status: the code, or 128 and the signal's number."""
        return status_of(self.code, self.signal)


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
    """A command in a session's machine, that runs or has ended. ``told`` is all that the server
    says of it, in the server's words."""

    id: str
    pid: int | None
    argv: tuple[str, ...]
    running: bool
    terminal: bool
    code: int | None
    signal: int | None
    timed_out: bool
    told: dict[str, Any]


def exec_(said: Said) -> Exec:
    """Read what the server says of a command."""
    ended = fields.perhaps_part(said, "exit")
    return Exec(
        id=fields.text(said, "exec_id"),
        pid=fields.perhaps_number(said, "pid"),
        argv=fields.texts(said, "argv"),
        running=fields.flag(said, "running", not ended),
        terminal=bool(said.get("terminal")),
        code=fields.perhaps_number(ended, "code"),
        signal=fields.perhaps_number(ended, "signal"),
        timed_out=fields.flag(ended, "timed_out", False),
        told=dict(said),
    )


@dataclass(frozen=True)
class FileStatus:
    """What ``lstat`` says of a file in the machine. ``type`` is file, directory, link and so on;
    ``mode`` has the bits of the type; ``target`` is a link's."""

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
        mode=fields.number(said, "mode"),
        size=fields.number(said, "size"),
        uid=fields.number(said, "uid"),
        gid=fields.number(said, "gid"),
        mtime_ns=fields.number(said, "mtime_ns"),
        stored=fields.number(said, "stored", 0),
        links=fields.number(said, "links", 1),
        target=fields.perhaps_text(said, "target"),
    )


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
        status=file_status(said) if "mode" in said else None,
        sha256=fields.perhaps_text(said, "sha256"),
        error=fields.perhaps_text(said, "error"),
    )


@dataclass(frozen=True)
class Process:
    """A process in the machine; ``exec`` is the command that it belongs to. ``cpu`` is in seconds,
    ``memory`` in resident bytes."""

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
        exec=fields.perhaps_text(said, "exec"),
    )


@dataclass(frozen=True)
class FileChange:
    """Something that happened to a file that is watched, in the server's words."""

    type: str
    path: str | None
    at: datetime | None
    told: dict[str, Any]


def file_change(kind: str, said: Said) -> FileChange:
    """Read what happened to a file."""
    return FileChange(
        kind,
        fields.perhaps_text(said, "path"),
        fields.perhaps_moment(said, "at"),
        dict(said),
    )
