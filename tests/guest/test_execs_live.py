"""Commands under a real agent, see conftest.py."""

import asyncio
import contextlib
import hashlib
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.guest.conftest import Guest
from tests.waiting import eventually
from torpor.vm import ChannelLostError, Command, Exec, Gap, GuestError, KnownCommand, Output

LINES = """
import sys, time
for n in range(int(sys.argv[1])):
    (sys.stderr if n % 7 == 3 else sys.stdout).write(f"{n:08} {'x' * (n % 50)}\\n")
    if n % 100 == 0:
        sys.stdout.flush(); sys.stderr.flush(); time.sleep(0.001)
"""


def python(code: str, *arguments: str, stdin: bool = False, keep: int | None = None) -> Command:
    return Command((sys.executable, "-c", code, *arguments), stdin=stdin, keep=keep)


async def read_some(running: Exec, size: int) -> bytes:
    """Read at least ``size`` bytes of a command's output."""
    data = b""
    async for item in running.output():
        assert isinstance(item, Output)
        data += item.data
        if len(data) >= size:
            break
    return data


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x7d\x7e\x7d\x7d\x5d\x5e\x7e",
        b"\xff\xfe\x80 not UTF-8 \x00",
        bytes(range(256)) * 20_000,
        b"\x7e" * 1_000_000,
        b"\x7d" * 1_000_003,
    ],
    ids=["nothing", "flags", "not-utf-8", "5-mb", "1-mb-of-flags", "1-mb-of-escapes"],
)
async def test_output_is_what_was_written(guest: Guest, tmp_path: Path, data: bytes) -> None:
    agent = await guest.attach()
    (tmp_path / "data").write_bytes(data)
    result = await agent.shell(f"cat {tmp_path}/data; cat {tmp_path}/data >&2; exit 3")
    assert (result.stdout, result.stderr, result.exit.code) == (data, data, 3)
    await agent.channel.close()


async def test_arguments_and_environment_are_bytes(guest: Guest) -> None:
    agent = await guest.attach()
    odd = os.fsdecode(b"a\xff\x80\n 'b\" \xc3\xa9")
    result = await agent.run("/usr/bin/printf", "%s.%s", odd, "")
    assert result.stdout == os.fsencode(odd) + b"."
    result = await agent.shell('printf %s "$ODD"', env={"ODD": odd})
    assert result.stdout == os.fsencode(odd)
    word = "y" * (128 * 1024 - 1)
    result = await agent.run("/usr/bin/printf", "%s", *[word] * 4)
    assert result.stdout == word.encode() * 4
    await agent.channel.close()


@pytest.mark.parametrize(
    ("argv", "options", "code"),
    [
        (["/no/such/program"], {}, "ENOENT"),
        (["/etc/passwd"], {}, "EACCES"),
        (["/etc"], {}, "EACCES"),
        (["true"], {"cwd": "/no/such/directory"}, "ENOENT"),
        (["true"], {"user": "nobody-at-all"}, "ValueError"),
        (["true"], {"user": "0:no-such-group"}, "ValueError"),
        (["a\0b"], {}, "ValueError"),
        (["true", "z" * (128 * 1024)], {}, "E2BIG"),
        (["true", *["z" * 100_000] * 15], {}, "E2BIG"),
        ([], {}, "EINVAL"),
    ],
)
async def test_what_cannot_start_says_why_and_leaves_nothing(
    guest: Guest, argv: list[str], options: dict[str, str], code: str
) -> None:
    agent = await guest.attach()
    await agent.run("true")
    before = await guest.descriptors()
    for _ in range(3):
        with pytest.raises(GuestError) as caught:
            await agent.start(Command(argv, **options))  # type: ignore[arg-type]
        assert caught.value.code == code
    assert (await agent.run("echo", "still there")).stdout == b"still there\n"
    await guest.closes_all_but(before)
    assert len(await agent.commands()) == 2
    await agent.channel.close()


async def test_a_command_killed_by_a_signal_says_so(guest: Guest) -> None:
    agent = await guest.attach()
    running = await agent.start(Command(["sleep", "100"]))
    await agent.signal(running.id, signal.SIGTERM)
    assert (await running.wait()).signal == signal.SIGTERM
    with pytest.raises(GuestError) as caught:
        await agent.signal(running.id, signal.SIGTERM)
    assert caught.value.code == "ESRCH"
    await agent.channel.close()


async def test_no_byte_is_lost_or_doubled_when_the_channel_is_lost(guest: Guest) -> None:
    chance = random.Random(7)
    agent = await guest.attach()
    running = await agent.start(python(LINES, "30000"))
    parts: dict[int, list[bytes]] = {1: [], 2: []}
    losses = 0
    while running.exit is None:
        with contextlib.suppress(TimeoutError, ChannelLostError):
            async with asyncio.timeout(chance.uniform(0.001, 0.08)):
                async for item in running.output():
                    assert isinstance(item, Output)
                    parts[item.source].append(item.data)
        if running.exit is None and losses < 40:
            losses += 1
            await agent.channel.close()
            agent = await guest.attach()
            await running.attach(agent.channel)
    expected: dict[int, list[str]] = {1: [], 2: []}
    for n in range(30_000):
        expected[2 if n % 7 == 3 else 1].append(f"{n:08} {'x' * (n % 50)}\n")
    assert losses > 5
    assert {source: b"".join(data) for source, data in parts.items()} == {
        source: "".join(lines).encode() for source, lines in expected.items()
    }
    await agent.channel.close()


async def test_a_command_outlives_its_client_and_is_replayed(guest: Guest) -> None:
    agent = await guest.attach()
    running = await agent.start(python(LINES, "5000"))
    first = await read_some(running, 1000)
    await agent.channel.close()
    await asyncio.sleep(1.0)
    agent = await guest.attach()
    for _ in range(100):  # others that come and go meanwhile do not push it out
        await agent.run("true")
    again = await agent.attach(running.id, seq=0)
    assert (await read_some(again, len(first))).startswith(first)
    await again.wait()
    assert again.received == sum(10 + n % 50 for n in range(5000))
    rest = await agent.attach(running.id, seq=again.received - 17)
    assert len(await read_some(rest, 17)) == 17
    await agent.channel.close()


async def test_a_replay_of_many_small_writes_is_quick(guest: Guest) -> None:
    agent = await guest.attach()
    code = "import os\nfor n in range(60000): os.write(1 + n % 2, b'%09d\\n' % n)"
    running = await agent.start(python(code))
    assert (await running.wait()).ok
    assert guest.memory() < 48 << 20
    # With the quadratic search that was here once, this took minutes.
    async with asyncio.timeout(20):
        again = await agent.attach(running.id, seq=0)
        out, err = await again.collect()
    assert len(out) == len(err) == 300_000
    await agent.channel.close()


# Input


@pytest.mark.parametrize("reader", ["cat | sha256sum", "sleep 0.5; sha256sum"])
async def test_input_crosses_lost_channels_whole(guest: Guest, reader: str) -> None:
    chance = random.Random(3)
    data = chance.randbytes(5_000_000)
    agent = await guest.attach()
    # Other commands with streams of their own, whose numbers come again with each epoch.
    others = [await agent.start(Command(["cat"], stdin=True)) for _ in range(3)]
    running = await agent.start(Command(["sh", "-c", reader], stdin=True))
    everybody = [*others, running]
    while running.written < len(data):
        try:
            async with asyncio.timeout(chance.uniform(0.001, 0.1)):
                await running.write(data[running.written :])
        except (TimeoutError, ChannelLostError):
            await agent.channel.close()
            agent = await guest.attach()
            chance.shuffle(everybody)
            for each in everybody:
                await each.attach(agent.channel)
    await running.close_stdin()
    await agent.channel.close()
    agent = await guest.attach()
    for each in everybody:
        await each.attach(agent.channel)
    out, _ = await running.collect()
    assert out.split()[0].decode() == hashlib.sha256(data).hexdigest()
    for each in others:
        await each.write(b"hello")
        await each.close_stdin()
        assert await each.collect() == (b"hello", b"")
    await agent.channel.close()


async def test_what_is_written_while_it_attaches_comes_in_its_place(guest: Guest) -> None:
    agent = await guest.attach()
    running = await agent.start(Command(["sh", "-c", "sleep 0.3; cat"], stdin=True))
    await running.write(b"a" * 100_000)
    await running.write(b"b" * 100_000)
    await agent.channel.close()
    agent = await guest.attach()
    attaching = asyncio.create_task(running.attach(agent.channel))
    await asyncio.sleep(0)
    await running.write(b"c" * 1000)
    await attaching
    await running.close_stdin()
    out, _ = await running.collect()
    assert out == b"a" * 100_000 + b"b" * 100_000 + b"c" * 1000
    await agent.channel.close()


async def test_another_client_goes_on_with_the_input(guest: Guest) -> None:
    agent = await guest.attach()
    first = await agent.start(Command(["cat"], stdin=True))
    await first.write(b"one ")
    assert await read_some(first, 4) == b"one "
    await agent.channel.close()
    agent = await guest.attach()
    second = await agent.attach(first.id, seq=0)
    await second.write(b"two")
    await second.close_stdin()
    assert (await second.collect())[0] == b"one two"
    await agent.channel.close()


async def test_a_command_that_closes_its_input_keeps_nobody_waiting(guest: Guest) -> None:
    agent = await guest.attach()
    code = "import os, time; os.close(0); os.write(1, b'closed'); time.sleep(1)"
    running = await agent.start(python(code, stdin=True))
    await read_some(running, 6)
    async with asyncio.timeout(20):
        with contextlib.suppress(GuestError):
            await running.write(bytes(3_000_000))
    assert (await running.wait()).ok
    with pytest.raises(GuestError, match="EPIPE"):
        await running.write(b"more")
    await agent.channel.close()


# Holding


async def test_a_slow_client_makes_the_command_wait(guest: Guest, tmp_path: Path) -> None:
    agent = await guest.attach()
    done = tmp_path / "done"
    code = f"import os\nos.write(1, b'.')\nprint('y' * 8_000_000)\nopen({str(done)!r}, 'w')"
    running = await agent.start(python(code))
    await read_some(running, 1)
    await asyncio.sleep(0.7)
    assert not done.exists()
    out, _ = await running.collect()
    assert len(out) + 1 >= 8_000_001 - 65536
    assert done.exists()
    await agent.channel.close()


async def test_a_hold_of_a_small_log_does_not_stall(guest: Guest) -> None:
    agent = await guest.attach()
    code = "import os, time\nfor n in range(300): os.write(1, b'z' * 1000); time.sleep(0.0005)"
    async with asyncio.timeout(20):
        running = await agent.start(python(code, keep=1000))
        out, _ = await running.collect()
    assert out == b"z" * 300_000
    await agent.channel.close()


async def test_of_two_that_hold_the_slower_one_loses_nothing(guest: Guest) -> None:
    agent = await guest.attach()
    running = await agent.start(python("print('w' * 6_000_000)"))
    slow = await agent.attach(running.id, seq=0)
    quick = asyncio.create_task(running.collect())
    await asyncio.sleep(0.5)
    assert not quick.done()
    out, _ = await slow.collect()
    assert len(out) == len((await quick)[0]) == 6_000_001
    await agent.channel.close()


async def test_detaching_lets_go(guest: Guest, tmp_path: Path) -> None:
    agent = await guest.attach()
    done = tmp_path / "done"
    code = f"print('v' * 8_000_000)\nopen({str(done)!r}, 'w')"
    running = await agent.start(python(code))
    await read_some(running, 10)
    running.detach()
    with pytest.raises(ChannelLostError, match="not followed"):
        await running.wait()
    await until(done.exists)
    await running.attach(agent.channel)
    gaps = [item async for item in running.output() if isinstance(item, Gap)]
    assert sum(gap.end - gap.start for gap in gaps) > 6_000_000
    assert running.exit is not None
    await agent.channel.close()


async def test_a_cancelled_run_lets_go(guest: Guest, tmp_path: Path) -> None:
    agent = await guest.attach()
    done = tmp_path / "done"
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.5):
            await agent.shell(f"sleep 1; head -c 8000000 /dev/zero; touch {done}")
    await until(done.exists)
    await agent.channel.close()


async def test_a_follower_that_does_not_hold_is_told_of_gaps(guest: Guest) -> None:
    agent = await guest.attach()
    code = "import os\nos.read(0, 1)\nfor n in range(20000): os.write(1, b'%999d\\n' % n)"
    running = await agent.start(python(code, stdin=True))
    follower = await agent.attach(running.id, hold=False)
    await running.write(b"!")
    async for _ in follower.output():
        break
    await running.wait()  # at full speed: the follower does not slow it down
    # It was sent no more than its window, however much went by.
    assert sum(len(item.data) for item in follower._arrived if isinstance(item, Output)) < 300_000
    seen = follower.received
    gaps = []
    tail = b""
    async for item in follower.output():
        if isinstance(item, Gap):
            assert item.start == seen
            seen = item.end
            gaps.append(item)
        else:
            assert item.seq == seen
            seen += len(item.data)
            tail = (tail + item.data)[-1000:]
    assert gaps
    assert seen == 20_000_000
    assert tail == b"%999d\n" % 19_999
    await agent.channel.close()


async def test_a_hold_lapses_when_the_host_stays_away(tmp_path: Path) -> None:
    guest = Guest(tmp_path, grace=0.5)
    try:
        agent = await guest.attach()
        done = tmp_path / "done"
        running = await agent.start(python(f"print('u' * 8_000_000)\nopen({str(done)!r}, 'w')"))
        await read_some(running, 10)
        await agent.channel.close()
        await asyncio.sleep(0.3)
        assert not done.exists()
        guest.close_port()
        await until(done.exists)
    finally:
        guest.end()


async def test_a_hold_lapses_when_nobody_attaches_again(tmp_path: Path) -> None:
    guest = Guest(tmp_path, grace=0.5)
    try:
        agent = await guest.attach()
        done = tmp_path / "done"
        running = await agent.start(python(f"print('u' * 8_000_000)\nopen({str(done)!r}, 'w')"))
        await read_some(running, 10)
        await agent.channel.close()
        agent = await guest.attach()
        await until(done.exists)
        await agent.channel.close()
    finally:
        guest.end()


async def test_what_the_machine_does_not_know_is_refused(guest: Guest) -> None:
    agent = await guest.attach()
    with pytest.raises(GuestError, match="ENOENT"):
        await agent.attach("no-such-command")
    result = await agent.start(Command(["echo", "short"]))
    await result.wait()
    with pytest.raises(GuestError, match="ESTALE"):
        await agent.attach(result.id, seq=1000)
    lost = Exec(result.id, seq=1000)
    with pytest.raises(GuestError, match="ESTALE"):
        await lost.attach(agent.channel)
    with pytest.raises(GuestError, match="ESTALE"):  # and does not wait for ever
        await lost.wait()
    await agent.channel.close()


# What is left running


async def test_a_command_that_leaves_a_daemon_ends_and_the_daemon_lives(
    guest: Guest, tmp_path: Path
) -> None:
    agent = await guest.attach()
    done = tmp_path / "done"
    script = (
        f"(read line < {tmp_path}/go; echo out; echo err >&2; head -c 300000 /dev/zero;"
        f" echo $line > {done}) & echo started"
    )
    os.mkfifo(tmp_path / "go")
    async with asyncio.timeout(10):
        result = await agent.shell(script)
    assert result.stdout == b"started\n"
    for _ in range(80):
        await agent.run("true")
    (tmp_path / "go").write_text("well\n")
    await until(done.exists)
    assert done.read_text() == "well\n"
    await agent.channel.close()


async def test_a_command_that_closes_its_output_early_runs_on(guest: Guest) -> None:
    agent = await guest.attach()
    began = time.monotonic()
    result = await agent.shell("echo last; exec >&- 2>&-; sleep 0.5; exit 7")
    assert (result.stdout, result.exit.code) == (b"last\n", 7)
    assert time.monotonic() - began >= 0.5
    await agent.channel.close()


# Many


async def test_a_thousand_commands_leave_no_descriptor_and_no_memory(guest: Guest) -> None:
    agent = await guest.attach()

    async def batch(count: int) -> None:
        async with asyncio.TaskGroup() as tasks:
            for _ in range(10):
                tasks.create_task(several(count // 10))

    async def several(count: int) -> None:
        for n in range(count):
            assert (await agent.shell(f"head -c 20000 /dev/zero; exit {n % 5}")).exit.code == n % 5
            with pytest.raises(GuestError):
                await agent.run("/no/such/program")

    await batch(500)  # up to the finished commands that are kept, and the allocator's reserve
    descriptors, memory = await guest.descriptors(), guest.memory()
    await batch(1000)
    await guest.closes_all_but(descriptors)
    assert guest.memory() < memory + (2 << 20)
    assert len(await agent.commands()) == 64
    await agent.channel.close()


async def test_the_finished_keep_a_bounded_amount_together(guest: Guest) -> None:
    agent = await guest.attach()
    for _ in range(12):
        await agent.run("head", "-c", "5000000", "/dev/zero", keep=5_000_000)
    kept = await agent.commands()
    assert 1 <= sum(each.end - each.start for each in kept) <= 16 << 20
    assert guest.memory() < 64 << 20
    await agent.channel.close()


async def test_many_at_once(guest: Guest) -> None:
    agent = await guest.attach()
    async with asyncio.timeout(60):
        running = await asyncio.gather(
            *(agent.start(Command(["cat"], stdin=True)) for _ in range(400))
        )
        assert len(await agent.commands()) == 400
        for n, each in enumerate(running):
            await each.write(b"%d" % n)
            await each.close_stdin()
        for n, each in enumerate(running):
            assert await each.collect() == (b"%d" % n, b"")
    await agent.channel.close()


async def test_commands_asked_for_during_a_freeze_start_after_it(guest: Guest) -> None:
    agent = await guest.attach()
    await agent.run("true")
    os.kill(guest.spawner(), signal.SIGSTOP)  # as the cgroup's freezer does
    word = "x" * 50_000
    tasks = [asyncio.create_task(agent.run("echo", word, str(n))) for n in range(300)]
    await asyncio.sleep(0.5)
    async with asyncio.timeout(5):
        await agent.channel.request("ping")
    os.kill(guest.spawner(), signal.SIGCONT)
    async with asyncio.timeout(60):
        results = await asyncio.gather(*tasks)
    assert [each.stdout for each in results] == [
        b"%s %d\n" % (word.encode(), n) for n in range(300)
    ]
    await agent.channel.close()


async def test_a_signal_to_a_command_that_is_being_started_reaches_it_when_it_runs(
    guest: Guest,
) -> None:
    agent = await guest.attach()
    await agent.run("true")
    os.kill(guest.spawner(), signal.SIGSTOP)
    starting = asyncio.create_task(agent.start(Command(["sleep", "600"])))

    async def known() -> list[KnownCommand]:
        return [each for each in await agent.commands() if each.argv == ("sleep", "600")]

    (command,) = await eventually(known, bool)
    await agent.signal(command.id, signal.SIGKILL)
    for wrong in (-1, signal.NSIG):
        with pytest.raises(GuestError, match="EINVAL"):
            await agent.signal(command.id, wrong)
    assert not starting.done()
    os.kill(guest.spawner(), signal.SIGCONT)
    async with asyncio.timeout(20):
        assert (await (await starting).wait()).signal == signal.SIGKILL
    await agent.channel.close()


async def test_long_command_lines_do_not_break_the_list(guest: Guest) -> None:
    agent = await guest.attach()
    for _ in range(20):
        await agent.run("true", "w" * 100_000)
    assert len(await agent.commands()) == 20
    assert guest.memory() < 32 << 20
    await agent.channel.close()


async def until(happened: Callable[[], bool], limit: float = 20.0) -> None:
    """Wait until ``happened()`` is true."""
    async with asyncio.timeout(limit):
        while not happened():  # noqa: ASYNC110 (files of another process tell no event)
            await asyncio.sleep(0.05)
