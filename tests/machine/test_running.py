"""A server that is stopped, backed up and restored, with real machines: `torpor serve` as it is."""

import contextlib
import os
import pty
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.machine.conftest import Start
from torpor.client import Client
from torpor.settings.presence import presence
from torpor.vm.processes import find_by_prefix

pytestmark = pytest.mark.machine

PROGRAM = [sys.executable, "-c", "from torpor.cli import main; main()"]
LIMIT = 180.0
COUNTER = "n=0; while :; do n=$((n + 1)); echo $n $$ >>/root/log; sleep 0.2; done"
LEAVE, FREEZE = ("--on-stop", "leave"), ("--on-stop", "freeze")


def until(ask: Callable[[], Any], what: str, limit: float = LIMIT) -> Any:
    deadline = time.monotonic() + limit
    while time.monotonic() < deadline:
        found = ask()
        if found:
            return found
        time.sleep(0.05)
    raise AssertionError(f"no {what} within {limit:.0f} s")


class Serving:
    """`torpor serve` over a home, one after another."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.program: subprocess.Popen[bytes] | None = None
        self.url = ""

    @property
    def environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("TORPOR_")}
        cache = os.environ.get("TORPOR_CACHE")
        kept |= {"TORPOR_CACHE": cache} if cache else {}
        return kept | {"TORPOR_HOME": str(self.home)}

    def start(self, *flags: str, terminal: int | None = None, **environment: str) -> "Serving":
        """Start it and wait until it serves."""
        self.program = self.begin(*flags, terminal=terminal, **environment)
        return self.served()

    def served(self) -> "Serving":
        """Wait until it serves."""
        self.url = until(self._presence, "server").url
        return self

    def begin(
        self, *flags: str, terminal: int | None = None, **environment: str
    ) -> "subprocess.Popen[bytes]":
        """Start it."""
        own = {"stdin": terminal, "stdout": terminal, "stderr": terminal} if terminal else {
            "stderr": open(self.home.parent / "serve.log", "ab")  # noqa: SIM115
        }  # fmt: skip
        program = subprocess.Popen(
            [*PROGRAM, "serve", "--listen", "127.0.0.1:0", *flags],
            env=self.environment | environment,
            start_new_session=True,
            preexec_fn=_take_terminal if terminal else None,
            **own,
        )
        if not terminal:
            own["stderr"].close()
        return program

    def _presence(self) -> Any:
        assert self.program is not None
        assert self.program.poll() is None, (self.home.parent / "serve.log").read_text()
        return presence(self.home)

    def client(self) -> Client:
        return Client(self.url, (self.home / "admin-token").read_text().strip())

    def stop(self, *numbers: int) -> float:
        """Send it signals; return how long it then took to end, in good order."""
        assert self.program is not None
        for number in numbers or (signal.SIGTERM,):
            self.program.send_signal(number)
            time.sleep(0.3)
        began = time.monotonic()
        assert self.program.wait(LIMIT) == 0
        self.program = None
        assert presence(self.home) is None
        return time.monotonic() - began

    def run(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        """Run a command of the command line, with this home."""
        return subprocess.run(
            [*PROGRAM, *arguments],
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=LIMIT,
        )

    def machines(self) -> list[int]:
        """Return the processes of this home's machines."""
        from torpor.vm.accelerator import QEMU
        from torpor.vm.home import home_id

        return [each.pid for each in find_by_prefix(f"torpor-{home_id(self.home)}-", (QEMU,))]

    def end(self) -> None:
        """Leave nothing of it."""
        if self.program is None:
            self.start()
        with self.client() as client:
            for each in client.list_sessions().items:
                client.destroy_session(each.id)
        self.stop()
        assert self.machines() == []


def _take_terminal() -> None:
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


@pytest.fixture
def serving(start: Start, home: Path) -> Iterator[Serving]:
    made = Serving(home / "first")
    made.home.mkdir()
    yield made
    made.end()


def count(client: Client, session: str) -> tuple[int, int]:
    """The number and the process of the last line of the counter's log."""
    number, pid = client.run(session, "tail -n 1 /root/log").stdout.split()
    return int(number), int(pid)


def counting(client: Client, name: str) -> str:
    """Create a session in which a counter runs."""
    session = client.create_session(name, wait=True).id
    client.start_exec(session, ["/bin/sh", "-c", COUNTER])
    client.run(session, "until test -s /root/log; do sleep 0.1; done")
    return session


def no_number_is_missing(client: Client, session: str) -> None:
    lines = client.run(session, "cat /root/log").stdout.splitlines()
    assert [int(line.split()[0]) for line in lines] == list(range(1, len(lines) + 1))
    assert len({line.split()[1] for line in lines}) == 1


def test_left_machines_run_on_and_the_next_server_adopts_them(serving: Serving) -> None:
    serving.start(*LEAVE)
    with serving.client() as client:
        session = counting(client, "left")
        before = count(client, session)
        boot = client.get_session(session).boot_id
    processes = serving.machines()
    assert len(processes) == 1
    serving.stop()
    assert serving.machines() == processes
    time.sleep(1)
    serving.start(*LEAVE)
    with serving.client() as client:
        found = client.get_session(session)
        assert (found.status, found.boot_id) == ("READY", boot)
        after = count(client, session)
        assert after[0] >= before[0] + 3, "it counted while there was no server"
        assert after[1] == before[1]
        no_number_is_missing(client, session)
    assert serving.machines() == processes


def test_frozen_machines_are_gone_and_go_on_where_they_were(serving: Serving) -> None:
    """Also one that is kept warm: whoever stops a server so wants nothing left running."""
    serving.start(*FREEZE)
    with serving.client() as client:
        session = counting(client, "frozen")
        client.update_session(session, keep_warm=True)
        before = count(client, session)
    serving.stop()
    assert serving.machines() == []
    time.sleep(1)
    serving.start(*FREEZE)
    with serving.client() as client:
        found = client.get_session(session)
        assert (found.status, found.pause_reason) == ("PAUSED", "server_stop")
        after = count(client, session)
        assert before[0] <= after[0] <= before[0] + 60
        assert after[1] == before[1]
        no_number_is_missing(client, session)


def test_of_two_that_are_started_at_once_on_an_empty_home_one_serves(serving: Serving) -> None:
    both = [serving.begin() for _ in range(2)]
    (refused,) = until(lambda: [each for each in both if each.poll() is not None], "refusal")
    assert refused.returncode == 1
    assert "Another program" in (serving.home.parent / "serve.log").read_text()
    (serving.program,) = (each for each in both if each is not refused)
    with serving.served().client() as client:
        assert client.who_am_i().role == "admin"


def test_the_second_signal_does_not_wait_for_requests(serving: Serving) -> None:
    serving.start(*LEAVE)
    with serving.client() as client:
        session = counting(client, "busy")
        asking = threading.Thread(target=_ask, args=(serving, session))
        asking.start()
        until(lambda: "sleep 100" in _processes(client, session), "request")
    processes = serving.machines()
    assert serving.stop(signal.SIGTERM, signal.SIGTERM) < 20, "the request had 30 s"
    asking.join(LIMIT)
    assert serving.machines() == processes
    serving.start(*LEAVE)
    with serving.client() as client:
        assert "sleep 100" in _processes(client, session), "the command is the machine's"


def _ask(serving: Serving, session: str) -> None:
    with serving.client() as client, contextlib.suppress(Exception):
        client.run(session, "sleep 100", timeout=120)


def _processes(client: Client, session: str) -> list[str]:
    return [" ".join(each.argv) for each in client.list_processes(session)]


def test_ctrl_c_on_a_terminal_ends_the_server_and_no_machine(serving: Serving) -> None:
    """The terminal sends it to all of the foreground: machines are not of it."""
    seat, terminal = pty.openpty()
    try:
        serving.start(terminal=terminal)
        os.close(terminal)
        with serving.client() as client:
            session = counting(client, "seen")
        processes = serving.machines()
        os.write(seat, b"\x03")
        serving.stop(0)
        said = os.read(seat, 1 << 16).decode()
        assert "Ctrl-C stops it; machines run on." in said
        assert serving.machines() == processes
    finally:
        os.close(seat)
    serving.start()
    with serving.client() as client:
        assert client.get_session(session).status == "READY"
        no_number_is_missing(client, session)


def test_ready_is_told_when_it_serves_and_not_before(serving: Serving, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(str(tmp_path / "notify"))
        listening.settimeout(LIMIT)
        serving.start(NOTIFY_SOCKET=str(tmp_path / "notify"))
        told = listening.recv(4096)
        while not told.startswith(b"READY=1"):
            assert told.startswith(b"STATUS=")
            told = listening.recv(4096)
        with serving.client() as client:
            assert client.readiness() == "ok"
        serving.stop()
        assert listening.recv(4096).startswith(b"STOPPING=1")


def test_a_hangup_that_is_ignored_stays_so(serving: Serving) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup(1) does
    try:
        serving.start()
    finally:
        signal.signal(signal.SIGHUP, before)
    assert serving.program is not None
    serving.program.send_signal(signal.SIGHUP)
    time.sleep(1)
    with serving.client() as client:
        assert client.health() == "ok"


def test_a_backup_of_a_server_at_work_goes_on_elsewhere(serving: Serving, home: Path) -> None:
    serving.start()
    with serving.client() as client:
        session = counting(client, "saved")
        client.update_session(session, labels={"team": "blue"}, metadata={"n": [1, None]})
        unsaved = client.create_session("unsaved", wait=True).id
        made = serving.run("backup", str(home / "file"), "--freeze-running", "-o", "json")
        assert made.returncode == 0, made.stderr
        assert client.list_checkpoints(session).items == (), "it was for the backup only"
        here = count(client, session)
        client.destroy_session(unsaved)
    other = Serving(home / "elsewhere" / "torpor")
    said = other.run("restore", str(home / "file"))
    assert said.returncode == 0, said.stderr
    other.start()
    try:
        with other.client() as client:
            names = {each.name: each for each in client.list_sessions().items}
            assert {each.status for each in names.values()} == {"PAUSED"}
            assert (names["saved"].id, names["saved"].labels) == (session, {"team": "blue"})
            assert names["saved"].metadata == {"n": [1, None]}
            there = count(client, session)
            assert there[1] == here[1], "the same process"
            assert there[0] > 0
            until(lambda: count(client, session)[0] > there[0], "counting")
            no_number_is_missing(client, session)
            assert client.run("unsaved", "echo here").stdout == b"here\n"
    finally:
        other.end()


def test_a_backup_without_a_server_has_what_was_saved_and_says_what_was_not(
    serving: Serving, home: Path
) -> None:
    serving.start()
    with serving.client() as client:
        session = counting(client, "kept")
        client.pause_session(session, durable=True)
        number = client.get_session(session).generation
        running = client.create_session("running", wait=True).id
    serving.stop()
    refused = serving.run("backup", str(home / "file"), "--freeze-running")
    assert refused.returncode == 1
    assert "torpor serve" in refused.stderr
    made = serving.run("backup", str(home / "file"))
    assert made.returncode == 0, made.stderr
    assert "running  failed" in made.stdout
    assert serving.machines() != [], "it was read and left alone"
    other = Serving(home / "elsewhere")
    assert other.run("restore", str(home / "file")).returncode == 0
    again = other.run("restore", str(home / "file"))
    assert again.returncode == 1
    assert "is not empty" in again.stderr
    other.start()
    try:
        with other.client() as client:
            assert client.get_session(session).generation == number
            assert client.get_session(running).status == "FAILED"
            first = count(client, session)
            until(lambda: count(client, session)[0] > first[0], "counting")
            no_number_is_missing(client, session)
    finally:
        other.end()
