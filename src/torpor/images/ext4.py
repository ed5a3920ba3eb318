"""Making plain ext4 images from directories, without mounting anything."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from torpor.images.digests import uuid_of
from torpor.images.programs import find_program, run
from torpor.images.stages import Building

BLOCK = 4096
INODE = 256
# Spelled out, so that the host's mke2fs.conf and version do not decide what the guest's kernel
# (6.1) has to read.
FEATURES = (
    "none,ext_attr,dir_index,filetype,extent,64bit,flex_bg,sparse_super,large_file,huge_file,"
    "dir_nlink,extra_isize,metadata_csum"
)
EPOCH = "1700000000"


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
) -> None:
    """Make a sparse raw ext4 image of a tree; all of it belongs to root or to whom the tar says.

    With `tar`, `tree` is filled from it first, in the same fakeroot session if this is not root:
    only there do the owners exist. UUID and hash seed follow from `key`. Inode tables and the
    journal are initialised now (as holes), else the guest's kernel would write them in the
    background after its first mount. Nothing is reserved for root.
    """
    features = FEATURES + (",has_journal,resize_inode" if journal else "")
    extended = [
        f"hash_seed={uuid_of(key, 'hash_seed')}",
        "root_owner=0:0",
        "lazy_itable_init=0",
        *(["lazy_journal_init=0"] if journal else []),
    ]
    command = [
        find_program("mkfs.ext4"), "-q", "-F", "-b", str(BLOCK), "-I", str(INODE), "-m", "0",
        "-O", features, "-E", ",".join(extended), "-U", uuid_of(key, "uuid"), "-L", label,
        *(["-J", "size=64"] if journal else []),
        *(["-N", str(inodes)] if inodes else []),
        "-d", str(tree), str(out), f"{size_bytes // 1024}k",
    ]  # fmt: skip
    script = 'exec "$@"'
    if tar is not None:
        script = f'{_quoted(_unpack(tar, tree))} && exec "$@"'
    await run(
        *([] if os.geteuid() == 0 else ["fakeroot", "--"]),
        "sh",
        "-c",
        script,
        "sh",
        *command,
        lock=building.lock,
        environment={"E2FSPROGS_FAKE_TIME": EPOCH, "SOURCE_DATE_EPOCH": EPOCH},
    )
    # mkfs writes some of the zeros that it could have left out.
    await run("fallocate", "--dig-holes", str(out), lock=building.lock)


def size_of(tree: Path) -> tuple[int, int]:
    """Bytes and inodes that an image without a journal needs for a tree, with a little room."""
    sizes = [path.lstat().st_size for path in tree.rglob("*")]
    inodes = len(sizes) + 64
    blocks = sum(-(-size // BLOCK) + 1 for size in sizes)
    return (blocks + blocks // 20 + 1024) * BLOCK + inodes * INODE, inodes


def _unpack(tar: Path, tree: Path) -> Sequence[str]:
    xattrs = ["--xattrs", "--xattrs-include=*"] if os.geteuid() == 0 else []
    return [
        find_program("tar"), "--extract", "--numeric-owner", "--same-owner", "--same-permissions",
        *xattrs, "--exclude=./dev/*", "--file", str(tar), "--directory", str(tree),
    ]  # fmt: skip


def _quoted(words: Sequence[str]) -> str:
    return " ".join("'" + word.replace("'", "'\\''") + "'" for word in words)
