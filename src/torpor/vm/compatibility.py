"""Whether a snapshot can go on here, told before anything is started (``docs/upgrades.md``).

The one place that knows. A snapshot's disk can always be booted; what is judged is its memory, with
the devices and the processor that the guest has come to know.
"""

from dataclasses import dataclass
from typing import Literal

from torpor.vm.accelerator import Accelerator
from torpor.vm.manifest import Manifest

Version = tuple[int, int]

TESTED: dict[tuple[Version, Version], str] = {
    ((7, 2), (10, 0)): "tests/machine/test_upgrades.py",
}
"""Pairs of QEMU versions, under software emulation: the one that made a snapshot, the one that
thaws it, and the test that shows it. Stable releases of one version count as the same."""

REFUSED: dict[tuple[Version, Version], str] = {
    ((10, 0), (7, 2)): (
        "it loads, but the processor that QEMU 10.0 emulates has instructions that 7.2 has not"
        " (SHA-NI among them), and programs that had found them would be killed"
    ),
}
"""Pairs that were tried and do not serve, and why."""


@dataclass(frozen=True)
class Verdict:
    """What can become of a snapshot on this host, and why.

    ``same``: made under the same QEMU. ``tested``: under another one, and the pair is known to
    work. ``files only``: its memory cannot go on here, its disk can be booted.
    """

    state: Literal["same", "tested", "files only"]
    why: str
    todo: str = ""

    @property
    def thaws(self) -> bool:
        """Whether it can be thawed with its memory."""
        return self.state != "files only"


def check(found: Manifest, accelerator: Accelerator) -> Verdict:
    """Say whether a snapshot can be thawed under this accelerator."""
    if found.memory is None:
        return Verdict("files only", f"Snapshot {found.id} holds files only.", "Boot its disk.")
    if found.accelerator != accelerator.name or found.cpu != accelerator.cpu:
        return _files_only(
            f"Snapshot {found.id} was made under {found.accelerator} on {found.cpu}; here runs "
            f"{accelerator.name} on {accelerator.cpu}."
        )
    made, here = found.qemu_version[:2], accelerator.qemu_version[:2]
    if made == here:
        return Verdict("same", f"Made by QEMU {_said(made)}, which is here too.")
    both = f"Snapshot {found.id} was made by QEMU {_said(made)}; here is {_said(here)}"
    if accelerator.name == "tcg" and (made, here) in TESTED:
        return Verdict("tested", f"{both}, and the two have been tested together.")
    if (made, here) in REFUSED:
        return _files_only(f"{both}: {REFUSED[made, here]}.")
    return _files_only(f"{both}, and the two have not been tested together.")


def _files_only(why: str) -> Verdict:
    return Verdict(
        "files only", why, "Boot its disk instead (files only), or thaw it where it was made."
    )


def _said(version: Version) -> str:
    return ".".join(map(str, version))
