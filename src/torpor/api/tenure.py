"""That this server holds its host: a lease in the database, made anew before it is over.

A server that cannot say any more that it holds its host ends itself, before another one may take
it; its machines run on, and the other one finds them.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from torpor.store import hosts
from torpor.store.database import Database
from torpor.store.errors import FencedError, NewerSchemaError, StoreError, UnreachableError
from torpor.store.hosts import Claim, Lease
from torpor.store.migrate import check_not_newer

log = logging.getLogger("torpor.server")

RENEWALS = 3
"""How often a lease is made anew in its time."""
MARGIN_SECONDS = 2.0
"""How long before the end of its lease a server ends itself that could not make it anew."""
AGAIN_SECONDS = 1.0


class Tenure:
    """A lease that is held. ``lost`` is set when it is not any more, and ``why`` says how come."""

    def __init__(self, database: Database, lease: Lease, seconds: float, since: float) -> None:
        self._database = database
        self._lease = lease
        self._seconds = seconds
        self._until = since + seconds
        self.lost = asyncio.Event()
        self.why = ""

    async def keep(self) -> None:
        """Make the lease anew, until it is lost."""
        wait = self._seconds / RENEWALS
        while not self.lost.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._database.fenced.wait()
            wait = self._seconds / RENEWALS if await self._renewed() else AGAIN_SECONDS

    async def _renewed(self) -> bool:
        """Make the lease anew; return whether that came about."""
        clock = asyncio.get_running_loop().time
        began = clock()
        try:
            async with asyncio.timeout_at(self._until - MARGIN_SECONDS):
                await self._renew()
        except (FencedError, NewerSchemaError) as error:
            self._lose(error.happened)
            return False
        except (UnreachableError, TimeoutError) as error:
            log.warning(
                "the lease of the host could not be made anew: %s", str(error) or "no answer"
            )
            if clock() >= self._until - MARGIN_SECONDS - AGAIN_SECONDS:
                self._lose("The database could not be reached before the lease of the host ended.")
            return False
        self._until = began + self._seconds
        return True

    async def _renew(self) -> None:
        try:
            async with self._database.write() as conn:
                await hosts.renew(conn, self._lease, self._seconds)
                await check_not_newer(conn, self._database.words)
        except (FencedError, NewerSchemaError, UnreachableError):
            raise
        except StoreError as error:
            # A full disk takes nobody's change, and so nobody can take the host. Once it does, each
            # write of this server finds out whether somebody has.
            log.warning("the lease of the host could not be made anew: %s", error)
            async with self._database.read() as conn:
                if not await hosts.holds(conn, self._lease):
                    raise FencedError("Another server has taken the host of this one.") from error

    def _lose(self, why: str) -> None:
        self.why = why
        self.lost.set()


@asynccontextmanager
async def held(database: Database, claim: Claim, seconds: float) -> AsyncIterator[Tenure]:
    """Hold a host while the block lasts. Raises :exc:`HostHeldError` if another server does."""
    since = asyncio.get_running_loop().time()
    async with database.write() as conn:
        lease = await hosts.take(conn, claim, seconds)
    database.hold(lease)
    tenure = Tenure(database, lease, seconds, since)
    keeping = asyncio.create_task(tenure.keep(), name="lease of the host")
    try:
        yield tenure
    finally:
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)
        with contextlib.suppress(StoreError):
            async with database.write() as conn:
                await hosts.give_back(conn, lease)
