"""An image with a large real file: imported, booted, and read through a freeze."""

import asyncio
import hashlib
import os
import shutil
import tempfile
from pathlib import Path

from torpor.images import Asked, Report, Step, golden, import_image
from torpor.images.authorities import Authorities
from torpor.images.runtime import TOOLS
from torpor.lab.check import Check
from torpor.lab.laboratory import Laboratory
from torpor.vm import Command, Identity, Wanted

BLOCK = 1 << 20
PYTHON = (
    f"{TOOLS}/lib/ld.so", "--inhibit-cache", "--library-path", f"{TOOLS}/lib",
    "--argv0", f"{TOOLS}/bin/python3.11", f"{TOOLS}/bin/python3.11", "-I", "-S", "-B",
)  # fmt: skip
DIGEST = """
import hashlib
with open("/large", "rb") as file:
    print("reading", flush=True)
    print(hashlib.file_digest(file, "sha256").hexdigest())
"""
"""Run by the guest's own Python: the image has nothing but the file."""


async def large_image(lab: Laboratory, mib: int, report: Report) -> Check:
    """Compare the SHA-256 of a file of ``mib`` MiB, taken inside while the machine is frozen and
    thawed."""
    place = Path(tempfile.mkdtemp(prefix="large-", dir=lab.host.home))
    try:
        report(Step(f"a file of {mib} MiB"))
        tree = place / "tree"
        tree.mkdir()
        wanted = await asyncio.to_thread(_write, tree / "large", mib)
        asked = Asked(authorities=Authorities())
        cache = place / "cache"
        image = (await import_image(cache, f"tree:{tree}", report, asked, "large")).image
        await asyncio.to_thread(shutil.rmtree, tree)
        machine = await lab.host.thaw(
            await golden(lab.maker, image, lab.shape, report), Identity.of("large")
        )
        running = await machine.agent.start(Command([*PYTHON, "-c", DIGEST]))
        await asyncio.sleep(5)
        frozen = await lab.host.freeze(machine, Wanted("stop"))
        machine = await lab.host.thaw(frozen.manifest.id)
        await running.attach(machine.agent.channel)
        out, err = await running.collect()
        await lab.host.end(machine)
        await lab.host.remove(frozen.manifest.id)
    finally:
        await asyncio.to_thread(shutil.rmtree, place, ignore_errors=True)
    seen = out.decode("utf-8", "replace").split()[-1:]
    return Check(
        "large image",
        seen == [wanted],
        f"a file of {mib} MiB is inside what it was outside, read through a freeze: {wanted}",
        "".join(seen) or err.decode("utf-8", "replace"),
    )


def _write(file: Path, mib: int) -> str:
    """Write a file without a hole or a block like another, and return its SHA-256."""
    total = hashlib.sha256()
    block = os.urandom(BLOCK - 8)
    with file.open("wb") as out:
        for number in range(mib):
            content = number.to_bytes(8, "little") + block
            total.update(content)
            out.write(content)
    return total.hexdigest()
