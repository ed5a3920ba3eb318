"""A machine outlives its agent, and the agent what it is asked."""

import asyncio

import pytest

from torpor.vm import ChannelLostError, Command, Host, Machine, Wanted

pytestmark = pytest.mark.machine


async def test_an_agent_that_is_killed_is_replaced(host: Host, machine: Machine) -> None:
    running = await machine.agent.start(Command(["/bin/sleep", "600"]))
    killer = "sleep 0.2; pkill -9 -o -f torpor/tools/site"
    await machine.agent.start(Command(["/bin/sh", "-c", f"({killer}) >/dev/null 2>&1 &"]))
    with pytest.raises(ChannelLostError, match="anew"):
        async with asyncio.timeout(60):
            await running.wait()
    agent = await machine.attached()
    assert (await agent.run("/bin/echo", "again")).stdout == b"again\n"
    frozen = await host.freeze(machine, Wanted("stop"))
    thawed = await host.thaw(frozen.manifest.id)
    assert (await thawed.agent.run("/bin/echo", "thawed")).stdout == b"thawed\n"


async def test_a_freeze_finds_an_agent_that_was_replaced(host: Host, machine: Machine) -> None:
    killer = "sleep 0.2; pkill -9 -o -f torpor/tools/site"
    await machine.agent.start(Command(["/bin/sh", "-c", f"({killer}) >/dev/null 2>&1 &"]))
    async with asyncio.timeout(60):
        while machine.agent.channel.lost is None:  # noqa: ASYNC110 - as a user would look
            await asyncio.sleep(0.05)
    frozen = await host.freeze(machine, Wanted("run"))
    assert host.store.ids() == [frozen.manifest.id]
    assert (await machine.agent.run("/bin/true")).exit.ok


async def test_a_program_that_takes_all_memory_is_killed_and_nothing_else(machine: Machine) -> None:
    beside = await machine.agent.start(Command(["/bin/sleep", "600"]))
    greedy = "import time\nkept = []\nwhile True: kept.append(bytearray(16 << 20))"
    async with asyncio.timeout(300):
        result = await machine.agent.run("/usr/bin/python3", "-c", greedy)
    assert result.exit.signal == 9
    commands = {each.id: each.running for each in await machine.agent.commands()}
    assert commands[beside.id]
