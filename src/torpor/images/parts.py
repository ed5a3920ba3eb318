"""The parts that every machine boots from: kernel, initramfs, tools disk."""

from __future__ import annotations

import asyncio
import hashlib
import json
import shutil
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from torpor.images.digests import file_digest, key_of
from torpor.images.ext4 import make_ext4, size_of
from torpor.images.initramfs import MODULES, make_initramfs
from torpor.images.progress import Report, Step
from torpor.images.runtime import compile_python, guest_runtime, set_plain_modes
from torpor.images.stages import Building, Stage, finished_stage
from torpor.vm import AgentCode

INITRAMFS_FORMAT = 1
TOOLS_FORMAT = 2

GUEST = Path(__file__).parent.parent / "guest"
BOOT = GUEST / "boot"
# A shell starts what it runs in the background with INT and QUIT ignored, and that is inherited:
# without this, Ctrl-C would reach no program in the machine.
MAIN = b"""\
import signal

for number in (signal.SIGINT, signal.SIGQUIT):
    signal.signal(number, signal.SIG_DFL)

from torpor.guest.agent import main

main()
"""


@dataclass(frozen=True)
class GuestParts:
    """`kernel` (bzImage), `initramfs` (cpio) and `tools` (raw ext4, to be given read-only).

    `digest` is a sha256 over the content of all three and `kernel_version`; a snapshot can be
    thawed only beside parts of the same digest. `agent` is the agent's code alone, to be put into
    machines that have another.
    """

    kernel: Path
    initramfs: Path
    tools: Path
    kernel_version: str
    digest: str
    agent: AgentCode


async def guest_parts(cache: Path, report: Report) -> GuestParts:
    """The guest parts, from the cache or made now. Raises ImageError.

    A change of the agent's source makes a new tools disk only.
    """
    runtime = await guest_runtime(cache, report)
    kernel = await _kernel(cache, runtime, report)
    tools = await _tools(cache, runtime, report)
    version = runtime.facts["kernel_version"]
    said = [version, kernel.facts["kernel"], kernel.facts["initramfs"], tools.facts["digest"]]
    return GuestParts(
        kernel=kernel.path / "vmlinuz",
        initramfs=kernel.path / "initramfs",
        tools=tools.path / "tools.ext4",
        kernel_version=version,
        digest=hashlib.sha256("\n".join(said).encode()).hexdigest(),
        agent=AgentCode(tools.facts["agent"], tools.path / "agent.zip"),
    )


def agent_source(guest: Path = GUEST) -> dict[str, bytes]:
    """The agent's files as they lie below `site` on the tools disk."""
    files = {"__main__.py": MAIN, "torpor/__init__.py": b""}
    for path in sorted(guest.rglob("*.py")):
        files[f"torpor/guest/{path.relative_to(guest)}"] = path.read_bytes()
    files.setdefault("torpor/guest/__init__.py", b"")
    files["torpor/guest/digest.py"] = f'DIGEST = "{agent_digest(files)}"\n'.encode()
    return files


def agent_digest(files: Mapping[str, bytes]) -> str:
    """The digest by which an agent with these files is known. The file that tells it is left
    out."""
    said = {
        name: hashlib.sha256(text).hexdigest()
        for name, text in files.items()
        if name != "torpor/guest/digest.py"
    }
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()


def pack_agent(site: Path, archive: Path) -> None:
    """Make a zip archive of the compiled modules below `site`, as Python imports from one."""
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as packed:
        for compiled in sorted(site.rglob("torpor/**/*.pyc")):
            name = f"{compiled.name.partition('.')[0]}.pyc"
            within = compiled.parent.parent.relative_to(site) / name
            entry = zipfile.ZipInfo(str(within))
            packed.writestr(entry, compiled.read_bytes(), zipfile.ZIP_DEFLATED)


def tools_key(runtime_digest: str, boot: Mapping[str, bytes], site: Mapping[str, bytes]) -> str:
    """The key of a tools disk: of Debian's part, the boot scripts and the agent's source."""
    return key_of(
        "tools",
        {
            "format": TOOLS_FORMAT,
            "runtime": runtime_digest,
            "boot": {name: hashlib.sha256(text).hexdigest() for name, text in boot.items()},
            "site": {name: hashlib.sha256(text).hexdigest() for name, text in site.items()},
        },
    )


async def _kernel(cache: Path, runtime: Stage, report: Report) -> Stage:
    init = BOOT / "initramfs.sh"
    version = runtime.facts["kernel_version"]

    async def build(building: Building) -> Mapping[str, str]:
        report(Step("making the initramfs"))
        tree = runtime.path / "tree"
        kernel = building.path / "vmlinuz"
        initramfs = building.path / "initramfs"
        shutil.copyfile(runtime.path / "vmlinuz", kernel)
        initramfs.write_bytes(
            make_initramfs(tree / "lib/modules" / version, tree / "bin/busybox", init)
        )
        return {"kernel": file_digest(kernel), "initramfs": file_digest(initramfs)}

    key = key_of(
        "kernel",
        {
            "format": INITRAMFS_FORMAT,
            "runtime": runtime.facts["digest"],
            "modules": MODULES,
            "init": file_digest(init),
        },
    )
    return await finished_stage(cache, "kernel", key, build, report)


async def _tools(cache: Path, runtime: Stage, report: Report) -> Stage:
    boot = {name: (BOOT / name).read_bytes() for name in ("init.sh", "agent.sh")}
    site = agent_source()
    key = tools_key(runtime.facts["digest"], boot, site)

    async def build(building: Building) -> Mapping[str, str]:
        report(Step("making the tools disk"))
        tree = building.path / "tree"
        image = building.path / "tools.ext4"
        shutil.copytree(runtime.path / "tree", tree, symlinks=True)
        for name, text in boot.items():
            script = tree / "sbin" / name.removesuffix(".sh")
            script.write_bytes(text)
            script.chmod(0o755)
        for name, text in site.items():
            path = tree / "site" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(text)
        await compile_python(tree, "site", keep_source=True, lock=building.lock)
        pack_agent(tree / "site", building.path / "agent.zip")
        set_plain_modes(tree)
        size_bytes, inodes = size_of(tree)
        await make_ext4(
            building, image, label="torpor-tools", key=key, size_bytes=size_bytes, tree=tree,
            journal=False, inodes=inodes,
        )  # fmt: skip
        await asyncio.to_thread(shutil.rmtree, tree)
        digest = await asyncio.to_thread(file_digest, image)
        return {"digest": digest, "agent": agent_digest(site)}

    return await finished_stage(cache, "tools", key, build, report)
