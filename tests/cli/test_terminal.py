"""What keys mean, what is undone on a terminal, and the line at its bottom."""

import os
import pty

import pyte
import pytest

from torpor.cli.terminal import Escapes, Key, Modes, StatusLine, size_of


def fed(*pieces: bytes) -> list[bytes | Key]:
    escapes = Escapes()
    found: list[bytes | Key] = []
    for piece in pieces:
        for each in escapes.feed(piece):
            if found and isinstance(found[-1], bytes) and isinstance(each, bytes):
                found[-1] += each
            else:
                found.append(each)
    return found


@pytest.mark.parametrize(
    ("pieces", "found"),
    [
        ([b"ls ~.\r"], [b"ls ~.\r"]),  # not after Enter
        ([b"\r~."], [b"\r", Key.LEAVE]),
        ([b"~."], [Key.LEAVE]),  # nor is anything before it
        ([b"\r", b"~", b"."], [b"\r", Key.LEAVE]),
        ([b"\r~~."], [b"\r~."]),
        ([b"\r~/bin\r"], [b"\r~/bin\r"]),
        ([b"\r~?x"], [b"\r", Key.HELP, b"x"]),
        ([b"\n~."], [b"\n", Key.LEAVE]),
        ([b"\r~\r~."], [b"\r~\r", Key.LEAVE]),
        ([b"\x1b[A\x03"], [b"\x1b[A\x03"]),
    ],
)
def test_a_tilde_after_enter_is_for_us(pieces: list[bytes], found: list[bytes | Key]) -> None:
    assert fed(*pieces) == found
    assert fed(*(bytes((each,)) for each in b"".join(pieces))) == found


def test_modes_that_a_program_leaves_behind_are_undone() -> None:
    modes = Modes()
    modes.see(b"\x1b[?1049h\x1b[?25l text \x1b[?10")
    modes.see(b"00;1006h")
    undone = modes.undo()
    assert sorted(undone.split(b"\x1b[")[1:]) == [b"0m", b"?1000l", b"?1006l", b"?1049l", b"?25h"]


def test_modes_that_a_program_has_undone_itself_are_left_alone() -> None:
    modes = Modes()
    modes.see(b"\x1b[?1049h\x1b[?25l\x1b[?25h\x1b[?1049l")
    assert modes.undo() == b""


@pytest.mark.parametrize("cursor", [2, 5])
def test_the_line_covers_nothing_that_was_written_at_the_cursor(cursor: int) -> None:
    control, terminal = pty.openpty()
    try:
        import fcntl
        import struct
        import termios

        size = struct.pack("HHHH", 5, 20, 0, 0)
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, size)
        import tty

        tty.setraw(terminal)
        assert size_of(terminal) == (5, 20)
        screen = pyte.Screen(20, 5)
        stream = pyte.ByteStream(screen)

        def look() -> list[str]:
            stream.feed(os.read(control, 4096))
            return [line.rstrip() for line in screen.display]

        stream.feed(b"\r\n".join(b"line%d" % number for number in range(1, cursor)) + b"\r\n$ ")
        line = StatusLine(terminal)
        line.show("it is paused, and more than fits")
        shown = look()
        assert shown[4] == " it is paused, and m"
        assert screen.display[screen.cursor.y].startswith("$ ")
        assert screen.cursor.x == 2
        line.show("woken")
        assert look()[4] == " woken"
        assert line.clear()
        assert look()[4] == ""
        assert screen.display[screen.cursor.y].startswith("$ ")
        assert not line.clear()
    finally:
        os.close(control)
        os.close(terminal)
