"""Ports of this computer that lead into a session, as a shell sees it."""

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest
from starlette.responses import JSONResponse
from starlette.websockets import WebSocket
from typer.testing import CliRunner

from tests.client.double import Double, refusal, session
from torpor.cli.app import app

ID = session()["session_id"]


def started(double: Double, *arguments: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", "from torpor.cli import main; main()", "port-forward", *arguments],
        env=os.environ | {"TORPOR_URL": double.url, "TORPOR_TOKEN": "torpor_t_s"},
        stderr=subprocess.PIPE,
        text=True,
    )


def local_ports(program: "subprocess.Popen[str]", count: int) -> list[int]:
    """Return the ports that a program says it listens on."""
    assert program.stderr is not None
    lines = [program.stderr.readline() for _ in range(count)]
    return [int(re.findall(r"^127\.0\.0\.1:(\d+) is port", line)[0]) for line in lines]


@pytest.fixture
def forwarding(double: Double) -> Iterator["subprocess.Popen[str]"]:
    """Two ports of `build-7`: at one somebody shouts, at the other nobody listens."""

    async def shout(websocket: WebSocket) -> None:
        await websocket.accept()
        said = b""
        while (message := await websocket.receive()).get("text") != '{"type":"eof"}':
            said += message["bytes"]
        await websocket.send_bytes(said.upper())
        await websocket.close()

    async def nobody(websocket: WebSocket) -> None:
        why = refusal(502, "guest_econnrefused", "Nobody listens on port 9.")
        await websocket.send_denial_response(why)

    double.on("GET", "sessions/build-7", JSONResponse({"session": session()}))
    double.sockets[f"/v2/agents/sessions/{ID}/port-forward/8000"] = shout
    double.sockets[f"/v2/agents/sessions/{ID}/port-forward/9"] = nobody
    program = started(double, "build-7", "0:8000", "0:9")
    yield program
    program.kill()
    program.communicate()


def asked(port: int, data: bytes) -> bytes:
    """Send bytes to a local port, end there, and return what comes back."""
    with socket.create_connection(("127.0.0.1", port), 10) as connection:
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        answer = b""
        while piece := connection.recv(1 << 16):
            answer += piece
        return answer


def test_each_connection_is_one_of_its_own_and_ends_as_it_does(
    forwarding: "subprocess.Popen[str]",
) -> None:
    shouting, _ = local_ports(forwarding, 2)
    assert asked(shouting, b"hello") == b"HELLO"
    assert asked(shouting, b"x" * 300_000) == b"X" * 300_000
    forwarding.send_signal(signal.SIGINT)
    assert forwarding.wait(10) == 130


def test_a_connection_that_is_refused_is_told_and_the_others_go_on(
    forwarding: "subprocess.Popen[str]",
) -> None:
    shouting, silent = local_ports(forwarding, 2)
    try:
        assert asked(silent, b"hello") == b""
    except ConnectionResetError:
        pass  # what was sent was not read
    assert forwarding.stderr is not None
    assert forwarding.stderr.readline() == "port 9: Nobody listens on port 9.\n"
    assert asked(shouting, b"hello") == b"HELLO"


def test_a_port_that_is_taken_is_one_line_and_none_is_listened_on(double: Double) -> None:
    double.on("GET", "sessions/build-7", JSONResponse({"session": session()}))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        program = started(double, "build-7", "0:8000", f"{port}:8000")
        _, said = program.communicate(timeout=20)
    assert program.returncode == 1
    assert said == f"127.0.0.1:{port} cannot be listened on: address already in use.\n"


@pytest.mark.parametrize("words", ["0", "x", "1:2:3", "80:", "65536", "8000:0", "-1:80", "²"])
def test_what_is_no_port_is_wrong_usage(double: Double, words: str) -> None:
    environment = {"TORPOR_URL": double.url, "TORPOR_TOKEN": "torpor_t_s"}
    said = CliRunner(env=environment).invoke(app, ["port-forward", "build-7", "--", words])
    assert said.exit_code == 2
    assert double.asked == []
