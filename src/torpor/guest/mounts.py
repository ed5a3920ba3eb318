"""Whether a file system is mounted in this machine that may not answer.

What the kernel keeps in memory, and what lies on the machine's own disks, always answers. Anything
else (FUSE, a network's, one within a file of another) is served by somebody who may hang, and
whoever asks it waits in the kernel, where not even SIGKILL reaches it.
"""

import os
import select

MOUNTINFO = "/proc/self/mountinfo"
BLOCK_DEVICES = "/sys/dev/block"
IN_MEMORY = frozenset(
    (
        *("bpf", "binfmt_misc", "cgroup", "cgroup2", "configfs", "debugfs", "devpts", "devtmpfs"),
        *("efivarfs", "fusectl", "hugetlbfs", "mqueue", "nsfs", "proc", "pstore", "ramfs"),
        *("rootfs", "securityfs", "sysfs", "tmpfs", "tracefs"),
    )
)
"""Types of file systems that the kernel keeps in memory."""
ON_DISK = frozenset(("btrfs", "ext2", "ext3", "ext4", "iso9660", "squashfs", "vfat", "xfs"))
"""Types of file systems that answer if their disk does."""


class Mounts:
    """The mounts that this process sees, looked at again when they change."""

    def __init__(self) -> None:
        self._fd = os.open(MOUNTINFO, os.O_RDONLY | os.O_CLOEXEC)
        self._changed = select.poll()
        self._changed.register(self._fd, select.POLLPRI)
        self._may_hang: bool | None = None

    @property
    def may_hang(self) -> bool:
        """Whether one of them may not answer."""
        # The kernel tells a change once, as an error (fs/proc_namespace.c, mounts_poll).
        if self._may_hang is None or self._changed.poll(0):
            self._may_hang = any(map(_may_hang, _read(self._fd).splitlines()))
        return self._may_hang

    def close(self) -> None:
        """Close what is open."""
        os.close(self._fd)


def _read(fd: int) -> bytes:
    text = b""
    while piece := os.pread(fd, 64 << 10, len(text)):
        text += piece
    return text


def _may_hang(line: bytes) -> bool:
    """Return whether a mount may not answer, by its line of mountinfo (proc(5))."""
    about, _, source = line.partition(b" - ")
    kind = source.split(b" ", 1)[0].decode("ascii", "replace")
    if kind in IN_MEMORY:
        return False
    if kind not in ON_DISK:
        return True
    device = about.split(b" ")[2].decode("ascii", "replace")
    return "/virtio" not in os.path.realpath(f"{BLOCK_DEVICES}/{device}")
