"""Commands on terminals under a real agent, see conftest.py."""

import asyncio
import signal
import sys

import pytest

from tests.guest.conftest import Guest, needs_users
from torpor.vm import Command, Exec, GuestAgent, GuestError, Output, Terminal


async def shown_until(running: Exec, text: bytes, seen: bytes = b"") -> bytes:
    """Read what a terminal shows until ``text`` is in it; return all of it."""
    async with asyncio.timeout(20):
        while text not in seen:
            item = await running.next_output()
            assert isinstance(item, Output), f"it ended after {seen!r}"
            seen += item.data
    return seen


async def shell(agent: GuestAgent, **options: object) -> Exec:
    """Start a shell on a terminal, past its first prompt."""
    environment = {"PS1": "ready> ", "ENV": "/dev/null"}
    terminal = Terminal(30, 100)
    running = await agent.start(
        Command(("/bin/sh",), env=environment, cwd="/", terminal=terminal, **options)  # type: ignore[arg-type]
    )
    await shown_until(running, b"ready> ")
    return running


async def test_a_terminal_has_the_size_that_was_asked_for_and_echoes(guest: Guest) -> None:
    agent = await guest.attach()
    running = await shell(agent)
    await running.write(b"stty size; tty; echo $TERM\r")
    seen = await shown_until(running, b"xterm-256color")
    assert b"stty size; tty" in seen  # what was typed is shown
    assert b"30 100\r\n/dev/pts/" in seen
    await running.write(b"exit 7\r")
    assert (await running.wait()).code == 7
    await agent.channel.close()


async def test_a_resized_terminal_tells_its_program(guest: Guest) -> None:
    agent = await guest.attach()
    code = (
        "import os, signal\n"
        "def say(*_): os.write(1, b'%d x %d' % os.get_terminal_size())\n"
        "signal.signal(signal.SIGWINCH, say)\n"
        "print('waiting', flush=True)\n"
        "while True: signal.pause()\n"
    )
    running = await agent.start(Command((sys.executable, "-c", code), terminal=Terminal()))
    await shown_until(running, b"waiting")
    await agent.resize(running.id, Terminal(50, 132))
    await shown_until(running, b"132 x 50")
    await agent.signal(running.id, signal.SIGKILL)
    assert (await running.wait()).signal == signal.SIGKILL
    await agent.channel.close()


async def test_control_c_interrupts_what_runs_and_not_the_shell(guest: Guest) -> None:
    agent = await guest.attach()
    running = await shell(agent)
    await running.write(b"sh -c 'echo star''ted; exec sleep 1000'\r")
    await shown_until(running, b"started")
    await running.write(b"\x03")
    await shown_until(running, b"ready> ")
    await running.write(b"echo $?\r")
    await shown_until(running, b"130")
    await running.write(b"exit 0\r")
    assert (await running.wait()).ok
    await agent.channel.close()


async def test_control_z_stops_a_job_that_can_be_continued(guest: Guest) -> None:
    agent = await guest.attach()
    running = await shell(agent)
    await running.write(b"sh -c 'echo star''ted; exec sleep 1'; echo over\r")
    await shown_until(running, b"started")
    await running.write(b"\x1a")
    await shown_until(running, b"topped", await shown_until(running, b"ready> "))
    await running.write(b"fg; echo continued\r")
    await shown_until(running, b"continued\r\n")
    await running.write(b"exit 0\r")
    await running.wait()
    await agent.channel.close()


@pytest.mark.parametrize("size", [1, 4096, 70_000])
async def test_the_last_words_on_a_terminal_are_not_lost(guest: Guest, size: int) -> None:
    agent = await guest.attach()
    code = f"import os; data = b'x' * {size}\nwhile data: data = data[os.write(1, data):]"
    running = await agent.start(Command((sys.executable, "-c", code), terminal=Terminal()))
    out, _ = await running.collect()
    assert out == b"x" * size
    await agent.channel.close()


async def test_a_terminal_with_a_job_left_on_it_still_ends(guest: Guest) -> None:
    agent = await guest.attach()
    line = "trap '' HUP; (while echo more; do :; done) 2>/dev/null & sleep 0.2; echo last; exit 3"
    running = await agent.start(Command(("/bin/sh", "-c", line), terminal=Terminal()))
    out, _ = await running.collect()
    assert b"last" in out
    assert running.exit is not None
    assert running.exit.code == 3
    await agent.channel.close()


async def test_the_end_of_the_input_is_typed(guest: Guest) -> None:
    agent = await guest.attach()
    running = await agent.start(Command(("cat",), terminal=Terminal()))
    await running.write(b"a line\r")
    await running.close_stdin()
    out, _ = await running.collect()
    assert out == b"a line\r\na line\r\n"
    assert running.exit is not None
    assert running.exit.ok
    await agent.channel.close()


async def test_a_terminal_goes_on_after_the_channel_was_lost(guest: Guest) -> None:
    agent = await guest.attach()
    running = await shell(agent)
    await running.write(b"value=kept\r")
    await shown_until(running, b"ready> ")
    await agent.channel.close()
    again = await guest.attach()
    await running.attach(again.channel)
    await running.write(b"echo $value\r")
    await shown_until(running, b"kept\r\n")
    await running.write(b"exit 0\r")
    await running.wait()
    await again.channel.close()


@needs_users
async def test_a_terminal_belongs_to_its_user(guest: Guest) -> None:
    agent = await guest.attach()
    line = "stat -c %u $(tty); echo through >/dev/tty"
    command = Command(("/bin/sh", "-c", line), cwd="/", terminal=Terminal(), user="65534")
    out, _ = await (await agent.start(command)).collect()
    assert out == b"65534\r\nthrough\r\n"
    await agent.channel.close()


async def test_only_terminals_have_a_size(guest: Guest) -> None:
    agent = await guest.attach()
    running = await agent.start(Command(("sleep", "1000")))
    with pytest.raises(GuestError) as refused:
        await agent.resize(running.id, Terminal())
    assert refused.value.code == "ENOTTY"
    await agent.signal(running.id, signal.SIGKILL)
    await running.wait()
    await agent.channel.close()


async def test_a_terminal_of_no_possible_size_is_refused_and_nothing_is_left(guest: Guest) -> None:
    agent = await guest.attach()
    before = await guest.descriptors()
    with pytest.raises(GuestError) as impossible:
        await agent.start(Command(("cat",), terminal=Terminal(1 << 20, 80)))
    assert impossible.value.code == "EINVAL"
    with pytest.raises(GuestError) as missing:
        await agent.start(Command(("no-such-program",), terminal=Terminal()))
    assert missing.value.code == "ENOENT"
    await guest.closes_all_but(before)
    await agent.channel.close()


async def test_a_hundred_terminals_leave_nothing(guest: Guest) -> None:
    agent = await guest.attach()
    before = await guest.descriptors()

    async def one() -> None:
        running = await agent.start(Command(("true",), terminal=Terminal()))
        assert (await running.wait()).ok

    for _ in range(10):
        await asyncio.gather(*(one() for _ in range(10)))
    await guest.closes_all_but(before)
    await agent.channel.close()


async def test_a_command_over_its_time_limit_is_asked_to_end(guest: Guest) -> None:
    agent = await guest.attach()
    result = await agent.shell("trap 'echo told; exit 5' TERM; sleep 1000 & wait", limit=0.3)
    assert (result.stdout, result.exit.code, result.exit.timed_out) == (b"told\n", 5, True)
    await agent.channel.close()


async def test_a_command_that_does_not_end_when_told_is_killed(guest: Guest) -> None:
    agent = await guest.attach()
    result = await agent.shell("trap '' TERM; while :; do sleep 0.1; done", limit=0.1)
    assert (result.exit.signal, result.exit.timed_out) == (signal.SIGKILL, True)
    await agent.channel.close()


async def test_a_command_within_its_time_limit_is_left_alone(guest: Guest) -> None:
    agent = await guest.attach()
    result = await agent.run("true", limit=60.0)
    assert result.exit.ok
    assert not result.exit.timed_out
    await agent.channel.close()
