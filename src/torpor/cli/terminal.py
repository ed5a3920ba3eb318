"""The terminal that we sit at, while it belongs to a command in a machine."""

import fcntl
import os
import re
import struct
import sys
import termios
import tty
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from enum import Enum

from torpor.cli.harmless import harmless

SAVE, RESTORE = b"\x1b7", b"\x1b8"
CLEAR_LINE, INVERSE, PLAIN = b"\x1b[2K", b"\x1b[7m", b"\x1b[0m"
ON_BY_DEFAULT = frozenset({7, 25})
"""Private modes that are set unless a program resets them: lines wrap, the cursor is seen."""
LONGEST_MODE = 4
"""Digits of a mode's number; 2026 is about the highest that is in use."""
KEPT_TAIL = 32
"""Bytes of output that a control sequence may be cut in."""


def size_of(descriptor: int) -> tuple[int, int]:
    """Return how many rows and columns a terminal has; 24 and 80 if it does not say."""
    try:
        packed = fcntl.ioctl(descriptor, termios.TIOCGWINSZ, b"\0" * 8)
    except OSError:
        return 24, 80
    rows, columns, _, _ = struct.unpack("HHHH", packed)
    return (rows, columns) if rows and columns else (24, 80)


@contextmanager
def raw(descriptor: int) -> Iterator[None]:
    """Have every key passed on as it is pressed, until the context is left, however it is."""
    before = termios.tcgetattr(descriptor)
    try:
        tty.setraw(descriptor)
        yield
    finally:
        # What was pressed and not yet read was meant for the other end, not for a shell here. A
        # terminal that has gone away (its window was closed) has nothing to be put back.
        with suppress(termios.error):
            termios.tcsetattr(descriptor, termios.TCSAFLUSH, before)


class Key(Enum):
    """What keys say to us and not to the other end."""

    LEAVE = "leave"
    HELP = "help"


HELP = (
    "Keys after Enter:\r\n"
    "  ~.  leave; what runs there runs on\r\n"
    "  ~~  the character ~\r\n"
    "  ~?  this\r\n"
)


class Escapes:
    """Finds what is for us among the keys, as ssh does: ``~`` after Enter, and a key."""

    def __init__(self) -> None:
        self._line_begins = True
        self._waiting = False

    def feed(self, keys: bytes) -> Iterator[bytes | Key]:
        """Yield what is to be passed on, and what is for us, in the order of the keys."""
        passed = bytearray()
        for code in keys:
            key = bytes((code,))
            if self._waiting:
                self._waiting = False
                meant = {b".": Key.LEAVE, b"?": Key.HELP}.get(key)
                if meant is not None:
                    if passed:
                        yield bytes(passed)
                        passed.clear()
                    yield meant
                    self._line_begins = True
                    continue
                if key != b"~":
                    passed += b"~"
            elif key == b"~" and self._line_begins:
                self._waiting = True
                continue
            passed += key
            self._line_begins = key in b"\r\n"
        if passed:
            yield bytes(passed)


class Modes:
    """Which private modes of the terminal the other end has changed, by what it wrote."""

    _SET = re.compile(rb"\x1b\[\?([\d;]{1,24})([hl])")

    def __init__(self) -> None:
        self._changed: dict[int, bool] = {}
        self._tail = b""

    def see(self, output: bytes) -> None:
        """Take note of output."""
        text = self._tail + output
        end = 0
        for found in self._SET.finditer(text):
            end = found.end()
            for mode in found[1].split(b";"):
                if 1 <= len(mode) <= LONGEST_MODE:
                    self._changed[int(mode)] = found[2] == b"h"
        self._tail = text[max(end, len(text) - KEPT_TAIL) :]

    def undo(self) -> bytes:
        """Return what puts the terminal back as it was."""
        wrong = [mode for mode, on in self._changed.items() if on is not (mode in ON_BY_DEFAULT)]
        undone = (b"\x1b[?%d%s" % (m, b"h" if m in ON_BY_DEFAULT else b"l") for m in wrong)
        return PLAIN + b"".join(undone) if wrong else b""


class StatusLine:
    """A line of ours at the bottom of the screen, while the other end has nothing to say."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.shown = False

    def show(self, text: str) -> None:
        """Show a text, in the place of one that is shown."""
        rows, columns = size_of(self._descriptor)
        line = harmless(f" {text} ")[:columns].encode()
        # If the cursor is in the last line, everything moves up by one, so that it is not.
        room = b"" if self.shown else b"\n\x1b[A"
        self._write(
            room + SAVE + self._bottom(rows) + CLEAR_LINE + INVERSE + line + PLAIN + RESTORE
        )
        self.shown = True

    def clear(self) -> bool:
        """Take it away; return whether there was one."""
        if not self.shown:
            return False
        rows, _ = size_of(self._descriptor)
        self._write(SAVE + self._bottom(rows) + CLEAR_LINE + RESTORE)
        self.shown = False
        return True

    def _bottom(self, rows: int) -> bytes:
        return b"\x1b[%d;1H" % rows

    def _write(self, data: bytes) -> None:
        write_all(self._descriptor, data)


def write_all(descriptor: int, data: bytes) -> None:
    """Write all of it, however the descriptor takes it."""
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(descriptor, view) :]
        except BlockingIOError:
            # Somebody who shares the terminal has made it not wait; so we wait ourselves.
            import select

            select.select([], [descriptor], [])


def is_terminal(descriptor: int) -> bool:
    """Whether a descriptor is a terminal's."""
    return os.isatty(descriptor)


STDIN, STDOUT, STDERR = 0, 1, 2


def say(text: str) -> None:
    """Say something of ours, beside what a command says."""
    sys.stderr.write(f"torpor: {harmless(text)}\n")
    sys.stderr.flush()
