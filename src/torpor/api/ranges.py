"""Which bytes of a file a request is for (RFC 9110, section 14)."""

import re
from dataclasses import dataclass

from torpor.api.errors import RefusedError, refused

FORM = re.compile(r"bytes=(\d{0,18})-(\d{0,18})", re.ASCII)


@dataclass(frozen=True)
class Part:
    """Bytes ``start`` to ``end`` (that is the first one not in it) of ``size``."""

    start: int
    end: int
    size: int

    @property
    def content_range(self) -> str:
        """What the header Content-Range says of it."""
        return f"bytes {self.start}-{self.end - 1}/{self.size}"


def part_of(header: str | None, size: int) -> Part | None:
    """Return the part that a header Range asks for, None for the whole.

    A header that is not understood, or asks for several parts, is left alone, as the RFC has it.
    Raises :exc:`RefusedError` (416) for a part that the file does not have.
    """
    form = FORM.fullmatch((header or "").strip())
    if form is None or form.groups() == ("", ""):
        return None
    first, last = form.groups()
    if first:
        start, end = int(first), min(int(last) + 1, size) if last else size
    else:  # the last bytes
        start, end = max(0, size - int(last)), size
    if first and last and int(last) < int(first):
        return None
    if start >= size or start >= end:
        raise _unsatisfiable(size)
    return Part(start, end, size)


def _unsatisfiable(size: int) -> RefusedError:
    return refused(
        416,
        "range_not_satisfiable",
        f"The file has {size} bytes.",
        Content_Range=f"bytes */{size}",
    )
