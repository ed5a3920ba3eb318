"""What comes after a machine's process that ended by itself.

A reboot from inside goes on: the machine is started again from its disk. Any other end is the
machine's own, and its disk is kept as a snapshot of files alone.
"""

import time
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable
from typing import TypeVar

from torpor.vm.endings import Cause
from torpor.vm.errors import (
    HostError,
    MachineDiedError,
    RebootedError,
    VmError,
    disk_is_full,
    told,
)
from torpor.vm.launch import Boot
from torpor.vm.machine import Machine
from torpor.vm.manifest import GuestVersions
from torpor.vm.rescue import keep_disks, settle_layers
from torpor.vm.thaw import Site, start_again

REBOOTS, REBOOTS_WITHIN = 5, 60.0
"""A machine that was rebooted so often within so many seconds is not started once more."""

T = TypeVar("T")

Kernels = Callable[[GuestVersions], Boot | None]
"""Finds what boots a machine with these versions, or None if this host has nothing that does."""


class Aftermath:
    """Decides for all machines of a host.

    ``keep_disks`` says whether disks are kept; ``kept`` is called with each snapshot that was made.
    """

    def __init__(
        self, site: Site, kernels: Kernels | None, keep_disks: bool, kept: Callable[[str], None]
    ) -> None:
        self._site = site
        self._kernels = kernels
        self._keep_disks = keep_disks
        self._kept = kept
        self._rebooted: defaultdict[str, deque[float]] = defaultdict(lambda: deque(maxlen=REBOOTS))

    async def decide(
        self, machine: Machine, cause: Cause, reason: MachineDiedError, *, wait: bool = True
    ) -> VmError | None:
        """Start ``machine`` again if it was rebooted, and return None; else keep its disk and
        return its end, which is ``reason`` and what became of the disk.

        If the host's disk is full this waits for space, or without ``wait`` raises
        :exc:`HostError`."""
        ending = machine.record.ending
        if ending is not None and ending in self._site.store.ids():
            return reason  # all of it is in that snapshot
        why_not = ""
        if cause is Cause.REBOOT:
            why_not = await self._reboot(machine, wait)
            if not why_not:
                return None
        state = await self._keep(machine, cause, wait) if self._keep_disks else ("", None)
        self._rebooted.pop(machine.id, None)
        return MachineDiedError(
            " ".join(filter(None, (reason.summary, why_not))),
            console=reason.console,
            cause=reason.cause,
            snapshot=state[1],
            state=" ".join(filter(None, (reason.state, state[0]))),
            todo="Boot that snapshot to go on from its files." if state[1] else "",
        )

    async def _reboot(self, machine: Machine, wait: bool) -> str:
        """Start a machine again; return why it could not be, or nothing."""
        times = self._rebooted[machine.id]
        if len(times) == REBOOTS and time.monotonic() - times[0] < REBOOTS_WITHIN:
            return (
                f"It had been rebooted {REBOOTS} times within {REBOOTS_WITHIN:g} s before that, and"
                " was not started again."
            )
        times.append(time.monotonic())
        guest = machine.record.guest
        kernel = self._kernels(guest) if self._kernels is not None else None
        if kernel is None:
            return f"It was not started again: there is no kernel {guest.kernel} here to boot it."
        rebooted = RebootedError(
            f"Machine {machine.id} was rebooted from inside.",
            state="It goes on from its disk; its commands ended with it.",
            todo="Attach to it again, and start what is to run.",
        )
        try:
            async with machine.rebooting(rebooted):
                await _with_space(machine, wait, lambda: settle_layers(self._site.store, machine))
                await _with_space(machine, wait, lambda: start_again(self._site, machine, kernel))
        except _NoSpaceError:
            raise
        except (VmError, OSError, TimeoutError) as error:
            return f"It could not be started again: {told(error)}"
        return ""

    async def _keep(self, machine: Machine, cause: Cause, wait: bool) -> tuple[str, str | None]:
        try:
            made = await _with_space(
                machine, wait, lambda: keep_disks(self._site.store, machine, cause.value)
            )
        except _NoSpaceError:
            raise
        except (VmError, OSError) as error:
            return f"Its disk could not be kept: {told(error)}", None
        self._kept(made.id)
        return f"Its disk is kept as snapshot {made.id} (files only).", made.id


class _NoSpaceError(HostError):
    """There is no space for what must be done before a host is opened."""


async def _with_space(machine: Machine, wait: bool, do: Callable[[], Awaitable[T]]) -> T:
    """Do something with a machine that has no process; if the disk is full, when it is not."""
    while True:
        try:
            return await do()
        except (VmError, OSError) as error:
            if not disk_is_full(error):
                raise
            if not wait:
                raise _NoSpaceError(
                    f"The host's disk is full, and machine {machine.id}, which has ended, must be"
                    " seen to.",
                    state="Its disk is as it was.",
                    todo="Make space, then try again.",
                ) from error
        await machine.release.wait_for_space()
