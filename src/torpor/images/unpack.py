"""From checked layers to a root disk: a tree is made, finished, and made into a file system.

All of it happens in a directory that only an unprivileged user can enter, by confined programs
(:mod:`torpor.images.confine`): nothing of an image has its owner, its set-uid bit or its device
number anywhere but in the file system that comes out.
"""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torpor.images import finish, place
from torpor.images.authorities import Authorities, plan_of
from torpor.images.confine import USER, WORK, Room, give, run_confined
from torpor.images.digests import disk_digest
from torpor.images.dress import check, dress, write_script
from torpor.images.errors import HostileImageError
from torpor.images.ext4 import MKFS_ENVIRONMENT, dig_holes, held_time, mkfs_command, room_for
from torpor.images.layer_tree import MAX_PATH, LayerTree, Node, shown
from torpor.images.layers import Limits
from torpor.images.progress import Report, Step
from torpor.images.stages import Building
from torpor.vm.syncing import fsync

CONTENTS = "contents"


@dataclass(frozen=True)
class Disk:
    """A root disk that was made, and what a user should know of it."""

    size_bytes: int
    files: int
    content_bytes: int
    notes: tuple[str, ...]
    digest: str = ""


async def make_disk(
    building: Building,
    kept: Path,
    tree: LayerTree,
    out: Path,
    *,
    key: str,
    size_bytes: int,
    authorities: Authorities,
    limits: Limits,
    report: Report,
) -> Disk:
    """Make a root disk of ``tree``, whose files' contents are in ``kept`` (which is moved away).

    ``size_bytes`` is the least that the disk has. Raises ImageError and OSError.
    """
    plan = building.path / "plan"
    head = {"files": True, "authorities": await plan_of(authorities, building.lock)}
    disk = await asyncio.to_thread(_write_plan, plan, head, tree, size_bytes)
    work = building.path / "work"
    give(work)
    await asyncio.to_thread(_give_contents, kept, work / CONTENTS)
    report(Step("unpacking"))
    await run_confined(
        Room(work, max(limits.unpacked_bytes, 1 << 30), {"/plan": plan}),
        *_python(place.__file__), f"{WORK}/tree", "/plan", f"{WORK}/{CONTENTS}",
    )  # fmt: skip
    report(Step("making the root disk"))
    await _make_file_system(work, plan, key, disk)
    made = work / "root.raw"
    # In place of the name, which a link could have taken, what is opened.
    if made.is_symlink() or not made.is_file():
        raise HostileImageError("What came out of the image is no disk.")
    await _dress(made, tree, work, building.path / "dressing", max(disk.size_bytes, 1 << 30))
    made.rename(out)
    if os.geteuid() == 0:
        os.chown(out, 0, 0)
    await dig_holes(out, building.lock)
    plan.unlink()
    out.chmod(0o400)  # it may hold what is nobody else's business
    report(Step("reading the root disk"))
    async with asyncio.TaskGroup() as group:
        digest = group.create_task(asyncio.to_thread(disk_digest, out))
        # It is to be forced to the host's disk in any case: so it is on its way meanwhile.
        group.create_task(asyncio.to_thread(fsync, out))
        group.create_task(asyncio.to_thread(shutil.rmtree, work))
    return replace(disk, digest=digest.result())


async def _make_file_system(work: Path, plan: Path, key: str, disk: Disk) -> None:
    _, inodes = room_for(disk.content_bytes, disk.files, disk.size_bytes)
    make = mkfs_command(
        Path(WORK) / "root.raw", label="torpor-root", key=key, size_bytes=disk.size_bytes,
        tree=Path(WORK) / "tree", journal=True, inodes=inodes,
    )  # fmt: skip
    steps = [[*_python(finish.__file__), f"{WORK}/tree", "/plan"], make]
    room = Room(work, max(disk.size_bytes, 1 << 30), {"/plan": plan}, environment=MKFS_ENVIRONMENT)
    await run_confined(room, "sh", "-c", " && ".join(map(shlex.join, steps)))


async def _dress(made: Path, tree: LayerTree, work: Path, inputs: Path, max_file: int) -> None:
    inputs.mkdir()
    dressed = await asyncio.to_thread(write_script, made, tree, inputs)
    await dress(made, dressed, work, inputs, max_file)
    await asyncio.to_thread(check, made, dressed)
    await asyncio.to_thread(shutil.rmtree, inputs)


def _give_contents(directory: Path, place: Path) -> None:
    directory.rename(place)
    if os.geteuid() == 0:
        os.chown(place, USER, USER)
        for path in os.scandir(place):
            os.chown(path.path, USER, USER)


def _python(program: str) -> list[str]:
    """The command that runs a program of ours confined: by its text, as it is not seen there."""
    return [confined_python(), "-I", "-S", "-B", "-c", Path(program).read_text("utf-8")]


def confined_python() -> str:
    """The Python that runs us, as it is called where virtual environments are not seen."""
    name = f"python{sys.version_info.major}.{sys.version_info.minor}"
    return str(Path(sys.base_prefix) / "bin" / name)


def _write_plan(plan: Path, head: dict[str, Any], tree: LayerTree, at_least: int) -> Disk:
    """Write what ``place.py`` and ``finish.py`` are to do; return what the disk will be."""
    files = content = late = 0
    with plan.open("w") as out:
        out.write(json.dumps(head) + "\n")
        out.write(json.dumps(_line(b"", tree.root, None)) + "\n")
        for path, node, first in _inodes(tree):
            if len(path) > MAX_PATH:
                raise HostileImageError(f"A path is longer than {MAX_PATH} bytes: {shown(path)}.")
            late += held_time(node.mtime) != node.mtime
            files += 1
            if first is None:
                content += node.size
            out.write(json.dumps(_line(path, node, first)) + "\n")
    plan.chmod(0o644)
    notes = []
    if late:
        notes.append(f"{late} files have times before 1901 or after 2038; they got the nearest")
    if tree.acls:
        notes.append(f"{tree.acls} files had access control lists, which were not kept")
    if tree.xattrs:
        notes.append(f"{tree.xattrs} extended attributes of another system were not kept")
    size, _ = room_for(content, files, at_least)
    return Disk(size, files, content, tuple(notes))


def _inodes(tree: LayerTree) -> Iterator[tuple[bytes, Node, bytes | None]]:
    """Each path with its file, and the path at which that file came before."""
    seen: dict[int, bytes] = {}
    for path, node in tree.walk():
        first = None
        if node.names > 1:
            first = seen.setdefault(id(node), path)
        yield path, node, None if first == path else first


def _line(path: bytes, node: Node, first: bytes | None) -> list[Any]:
    return [
        os.fsdecode(path), node.kind, _placed(node), held_time(node.mtime), node.size,
        os.fsdecode(node.link), None if first is None else os.fsdecode(first), node.content,
    ]  # fmt: skip


def _placed(node: Node) -> int:
    """The mode that a file has on the host: its owner can use it, and it lends nobody rights."""
    return node.mode & 0o777 | (0o700 if node.kind == "dir" else 0o600)
