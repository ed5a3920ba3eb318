"""Forks, beyond what the proofs show: of checkpoints, of forks, without their parents."""

import asyncio

import pytest

from torpor.vm import Command, Host, Identity, Machine, Output, SnapshotError, VmError, Wanted

pytestmark = pytest.mark.machine


def machines_of(children: list[Machine | VmError]) -> list[Machine]:
    found = [child for child in children if isinstance(child, Machine)]
    assert len(found) == len(children), children
    return found


async def said(machine: Machine, line: str) -> str:
    result = await machine.agent.shell(line)
    assert result.exit.ok, result.stderr
    return result.stdout.decode().strip()


async def test_a_checkpoint_can_be_forked_long_after_its_machine(
    host: Host, machine: Machine
) -> None:
    await said(machine, "echo before > /srv/word")
    kept = (await host.freeze(machine, Wanted("run"))).manifest.id
    await said(machine, "echo after > /srv/word")
    await host.end(machine)
    first, second = machines_of(await host.thaw_many(kept, 2))
    await said(first, "echo first > /srv/word")
    assert await said(second, "cat /srv/word") == "before"
    assert await said(first, "cat /srv/word") == "first"
    assert await said(first, "hostname") != await said(second, "hostname")
    # Removed while machines run from it: they go on, but nobody else can start from it.
    await host.remove(kept)
    with pytest.raises(SnapshotError):
        await host.thaw(kept)
    await said(second, "echo 3 > /proc/sys/vm/drop_caches; sha256sum /usr/bin/* > /dev/null")


async def test_a_stream_of_the_parent_goes_on_over_a_fork_and_can_be_had_in_the_child(
    host: Host, machine: Machine
) -> None:
    count = "i=0; while [ $i -lt 100 ]; do echo $i; i=$((i + 1)); sleep 0.02; done"
    running = await machine.agent.start(Command(["/bin/sh", "-c", count]))
    numbers = "".join(f"{n}\n" for n in range(100)).encode()
    early = b""
    async for item in running.output():
        assert isinstance(item, Output)
        early += item.data
        if len(early) > 50:
            break
    (child,) = machines_of((await host.fork(machine, 1)).children)
    copy = await child.agent.attach(running.id, seq=0)
    assert copy.pid == running.pid
    of_parent, of_child = await asyncio.gather(running.collect(), copy.collect())
    assert early + of_parent[0] == numbers
    assert of_child[0] == numbers


async def test_forks_of_forks_five_deep(host: Host, machine: Machine) -> None:
    await said(machine, "echo 0 > /srv/generations")
    for n in range(1, 6):
        (child,) = machines_of((await host.fork(machine, 1)).children)
        await host.end(machine)
        machine = child
        await said(machine, f"echo {n} >> /srv/generations; sync")
        for old in host.store.ids():
            await host.remove(old)
    await said(machine, "echo 3 > /proc/sys/vm/drop_caches")
    assert await said(machine, "cat /srv/generations") == "0\n1\n2\n3\n4\n5"
    assert list(host.machines) == [machine.id]


async def test_a_child_that_cannot_start_is_an_error_in_its_place(
    host: Host, machine: Machine
) -> None:
    kept = (await host.freeze(machine, Wanted("run"))).manifest.id
    await host.durable(kept)
    devices = host.store.root / "snapshots" / kept / "devices"
    devices.chmod(0o600)
    devices.write_bytes(devices.read_bytes()[:-100])
    children = await host.thaw_many(kept, 2)
    assert [type(child) for child in children] == [SnapshotError] * 2
    assert list(host.machines) == [machine.id]
    assert len(host.processes()) == 1
    assert await said(machine, "echo well") == "well"


async def test_names_are_new_in_a_fork_and_kept_in_a_thaw(host: Host, machine: Machine) -> None:
    names = "hostname; cat /etc/machine-id /proc/sys/kernel/random/boot_id"
    own = await said(machine, names)
    (child,) = machines_of((await host.fork(machine, 1)).children)
    others = await said(child, names)
    differ = [mine != theirs for mine, theirs in zip(own.split(), others.split(), strict=True)]
    assert differ == [True, True, False]  # it is the same boot
    frozen = await host.freeze(child, Wanted("stop"))
    again = await host.thaw(frozen.manifest.id)
    assert await said(again, names) == others
    renamed = await host.thaw(frozen.manifest.id, Identity.of("renamed"))
    assert await said(renamed, "hostname") == "renamed"
