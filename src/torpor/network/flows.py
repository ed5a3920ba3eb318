"""All that one machine has open, TCP and UDP: what is let through lives here, and what a new policy
denies ends here."""

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from dataclasses import replace

from torpor.network.decisions import Telling, decided
from torpor.network.flow import Flow, Spending
from torpor.network.hold import Hold
from torpor.network.limits import Limits
from torpor.network.traffic import Counts
from torpor.network.turns import Share
from torpor.network.verdicts import Destination, Judge, Spoken, Verdict


class Flows:
    """The connections and flows of one machine that live."""

    def __init__(self, limits: Limits, share: Share, hold: Hold, telling: Telling) -> None:
        self.share = share
        self.hold = hold
        self.spending = Spending(limits)
        self.counts = Counts()
        self._telling = telling
        self._open: set[Flow] = set()

    def __iter__(self) -> Iterator[Flow]:
        return iter(tuple(self._open))

    @property
    def limits(self) -> Limits:
        """What the machine may take."""
        return self.spending.limits

    @property
    def connections(self) -> int:
        """How many TCP connections there are."""
        return sum(flow.machine is not None for flow in self._open)

    @contextlib.contextmanager
    def opened(
        self,
        to: Destination,
        verdict: Verdict,
        machine: socket.socket | None = None,
    ) -> Iterator[Flow]:
        """Have a flow live within, served by the task that this is. Its end is told, and that it
        was denied if that was found out on the way."""
        flow = Flow(
            to,
            verdict,
            share=self.share,
            hold=self.hold,
            spending=self.spending,
            count=self.counts.begin(to),
            task=_this_task(),
            machine=machine,
        )
        self._open.add(flow)
        flow.watch()
        try:
            yield flow
        finally:
            self._open.discard(flow)
            self._telling(flow.decision(ended=True))

    def begun(self, flow: Flow) -> None:
        """Tell that a flow has been let through."""
        self._telling(flow.decision(ended=False))

    def denied(self, to: Destination, verdict: Verdict, spoken: Spoken | None = None) -> None:
        """Tell that something was not let through."""
        self._telling(decided(to, verdict, spoken))

    def judge_anew(self, judge: Judge) -> list[Flow]:
        """Cut what a policy denies, and what it would have let through in another way. Returns what
        was cut."""
        cut = []
        for flow in self:
            verdict = _now(flow, judge)
            if not verdict.allowed:
                flow.cut("The policy was changed:", verdict)
            elif verdict.inspect and not flow.inspected and flow.spoken == "tls":
                flow.cut("The policy was changed: TLS to it is now ended at the wall.")
            else:
                flow.verdict = verdict
                continue
            cut.append(flow)
        return cut


def _this_task() -> "asyncio.Task[object]":
    task = asyncio.current_task()
    assert task is not None, "whatever serves a flow is a task"
    return task


def _now(flow: Flow, judge: Judge) -> Verdict:
    """Return what a policy says of a flow with all that is known of it."""
    to = flow.to
    verdict = judge.destination(to)
    how = flow.spoken or ("raw" if flow.anything else None)
    if verdict.allowed and how is not None and to.transport == "tcp":
        verdict = judge.spoken(to, how, flow.said)
    if verdict.allowed and flow.encrypted and judge.heeds(to) and not judge.hidden_names:
        return replace(verdict, allowed=False, why="its TLS hides the name that it says")
    if verdict.allowed and flow.address is not None:
        by_name = replace(to, name=verdict.name) if verdict.name else to
        dialled = judge.dialled(by_name, flow.address)
        if not dialled.allowed:
            return dialled
    return verdict
