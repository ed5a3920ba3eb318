"""Experiment 8: from inside, a session runs on the machine that was asked for."""

import json
from pathlib import Path

from torpor.lab.check import Check, Experiment
from torpor.lab.laboratory import Laboratory
from torpor.lab.probes import run_program
from torpor.vm import MIB

NAME = "what-it-runs-on"
VENDORS = {"tcg": "TCGTCGTCGTCG", "kvm": "KVMKVMKVM"}
"""What each accelerator calls itself in CPUID leaf 0x40000000 (QEMU's ``target/i386``)."""
KERNEL_SHARE = 0.15
"""How much of the memory the guest kernel may keep for itself; it does not count in MemTotal."""


async def run(lab: Laboratory) -> list[Check]:
    """Read from inside, compare with what was asked for."""
    machine = await lab.machine(NAME)
    answer = await run_program(machine, "what_it_runs_on.py")
    lab.keep(f"{NAME}/seen.json", answer)
    seen = json.loads(answer)
    shape, accelerator = lab.shape, lab.maker.accelerator
    memory = seen["memory_kib"] * 1024
    share = memory / shape.memory_bytes
    here = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    vendor = VENDORS[accelerator.name]
    kernel = lab.maker.versions.kernel

    def check(what: str, ok: bool, expected: str, found: str) -> Check:
        return Check(f"{NAME}-{what}", ok, expected, found)

    return [
        check(
            "hypervisor",
            seen["hypervisor"] == vendor,
            f"hypervisor {vendor} ({accelerator.name})",
            f"{seen['hypervisor'] or 'none'} on {seen['processor']}",
        ),
        check(
            "vcpus",
            seen["vcpus"] == shape.vcpus,
            f"{shape.vcpus} vCPUs",
            str(seen["vcpus"]),
        ),
        check(
            "memory",
            1 - KERNEL_SHARE <= share <= 1,
            f"{shape.memory_mib} MiB, less what the kernel itself needs",
            f"{memory // MIB} MiB",
        ),
        check(
            "disk",
            (seen["root"], seen["vda_bytes"], seen["vda_driver"])
            == ("/dev/vda", lab.image.size_bytes, "virtio_blk"),
            f"/dev/vda (virtio_blk) is the root, {lab.image.size_bytes // MIB} MiB",
            f"{seen['root']}, {seen['vda_bytes'] // MIB} MiB, {seen['vda_driver']}",
        ),
        check(
            "kernel",
            seen["kernel"] == kernel and seen["boot_id"] != here,
            f"Linux {kernel}, another boot than the host's",
            f"Linux {seen['kernel']}, boot {seen['boot_id'][:8]} (the host's is {here[:8]})",
        ),
        check("name", seen["hostname"] == NAME, f"host name {NAME}", str(seen["hostname"])),
    ]


EXPERIMENT = Experiment(
    NAME,
    "Sandbox may mean anything from a directory to a machine: hypervisor, vCPUs, memory, disk and "
    "kernel are read from inside and compared with what was asked for.",
    run,
)
