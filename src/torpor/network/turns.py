"""Turns of machines on the one event loop that serves them all.

The loop calls whatever is ready, in no order that would be fair: a machine with 200 connections
would have 200 times as much of it as one that has one. So each piece of work is asked for here. In
one round of the loop a machine has so many pieces, whatever its connections are; more wait for the
next round. While no other machine works, a round is short, and nobody waits longer than before.
"""

import asyncio
from collections import deque

PIECES = 8
"""Pieces of work of one machine in a round."""
PIECE = 256 << 10
"""Bytes that are moved in one piece."""


class Turns:
    """Counts the rounds of the event loop, while there is work."""

    def __init__(self) -> None:
        self.round = 0
        self.buffer = memoryview(bytearray(PIECE))
        """Where pieces lie while they are moved: nothing in it outlasts a piece."""
        self._waiting: deque[Share] = deque()
        self._counting = False

    def count(self) -> None:
        """See that this round ends."""
        if not self._counting:
            self._counting = True
            asyncio.get_running_loop().call_soon(self._next)

    def wait(self, share: "Share") -> None:
        """Have a share served in the next round."""
        self._waiting.append(share)
        self.count()

    def _next(self) -> None:
        self._counting = False
        self.round += 1
        for _ in range(len(self._waiting)):
            share = self._waiting.popleft()
            if share.serve(self.round):
                self.wait(share)


class Share:
    """One machine's share of the loop."""

    def __init__(self, turns: Turns) -> None:
        self.turns = turns
        self._round = -1
        self._taken = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def turn(self) -> None:
        """Return when it is this machine's turn for one piece of work."""
        turns = self.turns
        if self._round != turns.round:
            self._round, self._taken = turns.round, 0
            turns.count()
        if self._taken < PIECES and not self._waiting:
            self._taken += 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if not self._waiting:
            turns.wait(self)
        self._waiting.append(turn)
        await turn

    def serve(self, number: int) -> bool:
        """Begin a round with those who wait; return whether more of them do."""
        self._round, self._taken = number, 0
        while self._waiting and self._taken < PIECES:
            turn = self._waiting.popleft()
            if not turn.done():  # who waited may have gone
                turn.set_result(None)
                self._taken += 1
        return bool(self._waiting)
