"""Gives the files of a new root disk what they could not have on the host: owners, and the like.

There all of them belong to the user that has made their tree, without set-uid bits, devices and
extended attributes (:mod:`torpor.images.confine`), and so mkfs.ext4 has found them. What each is to
have is written into the file system, by debugfs and by number: no name that a stranger has chosen
is in a command.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from torpor.images.confine import WORK, Room, run_confined
from torpor.images.errors import HostileImageError
from torpor.images.ext4 import MKFS_ENVIRONMENT, held_time
from torpor.images.ext4_read import ROOT, Disk, File
from torpor.images.layer_tree import LayerTree, Node
from torpor.images.programs import find_program

MORE_FILES = 10_000
"""How many more files there may be than the tree has: certificates, and directories for them."""
TYPES = {
    "dir": stat.S_IFDIR,
    "file": stat.S_IFREG,
    "symlink": stat.S_IFLNK,
    "fifo": stat.S_IFIFO,
    "char": stat.S_IFCHR,
    "block": stat.S_IFBLK,
}
DEVICES = ("char", "block")
ENVIRONMENT = MKFS_ENVIRONMENT | {"E2FSCK_TIME": MKFS_ENVIRONMENT["E2FSPROGS_FAKE_TIME"]}

Inodes = dict[int, Node | None]
"""The inodes of a disk, by number, and what they are to be; None: root's, as certificates are that
were added."""


def write_script(disk: Path, tree: LayerTree, work: Path) -> Inodes:
    """Write what debugfs is to do to ``disk``: ``work/dress``, and ``work/values`` beside it.

    Raises ImageError if the disk does not have the files of the tree.
    """
    values = work / "values"
    values.mkdir()
    with Disk(disk) as read:
        found = _inodes(read, tree)
    with (work / "dress").open("wb") as script:
        for file, node in sorted(found, key=lambda each: each[0].number):
            for command in (*_commands(file, node), *_attributes(file, node, values)):
                script.write(os.fsencode(command) + b"\n")
    for path in (work / "dress", *values.iterdir()):
        path.chmod(0o444)
    return {file.number: node for file, node in found}


async def dress(disk: Path, dressed: Inodes, work: Path, inputs: Path, max_file: int) -> None:
    """Do to ``disk``, in ``work``, what :func:`write_script` has written into ``inputs``."""
    files = {"/dress": inputs / "dress", "/values": inputs / "values"}
    room = Room(work, max_file, files, environment=ENVIRONMENT)
    inside = f"{WORK}/{disk.name}"
    await run_confined(room, find_program("debugfs"), "-w", "-f", "/dress", inside)
    if any(node is not None and node.kind in DEVICES for node in dressed.values()):
        # Entries of directories say of what type a file is; these say it is a plain one.
        fix = f"{find_program('e2fsck')} -fy {inside}; [ $? -le 1 ]"  # 1: something was corrected
        await run_confined(room, "sh", "-c", fix)


def check(disk: Path, dressed: Inodes) -> None:
    """See that the files have what they were to get. debugfs does not say so by its status.

    Raises ImageError if one has not.
    """
    with Disk(disk) as read:
        for number, node in dressed.items():
            file = read.file(number)
            has = (file.uid, file.gid)
            if node is None:
                good = has == (0, 0)
            else:
                good = (*has, file.mode, file.device, file.xattrs) == (
                    node.uid, node.gid, TYPES[node.kind] | node.mode, node.device, node.xattrs,
                )  # fmt: skip
            if not good:
                raise HostileImageError(f"The root disk is not as the image: inode {number}.")


def _inodes(disk: Disk, tree: LayerTree) -> list[tuple[File, Node | None]]:
    nodes = {b"": tree.root, **dict(tree.walk())}
    left = len(nodes) + MORE_FILES
    found: dict[int, tuple[File, Node | None]] = {}
    for path, file in disk.walk(lost_and_found=True):
        left -= 1
        node = nodes.pop(path, None)
        if left < 0 or (node is not None and not _is_of(file, node)):
            raise HostileImageError("What was made of the image is not what it has.")
        found.setdefault(file.number, (file, node))
    if nodes:
        raise HostileImageError(f"{len(nodes)} files of the image did not come out.")
    return list(found.values())


def _is_of(file: File, node: Node) -> bool:
    return stat.S_IFMT(file.mode) == TYPES["file" if node.kind in DEVICES else node.kind]


def _commands(file: File, node: Node | None) -> list[str]:
    fields = {"uid": str(node.uid if node else 0), "gid": str(node.gid if node else 0)}
    if node is not None:
        mode = TYPES[node.kind] | node.mode
        if mode != file.mode:
            fields["mode"] = f"0{mode:o}"
        if file.number == ROOT:  # mke2fs has its own idea of it (1.47.0)
            fields["mtime"] = f"@{held_time(node.mtime)}"
        if node.kind in DEVICES:
            fields["flags"] = "0"
            numbers = _device(*node.device)
            fields |= {f"block[{place}]": str(number) for place, number in enumerate(numbers)}
    return [f"set_inode_field <{file.number}> {field} {to}" for field, to in fields.items()]


def _attributes(file: File, node: Node | None, values: Path) -> Iterator[str]:
    for count, (name, value) in enumerate(node.xattrs.items() if node else ()):
        path = values / f"{file.number}-{count}"
        path.write_bytes(value)
        quoted = name.replace('"', '""')
        yield f'ea_set -f /values/{path.name} <{file.number}> "{quoted}"'


def _device(major: int, minor: int) -> tuple[int, ...]:
    """The words of a device's inode where an empty file has the head of its extents: numbers of 8
    bits are in another place than larger ones (``fs/ext4/inode.c`` in Linux)."""
    if major < 256 and minor < 256:
        return (major << 8 | minor, 0, 0)
    return (0, minor & 0xFF | major << 8 | (minor & ~0xFF) << 12, 0)
