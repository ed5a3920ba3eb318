"""The network card of a real machine: what it dials arrives at the wall, through freeze, thaw,
fork, reboot and the end of the program."""

import asyncio
import os
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from tests.machine.conftest import Start, open_host
from torpor.guest.card import ADDRESS
from torpor.images import golden, silent
from torpor.network.link import Link
from torpor.vm import SIZES, Command, Exec, Host, HostError, Identity, Machine, Output, Wanted

pytestmark = pytest.mark.machine

ANYWHERE = ("93.184.216.34", 8080)
LIMIT = 60.0
TALK = """
exec 3<>/dev/tcp/{0}/{1} || exit 1
echo connected >&3
while read -r word <&3; do echo "heard $word" >&3; done
"""
"""A program in the machine: dials, and says back what it hears, until that fails."""


def link_of(machine: Machine) -> Link:
    """Return what a machine's card is connected to."""
    link = machine.wired.link
    assert isinstance(link, Link)
    return link


async def accepted(link: Link) -> socket.socket:
    """Return the next connection that arrives over a link."""
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(LIMIT):
        found, by = await loop.sock_accept(link.ends.tcp)
    found.setblocking(False)
    assert by[0] == ADDRESS
    return found


class Talk:
    """The wall's end of a connection to :data:`TALK`."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._rest = b""

    async def line(self) -> str:
        """Return the next line that arrives."""
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(LIMIT):
            while b"\n" not in self._rest:
                more = await loop.sock_recv(self.sock, 4096)
                assert more
                self._rest += more
        line, _, self._rest = self._rest.partition(b"\n")
        return line.decode()

    async def says(self, word: str) -> None:
        """Say a word, which must come back."""
        await asyncio.get_running_loop().sock_sendall(self.sock, f"{word}\n".encode())
        assert await self.line() == f"heard {word}"


async def talk(machine: Machine, link: Link) -> tuple[Talk, Exec]:
    """Have a machine dial, and answer it."""
    command = Command(("/bin/bash", "-c", TALK.format(*ANYWHERE)))
    running = await machine.agent.start(command)
    talking = Talk(await accepted(link))
    assert talking.sock.getsockname() == ANYWHERE
    assert await talking.line() == "connected"
    return talking, running


async def test_a_connection_goes_on_after_a_pause_on_the_same_wire(
    start: Start, host: Host
) -> None:
    machine = await host.thaw(start.golden, Identity.of("test"))
    assert machine.no_card is None
    kept = machine.wired.take()
    assert isinstance(kept, Link)
    talking, _ = await talk(machine, kept)
    with talking.sock:
        await talking.says("before")
        frozen = await host.freeze(machine, Wanted("stop"))
        # What is sent while it sleeps is heard when it wakes.
        talking.sock.send(b"asleep\n")
        machine = await host.thaw(frozen.manifest.id, link=kept)
        assert await talking.line() == "heard asleep"
        await talking.says("after")
        await host.end(machine)
    await asyncio.to_thread(kept.close)


async def test_a_fork_is_without_its_parents_connections_and_the_parent_notices_nothing(
    start: Start, host: Host
) -> None:
    parent = await host.thaw(start.golden, Identity.of("parent"))
    inside = Command(("/bin/bash", "-c", INSIDE))
    loopback = await parent.agent.start(inside)
    assert await first_line(loopback) == "both are there"
    waiting = Command(("/bin/bash", "-c", "exec 3<>/dev/udp/9.9.9.9/99; echo on; read -r x <&3"))
    datagrams = await parent.agent.start(waiting)
    assert await first_line(datagrams) == "on"
    talking, program = await talk(parent, link_of(parent))
    with talking.sock:
        frozen = await host.freeze(parent, Wanted("run", event="fork"))
        child = await host.thaw(frozen.manifest.id, Identity.of("child"), event="fork")
        assert child.no_card is None
        # The programs there have heard of it: their reads failed, and they have ended.
        for each in (program, datagrams):
            async with asyncio.timeout(LIMIT):
                there = await child.agent.attach(each.id)
                await there.collect()
            assert there.exit is not None
        await talking.says("parent")
        assert datagrams.exit is None
        # What is within the machine stays.
        said = await child.agent.shell(
            "echo through >/tmp/go; until [ -s /tmp/gone ]; do sleep 0.1; done; cat /tmp/gone"
        )
        assert said.stdout == b"through\n"
        # And the child dials for itself.
        own, _ = await talk(child, link_of(child))
        with own.sock:
            await own.says("child")


INSIDE = """
mkfifo /tmp/said
coproc { exec 0</tmp/said; /run/torpor/tools/bin/busybox nc -l -p 7000 >/tmp/gone; }
exec 4<>/tmp/said
until exec 3<>/dev/tcp/127.0.0.1/7000; do sleep 0.1; done 2>/dev/null
echo both are there
until [ -e /tmp/go ]; do sleep 0.1; done
cat /tmp/go >&3
sleep 1000
"""
"""A program in the machine: one end of a connection to itself, at which something is said later."""


async def first_line(running: Exec) -> str:
    """Return the first line that a command writes."""
    said = b""
    async with asyncio.timeout(LIMIT):
        while b"\n" not in said:
            piece = await running.next_output()
            assert isinstance(piece, Output)
            said += piece.data
    return said.partition(b"\n")[0].decode()


async def test_a_reboot_and_a_new_program_find_the_card_at_work(start: Start, home: Path) -> None:
    host = await open_host(start, home)
    machine = await host.thaw(start.golden, Identity.of("test"))
    rebooted = asyncio.Event()
    machine.on_reboot(lambda _: rebooted.set())
    await machine.agent.start(Command(("/run/torpor/tools/bin/busybox", "reboot", "-f")))
    async with asyncio.timeout(LIMIT):
        await rebooted.wait()
    assert machine.no_card is None
    talking, _ = await talk(machine, link_of(machine))
    with talking.sock:
        await talking.says("rebooted")
    await host.close()

    again = await open_host(start, home)
    (adopted,) = again.machines.values()
    talking, _ = await talk(adopted, link_of(adopted))
    with talking.sock:
        await talking.says("adopted")
    frozen = await again.freeze(adopted, Wanted("stop"))
    # The wire was another program's, and serves the next machine all the same.
    thawed = await again.thaw(frozen.manifest.id)
    talking, _ = await talk(thawed, link_of(thawed))
    talking.sock.close()
    await again.end(thawed)
    await again.close()


async def test_a_machine_without_a_card_stays_without_one(start: Start, host: Host) -> None:
    bare = replace(start.maker, card=False)
    snapshot = await golden(bare, start.image, SIZES["mars-2vcpu-1gb"], silent)
    assert snapshot != start.golden
    machine = await host.thaw(snapshot, Identity.of("test"))
    assert machine.wired.link is None
    assert machine.no_card is None
    assert (await machine.agent.shell("ls /sys/class/net")).stdout == b"lo\n"
    frozen = await host.freeze(machine, Wanted("stop"))
    assert not frozen.manifest.card


async def test_qemu_is_alone_with_the_wire_and_holds_nothing_else_of_it(
    start: Start, host: Host
) -> None:
    machine = await host.thaw(start.golden, Identity.of("test"))
    wire = link_of(machine).wire
    process = Path(f"/proc/{machine.pid}")
    namespaces = {name: (process / "ns" / name).stat().st_ino for name in ("net", "user")}
    assert namespaces["net"] == os.fstat(wire.network).st_ino
    assert namespaces["user"] != os.fstat(wire.users).st_ino
    status = dict(line.split(":", 1) for line in (process / "status").read_text().splitlines())
    assert {status[name].strip("\t0") for name in ("CapPrm", "CapEff", "CapBnd", "CapAmb")} == {""}
    files = [str(each.readlink()) for each in (process / "fd").iterdir()]
    assert files.count("/dev/net/tun") == 1
    assert not [each for each in files if each.startswith(("net:", "user:", "/proc/"))]


PYTHON = (
    "/run/torpor/tools/lib/ld.so", "--inhibit-cache", "--library-path", "/run/torpor/tools/lib",
    "--argv0", "/run/torpor/tools/bin/python3.11", "/run/torpor/tools/bin/python3.11", "-I", "-S",
)  # fmt: skip
"""The agent's own, in the machine."""
SIX = """
import socket
listening = socket.socket(socket.AF_INET6)
listening.bind(("::1", 0))
listening.listen()
dialling = socket.create_connection(listening.getsockname()[:2], timeout=20)
dialling.send(b"through")
print(listening.accept()[0].recv(100).decode())
try:
    socket.create_connection(("2001:db8::1", 80), timeout=20)
except OSError as error:
    print(error.strerror)
"""


async def test_ipv6_ends_at_the_machine_and_nobody_waits_for_it(start: Start, host: Host) -> None:
    machine = await host.thaw(start.golden, Identity.of("test"))
    async with asyncio.timeout(LIMIT):
        said = await machine.agent.run(*PYTHON, "-c", SIX)
    assert said.stdout == b"through\nNetwork is unreachable\n"


async def test_what_root_has_broken_is_right_again_after_a_thaw(start: Start, host: Host) -> None:
    machine = await host.thaw(start.golden, Identity.of("test"))
    busybox = "/run/torpor/tools/bin/busybox"
    broken = await machine.agent.shell(
        f"{busybox} ip link set eth0 mtu 600 && {busybox} ip addr flush dev eth0"
        f" && {busybox} ip link set eth0 down"
    )
    assert broken.exit.ok
    frozen = await host.freeze(machine, Wanted("stop"))
    machine = await host.thaw(frozen.manifest.id)
    assert machine.no_card is None
    talking, _ = await talk(machine, link_of(machine))
    with talking.sock:
        await talking.says("repaired")
    mtu = await machine.agent.shell("cat /sys/class/net/eth0/mtu")
    assert mtu.stdout == b"1500\n"


async def test_a_card_that_cannot_be_connected_is_refused_before_anything_starts(
    start: Start, home: Path
) -> None:
    made = start.maker
    host = await Host.open(home, made.accelerator, made.jail, golden=made.store())
    try:
        with pytest.raises(HostError, match="has a network card, and this host can connect none"):
            await host.thaw(start.golden, Identity.of("test"))
        assert host.processes() == []
        assert list((home / "machines").iterdir()) == []
    finally:
        await host.close()
