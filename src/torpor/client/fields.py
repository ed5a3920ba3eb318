"""Reading the members of JSON objects.

A member that is not known is passed over, for the server may be newer; one that is needed and is
not there, or is of another kind, raises :exc:`AnswerError`.
"""

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, TypeVar

from torpor.client.errors import AnswerError

T = TypeVar("T")
Said = Mapping[str, Any]


def text(said: Said, name: str, otherwise: str | None = None) -> str:
    """Return a text; ``otherwise`` stands for one that is missing or null."""
    value = said.get(name)
    value = otherwise if value is None else value
    return value if isinstance(value, str) else _broken(name)


def perhaps_text(said: Said, name: str) -> str | None:
    """Return a text, or None if it is missing, null or empty."""
    return text(said, name, "") or None


def number(said: Said, name: str, otherwise: int | None = None) -> int:
    """Return a whole number. Protocol buffers write large ones as text, so that is read, too."""
    value = said.get(name)
    value = otherwise if value is None else value
    if isinstance(value, str) and value.removeprefix("-").isdigit():
        value = int(value)
    return value if type(value) is int else _broken(name)


def perhaps_number(said: Said, name: str) -> int | None:
    """Return a whole number, or None if it is missing or null."""
    return None if said.get(name) is None else number(said, name)


def real(said: Said, name: str, otherwise: float | None = None) -> float:
    """Return a number."""
    value = said.get(name)
    value = otherwise if value is None else value
    return float(value) if type(value) in (int, float) else _broken(name)


def flag(said: Said, name: str, otherwise: bool | None = None) -> bool:
    """Return a truth value."""
    value = said.get(name)
    value = otherwise if value is None else value
    return value if isinstance(value, bool) else _broken(name)


def moment(said: Said, name: str) -> datetime:
    """Return a time, aware and in UTC."""
    found = perhaps_moment(said, name)
    return _broken(name) if found is None else found


def perhaps_moment(said: Said, name: str) -> datetime | None:
    """Return a time, or None if it is missing or null."""
    value = perhaps_text(said, name)
    if value is None:
        return None
    try:
        found = datetime.fromisoformat(value)
    except ValueError:
        return _broken(name)
    return found if found.tzinfo is not None else _broken(name)


def part(said: Said, name: str) -> dict[str, Any]:
    """Return an object."""
    value = said.get(name)
    return value if isinstance(value, dict) else _broken(name)


def perhaps_part(said: Said, name: str) -> dict[str, Any]:
    """Return an object, an empty one if it is missing or null."""
    return {} if said.get(name) is None else part(said, name)


def parts(said: Said, name: str, read: Callable[[dict[str, Any]], T]) -> tuple[T, ...]:
    """Return what ``read`` makes of each object of a list; a list that is missing is empty."""
    value = said.get(name)
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
        return _broken(name)
    return tuple(read(each) for each in value)


def texts(said: Said, name: str) -> tuple[str, ...]:
    """Return a list of texts; one that is missing is empty."""
    value = said.get(name)
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        return _broken(name)
    return tuple(value)


def _broken(name: str) -> Any:
    raise AnswerError(
        f"The server's answer has no {name!r} that can be used. Nothing is known of what it did."
        " See that the address is that of a Torpor server, of this version or a later one."
    )
