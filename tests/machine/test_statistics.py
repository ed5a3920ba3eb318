"""What a machine uses, from both sides; its processes; its cgroups and modules."""

import asyncio
import signal

import pytest

from torpor.vm import Command, GuestError, Host, Machine, Wanted

pytestmark = pytest.mark.machine

BURN = "i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done"


async def test_statistics_tell_what_a_machine_uses(host: Host, machine: Machine) -> None:
    before = await machine.statistics()
    assert before.guest is not None
    line = f"{BURN}; head -c 20000000 /dev/urandom > /root/file; sync"
    assert (await machine.agent.shell(line)).exit.ok
    after = await machine.statistics()
    assert after.guest is not None
    shape = machine.record.shape
    assert len(after.host.vcpus) == after.guest.cpu.count == shape.vcpus
    assert sum(after.host.vcpus) > sum(before.host.vcpus)
    assert after.host.emulator > 0
    assert after.guest.cpu.commands_user > before.guest.cpu.commands_user
    assert 0 < after.guest.memory.available < after.guest.memory.total <= shape.memory_bytes
    assert (after.guest.memory.commands or 0) > 20_000_000  # the file is in the page cache
    assert after.guest.disk.used - before.guest.disk.used >= 20_000_000
    assert (after.guest.disk.written_bytes or 0) >= 20_000_000
    assert after.host.written_bytes - before.host.written_bytes >= 20_000_000
    assert after.host.layer >= 20_000_000
    cards = ["lo", "eth0"] if machine.record.card else ["lo"]
    assert [each.name for each in after.guest.network] == cards
    # Its base is mapped, and what it wrote is its own.
    assert after.host.private > 20_000_000
    assert after.host.private <= after.host.resident
    assert after.host.proportional <= after.host.resident


async def test_a_silent_guest_leaves_the_hosts_side(machine: Machine) -> None:
    await machine.qmp.stop()
    said = await machine.statistics(guest_limit=0.5)
    assert said.guest is None
    assert said.host.resident > 0
    await machine.qmp.cont()
    assert (await machine.agent.run("/bin/true")).exit.ok


async def test_a_process_is_listed_after_a_thaw_and_can_be_killed(
    host: Host, machine: Machine
) -> None:
    server = (
        "from http.server import *\n"
        "HTTPServer(('127.0.0.1', 3000), BaseHTTPRequestHandler).serve_forever()"
    )
    running = await machine.agent.start(Command(["python3", "-c", server], user="1000:1000"))
    listens = "while ! (: </dev/tcp/127.0.0.1/3000) 2>/dev/null; do sleep 0.1; done"
    await machine.agent.run("/bin/bash", "-c", listens)
    frozen = await host.freeze(machine, Wanted("stop"))
    thawed = await host.thaw(frozen.manifest.id)
    listed = {each.pid: each for each in await thawed.agent.processes()}
    [found] = [each for each in listed.values() if each.exec == running.id]
    assert found.argv[:2] == ("python3", "-c")
    assert (found.uid, found.user) == (1000, True)
    open_port = "import socket; socket.create_connection(('127.0.0.1', 3000))"
    assert (await thawed.agent.run("python3", "-c", open_port)).exit.ok
    await thawed.agent.kill(found.pid, signal.SIGKILL)
    ended = await thawed.agent.attach(running.id)
    assert (await ended.wait()).signal == signal.SIGKILL
    assert not (await thawed.agent.run("python3", "-c", open_port)).exit.ok
    # What the machine needs is listed, and left alone.
    others = [each for each in listed.values() if not each.user]
    assert {1} < {each.pid for each in others}
    for each in others:
        with pytest.raises(GuestError, match="not one of the user's"):
            await thawed.agent.kill(each.pid, signal.SIGKILL)
    assert (await thawed.agent.run("/bin/true")).exit.ok


async def test_hundreds_of_processes_are_listed_while_the_machine_answers(
    machine: Machine,
) -> None:
    start = "i=0; while [ $i -lt 250 ]; do sleep 600 & i=$((i+1)); done >/dev/null 2>&1"
    await machine.agent.shell(start)
    listed, _ = await asyncio.gather(machine.agent.processes(), machine.agent.run("/bin/true"))
    assert sum(each.argv == ("sleep", "600") for each in listed) == 250
    await machine.agent.shell("kill $(pgrep -x sleep)")


DOCKER = r"""
set -e
cd /sys/fs/cgroup
grep -q cgroup2 /proc/self/mounts
test -z "$(cat cgroup.procs)"  # only then may a group hand on its controllers
echo "+memory +pids +cpu" > cgroup.subtree_control
mkdir -p docker/one
echo 64M > docker/memory.max
echo 100 > docker/pids.max
echo "50000 100000" > docker/cpu.max
echo "+memory" > docker/cgroup.subtree_control
sh -c 'echo $$ > docker/one/cgroup.procs; cat /proc/self/cgroup
    n=0; while :; do n=$((n+1)); echo $n > /root/beat; sleep 0.02; done' &
sleep 1
cat docker/one/cgroup.procs | wc -l
"""


async def test_a_container_engine_finds_a_writable_cgroup_tree_that_is_frozen(
    host: Host, machine: Machine
) -> None:
    running = await machine.agent.start(Command(["/bin/sh", "-c", DOCKER]))
    said, errors = await running.collect()
    assert b"0::/docker/one" in said, errors
    assert int(said.split()[-1]) >= 1, errors
    # Commands still come, with limits on some of the tree.
    assert (await machine.agent.run("/bin/true")).exit.ok
    await machine.agent.quiesce(5000)
    one = await machine.agent.read_file("/root/beat")
    await asyncio.sleep(0.3)
    assert await machine.agent.read_file("/root/beat") == one
    await machine.agent.resume()
    await machine.agent.shell("sleep 0.3")
    assert await machine.agent.read_file("/root/beat") != one
    [beating] = [
        each for each in await machine.agent.processes() if "/root/beat" in " ".join(each.argv)
    ]
    await machine.agent.kill(beating.pid, signal.SIGKILL)


async def test_a_container_engine_finds_its_modules(machine: Machine) -> None:
    modules = "overlay br_netfilter bridge veth nf_tables nft_chain_nat xt_MASQUERADE xt_addrtype"
    line = (
        f"for m in {modules} ip_tables iptable_nat nf_nat macvlan vxlan fuse loop; do"
        " /run/torpor/tools/sbin/modprobe $m || echo $m; done; ls /lib/modules/$(uname -r)"
        " | grep -c modules.dep$; mkdir -p /tmp/a /tmp/b /tmp/c /tmp/d; mount -t overlay -o"
        " lowerdir=/tmp/a,upperdir=/tmp/b,workdir=/tmp/c overlay /tmp/d && echo mounted"
    )
    result = await machine.agent.shell(line)
    assert result.stdout == b"1\nmounted\n", result.stderr
