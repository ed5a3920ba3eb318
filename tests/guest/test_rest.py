import fcntl
import os
import select
import socket
import struct
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from torpor.guest import rest
from torpor.guest.rest import Rest, RestError


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    """A directory that looks like a cgroup whose processes never freeze and never wake."""
    (tmp_path / "cgroup.freeze").write_text("0\n")
    (tmp_path / "cgroup.events").write_text("populated 1\nfrozen 0\n")
    return tmp_path


@pytest.fixture
def cgroup() -> Iterator[Path]:
    """A real cgroup with one process in it."""
    for root in (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/unified")):
        group = root / f"torpor-test-{os.getpid()}"
        try:
            group.mkdir()
        except OSError:
            continue
        if (group / "cgroup.freeze").exists():
            break
        group.rmdir()
    else:
        pytest.skip("no cgroup (version 2) may be made here")
    sleeper = subprocess.Popen(["sleep", "60"])
    try:
        try:
            (group / "cgroup.procs").write_text(str(sleeper.pid))
        except OSError as error:
            pytest.skip(f"no process may be moved into a cgroup here: {error}")
        yield group
    finally:
        (group / "cgroup.freeze").write_text("0")
        sleeper.kill()
        sleeper.wait()
        _remove(group)


def _remove(group: Path) -> None:
    for _ in range(200):
        try:
            group.rmdir()
        except OSError:
            time.sleep(0.01)
        else:
            return


def frozen(group: Path) -> bool:
    return "frozen 1" in (group / "cgroup.events").read_text()


def test_quiesce_freezes_and_resume_wakes(cgroup: Path) -> None:
    here = Rest(cgroup)
    assert not here.resting
    answer = here.quiesce({"limit_ms": 5000})
    assert here.resting
    assert frozen(cgroup)
    assert answer["synced_ns"] > 0
    here.quiesce({"limit_ms": 5000})  # again: already so
    assert here.resume({"limit_ms": 5000}) == {}
    assert not here.resting
    assert not frozen(cgroup)
    here.resume({"limit_ms": 5000})


@pytest.mark.parametrize("limit", [{"limit_ms": 20}, {"limit_ms": 0}, {"limit_ms": -5}])
def test_a_quiesce_that_takes_too_long_lets_everything_run(
    plain: Path, limit: dict[str, Any]
) -> None:
    with pytest.raises(RestError, match="could not be frozen within"):
        Rest(plain).quiesce(limit)
    assert not Rest(plain).resting


@pytest.mark.parametrize("wanted", [{}, {"limit_ms": "soon"}, {"limit_ms": None}])
def test_a_quiesce_without_a_limit_lets_everything_run(plain: Path, wanted: dict[str, Any]) -> None:
    with pytest.raises((KeyError, ValueError, TypeError)):
        Rest(plain).quiesce(wanted)
    assert not Rest(plain).resting


def test_a_sync_that_fails_lets_everything_run(
    plain: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (plain / "cgroup.events").write_text("frozen 1\n")
    syncs: list[bool] = []

    def sync() -> None:
        syncs.append(Rest(plain).resting)
        if len(syncs) == 2:
            raise OSError("input/output error")

    monkeypatch.setattr(os, "sync", sync)
    with pytest.raises(OSError, match="input/output"):
        Rest(plain).quiesce({"limit_ms": 1000})
    # Once while everything still runs, once after it is frozen.
    assert syncs == [False, True]
    assert not Rest(plain).resting


def test_a_machine_that_cannot_be_woken_says_so(plain: Path) -> None:
    (plain / "cgroup.events").write_text("frozen 1\n")
    with pytest.raises(RestError, match="could not be woken within 10 ms"):
        Rest(plain).resume({"limit_ms": 10})


class Steps:
    """What a wake does to the machine, in order, done to nothing."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, plain: Path) -> None:
        self.done: list[tuple[str, Any]] = []
        monkeypatch.setattr(rest, "add_entropy", lambda _fd, seed: self.note("entropy", seed))
        monkeypatch.setattr(socket, "sethostname", lambda name: self.note("hostname", name))
        monkeypatch.setattr(
            time,
            "clock_settime_ns",
            lambda _clock, ns: self.note("clock", (ns, time.monotonic_ns())),
        )
        real = os.pwrite

        def pwrite(fd: int, data: bytes, offset: int) -> int:
            assert Path(f"/proc/self/fd/{fd}").readlink().is_relative_to(plain)
            self.note("freeze", data.decode())
            return real(fd, data, offset)

        monkeypatch.setattr(os, "pwrite", pwrite)
        monkeypatch.setattr(
            rest, "_overwrite", lambda path, line, _mode: self.note("write", (path, line))
        )

    def note(self, what: str, value: Any) -> None:
        self.done.append((what, value))

    def value(self, what: str) -> Any:
        return dict(self.done)[what]


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch, plain: Path) -> Steps:
    return Steps(monkeypatch, plain)


def wake(plain: Path, received_ns: int, **wanted: Any) -> dict[str, Any]:
    usual = {"entropy": "00" * 64, "echo_ns": 0, "held_ns": 0, "wall_ns": 0, "limit_ms": 1000}
    return Rest(plain).wake(usual | wanted, received_ns)


def test_processes_run_only_after_all_is_right(steps: Steps, plain: Path) -> None:
    wake(plain, time.monotonic_ns(), hostname="twin", machine_id="ab" * 16, entropy="07" * 64)
    assert [what for what, _ in steps.done] == [
        "entropy", "hostname", "write", "clock", "freeze",
    ]  # fmt: skip
    assert steps.value("entropy") == b"\7" * 64
    assert [value for what, value in steps.done if what == "write"] == [
        ("/etc/machine-id", "ab" * 16),
    ]
    assert steps.value("freeze") == "0"


def test_a_machine_that_is_the_same_as_before_keeps_its_names(steps: Steps, plain: Path) -> None:
    wake(plain, time.monotonic_ns())
    assert [what for what, _ in steps.done] == ["entropy", "clock", "freeze"]


@pytest.mark.parametrize(
    ("round_trip_ns", "held_ns", "travel_ns"),
    [(10_000_000, 4_000_000, 3_000_000), (1_000_000, 4_000_000, 0), (0, 0, 0)],
)
def test_the_clock_is_set_as_ntp_does_it(
    steps: Steps, plain: Path, round_trip_ns: int, held_ns: int, travel_ns: int
) -> None:
    received = time.monotonic_ns()
    wall = 1_700_000_000_000_000_000
    answer = wake(plain, received, wall_ns=wall, held_ns=held_ns, echo_ns=received - round_trip_ns)
    assert answer == {"travel_ns": travel_ns}
    set_to, at = steps.value("clock")
    # What passed in the agent before the clock was set is counted too.
    assert 0 <= (wall + travel_ns + at - received) - set_to < 1_000_000_000
    assert set_to >= wall + travel_ns


@pytest.mark.parametrize("wanted", [{"entropy": "xyz"}, {"wall_ns": "now"}, {"echo_ns": None}])
def test_a_wake_that_fails_lets_nothing_run(
    steps: Steps, plain: Path, wanted: dict[str, Any]
) -> None:
    with pytest.raises((ValueError, TypeError)):
        wake(plain, time.monotonic_ns(), **wanted)
    assert "freeze" not in dict(steps.done)


def test_entropy_is_credited_and_taken_up_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[int, bytes | None]] = []
    monkeypatch.setattr(
        fcntl, "ioctl", lambda _fd, call, argument=None: calls.append((call, argument))
    )
    rest.add_entropy(0, b"seed")
    # struct rand_pool_info of linux/random.h: bits, bytes, the bytes.
    assert calls == [(0x40085203, struct.pack("ii", 32, 4) + b"seed"), (0x5207, None)]


@pytest.mark.parametrize("before", [None, "", "old\n", "a much longer line than the new one\n"])
def test_a_line_takes_the_place_of_a_file(tmp_path: Path, before: str | None) -> None:
    file = tmp_path / "machine-id"
    if before is not None:
        file.write_text(before)
    rest._overwrite(str(file), "new", 0o444)
    assert file.read_text() == "new\n"
    if before is None:
        assert file.stat().st_mode & 0o777 == 0o444


def test_the_wait_ends_with_the_change_not_with_the_limit(
    plain: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A regular file never signals POLLPRI: this poll stands in for the kernel's, and counts.
    polls: list[float] = []

    class Poll:
        def register(self, fd: int, events: int) -> None:
            assert events == select.POLLPRI

        def poll(self, timeout: float) -> None:
            polls.append(timeout)
            if len(polls) == 3:
                (plain / "cgroup.events").write_text("frozen 1\n")

    monkeypatch.setattr(select, "poll", Poll)
    Rest(plain).quiesce({"limit_ms": 60_000})
    assert len(polls) == 3
    assert 0 < polls[2] <= polls[0] <= 60_000
