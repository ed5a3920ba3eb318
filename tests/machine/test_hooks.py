"""Hooks run at their moments, see what they must, and cannot keep a machine from its freeze."""

import asyncio

import pytest

from torpor.vm import Command, FreezeError, HookLimits, Host, Machine, Wanted

pytestmark = pytest.mark.machine

HOOKS = "/etc/torpor/hooks"


async def add(machine: Machine, stage: str, text: str, name: str = "10-hook") -> None:
    """Give a machine a hook, as anybody can from outside."""
    path = f"{HOOKS}/{stage}/{name}"
    await machine.agent.write_file(path, f"#!/bin/sh\n{text}\n".encode(), mode=0o755, parents=True)


async def test_a_freeze_and_a_thaw_run_their_hooks(host: Host, machine: Machine) -> None:
    # A user's process, which the hooks before and after can talk to, and the first ones cannot.
    serve = "mkfifo /ask /answer; while :; do read -r x </ask; echo $x-served >/answer; done"
    await machine.agent.shell(f"({serve}) </dev/null >/dev/null 2>&1 & sleep 0.3")
    ask = 'echo "$TORPOR_EVENT" >/ask; read -r x </answer; echo "$x"'
    await add(machine, "before-freeze", ask)
    await add(machine, "after-thaw", ask)
    frozen_yet = "cat /run/torpor/cgroup/user/cgroup.events; hostname; id -u"
    await add(machine, "first-after-thaw", f'echo "$TORPOR_MACHINE $TORPOR_SNAPSHOT"; {frozen_yet}')

    frozen = await host.freeze(machine, Wanted("stop"))
    assert [(each.stage, each.ok, each.output) for each in frozen.hooks] == [
        ("before-freeze", True, "pause-served\n")
    ]
    thawed = await host.thaw(frozen.manifest.id)
    assert thawed.thawed is not None
    first, after = thawed.thawed.hooks
    assert (first.stage, first.ok) == ("first-after-thaw", True)
    assert f"{thawed.id} {frozen.manifest.id}\n" in first.output
    assert "frozen 1" in first.output
    assert first.output.endswith("test\n0\n")
    assert (after.stage, after.output) == ("after-thaw", "resume-served\n")
    # The machine remembers, also what ran before it was frozen.
    kept = await thawed.agent.hooks()
    assert [each.stage for each in kept][-2:] == ["first-after-thaw", "after-thaw"]
    [child] = (await host.fork(thawed, 1)).children
    assert isinstance(child, Machine)
    assert child.thawed is not None
    assert child.thawed.hooks[-1].output == "fork-served\n"


async def test_a_bad_hook_does_not_keep_a_machine_from_its_freeze(
    host: Host, machine: Machine
) -> None:
    await add(machine, "before-freeze", "echo broken; exit 3", "10-bad")
    await add(machine, "before-freeze", "(trap '' TERM; sleep 987) & wait", "20-slow")
    wanted = Wanted("run", memory="none", hooks=HookLimits(each=1.0))
    # What is under way on the channel goes on while the hooks run.
    beat = await machine.agent.start(Command(["/bin/sh", "-c", "sleep 0.2; echo beat"]))
    frozen, said = await asyncio.gather(host.freeze(machine, wanted), beat.collect())
    assert said == (b"beat\n", b"")
    bad, slow = frozen.hooks
    assert (bad.exit, bad.ok, bad.output) == (3, False, "broken\n")
    assert (slow.timed_out, slow.ok) == (True, False)
    running = (await machine.agent.shell("cat /proc/[0-9]*/cmdline | tr '\\0' ' '")).stdout
    assert b"sleep 987" not in running

    refused = Wanted("stop", hooks=HookLimits(each=1.0, refuse=True))
    with pytest.raises(FreezeError, match="10-bad exited with 3") as caught:
        await host.freeze(machine, refused)
    assert "runs on as before" in str(caught.value)
    assert host.store.ids() == [frozen.manifest.id]
    assert (await machine.agent.run("/bin/true")).exit.ok


async def test_a_user_space_random_generator_can_be_seeded_anew_in_a_fork(
    host: Host, machine: Machine
) -> None:
    """What docs/hooks.md shows: a program draws numbers of its own, and a hook makes it seed."""
    program = (
        "import os, random, signal, sys, time\n"
        "random.seed(1)\n"
        "signal.signal(signal.SIGHUP, lambda *_: random.seed(os.urandom(16)))\n"
        "open('/run/generator.pid', 'w').write(str(os.getpid()))\n"
        "while not os.path.exists('/root/draw'): time.sleep(0.05)\n"
        "open('/root/drawn.new', 'w').write(str(random.random()))\n"
        "os.rename('/root/drawn.new', '/root/drawn')\n"
    )
    await machine.agent.write_file("/root/program.py", program.encode())
    await machine.agent.start(Command(["python3", "/root/program.py"], stdin=False))
    await machine.agent.shell("while [ ! -s /run/generator.pid ]; do sleep 0.05; done")
    draw = "touch /root/draw; while [ ! -e /root/drawn ]; do sleep 0.05; done; cat /root/drawn"

    async def drawn() -> list[bytes]:
        forked = await host.fork(machine, 2)
        numbers = []
        for child in forked.children:
            assert isinstance(child, Machine)
            numbers.append((await child.agent.shell(draw)).stdout)
            await host.end(child)
        return numbers

    one, two = await drawn()
    assert one == two != b""
    await add(machine, "first-after-thaw", 'kill -HUP "$(cat /run/generator.pid)"')
    one, two = await drawn()
    assert one != two
