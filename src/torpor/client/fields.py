"""Reading the members of JSON objects.

A member that is not known is passed over, for the server may be newer; one that is needed and is
not there, or is of another kind, raises :exc:`AnswerError`.
"""

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, NoReturn, TypeVar

from torpor.client.errors import AnswerError

T = TypeVar("T")
Said = Mapping[str, Any]


def text(said: Said, name: str, otherwise: str | None = None) -> str:
    """Return a text; ``otherwise`` stands for one that is missing or null."""
    value = said.get(name)
    value = otherwise if value is None else value
    if not isinstance(value, str):
        _broken(name)
    return value


def perhaps_text(said: Said, name: str) -> str | None:
    """Return a text, or None if it is missing, null or empty."""
    return text(said, name, "") or None


def number(said: Said, name: str, otherwise: int | None = None) -> int:
    """Return a whole number. Protocol buffers write large ones as text, so that is read, too."""
    value = said.get(name)
    value = otherwise if value is None else value
    if isinstance(value, str) and value.removeprefix("-").isdigit():
        value = int(value)
    if type(value) is not int:
        _broken(name)
    return value


def perhaps_number(said: Said, name: str) -> int | None:
    """Return a whole number, or None if it is missing or null."""
    return None if said.get(name) is None else number(said, name)


def real(said: Said, name: str, otherwise: float | None = None) -> float:
    """Return a number."""
    value = said.get(name)
    value = otherwise if value is None else value
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        _broken(name)
    return float(value)


def flag(said: Said, name: str, otherwise: bool | None = None) -> bool:
    """Return a truth value."""
    value = said.get(name)
    value = otherwise if value is None else value
    if not isinstance(value, bool):
        _broken(name)
    return value


def moment(said: Said, name: str) -> datetime:
    """Return a time, aware and in UTC."""
    found = perhaps_moment(said, name)
    if found is None:
        _broken(name)
    return found


def perhaps_moment(said: Said, name: str) -> datetime | None:
    """Return a time, or None if it is missing or null."""
    value = perhaps_text(said, name)
    if value is None:
        return None
    found: datetime | None
    try:
        found = datetime.fromisoformat(value)
    except ValueError:
        found = None
    if found is None or found.tzinfo is None:
        _broken(name)
    return found


def part(said: Said, name: str) -> dict[str, Any]:
    """Return an object."""
    value = said.get(name)
    if not isinstance(value, dict):
        _broken(name)
    return value


def perhaps_part(said: Said, name: str) -> dict[str, Any]:
    """Return an object, an empty one if it is missing or null."""
    return {} if said.get(name) is None else part(said, name)


def parts(said: Said, name: str, read: Callable[[dict[str, Any]], T]) -> tuple[T, ...]:
    """Return what ``read`` makes of each object of a list; a list that is missing is empty."""
    value = said.get(name)
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
        _broken(name)
    return tuple(read(each) for each in value)


def texts(said: Said, name: str) -> tuple[str, ...]:
    """Return a list of texts; one that is missing is empty."""
    value = said.get(name)
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        _broken(name)
    return tuple(value)


def numbers(said: Said, name: str) -> tuple[int, ...]:
    """Return a list of whole numbers; one that is missing is empty."""
    value = said.get(name)
    if value is None:
        return ()
    if not isinstance(value, list) or not all(type(each) is int for each in value):
        _broken(name)
    return tuple(value)


def _broken(name: str) -> NoReturn:
    raise AnswerError(
        f"The server's answer has no {name!r} that can be used. Nothing is known of what it did."
        " See that the address is that of a Torpor server, of this version or a later one."
    )
