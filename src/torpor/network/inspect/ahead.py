"""A read that is under way, and that others can wait for too without losing what it brings."""

import asyncio

from torpor.network.inspect.tls import Tls


class Ahead:
    """Reads one end, a piece ahead at most. Stop it before the end is closed."""

    def __init__(self, tls: Tls) -> None:
        self._tls = tls
        self._reading: asyncio.Task[bytes] | None = None

    @property
    def reading(self) -> "asyncio.Task[bytes]":
        """The read that is under way; the next one begins when :meth:`read` has returned what it
        brought."""
        if self._reading is None:
            self._reading = asyncio.create_task(self._tls.read(), name="reading ahead")
        return self._reading

    async def read(self) -> bytes:
        """Return as :meth:`Tls.read`."""
        reading = self.reading
        # Whoever waits may be cancelled; what is read stays for the next.
        await asyncio.wait([reading])
        self._reading = None
        return reading.result()

    async def stop(self) -> None:
        """End the read that is under way, and drop what it brought."""
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)
            self._reading = None
