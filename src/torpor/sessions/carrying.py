"""What has been received is carried into machines, and what is to be fetched out of them.

A transfer that is under way belongs to a task. If the machine is paused meanwhile, or the server
ends, it is begun anew: what lies on the server's disk stays until it has come to its end.
"""

import asyncio
import hashlib
import logging
from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta

from torpor.sessions.errors import FailedError, InvalidError, NoSpaceError, SessionError
from torpor.sessions.events import Events
from torpor.sessions.following import LOST
from torpor.sessions.model import Actor, now
from torpor.sessions.operations import Operations
from torpor.sessions.parts import too_large
from torpor.sessions.staging import PAYLOAD, Staging, aside
from torpor.sessions.tasks import Tasks
from torpor.sessions.use import InUse, Uses
from torpor.sessions.workspace_paths import decoded
from torpor.sessions.workspace_root import make_root, user_of
from torpor.store import transfers as table
from torpor.store.database import Database
from torpor.store.errors import StoreError
from torpor.store.records import Part, Transfer
from torpor.vm import GuestError, Packing, UnansweredError, VmError, disk_is_full
from torpor.vm.errors import told

logger = logging.getLogger("torpor.sessions")

TRIES = 5
"""How often a transfer is begun whose machine is paused, or lost, in the middle."""
MOMENT = 0.1
"""Seconds before the next one."""
OF_ONE_SESSION, OF_ALL = 4, 8
"""Transfers that are carried at the same time; the others wait."""


@dataclass
class Job:
    """A transfer that is being carried. ``done`` is how far it is, in bytes; ``closing`` says that
    it comes to its end, and is not stopped any more."""

    task: "asyncio.Task[None] | None" = None
    done: int = 0
    closing: bool = False


@dataclass(frozen=True)
class Carried:
    """What was carried."""

    size: int
    sha256: str


class Carrying:
    """Carries transfers, each by a task of its own. ``most`` is how many bytes one may have,
    ``keep`` how long the result of a download is kept."""

    def __init__(
        self,
        database: Database,
        events: Events,
        operations: Operations,
        uses: Uses,
        tasks: Tasks,
        staging: Staging,
        most: int,
        keep: timedelta,
    ) -> None:
        self._database = database
        self._events = events
        self._operations = operations
        self._uses = uses
        self._tasks = tasks
        self._staging = staging
        self._most = most
        self._keep = keep
        self._jobs: dict[str, Job] = {}
        self._of_all = asyncio.Semaphore(OF_ALL)
        self._of_session: defaultdict[str, asyncio.Semaphore] = defaultdict(
            lambda: asyncio.Semaphore(OF_ONE_SESSION)
        )

    def start(self, transfer: Transfer) -> None:
        """Begin to carry a transfer that is in progress."""
        job = self._jobs[transfer.id] = Job()
        job.task = self._tasks.background(self._carry(transfer, job), f"transfer {transfer.id}")

    def done(self, transfer: str) -> int | None:
        """Return how far a transfer is, in bytes, None if it is not being carried."""
        job = self._jobs.get(transfer)
        return None if job is None else job.done

    async def stop(self, transfer: str) -> None:
        """Have a transfer not be carried any more. One that comes to its end comes there first."""
        job = self._jobs.get(transfer)
        if job is None or job.task is None:
            return
        while not job.task.done():
            if not job.closing:
                job.task.cancel()
            await asyncio.wait({job.task}, timeout=MOMENT)

    async def close(self) -> None:
        """Stop carrying. What was in progress is still so, and begun anew by the next program."""
        for transfer in list(self._jobs):
            await self.stop(transfer)

    def forget(self, session: str) -> None:
        """Drop what is known of a session that is gone for good."""
        self._of_session.pop(session, None)

    # One transfer

    async def _carry(self, transfer: Transfer, job: Job) -> None:
        by = Actor(transfer.created_by, transfer.created_by)
        try:
            async with self._of_session[transfer.session], self._of_all:
                carried = await self._tried(transfer, by, job)
                job.closing = True
                await self._complete(transfer, by, carried)
        except (SessionError, VmError, StoreError, OSError) as error:
            await self.give_up(transfer, by, _words(error))
        except Exception:  # whatever it is, nobody shall wait for it for ever
            logger.exception("transfer %s failed", transfer.id)
            await self.give_up(transfer, by, "It failed on the server's side; the log says why.")
        finally:
            self._jobs.pop(transfer.id, None)

    async def _tried(self, transfer: Transfer, by: Actor, job: Job) -> Carried:
        tries = 0
        while True:
            tries += 1
            job.done, job.closing = 0, False
            try:
                async with self._uses.use(transfer.session, by) as used:
                    await make_root(used)
                    if transfer.direction == "upload":
                        return await self._bring(used, transfer, job)
                    return await self._fetch(used, transfer, job)
            except LOST as error:
                if tries == TRIES or isinstance(error, UnansweredError):
                    raise
            await asyncio.sleep(MOMENT)

    async def _complete(self, transfer: Transfer, by: Actor, carried: Carried) -> None:
        """Write down that a transfer is completed, and remove what is not needed any more."""

        async def write() -> None:
            async with self._database.write() as conn:
                await table.update(
                    conn, transfer.id, ["in_progress"], status="completed", size=carried.size,
                    done_bytes=carried.size, sha256=carried.sha256, expires_at=now() + self._keep,
                )  # fmt: skip
                await table.forget_parts(conn, transfer.id)
                await self._events.append(
                    conn, "transfer.completed", transfer.session, by, transfer=transfer.id,
                    direction=transfer.direction, path=transfer.path, size=carried.size,
                    sha256=carried.sha256,
                )  # fmt: skip

        await self._operations.until_taken(f"the end of transfer {transfer.id}", write)
        self._events.tell(transfer.session)
        if transfer.direction == "upload":
            await self._staging.remove(transfer.id)

    async def give_up(
        self, transfer: Transfer, by: Actor, why: str, event: str = "transfer.failed"
    ) -> Transfer | None:
        """Write down that nothing comes of a transfer, and remove what there is of it. Returns None
        if it has ended before."""

        async def write() -> Transfer:
            async with self._database.write() as conn:
                failed = await table.update(
                    conn, transfer.id, table.OPEN, status="failed", error=why
                )
                await table.forget_parts(conn, transfer.id)
                await self._events.append(
                    conn, event, transfer.session, by, transfer=transfer.id,
                    direction=transfer.direction, path=transfer.path, error=why,
                )  # fmt: skip
            return failed

        try:
            failed = await self._operations.until_taken(f"the end of transfer {transfer.id}", write)
        except KeyError:
            return None
        self._events.tell(transfer.session)
        await self._staging.remove(transfer.id)
        return failed

    # Into the machine

    async def _bring(self, used: InUse, transfer: Transfer, job: Job) -> Carried:
        async with self._database.read() as conn:
            parts = await table.parts(conn, transfer.id)
        path, user = decoded(transfer.path), user_of(used)
        whole = hashlib.sha256()
        checked = self._checked(transfer, parts, whole, job)
        if not transfer.archive:
            # What a program before this one has left of it is written over.
            size = await used.agent.files.write(
                path, checked, parents=True, atomic=True, part=transfer.id, user=user
            )
            return Carried(size, whole.hexdigest())
        # Nothing of an archive is unpacked before it is known to be the right one.
        async for _ in checked:
            pass
        job.done, job.closing = 0, False
        unpacking = await used.agent.files.unpack(path, owner=user, parents=True, user=user)
        async with unpacking:
            for part in parts:
                async with aclosing(self._staging.part_pieces(part)) as pieces:
                    async for piece in pieces:
                        await unpacking.write(piece)
                        job.done += len(piece)
            await unpacking.finish()
        return Carried(job.done, whole.hexdigest())

    async def _checked(
        self, transfer: Transfer, parts: list[Part], whole: "hashlib._Hash", job: Job
    ) -> AsyncIterator[bytes]:
        """Yield what was received. Raises an error, before its end, if it is not what was sent."""
        for part in parts:
            own = hashlib.sha256()
            async with aclosing(self._staging.part_pieces(part)) as pieces:
                async for piece in pieces:
                    await aside(_update, piece, whole, own)
                    job.done += len(piece)
                    yield piece
            if own.hexdigest() != part.sha256:
                raise FailedError(
                    f"Part {part.number} is not as it was received: the server's disk has damaged"
                    " it.",
                    state="Nothing was put into the workspace.",
                    todo="Look after that disk, then upload it anew.",
                )
        found = whole.hexdigest()
        if transfer.sha256 is not None and transfer.sha256 != found:
            raise InvalidError(
                f"What was received has the SHA-256 {found}, and {transfer.sha256} was announced.",
                state="Nothing was put into the workspace.",
                todo="Upload it anew.",
            )
        job.closing = True

    # Out of the machine

    async def _fetch(self, used: InUse, transfer: Transfer, job: Job) -> Carried:
        async with (
            _content(used, transfer, await self._room()) as pieces,
            self._staging.receive(transfer.id) as incoming,
        ):
            async for piece in pieces:
                await incoming.write(piece)
                job.done = incoming.size
                if job.done > self._most:
                    raise too_large(job.done, self._most)
            job.closing = True
            await incoming.keep(lambda: PAYLOAD)
            return Carried(incoming.size, incoming.sha256)

    async def _room(self) -> int:
        return min(self._most, await self._staging.free())


@asynccontextmanager
async def _content(
    used: InUse, transfer: Transfer, most: int
) -> AsyncIterator[AsyncIterator[bytes]]:
    """Give what is at the path of a transfer, a file or the archive of it, in pieces."""
    path, user, files = decoded(transfer.path), user_of(used), used.agent.files
    status = await files.status(path, follow=True, user=user)
    if status is None:
        raise GuestError("ENOENT", f"there is no {path.decode('utf-8', 'backslashreplace')}")
    if transfer.archive:
        async with await packed(used, path, directory=status.type == "directory") as packing:
            yield packing.pieces()
        return
    if status.type != "file":
        raise no_file(path, status.type)
    if status.size > most:
        raise NoSpaceError(
            f"It has {status.size} bytes, and the server's disk has room for {max(most, 0)}.",
            state="Nothing was fetched.",
            todo="Free some space there, or read it by the files of the session.",
        )
    pieces: AsyncGenerator[bytes, None] = files.read_pieces(path, user=user)
    async with aclosing(pieces):
        yield pieces


async def packed(used: InUse, path: bytes, *, directory: bool) -> Packing:
    """Begin to make a tar archive of what is at a path: of a directory its content, which unpacked
    at the same path is the same again, of a file that under its name."""
    name = "." if directory else None
    return await used.agent.files.pack(path, name=name, user=user_of(used))


def no_file(path: bytes, kind: str) -> InvalidError:
    """Return the error for something that is no file and cannot be fetched as one."""
    return InvalidError(
        f"{path.decode('utf-8', 'backslashreplace')} is no file, but a {kind}.",
        state="Nothing was fetched.",
        todo="Ask for it as an archive.",
    )


def _update(piece: bytes, *digests: "hashlib._Hash") -> None:
    for digest in digests:
        digest.update(piece)


def _words(error: Exception) -> str:
    if isinstance(error, OSError) and disk_is_full(error):
        return "The server's disk is full. Free some space there, then begin a new transfer."
    return told(error)
