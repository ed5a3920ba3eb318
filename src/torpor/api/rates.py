"""How many requests a token may make: a bucket for each, that fills steadily."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

FORGOTTEN = 10_000
"""Buckets that are kept; the fullest, which say nothing, go first."""


@dataclass(frozen=True)
class Standing:
    """Where somebody stands after a request: whether it is within the limit, how many more are at
    once, and in how many seconds there is one again."""

    allowed: bool
    limit: int
    remaining: int
    reset_seconds: int

    def headers(self) -> dict[str, str]:
        """Return what is told of it in an answer."""
        return {
            "ratelimit-limit": str(self.limit),
            "ratelimit-remaining": str(self.remaining),
            "ratelimit-reset": str(self.reset_seconds),
        }


class Rates:
    """The buckets: ``burst`` requests at once, and ``per_second`` more each second."""

    def __init__(
        self, per_second: float, burst: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._per_second = per_second
        self._burst = burst
        self._clock = clock
        self._buckets: dict[str, tuple[float, float]] = {}

    def take(self, whose: str) -> Standing:
        """Count one request."""
        now = self._clock()
        left, at = self._buckets.get(whose, (float(self._burst), now))
        left = min(float(self._burst), left + (now - at) * self._per_second)
        allowed = left >= 1
        if allowed:
            left -= 1
        self._buckets[whose] = (left, now)
        if len(self._buckets) > FORGOTTEN:
            self._forget(now)
        wait = 0 if left >= 1 else math.ceil((1 - left) / self._per_second)
        return Standing(allowed, self._burst, int(left), wait)

    def _forget(self, now: float) -> None:
        for whose, (left, at) in list(self._buckets.items()):
            if left + (now - at) * self._per_second >= self._burst:
                del self._buckets[whose]
