"""Transfers: large files and archives, received or fetched by way of the server's disk.

    upload:    pending --commit--> in_progress --> completed or failed
    download:  in_progress --> completed or failed

Each step is written down before it is acknowledged, so that a client that was killed asks how far
it was and goes on, and a server that was killed goes on by itself.
"""

import secrets
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path

from torpor.sessions.carrying import Carrying
from torpor.sessions.errors import ConflictError, InvalidError, NoSpaceError
from torpor.sessions.events import Events
from torpor.sessions.model import SYSTEM, Actor, Key, now
from torpor.sessions.operations import Operations
from torpor.sessions.parts import check_whole, part_size_for, too_large
from torpor.sessions.receiving import EXPIRED, Receiving, not_pending
from torpor.sessions.staging import Staging, part_name
from torpor.sessions.standing import GONE, check_there, no_session
from torpor.sessions.tasks import Tasks
from torpor.sessions.use import Uses
from torpor.sessions.workspace_paths import encoded
from torpor.store import operations as operations_table
from torpor.store import sessions as sessions_table
from torpor.store import transfers as table
from torpor.store.database import Database, Transaction
from torpor.store.records import Direction, Status, Transfer

MOST_OPEN = 1000
"""Transfers of one session that have not ended."""
REMEMBERED = timedelta(days=7)
"""How long a transfer that has ended and expired can still be asked for."""


@dataclass(frozen=True)
class TransferLimits:
    """What transfers may take: ``directory`` is where they lie meanwhile, ``most`` how many bytes
    one may have, ``keep`` how long one may stand still, and how long its result is kept."""

    directory: Path
    most: int = 50 << 30
    keep: timedelta = timedelta(hours=24)


@dataclass(frozen=True)
class NewTransfer:
    """What is to be transferred. ``path`` is where in the machine; ``size``, in bytes, and
    ``sha256``, in small hexadecimal digits, are those of an upload, if they are known."""

    direction: Direction
    path: bytes
    archive: bool = False
    size: int | None = None
    sha256: str | None = None


@dataclass(frozen=True)
class Progress:
    """How far a transfer is: its record, the numbers of the parts that have come, and whether there
    is something to be fetched."""

    transfer: Transfer
    received: list[int] = field(default_factory=list)
    fetchable: bool = False


class Transfers:
    """The transfers of the sessions on a host; ``me`` is its id. Nobody else has what lies there,
    or knows how far it is: what is asked of another one's raises :exc:`ConflictError`."""

    def __init__(
        self,
        database: Database,
        events: Events,
        operations: Operations,
        uses: Uses,
        tasks: Tasks,
        limits: TransferLimits,
        me: str | None = None,
    ) -> None:
        self._database = database
        self._me = me
        self._uses = uses
        self._events = events
        self._operations = operations
        self._limits = limits
        self._staging = Staging(limits.directory)
        self._carrying = Carrying(
            database, events, operations, uses, tasks, self._staging, limits.most, limits.keep
        )
        self.parts = Receiving(database, uses, self._staging, self._carrying, limits.keep)
        self._find = self.parts.find

    # Beginning

    async def create(
        self, session: str, by: Actor, new: NewTransfer, key: Key | None = None
    ) -> Transfer:
        """Begin a transfer; a download is carried at once.

        Raises :exc:`NotFoundError`, :exc:`TooLargeError`, :exc:`ConflictError` for a session that
        has failed or has too many of them, and :exc:`NoSpaceError`.
        """
        await self._uses.check_own(session)
        if new.size is not None and new.size > self._limits.most:
            raise too_large(new.size, self._limits.most)
        return await self._operations.once(
            f"beginning a transfer of {session}",
            by,
            key,
            lambda: self._create(session, by, new, key),
            lambda earlier: self._find(session, earlier.result["transfer"]),
        )

    async def _create(self, session: str, by: Actor, new: NewTransfer, key: Key | None) -> Transfer:
        moment = now()
        upload = new.direction == "upload"
        transfer = Transfer(
            secrets.token_hex(16), session, moment, moment, moment + self._limits.keep, by.id,
            new.direction, encoded(new.path), new.archive, "pending" if upload else "in_progress",
            part_size_for(new.size) if upload else None, new.size, new.sha256,
        )  # fmt: skip
        free = await self._staging.free()
        async with self._database.write() as conn:
            await _check_session(conn, session)
            if await table.count_unfinished(conn, session) >= MOST_OPEN:
                raise ConflictError(
                    f"Session {session} has {MOST_OPEN} transfers that have not ended.",
                    state="Nothing was begun.",
                    todo="Wait for one of them, or cancel it.",
                    code="limit_reached",
                )
            needed = 2 * (new.size or 0)
            left = free - await table.promised(conn, self._me)
            if left < needed:
                raise _no_space(needed, left)
            await table.insert(conn, transfer)
            await self._events.append(
                conn, "transfer.created", session, by, transfer=transfer.id,
                direction=transfer.direction, path=transfer.path, size=transfer.size,
            )  # fmt: skip
            if key is not None:
                record = self._operations.new("transfer", by, session, key)
                done = self._operations.done_at_once(record, transfer=transfer.id)
                await operations_table.insert(conn, done)
        self._events.tell(session)
        if not upload:
            self._carrying.start(transfer)
        return transfer

    # Looking

    async def get(self, session: str, transfer: str) -> Progress:
        """Return how far a transfer of a session is. Raises :exc:`NotFoundError`."""
        found = await self._find(session, transfer)
        if found.status == "in_progress":
            return Progress(replace(found, done_bytes=self._carrying.done(transfer) or 0))
        if found.status == "completed" and found.direction == "download":
            there = found.expires_at > now() and await self._staging.has_payload(transfer)
            return Progress(found, fetchable=there)
        async with self._database.read() as conn:
            parts = await table.parts(conn, transfer)
        return Progress(found, [part.number for part in parts])

    def payload(self, transfer: Transfer, start: int, end: int) -> AsyncGenerator[bytes, None]:
        """Yield what a completed download has brought, bytes ``start`` to ``end``. Raises
        OSError if it is gone."""
        return self._staging.payload_pieces(transfer.id, start, end)

    # Ending

    async def commit(
        self, session: str, transfer: str, by: Actor, sha256: str | None = None
    ) -> Transfer:
        """Have an upload whose parts have all come be put in its place; done twice it is done once.

        Raises :exc:`NotFoundError`, :exc:`InvalidError` for another SHA-256 than was announced,
        :exc:`ConflictError` (``parts_missing``, with the numbers) and :exc:`TooLargeError`.
        """
        found = await self.parts.in_time(session, transfer)
        if found.direction != "upload":
            raise InvalidError(
                f"Transfer {transfer} is a download.",
                state="It goes on.",
                todo="Ask for it until it is completed.",
            )
        try:
            async with self._database.write() as conn:
                found = await table.update(conn, transfer, ["pending"])
                _check_sha256(found, sha256)
                parts = await table.parts(conn, transfer)
                size = check_whole(found, parts, self._limits.most)
                sha256 = sha256 or found.sha256
                committed = await table.update(
                    conn, transfer, ["pending"], status="in_progress", size=size, sha256=sha256
                )
                await self._events.append(
                    conn, "transfer.committed", session, by, transfer=transfer,
                    direction=found.direction, path=found.path, size=size, sha256=sha256,
                )  # fmt: skip
        except KeyError:
            found = await self._find(session, transfer)
            if found.status == "failed":
                raise not_pending(found) from None
            _check_sha256(found, sha256)
            return found
        self._events.tell(session)
        self._carrying.start(committed)
        return committed

    async def cancel(
        self, session: str, transfer: str, by: Actor, reason: str | None = None
    ) -> tuple[Transfer, bool]:
        """Give up a transfer; return it, and whether it was that which ended it. What one that is
        completed has made ready to be fetched is removed. Raises :exc:`NotFoundError`."""
        found = await self._find(session, transfer)
        await self._carrying.stop(transfer)
        why = "It was cancelled" + (f": {reason}" if reason else ".")
        ended = await self._carrying.give_up(found, by, why, "transfer.cancelled")
        if ended is None:
            await self._staging.remove(transfer)
        return ended or await self._find(session, transfer), ended is not None

    async def end_of(self, session: str) -> None:
        """Give up all transfers of a session that is gone for good, and remove what there is of
        them."""
        async with self._database.read() as conn:
            left = await table.unfinished(conn, session)
        for transfer in left:
            await self._carrying.stop(transfer.id)
            await self._carrying.give_up(transfer, SYSTEM, "Its session was destroyed.")
        async with self._database.read() as conn:
            done = await table.completed(conn, session)
        for transfer in done:
            await self._staging.remove(transfer.id)
        self._carrying.forget(session)

    # All the time

    async def begin(self) -> None:
        """Go on with what a program before this one has left."""
        async with self._database.read() as conn:
            left = await table.unfinished(conn, host=self._me)
        for transfer in left:
            async with self._database.read() as conn:
                wanted = {part_name(part) for part in await table.parts(conn, transfer.id)}
            await self._staging.keep_only(transfer.id, wanted)
            if not wanted <= await self._staging.names(transfer.id):
                why = "What had been received of it is not there any more."
                await self._carrying.give_up(transfer, SYSTEM, why)
            elif transfer.status == "in_progress":
                self._carrying.start(transfer)
        await self.tidy()

    async def tidy(self) -> None:
        """Give up what has expired or whose session is gone, and remove what nobody needs."""
        async with self._database.read() as conn:
            left = await table.unfinished(conn, host=self._me)
        gone = {each for each in {one.session for one in left} if await self._is_gone(each)}
        for session in gone:
            await self.end_of(session)
        standing = [transfer for transfer in left if transfer.session not in gone]
        for transfer in standing:
            if transfer.expires_at <= now():
                await self._carrying.stop(transfer.id)
                await self._carrying.give_up(transfer, SYSTEM, EXPIRED)
        for name in set(await self._staging.transfers()) - {each.id for each in standing}:
            if not await self._needed(name):
                await self._staging.remove(name)
        async with self._database.write() as conn:
            await table.prune(conn, now() - REMEMBERED)

    async def _needed(self, transfer: str) -> bool:
        async with self._database.read() as conn:
            found = await table.get(conn, transfer)
        if found is None or await self._is_gone(found.session):
            return False
        if found.status in table.OPEN:
            return True
        fetched = found.direction == "download" and found.status == "completed"
        return fetched and found.expires_at > now()

    async def _is_gone(self, session: str) -> bool:
        async with self._database.read() as conn:
            found = await sessions_table.get(conn, session)
        return found is None or found.status in GONE

    async def close(self) -> None:
        """Stop carrying; the next program goes on."""
        await self._carrying.close()


async def _check_session(conn: Transaction, session: str) -> None:
    found = await sessions_table.get(conn, session)
    if found is None:
        raise no_session(session)
    check_there(found)
    if found.status is Status.FAILED:
        raise ConflictError(
            f"Session {found.name} has failed: {found.failure}",
            state="Nothing was begun.",
            todo="Resume it from one of the snapshots that it can be recovered from.",
        )


def _check_sha256(transfer: Transfer, sha256: str | None) -> None:
    if sha256 is not None and transfer.sha256 is not None and sha256 != transfer.sha256:
        raise InvalidError(
            f"Transfer {transfer.id} was announced with the SHA-256 {transfer.sha256}, and is"
            f" committed with {sha256}.",
            state="It stands as before.",
            todo="Commit it with the one that is right; if the other was announced, cancel it.",
        )


def _no_space(needed: int, left: int) -> NoSpaceError:
    return NoSpaceError(
        f"An upload of this size takes {needed} bytes of the server's disk, once on the way and"
        f" once in the session, and {max(left, 0)} can be had.",
        state="Nothing was begun.",
        todo="Free some space there, or wait for other transfers to end.",
        needed=needed,
        free=max(left, 0),
    )
