"""A request as plain data, with what reads its answer: no connection, no waiting.

Both clients send the same calls, so what one can do the other can, in the same way.
"""

import json
import secrets
from collections.abc import AsyncIterable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeVar
from urllib.parse import quote, urlencode

from torpor.client.errors import AnswerError, api_error

T = TypeVar("T")
Content = bytes | Iterable[bytes] | AsyncIterable[bytes]

ROOT = "/v2/agents"
SECONDS = 30.0
"""How long an answer may take that needs no machine."""
LONG = 900.0
"""How long one may take that waits for a machine: a large memory is written, a disk is slow."""

Repeat = Literal["always", "unsent"]
"""Whether a call may be sent again after the connection broke: ``always``, since doing it twice is
doing it once, or only if it was not sent at all."""


@dataclass(frozen=True)
class Answer:
    """An answer, read whole. Names of ``headers`` are in small letters."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> dict[str, Any]:
        """Return the object that the body is. Raises :exc:`AnswerError` if it is none."""
        try:
            said = json.loads(self.body)
        except ValueError:
            said = None
        if not isinstance(said, dict):
            raise AnswerError(
                f"The server answered with status {self.status} and something that is not JSON."
                " See that the address is that of a Torpor server."
            )
        return said


@dataclass(frozen=True)
class Call(Generic[T]):
    """One request, and ``read`` for its answer. ``seconds`` is how long that may take.

    ``gone_is_done``: that what was to be removed is not there means that an earlier try, whose
    answer was lost, has removed it.
    """

    method: str
    path: str
    read: Callable[[Answer], T]
    query: tuple[tuple[str, str], ...] = ()
    headers: Mapping[str, str] = field(default_factory=dict)
    content: Content | None = None
    seconds: float = SECONDS
    repeat: Repeat = "always"
    gone_is_done: bool = False

    @property
    def repeatable(self) -> bool:
        """Whether there is a second time for its content."""
        return self.content is None or isinstance(self.content, bytes)

    def result(self, answer: Answer) -> T:
        """Return what the answer says. Raises the :exc:`ApiError` that it tells of."""
        if answer.status >= 400:
            raise api_error(answer.status, answer.body, answer.headers)
        if not 200 <= answer.status < 300:
            raise AnswerError(
                f"The server answered with status {answer.status}, which Torpor does not."
                " See that the address is that of a Torpor server, and not of something before it."
            )
        return self.read(answer)


def path(*pieces: str) -> str:
    """Return the path of something below the API's root. Raises ValueError for a piece that
    would be another path: nothing, ``.`` and ``..``."""
    for piece in pieces:
        if piece in ("", ".", ".."):
            raise ValueError(f"{piece!r} names nothing: an id or a name is needed")
    return "/".join((ROOT, *(quote(piece, safe="") for piece in pieces)))


def encoded(pairs: tuple[tuple[str, str], ...]) -> str:
    """Return a query as it stands in an address, with its question mark. A path in it may have
    bytes that are not UTF-8, as ``os.fsdecode`` has them."""
    return f"?{urlencode(pairs, errors='surrogateescape')}" if pairs else ""


def query(**members: str | int | bool | None) -> tuple[tuple[str, str], ...]:
    """Return a query; what is None or False is left out."""
    return tuple(
        (name, "true" if value is True else str(value))
        for name, value in members.items()
        if value is not None and value is not False
    )


def document(**members: Any) -> bytes:
    """Return a JSON object; what is None is left out."""
    return json.dumps(
        {name: value for name, value in members.items() if value is not None}
    ).encode()


JSON = {"content-type": "application/json"}


def keyed(key: str | None) -> dict[str, str]:
    """Return the headers of a POST that changes something: with its key, a second one changes
    nothing."""
    return JSON | {"idempotency-key": key or secrets.token_hex(16)}


def nothing(_: Answer) -> None:
    """Read an answer that says no more than that it is done."""
