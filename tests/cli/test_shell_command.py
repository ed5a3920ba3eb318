"""``torpor shell``: a terminal that survives pauses and restarts, and is always put back."""

import json
import signal
import time
from typing import Any

import pytest
from starlette.websockets import WebSocket

from tests.cli.seats import COLUMNS, ROWS, seat
from tests.cli.test_exec_command import PATH, command, ends, environment
from tests.client.double import Double, output


class Guest:
    """A program at the other end that echoes, and does what lines tell it."""

    def __init__(self) -> None:
        self.seq = 0
        self.paused = False

    async def begin(self, websocket: WebSocket) -> None:
        if self.paused:
            await websocket.send_text('{"type":"paused"}')
        else:
            await self.write(websocket, b"$ ")

    async def write(self, websocket: WebSocket, data: bytes) -> None:
        await websocket.send_bytes(output(self.seq, data))
        self.seq += len(data)

    async def heard(self, websocket: WebSocket, said: Any) -> None:
        if not isinstance(said, bytes):
            return
        if self.paused:
            self.paused = False
            await websocket.send_text('{"type":"resumed"}')
        await self.write(websocket, said.replace(b"\r", b"\r\n$ "))
        if b"\x04" in said:
            await websocket.send_text(ends(5))
        elif said == b"P":
            self.paused = True
            await websocket.send_text('{"type":"paused"}')
        elif said == b"R":
            await websocket.close(1012)
        elif said == b"A":
            await self.write(websocket, b"\x1b[?1049h\x1b[?25lwhole screen")


@pytest.fixture
def told(double: Double) -> list[Any]:
    guest = Guest()
    return command(double, guest.begin, guest.heard)


def at_shell(double: Double, *arguments: str) -> Any:
    return seat(["shell", *arguments, "b"], environment(double))


def sizes(told: list[Any]) -> list[tuple[int, int]]:
    return [(s["rows"], s["columns"]) for s in told if isinstance(s, dict) and "rows" in s]


def test_a_shell_is_a_terminal_of_this_size_and_ends_with_its_status(
    double: Double, told: list[Any]
) -> None:
    with at_shell(double, "-e", "A=1") as at:
        at.shows("$")
        at.press("\x03ab\x04")
        assert at.ended() == 5
        assert at.cooked
    assert b"".join(each for each in told if isinstance(each, bytes)) == b"\x03ab\x04"
    said = double.one("POST", "sessions/b/execs").said
    assert said["terminal"] == {"rows": ROWS, "columns": COLUMNS}
    assert (said["env"]["TERM"], said["env"]["A"]) == ("xterm", "1")
    assert said["argv"][:2] == ["/bin/sh", "-c"]


def test_another_size_is_passed_on(double: Double, told: list[Any]) -> None:
    with at_shell(double) as at:
        at.shows("$")
        at.resize(30, 100)
        deadline = time.monotonic() + 60
        while (30, 100) not in sizes(told) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert sizes(told) == [(30, 100)]
        at.press("\x04")
        assert at.ended() == 5


def test_a_pause_is_said_and_the_next_key_wakes_it(double: Double, told: list[Any]) -> None:
    with at_shell(double) as at:
        at.shows("$")
        at.press("P")
        at.shows("b is paused")
        assert at.lines[-1].startswith(" b is paused")
        at.press("x")
        at.hides("is paused")
        at.shows("Px")
        deadline = time.monotonic() + 60
        while len(sizes(told)) < 2 and time.monotonic() < deadline:
            time.sleep(0.05)
        # So that the other end draws what the line has covered.
        assert sizes(told) == [(ROWS - 1, COLUMNS), (ROWS, COLUMNS)]
        at.press("\x04")
        assert at.ended() == 5


def test_a_size_that_changes_during_a_pause_does_not_wake_it(
    double: Double, told: list[Any]
) -> None:
    with at_shell(double) as at:
        at.shows("$")
        at.press("P")
        at.shows("b is paused")
        at.resize(30, 100)
        time.sleep(0.5)
        assert sizes(told) == []
        at.press("x")
        deadline = time.monotonic() + 60
        while (30, 100) not in sizes(told) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert sizes(told)[-1] == (30, 100)
        at.press("\x04")
        assert at.ended() == 5


def test_a_lost_connection_is_said_and_found_again(double: Double, told: list[Any]) -> None:
    with at_shell(double) as at:
        at.shows("$")
        at.press("R")
        at.until(lambda _: len(double.joined) == 2, "second connection")
        at.hides("connection is lost")
        at.press("after\x04")
        at.shows("after")
        assert at.ended() == 5


def test_it_can_be_left_while_the_server_is_away(double: Double, told: list[Any]) -> None:
    with at_shell(double) as at:
        at.shows("$")
        double.stop()
        at.shows("connection is lost")
        at.press("typed meanwhile\r~.")
        assert at.ended() == 0
        at.shows("back to it: torpor shell b --attach e1")
        assert at.cooked
    double.start()


def test_leaving_undoes_what_a_program_did_to_the_screen(double: Double, told: list[Any]) -> None:
    with at_shell(double) as at:
        at.shows("$")
        at.press("A")
        at.shows("whole screen")
        at.press("\r~.")
        assert at.ended() == 0
        assert at.written.rindex(b"\x1b[?1049l") > at.written.rindex(b"\x1b[?1049h")
        assert b"\x1b[?25h" in at.written
        assert at.cooked


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_leaves_it_and_puts_the_terminal_back(
    double: Double, told: list[Any], number: signal.Signals
) -> None:
    with at_shell(double) as at:
        at.shows("$")
        assert not at.cooked
        at.program.send_signal(number)
        at.ended()
        assert at.cooked


def test_an_error_of_the_server_puts_the_terminal_back(double: Double) -> None:
    async def begin(websocket: WebSocket) -> None:
        await websocket.send_bytes(output(0, b"$ "))

    async def heard(websocket: WebSocket, said: Any) -> None:
        if said == b"x":
            error = {"type": "error", "id": "destroyed", "message": "It was destroyed."}
            await websocket.send_text(json.dumps(error))
            await websocket.close(4404, "destroyed")

    command(double, begin, heard)
    with at_shell(double) as at:
        at.shows("$")
        at.press("x")
        assert at.ended() == 1
        at.shows("It was destroyed.")
        assert at.cooked


def test_going_back_shows_what_is_kept_and_goes_on(double: Double, told: list[Any]) -> None:
    with seat(["shell", "b", "--attach", "e1"], environment(double)) as at:
        at.shows("$")
        at.press("hello")
        at.shows("hello")
        time.sleep(0.3)
        at.press("\x04")
        assert at.ended() == 5
    assert double.asked == []  # nothing is started
    assert sizes(told) == [(ROWS - 1, COLUMNS), (ROWS, COLUMNS)]  # and all is drawn anew
    assert double.joined == [f"{PATH}?seq=0"]


def test_exec_with_a_terminal_is_the_same(double: Double, told: list[Any]) -> None:
    with seat(["exec", "-t", "b", "--", "top", "-d", "1"], environment(double)) as at:
        at.shows("$")
        at.press("\x04")
        assert at.ended() == 5
    said = double.one("POST", "sessions/b/execs").said
    assert said["argv"] == ["top", "-d", "1"]
    assert said["terminal"] == {"rows": ROWS, "columns": COLUMNS}


def test_a_window_that_is_closed_leaves_it(double: Double, told: list[Any]) -> None:
    with at_shell(double) as at:
        at.shows("$")
        at.hang_up()
        assert at.program.wait(60) == 128 + signal.SIGHUP
    assert not any(isinstance(each, dict) and each["type"] == "signal" for each in told)


def test_a_window_that_is_closed_over_a_command_tells_it(double: Double) -> None:
    async def begin(websocket: WebSocket) -> None:
        await websocket.send_bytes(output(0, b"begun\n"))

    async def heard(websocket: WebSocket, said: Any) -> None:
        if isinstance(said, dict) and said["type"] == "signal":
            # It has something to say still, and nobody to say it to.
            await websocket.send_bytes(output(6, b"ending\n"))
            await websocket.send_text(ends(3))

    told = command(double, begin, heard)
    with seat(["exec", "b", "--", "work"], environment(double)) as at:
        at.shows("begun")
        at.hang_up()
        assert at.program.wait(60) == 128 + signal.SIGHUP
    said = [each for each in told if isinstance(each, dict) and each["type"] == "signal"]
    assert [each["signal"] for each in said] == [signal.SIGHUP]
