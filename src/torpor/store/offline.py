"""Databases that no server has open: saved to a file, brought back from one, copied."""

from pathlib import Path
from urllib.parse import quote

from torpor.store import backup, events, hosts
from torpor.store.copying import copy_tables, first_filled
from torpor.store.database import Database
from torpor.store.errors import HostHeldError, MissingError
from torpor.store.records import HostRow
from torpor.store.urls import parse


def url_of(file: Path) -> str:
    """Return the URL of a database that is a file."""
    return f"sqlite:///{quote(str(file))}"


def file_of(url: str) -> Path | None:
    """Return the file that a database is, None if it is none. Raises :exc:`UrlError`."""
    address = parse(url)
    return address.file if address.server is None else None


def words_of(url: str) -> str:
    """Return what a database is called, without a password. Raises :exc:`UrlError`."""
    return parse(url).words


async def save(url: str, file: Path) -> bool:
    """Write a checked copy of a database to ``file``, as SQLite. Return False if there is none.

    One that is a file is left as it is, at the version that it has. Raises as
    :meth:`Database.backup`.
    """
    origin = file_of(url)
    if origin is not None:
        if not origin.exists():
            return False
        backup.copy(origin, file)
        return True
    database = await Database.open(url)
    try:
        await database.backup(file)
    finally:
        await database.close()
    return True


async def is_empty(url: str) -> bool:
    """Return whether a database has nothing in it, or is not there."""
    file = file_of(url)
    if file is not None:
        return not file.exists()
    database = await Database.open(url)
    try:
        async with database.read() as conn:
            return await first_filled(conn) is None
    finally:
        await database.close()


async def copy(source_url: str, target_url: str) -> int:
    """Copy a database into an empty one, which is made if it is a file; return how many rows.

    All of it is there then, or nothing. Raises :exc:`MissingError`, :exc:`NotEmptyError`,
    :exc:`HostHeldError` if a server uses it, and what :meth:`Database.open` raises.
    """
    origin, made = file_of(source_url), file_of(target_url)
    if origin is not None and not origin.exists():
        raise MissingError(
            f"There is no database {origin}.", state="Nothing was copied.", todo="Name another one."
        )
    new = made is not None and not made.exists()
    source = await Database.open(source_url)
    try:
        async with source.read() as reading:
            _check_free(await hosts.held(reading))
        target = await Database.open(target_url)
        try:
            async with source.read() as reading, target.write() as writing:
                copied = await copy_tables(reading, writing)
                await hosts.free_all(writing)
        finally:
            await target.close()
    except BaseException:
        if new and made is not None:
            made.unlink(missing_ok=True)
        raise
    finally:
        await source.close()
    return copied


def _check_free(held: list[HostRow]) -> None:
    """Raise :exc:`HostHeldError` if a server uses a database: what it writes would be missing in a
    copy."""
    for host in held:
        raise HostHeldError(host.name, host.url, host.lease_until)


async def is_copy(source_url: str, target_url: str) -> bool:
    """Return whether a database was filled by :func:`copy` from another one, and not changed since:
    the last events of both are the same."""
    last = []
    for url in (source_url, target_url):
        database = await Database.open(url)
        try:
            async with database.read() as conn:
                last.append(await events.last_id(conn))
        finally:
            await database.close()
    return last[0] is not None and last[0] == last[1]
