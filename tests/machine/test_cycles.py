"""What many cycles leave on the disk is bounded, and gone when the snapshots are removed."""

import pytest

from torpor.vm import MIB, Host, Machine, Wanted
from torpor.vm.host import DEEPEST

pytestmark = pytest.mark.machine


async def cycle(host: Host, machine: Machine) -> Machine:
    frozen = await host.freeze(machine, Wanted("stop"))
    for old in host.store.ids()[:-1]:
        await host.remove(old)
    return await host.thaw(frozen.manifest.id)


async def test_a_hundred_cycles_of_an_idle_machine_stay_small(host: Host, machine: Machine) -> None:
    empty = host.store.stored_bytes()
    most = 0
    for _ in range(100):
        machine = await cycle(host, machine)
        most = max(most, host.store.stored_bytes())
    assert most < 2 * machine.record.shape.memory_bytes
    assert most < 200 * MIB, "an idle machine has little to keep"
    await host.end(machine)
    for snapshot in host.store.ids():
        await host.remove(snapshot)
    assert host.store.stored_bytes() <= empty


async def test_the_chain_of_a_disk_that_is_written_stays_short(
    host: Host, machine: Machine
) -> None:
    for number in range(2 * DEEPEST):
        await machine.agent.shell(
            f"head -c 100000 /dev/urandom > /root/{number}; sha256sum /root/*"
        )
        before = (await machine.agent.shell("sha256sum /root/*")).stdout
        machine = await cycle(host, machine)
        await host.durable(host.store.ids()[-1])
        assert len(machine.record.layers) <= DEEPEST
        await machine.agent.shell("echo 3 > /proc/sys/vm/drop_caches")
        assert (await machine.agent.shell("sha256sum /root/*")).stdout == before
