"""The guest channel of a real machine, harder than the proofs use it."""

import asyncio
import hashlib
import random
from pathlib import Path

import pytest

from tests.machine.conftest import Start, open_host
from torpor.vm import Command, Exec, GuestError, Host, Identity, Machine, Output, Wanted

pytestmark = pytest.mark.machine

LINES = "i=0; while [ $i -lt {} ]; do echo line $i; i=$((i + 1)); done"


def lines(count: int) -> bytes:
    return "".join(f"line {n}\n" for n in range(count)).encode()


async def read_some(running: Exec, size: int) -> bytes:
    data = b""
    async for item in running.output():
        assert isinstance(item, Output)
        data += item.data
        if len(data) >= size:
            break
    return data


async def feed(running: Exec, data: bytes) -> None:
    for start in range(0, len(data), 100_000):
        await running.write(data[start : start + 100_000])
    await running.close_stdin()


async def test_large_streams_in_both_directions_at_once(machine: Machine) -> None:
    chance = random.Random(1)
    sent = [chance.randbytes(3_000_000), b"\x7d\x7e" * 1_000_000, bytes(2_000_000)]
    cats = [await machine.agent.start(Command(["/bin/cat"], stdin=True)) for _ in sent]
    feeding = [asyncio.create_task(feed(cat, data)) for cat, data in zip(cats, sent, strict=True)]
    async with asyncio.timeout(120):
        back = await asyncio.gather(*(cat.collect() for cat in cats))
    await asyncio.gather(*feeding)
    assert [out == data for (out, _), data in zip(back, sent, strict=True)] == [True] * 3


async def test_files_and_commands_pass_beside_a_stream_that_is_stuck(machine: Machine) -> None:
    stuck = await machine.agent.start(Command(["/bin/sh", "-c", "head -c 9000000 /dev/zero"]))
    await read_some(stuck, 1)
    data = random.Random(2).randbytes(2_000_000)
    async with asyncio.timeout(60):
        await machine.agent.write_file("/srv/data", data)
        assert await machine.agent.read_file("/srv/data") == data
        result = await machine.agent.run("/usr/bin/sha256sum", "/srv/data")
    assert result.stdout.split()[0].decode() == hashlib.sha256(data).hexdigest()
    async with asyncio.timeout(60):
        assert len((await stuck.collect())[0]) > 8_000_000


async def test_freezes_cut_streams_in_both_directions_anywhere(
    host: Host, machine: Machine
) -> None:
    chance = random.Random(3)
    data = chance.randbytes(1_500_000)
    running = await machine.agent.start(Command(["/bin/cat"], stdin=True))
    out = b""
    for _ in range(6):
        if running.written < len(data):
            await running.write(data[running.written :][:250_000])
        # All of it is under way in one direction or the other when the machine is frozen.
        await asyncio.sleep(chance.uniform(0, 0.03))
        frozen = await host.freeze(machine, Wanted("stop"))
        machine = await host.thaw(frozen.manifest.id)
        await running.attach(machine.agent.channel)
        out += await read_some(running, 200_000)
    assert running.written == len(data)
    await running.close_stdin()
    out += (await running.collect())[0]
    assert out == data


async def test_a_command_outlives_the_program_that_started_it(start: Start, home: Path) -> None:
    first = await open_host(start, home)
    machine = await first.thaw(start.golden, Identity.of("outlives"))
    slow = LINES.format(20_000).replace("; done", "; [ $((i % 1000)) -ne 0 ] || sleep 0.1; done")
    running = await machine.agent.start(Command(["/bin/sh", "-c", slow]))
    early = await read_some(running, 1000)
    await first.close()
    await asyncio.sleep(1.0)
    second = await open_host(start, home)
    try:
        (machine,) = second.machines.values()
        again = await machine.agent.attach(running.id, seq=0)
        out, _ = await again.collect()
        assert out == lines(20_000)
        assert out.startswith(early)
    finally:
        for each in list(second.machines.values()):
            await second.end(each)
        await second.close()


async def test_a_roll_back_is_told_to_who_has_seen_more(host: Host, machine: Machine) -> None:
    running = await machine.agent.start(Command(["/bin/cat"], stdin=True))
    await running.write(b"before ")
    assert await read_some(running, 7) == b"before "
    kept = (await host.freeze(machine, Wanted("run"))).manifest.id
    await running.write(b"after")
    assert await read_some(running, 5) == b"after"
    await host.end(machine)
    older = await host.thaw(kept)
    with pytest.raises(GuestError, match="ESTALE"):
        await running.attach(older.agent.channel)
    anew = await older.agent.attach(running.id, seq=0)
    await anew.write(b"otherwise")
    await anew.close_stdin()
    assert (await anew.collect())[0] == b"before otherwise"


async def test_three_hundred_commands_leave_nothing_in_the_agent(machine: Machine) -> None:
    count = "for p in $(pgrep -f torpor/tools/site); do ls /proc/$p/fd | wc -l; done; true"

    async def several(number: int) -> None:
        for n in range(number):
            result = await machine.agent.shell(f"echo {n}; exit {n % 3}")
            assert (result.stdout, result.exit.code) == (b"%d\n" % n, n % 3)

    await several(3)
    before = (await machine.agent.shell(count)).stdout
    await asyncio.gather(*(several(60) for _ in range(5)))
    await asyncio.sleep(0.5)
    assert (await machine.agent.shell(count)).stdout == before
    assert len(await machine.agent.commands()) <= 65


async def test_commands_run_as_whom_and_where_they_are_told(machine: Machine) -> None:
    result = await machine.agent.shell("id -un; pwd; echo $HOME", user="nobody")
    assert result.stdout == b"nobody\n/\n/nonexistent\n"  # its home is not there
    result = await machine.agent.shell("id -u; id -g; pwd", user="1234:daemon", cwd="/tmp")
    assert result.stdout == b"1234\n1\n/tmp\n"
    result = await machine.agent.shell("id -un; pwd; echo $WORD", env={"WORD": "given"})
    assert result.stdout == b"root\n/root\ngiven\n"
    # Each command leads a session of its own and has no descriptor but the three.
    result = await machine.agent.shell("ls /proc/self/fd; ps -o sid= -p $$; echo $$; umask")
    words = result.stdout.split()
    assert words[:3] == [b"0", b"1", b"2"]
    assert words[-3] == words[-2]
    assert words[-1] == b"0022"


async def test_a_command_of_a_minute_outlives_its_client(start: Start, home: Path) -> None:
    """Nobody is there while it runs, not even the program that started it; then all is replayed."""
    host = await open_host(start, home)
    machine = await host.thaw(start.golden, Identity.of("minute"))
    line = "for n in $(seq 60); do echo second $n; sleep 1; done"
    running = await machine.agent.start(Command(["/bin/sh", "-c", line]))
    first = await read_some(running, 10)
    assert first.startswith(b"second 1\n")
    await host.close()
    await asyncio.sleep(61)
    again = await open_host(start, home)
    adopted = again.machines[machine.id]
    replay = await adopted.agent.attach(running.id)
    out, err = await replay.collect()
    assert out == b"".join(b"second %d\n" % n for n in range(1, 61))
    assert err == b""
    assert replay.exit is not None
    assert replay.exit.ok
    await running.attach(adopted.agent.channel)
    assert first + (await running.collect())[0] == out
    await again.end(adopted)
    await again.close()
