"""What the guest needs from Debian, cut down: kernel, modules, busybox and a Python of its own."""

from __future__ import annotations

import asyncio
import re
import shutil
import stat
from collections.abc import Mapping
from pathlib import Path

from torpor.images.digests import key_of, tree_digest
from torpor.images.errors import ImageError
from torpor.images.mmdebstrap import make_tar
from torpor.images.programs import run
from torpor.images.progress import Report, Step
from torpor.images.stages import Building, Stage, finished_stage

# The guest is this suite on every host, so that a snapshot does not depend on where it was made.
SUITE = "bookworm"
PACKAGES = (
    "linux-image-cloud-amd64",
    "busybox-static",
    "python3.11-minimal",
    "libpython3.11-minimal",
    "libpython3.11-stdlib",
    "kmod",
)
PACKAGES_FORMAT = 1
RUNTIME_FORMAT = 2

PYTHON = "python3.11"
LOADER = "lib/x86_64-linux-gnu/ld-linux-x86-64.so.2"
TOOLS = "/run/torpor/tools"

# What an agent does not use. ssl is left out on purpose: asyncio imports it if it is there, which
# takes time under emulation and memory in every idle machine, and the agent needs none of it.
NOT_IN_STDLIB = re.compile(
    r"(antigravity|asynchat|asyncore|cgi|cgitb|doctest|ftplib|imaplib|mailbox|nntplib|pdb|poplib"
    r"|pydoc|smtpd|smtplib|ssl|telnetlib|this|turtle|webbrowser|sitecustomize|_sysconfigdata_\w*"
    r"|curses|dbm|distutils|ensurepip|idlelib|lib2to3|msilib|pydoc_data|site-packages|sqlite3|test"
    r"|tests|tkinter|turtledemo|unittest|venv|wsgiref|xmlrpc|__pycache__|config-3.*)(\.py)?"
    r"|LICENSE.txt|EXTERNALLY-MANAGED"
)
NOT_IN_LIB_DYNLOAD = re.compile(
    r"_codecs_|_multibytecodec|_crypt\.|_ctypes_test|_curses|_dbm|_gdbm|_lsprof|_sqlite3|_ssl|_test"
    r"|_tkinter|_xx|audioop|nis\.|ossaudiodev|readline|xxlimited"
)

# microvm has virtio-mmio devices and nothing else: no PCI, USB, SATA, sound or graphics, no other
# hypervisor's devices. What software alone can use stays (file systems, network, crypto, dm), but
# for network file systems and the like, which nothing beyond the egress wall would answer.
# Left are 37 of 90 MB, uncompressed: as xz they would be 12, but busybox's modprobe first offers
# a module to the kernel as it is, which puts "Invalid ELF header magic" on the console, and
# unpacking takes 100 ms a module under emulation.
MODULE_DIRECTORIES = (
    "arch/x86/crypto", "block", "crypto", "fs", "lib", "mm", "net", "security",
    "drivers/block", "drivers/char", "drivers/connector", "drivers/md", "drivers/misc/pvpanic",
    "drivers/net", "drivers/virtio",
)  # fmt: skip
NOT_IN_MODULES = re.compile(
    r"drivers/net/(ethernet|hyperv|vmxnet3|wwan|xen-|mhi)|drivers/block/(drbd|rbd|xen|aoe)"
    r"|drivers/char/(tpm|nvram)"
    r"|fs/(orangefs|ocfs2|gfs2|dlm|ceph|nfs|nfsd|lockd|smb|afs|coda|cachefiles|fscache)/"
    r"|net/(ceph|rds|tipc|smc|dccp|sctp|sunrpc|appletalk|ax25|rxrpc|bluetooth|nfc|wireless)/"
)


async def guest_runtime(cache: Path, report: Report) -> Stage:
    """The stage with `vmlinuz` and `tree` (bin, sbin, lib of the tools disk, without our code).

    Facts: `digest`, `kernel_version`. Raises ImageError.
    """

    async def unpack(building: Building) -> Mapping[str, str]:
        tar = building.path / "packages.tar"
        await make_tar(
            building, tar, variant="extract", suite=SUITE, packages=PACKAGES, report=report
        )
        tree = building.path / "tree"
        tree.mkdir()
        await run(
            "tar", "--extract", "--no-same-owner", "--exclude=./dev/*", "--exclude=./usr/share/*",
            "--exclude=./var/*", "--file", str(tar), "--directory", str(tree), lock=building.lock,
        )  # fmt: skip
        tar.unlink()
        await _depmod(building, tree, _find(tree, "lib").parent, _kernel_version(tree))
        return {"digest": await asyncio.to_thread(tree_digest, tree)}

    key = key_of(
        "guest-packages", {"format": PACKAGES_FORMAT, "suite": SUITE, "packages": PACKAGES}
    )
    packages = await finished_stage(cache, "guest-packages", key, unpack, report)

    async def cut_down(building: Building) -> Mapping[str, str]:
        source = packages.path / "tree"
        tree = building.path / "tree"
        for name in ("bin", "sbin", "lib"):
            (tree / name).mkdir(parents=True)
        shutil.copy2(_find(source, "bin/busybox"), tree / "bin/busybox")
        (tree / "sbin/modprobe").symlink_to(f"{TOOLS}/bin/busybox")
        await _python(building, source, tree, report)
        version = _kernel_version(source)
        await asyncio.to_thread(_modules, source, tree, version)
        await _depmod(building, source, tree, version)
        shutil.copy2(source / f"boot/vmlinuz-{version}", building.path / "vmlinuz")
        set_plain_modes(tree)
        digest = await asyncio.to_thread(tree_digest, building.path)
        return {"digest": digest, "kernel_version": version}

    key = key_of("guest-runtime", {"format": RUNTIME_FORMAT, "packages": packages.facts["digest"]})
    return await finished_stage(cache, "guest-runtime", key, cut_down, report)


def set_plain_modes(tree: Path) -> None:
    """Make the modes of a tools tree those that root's usual umask gives, whoever builds it."""
    for path in (tree, *tree.rglob("*")):
        mode = path.lstat().st_mode
        if not stat.S_ISLNK(mode):
            path.chmod(0o755 if stat.S_ISDIR(mode) or mode & stat.S_IXUSR else 0o644)


async def run_python(tree: Path, *arguments: str, lock: int) -> None:
    """Run the guest's Python from a tools tree, here on the host, by its own loader."""
    await run(
        str(tree / "lib/ld.so"), "--inhibit-cache", "--library-path", str(tree / "lib"),
        "--argv0", str(tree / "bin" / PYTHON), str(tree / "bin" / PYTHON), "-I", "-S", "-B",
        *arguments, lock=lock,
    )  # fmt: skip


async def compile_python(tree: Path, directory: str, *, keep_source: bool, lock: int) -> None:
    """Compile all modules below a directory of a tools tree, as the guest will read them.

    The result is never checked against a source's time: there is none, or it does not count.
    """
    await run_python(
        tree, "-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash",
        *([] if keep_source else ["-b"]),
        "-s", str(tree), "-p", TOOLS, str(tree / directory), lock=lock,
    )  # fmt: skip
    if not keep_source:
        for source in (tree / directory).rglob("*.py"):
            source.unlink()


async def _python(building: Building, source: Path, tree: Path, report: Report) -> None:
    report(Step("compiling the guest's Python"))
    shutil.copy2(_find(source, f"usr/bin/{PYTHON}"), tree / "bin" / PYTHON)
    libraries = _find(source, f"usr/lib/{PYTHON}")

    def left_out(directory: str, names: list[str]) -> set[str]:
        if Path(directory).name == "lib-dynload":
            return {name for name in names if NOT_IN_LIB_DYNLOAD.match(name)}
        return {name for name in names if NOT_IN_STDLIB.fullmatch(name)}

    shutil.copytree(libraries, tree / "lib" / PYTHON, ignore=left_out)
    shutil.copy2(_find(source, LOADER), tree / "lib/ld.so")
    for binary in [tree / "bin" / PYTHON, *(tree / "lib" / PYTHON / "lib-dynload").glob("*.so")]:
        for library in await _libraries(building, source, tree, binary):
            shutil.copy2(library, tree / "lib" / library.name)
    await compile_python(tree, f"lib/{PYTHON}", keep_source=False, lock=building.lock)


async def _libraries(building: Building, source: Path, tree: Path, binary: Path) -> list[Path]:
    """The shared libraries that a binary needs, as the guest's own loader finds them."""
    places = [_find(source, f"{usr}lib/x86_64-linux-gnu") for usr in ("", "usr/")]
    lines: list[str] = []
    await run(
        str(tree / "lib/ld.so"), "--inhibit-cache", "--library-path", ":".join(map(str, places)),
        "--list", str(binary), lock=building.lock, on_line=lines.append,
    )  # fmt: skip
    found: list[Path] = []
    for line in lines:
        match = re.match(r"\S+ => (/\S+) ", line)
        if match is None or "ld-linux" in line:
            continue
        if not Path(match[1]).is_relative_to(source):
            raise ImageError(
                f"The guest's Python would use the host's library {match[1]}.",
                "Nothing was made of it.",
                "Report this: a package is missing in torpor.images.runtime.PACKAGES.",
            )
        found.append(Path(match[1]))
    return found


def _modules(source: Path, tree: Path, version: str) -> None:
    """Copy the modules that a machine can use, and those that they need."""
    everything = _find(source, "lib/modules") / version
    modules = tree / "lib/modules" / version
    modules.mkdir(parents=True)
    for name in ("modules.order", "modules.builtin", "modules.builtin.modinfo"):
        shutil.copy2(everything / name, modules / name)
    dependencies = (everything / "modules.dep").read_text()
    for path in useful_modules(dependencies):
        (modules / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(everything / path, modules / path)


def useful_modules(dependencies: str) -> list[str]:
    """The paths in a modules.dep that match MODULE_DIRECTORIES, and all that they need."""
    wanted: set[str] = set()
    starts = tuple(f"kernel/{name}/" for name in MODULE_DIRECTORIES)
    for line in dependencies.splitlines():
        path, _, needs = line.partition(":")
        if path.startswith(starts) and not NOT_IN_MODULES.search(path):
            wanted |= {path, *needs.split()}
    return sorted(wanted)


async def _depmod(building: Building, source: Path, root: Path, version: str) -> None:
    """Write modules.dep and its like, by the guest's own kmod: hosts have others, or none."""
    places = [str(_find(source, f"{usr}lib/x86_64-linux-gnu")) for usr in ("", "usr/")]
    await run(
        str(_find(source, LOADER)), "--inhibit-cache", "--library-path", ":".join(places),
        "--argv0", "depmod", str(_find(source, "bin/kmod")), "-b", str(root), version,
        lock=building.lock,
    )  # fmt: skip


def _kernel_version(source: Path) -> str:
    versions = [path.name for path in _find(source, "lib/modules").iterdir()]
    if len(versions) != 1:
        raise ImageError(
            f"Expected one kernel, found {len(versions)}: {', '.join(versions)}.",
            "Nothing was made of it.",
            "Report this: the kernel package has changed.",
        )
    return versions[0]


def _find(tree: Path, name: str) -> Path:
    """A path in an unpacked tree, whether or not its /usr is merged."""
    for candidate in (tree / name, tree / "usr" / name, tree / name.removeprefix("usr/")):
        if candidate.exists():
            return candidate
    raise ImageError(
        f"The unpacked packages have no {name}.",
        "Nothing was made of them.",
        "Report this: a Debian package has changed its layout.",
    )
