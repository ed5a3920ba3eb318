"""Disks that outlive machines, with real ones: given, frozen, copied, rewound, taken back."""

import asyncio
import errno
import os
import signal
from pathlib import Path

import pytest

from tests.machine.conftest import Start, open_host
from tests.machine.small_disks import fill
from torpor.sessions import LocalHost
from torpor.sessions.hosts import SESSION, End
from torpor.vm import Host, Identity, Machine, Wanted
from torpor.vm.errors import HostError, MachineDiedError, SnapshotError
from torpor.vm.heads import Heads

pytestmark = pytest.mark.machine

SIZE = 2 << 30
FILE = "/workspace/file"
BUSYBOX = "/run/torpor/tools/bin/busybox"
# One number after the other, without end, each forced to the disk.
COUNTING = f"i=0; while :; do i=$((i + 1)); echo $i >> {FILE}; sleep 0.02; done"


@pytest.fixture
async def disk(host: Host) -> str:
    """A new disk."""
    await host.disks.make("w", SIZE)
    return "w"


async def given(host: Host, start: Start, name: str = "one", disk: str | None = "w") -> Machine:
    """A new machine that has the disk."""
    machine = await host.thaw(start.golden, Identity.of(name), disk=disk)
    assert machine.not_mounted is None
    return machine


async def count(machine: Machine) -> None:
    """Begin to count in a file on the disk."""
    await machine.agent.shell(f"({COUNTING}) >/dev/null 2>&1 &")
    await reached(machine, 3)


async def numbers(machine: Machine) -> list[int]:
    """What the file has; nothing, as long as it is not there."""
    if await machine.agent.stat(FILE) is None:
        return []
    return [int(line) for line in (await machine.agent.read_file(FILE)).split()]


async def reached(machine: Machine, number: int) -> None:
    """Return when the file has so many lines."""
    async with asyncio.timeout(60):
        while len(await numbers(machine)) < number:  # noqa: ASYNC110
            await asyncio.sleep(0.05)


def whole(found: list[int]) -> int:
    """How far the numbers go, none of which may be missing or there twice."""
    assert found == list(range(1, len(found) + 1))
    return len(found)


async def test_a_file_outlives_its_machine(host: Host, start: Start, disk: str) -> None:
    machine = await given(host, start)
    said = (await machine.agent.shell("stat -f -c '%b %S' /workspace; ls -A /workspace")).stdout
    blocks, size = map(int, said.split())
    assert 0.9 * SIZE < blocks * size < SIZE
    shown = (await machine.agent.shell("grep ' /workspace ' /proc/mounts")).stdout
    assert b"nodev" in shown
    await machine.agent.write_file(FILE, b"kept\n")
    await host.disks.release(machine, disk)
    assert not machine.running
    assert host.machines == {}
    head = host.store.heads.read(disk)
    assert head.now.durable
    assert len(head.now.layers) == 2
    other = await given(host, start, "two")
    assert await other.agent.read_file(FILE) == b"kept\n"
    assert (await other.agent.shell("dmesg | grep -i 'ext4.*error'")).stdout == b""


async def test_a_new_disk_has_the_owner_of_what_it_covers(
    host: Host, start: Start, disk: str
) -> None:
    machine = await host.thaw(start.golden, Identity.of("owner"))
    await machine.agent.shell("mkdir -p /workspace; chown 17:18 /workspace; chmod 700 /workspace")
    frozen = await host.freeze(machine, Wanted("stop"))
    owned = "stat -c '%u:%g %a' /workspace"
    with_it = await host.thaw(frozen.manifest.id, disk=disk)
    assert (await with_it.agent.shell(owned)).stdout == b"17:18 755\n"
    await with_it.agent.shell("chown 19:20 /workspace; chmod 711 /workspace")
    await host.disks.release(with_it, disk)
    again = await host.thaw(frozen.manifest.id, disk=disk)  # what was changed stays so
    assert (await again.agent.shell(owned)).stdout == b"19:20 711\n"


async def test_one_machine_at_a_time_has_it(host: Host, start: Start, disk: str) -> None:
    machine = await given(host, start)
    with pytest.raises(HostError, match="has disk w"):
        await given(host, start, "two")
    with pytest.raises(HostError, match="has disk w"):
        await host.disks.remove(disk)
    await host.end(machine)
    await host.disks.remove(disk)
    with pytest.raises(SnapshotError, match="no disk"):
        await given(host, start, "three")
    assert [file.name for file in (host.store.root / "layers").glob("workspace-*")] == []


async def test_what_is_not_given_back_is_given_up(host: Host, start: Start, disk: str) -> None:
    machine = await given(host, start)
    await machine.agent.write_file(FILE, b"lost\n")
    await host.end(machine)
    other = await given(host, start, "two")
    assert await other.agent.stat(FILE) is None


async def test_a_program_goes_on_writing_over_a_pause(host: Host, start: Start, disk: str) -> None:
    machine = await given(host, start)
    await count(machine)
    frozen = await host.freeze(machine, Wanted("stop"))
    (kept,) = frozen.manifest.disks
    assert (kept.disk, frozen.manifest.version) == (disk, 2)
    assert host.store.heads.read(disk).now.layers == kept.layers
    await host.durable(frozen.manifest.id)
    assert host.store.heads.read(disk).now.durable
    resumed = await host.thaw(frozen.manifest.id, disk=disk)
    before = whole(await numbers(resumed))
    await reached(resumed, before + 5)
    whole(await numbers(resumed))
    await host.disks.release(resumed, disk)
    other = await given(host, start, "two")
    assert whole(await numbers(other)) >= before + 5


async def test_children_have_copies_as_at_the_cut_and_the_parent_keeps_the_disk(
    host: Host, start: Start, disk: str
) -> None:
    machine = await given(host, start)
    await count(machine)
    forked = await host.fork(machine, 2)
    children = [child for child in forked.children if isinstance(child, Machine)]
    assert len(children) == 2
    for child in children:
        assert child.record.own_disk is None
        await reached(child, whole(await numbers(child)) + 3)
        await child.agent.write_file("/workspace/child", b"mine\n")
    await reached(machine, whole(await numbers(machine)) + 3)
    assert await machine.agent.stat("/workspace/child") is None
    for child in children:  # a child's own snapshots have its own copy
        made = await host.freeze(child, Wanted("stop"))
        assert [each.disk for each in made.manifest.disks] == [None]
        resumed = await host.thaw(made.manifest.id)
        assert await resumed.agent.read_file("/workspace/child") == b"mine\n"
        whole(await numbers(resumed))
    await host.disks.release(machine, disk)
    other = await given(host, start, "two")
    assert await other.agent.stat("/workspace/child") is None
    whole(await numbers(other))


async def test_memory_and_both_disks_are_of_one_moment(host: Host, start: Start, disk: str) -> None:
    """A program writes each number to both disks, and to its memory in between."""
    machine = await given(host, start)
    await machine.agent.shell(
        "(i=0; while :; do i=$((i + 1)); echo $i >> /root/a; echo $i >> /workspace/file;"
        " done) >/dev/null 2>&1 &"
    )
    await reached(machine, 50)
    snapshots = [(await host.freeze(machine, Wanted("run"))).manifest.id for _ in range(3)]
    await host.end(machine)
    for snapshot in snapshots:
        copy = await host.thaw(snapshot)
        for file in ("/root/a", FILE):
            found = (await copy.agent.read_file(file)).split()
            assert whole([int(each) for each in found]) >= 50
        await host.end(copy)


async def test_a_roll_back_rewinds_the_disk(host: Host, start: Start, disk: str) -> None:
    machine = await given(host, start)
    await machine.agent.write_file(FILE, b"first\n")
    checkpoint = (await host.freeze(machine, Wanted("run"))).manifest.id
    await machine.agent.write_file(FILE, b"second\n")
    later = (await host.freeze(machine, Wanted("stop"))).manifest.id
    await host.durable(later)
    rewound = await host.thaw(checkpoint, disk=disk, event="rollback")
    assert await rewound.agent.read_file(FILE) == b"first\n"
    (kept,) = host.store.manifest(checkpoint).disks
    assert host.store.heads.read(disk).now.layers[: len(kept.layers)] == kept.layers
    await host.end(rewound)  # nothing more was saved
    other = await given(host, start, "two")
    assert await other.agent.read_file(FILE) == b"first\n"
    await host.end(other)
    forward = await host.thaw(later, disk=disk)  # it has moved on, and that is there still
    assert await forward.agent.read_file(FILE) == b"second\n"


async def test_a_snapshot_is_started_with_no_other_disk_than_its_own(
    host: Host, start: Start, disk: str
) -> None:
    machine = await given(host, start)
    made = (await host.freeze(machine, Wanted("stop"))).manifest.id
    await host.disks.make("other", SIZE)
    with pytest.raises(SnapshotError, match="not taken with disk other"):
        await host.thaw(made, disk="other")
    assert host.machines == {}


async def test_it_is_mounted_again_after_a_reboot(host: Host, start: Start, disk: str) -> None:
    machine = await given(host, start)
    await machine.agent.shell(f"chmod 700 /workspace; echo before > {FILE}")
    rebooted = asyncio.Event()
    machine.on_reboot(lambda _: rebooted.set())
    await machine.agent.shell(f"(sleep 0.2; {BUSYBOX} reboot) >/dev/null 2>&1 &")
    async with asyncio.timeout(240):
        await rebooted.wait()
    agent = await machine.attached()
    assert machine.not_mounted is None
    assert await agent.read_file(FILE) == b"before\n"
    assert (await agent.shell("stat -c %a /workspace")).stdout == b"700\n"
    await host.disks.release(machine, disk)
    assert host.store.heads.read(disk).now.durable


@pytest.mark.parametrize("how", ["killed", "off"])
async def test_what_a_machine_had_synced_when_it_ended_is_kept(
    host: Host, start: Start, disk: str, how: str
) -> None:
    machine = await given(host, start)
    await machine.agent.shell(f"echo synced > {FILE}; sync")
    if how == "killed":
        os.kill(machine.pid, signal.SIGKILL)
    else:
        await machine.agent.shell(f"(sleep 0.2; {BUSYBOX} poweroff) >/dev/null 2>&1 &")
    async with asyncio.timeout(60):
        end = await machine.wait_end()
    assert isinstance(end, MachineDiedError)
    assert end.snapshot is not None
    assert [each.disk for each in host.store.manifest(end.snapshot).disks] == [disk]
    await host.disks.release(None, disk)
    assert host.store.heads.read(disk).now.durable
    other = await given(host, start, "two")
    assert await other.agent.read_file(FILE) == b"synced\n"
    await host.end(other)
    kernel = start.maker.kernel
    booted = await host.boot_files(end.snapshot, kernel, None, None, disk)
    assert booted.not_mounted is None
    assert await booted.agent.read_file(FILE) == b"synced\n"


async def test_a_disk_that_a_guest_has_spoilt_is_told_and_the_machine_runs(
    host: Host, start: Start, disk: str
) -> None:
    machine = await given(host, start)
    await machine.agent.shell(
        "umount /workspace; d=$(grep -l torpor-workspace /sys/block/vd*/serial | cut -d/ -f4);"
        " head -c 1048576 /dev/urandom > /dev/$d; sync"
    )
    await host.disks.release(machine, disk)
    other = await host.thaw(start.golden, Identity.of("two"), disk=disk)
    assert "/workspace" in (other.not_mounted or "")
    assert (await other.agent.run("/bin/true")).exit.ok
    await host.disks.release(other, disk)


async def test_the_next_program_adopts_a_machine_with_its_disk(start: Start, home: Path) -> None:
    host = await open_host(start, home)
    await host.disks.make("w", SIZE)
    machine = await given(host, start)
    await count(machine)
    await host.close()
    again = await open_host(start, home)
    try:
        adopted = again.machines[machine.id]
        await reached(adopted, len(await numbers(adopted)) + 3)
        with pytest.raises(HostError, match="has disk w"):
            await given(again, start, "two")
        made = await again.freeze(adopted, Wanted("run"))
        assert [each.disk for each in made.manifest.disks] == ["w"]
        await again.disks.release(adopted, "w")
        other = await given(again, start, "three")
        whole(await numbers(other))
        await again.end(other)
    finally:
        await again.close()


async def test_a_guest_that_does_not_answer_keeps_nobody_from_its_disk(
    host: Host, start: Start, disk: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = await given(host, start)
    await machine.agent.shell(f"echo synced > {FILE}; sync")
    monkeypatch.setattr("torpor.vm.agent.ANSWER_LIMIT", 1.0)
    monkeypatch.setattr("torpor.vm.handing_back.QUIESCE_LIMIT_MS", 500)
    stop = "(sleep 0.2; kill -STOP $(cat /run/torpor/cgroup/agent/cgroup.procs)) >/dev/null 2>&1 &"
    await machine.agent.shell(stop)
    await asyncio.sleep(1)
    await host.disks.release(machine, disk)
    other = await given(host, start, "two")
    assert await other.agent.read_file(FILE) == b"synced\n"


async def test_a_disk_that_cannot_be_taken_back_now_stays_with_its_machine(
    host: Host, start: Start, disk: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = await given(host, start)
    await count(machine)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as broken:
        broken.setattr(Heads, "move", full)
        with pytest.raises(OSError, match="No space"):
            await host.disks.release(machine, disk)
    assert machine.running
    before = whole(await numbers(machine))
    await reached(machine, before + 3)
    await host.disks.release(machine, disk)
    other = await given(host, start, "two")
    assert whole(await numbers(other)) >= before + 3


async def test_a_large_disk_is_written_beyond_the_size_of_the_first(
    host: Host, start: Start
) -> None:
    """The limit of a file is that of the largest disk, and its far end can be written."""
    await host.disks.make("w", 100 << 30)
    machine = await given(host, start)
    said = await machine.agent.shell(
        "d=$(grep -l torpor-workspace /sys/block/vd*/serial | cut -d/ -f4); umount /workspace;"
        " for at in 0 30000 60000 102399; do"
        "  head -c 1048576 /dev/urandom | dd of=/dev/$d bs=1M seek=$at conv=fsync || exit 1; done"
    )
    assert said.exit.ok, said.stderr
    limit = Path(f"/proc/{machine.pid}/limits").read_text()
    (line,) = (each for each in limit.splitlines() if each.startswith("Max file size"))
    assert int(line.split()[3]) > 100 << 30


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk needs root")
async def test_a_full_disk_holds_the_machine_and_nothing_is_lost(
    start: Start, small_disk: Path
) -> None:
    host = await open_host(start, small_disk / "home")
    try:
        await host.disks.make("w", SIZE)
        machine = await given(host, start)
        await count(machine)
        ballast = fill(small_disk, leave=24 << 20)
        await machine.agent.shell(
            "(head -c 60000000 /dev/urandom > /workspace/big; sync; echo $? > /workspace/done)"
            " >/dev/null 2>&1 &"
        )
        async with asyncio.timeout(180):
            while machine.held is None:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        with pytest.raises(HostError, match="disk is full"):
            await host.disks.make("v", SIZE)
        ballast.unlink()
        async with asyncio.timeout(180):
            while machine.held is not None:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
            while await machine.agent.stat("/workspace/done") is None:  # noqa: ASYNC110
                await asyncio.sleep(0.2)
        assert await machine.agent.read_file("/workspace/done") == b"0\n"
        whole(await numbers(machine))
        await host.disks.release(machine, "w")
        other = await given(host, start, "two")
        stat = await other.agent.stat("/workspace/big")
        assert stat is not None
        assert stat.size == 60_000_000
        whole(await numbers(other))
    finally:
        (small_disk / "ballast").unlink(missing_ok=True)
        for left in list(host.machines.values()):
            await host.end(left)
        await host.close()


async def test_as_a_server_sees_it(host: Host, start: Start) -> None:
    local = LocalHost(start.maker, host)
    ends: list[End] = []
    local.on_end(ends.append)
    new = await local.make_disk("w", SIZE)
    assert (new.size_bytes, new.saved_at, new.durable) == (SIZE, None, True)
    assert new.stored_bytes < 8 << 20
    assert await local.make_disk("w", SIZE) == new
    labels = {SESSION: "s"}
    running = await local.start(start.golden, labels, "create", "one", disk="w")
    assert running.not_mounted is None
    agent = await local.agent(running.id)
    await agent.shell("head -c 3000000 /dev/urandom > /workspace/noise; sync")
    written = local.disk("w")
    assert written is not None
    assert written.stored_bytes > new.stored_bytes + 3_000_000
    kept = await local.freeze(running.id, "snapshot", labels, stop=False)
    assert kept.disk == "w"
    saved = local.disk("w")
    assert saved is not None
    assert saved.saved_at is not None
    with pytest.raises(HostError, match="has disk w"):
        await local.remove_disk("w")
    released = await local.release_disk(running.id, "w")
    assert released.durable
    assert (local.running(), ends) == ({}, [])
    await local.end(running.id)
    assert await local.release_disk("", "w") == released
    child = await local.start("snapshot", {SESSION: "child"}, "fork", "child")
    assert (await local.freeze(child.id, "of-child", {}, stop=True)).disk is None
    found = local.found("snapshot")
    assert found is not None
    assert found.disk == "w"
    for _ in range(2):
        await local.remove_disk("w")
    assert local.disk("w") is None
    assert host.store.heads.ids() == []
    again = await local.start("of-child", {}, "resume")  # what a snapshot has of it, it keeps
    said = await (await local.agent(again.id)).shell("wc -c < /workspace/noise")
    assert said.stdout == b"3000000\n"
