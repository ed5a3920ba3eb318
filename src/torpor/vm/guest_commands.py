"""The commands of a machine, as its agent tells of them."""

from dataclasses import dataclass
from typing import Any

from torpor.vm.answers import broken, number
from torpor.vm.channel import readable

MOST = 10_000
"""Commands that are taken from one answer."""
MOST_WORDS, MOST_CHARACTERS = 300, 1024
"""Words of a command line, and characters of each; the agent leaves out what is beyond 256 in
all."""
LARGEST = 1 << 62


@dataclass(frozen=True)
class KnownCommand:
    """A command that runs in a machine, or has run: of its output, bytes ``start`` to ``end`` are
    kept. What is not UTF-8 in ``argv`` is shown as ``\\xff``."""

    id: str
    argv: tuple[str, ...]
    pid: int | None
    running: bool
    start: int
    end: int


def parse_commands(said: object) -> list[KnownCommand]:
    """Return what the agent said. Raises :exc:`GuestError` if it has not the form."""
    if not isinstance(said, list) or len(said) > MOST:
        raise broken("execs")
    return [_parse(each) for each in said]


def _parse(said: object) -> KnownCommand:
    if not isinstance(said, dict):
        raise broken("execs")
    argv, pid = said.get("argv"), said.get("pid")
    if not isinstance(argv, list) or len(argv) > MOST_WORDS:
        raise broken("argv")
    return KnownCommand(
        id=_text(said, "id")[:64],
        argv=tuple(readable(word)[:MOST_CHARACTERS] for word in argv),
        pid=None if pid is None else number(said, "pid", most=LARGEST),
        running=said.get("running") is True,
        start=number(said, "start", most=LARGEST),
        end=number(said, "end", most=LARGEST),
    )


def _text(said: dict[str, Any], name: str) -> str:
    text = said.get(name)
    if not isinstance(text, str):
        raise broken(name)
    return readable(text)
