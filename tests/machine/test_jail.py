"""QEMU runs in its jail: what `torpor doctor` calls active is seen on the real process."""

import asyncio
import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.machine.conftest import Start
from torpor.vm import Host, Identity, Machine, VmError, Wanted
from torpor.vm.jail import FIRST_UID

pytestmark = pytest.mark.machine


def status(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return dict(line.split(":\t", 1) for line in lines if ":\t" in line)


async def test_qemu_has_no_rights(start: Start, machine: Machine) -> None:
    seen = status(machine.pid)
    jail = start.maker.jail
    assert jail.missing == () or os.geteuid() != 0
    assert int(seen["CapEff"], 16) == int(seen["CapBnd"], 16) == 0
    assert seen["NoNewPrivs"] == "1"
    if jail.seccomp:
        assert seen["Seccomp"] == "2"
    if jail.own_user:
        uids = {int(uid) for uid in seen["Uid"].split()}
        assert uids == {machine.record.uid}
        assert machine.record.uid >= FIRST_UID
        assert seen["Groups"].strip() == ""


async def test_qemu_has_namespaces_of_its_own(machine: Machine) -> None:
    for kind in ("user", "mnt", "pid", "net", "ipc", "uts"):
        ours = Path(f"/proc/self/ns/{kind}").readlink()
        assert Path(f"/proc/{machine.pid}/ns/{kind}").readlink() != ours, kind
    devices = Path(f"/proc/{machine.pid}/net/dev").read_text().splitlines()[2:]
    # Its own and, where this host can build links, the other end of its machine's wire.
    seen = sorted(line.split(":")[0].strip() for line in devices)
    assert seen == (["lo", "machine"] if machine.record.card else ["lo"])


@pytest.mark.parametrize("own_user", [True, False])
async def test_a_machine_runs_where_there_are_no_namespaces(
    start: Start, home: Path, own_user: bool
) -> None:
    have = start.maker.jail
    jail = replace(have, namespaces=False, own_user=own_user and have.own_user)
    host = await Host.open(
        home, start.maker.accelerator, jail, golden=start.maker.store(), links=start.maker.links(0)
    )
    machine = await host.thaw(start.golden, Identity.of("bare"))
    try:
        assert (await machine.agent.run("/bin/true")).exit.ok
        assert status(machine.pid)["NoNewPrivs"] == "1"
        frozen = await host.freeze(machine, Wanted("stop"))
        machine = await host.thaw(frozen.manifest.id)
    finally:
        await host.end(machine)
        await host.close()
    assert host.processes() == []


async def test_two_machines_are_two_users(start: Start, host: Host) -> None:
    started = [host.thaw(start.golden, Identity.of(name)) for name in ("one", "two", "three")]
    machines = await asyncio.gather(*started)
    if start.maker.jail.own_user:
        assert len({machine.record.uid for machine in machines}) == 3


async def test_the_jail_shows_no_files_but_the_systems(host: Host, machine: Machine) -> None:
    root = Path(f"/proc/{machine.pid}/root")
    seen = {entry.name for entry in root.iterdir()}
    assert seen <= {"usr", "bin", "lib", "lib32", "lib64", "libx32", "sbin", "etc", "proc", "dev"}
    assert {entry.name for entry in (root / "etc").iterdir()} <= {"ld.so.cache"}
    assert {entry.name for entry in (root / "usr/bin").iterdir()} == {"qemu-system-x86_64"}
    assert {entry.name for entry in (root / "dev").iterdir()} <= {"null", "urandom", "kvm"}
    mounts = Path(f"/proc/{machine.pid}/mounts").read_text().splitlines()
    writable = [each.split()[1] for each in mounts if each.split()[3].split(",")[0] == "rw"]
    assert set(writable) <= {"/dev/null", "/dev/urandom", "/dev/kvm"}
    assert not (root / str(host.home).lstrip("/")).exists()


async def test_qemu_holds_only_what_it_was_given(host: Host, machine: Machine) -> None:
    for fd in Path(f"/proc/{machine.pid}/fd").iterdir():
        target = str(fd.readlink())
        if target.startswith("/") and not target.startswith(("/dev/", "/memfd:torpor-")):
            given = {machine.record.top, *machine.record.layers, machine.record.tools}
            names = {layer.file_name for layer in given} | {"said", "trace.log"}
            assert Path(target.removesuffix(" (deleted)")).name in names or "golden" in target


async def test_the_jailed_user_can_reach_no_other_machine(host: Host, machine: Machine) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root to become another user")
    script = f"""
import os, sys
uid = {machine.record.uid}
os.setgroups([])
os.setresgid(uid, uid, uid)
os.setresuid(uid, uid, uid)
for path in sys.argv[1:]:
    try:
        os.listdir(path) if os.path.isdir(path) else open(path, "rb")
    except PermissionError:
        continue
    print(path)
"""
    paths = [host.home, host.home / "snapshots", machine.directory, machine.directory / "agent"]
    command = [sys.executable, "-c", script, *map(str, paths)]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    reached, _ = await process.communicate()
    assert (process.returncode, reached) == (0, b"")


async def test_a_machine_that_was_forked_cannot_write_what_its_children_read(
    host: Host, machine: Machine
) -> None:
    await machine.agent.shell("echo something > /root/file; sync")
    old_top = machine.record.top
    forked = await host.fork(machine, 1)
    assert not any(isinstance(child, VmError) for child in forked.children)
    assert machine.record.top != old_top
    read = (host.store.root / "layers" / old_top.file_name).stat()
    held = [Path(f"/proc/{machine.pid}/fd/{fd}").stat() for fd in open_fds(machine.pid)]
    assert (read.st_dev, read.st_ino) not in [(each.st_dev, each.st_ino) for each in held]
    flags = [flags_of(machine.pid, fd) for fd in open_on(machine.pid, old_top.file_name)]
    assert flags
    assert all(each & os.O_ACCMODE == os.O_RDONLY for each in flags)


def open_fds(pid: int) -> list[str]:
    return [fd.name for fd in Path(f"/proc/{pid}/fd").iterdir()]


def open_on(pid: int, name: str) -> list[str]:
    found = Path(f"/proc/{pid}/fd").iterdir()
    return [
        fd.name for fd in found if Path(str(fd.readlink()).removesuffix(" (deleted)")).name == name
    ]


def flags_of(pid: int, fd: str) -> int:
    lines = Path(f"/proc/{pid}/fdinfo/{fd}").read_text().splitlines()
    return next(int(line.split()[1], 8) for line in lines if line.startswith("flags:"))
