"""ULIDs that sort as they were made, also after a restart and when the clock was put back.

A ULID (github.com/ulid/spec) is 48 bits of time in milliseconds and 80 random ones, written as 26
letters and digits that sort as the number does. Two of one millisecond would sort at random, so
here the second is the first plus one.
"""

import secrets
import time
from collections.abc import Callable

from ulid import ULID

_RANDOM_BITS = 80


class Ulids:
    """Makes ids, each greater than all that it made before and than ``last``.

    ``last`` is the greatest that is kept anywhere, None if there is none yet. ``clock`` gives
    nanoseconds since 1970. Raises :exc:`ValueError` if ``last`` is no ULID.
    """

    def __init__(self, last: str | None = None, *, clock: Callable[[], int] = time.time_ns) -> None:
        self._last = -1 if last is None else int(ULID.from_str(last))
        self._seen = ""
        self._clock = clock

    def after(self, last: str | None) -> None:
        """Have all ids from now on be greater than ``last`` too, which somebody else has made."""
        if last is not None:
            self._seen = max(self._seen, last)

    def new_id(self) -> str:
        """Return a new ULID. It may be called from any one thread, not from several."""
        if self._seen:
            self._last, self._seen = max(self._last, int(ULID.from_str(self._seen))), ""
        milliseconds = self._clock() // 1_000_000
        fresh = milliseconds << _RANDOM_BITS | secrets.randbits(_RANDOM_BITS)
        same_or_later = self._last >> _RANDOM_BITS >= milliseconds
        self._last = self._last + 1 if same_or_later else fresh
        return str(ULID.from_int(self._last))
