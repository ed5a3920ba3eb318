"""The commands of a machine, as its agent tells of them."""

from dataclasses import dataclass
from typing import Any

from torpor.vm.channel import readable
from torpor.vm.errors import GuestError

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
        raise _broken("execs")
    return [_parse(each) for each in said]


def _parse(said: object) -> KnownCommand:
    if not isinstance(said, dict):
        raise _broken("execs")
    argv, pid = said.get("argv"), said.get("pid")
    if not isinstance(argv, list) or len(argv) > MOST_WORDS:
        raise _broken("argv")
    return KnownCommand(
        id=_text(said, "id")[:64],
        argv=tuple(readable(word)[:MOST_CHARACTERS] for word in argv),
        pid=None if pid is None else _number(said, "pid"),
        running=said.get("running") is True,
        start=_number(said, "start"),
        end=_number(said, "end"),
    )


def _text(said: dict[str, Any], name: str) -> str:
    text = said.get(name)
    if not isinstance(text, str):
        raise _broken(name)
    return readable(text)


def _number(said: dict[str, Any], name: str) -> int:
    number = said.get(name)
    if type(number) is not int or not 0 <= number <= LARGEST:
        raise _broken(name)
    return number


def _broken(name: str) -> GuestError:
    return GuestError("EPROTO", f"the agent's answer has no {name!r} that can be used")
