"""Disks in the machine's slots, mounted before the user's processes run.

A disk is found by its serial. It is mounted by a process of its own: what is on it was written by
whoever had it before, and the kernel may take long over it, or never end.
"""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torpor.guest.errors import describe
from torpor.guest.loop import READ, Loop

BLOCK = Path("/sys/block")
SECTOR = 512
SIZE_LIMIT, LIMIT = 10.0, 45.0
"""Seconds after which a disk counts as too small, and after which nobody waits for a mount any
more."""
MOUNT = ("/run/torpor/tools/bin/busybox", "mount", "-t", "ext4", "-o", "nodev")
"""Not the system call by ctypes: importing that costs the agent a megabyte in every machine."""
_MOST_SAID = 16 << 10

Said = Callable[[list[str | None]], None]


class Disks:
    """Mounts disks, from the agent's event loop."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop

    def mount(self, wanted: list[dict[str, Any]], done: Said) -> None:
        """Mount disks one after the other and call ``done`` with why each could not be, or None.

        Of each, ``serial`` says which it is, ``size`` how many bytes it has as soon as the kernel
        knows, ``path`` where it goes, and ``fresh`` that nobody has had it yet. Raises OSError.
        """
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                os.write(writer, json.dumps([_mounted(each) for each in wanted]).encode())
            finally:
                os._exit(0)
        os.close(writer)
        pidfd = os.pidfd_open(pid)

        def ended(_events: int) -> None:
            timer.cancel()
            os.waitpid(pid, 0)
            finish(os.read(reader, _MOST_SAID))

        def too_slow() -> None:
            os.kill(pid, signal.SIGKILL)  # in the kernel it may never hear of it
            finish(b"")

        def finish(text: bytes) -> None:
            self._loop.forget(pidfd)
            os.close(pidfd)
            os.close(reader)
            said = json.loads(text) if text else [f"not mounted after {LIMIT:g} s"] * len(wanted)
            done(said)

        timer = self._loop.after(LIMIT, too_slow)
        self._loop.watch(pidfd, READ, ended)


def _mounted(wanted: dict[str, Any]) -> str | None:
    """Mount a disk; return why it could not be, or None."""
    path = wanted["path"]
    try:
        device = find(wanted["serial"])
        if not _has_size(device, int(wanted["size"])):
            return f"{path}: the disk has another size than it should"
        mount_disk(device, path, fresh=bool(wanted["fresh"]))
    except Exception as error:  # whatever it is, the host is told, and the machine goes on
        return f"{path}: {describe(error)['message']}"
    return None


def find(serial: str) -> str:
    """Return the name of the disk with a serial. Raises FileNotFoundError."""
    for name in sorted(os.listdir(BLOCK)):
        try:
            found = (BLOCK / name / "serial").read_text()
        except OSError:
            continue  # no virtio disk
        if found.strip() == serial:
            return name
    raise FileNotFoundError(2, "there is no disk", serial)


def _has_size(device: str, wanted: int) -> bool:
    """Wait until the kernel has heard what size a disk has; the news come by an interrupt."""
    deadline = time.monotonic() + SIZE_LIMIT
    while int((BLOCK / device / "size").read_text()) * SECTOR != wanted:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.002)
    return True


def mount_disk(device: str, path: str, *, fresh: bool) -> None:
    """Mount a disk at ``path``, which is made if it is missing. Raises OSError and ValueError.

    The root of a ``fresh`` one gets the owner of the directory that it covers, and is empty.
    """
    os.makedirs(path, 0o755, exist_ok=True)
    covered = os.stat(path)
    ran = subprocess.run(
        [*MOUNT, f"/dev/{device}", path],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    if ran.returncode != 0:
        raise ValueError(ran.stdout.decode("utf-8", "replace").strip()[-300:])
    if fresh:
        dress(path, covered.st_uid, covered.st_gid)


def dress(path: str, uid: int, gid: int) -> None:
    """Make the root of a new file system somebody's, and empty. Raises OSError."""
    root = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fchown(root, uid, gid)
        os.fchmod(root, 0o755)
        if os.listdir(root) == ["lost+found"]:  # fsck makes it anew if it has use for it
            os.rmdir("lost+found", dir_fd=root)
    finally:
        os.close(root)
