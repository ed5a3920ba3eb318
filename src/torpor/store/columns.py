"""How values of records lie in columns: times, documents, and the status of a session."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import BigInteger, Dialect, Text
from sqlalchemy.types import TypeDecorator

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


class StatusWord(TypeDecorator[Status]):
    """The status of a session, kept as its word; one that is not known is refused when read."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: Status | None, dialect: Dialect) -> str | None:
        return None if value is None else Status(value).value

    def process_result_value(self, value: str | None, dialect: Dialect) -> Status | None:
        return None if value is None else Status(value)
