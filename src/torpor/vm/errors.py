"""What can go wrong with machines and snapshots.

Each error says what happened, what state things are in now, and what to do, in this order.
"""

import errno


class VmError(Exception):
    """The root of this package's errors."""

    def __init__(self, happened: str, *, state: str = "", todo: str = "") -> None:
        super().__init__(" ".join(part for part in (happened, state, todo) if part))
        self.happened = happened
        self.state = state
        self.todo = todo


class HostError(VmError):
    """This host cannot run machines as asked: a program, a right, memory or disk is missing."""


class LaunchError(VmError):
    """QEMU did not come up, or the guest did not report."""


class SilentError(LaunchError):
    """A machine was started and runs, but its agent is silent. ``console`` has its last lines."""

    def __init__(self, happened: str, *, console: str = "", **rest: str) -> None:
        super().__init__(_with_console(happened, console), **rest)
        self.console = console


class MachineDiedError(VmError):
    """A machine's process ended without being asked to. ``console`` has its last lines.

    ``cause`` says why in a word (``power-off``, ``panic``, ``reboot``, ``signal``, ``crash``; empty
    if it was ended by us), ``summary`` is the sentence without the console. ``snapshot`` is the
    files-only snapshot in which its disk was kept.
    """

    def __init__(
        self,
        happened: str,
        *,
        console: str = "",
        cause: str = "",
        snapshot: str | None = None,
        **rest: str,
    ) -> None:
        super().__init__(_with_console(happened, console), **rest)
        self.summary = happened
        self.console = console
        self.cause = cause
        self.snapshot = snapshot


class ChannelLostError(VmError):
    """The guest channel ended while a request or a stream was open; the machine may be well."""


class UnansweredError(ChannelLostError):
    """The guest agent took longer over a request than it may; whether it was done is not known."""


class RebootedError(ChannelLostError):
    """The machine was rebooted from inside: it goes on from its disk, its commands do not."""


class HeldError(VmError):
    """The machine is held, because the host's disk is full; it goes on by itself when there is
    space. What was under way may still be done then."""


class GuestError(VmError):
    """The guest agent refused a request; ``code`` is an errno's name or the refusal's."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{message} ({code})")
        self.code = code
        self.message = message


class FreezeError(VmError):
    """A freeze failed; the machine runs on as before, and no snapshot was made."""


class SnapshotError(VmError):
    """A snapshot is unknown, damaged, of another version or unfit for this host."""


def _with_console(happened: str, console: str) -> str:
    return f"{happened}\nThe console's last lines:\n{console}" if console else happened


def told(error: Exception) -> str:
    """Return in a sentence what an error of the system or of this package says."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}: {error.filename}." if error.filename else f"{error.strerror}."
    return str(error) or "It took too long."


def disk_is_full(error: BaseException | None) -> bool:
    """Return whether an error came about because the host's disk is full."""
    while error is not None:
        full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
        if full or isinstance(error, HeldError):
            return True
        error = error.__cause__
    return False
