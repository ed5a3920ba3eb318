"""Who serves a home: noted there by the server while it does, for commands on the same computer.

server.json   its address, process and version
"""

import json
import os
import secrets
from dataclasses import asdict, dataclass
from pathlib import Path

FILE = "server.json"


@dataclass(frozen=True)
class Presence:
    """A server that serves: where it is reached, which process it is, and which Torpor.

    ``started`` is the kernel's time of the process's start, in its ticks since the boot: another
    process of the same number has another.
    """

    url: str
    pid: int
    started: int
    version: str


def announce(home: Path, url: str, version: str) -> None:
    """Note that this process serves a home, at ``url``. Raises OSError."""
    pid = os.getpid()
    said = Presence(url, pid, _started(pid) or 0, version)
    new = home / f".{FILE}.{secrets.token_hex(4)}"
    new.write_text(json.dumps(asdict(said)))
    new.rename(home / FILE)


def withdraw(home: Path) -> None:
    """Note that this process serves a home no longer."""
    (home / FILE).unlink(missing_ok=True)


def presence(home: Path) -> Presence | None:
    """Return who serves a home now; None if nobody does, or it may not be read by this user."""
    try:
        said = json.loads((home / FILE).read_bytes())
        found = Presence(**said)
    except (OSError, ValueError, TypeError):
        return None
    return found if _started(found.pid) == found.started else None


def _started(pid: int) -> int | None:
    try:
        # The name before it may have blanks and brackets (proc(5)).
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except (OSError, IndexError, ValueError):
        return None
