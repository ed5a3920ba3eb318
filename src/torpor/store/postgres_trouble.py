"""What PostgreSQL and its driver say when they refuse, told as this package's errors.

The codes are PostgreSQL's (Appendix A of its manual).
"""

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy.exc import DBAPIError

from torpor.store.errors import (
    UNCHANGED,
    BusyError,
    DiskError,
    DiskFullError,
    StoreError,
    UnreachableError,
)

_BUSY = frozenset(
    (
        "53200",  # out of memory
        "53300",  # too many connections
        "55P03",  # another one has the lock
        "40001",  # to be tried again
        "40P01",  # a deadlock
        "57014",  # cancelled
        "0A000",  # the tables were changed below a statement that was prepared
    )
)
_LOST = frozenset(("57P01", "57P02", "57P03", "57P05", "25P03"))
_REFUSED = frozenset(("25006", "42501", "58030"))


@contextmanager
def told(words: str) -> Iterator[None]:
    """Raise this package's errors for those that PostgreSQL and the way to it have. ``words`` call
    the database."""
    try:
        yield
    except DBAPIError as error:
        known = _known(words, error)
        if known is None:
            raise
        raise known from error


@contextmanager
def told_of_connecting(words: str) -> Iterator[None]:
    """Raise :exc:`UnreachableError` for what the system says while a connection is made."""
    try:
        yield
    except (OSError, TimeoutError) as error:
        raise _unreachable(words, str(error) or "no answer") from error


def _known(words: str, error: DBAPIError) -> StoreError | None:
    code, said = _code(error), str(error.orig).rstrip(".")
    if code == "53100":
        return DiskFullError(
            f"The disk of the database {words} is full: {said}.",
            state=UNCHANGED,
            todo="Make space there, and try again.",
        )
    if code in _REFUSED:
        return DiskError(
            f"The database {words} could not be read or written: {said}.",
            state=UNCHANGED,
            todo="Look whether it is a standby of another one, at the rights of this user in it,"
            " and at PostgreSQL's log.",
        )
    if code in _BUSY:
        return BusyError(
            f"The database {words} was in use by others for too long: {said}.",
            state=UNCHANGED,
            todo="Look in its pg_stat_activity who has it, and try again.",
        )
    if code[:2] in ("08", "28", "3D") or code in _LOST or error.connection_invalidated:
        return _unreachable(words, said)
    return None


def _unreachable(words: str, said: str) -> UnreachableError:
    return UnreachableError(
        f"The database {words} cannot be reached: {said}.",
        state="What was under way in it was not done, unless the connection was lost just as it"
        " was being committed.",
        todo="See that PostgreSQL runs there, that the database is made, and that this user may use"
        " it.",
    )


def _code(error: DBAPIError) -> str:
    # SQLAlchemy makes an error of its own out of the driver's, not always with its code.
    causes = (error.orig, error.orig.__cause__ if error.orig is not None else None)
    return next(filter(None, (getattr(each, "sqlstate", None) for each in causes)), "")
