"""Why a machine's process ended: told by QEMU as an event, and in a file for whoever comes later.

QEMU emits the event SHUTDOWN with a reason, to whoever is connected then. Its trace points, which
go to a file, say the same to a program that was not there. (``qemu_system_shutdown_request`` is
called for all reasons but a reset under ``-no-reboot``, after which QEMU still goes through an
orderly end: ``softmmu/runstate.c``.)
"""

import re
from enum import Enum
from pathlib import Path

from torpor.vm.console import Console
from torpor.vm.errors import MachineDiedError

LOG_READ = 64 << 10
"""Bytes of QEMU's log, its last ones, that are looked at."""


class Cause(Enum):
    """Why a machine's process went."""

    REBOOT = "reboot"
    POWER_OFF = "power-off"
    PANIC = "panic"
    SIGNAL = "signal"
    CRASH = "crash"


REASONS = {
    "guest-reset": Cause.REBOOT,
    "guest-shutdown": Cause.POWER_OFF,
    "guest-panic": Cause.PANIC,
    "host-signal": Cause.SIGNAL,
}
"""By the reason in the event SHUTDOWN (``qapi/run-state.json``, ShutdownCause)."""
_NUMBERS = {"4": Cause.SIGNAL, "6": Cause.POWER_OFF, "7": Cause.REBOOT, "8": Cause.PANIC}
_REBOOTS = ("reboot: Restarting system", "sysrq: Resetting")
_TRACED = re.compile(r"^(?:\d+@[\d.]+:)?(qemu_system_shutdown_request|vm_state_notify) (.*)$", re.M)


def cause_of(reason: str | None, trace: str, console: str) -> Cause:
    """Return why a process went.

    ``reason`` is that of the event, if one came; ``trace`` what the trace points wrote; ``console``
    what this process's guest printed, which tells of a panic before the driver was there.
    """
    found = REASONS.get(reason) if reason is not None else None
    if found is None:
        found = _traced(trace)
    if found is Cause.REBOOT and _panicked(console):
        return Cause.PANIC
    return found


def _traced(trace: str) -> Cause:
    ended = False
    for point, said in _TRACED.findall(trace):
        if point == "qemu_system_shutdown_request":
            number = said.removeprefix("reason=").strip()
            if number in _NUMBERS:
                return _NUMBERS[number]
        elif "(shutdown)" in said:
            ended = True
    return Cause.REBOOT if ended else Cause.CRASH


def _panicked(console: str) -> bool:
    # A kernel that is told to reboot says so, whatever stood on the console before.
    _, panic, after = console.rpartition("Kernel panic - not syncing")
    return bool(panic) and not any(said in after for said in _REBOOTS)


def read_log(file: Path) -> str:
    """Return the end of what QEMU wrote, or nothing."""
    try:
        with open(file, "rb") as opened:
            opened.seek(0, 2)
            opened.seek(max(0, opened.tell() - LOG_READ))
            return opened.read().decode("utf-8", "replace")
    except FileNotFoundError:
        return ""


def explain_end(
    machine: str, cause: Cause, console: Console, said: str, what: str = ""
) -> MachineDiedError:
    """Return the end of a machine whose process went by itself. ``what`` happened is told in place
    of what follows from the cause, if it is known better."""
    tail = console.tail()
    happened = (
        what
        or {
            Cause.POWER_OFF: f"Machine {machine} was powered off from inside.",
            Cause.REBOOT: f"Machine {machine} was rebooted from inside.",
            Cause.PANIC: f"The kernel of machine {machine} panicked.",
            Cause.SIGNAL: f"Machine {machine} was ended by a signal to its process.",
            Cause.CRASH: f"Machine {machine} died: its process ended without being asked to.",
        }[cause]
    )
    if cause is Cause.PANIC:
        _, panic, after = console.tail(200).rpartition("Kernel panic")
        tail = "\n".join((panic + after).split("\n")[:12]) if panic else tail
    said = said.strip()[-500:]
    state = f"QEMU said: {said}" if said and cause is Cause.CRASH else ""
    return MachineDiedError(happened, console=tail, cause=cause.value, state=state)
