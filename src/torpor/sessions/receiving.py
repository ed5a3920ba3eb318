"""The parts of uploads as they are received: whole, checked, and on the disk before it is said."""

import asyncio
from collections.abc import AsyncIterable
from datetime import timedelta

from torpor.sessions.carrying import Carrying
from torpor.sessions.errors import ConflictError, InvalidError, NotFoundError
from torpor.sessions.model import SYSTEM, now
from torpor.sessions.parts import check_length, check_number
from torpor.sessions.staging import Incoming, Staging, part_name
from torpor.sessions.use import Uses
from torpor.store import transfers as table
from torpor.store.database import Database
from torpor.store.records import Part, Transfer

AT_ONCE = 64
"""Parts that are received at the same time, of all transfers; the others wait."""
EXPIRED = "It has expired: it was not completed in time."


class Receiving:
    """Receives parts. ``keep`` is how long an upload may stand still."""

    def __init__(
        self,
        database: Database,
        uses: Uses,
        staging: Staging,
        carrying: Carrying,
        keep: timedelta,
    ) -> None:
        self._database = database
        self._uses = uses
        self._staging = staging
        self._carrying = carrying
        self._keep = keep
        self._under_way: set[tuple[str, int]] = set()
        self._at_once = asyncio.Semaphore(AT_ONCE)

    async def find(self, session: str, transfer: str) -> Transfer:
        """Return a transfer of a session. Raises :exc:`NotFoundError`, and :exc:`ConflictError` if
        that is on another host."""
        async with self._database.read() as conn:
            found = await table.get(conn, transfer)
        if found is None or found.session != session:
            raise NotFoundError(f"Session {session} has no transfer {transfer}.")
        await self._uses.check_own(session)
        return found

    async def in_time(self, session: str, transfer: str) -> Transfer:
        """Return a transfer, which is given up if its time is over. Raises as :meth:`find`."""
        found = await self.find(session, transfer)
        if found.status == "pending" and found.expires_at <= now():
            await self._carrying.give_up(found, SYSTEM, EXPIRED)
            found = await self.find(session, transfer)
        return found

    async def pending(self, session: str, transfer: str) -> Transfer:
        """Return a transfer that takes parts. Raises :exc:`NotFoundError` and
        :exc:`ConflictError`."""
        found = await self.in_time(session, transfer)
        if found.status != "pending":
            raise not_pending(found)
        return found

    async def check(self, session: str, transfer: str, numbers: list[int]) -> Transfer:
        """Return a transfer that takes the parts of these numbers. Raises as :meth:`put`."""
        found = await self.pending(session, transfer)
        for number in numbers:
            check_number(found, number)
        return found

    async def put(
        self, session: str, transfer: str, number: int, length: int, pieces: AsyncIterable[bytes]
    ) -> Part:
        """Receive a part, which is to have ``length`` bytes; one that has come takes the place of
        the one before. Nothing is kept of one that breaks off.

        Raises :exc:`NotFoundError`, :exc:`InvalidError`, and :exc:`ConflictError` if the transfer
        takes no parts, or is receiving this one.
        """
        async with self._at_once:
            found = await self.pending(session, transfer)
            check_length(found, number, length)
            this = transfer, number
            if this in self._under_way:
                raise ConflictError(
                    f"Part {number} of transfer {transfer} is being received already.",
                    state="Nothing of this one was taken.",
                    todo="Wait for the other one to end.",
                )
            self._under_way.add(this)
            try:
                return await self._receive(found, number, length, pieces)
            except FileNotFoundError:  # what there was of it is removed when it ends
                raise not_pending(await self.find(session, transfer)) from None
            finally:
                self._under_way.discard(this)

    async def _receive(
        self, transfer: Transfer, number: int, length: int, pieces: AsyncIterable[bytes]
    ) -> Part:
        async with self._staging.receive(transfer.id) as incoming:
            async for piece in pieces:
                await incoming.write(piece)
                if incoming.size > length:
                    break
            if incoming.size != length:
                raise InvalidError(
                    f"Part {number} was announced with {length} bytes, and another number came.",
                    state="Nothing of it was kept.",
                    todo="Send it again.",
                )
            return await self._note(transfer, number, incoming)

    async def _note(self, transfer: Transfer, number: int, incoming: Incoming) -> Part:
        await incoming.keep(lambda: f"{number}-{incoming.sha256}")
        part = Part(transfer.id, number, incoming.size, incoming.sha256)
        try:
            async with self._database.write() as conn:
                expires = now() + self._keep
                await table.update(conn, transfer.id, ["pending"], expires_at=expires)
                earlier = await table.put_part(conn, part)
        except KeyError:
            found = await self.find(transfer.session, transfer.id)
            await self._drop_others(found)
            raise not_pending(found) from None
        if earlier is not None and part_name(earlier) != part_name(part):
            await self._staging.drop(transfer.id, part_name(earlier))
        return part

    async def _drop_others(self, transfer: Transfer) -> None:
        """Remove the files of a transfer that are none of its parts."""
        async with self._database.read() as conn:
            parts = await table.parts(conn, transfer.id)
        await self._staging.keep_only(transfer.id, {part_name(part) for part in parts})


def not_pending(transfer: Transfer) -> ConflictError:
    """Return the error for a transfer that takes no parts, or cannot be committed."""
    if transfer.status == "failed":
        return ConflictError(
            f"Transfer {transfer.id} has failed: {transfer.error}",
            state="Nothing is left of it.",
            todo="Begin a new one.",
        )
    return ConflictError(
        f"Transfer {transfer.id} takes no parts: it is a {transfer.direction}, and"
        f" {transfer.status}.",
        state="It stands as before.",
    )
