"""The QEMU of the other Debian release, from its packages, to thaw with what this one has frozen.

A machine's QEMU runs in a jail that sees the host's ``/usr`` and nothing else of its programs. So
another QEMU needs no more than another ``/usr`` in the jail: the rest of Torpor, its command line
included, is what it always is.
"""

import asyncio
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path

from torpor.images.digests import key_of
from torpor.images.mmdebstrap import make_tar
from torpor.images.programs import run
from torpor.images.progress import silent
from torpor.images.stages import Building, finished_stage
from torpor.vm import Accelerator, Jail
from torpor.vm.accelerator import QEMU

SUITES = {(7, 2): "bookworm", (10, 0): "trixie"}
"""The Debian release that has each version of QEMU."""
_FORMAT = 1
_PACKAGES = ("qemu-system-x86",)
_MERGED = ("bin", "lib", "lib64", "sbin")
_NOT_USED = ("./dev/*", "./usr/share/doc/*", "./usr/share/man/*", "./usr/share/locale/*", "./var/*")


@dataclass(frozen=True)
class OtherJail(Jail):
    """A jail whose ``/usr`` is that of another system, unpacked in ``tree``."""

    tree: Path = Path("/")

    def wrap(self, *arguments: object, **named: object) -> list[str]:
        """Return the command line of the jail, with each directory of programs another one's."""
        command: list[str] = super().wrap(*arguments, **named)  # type: ignore[arg-type]
        for place, word in enumerate(command):
            source = command[place + 1] if place + 1 < len(command) else ""
            if word in ("--ro-bind", "--ro-bind-try") and source.startswith(("/usr", "/etc/ld")):
                command[place + 1] = f"{self.tree}{source}"
        return command


@dataclass(frozen=True)
class OtherQemu:
    """How machines run under the other release's QEMU."""

    accelerator: Accelerator
    jail: Jail


async def other_qemu(cache: Path, accelerator: Accelerator, jail: Jail) -> OtherQemu:
    """Return the QEMU of a Debian release whose version this host does not have.

    Its packages are fetched and unpacked into the cache the first time.
    """
    here = accelerator.qemu_version[:2]
    suite = next(suite for version, suite in SUITES.items() if version != here)

    async def unpack(building: Building) -> Mapping[str, str]:
        tar = building.path / "packages.tar"
        await make_tar(
            building, tar, variant="extract", suite=suite, packages=_PACKAGES, report=silent
        )
        tree = building.path / "tree"
        tree.mkdir()
        left_out = [f"--exclude={pattern}" for pattern in _NOT_USED]
        await run(
            "tar", "--extract", "--no-same-owner", *left_out, "--file", str(tar),
            "--directory", str(tree), lock=building.lock,
        )  # fmt: skip
        tar.unlink()
        _merge(tree)
        return {}

    key = key_of("other-qemu", {"format": _FORMAT, "suite": suite, "packages": _PACKAGES})
    stage = await finished_stage(cache, "other-qemu", key, unpack, silent)
    tree = stage.path / "tree"
    kept = {field.name: getattr(jail, field.name) for field in fields(Jail)}
    if "seen" in kept:  # the host's QEMU and its libraries; the other's are others
        kept["seen"] = (Path("/usr"),)
    other = OtherJail(**kept, tree=tree)
    version = await _version(tree)
    assert version[:2] != here, "the two QEMUs have the same version"
    return OtherQemu(replace(accelerator, qemu_version=version), other)


def _merge(tree: Path) -> None:
    """Move what an older release unpacks beside ``/usr`` into it, as the jail has it."""
    for name in _MERGED:
        beside = tree / name
        if beside.is_symlink() or not beside.is_dir():
            continue
        for path in sorted(beside.rglob("*")):
            target = tree / "usr" / path.relative_to(tree)
            if path.is_dir() and not path.is_symlink():
                target.mkdir(parents=True, exist_ok=True)
            else:
                target.parent.mkdir(parents=True, exist_ok=True)
                path.rename(target)


async def _version(tree: Path) -> tuple[int, int, int]:
    links = [word for name in _MERGED for word in ("--symlink", f"usr/{name}", f"/{name}")]
    process = await asyncio.create_subprocess_exec(
        "bwrap", "--unshare-all", "--ro-bind", str(tree / "usr"), "/usr", *links,
        "--proc", "/proc", "--dev", "/dev", "--", QEMU, "--version",
        stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    said, _ = await process.communicate()
    found = re.search(rb"version (\d+)\.(\d+)\.(\d+)", said)
    assert found, f"the other QEMU does not run: {said!r}"
    return int(found[1]), int(found[2]), int(found[3])
