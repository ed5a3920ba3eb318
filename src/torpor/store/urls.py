"""The address of a database: a URL that names a file, or a database of a PostgreSQL server."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

from torpor.store.errors import UrlError

Kind = Literal["sqlite", "postgresql"]

FORM = (
    "Write it as sqlite:////path/of/the/file, or as postgresql://user@host:port/database with no"
    " query but host=DIRECTORY (of a socket) and sslmode."
)
_SCHEMES: dict[str, Kind] = {
    "sqlite": "sqlite",
    "postgresql": "postgresql",
    "postgres": "postgresql",
}
_SSL_MODES = frozenset(("disable", "allow", "prefer", "require", "verify-ca", "verify-full"))


@dataclass(frozen=True)
class Address:
    """Where a database is. ``file`` is that of SQLite, ``server`` what PostgreSQL's driver is given
    (:func:`asyncpg.connect`). ``words`` call it, without a password."""

    kind: Kind
    words: str
    file: Path = Path()
    server: URL | None = None


def parse(url: str) -> Address:
    """Return what a URL says. Raises :exc:`UrlError`; its words have no password."""
    try:
        parsed = make_url(url)
    except ArgumentError:
        raise UrlError("The address of the database is no URL.", todo=FORM) from None
    kind = _SCHEMES.get(parsed.get_backend_name())
    if kind is None:
        raise UrlError(
            f"Torpor keeps its database in SQLite or PostgreSQL, not in"
            f" {parsed.get_backend_name()}.",
            todo=FORM,
        )
    return _of_sqlite(url, parsed) if kind == "sqlite" else _of_postgresql(parsed)


def is_file(url: str) -> bool:
    """Return whether a database is a file of this computer. Raises :exc:`UrlError`."""
    return parse(url).kind == "sqlite"


def _of_sqlite(url: str, parsed: URL) -> Address:
    if not parsed.database or parsed.database == ":memory:" or parsed.query:
        raise UrlError(f"{url!r} names no file, or more than a file.", todo=FORM)
    file = Path(parsed.database).absolute()
    return Address("sqlite", str(file), file)


def _of_postgresql(parsed: URL) -> Address:
    shown = parsed.set(drivername="postgresql", password=None, query={})
    query = dict(parsed.query)
    socket, mode = query.pop("host", None), query.pop("sslmode", None) or query.pop("ssl", None)
    words = shown.render_as_string() + (f" (socket in {socket})" if socket else "")
    if query or not parsed.database or not isinstance(socket, str | None):
        raise UrlError(f"{words!r} names no database, or says more than where it is.", todo=FORM)
    if mode is not None and mode not in _SSL_MODES:
        raise UrlError(
            f"{words!r} has an sslmode that does not exist.",
            todo=f"Take one of {', '.join(sorted(_SSL_MODES))}. {FORM}",
        )
    given = {"host": socket, "ssl": mode}
    server = parsed.set(
        drivername="postgresql+asyncpg",
        query={key: value for key, value in given.items() if value is not None},
    )
    return Address("postgresql", words, server=server)
