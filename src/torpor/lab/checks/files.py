"""What was written before a freeze is there after every later thaw."""

import hashlib
import os

from torpor.lab.check import Check, Experiment
from torpor.lab.laboratory import Laboratory
from torpor.lab.pauses import pause
from torpor.vm import Machine

DIRECTORY = "/srv/lab/files"
CYCLES = 10
SIZES = (0, 1, 4095, 70_001, 300_000)
"""Bytes of the files that are written before each freeze."""


async def run(lab: Laboratory) -> list[Check]:
    """Write some files before each freeze, and compare all of them after each thaw."""
    machine = await lab.machine("files")
    written: dict[str, str] = {}
    wrong: list[str] = []
    compared = 0
    for cycle in range(1, CYCLES + 1):
        for size in SIZES:
            name, content = f"{cycle:02}-{size}", os.urandom(size)
            await machine.agent.write_file(f"{DIRECTORY}/{name}", content, parents=True)
            written[name] = hashlib.sha256(content).hexdigest()
        machine = (await pause(lab.host, machine)).machine
        found = await sums(machine)
        compared += len(written)
        wrong += [
            f"{name} after thaw {cycle}" for name in written if found.get(name) != written[name]
        ]
        wrong += [f"{name} after thaw {cycle} (too many)" for name in found.keys() - written.keys()]
    listing = "".join(f"{digest}  {name}\n" for name, digest in sorted(written.items()))
    lab.keep("files/sha256sums.txt", listing)
    return [
        Check(
            "files-kept",
            not wrong and compared == len(SIZES) * CYCLES * (CYCLES + 1) // 2,
            f"each file of {CYCLES} freezes has its SHA-256 after every later thaw",
            f"{compared} compared, {len(wrong)} wrong" + "".join(f"; {w}" for w in wrong[:3]),
        )
    ]


async def sums(machine: Machine) -> dict[str, str]:
    """Return the SHA-256 of the files in the guest, by name, read from the disk itself."""
    # Without the page cache: it came back with memory and would hide a disk that did not.
    line = f"echo 3 >/proc/sys/vm/drop_caches && cd {DIRECTORY} && sha256sum -- *"
    result = await machine.agent.shell(line)
    if not result.exit.ok:
        raise RuntimeError(f"sha256sum: {result.stderr.decode('utf-8', 'replace').strip()}")
    pairs = (entry.split("  ", 1) for entry in result.stdout.decode().splitlines())
    return {name: digest for digest, name in pairs}


EXPERIMENT = Experiment(
    "files",
    "Random files are written before each of ten freezes; after every thaw all files so far are "
    "read from the disk and compared.",
    run,
)
