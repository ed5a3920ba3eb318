"""Running programs on what strangers have made: they see nothing but what they work on.

A confined program is an unprivileged user without capabilities, in namespaces of its own: it sees
the system's programs, one directory that it may write and what else it is given to read; no
network, unless it is to fetch something. As root, bubblewrap sets this up and gives the program a
user id that nobody else has; an ordinary user's program is that user, in a user namespace.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from torpor.images.programs import SEARCH, find_program, ignore_line, run
from torpor.vm.bubblewrap import system, walls

USER = 0x7000_FFFF
"""The last of the user ids that machines may get (``torpor.vm.jail``): the first are used first."""
WORK = "/room"
ADDRESS_SPACE = 4 << 30
CPU_SECONDS = 3600
PROCESSES = 256
OPEN_FILES = 4096
ADVICE = (
    "If it says that it may not make namespaces: `torpor doctor` tells what this host lacks. "
    "Else run the same command again."
)
# What a resolver and TLS need, for who may use the network.
NETWORK_FILES = (
    "/etc/resolv.conf", "/etc/hosts", "/etc/nsswitch.conf", "/etc/ssl", "/etc/pki",
    "/etc/ca-certificates", "/usr/local/share/ca-certificates", "/etc/containers",
)  # fmt: skip


@dataclass(frozen=True)
class Room:
    """What a confined program sees: ``work`` to write, as ``/room`` (nothing if None); ``inputs``
    to read, by the name that each has inside. ``max_file`` is the size that a file may grow to,
    in bytes."""

    work: Path | None
    max_file: int
    inputs: Mapping[str, Path] = field(default_factory=dict)
    network: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)


def give(path: Path) -> None:
    """Make a new directory that belongs to confined programs, and that nobody else can enter.

    It may hold set-uid programs and the like of an image.
    """
    path.mkdir(mode=0o700)
    if os.geteuid() == 0:
        os.chown(path, USER, USER)


async def run_confined(
    room: Room,
    *command: str,
    on_line: Callable[[str], None] = ignore_line,
    advice: str = ADVICE,
) -> None:
    """Run a command in a room to its end. Raises ImageError as :func:`run` does."""
    # It gets no lock of ours: all in its PID namespace ends with bubblewrap, and that with us.
    line = confined(room, command)
    await run(
        *line, lock=None, on_line=on_line, end_by=signal.SIGKILL, advice=advice,
        called=Path(command[0]).name,
    )  # fmt: skip


def confined(room: Room, command: Sequence[str]) -> list[str]:
    """The command line that runs a command in a room."""
    root = os.geteuid() == 0
    # fmt: off
    line = [
        # As root without a user namespace: in one, bubblewrap would leave the program the user 0
        # that the host's files belong to.
        find_program("bwrap"), *walls(users=not root, network=room.network),
        "--hostname", "torpor", "--setenv", "PATH", SEARCH, "--setenv", "HOME", WORK,
        "--setenv", "TMPDIR", WORK, "--setenv", "LC_ALL", "C.UTF-8",
        "--dir", "/etc", *system(), "--ro-bind-try", "/etc/alternatives", "/etc/alternatives",
    ]
    # fmt: on
    python = Path(sys.base_prefix)
    if not python.is_relative_to("/usr"):
        # Made by a bind, the directories above it would be closed to all but root.
        for above in reversed(python.parents[:-1]):
            line += ["--dir", str(above)]
        line += ["--ro-bind", str(python), str(python)]
    line += ["--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"]  # noqa: S108
    if room.network:
        for name in NETWORK_FILES:
            line += ["--ro-bind-try", name, name]
    for name, value in room.environment.items():
        line += ["--setenv", name, value]
    for name, path in room.inputs.items():
        line += ["--ro-bind", str(path), name]
    if room.work is not None:
        line += ["--bind", str(room.work), WORK]
    # The root is a file system in memory, and an ordinary user's own.
    line += ["--remount-ro", "/", "--chdir", "/"]
    limits = [
        f"--as={ADDRESS_SPACE}", f"--cpu={CPU_SECONDS}", f"--fsize={room.max_file}",
        f"--nofile={OPEN_FILES}", "--core=0",
    ]  # fmt: skip
    if root:
        # With both capabilities setpriv takes it to another user, and with that they are gone.
        line += ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID", "--"]
        line += ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups"]
        line += ["--inh-caps=-all", "--no-new-privs"]
        limits.append(f"--nproc={PROCESSES}")
    return [*line, "--", "prlimit", *limits, "--", *command]
