"""Snapshots under another QEMU than they were made by: as the policy says, in both directions."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.machine.conftest import Start
from tests.machine.other_qemu import OtherQemu, other_qemu
from torpor.images import boot_wanted
from torpor.vm import SIZES, Command, Host, Identity, Machine, SnapshotError, Wanted
from torpor.vm import thaw as thaw_module
from torpor.vm.compatibility import REFUSED, TESTED, Verdict, check

pytestmark = pytest.mark.machine

SIZE = "mars-1vcpu-1gb"
COUNTER = (
    "n=0; while :; do n=$((n + 1)); echo $n $$ $(cat /proc/sys/kernel/random/boot_id) >>/root/log;"
    " sleep 0.1; done"
)
# A program that finds out once which instructions there are, as most do, and uses them for ever.
HASHER = """
import hashlib, os, time
while True:
    digest = hashlib.sha256(b"x" * 100000).hexdigest()
    with open("/root/new", "w") as file:
        file.write(f"{os.getpid()} {digest}")
    os.rename("/root/new", "/root/hash")
    time.sleep(0.1)
"""
DIGEST = "d69e68988157833272305aaf21f453c800346e8a3640db6578e260215542e5d4"
OLDER, NEWER = (7, 2), (10, 0)


@pytest.fixture(scope="module")
def other(start: Start) -> OtherQemu:
    """The QEMU that this host does not have."""
    made = start.maker
    return asyncio.run(other_qemu(made.cache, made.accelerator, made.jail))


@pytest.fixture(scope="module")
def by_version(start: Start, other: OtherQemu) -> dict[tuple[int, int], OtherQemu]:
    """Both of them, by version."""
    here = OtherQemu(start.maker.accelerator, start.maker.jail)
    found = {each.accelerator.qemu_version[:2]: each for each in (here, other)}
    if set(found) != {OLDER, NEWER}:
        pytest.skip(f"this host has neither QEMU 7.2 nor 10.0, but {sorted(found)}")
    if here.accelerator.name != "tcg":
        pytest.skip("what is known of these two was found out under software emulation")
    return found


@asynccontextmanager
async def opened(home: Path, qemu: OtherQemu, start: Start) -> AsyncIterator[Host]:
    """A host whose machines run under one QEMU; they are ended at the end of the block."""
    host = await Host.open(
        home, qemu.accelerator, qemu.jail, golden=start.maker.store(), links=start.maker.links(0)
    )
    try:
        yield host
    finally:
        for machine in list(host.machines.values()):
            await host.end(machine)
        await host.close()


async def counted(machine: Machine) -> tuple[int, str]:
    """The last number of the counter, with the process and the boot that wrote it."""
    last = (await machine.agent.shell("tail -n 1 /root/log")).stdout.decode()
    number, rest = last.split(" ", 1)
    return int(number), rest


async def hashed(machine: Machine) -> list[str]:
    """What the hasher has written since it was asked, nothing if it writes no more."""
    await machine.agent.shell("rm -f /root/hash; for i in $(seq 50); do"
                              " test -e /root/hash && break; sleep 0.1; done")  # fmt: skip
    return (await machine.agent.shell("cat /root/hash")).stdout.decode().split()


async def frozen_by(home: Path, qemu: OtherQemu, start: Start) -> tuple[str, tuple[int, str]]:
    """A snapshot of a machine that counts and hashes, booted and frozen under one QEMU."""
    async with opened(home, qemu, start) as host:
        wanted = boot_wanted(start.maker, start.image, SIZES[SIZE])
        machine = await host.boot(wanted, Identity.of("upgraded"))
        agent = machine.agent
        await agent.write_file("/root/hasher.py", HASHER.encode())
        await agent.start(Command(("/bin/sh", "-c", COUNTER)))
        await agent.start(Command(("/usr/bin/python3", "/root/hasher.py")))
        async with asyncio.timeout(60):
            while (await hashed(machine))[1:] != [DIGEST]:
                pass
        last = await counted(machine)
        made = await host.freeze(machine, Wanted("stop", labels={"image": "default"}))
        await host.durable(made.manifest.id)
        assert made.manifest.qemu_version == qemu.accelerator.qemu_version
        return made.manifest.id, last


async def test_what_the_older_one_froze_goes_on_under_the_newer(
    start: Start, by_version: dict[tuple[int, int], OtherQemu], home: Path
) -> None:
    assert (OLDER, NEWER) in TESTED
    snapshot, before = await frozen_by(home, by_version[OLDER], start)
    async with opened(home, by_version[NEWER], start) as host:
        found = host.store.manifest(snapshot)
        assert check(found, by_version[NEWER].accelerator).state == "tested"
        for _ in range(2):
            machine = await host.thaw(snapshot)
            first = await counted(machine)
            assert first[0] >= before[0]
            assert first[1] == before[1], "the same process, the same boot"
            process = await hashed(machine)
            assert process[1:] == [DIGEST]
            assert (await counted(machine))[0] > first[0]
            await host.end(machine)
        # And once more, from what the newer one has frozen of it.
        machine = await host.thaw(snapshot)
        again = await host.freeze(machine, Wanted("stop"))
        machine = await host.thaw(again.manifest.id)
        assert (await hashed(machine))[1:] == [DIGEST]


async def test_what_the_newer_one_froze_is_refused_by_the_older_and_its_files_boot(
    start: Start, by_version: dict[tuple[int, int], OtherQemu], home: Path
) -> None:
    snapshot, _ = await frozen_by(home, by_version[NEWER], start)
    async with opened(home, by_version[OLDER], start) as host:
        verdict = check(host.store.manifest(snapshot), by_version[OLDER].accelerator)
        assert verdict.state == "files only"
        with pytest.raises(SnapshotError, match=r"made by QEMU 10\.0; here is 7\.2.*files only"):
            await host.thaw(snapshot)
        assert host.processes() == [], "it was told before anything was started"
        machine = await host.boot_files(snapshot, start.maker.kernel)
        log = (await machine.agent.shell("wc -l < /root/log; cat /root/hash")).stdout.split()
        assert int(log[0]) > 0
        assert log[-1].decode() == DIGEST


async def test_the_refused_direction_is_refused_for_a_reason(
    start: Start,
    by_version: dict[tuple[int, int], OtherQemu],
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without the policy the state loads and the counter goes on, but the hasher is killed: the
    processor that it knew is not there any more. If it lives one day, the pair can be listed."""
    assert (NEWER, OLDER) in REFUSED
    snapshot, before = await frozen_by(home, by_version[NEWER], start)
    monkeypatch.setattr(
        thaw_module.compatibility, "check", lambda *_: Verdict("tested", "for this test")
    )
    async with opened(home, by_version[OLDER], start) as host:
        machine = await host.thaw(snapshot)
        assert (await counted(machine))[1] == before[1]
        assert await hashed(machine) == []
        said = (await machine.agent.shell("dmesg")).stdout.decode()
        assert "invalid opcode" in said


async def test_a_disk_in_a_slot_goes_along_from_the_older_to_the_newer(
    start: Start, by_version: dict[tuple[int, int], OtherQemu], home: Path
) -> None:
    """Also where the snapshot had nothing in the slot: the newer one tells the guest its size."""
    file = "/workspace/numbers"
    counting = f"i=0; while :; do i=$((i + 1)); echo $i >> {file}; sleep 0.05; done"

    async def numbers(machine: Machine, least: int) -> int:
        async with asyncio.timeout(120):
            while True:
                found = [int(line) for line in (await machine.agent.read_file(file)).split()]
                if len(found) >= least:
                    assert found == list(range(1, len(found) + 1))
                    return len(found)

    async with opened(home, by_version[OLDER], start) as host:
        wanted = boot_wanted(start.maker, start.image, SIZES[SIZE])
        machine = await host.boot(wanted, Identity.of("plain"))
        plain = (await host.freeze(machine, Wanted("stop"))).manifest.id
        await host.disks.make("w", 8 << 30)
        machine = await host.thaw(plain, disk="w")
        assert machine.not_mounted is None
        await machine.agent.write_file(file, b"")
        await machine.agent.start(Command(("/bin/sh", "-c", counting)))
        seen = await numbers(machine, 5)
        made = (await host.freeze(machine, Wanted("stop"))).manifest.id
        await host.durable(made)
    async with opened(home, by_version[NEWER], start) as host:
        machine = await host.thaw(made, disk="w")
        seen = await numbers(machine, seen + 5)
        checkpoint = (await host.freeze(machine, Wanted("run"))).manifest
        assert len(checkpoint.disks[0].layers) == 3
        seen = await numbers(machine, seen + 5)
        child = await host.thaw(checkpoint.id)
        assert await numbers(child, 1) > 0
        await host.disks.release(machine, "w")
        other = await host.thaw(plain, Identity.of("other"), disk="w")
        assert other.not_mounted is None
        assert await numbers(other, seen) >= seen
        blocks = (await other.agent.shell("stat -f -c '%b %S' /workspace")).stdout.split()
        assert int(blocks[0]) * int(blocks[1]) > 7 << 30
