"""Server-sent events: bytes in, frames out (the WHATWG HTML standard, section 9.2)."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torpor.client.errors import AnswerError

LARGEST = 16 << 20
"""Bytes of one frame that are taken."""


@dataclass(frozen=True)
class Frame:
    """One event of a stream. ``id`` is empty if it has none of its own."""

    type: str
    id: str
    data: str

    def document(self) -> dict[str, Any]:
        """Return the object that its data is. Raises :exc:`AnswerError` if it is none."""
        try:
            said = json.loads(self.data)
        except ValueError:
            said = None
        if not isinstance(said, dict):
            raise AnswerError(f"The server sent an event {self.type!r} that is not JSON.")
        return said


class Frames:
    """Takes a stream apart, whatever the pieces it arrives in. ``comments`` has the newest few."""

    def __init__(self) -> None:
        self.comments: list[str] = []
        self._rest = b""
        self._after_return = False
        self._lines: list[str] = []

    def feed(self, piece: bytes) -> Iterator[Frame]:
        """Yield the frames that are complete with this piece."""
        if self._after_return and piece.startswith(b"\n"):
            piece = piece[1:]  # the second half of a line's end
        self._after_return = piece.endswith(b"\r")
        lines = (self._rest + piece).replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        self._rest = lines.pop()
        if len(self._rest) + sum(map(len, self._lines)) > LARGEST:
            raise AnswerError(f"The server sent an event of more than {LARGEST} bytes.")
        for line in lines:
            if line.startswith(b":"):
                self.comments = [*self.comments[-9:], line[1:].strip().decode("utf-8", "replace")]
            elif line:
                self._lines.append(line.decode("utf-8", "replace"))
            elif self._lines:
                yield self._frame()

    def end(self) -> Iterator[Frame]:
        """Yield the last frame of a stream that ends without an empty line. Only a stream that is
        known to be whole may be ended so."""
        yield from self.feed(b"\n\n")

    def _frame(self) -> Frame:
        members: dict[str, list[str]] = {}
        for line in self._lines:
            name, _, value = line.partition(":")
            members.setdefault(name, []).append(value.removeprefix(" "))
        self._lines = []
        return Frame(
            type=members.get("event", ["message"])[-1],
            id=members.get("id", [""])[-1],
            data="\n".join(members.get("data", [])),
        )
