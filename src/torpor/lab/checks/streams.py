"""What a command writes and reads crosses freezes and lost clients: every byte once, in order."""

import asyncio
import contextlib
import hashlib
import random
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from torpor.lab.check import Check, Experiment
from torpor.lab.laboratory import Laboratory
from torpor.lab.pauses import pause
from torpor.lab.probes import program_text, put_program
from torpor.vm import (
    STDERR,
    STDOUT,
    Command,
    Exec,
    Gap,
    GuestError,
    Machine,
    Output,
    VmError,
    Wanted,
)

ATTACH_LIMIT = 10.0
FREEZES = 5
LINES = 20_000
AWAY = 4.0
"""Seconds for which a command has no client."""
INPUT = 6_000_000
LAST = 1_200_000
"""The last number that `seq` is asked for: 8 MB, more than windows and logs take."""
ROUNDS = 12
CHURN_FREEZES = 8
CHURNERS = 4
FIRST_EXEC_LIMIT = 2.0
SLOWER = 5
STALLED = 30.0
"""Seconds after which a stream that says nothing counts as stalled."""


@dataclass
class Read:
    """What was read of a command: its bytes by source, and what was wrong with their order."""

    parts: dict[int, list[bytes]] = field(default_factory=lambda: {STDOUT: [], STDERR: []})
    gaps: list[Gap] = field(default_factory=list)

    def add(self, item: Output | Gap) -> None:
        """Take one more item."""
        if isinstance(item, Gap):
            self.gaps.append(item)
        else:
            self.parts[item.source].append(item.data)

    def all(self, source: int) -> bytes:
        """Return all bytes of one source."""
        return b"".join(self.parts[source])

    @property
    def size(self) -> int:
        """The number of bytes of all sources."""
        return sum(len(data) for parts in self.parts.values() for data in parts)


async def read_for(running: Exec, into: Read, seconds: float) -> None:
    """Read a command's output for some time, or to its end. Raises what ``output`` raises."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            async for item in running.output():
                into.add(item)


async def read_all(running: Exec, into: Read) -> None:
    """Read to the end."""
    async for item in running.output():
        into.add(item)


def written(count: int) -> dict[int, bytes]:
    """Return what lines.py writes."""
    program: dict[str, Any] = {"__name__": "lines"}
    exec(program_text("lines.py"), program)  # noqa: S102 (our own program, to have its text once)
    line: Callable[[int], bytes] = program["line"]
    to_error: Callable[[int], bool] = program["to_error"]
    return {
        source: b"".join(line(n) for n in range(count) if to_error(n) == (source == STDERR))
        for source in (STDOUT, STDERR)
    }


def difference(seen: bytes, expected: bytes) -> str:
    """Say where two runs of bytes differ; nothing if they do not."""
    if seen == expected:
        return ""
    at = next(
        (n for n, (a, b) in enumerate(zip(seen, expected, strict=False)) if a != b),
        min(len(seen), len(expected)),
    )
    return f"{len(seen)} bytes of {len(expected)}, other from byte {at} on"


async def run(lab: Laboratory) -> list[Check]:
    """Do all of it, in one machine after the other."""
    checks = []
    for part in (_across_freezes, _client_lost, _input, _holding, _rounds, _churn):
        machine = await lab.machine("streams")
        checks += await part(lab, machine)
        for each in list(lab.host.machines.values()):
            await lab.host.end(each)
    return checks


# A stream, and freezes under it


async def _across_freezes(lab: Laboratory, machine: Machine) -> list[Check]:
    expected = written(LINES)
    program = await put_program(machine, "lines.py")
    running = await machine.agent.start(Command([*program, str(LINES), "0.05"]))
    pid = running.pid
    read = Read()
    stopped = kept = 0
    for n in range(2 * FREEZES):
        await read_for(running, read, 0.2)
        if n % 2:
            # A checkpoint: the machine runs on, and so does the stream, nobody attaches.
            reading = asyncio.create_task(read_for(running, read, 1.0))
            frozen = await lab.host.freeze(machine, Wanted("run"))
            await reading
            await lab.host.remove(frozen.manifest.id)
            kept += running.exit is None
        else:
            machine = (await pause(lab.host, machine)).machine
            stopped += running.exit is None
            await running.attach(machine.agent.channel)
    await read_all(running, read)
    lab.keep("streams/stdout", read.all(STDOUT))
    lab.keep("streams/stderr", read.all(STDERR))
    wrong = [difference(read.all(source), expected[source]) for source in (STDOUT, STDERR)]
    right = not any(wrong) and not read.gaps and running.pid == pid
    return [
        Check(
            "streams-across-freezes",
            right and stopped >= FREEZES and kept >= FREEZES,
            f"{LINES} lines, stdout and stderr interleaved, through {FREEZES} pauses and {FREEZES} "
            "checkpoints: every byte once and in order",
            f"{read.size} bytes, {read.all(STDOUT).count(10) + read.all(STDERR).count(10)} lines, "
            f"{stopped} pauses and {kept} checkpoints while it wrote"
            + "".join(f"; {each}" for each in wrong if each),
        )
    ]


# A client that goes


async def _client_lost(_lab: Laboratory, machine: Machine) -> list[Check]:
    count = 6000
    expected = written(count)
    program = await put_program(machine, "lines.py")
    started = await machine.agent.start(Command([*program, str(count), "0.16"]))
    first = Read()
    await read_for(started, first, 1.0)
    before = started.received
    await machine.agent.channel.close()
    await asyncio.sleep(AWAY)
    await machine.attach(ATTACH_LIMIT)
    found = next(each for each in await machine.agent.commands() if each.id == started.id)
    while_away = found.end - before
    # The client itself comes back; another one, that knows nothing but the id, wants all of it.
    other = await machine.agent.attach(started.id, seq=0)
    await started.attach(machine.agent.channel)
    replayed = Read()
    await asyncio.gather(read_all(started, first), read_all(other, replayed))
    late = Read()
    after = await machine.agent.attach(started.id, seq=other.received - 1000)
    await read_all(after, late)
    wrong = [
        difference(read.all(source), expected[source])
        for read in (first, replayed)
        for source in (STDOUT, STDERR)
    ]
    return [
        Check(
            "streams-client-lost",
            not any(wrong) and while_away > 0 and late.size == 1000 and started.exit == other.exit,
            f"a command without a client for {AWAY:g} s writes on; its client goes on where it "
            "was, another one replays all of it from byte 0, both byte for byte",
            f"{while_away} bytes written meanwhile, {first.size} and {replayed.size} bytes in all"
            + "".join(f"; {each}" for each in wrong if each),
        )
    ]


# Input


async def _input(lab: Laboratory, machine: Machine) -> list[Check]:
    data = random.randbytes(INPUT)  # noqa: S311 (bytes to be told apart, not secrets)
    # It reads nothing at first, so that there is input on its way everywhere.
    reader = "sleep 1; tee fed | sha256sum"
    running = await machine.agent.start(Command(["/bin/sh", "-c", reader], stdin=True))
    feeding = asyncio.create_task(_feed(running, data))
    freezes = 0
    while not feeding.done():
        await asyncio.sleep(0.3)
        freezes += running.written < len(data)
        machine = (await pause(lab.host, machine)).machine
        await running.attach(machine.agent.channel)
    await feeding
    out, _ = await running.collect()
    said = out.decode().partition(" ")[0]
    return [
        Check(
            "streams-input",
            said == hashlib.sha256(data).hexdigest() and freezes > 1,
            f"{len(data)} bytes fed to sha256sum through pauses: the hash is right",
            f"{said[:16]} of {hashlib.sha256(data).hexdigest()[:16]}, {freezes} pauses under way",
        )
    ]


async def _feed(running: Exec, data: bytes) -> None:
    while running.written < len(data):
        try:
            await running.write(data[running.written :][:200_000])
            await asyncio.sleep(0.05)
        except GuestError:
            raise
        except VmError:  # the machine is frozen; what was accepted is sent again
            await asyncio.sleep(0.02)
    await running.close_stdin()


# Clients that are slow


async def _holding(_lab: Laboratory, machine: Machine) -> list[Check]:
    agent = machine.agent
    large = b"".join(b"%d\n" % n for n in range(1, LAST + 1))
    running = await agent.start(Command(["/bin/sh", "-c", f"seq {LAST}; touch /srv/done"]))
    read = Read()
    async for item in running.output():
        read.add(item)
        break
    await asyncio.sleep(2.0)
    waited = await agent.stat("/srv/done") is None
    await read_all(running, read)
    slow = difference(read.all(STDOUT), large)

    command = Command(["/bin/sh", "-c", f"read go; seq {LAST}"], stdin=True)
    running = await agent.start(command)
    follower = await agent.attach(running.id, hold=False)
    await running.write(b"go\n")
    running.detach()
    await asyncio.sleep(0.5)
    position, missed, wrong = 0, 0, ""
    async for each in follower.output():
        if isinstance(each, Gap):
            missed += each.end - each.start
            wrong = wrong or ("" if each.start == position else f"a gap from {each.start} on")
            position = each.end
        else:
            expected = large[position : position + len(each.data)]
            if each.seq != position or each.data != expected:
                wrong = wrong or f"other bytes at {each.seq}"
            position = each.seq + len(each.data)
        await asyncio.sleep(0.02)
    return [
        Check(
            "streams-slow-client",
            waited and not slow and not read.gaps,
            f"a command with {len(large)} bytes to write waits for a client that does not read "
            "for 2 s; nothing is lost",
            ("it waited" if waited else "it did not wait") + f"; {slow or 'all bytes read'}",
        ),
        Check(
            "streams-gap-told",
            position == len(large) and missed > 0 and not wrong,
            "a client that does not hold the command is told which bytes it missed; the others "
            "are right",
            wrong or f"{missed} of {position} bytes missed and told",
        ),
    ]


# Clients that come and go (a re-attached stream must not stall)


async def _rounds(lab: Laboratory, machine: Machine) -> list[Check]:
    program = await put_program(machine, "responder.py")
    running = await machine.agent.start(Command(program, stdin=True))
    answered = 0
    for n in range(ROUNDS):
        found = next(each for each in await machine.agent.commands() if each.id == running.id)
        client = await machine.agent.attach(running.id, seq=found.end)
        await client.write(b"round-%d\n" % n)
        replies = b""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STALLED):
                async for item in client.output():
                    assert isinstance(item, Output)
                    replies += item.data
                    if replies.count(b"\n") == 4:
                        break
        short = [b"round-%d %d" % (n, each) for each in range(3)]
        answered += replies.splitlines() == [b"x" * 8191, *short]
        # The client is dropped, not closed.
        machine = (await pause(lab.host, machine)).machine
    return [
        Check(
            "streams-rounds",
            answered == ROUNDS,
            f"{ROUNDS} rounds of attach, request, four replies, client dropped, pause: no stall",
            f"{answered} rounds with all replies",
        )
    ]


# Freezes under a storm of commands


async def _churn(lab: Laboratory, machine: Machine) -> list[Check]:
    current = machine
    count = 0
    bad: list[str] = []

    async def churn(word: str) -> None:
        nonlocal count
        while True:
            try:
                result = await current.agent.run("/bin/echo", word)
                if result.stdout.decode() != f"{word}\n":
                    bad.append(f"echo {word} wrote {result.stdout!r}")
                count += 1
            except GuestError as error:
                bad.append(str(error))
            except VmError:  # frozen under it
                await asyncio.sleep(0.02)

    async def once() -> float:
        began = time.monotonic()
        async with asyncio.timeout(STALLED):
            await current.agent.run("/bin/true")
        return time.monotonic() - began

    async with _in_background([churn(f"word-{n}") for n in range(CHURNERS)]):
        times = []
        usual = max([await once() for _ in range(CHURN_FREEZES)])
        for n in range(CHURN_FREEZES):
            await asyncio.sleep(0.5)
            if n % 2:
                frozen = await lab.host.freeze(current, Wanted("run"))
                await lab.host.remove(frozen.manifest.id)
            else:
                current = (await pause(lab.host, current)).machine
            times.append(await once())
    return [
        Check(
            "streams-churn",
            max(times) < FIRST_EXEC_LIMIT + SLOWER * usual and not bad and count > 0,
            f"{CHURN_FREEZES} freezes while {CHURNERS} clients start commands without a rest: a "
            f"command after each within {FIRST_EXEC_LIMIT:g} s and {SLOWER} times of the slowest "
            "without a freeze",
            f"{count} commands; the slowest of {len(times)} after {max(times):.2f} s, without a "
            f"freeze {usual:.2f} s" + "".join(f"; {each}" for each in bad[:3]),
        )
    ]


@asynccontextmanager
async def _in_background(work: list[Coroutine[Any, Any, None]]) -> AsyncIterator[None]:
    """Let work without an end go on during the block; its failure is the block's."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(each) for each in work]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()


EXPERIMENT = Experiment(
    "streams",
    "Commands write and read all the time while their machine is frozen, thawed and kept, and "
    "their clients come and go; every byte must arrive once and in order.",
    run,
)
