"""Making plain ext4 images from directories, without mounting anything."""

from __future__ import annotations

import asyncio
import ctypes
import errno
import os
import shlex
from collections.abc import Sequence
from pathlib import Path

from torpor.images.digests import uuid_of
from torpor.images.programs import find_program, run
from torpor.images.stages import Building

BLOCK = 4096
KEEP_SIZE, PUNCH_HOLE = 0x01, 0x02  # linux/falloc.h
INODE = 256
# Spelled out, so that the host's mke2fs.conf and version do not decide what the guest's kernel
# (6.1) has to read.
FEATURES = (
    "none,ext_attr,dir_index,filetype,extent,64bit,flex_bg,sparse_super,large_file,huge_file,"
    "dir_nlink,extra_isize,metadata_csum"
)
# The times of what mkfs itself makes. Not SOURCE_DATE_EPOCH: with that, from e2fsprogs 1.47.1 on no
# file of the tree may be younger either.
MKFS_ENVIRONMENT = {"E2FSPROGS_FAKE_TIME": "1700000000"}


async def make_ext4(
    building: Building,
    out: Path,
    *,
    label: str,
    key: str,
    size_bytes: int,
    tree: Path,
    journal: bool,
    inodes: int | None = None,
    tar: Path | None = None,
    finishing: Sequence[str] = (),
) -> None:
    """Make a sparse raw ext4 image of a tree; all of it belongs to root or to whom the tar says.

    With `tar`, `tree` is filled from it first, in the same fakeroot session if this is not root:
    only there do the owners exist. `finishing` is a command to run on the tree after that. UUID
    and hash seed follow from `key`. Inode tables and the journal are initialised now (as holes),
    else the guest's kernel would write them in the background after its first mount. Nothing is
    reserved for root.
    """
    command = mkfs_command(
        out, label=label, key=key, size_bytes=size_bytes, tree=tree, journal=journal, inodes=inodes
    )
    steps = [shlex.join(step) for step in (_unpack(tar, tree) if tar else (), finishing) if step]
    await run(
        *([] if os.geteuid() == 0 else ["fakeroot", "--"]),
        "sh",
        "-c",
        " && ".join([*steps, 'exec "$@"']),
        "sh",
        *command,
        lock=building.lock,
        environment=MKFS_ENVIRONMENT,
    )
    await dig_holes(out, building.lock)


async def dig_holes(disk: Path, lock: int) -> None:
    """Give back what a new image takes on the host's disk for zeros. Raises ImageError, OSError."""
    # mkfs writes some of the zeros that it could have left out, and has room reserved for the inode
    # tables and the journal, which the first program does not see: it reads as a hole already.
    await run("fallocate", "--dig-holes", str(disk), lock=lock)
    await asyncio.to_thread(_give_back_holes, disk)


def _give_back_holes(disk: Path) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    with disk.open("r+b", buffering=0) as file:
        fd = file.fileno()
        size = os.fstat(fd).st_size
        at = 0
        while at < size:
            hole = os.lseek(fd, at, os.SEEK_HOLE)
            try:
                at = os.lseek(fd, hole, os.SEEK_DATA)
            except OSError:  # ENXIO: only a hole is left
                at = size
            offset, length = ctypes.c_int64(hole), ctypes.c_int64(at - hole)
            if at > hole and libc.fallocate(fd, PUNCH_HOLE | KEEP_SIZE, offset, length) != 0:
                error = ctypes.get_errno()
                if error == errno.EOPNOTSUPP:
                    return
                raise OSError(error, os.strerror(error), str(disk))


def mkfs_command(
    out: Path,
    *,
    label: str,
    key: str,
    size_bytes: int,
    tree: Path,
    journal: bool,
    inodes: int | None = None,
) -> list[str]:
    """The command line that makes the file system, to be run with MKFS_ENVIRONMENT."""
    features = FEATURES + (",has_journal,resize_inode" if journal else "")
    extended = [
        f"hash_seed={uuid_of(key, 'hash_seed')}",
        "root_owner=0:0",
        "lazy_itable_init=0",
        *(["lazy_journal_init=0"] if journal else []),
    ]
    return [
        find_program("mkfs.ext4"), "-q", "-F", "-b", str(BLOCK), "-I", str(INODE), "-m", "0",
        "-O", features, "-E", ",".join(extended), "-U", uuid_of(key, "uuid"), "-L", label,
        *(["-J", "size=64"] if journal else []),
        *(["-N", str(inodes)] if inodes else []),
        "-d", str(tree), str(out), f"{size_bytes // 1024}k",
    ]  # fmt: skip


def room_for(content_bytes: int, files: int, at_least: int) -> tuple[int, int | None]:
    """The size and the number of inodes (None: mkfs's own choice) of a disk for so much content.

    A quarter more than there is, and 1 GiB; in whole GiB.
    """
    gib = 1 << 30
    size = max(at_least, -(-(content_bytes * 5 // 4 + files * BLOCK + gib) // gib) * gib)
    own_choice = size // 16384
    return size, files * 2 if files * 2 > own_choice else None


def held_time(seconds: int) -> int:
    """The time of a file that mke2fs writes for one: the nearest of 32 bits (e2fsprogs 1.47)."""
    return min(max(seconds, -(1 << 31)), (1 << 31) - 1)


def size_of(tree: Path) -> tuple[int, int]:
    """Bytes and inodes that an image without a journal needs for a tree, with a little room."""
    sizes = [path.lstat().st_size for path in tree.rglob("*")]
    inodes = len(sizes) + 64
    blocks = sum(-(-size // BLOCK) + 1 for size in sizes)
    return (blocks + blocks // 20 + 1024) * BLOCK + inodes * INODE, inodes


def _unpack(tar: Path, tree: Path) -> Sequence[str]:
    return [
        find_program("tar"), "--extract", "--numeric-owner", "--same-owner", "--same-permissions",
        "--xattrs", "--xattrs-include=*", "--exclude=./dev/*", "--file", str(tar),
        "--directory", str(tree),
    ]  # fmt: skip
