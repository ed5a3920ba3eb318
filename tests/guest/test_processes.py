"""The process list of this host, which has what a guest has, and signals by number."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from torpor.guest import processes
from torpor.guest.wire import MAX_BODY, document

ODD = "import ctypes, sys; ctypes.CDLL(None).prctl(15, b'a) b\\xff\\n'); print('x', flush=True);"


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """A process with a name and arguments of any bytes."""
    child = subprocess.Popen(
        [sys.executable, "-c", f"{ODD} sys.stdin.read()", b"\xff\xfe", b"new\nline", b"x" * 5000],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert child.stdout is not None
    child.stdout.readline()
    for _ in range(1000):
        if "\nState:\tS" in Path(f"/proc/{child.pid}/status").read_text("ascii", "replace"):
            break
        time.sleep(0.01)  # it has said so, and does not sleep yet
    yield child
    child.kill()
    child.communicate()


def all_processes(count: int, execs: dict[int, str] | None = None) -> dict[int, dict[str, object]]:
    found = {}
    after: int | None = 0
    while after is not None:
        said = processes.processes({"after": after, "count": count}, execs or {})
        assert len(said["processes"]) <= count
        found |= {each["pid"]: each for each in said["processes"]}
        after = said["next"]
    return found


def test_every_process_is_listed_page_by_page(sleeper: subprocess.Popen[bytes]) -> None:
    for count in (1, 7, 200):
        found = all_processes(count, {sleeper.pid: "command-1"})
        assert {os.getpid(), sleeper.pid} <= set(found)
    ours = found[sleeper.pid]
    assert ours["ppid"] == os.getpid()
    assert ours["session"] == sleeper.pid
    assert ours["uid"] == os.geteuid()
    assert ours["name"] == "a) b\\xff\n"
    assert ours["exec"] == "command-1"
    assert found[os.getpid()]["exec"] is None
    assert ours["state"] == "S"
    assert ours["threads"] == 1
    assert ours["cut"] is True
    assert int(str(ours["memory"])) > 1 << 20
    assert (
        0 < int(str(ours["started_ns"])) <= float(Path("/proc/uptime").read_text().split()[0]) * 1e9
    )


def test_a_command_line_is_cut_and_may_hold_any_bytes(sleeper: subprocess.Popen[bytes]) -> None:
    after = {"after": sleeper.pid - 1, "count": 1}
    [ours] = processes.processes(after, {})["processes"]
    assert ours["argv"][0] == sys.executable[: processes.SHOWN]
    assert ours["argv"][-3:-1] == ["\\xff\\xfe", "new\nline"]
    assert set(ours["argv"][-1]) == {"x"}
    assert len(document({"processes": [ours] * processes.MOST})) < MAX_BODY


def test_a_page_of_the_longest_names_fits_into_a_frame() -> None:
    worst = processes._shown(b"\xff" * processes.SHOWN)
    said = {"argv": [worst], "name": worst, "more": list(range(20))}
    assert len(document({"processes": [said] * processes.MOST})) < MAX_BODY


def cgroup() -> str:
    return processes._cgroup_of(os.getpid())


def test_a_users_process_can_be_signalled(
    sleeper: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Here the child of this process stands for a command, whose parent is the spawner.
    monkeypatch.setattr(os, "getpid", lambda: 1 << 30)
    monkeypatch.setattr(processes, "_cgroup_of", lambda _pid: "/user/docker/1")
    processes.signal({"pid": sleeper.pid, "signal": signal.SIGTERM})
    assert sleeper.wait() == -signal.SIGTERM


def test_the_agent_init_and_the_spawner_are_not_signalled(
    sleeper: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    for place in ("/agent", "/hooks", "/", "", "/users", "/userx/y"):
        monkeypatch.setattr(processes, "_cgroup_of", lambda _pid, place=place: place)
        for pid in (1, os.getpid(), sleeper.pid):
            with pytest.raises(PermissionError, match=f"process {pid} is not one of the user's"):
                processes.signal({"pid": pid, "signal": signal.SIGKILL})
    # The spawner is in the user's cgroup and a child of the agent.
    monkeypatch.setattr(processes, "_cgroup_of", lambda _pid: "/user")
    with pytest.raises(PermissionError):
        processes.signal({"pid": sleeper.pid, "signal": signal.SIGKILL})
    assert sleeper.poll() is None


@pytest.mark.parametrize("pid", [0, -1, -300, 1 << 31, 1 << 70, 999_999_999])
def test_a_number_that_is_no_process_is_refused(pid: int) -> None:
    with pytest.raises(ProcessLookupError):
        processes.signal({"pid": pid, "signal": signal.SIGKILL})


@pytest.mark.parametrize("number", [-1, 65, 1 << 40])
def test_a_number_that_is_no_signal_is_refused(number: int) -> None:
    with pytest.raises(ValueError, match="no signal"):
        processes.signal({"pid": os.getpid(), "signal": number})
