"""A PostgreSQL server of one's own: Debian's programs, in a directory that is gone afterwards,
reached over a socket there by whoever may enter it."""

import contextlib
import os
import pwd
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from torpor.vm import VmError

INSTALLED = Path("/usr/lib/postgresql")
USER = "postgres"
"""Who may do everything in it; and as whom it runs if we are root, which it refuses."""
LONGEST_BASE = 60
"""Bytes of the path of the directory in which ours is: that of a socket in ours has at most 107
(unix(7))."""
START_LIMIT, STOP_LIMIT = 60.0, 30.0
ASK_EVERY = 0.05


class PostgresqlError(VmError):
    """There is no PostgreSQL, or it did not start. The text says what to do."""


def programs() -> Path:
    """Return the directory with the programs of the newest version. Raises
    :exc:`PostgresqlError`."""
    found = {
        int(path.parent.name): path
        for path in INSTALLED.glob("*/bin")
        if re.fullmatch(r"\d+", path.parent.name) and (path / "initdb").exists()
    }
    if not found:
        raise PostgresqlError(
            f"There is no PostgreSQL in {INSTALLED}. Install Debian's package postgresql."
        )
    return found[max(found)]


def url_of(directory: Path, database: str = "postgres") -> str:
    """Return the URL of a database of the server in a directory."""
    return f"postgresql://{USER}@/{database}?host={directory}"


@contextlib.contextmanager
def running(settings: Mapping[str, str] | None = None) -> Iterator[Path]:
    """Run a server with an empty database ``postgres`` while the block lasts; return the directory
    of its socket. ``settings`` are PostgreSQL's own.

    To be entered in the program's main thread: the server ends with the thread that has started it
    (prctl(2), PR_SET_PDEATHSIG), however that ends. Raises :exc:`PostgresqlError`.
    """
    found = programs()
    base = tempfile.gettempdir()
    if len(base) > LONGEST_BASE:
        base = "/tmp"  # noqa: S108 - what is made in it is nobody else's
    directory = Path(tempfile.mkdtemp(prefix="pg-", dir=base))
    try:
        who = _as_somebody(directory)
        _make(found, directory, who)
        with _serving(found, directory, settings or {}, who):
            yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _as_somebody(directory: Path) -> dict[str, Any]:
    """Return as whom PostgreSQL is run, and give that one the directory."""
    if os.geteuid() != 0:
        return {}
    found = pwd.getpwnam(USER)
    os.chown(directory, found.pw_uid, found.pw_gid)
    return {"user": found.pw_uid, "group": found.pw_gid, "extra_groups": []}


def _make(found: Path, directory: Path, who: dict[str, Any]) -> None:
    how = ["-U", USER, "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync"]
    made = subprocess.run(
        [found / "initdb", "-D", directory / "data", *how], capture_output=True, cwd="/", **who
    )
    if made.returncode:
        raise PostgresqlError(f"initdb failed:\n{made.stderr.decode(errors='replace')}")


@contextlib.contextmanager
def _serving(
    found: Path, directory: Path, settings: Mapping[str, str], who: dict[str, Any]
) -> Iterator[None]:
    said = {"listen_addresses": "", **settings}
    given = [word for name, value in said.items() for word in ("-c", f"{name}={value}")]
    with open(directory / "log", "wb") as log:
        server = subprocess.Popen(
            ["setpriv", "--pdeathsig", "INT", found / "postgres",
             "-D", directory / "data", "-k", directory, *given],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/", **who,
        )  # fmt: skip
    try:
        _wait(found, directory, server)
        yield
    finally:
        server.send_signal(signal.SIGINT)  # it ends at once, and in good order
        server.wait(STOP_LIMIT)


def _wait(found: Path, directory: Path, server: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + START_LIMIT
    asking = [str(found / "pg_isready"), "-q", "-h", str(directory)]
    while subprocess.run(asking, capture_output=True).returncode:
        if server.poll() is not None or time.monotonic() > until:
            said = (directory / "log").read_text(errors="replace")
            raise PostgresqlError(f"PostgreSQL did not start:\n{said}")
        time.sleep(ASK_EVERY)
