"""Which accelerator this host can run guests with, found out by running one.

``/dev/kvm`` may open, answer and even create a virtual machine, and still not run an ordinary
kernel (nested, para-virtual hosts do that). So the guest's kernel is booted to its first line. The
verdict is kept until the host boots again or its QEMU changes.
"""

import asyncio
import contextlib
import json
import os
import re
import shutil
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from torpor.vm.errors import HostError

KVM_LIMIT = 5.0
"""Seconds that the kernel may take to its first line under KVM; it takes about 0.1."""
QEMU = "qemu-system-x86_64"
TRANSLATED_MIB = 512
"""Memory for translated code under emulation. QEMU's own choice is an eighth of the host's memory,
at most 1 GiB (``tcg/region.c``); it counts towards a machine's limit, so it is fixed."""


@dataclass(frozen=True)
class Accelerator:
    """How guest instructions run on this host, and why so."""

    name: Literal["kvm", "tcg"]
    why: str
    qemu_version: tuple[int, int, int]
    cpu: str
    """What the guest sees as its processor: the host's model under KVM, QEMU's own under
    emulation."""

    @property
    def arguments(self) -> tuple[str, ...]:
        """QEMU's arguments: all that differs between the accelerators."""
        if self.name == "kvm":
            return ("-accel", "kvm", "-cpu", "host")
        return ("-accel", f"tcg,thread=multi,tb-size={TRANSLATED_MIB}", "-cpu", "max")

    @property
    def kernel_arguments(self) -> str:
        """What the guest kernel must be told under this accelerator.

        Under emulation its timer calibration against the PIT fails now and then and the boot hangs,
        so it is told the TSC's rate, which is the host's, and that it can be relied on.
        """
        if self.name == "kvm":
            return ""
        return f"tsc=reliable tsc_early_khz={tsc_khz(Path('/proc/cpuinfo').read_text())}"


def tsc_khz(cpuinfo: str) -> int:
    """Return the rate of the host's TSC in kHz: half its BogoMIPS, which the kernel derives from
    it."""
    for line in cpuinfo.splitlines():
        if line.lower().startswith("bogomips"):
            return round(float(line.split(":")[1]) * 500)
    raise HostError("/proc/cpuinfo has no line bogomips.", todo="Torpor needs an x86-64 host.")


async def qemu_version() -> tuple[int, int, int]:
    """Return the version of the host's QEMU. Raises :exc:`HostError` if there is none that
    serves."""
    program = shutil.which(QEMU)
    if program is None:
        raise HostError(
            f"{QEMU} is not installed.", todo="Install the package qemu-system-x86 (`./dev setup`)."
        )
    process = await asyncio.create_subprocess_exec(
        program, "--version", stdout=asyncio.subprocess.PIPE
    )
    output, _ = await process.communicate()
    said = re.search(rb"version (\d+)\.(\d+)(?:\.(\d+))?", output)
    if said is None:
        raise HostError(f"{program} does not tell its version: {output[:200]!r}.")
    version = (int(said[1]), int(said[2]), int(said[3] or 0))
    if version < (7, 2, 0):
        raise HostError(
            f"QEMU {'.'.join(map(str, version))} is too old.", todo="Install QEMU 7.2 or newer."
        )
    return version


async def probe(
    kernel: Path, verdicts: Path, boot: Callable[[Path], Awaitable[str | None]] | None = None
) -> Accelerator:
    """Return the accelerator to use. Raises :exc:`HostError` if QEMU does not serve.

    ``verdicts`` is a JSON file in which the result is kept. ``boot`` tries KVM with a kernel and
    returns None if it runs, else why not.
    """
    version = await qemu_version()
    key = {
        "boot_id": host_boot_id(),
        "qemu": list(version),
        "uid": os.geteuid(),
        # So that a module that was loaded, or a right that was given, is noticed at once.
        "kvm_opens": os.access("/dev/kvm", os.R_OK | os.W_OK),
    }
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        kept = json.loads(verdicts.read_text())
        if kept["key"] == key:
            return Accelerator(kept["name"], kept["why"], version, kept["cpu"])
    refused = await (boot or _boot_with_kvm)(kernel)
    if refused is None:
        found = Accelerator("kvm", "KVM ran the guest kernel.", version, cpu_model())
    else:
        found = Accelerator("tcg", f"Software emulation, because {refused}", version, "qemu-max")
    verdicts.parent.mkdir(parents=True, exist_ok=True)
    new = verdicts.with_name(f".{verdicts.name}.{os.getpid()}")
    new.write_text(json.dumps(asdict(found) | {"key": key}))
    new.replace(verdicts)
    return found


def host_boot_id() -> str:
    """Return the id of this boot of the host."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def cpu_model() -> str:
    """Return the name of the host's processor, as /proc/cpuinfo has it."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return "unknown"


async def _boot_with_kvm(kernel: Path) -> str | None:
    if not os.access("/dev/kvm", os.F_OK):
        return "this host has no /dev/kvm."
    if not os.access("/dev/kvm", os.R_OK | os.W_OK):
        return "this user may not open /dev/kvm."
    # fmt: off
    process = await asyncio.create_subprocess_exec(
        QEMU, "-M", "microvm,x-option-roms=on,acpi=on", "-accel", "kvm", "-cpu", "host",
        "-m", "128", "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
        "-serial", "stdio",
        "-kernel", str(kernel), "-append", "console=ttyS0 earlyprintk=ttyS0 panic=-1",
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    # fmt: on
    assert process.stdout is not None
    seen = b""
    try:
        async with asyncio.timeout(KVM_LIMIT):
            while data := await process.stdout.read(4096):
                seen += data
                if b"Linux version" in seen:
                    return None
    except TimeoutError:
        return (
            f"KVM did not run the guest kernel to its first line in {KVM_LIMIT:g} s,"
            " though /dev/kvm opens (nested hosts do that)."
        )
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
    last = seen.decode("utf-8", "replace").strip().splitlines()[-1:] or ["no output"]
    return f"QEMU ended under KVM: {last[0]}"
