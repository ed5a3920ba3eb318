"""Keys (what a stage is made from) and digests (what came out of it)."""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Mapping
from pathlib import Path

KEY_LENGTH = 32
DISK_BLOCK = 64 * 1024


def key_of(kind: str, made_from: Mapping[str, object]) -> str:
    """The key of a stage: sha256 over canonical JSON, the first 32 hex digits."""
    text = json.dumps(
        {"kind": kind, **made_from}, sort_keys=True, separators=(",", ":"), ensure_ascii=True
    )
    return hashlib.sha256(text.encode()).hexdigest()[:KEY_LENGTH]


def uuid_of(key: str, purpose: str) -> str:
    """A UUID that follows from a key, so that a rebuild gives the same file system."""
    digits = list(hashlib.sha256(f"{purpose}:{key}".encode()).hexdigest()[:32])
    digits[12] = "4"
    digits[16] = "8"
    text = "".join(digits)
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def file_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def tree_digest(tree: Path) -> str:
    """sha256 over the sorted paths, types, modes and contents below a directory.

    Owners and times are left out: they differ between an ordinary user's build and root's.
    """
    total = hashlib.sha256()
    for path in sorted(tree.rglob("*")):
        mode = path.lstat().st_mode
        content = ""
        if stat.S_ISLNK(mode):
            content = str(path.readlink())
        elif stat.S_ISREG(mode):
            content = file_digest(path)
        line = f"{path.relative_to(tree)}\0{mode:o}\0{content}\n"
        total.update(line.encode("utf-8", "surrogateescape"))
    return total.hexdigest()


def disk_digest(path: Path) -> str:
    """sha256 over the blocks of a disk image that are not all zeros.

    Each such block of 64 KiB (the last may be shorter) goes in as its index (8 bytes, little
    endian) and its bytes, after the image's size (8 bytes, little endian). So the value belongs
    to what the guest reads and not to where the host's file has holes: two hosts whose images
    have this digest in common can exchange qcow2 layers over them.
    """
    total = hashlib.sha256()
    zeros = bytes(DISK_BLOCK)
    with path.open("rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        total.update(size.to_bytes(8, "little"))
        position = 0
        while position < size:
            try:
                position = os.lseek(file.fileno(), position, os.SEEK_DATA)
            except OSError:  # ENXIO: only a hole is left
                break
            index = position // DISK_BLOCK
            block = os.pread(file.fileno(), DISK_BLOCK, index * DISK_BLOCK)
            if block != zeros[: len(block)]:
                total.update(index.to_bytes(8, "little"))
                total.update(block)
            position = (index + 1) * DISK_BLOCK
    return total.hexdigest()
