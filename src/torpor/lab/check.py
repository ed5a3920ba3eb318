"""A check: what was expected, what was seen, and whether the one is the other."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from torpor.lab.laboratory import Laboratory


@dataclass(frozen=True)
class Check:
    """One line of a proof. ``expected`` and ``seen`` are for people, short and in plain words."""

    name: str
    ok: bool
    expected: str
    seen: str


@dataclass(frozen=True)
class Experiment:
    """Something to do with machines that ends in checks.

    ``name`` is in kebab case and unique; ``story`` says in one sentence what is done and why it
    proves something. An exception out of ``run`` is a failed check.
    """

    name: str
    story: str
    run: Callable[[Laboratory], Awaitable[list[Check]]]
