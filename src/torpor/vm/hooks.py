"""Hooks of the guest, as the host asks for them and hears of them (``docs/hooks.md``)."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torpor.vm.answers import broken
from torpor.vm.channel import Channel, plain
from torpor.vm.errors import GuestError

ANSWER_LIMIT = 60.0
"""Seconds that the answer may take beyond the time that the hooks have: for a busy host."""
TAIL = 4096
"""Characters of a hook's output that are taken from the guest."""
MOST = 64
"""Results that are taken from one answer."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class HookLimits:
    """How many seconds one hook and all of a stage may take.

    ``refuse``: whether a freeze is to fail when one of its hooks does; else it goes on.
    """

    each: float = 10.0
    total: float = 30.0
    refuse: bool = False


@dataclass(frozen=True)
class HookResult:
    """What became of one hook. ``output`` is the last of what it wrote, ``duration`` in seconds.

    ``exit`` and ``signal`` are None if it did not end in that way; ``error`` says why it did not
    run, or did not go when it was killed.
    """

    stage: str
    name: str
    exit: int | None
    signal: int | None
    duration: float
    timed_out: bool
    output: str
    error: str | None

    @property
    def ok(self) -> bool:
        """Whether it ran to its end and exited with 0."""
        return self.exit == 0 and not self.timed_out and self.error is None

    def __str__(self) -> str:
        if self.timed_out:
            what = f"was too slow ({self.duration:.1f} s)"
        elif self.error is not None:
            what = f"failed: {self.error}"
        elif self.signal is not None:
            what = f"was ended by signal {self.signal}"
        else:
            what = f"exited with {self.exit}"
        return f"the hook {self.stage}/{self.name} {what}"


@dataclass(frozen=True)
class HookCall:
    """What hooks are told (as ``TORPOR_`` and the name in capitals), and how long they may take."""

    told: Mapping[str, str]
    limits: HookLimits = field(default_factory=HookLimits)

    def wanted(self) -> dict[str, Any]:
        """Return what the agent is asked for."""
        return {
            "each_ms": round(1000 * self.limits.each),
            "total_ms": round(1000 * self.limits.total),
            "env": {f"TORPOR_{name.upper()}": value for name, value in self.told.items()},
        }

    @property
    def answer_limit(self) -> float:
        """Seconds within which the agent must have answered. A hook that cannot be killed is given
        up by the guest after a moment more."""
        return self.limits.total + ANSWER_LIMIT


async def run_stage(channel: Channel, stage: str, call: HookCall) -> tuple[HookResult, ...]:
    """Run the hooks of ``stage``; nothing if there are none, or the agent knows none.

    Raises :exc:`GuestError`, and :exc:`ChannelLostError` if there is no answer.
    """
    wanted = {"stage": stage, "hooks": call.wanted()}
    try:
        answer, _ = await channel.request("hooks.run", wanted, limit=call.answer_limit)
    except GuestError as error:
        if error.code == "ENOSYS":
            return ()
        raise
    results = parse_results(answer.get("hooks"))
    tell(results)
    return results


def parse_results(said: object) -> tuple[HookResult, ...]:
    """Return what the agent said of hooks. Raises :exc:`GuestError` if it has not the form."""
    if not isinstance(said, list) or len(said) > MOST:
        raise broken("hooks")
    return tuple(_parse(each) for each in said)


def _parse(said: object) -> HookResult:
    if not isinstance(said, dict):
        raise broken("hooks")
    error = said.get("error")
    return HookResult(
        stage=plain(said.get("stage"), 32),
        name=plain(said.get("name"), 256),
        exit=_small(said, "exit"),
        signal=_small(said, "signal"),
        duration=(_small(said, "duration_ms") or 0) / 1000,
        timed_out=said.get("timed_out") is True,
        output=plain(said.get("output"), TAIL),
        error=None if error is None else plain(error, 300),
    )


def _small(said: dict[str, Any], name: str) -> int | None:
    number = said.get(name)
    if number is None:
        return None
    if type(number) is not int or not 0 <= number < 1 << 31:
        raise broken(name)
    return number


def tell(results: Sequence[HookResult]) -> None:
    """Log hooks that failed: what they were for goes on without them."""
    for each in results:
        if not each.ok:
            log.warning("%s; it said: %s", each, each.output.strip()[-500:] or "nothing")


def failed(results: Sequence[HookResult]) -> HookResult | None:
    """Return the first hook that failed, if one did."""
    return next((each for each in results if not each.ok), None)
