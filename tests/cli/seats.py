"""A person at a terminal: a program on a pseudo-terminal, its keys, and what its screen shows."""

import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import pyte

PROGRAM = (sys.executable, "-c", "from torpor.cli import main; main()")
ROWS, COLUMNS = 12, 70
LIMIT = 60.0


class Seat:
    """Who sits at a terminal on which ``torpor`` runs."""

    def __init__(self, control: int, terminal: int, program: "subprocess.Popen[bytes]") -> None:
        self._control = control
        self._terminal = terminal
        self.program = program
        self._screen = pyte.Screen(COLUMNS, ROWS)
        self._stream = pyte.ByteStream(self._screen)
        self.open = True
        self.written = b""
        """All that the program has written."""

    @property
    def lines(self) -> list[str]:
        """What stands on the screen."""
        return [line.rstrip() for line in self._screen.display]

    def press(self, keys: str | bytes) -> None:
        """Press keys."""
        os.write(self._control, keys.encode() if isinstance(keys, str) else keys)

    def resize(self, rows: int, columns: int) -> None:
        """Give the terminal another size; the kernel tells the program."""
        self._screen.resize(rows, columns)
        fcntl.ioctl(self._terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def until(self, seen: Callable[[list[str]], bool], what: str = "") -> None:
        """Watch the screen until it shows something."""
        end = time.monotonic() + LIMIT
        while not seen(self.lines):
            assert time.monotonic() < end, (
                f"no {what} in:\n" + "\n".join(self.lines) + f"\n{self.program.poll()}"
                f"\n{self.written[-2000:]!r}"
            )
            self._look(0.1)

    def shows(self, text: str) -> None:
        """Watch the screen until it shows a text."""
        self.until(lambda lines: any(text in line for line in lines), text)

    def hides(self, text: str) -> None:
        """Watch the screen until it shows a text no more."""
        self.until(lambda lines: not any(text in line for line in lines), f"end of {text}")

    def ended(self) -> int:
        """Watch the screen until the program has ended; return its status."""
        end = time.monotonic() + LIMIT
        while self.program.poll() is None:
            assert time.monotonic() < end, "it runs on with:\n" + "\n".join(self.lines)
            self._look(0.1)
        self._look(0.1)
        return self.program.returncode

    def _look(self, seconds: float) -> None:
        if not select.select([self._control], [], [], seconds)[0]:
            return
        data = os.read(self._control, 65536)
        self.written += data
        self._stream.feed(data)

    def hang_up(self) -> None:
        """Close the window."""
        os.close(self._terminal)
        os.close(self._control)
        self.open = False

    @property
    def cooked(self) -> bool:
        """Whether the terminal is as a shell expects it: lines, echo, Ctrl-C."""
        flags = termios.tcgetattr(self._terminal)[3]
        wanted = termios.ICANON | termios.ECHO | termios.ISIG
        return flags & wanted == wanted


@contextmanager
def seat(arguments: Sequence[str], environment: dict[str, str]) -> Iterator[Seat]:
    """Run ``torpor`` on a terminal; it is killed if it has not ended by the end."""
    control, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    program = subprocess.Popen(
        [*PROGRAM, *arguments],
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        env=os.environ | {"TERM": "xterm"} | environment,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )
    made = Seat(control, terminal, program)
    try:
        # The terminal's own end stays open here: what it is set to can be read after the end.
        yield made
    finally:
        if program.poll() is None:
            program.kill()
        program.wait()
        if made.open:
            os.close(control)
            os.close(terminal)
