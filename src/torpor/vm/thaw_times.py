"""How long a thaw took, step by step."""

from collections.abc import Sequence
from dataclasses import dataclass

from torpor.vm.hooks import HookResult


@dataclass(frozen=True)
class ThawTimes:
    """How long the steps of a thaw took, in seconds.

    ``launch``: QEMU starts and its monitor answers. ``pages``: those that differ from the base are
    written. ``devices``: their state is loaded, the vCPUs start. ``wake``: up to the guest agent's
    word that all is right and the user's processes run, and its hooks with them. ``ready_at`` is
    that moment, on :func:`time.monotonic`. ``hooks`` is what became of those.
    """

    launch: float
    pages: float
    devices: float
    wake: float
    ready_at: float
    hooks: tuple[HookResult, ...] = ()

    @classmethod
    def between(cls, moments: Sequence[float], hooks: tuple[HookResult, ...]) -> "ThawTimes":
        """Return the times of a thaw from its moments, on :func:`time.monotonic`: it began, QEMU
        was there, the pages were, the vCPUs ran, it was ready."""
        began, launched, injected, running, ready = moments
        return cls(
            launch=launched - began,
            pages=injected - launched,
            devices=running - injected,
            wake=ready - running,
            ready_at=ready,
            hooks=hooks,
        )
