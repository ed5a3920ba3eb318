"""What the service manager is told, as systemd would hear it."""

import os
import secrets
import socket
from pathlib import Path

import pytest

from torpor.api.supervisor import VARIABLE, Supervisor


def heard(listening: socket.socket) -> list[str]:
    found = []
    listening.setblocking(False)
    while True:
        try:
            found.append(listening.recv(4096).decode())
        except BlockingIOError:
            return found


@pytest.mark.parametrize("abstract", [False, True])
def test_each_step_is_told_once_and_ready_only_when_it_is(tmp_path: Path, abstract: bool) -> None:
    name = f"@torpor-{secrets.token_hex(8)}" if abstract else str(tmp_path / "socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(name.replace("@", "\0", 1) if abstract else name)
        supervisor = Supervisor(name)
        for words in ("building", "building", "a\nb"):
            supervisor.status(words)
        supervisor.ready()
        supervisor.stopping()
        assert heard(listening) == [
            "STATUS=building",
            "STATUS=a b",
            "READY=1\nSTATUS=serving",
            "STOPPING=1\nSTATUS=stopping",
        ]


def test_without_a_service_manager_nothing_happens(tmp_path: Path) -> None:
    for address in (None, "", str(tmp_path / "nobody")):
        supervisor = Supervisor(address)
        supervisor.ready()
        supervisor.stopping()


def test_what_is_started_later_does_not_speak_for_the_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(VARIABLE, "/somewhere")
    Supervisor.of_environment()
    assert VARIABLE not in os.environ
