"""Lists that a server gives a page at a time."""

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from torpor.client import Page

T = TypeVar("T")

MOST = 200
"""How many there may be on a page."""


def first(limit: int | None, page: "Callable[[int, str | None], Page[T]]") -> tuple[list[T], bool]:
    """Return the first ``limit``, or all, and whether there are more. ``page`` returns so many at
    most, from where the one before has ended."""
    found: list[T] = []
    after: str | None = None
    while True:
        asked = MOST if limit is None else min(MOST, limit - len(found))
        got = page(asked, after)
        found += got.items
        after = got.next
        if after is None or (limit is not None and len(found) >= limit):
            return found, after is not None
