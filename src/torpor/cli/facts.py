"""What ``torpor doctor`` looks at, gathered once, as plain data.

Nothing here judges: :mod:`torpor.cli.findings` does, from these values alone.
"""

import asyncio
import contextlib
import errno
import fcntl
import getpass
import grp
import os
import platform
import re
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from torpor.cli import rights
from torpor.cli.leftovers import leftovers
from torpor.cli.server_facts import Server, server_of
from torpor.network.link import Probed
from torpor.network.link import probe as probe_link
from torpor.settings import Places
from torpor.vm import Accelerator, HostError, Jail, SnapshotError, Store, detect, probe
from torpor.vm.accelerator import qemu_version
from torpor.vm.compatibility import check

SYSCTLS = (
    "kernel.apparmor_restrict_unprivileged_userns",
    "kernel.unprivileged_userns_clone",
    "kernel.yama.ptrace_scope",
    "user.max_user_namespaces",
)
SEARCH = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])
"""Users' PATH may lack the directories of mkfs.ext4."""
PAGEMAP_SCAN = 0xC0606610
"""linux/fs.h, from Linux 6.7 on."""


@dataclass(frozen=True)
class Tool:
    """A program of the distribution: its name, its package, and what it is for.

    ``asked`` is the argument that makes it tell its version, empty if none does. ``without`` says
    what happens where it is missing.
    """

    name: str
    package: str
    use: Literal["machines", "images", "jail"]
    asked: str = "--version"


TOOLS = (
    Tool("qemu-system-x86_64", "qemu-system-x86", "machines"),
    Tool("qemu-img", "qemu-utils", "machines"),
    Tool("qemu-io", "qemu-utils", "machines"),
    Tool("bwrap", "bubblewrap", "jail"),
    Tool("ldd", "libc-bin", "jail"),
    Tool("setpriv", "util-linux", "images"),
    Tool("mmdebstrap", "mmdebstrap", "images"),
    Tool("mkfs.ext4", "e2fsprogs", "images", "-V"),
    Tool("tar", "tar", "images"),
    Tool("fallocate", "util-linux", "images"),
    Tool("apt-config", "apt", "images"),
    Tool("skopeo", "skopeo", "images"),
    Tool("fakeroot", "fakeroot", "images"),
    Tool("prlimit", "util-linux", "images"),
    Tool("zstd", "zstd", "images"),
    Tool("openssl", "openssl", "images", "version"),
)
USER_TOOLS = (Tool("newuidmap", "uidmap", "images", ""),)
"""What only those need who are not root."""


@dataclass(frozen=True)
class Program:
    """A tool as it was found: ``path`` is None if it was not, ``version`` empty if not told."""

    tool: Tool
    path: str | None
    version: str = ""


@dataclass(frozen=True)
class System:
    """The kernel and the Python that run this."""

    name: str
    machine: str
    kernel: str
    python: str


@dataclass(frozen=True)
class Kvm:
    """``/dev/kvm``: whether it is there and ours to open.

    ``group`` is the group that may open it, empty if none may but root's.
    """

    state: Literal["absent", "closed", "open"]
    group: str = ""


@dataclass(frozen=True)
class Memory:
    """The host's memory in bytes: all of it, and what could be had now."""

    total: int
    available: int


@dataclass(frozen=True)
class Place:
    """A directory of Torpor's: where it is, which variable moves it, and the room on its disk.

    ``refused`` is why it cannot be written, empty if it can. The bytes are those of the nearest
    directory above it that exists.
    """

    path: Path
    variable: str
    exists: bool
    refused: str
    free: int
    total: int


@dataclass(frozen=True)
class Kept:
    """The snapshots in the home: how many, and why those cannot be thawed here that cannot."""

    count: int
    files_only: tuple[str, ...] = ()
    unreadable: tuple[str, ...] = ()


@dataclass(frozen=True)
class Facts:
    """All of it. A ``..._problem`` says why what stands before it is None."""

    system: System
    root: bool
    user: str
    accelerator: Accelerator | None
    accelerator_problem: str
    kvm: Kvm
    jail: Jail | None
    jail_problem: str
    sysctls: dict[str, int | None]
    own_memory_refused: str | None
    adopted_memory_refused: str | None
    subordinate_ids: bool
    programs: tuple[Program, ...]
    pagemap_scan: bool
    memory: Memory
    home: Place
    cache: Place
    leftovers: tuple[Path, ...]
    server: Server
    kept: Kept = Kept(0)
    link: Probed = field(default_factory=Probed)


async def gather(places: Places) -> Facts:
    """Look at this host. Starts short-lived programs, changes nothing but the kept verdict of the
    accelerator's probe."""
    root = os.geteuid() == 0
    accelerator, accelerator_problem = await accelerator_of(places.cache)
    jail, jail_problem = await _jail()
    own = adopted = None
    if jail is not None:
        own = await rights.refusal(jail, stranger=False)
        adopted = await rights.refusal(jail, stranger=True)
    tools = TOOLS if root else TOOLS + USER_TOOLS
    user = _user()
    return Facts(
        system=System(
            platform.system(), platform.machine(), platform.release(), platform.python_version()
        ),
        root=root,
        user=user,
        accelerator=accelerator,
        accelerator_problem=accelerator_problem,
        kvm=_kvm(Path("/dev/kvm")),
        jail=jail,
        jail_problem=jail_problem,
        sysctls={name: sysctl(name) for name in SYSCTLS},
        own_memory_refused=own,
        adopted_memory_refused=adopted,
        subordinate_ids=has_subordinate_ids(Path("/etc/subuid"), user, os.geteuid()),
        programs=tuple(await asyncio.gather(*(_program(tool) for tool in tools))),
        pagemap_scan=_pagemap_scan(),
        memory=read_memory(Path("/proc/meminfo").read_text()),
        home=place(places.home, "TORPOR_HOME"),
        cache=place(places.cache, "TORPOR_CACHE"),
        leftovers=tuple(leftovers(places.home)),
        server=await asyncio.to_thread(server_of, places.home),
        kept=kept_snapshots(places.home, accelerator),
        link=await probe_link(),
    )


def kept_snapshots(home: Path, accelerator: Accelerator | None) -> Kept:
    """Judge the snapshots in a home, which need not exist. Those of files alone are as they are
    meant to be."""
    if not (home / "snapshots").is_dir() or accelerator is None:
        return Kept(0)
    store = Store(home)
    ids = store.ids()
    stranded, unreadable = [], []
    for snapshot in ids:
        try:
            found = store.manifest(snapshot)
        except SnapshotError as error:
            unreadable.append(str(error))
            continue
        verdict = check(found, accelerator)
        if found.memory is not None and not verdict.thaws:
            stranded.append(verdict.why)
    return Kept(len(ids), tuple(stranded), tuple(unreadable))


async def accelerator_of(cache: Path) -> tuple[Accelerator | None, str]:
    """Return the accelerator, None if it is not known, and what is wrong if something is."""
    try:
        await qemu_version()
        kernels = sorted(cache.glob("kernel/*/vmlinuz"), key=lambda file: file.stat().st_mtime)
        if not kernels:
            return None, ""
        return await probe(kernels[-1], cache / "accelerator.json"), ""
    except (HostError, OSError) as error:
        return None, str(error)


async def _jail() -> tuple[Jail | None, str]:
    # Asks QEMU whether it has a sandbox, so it needs one.
    if shutil.which("qemu-system-x86_64") is None:
        return None, "not known without QEMU"
    try:
        return await detect(), ""
    except OSError as error:
        return None, str(error)


def _kvm(device: Path) -> Kvm:
    try:
        status = device.stat()
    except OSError:
        return Kvm("absent")
    group = ""
    if status.st_gid != 0 and status.st_mode & 0o060 == 0o060:
        with contextlib.suppress(KeyError):
            group = grp.getgrgid(status.st_gid).gr_name
    return Kvm("open" if os.access(device, os.R_OK | os.W_OK) else "closed", group)


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # OSError from Python 3.13 on
        return str(os.geteuid())


def has_subordinate_ids(file: Path, user: str, uid: int) -> bool:
    """Whether subuid(5) gives a user ids of its own to build images with."""
    try:
        owners = [line.partition(":")[0] for line in file.read_text().splitlines()]
    except OSError:
        return False
    return user in owners or str(uid) in owners


def sysctl(name: str, root: Path = Path("/proc/sys")) -> int | None:
    """Return a number that the kernel is set to, or None if it has no such setting."""
    try:
        return int((root / name.replace(".", "/")).read_text())
    except (OSError, ValueError):
        return None


def read_memory(meminfo: str) -> Memory:
    """Take the two numbers out of ``/proc/meminfo``; 0 stands for one that it lacks."""
    found = dict(re.findall(r"^(\w+):\s+(\d+) kB", meminfo, re.MULTILINE))
    return Memory(
        int(found.get("MemTotal", 0)) * 1024,
        int(found.get("MemAvailable", 0)) * 1024,
    )


def place(path: Path, variable: str) -> Place:
    """Return the state of one of Torpor's directories, which need not exist."""
    above = path
    while not above.exists() and above != above.parent:
        above = above.parent
    if not above.is_dir():
        refused = f"{above} is not a directory"
    elif not os.access(above, os.W_OK | os.X_OK):
        refused = f"{above} is not yours to write"
    elif os.statvfs(above).f_flag & os.ST_RDONLY:
        refused = f"{above} is on a file system that is mounted read-only"
    else:
        refused = ""
    usage = shutil.disk_usage(above)
    return Place(path, variable, path.is_dir(), refused, usage.free, usage.total)


def _pagemap_scan() -> bool:
    # With an argument that is not valid a kernel that knows the call says so.
    with open("/proc/self/pagemap", "rb") as pagemap:
        try:
            fcntl.ioctl(pagemap, PAGEMAP_SCAN, bytearray(96))
        except OSError as error:
            return error.errno != errno.ENOTTY
    return True


async def _program(tool: Tool) -> Program:
    path = shutil.which(tool.name, path=SEARCH)
    if path is None or not tool.asked:
        return Program(tool, path)
    process = await asyncio.create_subprocess_exec(
        path,
        tool.asked,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    said, _ = await process.communicate()
    return Program(tool, path, version_in(said.decode("utf-8", "replace")))


def version_in(text: str) -> str:
    """Return the first thing in a program's words that looks like a version, or nothing."""
    found = re.search(r"\d+\.\d[\w.+~-]*", text)
    return found[0].rstrip(".") if found else ""
