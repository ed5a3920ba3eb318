"""The file system check of a snapshot's disk, made on a flat copy of it."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
    def clean(self) -> bool:
        """Whether the file system is consistent."""
        return self.repairing <= 1 and self.looking == 0


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
    )
    output, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, output.decode("utf-8", "replace")
