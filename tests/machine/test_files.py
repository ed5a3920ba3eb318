"""Files of a real machine: sparse ones, many, and archives and watches through a freeze."""

import asyncio
import hashlib
import io
import random
import tarfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from torpor.images import silent
from torpor.lab.archives import archived
from torpor.vm import Command, GuestError, Host, Identity, Machine, Unpacking, Wanted

pytestmark = pytest.mark.machine

PIECE = 1 << 20


async def frozen_and_thawed(host: Host, machine: Machine) -> Machine:
    frozen = await host.freeze(machine, Wanted("stop"))
    return await host.thaw(frozen.manifest.id)


def archive_of(files: dict[str, bytes]) -> bytes:
    text = io.BytesIO()
    with tarfile.open(fileobj=text, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return text.getvalue()


async def give(unpacking: Unpacking, data: bytes) -> None:
    for start in range(0, len(data), PIECE):
        await unpacking.write(data[start : start + PIECE])


async def test_a_sparse_file_of_5_gib_goes_up_and_down(machine: Machine, home: Path) -> None:
    size = 5 << 30
    places = (0, 1 << 30, (4 << 30) + 5, size - 100_000)
    source, back = home / "source", home / "back"
    with source.open("wb") as file:
        for place in places:
            file.seek(place)
            file.write(random.Random(place).randbytes(100_000))
    files = machine.agent.files
    assert await files.upload(source, "/srv/sparse") == size
    status = await files.status("/srv/sparse")
    assert status is not None
    assert status.size == size
    assert 400_000 <= status.stored < 1 << 20
    assert await files.download("/srv/sparse", back) == size
    assert back.stat().st_blocks * 512 < 1 << 20
    with back.open("rb") as file:
        for place in places:
            file.seek(place)
            assert file.read(100_000) == random.Random(place).randbytes(100_000)


async def test_an_archive_goes_in_and_out_through_freezes(host: Host, machine: Machine) -> None:
    data = random.Random(1).randbytes(24 << 20)
    sparse = b"x" * 5000
    archive = archive_of({"big": data, "small": sparse})
    unpacking = await machine.agent.files.unpack("/srv/in", parents=True)
    for part in range(3):
        # What was given last is still on its way when the machine is frozen.
        await give(unpacking, archive[unpacking.written : (part + 1) * (6 << 20)])
        machine = await frozen_and_thawed(host, machine)
        await unpacking.attach(machine.agent.channel)
    await give(unpacking, archive[unpacking.written :])
    assert (await unpacking.finish())["members"] == 2
    listed = {each.path: each async for each in machine.agent.files.list("/srv/in", digest=True)}
    assert listed["big"].sha256 == hashlib.sha256(data).hexdigest()

    packing = await machine.agent.files.pack("/srv/in", name=".")
    out = bytearray()
    for part in range(3):
        async for piece in packing.pieces():
            out += piece
            if len(out) > (part + 1) * (6 << 20):
                break
        machine = await frozen_and_thawed(host, machine)
        await packing.attach(machine.agent.channel)
    async for piece in packing.pieces():
        out += piece
    with tarfile.open(fileobj=io.BytesIO(out)) as opened:
        found = {each.name: opened.extractfile(each) for each in opened if each.isfile()}
        assert {name: file.read() for name, file in found.items() if file is not None} == {
            "./big": data,
            "./small": sparse,
        }


async def test_what_the_soak_does_with_gibibytes_is_right_with_a_few_mib(
    host: Host, machine: Machine
) -> None:
    freezes = 0

    async def cycle(each: Machine) -> Machine:
        nonlocal freezes
        freezes += 1
        return await frozen_and_thawed(host, each)

    _, check = await archived(machine, 8, cycle, silent)
    assert check.ok, check.seen
    assert freezes >= 6


async def test_a_watch_goes_on_through_a_freeze(host: Host, machine: Machine) -> None:
    await machine.agent.files.make_directory("/srv/watched")
    watch = await machine.agent.files.watch("/srv/watched", recursive=True)
    assert await watch.next_line() == {"event": "ready"}
    # A process of the user's that writes on its own, before and after.
    line = "for n in $(seq 40); do mkdir $n; : >$n/file; sleep 0.1; done"
    await machine.agent.shell(f"cd /srv/watched; ({line}) >/dev/null 2>&1 &")
    created: list[str] = []

    async def until(count: int) -> None:
        async for event in watch.events():
            if event["event"] == "created":
                created.append(event["path"])
            if len(created) >= count:
                return

    await until(10)
    machine = await frozen_and_thawed(host, machine)
    await watch.attach(machine.agent.channel)
    await until(80)
    assert sorted(created) == sorted(name for n in range(1, 41) for name in (f"{n}", f"{n}/file"))
    watch.close()


async def test_ten_thousand_small_files_go_in_and_out(machine: Machine) -> None:
    files = {f"d{n % 100}/file {n}": b"content of %d" % n for n in range(10_000)}
    unpacking = await machine.agent.files.unpack("/srv/many", parents=True)
    await give(unpacking, archive_of(files))
    assert await unpacking.finish() == {"members": 10_000, "attributes": 0, "skipped": 0}
    agent = machine.agent
    listed = {
        each.path: each.sha256
        async for each in agent.files.list("/srv/many", recursive=True, digest=True)
        if each.sha256 is not None
    }
    assert listed == {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
    archive = b"".join([piece async for piece in pieces(machine)])
    with tarfile.open(fileobj=io.BytesIO(archive)) as opened:
        back = {each.name: opened.extractfile(each) for each in opened if each.isfile()}
        found = {name: file.read() for name, file in back.items() if file is not None}
    assert found == {f"many/{name}": data for name, data in files.items()}
    await agent.files.remove("/srv/many", recursive=True)
    assert await agent.files.status("/srv/many") is None


async def pieces(machine: Machine) -> AsyncIterator[bytes]:
    packing = await machine.agent.files.pack("/srv/many")
    async for piece in packing.pieces():
        yield piece


async def test_what_the_kernel_makes_is_read_and_devices_do_not_hold_the_agent(
    machine: Machine,
) -> None:
    files = machine.agent.files
    assert (await files.read("/proc/version")).startswith(b"Linux version")
    assert len(await files.read("/sys/kernel/uevent_seqnum")) < 20
    await machine.agent.run("mkfifo", "/srv/fifo")
    pipe = await files.status("/srv/fifo")
    assert pipe is not None
    assert pipe.type == "fifo"
    packing = await files.pack("/dev", one_file_system=True)
    archive = b"".join([piece async for piece in packing.pieces()])
    with tarfile.open(fileobj=io.BytesIO(archive)) as opened:
        null = opened.getmember("dev/null")
        assert (null.ischr(), null.devmajor, null.devminor) == (True, 1, 3)


SILENT = """
import ctypes, os, struct
os.makedirs("/far")
fuse = os.open("/dev/fuse", os.O_RDWR)
libc = ctypes.CDLL(None, use_errno=True)
options = f"fd={fuse},rootmode=40000,user_id=0,group_id=0".encode()
if libc.mount(b"silent", b"/far", b"fuse", 0, options):
    raise OSError(ctypes.get_errno(), "mount")
request = os.read(fuse, 1 << 20)
unique, = struct.unpack_from("<Q", request, 8)
said = request[40:48] + struct.pack("<IIHHIIHHI28x", 0, 0, 16, 12, 4096, 1, 1, 0, 0)
os.write(fuse, struct.pack("<IiQ", 16 + len(said), 0, unique) + said)
print("mounted", flush=True)
while True:
    os.read(fuse, 1 << 20)
"""
"""A FUSE server that takes requests and is silent."""


async def beside_the_agent(machine: Machine) -> int:
    """Return how many children the agent has: the spawner, and what does requests for it."""
    found = await machine.agent.processes()
    (init,) = (each for each in found if each.pid == 1)
    (agent,) = (each for each in found if each.ppid == init.pid and "site" in each.argv[-1])
    return sum(each.ppid == agent.pid and not each.user for each in found)


async def test_a_file_system_that_does_not_answer_holds_nothing_else(
    host: Host, machine: Machine
) -> None:
    await machine.agent.write_file("/root/near", b"near")
    assert await beside_the_agent(machine) == 1  # all files answer, and the agent reads them itself
    await machine.agent.run("/sbin/modprobe", "fuse")
    server = await machine.agent.start(Command(["/usr/bin/python3", "-c", SILENT]))
    item = await server.next_output()
    assert item is not None
    assert item[2] == b"mounted\n"
    hanging = asyncio.ensure_future(machine.agent.read_file("/far/x"))
    assert (await machine.agent.shell("echo here")).stdout == b"here\n"
    assert await machine.agent.read_file("/root/near") == b"near"
    frozen = await host.freeze(machine, Wanted("run"))
    with pytest.raises(GuestError, match="ETIMEDOUT"):
        await hanging
    await host.durable(frozen.manifest.id)
    thawed = await host.thaw(frozen.manifest.id, Identity.of("other"))
    for one in (machine, thawed):
        assert (await one.agent.status())["resting"] is False
        assert await one.agent.read_file("/root/near") == b"near"
        with pytest.raises(GuestError, match="ETIMEDOUT"):
            await one.agent.run("/bin/true", cwd="/far")
        assert (await one.agent.shell("umount --lazy /far; echo gone")).stdout == b"gone\n"
