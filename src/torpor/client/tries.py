"""When a request is sent again, and how long is waited before."""

import random
from dataclasses import dataclass
from typing import Any

from torpor.client.call import Answer, Call
from torpor.client.errors import (
    ApiError,
    ClientError,
    TimedOutError,
    UnreachableError,
    UntrustedError,
    api_error,
)

FIRST_PAUSE = 0.1
LONGEST_PAUSE = 2.0


@dataclass(frozen=True)
class Patience:
    """``tries`` in all for one call, and ``longest``: the seconds that a server may have a client
    wait for its next one (``Retry-After``); if it asks for more, its refusal is told at once."""

    tries: int = 4
    longest: float = 5.0


class Tries:
    """The tries of one call.

    What was refused before it was looked at (429) and what was never sent may be sent again,
    whatever it is; what may have been done (503: a machine that does not answer) only if the call
    can take that. No room is news that a user is to have at once.
    """

    def __init__(self, call: Call[Any], patience: Patience) -> None:
        self._call, self._patience = call, patience
        self._made = 0
        self._lost = False

    def after_answer(self, answer: Answer) -> float | None:
        """Return how many seconds to wait before the next try, None if this is the answer."""
        if answer.status not in (429, 503) or not self._more():
            return None
        error = api_error(answer.status, answer.body, answer.headers)
        if answer.status == 503 and (
            self._call.repeat != "always" or error.retry_after is None or error.id == "no_room"
        ):
            return None
        wait = error.retry_after if error.retry_after is not None else self._pause()
        return max(wait, FIRST_PAUSE) if wait <= self._patience.longest else None

    def after_loss(self, error: UnreachableError) -> float | None:
        """Return how many seconds to wait before the next try, None if there is none."""
        self._lost = self._lost or error.sent
        if isinstance(error, (TimedOutError, UntrustedError)) or (
            error.sent and self._call.repeat != "always"
        ):
            return None
        return self._pause() if self._more() else None

    def is_done(self, answer: Answer) -> bool:
        """Whether what was asked for was done by a try whose answer was lost."""
        return self._call.gone_is_done and self._lost and answer.status == 404

    def _more(self) -> bool:
        self._made += 1
        return self._call.repeatable and self._made < self._patience.tries

    def _pause(self) -> float:
        return pause_before(self._made)


class Outage:
    """How long a lost stream is looked for: ``patience`` seconds, for ever if None."""

    def __init__(self, patience: float | None) -> None:
        self._patience = patience
        self._attempts = 0
        self._since: float | None = None

    def wait(self, now: float) -> float | None:
        """Return how many seconds to wait before the next attempt, None if it is over. ``now`` is
        a monotonic clock's."""
        self._since = now if self._since is None else self._since
        if self._patience is not None and now - self._since >= self._patience:
            return None
        self._attempts += 1
        return pause_before(self._attempts)

    def found(self) -> None:
        """There it is again; the next loss is another one."""
        self._attempts, self._since = 0, None


def passes(error: ClientError) -> bool:
    """Whether what kept a stream from being opened may be over soon."""
    if isinstance(error, ApiError):
        return error.status in (429, 502, 503, 504)
    return isinstance(error, UnreachableError) and not isinstance(error, UntrustedError)


def pause_before(attempt: int) -> float:
    """Return the seconds to wait before the next attempt after ``attempt`` of them: each time
    twice as long, up to a limit, and never the same for two clients."""
    longest = min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** min(attempt - 1, 10))
    return longest * random.uniform(0.5, 1.0)  # noqa: S311 (nothing to guess)
