"""No process ever sees a stale clock after a thaw, and the monotonic clock never goes back."""

import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial

from torpor.lab.check import Check, Experiment
from torpor.lab.laboratory import Laboratory
from torpor.lab.pauses import pause
from torpor.lab.probes import ask, read_lines, start_probe, until
from torpor.vm import Host, Identity, Machine

DIRECTORY = "/srv/lab/clock"
LIMIT_MS = 50.0
HOUR_NS = 3_600_000_000_000
MOVES = {
    "and nobody set it": 0,
    "and was set 3 days ahead": 72 * HOUR_NS,
    "and was set back by 2 hours": -2 * HOUR_NS,
    "and nobody set it, again": 0,
}
"""What happens to the host's clock during each pause, in ns."""
PAUSE = 0.5
TOLERANCE_NS = 2_000_000
"""How well a reading and the difference of two clocks must fit: readings are no exact instants."""


@dataclass
class MovableClock:
    """The host's wall clock, as it would be if somebody had set it."""

    moved_ns: int = 0

    def __call__(self) -> int:
        return time.time_ns() + self.moved_ns


@dataclass(frozen=True)
class Error:
    """How far the guest's wall clock is from the host's, in ns, and how well that is known."""

    ns: int
    give_or_take_ns: int

    @property
    def at_most_ms(self) -> float:
        """The greatest that the error can be, in ms."""
        return (abs(self.ns) + self.give_or_take_ns) / 1e6


@dataclass(frozen=True)
class Stamps:
    """What the probe saw of one setting of the wall clock; readings as in ``clock.py``, in ns.

    ``old`` is the last reading of the old time, ``new`` the first of the new; the differences are
    wall clock less monotonic clock, before and after.
    """

    old: tuple[int, int, int]
    new: tuple[int, int, int]
    old_difference: int
    new_difference: int

    @property
    def last_old_at(self) -> int:
        """When the last old timestamp was taken, on the monotonic clock.

        Not ``before`` or ``after``: the freeze may come between one of them and the wall clock.
        """
        return self.old[1] - self.old_difference

    @property
    def first_new_at(self) -> int:
        """When the first new timestamp was taken, on the monotonic clock."""
        return self.new[1] - self.new_difference

    def fits_new(self) -> bool:
        """Whether the first timestamp is of the time that went on, not of one between."""
        before, wall, after = self.new
        lowest, highest = self.new_difference + before, self.new_difference + after
        return lowest - TOLERANCE_NS <= wall <= highest + TOLERANCE_NS


@dataclass
class Seen:
    """What came of all pauses."""

    errors: dict[str, Error] = field(default_factory=dict)
    stale: list[str] = field(default_factory=list)
    settings: list[str] = field(default_factory=list)


async def run(lab: Laboratory) -> list[Check]:
    """Let a process read the clocks without end while the host's clock is moved."""
    clock, seen = MovableClock(), Seen()
    async with _host(lab, clock) as host:
        machine = await host.thaw(lab.golden, Identity.of("clock"))
        probe = await start_probe(machine, "clock.py", DIRECTORY)
        await ask(machine, probe)
        for number, (what, move) in enumerate(MOVES.items(), 1):
            known = len(await read_lines(machine, f"{DIRECTORY}/jumps"))
            clock.moved_ns += move
            machine = (await pause(host, machine, PAUSE)).machine
            found = await until(partial(_jumps, machine, known), "a new time")
            error = await measure(machine, clock)
            seen.errors[what] = error
            # The agent spoke for the first time before it set the clock: whoever read the old
            # time after that was running too early.
            woken = machine.agent.welcome.mono_ns
            right = len(found) == 1 and found[0].last_old_at < woken < found[0].first_new_at
            if not right:
                seen.stale.append(f"pause {number}: {found}, the agent spoke at {woken}")
            if not found[0].fits_new():
                seen.settings.append(f"pause {number}: {found[0]}")
        answer = await ask(machine, probe)
        lab.keep("clock/jumps.jsonl", await machine.agent.read_file(f"{DIRECTORY}/jumps"))
    lab.keep("clock/errors.json", json.dumps({k: vars(v) for k, v in seen.errors.items()}))
    return _checks(seen, answer["turns"], answer["backwards"])


def _checks(seen: Seen, turns: int, backwards: list[list[int]]) -> list[Check]:
    checks = [
        Check(
            "clock-monotonic",
            turns > 0 and not backwards,
            f"the monotonic clock never goes back, over {len(MOVES)} pauses and from CPU to CPU",
            f"{turns} times read, {len(backwards)} times back"
            + (f": {backwards[0]}" if backwards else ""),
        ),
        Check(
            "clock-first-timestamp",
            not seen.stale and not seen.settings,
            "the first timestamp that a process takes after a thaw is of the new time",
            "; ".join(seen.stale + seen.settings) or f"so after {len(seen.errors)} thaws",
        ),
    ]
    for number, (what, error) in enumerate(seen.errors.items(), 1):
        checks.append(
            Check(
                f"clock-right-{number}",
                error.at_most_ms <= LIMIT_MS,
                f"that time is within {LIMIT_MS:.0f} ms of the host's, whose clock went on {what}",
                f"{error.ns / 1e6:+.1f} ms, give or take {error.give_or_take_ns / 1e6:.1f}",
            )
        )
    return checks


async def measure(machine: Machine, clock: Callable[[], int], rounds: int = 10) -> Error:
    """Compare the guest's wall clock with ``clock`` as NTP does: the quickest answer of some.

    The guest's clock was read between question and answer, so whatever the way took, the error is
    known to half of the round trip.
    """
    best: Error | None = None
    for _ in range(rounds):
        asked = clock()
        wall_ns = int((await machine.agent.status())["wall_ns"])
        answered = clock()
        error = Error(wall_ns - (asked + answered) // 2, (answered - asked + 1) // 2)
        if best is None or error.give_or_take_ns < best.give_or_take_ns:
            best = error
    assert best is not None
    return best


async def _jumps(machine: Machine, known: int) -> list[Stamps] | None:
    lines = (await read_lines(machine, f"{DIRECTORY}/jumps"))[known:]
    return [Stamps(**json.loads(line)) for line in lines] or None


@asynccontextmanager
async def _host(lab: Laboratory, clock: Callable[[], int]) -> AsyncIterator[Host]:
    """Open a host whose machines are given ``clock``, inside the laboratory's directory."""
    maker = lab.maker
    home = lab.host.home / "movable-clock"
    host = await maker.open_host(home, clock=clock)
    try:
        yield host
    finally:
        for machine in list(host.machines.values()):
            await host.end(machine)
        await host.close()


EXPERIMENT = Experiment(
    "clock",
    "A process reads the clocks without end through pauses during which the host's clock is "
    "moved; the very first timestamp after each thaw must be right.",
    run,
)
