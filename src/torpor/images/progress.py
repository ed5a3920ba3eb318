"""What a build tells while it runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Step:
    """One moment of a build.

    `done` and `total` count in `unit` ("bytes", "files", "packages"); None where it is not known.
    A step of the same name replaces the one before.
    """

    name: str
    done: int | None = None
    total: int | None = None
    unit: str = ""


Report = Callable[[Step], None]


def silent(step: Step) -> None:
    """A Report that drops what it is told."""
