"""A QEMU that was taken over gets nowhere: a double that runs in the same jail, started as QEMU is.

The double is a program in Python without the filter of system calls that QEMU sets for itself, so
what holds here is all the rest of the jail.
"""

import asyncio
import ctypes
import hashlib
import json
import os
import secrets
import shutil
import socket
import sys
import sysconfig
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from torpor.vm.accelerator import Accelerator, qemu_version
from torpor.vm.bases import OpenBases
from torpor.vm.cgroups import find_groups
from torpor.vm.disk import Layer, create_layer
from torpor.vm.jail import FIRST_UID, Jail, detect, end_all
from torpor.vm.launch import AGENT, DriveParts, Launched, Parts, launch
from torpor.vm.manifest import ROOT, Drive
from torpor.vm.pages import PAGE
from torpor.vm.processes import find_by_prefix
from torpor.vm.said import SAID
from torpor.vm.shape import MIB, Shape

pytestmark = pytest.mark.machine

LIMIT = 60.0
HERE = Path(__file__).resolve().parent


@pytest.fixture(scope="session")
def python() -> Iterator[Path]:
    """A directory with a Python that anybody can run, and the double."""
    directory = Path(tempfile.mkdtemp(prefix="torpor-double-", dir="/var/tmp"))
    directory.chmod(0o755)
    (directory / "bin").mkdir()
    shutil.copy(Path(sys.executable).resolve(), directory / "bin/python3")
    library = Path(sysconfig.get_path("stdlib"))
    left_out = shutil.ignore_patterns(
        "site-packages", "dist-packages", "test", "tests", "__pycache__", "idlelib", "tkinter",
        "config-*", "lib2to3", "ensurepip", "pydoc_data",
    )  # fmt: skip
    shutil.copytree(library, directory / "lib" / library.name, ignore=left_out)
    shutil.copy(HERE / "hostile_qemu.py", directory / "hostile_qemu.py")
    for entry in directory.rglob("*"):
        entry.chmod(0o755 if entry.is_dir() or entry.parent.name == "bin" else 0o644)
    yield directory
    shutil.rmtree(directory)


@dataclass(frozen=True)
class Taken(Jail):
    """The jail of this host, with the double in QEMU's place; the filter is QEMU's own."""

    python: Path = Path()
    told: str = ""

    def wrap(self, qemu: list[str], **options: Any) -> list[str]:
        double = [
            str(self.python / "bin/python3"),
            "-I",
            "-S",
            str(self.python / "hostile_qemu.py"),
        ]
        return super().wrap([*double, self.told, *qemu], **options)


class Site:
    """A directory as a host has it: a base, layers, machines."""

    def __init__(self, directory: Path, accelerator: Accelerator, jail: Jail, python: Path) -> None:
        self.directory = directory
        self.accelerator = accelerator
        self.jail = jail
        self.python = python
        self.name = f"torpor-test{secrets.token_hex(4)}-"
        self.bases = OpenBases(accelerator.qemu_version)
        self.started: dict[str, Launched] = {}

    async def prepare(self) -> None:
        self.directory.chmod(0o700)
        for name in ("bases", "layers", "machines"):
            (self.directory / name).mkdir()
        (self.directory / "bases/base.mem").write_bytes(
            os.urandom(64 * PAGE) + bytes(64 * MIB - 64 * PAGE)
        )
        (self.directory / "bases/base.mem").chmod(0o444)
        (self.directory / "layers/root.raw").write_bytes(os.urandom(MIB))
        await create_layer(self.directory / "layers/below.qcow2", MIB)
        (self.directory / "layers/tools.raw").write_bytes(os.urandom(MIB))
        for layer in (self.directory / "layers").iterdir():
            layer.chmod(0o600)

    async def start(self, name: str, **told: Any) -> Launched:
        """Start a double as the machine ``name``."""
        directory = self.directory / "machines" / name
        directory.mkdir(mode=0o700)
        top = Layer(f"top-{name}", "qcow2", MIB)
        await create_layer(directory / top.file_name, MIB)
        layers = self.directory / "layers"
        jail = Taken(
            own_user=self.jail.own_user,
            namespaces=self.jail.namespaces,
            seccomp=False,
            missing=(),
            seen=(*self.jail.seen, self.python),
            groups=self.jail.groups,
            resource_limits=self.jail.resource_limits,
            python=self.python,
            told=json.dumps({"attack": False} | told),
        )
        async with self.bases.opened("base", self.directory / "bases/base.mem") as base:
            parts = Parts(
                Shape(1, 64),
                self.accelerator,
                base,
                (
                    DriveParts(
                        Drive(ROOT, (Layer("root", "raw", MIB), Layer("below", "qcow2", MIB)), top),
                        (layers / "root.raw", layers / "below.qcow2"),
                        directory / top.file_name,
                    ),
                ),
                layers / "tools.raw",
                None,
            )
            uid = FIRST_UID + 60_000 + len(self.started)
            launched = await launch(directory, f"{self.name}{name}", parts, jail, uid)
        self.started[name] = launched
        return launched

    async def hears(self, name: str, until: str) -> list[str]:
        """What a double has said, when it has come to ``until``."""
        fd = os.open(self.directory / "machines" / name / SAID, os.O_RDWR | os.O_NONBLOCK)
        said = b""
        try:
            async with asyncio.timeout(LIMIT):
                while until.encode() not in said:
                    with suppress(BlockingIOError):
                        said += os.read(fd, 1 << 16)
                    await asyncio.sleep(0.02)
        except TimeoutError:
            raise AssertionError(f"it only said {said.decode()}") from None
        finally:
            os.close(fd)
        return said.decode().splitlines()

    def sums(self) -> dict[str, str]:
        """The content of everything that is not a machine's own."""
        files = [*(self.directory / "bases").iterdir(), *(self.directory / "layers").iterdir()]
        return {str(file): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}

    async def end(self, name: str) -> None:
        """End a machine as a host does."""
        launched = self.started[name]
        launched.process.kill()
        await asyncio.to_thread(launched.child.wait)
        if launched.group is not None:
            await launched.group.remove()


@pytest.fixture
async def site(python: Path, tmp_path: Path) -> AsyncIterator[Site]:
    """A host's directory. Nothing of its machines is left afterwards."""
    directory = Path(tempfile.mkdtemp(prefix="torpor-test-", dir="/var/tmp"))
    accelerator = Accelerator("tcg", "", await qemu_version(), "")
    site = Site(directory, accelerator, await detect(), python)
    await site.prepare()
    yield site
    for name in site.started:
        await site.end(name)
    await site.bases.close()
    shutil.rmtree(directory)
    assert not await end_all(site.name)
    assert find_groups(site.name) == {}


async def test_a_qemu_that_was_taken_over_gets_nowhere(site: Site, tmp_path: Path) -> None:
    if not site.jail.own_user or not site.jail.namespaces:
        pytest.skip(f"the whole jail cannot be had here: {site.jail.missing}")
    victim = await site.start("victim")
    key = f"torpor-{secrets.token_hex(4)}"
    ctypes.CDLL(None).syscall(248, b"user", key.encode(), b"secret", 6, ctypes.c_long(-3))
    before = site.sums()
    abstract = f"torpor-{secrets.token_hex(4)}"
    with (
        socket.create_server(("127.0.0.1", 0)) as tcp,
        socket.socket(socket.AF_UNIX) as unix,
        socket.socket(socket.AF_UNIX) as hidden,
    ):
        unix.bind(str(tmp_path / "server.sock"))
        unix.listen()
        hidden.bind(f"\0{abstract}")
        hidden.listen()
        machines = site.directory / "machines"
        await site.start(
            "evil",
            attack=True,
            port=tcp.getsockname()[1],
            abstract=abstract,
            socket=str(tmp_path / "server.sock"),
            key=key,
            paths={
                "the host's directory": str(site.directory),
                "layers": str(site.directory / "layers/root.raw"),
                "its own directory": str(machines / "evil"),
                "its neighbour": str(machines / "victim"),
                "its neighbour's channel": str(machines / "victim" / AGENT),
                "its neighbour's disk": str(machines / "victim/top-victim.qcow2"),
                "the server's socket": str(tmp_path / "server.sock"),
                "home directories": "/root",
                "the host's top": "/var/lib",
            },
            pids={
                "its neighbour": victim.process.pid,
                "the program": os.getpid(),
                "the host's init": 1 if os.getpid() != 1 else os.getppid(),
            },
        )
        said = await site.hears("evil", "\nend\n")
    given = next(line for line in said if line.startswith("given: "))
    assert given == "given: 1 3 2"  # it did look at the right descriptors
    # Its own process has the number 1 inside: that is itself, and not the host's.
    own = ("kill the host's init", "look at the host's init", "memory of the host's init",
           "pidfd of the host's init")  # fmt: skip
    # The sealed copy of the base can be given attributes (it must open for writing). Nobody reads
    # them, and its content is sealed.
    own += ("base 0 setxattr",)
    done = [line for line in said if ": DONE" in line and not line.startswith(own)]
    assert done == []
    assert len(said) > 100
    # Not bound to a network namespace, so only the filter keeps it from the hypervisor.
    assert "vsock: EAFNOSUPPORT" in said
    assert "keys of the host: ENOSYS" in said
    assert site.sums() == before
    assert victim.process.alive()


async def test_what_it_takes_beyond_its_memory_ends_it_alone(site: Site) -> None:
    if site.jail.groups is None or "memory" in site.jail.groups.lacking:
        pytest.skip("this host has no limit of memory")
    victim = await site.start("victim")
    greedy = await site.start("greedy", then="memory")
    async with asyncio.timeout(LIMIT):
        while greedy.process.alive():  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    assert greedy.group is not None
    assert greedy.group.out_of_memory()
    assert victim.process.alive()
    assert victim.group is not None
    assert not victim.group.out_of_memory()


async def test_what_it_says_does_not_fill_the_host(site: Site) -> None:
    await site.start("chatty", then="log")
    fd = os.open(site.directory / "machines/chatty" / SAID, os.O_RDWR | os.O_NONBLOCK)
    async with asyncio.timeout(LIMIT):
        while len(_look(fd)) < 1000:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    os.close(fd)
    sizes = [file.stat().st_blocks * 512 for file in (site.directory / "machines/chatty").iterdir()]
    assert sum(sizes) < 2 * MIB


def _look(fd: int) -> bytes:
    try:
        return os.read(fd, 1 << 16)
    except BlockingIOError:
        return b""


async def test_its_own_file_cannot_grow_without_end(site: Site) -> None:
    if not site.jail.resource_limits:
        pytest.skip("this host has no resource limits")
    await site.start("wide", then="file")
    assert await site.hears("wide", "\n") == ["a file beyond its limit: EFBIG"]


@pytest.mark.parametrize("then", ["processes", "hide"])
async def test_nothing_of_it_is_left_after_its_end(site: Site, then: str) -> None:
    launched = await site.start("sticky", then=then)
    (line,) = await site.hears("sticky", "\n")
    if then == "processes" and site.jail.resource_limits:
        assert int(line.split()[1]) < 100
    else:
        assert line
    uid = FIRST_UID + 60_000
    if launched.group is not None:
        # As after a crash of the program: by the group, whatever it calls itself.
        if then == "hide":
            found = [each.pid for each in find_by_prefix(f"{site.name}sticky", ("python3",))]
            assert launched.process.pid not in found
        assert launched.process.pid in launched.group.processes()
        groups = find_groups(site.name)
        await groups[f"{site.name}sticky"].remove()
        await asyncio.to_thread(launched.child.wait)
    else:
        await site.end("sticky")
    assert not launched.process.alive()
    if site.jail.own_user:
        assert [pid for pid in _processes_of(uid) if _alive(pid)] == []


def _processes_of(uid: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if entry.name.isdigit() and entry.stat().st_uid == uid:
                found.append(int(entry.name))
    return found


def _alive(pid: int) -> bool:
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


async def test_it_starts_in_its_group_and_under_its_limits(site: Site) -> None:
    launched = await site.start("bound")
    limits = {
        line[:26].strip(): line[26:].split()
        for line in Path(f"/proc/{launched.process.pid}/limits").read_text().splitlines()[1:]
    }
    if site.jail.resource_limits:
        assert limits["Max core file size"][:2] == ["1", "1"]
        assert limits["Max open files"][:2] == ["1024", "1024"]
        assert limits["Max locked memory"][:2] == ["0", "0"]
    if site.jail.groups is not None:
        assert launched.group is not None
        assert {launched.process.pid, launched.child.pid} <= launched.group.processes()
