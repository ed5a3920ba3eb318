"""``torpor exec``: streams, signals and exit statuses, as if the command ran here."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest
from starlette.responses import JSONResponse
from starlette.websockets import WebSocket, WebSocketDisconnect

from tests.cli.seats import PROGRAM, seat
from tests.client.double import Double, output, refusal

PATH = "/v2/agents/sessions/b/execs/e1/stream"


def ends(code: int | None = 0, number: int | None = None, **more: Any) -> str:
    return json.dumps({"type": "exit", "code": code, "signal": number, "timed_out": False, **more})


Heard = Callable[[WebSocket, "bytes | dict[str, Any]"], Any]


def command(
    double: Double,
    begin: Callable[[WebSocket], Any] | None = None,
    heard: Heard | None = None,
) -> list[Any]:
    """Have a command in session b that does ``begin``, and ``heard`` for what it is told; return
    the list of what it was told."""
    told: list[Any] = []

    async def talk(websocket: WebSocket) -> None:
        await websocket.accept()
        try:
            if begin is not None:
                await begin(websocket)
            while True:
                message = await websocket.receive()
                if message["type"] != "websocket.receive":
                    return
                data = message.get("bytes")
                said = json.loads(message["text"]) if data is None else data
                told.append(said)
                if heard is not None:
                    await heard(websocket, said)
        except (WebSocketDisconnect, RuntimeError):
            pass

    double.on("POST", "sessions/b/execs", JSONResponse({
        "exec": {"exec_id": "e1", "argv": ["x"], "pid": 412, "running": True}
    }))  # fmt: skip
    double.sockets[PATH] = talk
    return told


def environment(double: Double) -> dict[str, str]:
    return {"TORPOR_URL": double.url, "TORPOR_TOKEN": "torpor_t_s"}


def torpor(double: Double, *arguments: str, given: bytes = b"") -> Any:
    return subprocess.run(
        [*PROGRAM, *arguments],
        input=given,
        capture_output=True,
        env=os.environ | environment(double),
        timeout=60,
        check=False,
    )


async def echo(websocket: WebSocket, said: Any) -> None:
    """Give input back, and end with it."""
    if isinstance(said, bytes):
        await websocket.send_bytes(output(0, said))
    elif said["type"] == "eof":
        await websocket.send_text(ends(3))


def test_streams_stay_apart_and_the_status_is_the_commands(double: Double) -> None:
    async def write(websocket: WebSocket) -> None:
        await websocket.send_bytes(output(0, b"out\0\xff"))
        await websocket.send_bytes(output(5, b"err", 2))
        await websocket.send_text(ends(7))

    command(double, write)
    said = torpor(
        double, "exec", "-e", "A=1", "-w", "/srv", "-u", "nobody", "--timeout", "2.5",
        "b", "--", "ls", "-l", "--", "-e",
    )  # fmt: skip
    assert (said.returncode, said.stdout, said.stderr) == (7, b"out\0\xff", b"err")
    assert double.one("POST", "sessions/b/execs").said == {
        "argv": ["ls", "-l", "--", "-e"],
        "env": {"A": "1"},
        "workdir": "/srv",
        "user": "nobody",
        "limit_seconds": 2.5,
        "stdin": True,
    }


def test_input_goes_to_its_end_byte_for_byte(double: Double) -> None:
    told = command(double, heard=echo)
    data = os.urandom(200_000)
    said = torpor(double, "exec", "b", "cat", given=data)
    assert said.returncode == 3
    assert b"".join(each for each in told if isinstance(each, bytes)) == data
    assert told[-1] == {"type": "eof"}


def test_no_stdin_reads_none(double: Double) -> None:
    async def write(websocket: WebSocket) -> None:
        await websocket.send_text(ends(0))

    told = command(double, write)
    assert torpor(double, "exec", "-n", "b", "true", given=b"for another").returncode == 0
    assert told == []
    assert "stdin" not in double.one("POST", "sessions/b/execs").said


@pytest.mark.parametrize(
    ("end", "status", "words"),
    [
        (ends(0), 0, b""),
        (ends(255), 255, b""),
        (ends(None, 9), 137, b""),
        (ends(None, 15, timed_out=True), 143, b"its time was over"),
    ],
)
def test_a_signal_is_128_and_its_number(
    double: Double, end: str, status: int, words: bytes
) -> None:
    async def write(websocket: WebSocket) -> None:
        await websocket.send_text(end)

    command(double, write)
    said = torpor(double, "exec", "b", "x")
    assert said.returncode == status
    assert words in said.stderr


def test_detach_prints_the_id_and_goes(double: Double) -> None:
    command(double)
    said = torpor(double, "exec", "--detach", "b", "sleep", "9")
    assert (said.returncode, said.stdout, double.joined) == (0, b"e1\n", [])
    assert double.one("POST", "sessions/b/execs").said == {"argv": ["sleep", "9"], "env": {}}


def test_a_program_that_is_not_there_is_told_once(double: Double) -> None:
    double.on("POST", "sessions/b/execs", refusal(404, "guest_enoent", "There is no program 'x'."))
    said = torpor(double, "exec", "b", "x")
    assert (said.returncode, said.stdout) == (1, b"")
    assert said.stderr == b"There is no program 'x'.\n"


def test_signals_are_passed_on(double: Double) -> None:
    async def begin(websocket: WebSocket) -> None:
        await websocket.send_bytes(output(0, b"ready\n"))

    async def heard(websocket: WebSocket, said: Any) -> None:
        if isinstance(said, dict) and said["type"] == "signal" and said["signal"] == 15:
            await websocket.send_text(ends(None, 15))

    told = command(double, begin, heard)
    running = subprocess.Popen(
        [*PROGRAM, "exec", "-n", "b", "x"],
        stdout=subprocess.PIPE,
        env=os.environ | environment(double),
    )
    assert running.stdout is not None
    with running, running.stdout:
        assert running.stdout.readline() == b"ready\n"
        for number in (signal.SIGINT, signal.SIGTERM):
            running.send_signal(number)
            time.sleep(0.2)
        assert running.wait(60) == 143
    assert told == [{"type": "signal", "signal": 2}, {"type": "signal", "signal": 15}]


def test_a_reader_that_has_gone_ends_the_command(double: Double) -> None:
    async def begin(websocket: WebSocket) -> None:
        with contextlib.suppress(WebSocketDisconnect):  # what it said before it went is read below
            for number in range(200):
                await websocket.send_bytes(output(number * 4096, b"y\n" * 2048))
                await asyncio.sleep(0.005)

    told = command(double, begin)
    with subprocess.Popen(
        [*PROGRAM, "exec", "-n", "b", "yes"],
        stdout=subprocess.PIPE,
        env=os.environ | environment(double),
    ) as running:
        assert running.stdout is not None
        running.stdout.read(10)
        running.stdout.close()
        assert running.wait(60) == 128 + signal.SIGPIPE
    deadline = time.monotonic() + 60
    while not told and time.monotonic() < deadline:
        time.sleep(0.05)
    assert told == [{"type": "signal", "signal": 13}]


def test_a_restart_of_the_server_is_not_noticed_but_for_input_that_may_be_lost(
    double: Double,
) -> None:
    async def begin(websocket: WebSocket) -> None:
        if len(double.joined) == 1:
            await websocket.send_bytes(output(0, b"one "))
        else:
            await websocket.send_bytes(output(4, b"two"))
            await websocket.send_text('{"type":"gap","start":7,"end":107}')
            await websocket.send_text(ends(0))

    async def heard(websocket: WebSocket, said: Any) -> None:
        if isinstance(said, bytes):
            await websocket.close(1012)

    command(double, begin, heard)
    said = torpor(double, "exec", "b", "x", given=b"input")
    assert (said.returncode, said.stdout) == (0, b"one two")
    assert b"5 bytes of input" in said.stderr
    assert b"100 bytes of the output are no longer kept" in said.stderr
    assert double.joined == [f"{PATH}?seq=0", f"{PATH}?seq=4"]


def test_three_times_ctrl_c_leaves_what_does_not_hear_it(double: Double) -> None:
    async def begin(websocket: WebSocket) -> None:
        await websocket.send_bytes(output(0, b"deaf\n"))

    told = command(double, begin)
    with seat(["exec", "b", "x"], environment(double)) as at:
        at.shows("deaf")
        for _ in range(3):
            at.press("\x03")
            time.sleep(0.2)
        assert at.ended() == 130
        at.shows("torpor exec --attac")
    assert told[:2] == [{"type": "signal", "signal": 2}] * 2


def test_a_terminal_is_only_for_terminals(double: Double) -> None:
    command(double)
    for words in (["exec", "-t", "b", "sh"], ["shell", "b"]):
        said = torpor(double, *words)
        assert said.returncode == 2
        assert b"must be a terminal" in said.stderr
    assert double.asked == []


@pytest.mark.parametrize(
    "words",
    [
        ["exec", "b"],
        ["exec", "b", "--"],
        ["exec", "-t", "-d", "b", "x"],
        ["exec", "-t", "-n", "b", "x"],
        ["exec", "-e", "NOT_SET_HERE", "b", "x"],
        ["exec", "--attach", "e1", "b", "x"],
        ["exec", "-d", "--attach", "e1", "b"],
        ["shell", "b", "--attach", "e1", "--", "x"],
    ],
)
def test_wrong_usage_ends_with_2_and_asks_for_nothing(double: Double, words: list[str]) -> None:
    assert torpor(double, *words).returncode == 2
    assert double.asked == []


def test_going_back_shows_what_it_writes_and_leaves_it_alone(double: Double) -> None:
    async def write(websocket: WebSocket) -> None:
        await websocket.send_bytes(output(0, b"kept, "))
        await websocket.send_bytes(output(6, b"new"))
        if len(double.joined) > 1:
            await websocket.send_text(ends(4))

    told = command(double, write)
    with subprocess.Popen(
        [*PROGRAM, "exec", "--attach", "e1", "b"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | environment(double),
    ) as running:
        assert running.stdout is not None
        assert running.stdout.read(9) == b"kept, new"
        running.send_signal(signal.SIGINT)
        assert running.wait(60) == 130
    said = torpor(double, "exec", "--attach", "e1", "b", given=b"not for it")
    assert (said.returncode, said.stdout) == (4, b"kept, new")
    assert told == []
    assert double.asked == []


def test_a_server_that_stays_away_is_told_with_the_way_back(double: Double) -> None:
    async def begin(websocket: WebSocket) -> None:
        await websocket.send_bytes(output(0, b"ready\n"))

    command(double, begin)
    program = (
        "import torpor.client.async_client as c;"
        "a = c.AsyncClient.attach;"
        "c.AsyncClient.attach = lambda *w, **k: a(*w, **{**k, 'patience': 0.5});"
        "from torpor.cli import main; main()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, "exec", "-n", "b", "x"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | environment(double),
    ) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == b"ready\n"
        double.stop()
        _, said = running.communicate(timeout=60)
        assert running.returncode == 1
    assert b"torpor exec --attach e1 b" in said
    assert b"Traceback" not in said
    double.start()
