"""The file system check of a snapshot's disk, made on a flat copy of it."""

import asyncio
import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from torpor.images.programs import SEARCH
from torpor.vm import Host

E2FSCK = "e2fsck"


@dataclass(frozen=True)
class DiskChecked:
    """What e2fsck(8) said: its status when it may repair, and then when it may only look.

    The first replays the journal and drops files that were deleted while open, as the next mount
    would: 0 and 1 are both well. After that the second must be 0.
    """

    repairing: int
    looking: int
    said: str

    @property
    def repaired(self) -> tuple[str, ...]:
        """What was wrong and had to be repaired, in e2fsck's words.

        A status of 1 does not tell a replayed journal from damage that could be mended. The free
        counts of the superblock do not count: ext4 writes them when it is unmounted and works them
        out anew when it is mounted (kernel, ``fs/ext4/super.c``).
        """
        lines = [line.strip() for line in self.said.splitlines()]
        found = []
        for before, line in pairwise(["", *lines]):
            if line.endswith("? yes") and not (line == "Fix? yes" and _FREE_COUNT.match(before)):
                found.append(f"{before} {line}" if line == "Fix? yes" else line)
        return tuple(found)

    @property
    def clean(self) -> bool:
        """Whether the file system was consistent."""
        return self.repairing <= 1 and self.looking == 0 and not self.repaired

    def __str__(self) -> str:
        repaired = "".join(f"; repaired: {each}" for each in self.repaired[:3])
        return f"{self.repairing}, then {self.looking}{repaired or ', nothing repaired'}"


_FREE_COUNT = re.compile(r"Free (blocks|inodes) count wrong \(\d+, counted=\d+\)\.$")


async def check_disk(host: Host, snapshot: str, scratch: Path) -> DiskChecked:
    """Check the root disk of a snapshot. ``scratch`` is a file that is made and removed again.

    Raises RuntimeError if the disk cannot be read at all.
    """
    try:
        await copy_flat(host, snapshot, scratch)
        repairing, first = await _run(E2FSCK, "-fy", str(scratch))
        looking, second = await _run(E2FSCK, "-fn", str(scratch))
    finally:
        scratch.unlink(missing_ok=True)
    return DiskChecked(repairing, looking, first + second)


async def copy_flat(host: Host, snapshot: str, target: Path) -> None:
    """Write the root disk of a snapshot, all layers together, to a sparse raw image."""
    layers = host.store.manifest(snapshot).disk
    source = chain([(layer.format, host.store.layer(layer)) for layer in layers])
    status, said = await _run("qemu-img", "convert", "-O", "raw", source, str(target))
    if status != 0:
        raise RuntimeError(f"qemu-img convert: {said}")


def chain(layers: Sequence[tuple[str, Path]]) -> str:
    """Return the name under which qemu-img opens layers (format and file, bottom first) as one.

    No layer names the one below it in its header, so the chain is spelled out.
    """
    node: dict[str, Any] | None = None
    for kind, file in layers:
        above: dict[str, Any] = {
            "driver": kind,
            "file": {"driver": "file", "filename": str(file)},
        }
        if kind == "qcow2":
            above["backing"] = node
        node = above
    return f"json:{json.dumps(node)}"


async def _run(*command: str) -> tuple[int, str]:
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        # Its words are read; and it is where an ordinary user's PATH does not lead.
        env=os.environ | {"LC_ALL": "C", "PATH": SEARCH},
    )
    output, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, output.decode("utf-8", "replace")
