"""How values of records lie in columns: texts, ids, times, documents, and the status of a session.

What every table has to keep to, so that it is the same in SQLite and in PostgreSQL:

- A column of text is :class:`Words`, one whose order or beginning is asked for (ids, cursors) is
  :class:`Id`; times are :class:`Moment`, JSON is :class:`Document`, or :class:`Listed` for some
  texts; whole numbers are BigInteger.
  In a migration these are ``sa.Text``, :data:`ID_TEXT`, ``sa.BigInteger`` and ``sa.Text``.
- An index of some rows alone has ``sqlite_where`` in ``tables.py`` (the other word would import
  PostgreSQL's dialect into every server), and that and ``postgresql_where`` in its migration.
- An insert or update that may be refused with IntegrityError, with more to come in its transaction,
  is done in :func:`torpor.store.rows.taken_back_alone`.
"""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import BigInteger, Dialect, Text
from sqlalchemy.types import TypeDecorator, TypeEngine

from torpor.store.records import Status

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def microseconds(at: datetime) -> int:
    """Return an aware time as microseconds since 1970, exactly.

    A naive one is refused with :exc:`TypeError`: nobody knows which moment it means.
    """
    return (at - _EPOCH) // _MICROSECOND


def moment(count: int) -> datetime:
    """Return the time, in UTC, that lies so many microseconds after 1970."""
    return _EPOCH + count * _MICROSECOND


def kept(text: str) -> str:
    """Return a text as it is kept: with U+FFFD for what no database's text can hold, NUL and halves
    of surrogate pairs."""
    if text.isascii() and "\0" not in text:
        return text
    whole = text.replace("\0", "\ufffd").encode("utf-16", "surrogatepass")
    return whole.decode("utf-16", "replace")


class Words(TypeDecorator[str]):
    """A text, as :func:`kept` has it: a guest's words must not keep it from being noted what became
    of it."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        return None if value is None else kept(value)


ID_TEXT = Text().with_variant(Text(collation="C"), "postgresql")
"""How an :class:`Id` lies in a table: it sorts by its bytes, as in SQLite, whatever the language of
a PostgreSQL database is."""


class Id(Words):
    """An id, or another text that sorts by its bytes."""

    impl = Text
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        return Text(collation="C") if dialect.name == "postgresql" else self.impl_instance


class Moment(TypeDecorator[datetime]):
    """An aware time, kept as microseconds: it comes back exactly, and sorts on every database."""

    impl = BigInteger
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> int | None:
        return None if value is None else microseconds(value)

    def process_result_value(self, value: int | None, dialect: Dialect) -> datetime | None:
        return None if value is None else moment(value)


class Document(TypeDecorator[dict[str, Any]]):
    """A JSON object, kept as text: its keys come back in their order, its numbers as they were.

    A database's own JSON type may sort keys (PostgreSQL's jsonb does). NaN and infinities are
    refused with :exc:`ValueError`, since JSON has none.
    """

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: dict[str, Any] | None, dialect: Dialect) -> str | None:
        return None if value is None else json.dumps(value, separators=(",", ":"), allow_nan=False)

    def process_result_value(self, value: str | None, dialect: Dialect) -> dict[str, Any] | None:
        return None if value is None else json.loads(value)


class Listed(TypeDecorator[tuple[str, ...]]):
    """Some texts in their order, kept as a JSON array."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: tuple[str, ...] | None, dialect: Dialect) -> str | None:
        return None if value is None else json.dumps(value, separators=(",", ":"))

    def process_result_value(self, value: str | None, dialect: Dialect) -> tuple[str, ...] | None:
        return None if value is None else tuple(json.loads(value))


class StatusWord(TypeDecorator[Status]):
    """The status of a session, kept as its word; one that is not known is refused when read."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: Status | None, dialect: Dialect) -> str | None:
        return None if value is None else Status(value).value

    def process_result_value(self, value: str | None, dialect: Dialect) -> Status | None:
        return None if value is None else Status(value)
