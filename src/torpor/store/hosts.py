"""The table of hosts: which there are, and who holds each of them at the moment.

A server holds one host by a *lease*: for some seconds, which it makes anew before they are over.
Each time another server takes the host its ``epoch`` grows, and no write of an older one is taken
(:meth:`torpor.store.database.Database.hold`). The time is that of the database, which all servers
have in common.
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from sqlalchemy import ColumnElement, ScalarSelect, func, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from torpor.store import rows
from torpor.store.errors import HostHeldError
from torpor.store.records import HostRow
from torpor.store.tables import hosts as table
from torpor.store.tables import operations, sessions, template_builds, workspaces

OF_HOSTS = (sessions, operations, template_builds, workspaces)


@dataclass(frozen=True)
class Lease:
    """That a server holds a host: since it took it for the ``epoch``-th time that it was taken."""

    host: str
    epoch: int
    holder: str


@dataclass(frozen=True)
class Claim:
    """A server that wants to hold the host of id ``host``. ``place`` is a word for the directory of
    that host on its computer, until that is started anew: who has the lock of the directory knows
    that whoever held the host from there is gone. ``server`` is a word for this one program."""

    host: str
    name: str
    url: str | None
    version: str
    place: str
    server: str

    @property
    def holder(self) -> str:
        """Who holds the host if this claim is granted."""
        return f"{self.place}/{self.server}"


async def take(conn: AsyncConnection, claim: Claim, seconds: float) -> Lease:
    """Take a host for so many seconds, if nobody else holds it. Raises :exc:`HostHeldError`."""
    now = await moment(conn)
    found = await get(conn, claim.host)
    if found is not None and _is_held(found, now) and not _is_gone(found, claim):
        raise HostHeldError(found.name, found.url, found.lease_until)
    said = {
        "name": claim.name,
        "url": claim.url,
        "version": claim.version,
        "holder": claim.holder,
        "lease_until": now + timedelta(seconds=seconds),
        "seen_at": now,
    }
    if found is None:
        await conn.execute(table.insert().values(id=claim.host, epoch=1, **said))
        return Lease(claim.host, 1, claim.holder)
    epoch = found.epoch + 1
    await conn.execute(table.update().where(table.c.id == claim.host).values(epoch=epoch, **said))
    return Lease(claim.host, epoch, claim.holder)


async def renew(conn: AsyncConnection, lease: Lease, seconds: float) -> None:
    """Hold a host for so many seconds more, from now on."""
    now = await moment(conn)
    until = now + timedelta(seconds=seconds)
    changing = table.update().where(*_is(lease)).values(lease_until=until, seen_at=now)
    await conn.execute(changing)


async def give_back(conn: AsyncConnection, lease: Lease) -> None:
    """Hold a host no longer: the next one need not wait."""
    nobody = {"holder": None, "lease_until": None, "url": None}
    await conn.execute(table.update().where(*_is(lease)).values(**nobody))


async def holds(conn: AsyncConnection, lease: Lease) -> bool:
    """Return whether nobody has taken a host since."""
    return (await conn.execute(select(table.c.id).where(*_is(lease)))).first() is not None


def epoch_of(host: str) -> ScalarSelect[int]:
    """Return what asks for the epoch of a host, as a part of another question."""
    return select(table.c.epoch).where(table.c.id == host).scalar_subquery()


async def get(conn: AsyncConnection, host: str) -> HostRow | None:
    """Return the host of this id, or None."""
    return await rows.one(conn, HostRow, table, host)


async def all(conn: AsyncConnection) -> list[HostRow]:  # noqa: A001 - read as hosts.all
    """Return all hosts, by their names."""
    return await rows.listed(conn, HostRow, select(table).order_by(table.c.name, table.c.id))


async def held(conn: AsyncConnection) -> list[HostRow]:
    """Return the hosts that a server holds now."""
    now = await moment(conn)
    return [each for each in await all(conn) if _is_held(each, now)]


async def adopt(conn: AsyncConnection, host: str) -> None:
    """Have all that belongs to no host belong to this one: it is from before there were hosts, or
    was restored."""
    for each in OF_HOSTS:
        await conn.execute(update(each).where(each.c.host.is_(None)).values(host=host))


async def free_all(conn: AsyncConnection) -> None:
    """Have nobody hold any host."""
    await conn.execute(table.update().values(holder=None, lease_until=None, url=None))


async def forget_all(conn: AsyncConnection) -> None:
    """Have nothing belong to any host."""
    for each in OF_HOSTS:
        await conn.execute(update(each).values(host=None))
    await conn.execute(table.delete())


async def moment(conn: AsyncConnection) -> datetime:
    """Return what time the database has. A file has that of its computer."""
    if conn.dialect.name == "sqlite":
        return rows.now()
    found: datetime = (await conn.execute(select(func.clock_timestamp()))).scalar_one()
    return found.astimezone(UTC)


def _is(lease: Lease) -> tuple[ColumnElement[bool], ...]:
    this = table.c.id == lease.host, table.c.epoch == lease.epoch, table.c.holder == lease.holder
    return tuple(this)


def _is_held(found: HostRow, now: datetime) -> bool:
    return found.holder is not None and found.lease_until is not None and now < found.lease_until


def _is_gone(found: HostRow, claim: Claim) -> bool:
    """Return whether who holds a host cannot run any more, since the claim comes from its place."""
    return (found.holder or "").partition("/")[0] == claim.place
