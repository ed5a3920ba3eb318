"""The command line, a real server and real machines: as a user has them."""

import contextlib
import hashlib
import json
import os
import re
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.cli.seats import PROGRAM, ROWS, Seat, seat
from tests.machine.conftest import Start
from tests.machine.serving import COUNTER

pytestmark = pytest.mark.machine

LIMIT = 120.0
COUNT = "i=0; while [ $i -lt {}]; do echo $i; i=$((i+1)); sleep 0.1; done; exit 7"


@dataclass
class Server:
    """A server of its own, and the command line that speaks to it."""

    home: Path
    port: int
    program: "subprocess.Popen[str] | None" = None
    environment: dict[str, str] = field(default_factory=dict)

    def start(self) -> None:
        """Start it, and wait until it serves."""
        self.environment = {
            "TORPOR_HOME": str(self.home),
            "TORPOR_URL": f"http://127.0.0.1:{self.port}",
        }
        self.program = subprocess.Popen(
            [*PROGRAM, "serve", "--listen", f"127.0.0.1:{self.port}"],
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"TORPOR_HOME": str(self.home)},
        )
        assert self.program.stderr is not None
        said = []
        for line in self.program.stderr:
            said.append(line)
            if line.startswith("Torpor is at "):
                break
        else:
            raise AssertionError("".join(said))
        threading.Thread(target=self.program.stderr.read, daemon=True).start()

    def end(self, number: int = signal.SIGTERM) -> None:
        """End it by a signal."""
        assert self.program is not None
        self.program.send_signal(number)
        self.program.wait(LIMIT)
        assert self.program.stderr is not None
        self.program.stderr.close()

    def run(
        self, *arguments: str, given: bytes | None = None
    ) -> "subprocess.CompletedProcess[bytes]":
        """Run ``torpor``."""
        return subprocess.run(
            [*PROGRAM, *arguments],
            input=given,
            stdin=subprocess.DEVNULL if given is None else None,
            capture_output=True,
            env=os.environ | self.environment | {"COLUMNS": "200"},
            timeout=LIMIT,
            check=False,
        )

    def does(self, *arguments: str, given: bytes | None = None) -> str:
        """Run ``torpor``, which must succeed, and return what it prints."""
        done = self.run(*arguments, given=given)
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout.decode()

    def session(self, name: str) -> dict[str, Any]:
        """Return what ``torpor show`` says."""
        found = json.loads(self.does("show", name, "-o", "json"))
        assert isinstance(found, dict)
        return found

    @contextlib.contextmanager
    def running(self, *arguments: str) -> "Iterator[subprocess.Popen[str]]":
        """Run ``torpor`` beside the test."""
        with subprocess.Popen(
            [*PROGRAM, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | self.environment,
        ) as program:
            yield program
            if program.poll() is None:
                program.kill()

    def seat(self, *arguments: str) -> "contextlib.AbstractContextManager[Seat]":
        """Run ``torpor`` on a terminal."""
        return seat(arguments, self.environment)


def free_ports() -> int:
    """Return a port that is free, and so is the next: a server's previews are there."""
    while True:
        with socket.create_server(("127.0.0.1", 0)) as first:
            port = int(first.getsockname()[1])
            with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port + 1)):
                return port


@pytest.fixture
def server(start: Start, home: Path) -> Iterator[Server]:
    """A server with nothing in it; what is made on it is destroyed."""
    made = Server(home, free_ports())
    made.start()
    yield made
    left = made.does("list", "--all", "-q").split()
    if left:
        made.does("rm", "--yes", *left)
    made.end()
    assert made.program is not None
    assert made.program.returncode == 0


@pytest.fixture
def one(server: Server) -> Server:
    """A server with a session ``one``."""
    server.does("create", "one")
    return server


def lines_of(program: "subprocess.Popen[str]", last: str) -> list[str]:
    """Return the lines of a program's output, up to one."""
    assert program.stdout is not None
    found = []
    for line in program.stdout:
        found.append(line.rstrip("\n"))
        if found[-1] == last:
            return found
    raise AssertionError(f"no {last!r} in {found}, {program.stderr and program.stderr.read()}")


def numbers(lines: Sequence[str]) -> list[int]:
    return [int(line) for line in lines]


def test_the_life_of_a_session(server: Server) -> None:
    said = server.does("create", "one", "-l", "team=search", "-e", "GREETING=hello")
    assert re.search(r"one is ready: \d+\.\d\d s", said)
    assert server.does("exec", "-d", "one", "--", "sh", "-c", COUNTER).strip()
    assert server.does("exec", "one", "--", "sh", "-c", "echo $GREETING") == "hello\n"

    server.does("pause", "--durable", "one")
    assert server.session("one")["status"] == "PAUSED"
    stood = int(server.does("exec", "one", "--", "tail", "-n1", "/root/count"))  # which wakes it
    assert server.session("one")["status"] == "READY"

    checkpoint = json.loads(server.does("checkpoint", "one", "-l", "before", "-o", "json"))
    at_checkpoint = int(server.does("exec", "one", "--", "tail", "-n1", "/root/count"))
    assert at_checkpoint >= stood
    server.does("exec", "one", "--", "touch", "/root/after")
    time.sleep(1)
    later = int(server.does("exec", "one", "--", "tail", "-n1", "/root/count"))
    assert later > at_checkpoint + 5

    forked = json.loads(server.does("fork", "one", "-n", "2", "-o", "json"))["sessions"]
    assert [each["status"] for each in forked] == ["READY", "READY"]
    for child in forked:
        assert int(server.does("exec", child["name"], "--", "tail", "-n1", "/root/count")) > later
        assert server.session(child["id"][:8])["labels"] == {"team": "search"}

    server.does("rollback", "one", "before")
    back = int(server.does("exec", "one", "--", "tail", "-n1", "/root/count"))
    assert at_checkpoint - 5 <= back < later  # the same process counts on from there
    assert server.run("exec", "one", "--", "test", "-e", "/root/after").returncode == 1

    tree = server.does("tree", "one")
    assert checkpoint["id"] in tree
    assert "before" in tree
    assert all(child["name"] in tree for child in forked)
    assert "session.rolled_back" in server.does("logs", "one")
    server.does("rm", "--yes", "one")
    assert server.run("show", "one").returncode == 1


def test_statuses_streams_and_input(one: Server) -> None:
    said = one.run("exec", "one", "--", "sh", "-c", "echo out; echo err >&2; exit 3")
    assert (said.returncode, said.stdout, said.stderr) == (3, b"out\n", b"err\n")
    assert one.run("exec", "one", "--", "sh", "-c", "kill -9 $$").returncode == 137
    assert one.run("exec", "--timeout", "0.5", "one", "--", "sleep", "60").returncode == 143
    missing = one.run("exec", "one", "--", "nix-da")
    assert missing.returncode == 1
    assert missing.stderr.count(b"\n") == 1
    data = os.urandom(1_000_000)
    told = one.run("exec", "one", "--", "sha256sum", given=data)
    assert told.stdout.split()[0].decode() == hashlib.sha256(data).hexdigest()
    assert one.does(
        "exec", "-w", "/srv", "-u", "nobody", "one", "--", "sh", "-c", "id -un; pwd"
    ) == ("nobody\n/srv\n")
    assert one.does("exec", "one", "cat", given=b"") == ""


def test_ctrl_c_is_the_commands(one: Server) -> None:
    trap = "trap 'echo caught; exit 42' INT; echo ready; while :; do sleep 0.1; done"
    with one.running("exec", "one", "--", "sh", "-c", trap) as program:
        lines_of(program, "ready")
        program.send_signal(signal.SIGINT)
        lines_of(program, "caught")
        assert program.wait(LIMIT) == 42
    with one.running("exec", "one", "--", "sh", "-c", "echo ready; exec sleep 600") as program:
        lines_of(program, "ready")
        program.send_signal(signal.SIGINT)
        assert program.wait(LIMIT) == 130


def test_a_command_is_followed_over_a_pause(one: Server) -> None:
    with one.running("exec", "one", "--", "sh", "-c", COUNT.format("60 ")) as program:
        lines_of(program, "5")
        one.does("pause", "one")
        time.sleep(1)
        assert one.session("one")["status"] == "PAUSED"  # following does not wake it
        one.does("resume", "one")
        rest = lines_of(program, "59")
        assert numbers(rest) == list(range(6, 60))
        assert program.wait(LIMIT) == 7


def test_a_command_is_followed_over_a_server_that_is_killed(one: Server) -> None:
    with one.running("exec", "one", "--", "sh", "-c", COUNT.format("100 ")) as program:
        lines_of(program, "5")
        one.end(signal.SIGKILL)
        time.sleep(1)
        one.start()
        assert numbers(lines_of(program, "99")) == list(range(6, 100))
        assert program.wait(LIMIT) == 7


def test_a_shell_survives_a_pause(one: Server) -> None:
    with one.seat("shell", "one") as at:
        at.until(lambda lines: any(line.endswith("#") for line in lines), "prompt")
        at.press("x=forty-two; tty; stty size\r")
        at.shows("/dev/pts/")
        at.shows(f"{ROWS} ")
        one.does("pause", "one")
        at.shows("one is paused")
        assert at.lines[-1].startswith(" one is paused")
        at.press("\r")
        at.hides(" one is ")
        assert one.session("one")["status"] == "READY"
        at.press("echo I know $x\r")
        at.shows("I know forty-two")
        at.press("exit 9\r")
        assert at.ended() == 9
        assert at.cooked


def test_a_shell_is_left_and_gone_back_to(one: Server) -> None:
    with one.seat("shell", "one") as at:
        at.until(lambda lines: any(line.endswith("#") for line in lines), "prompt")
        at.press("x=forty-two\r~.")
        assert at.ended() == 0
        at.shows("--attach")
        found = re.search(r"--attach ([0-9a-f]+)", " ".join(at.lines))
        assert found is not None
        assert at.cooked
    one.does("pause", "one")
    one.end(signal.SIGTERM)
    one.start()
    with one.seat("shell", "--attach", found[1], "one") as at:
        at.shows("one is paused")
        at.press("\r")
        at.until(lambda lines: any(line.endswith("#") for line in lines), "prompt")
        at.press("echo I know $x\r")
        at.shows("I know forty-two")
        at.press("exit\r")
        assert at.ended() == 0


def test_a_full_screen_program_is_drawn_anew_after_a_pause(one: Server) -> None:
    with one.seat("exec", "-t", "one", "--", "top", "-d", "600") as at:
        at.until(lambda lines: "PID" in " ".join(lines) and lines[-1] != "", "whole screen")
        one.does("pause", "one")
        at.shows("one is paused")
        covered = at.lines[-1]
        at.press(" ")  # which has it look again
        at.hides(" one is ")
        at.until(lambda lines: lines[-1] not in ("", covered), "process in the last line")
        at.press("q")
        assert at.ended() == 0


def test_trees_go_in_and_come_out_as_they_are(one: Server, tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "deep/er").mkdir(parents=True)
    for number in range(20):
        (source / f"deep/er/file {number} \u00e9").write_bytes(os.urandom(number * 10_000))
    (source / "run.sh").write_bytes(b"#!/bin/sh\necho ran\n")
    (source / "run.sh").chmod(0o755)
    (source / "link").symlink_to("deep/er")
    one.does("cp", str(source), "one:/srv/tree")
    assert one.does("exec", "one", "--", "/srv/tree/run.sh") == "ran\n"
    assert "root root" in one.does("exec", "one", "--", "ls", "-l", "/srv/tree/run.sh")
    one.does("pause", "one")
    one.does("cp", "one:/srv/tree", str(tmp_path / "back"))  # which wakes it

    def content(tree: Path) -> dict[str, Any]:
        return {
            str(each.relative_to(tree)): each.readlink() if each.is_symlink()
            else each.read_bytes() if each.is_file() else None
            for each in sorted(tree.rglob("*"))
        }  # fmt: skip

    assert content(tmp_path / "back") == content(source)
    assert os.access(tmp_path / "back/run.sh", os.X_OK)
    listed = json.loads(one.does("ls", "one:/srv/tree", "-r", "--sha256", "-o", "json"))
    sums = {each["path"]: each["sha256"] for each in listed}
    assert sums["run.sh"] == hashlib.sha256((source / "run.sh").read_bytes()).hexdigest()
    one.does("cp", "-", "one:/srv/note", given=b"from a pipe\n")
    assert one.does("cp", "one:/srv/note", "-") == "from a pipe\n"


def test_tokens_open_what_their_role_does(server: Server) -> None:
    viewer = server.does("token", "create", "watcher", "--role", "viewer").strip()
    server.environment["TORPOR_TOKEN"] = viewer
    assert server.does("list") == "There are no sessions. `torpor create` makes one.\n"
    refused = server.run("create", "one")
    assert refused.returncode == 1
    assert b"viewer" in refused.stderr
    del server.environment["TORPOR_TOKEN"]
    (found,) = [t for t in json.loads(server.does("token", "list", "-o", "json"))
                if t["name"] == "watcher"]  # fmt: skip
    server.does("token", "revoke", found["id"])
    server.environment["TORPOR_TOKEN"] = viewer
    assert server.run("list").returncode == 1
    del server.environment["TORPOR_TOKEN"]
