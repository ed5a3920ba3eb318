"""The laboratory from the command line, with real machines: results, interrupts, what is left."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from torpor.vm.processes import ProcessId

pytestmark = pytest.mark.machine

QUICK = "what-it-runs-on"
LIMIT = 300.0


def torpor(home: Path, *arguments: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", "from torpor.cli import main; main()", *arguments],
        env=os.environ | {"TORPOR_HOME": str(home)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.fixture(scope="module", autouse=True)
def prepared(tmp_path_factory: pytest.TempPathFactory) -> None:
    """What machines start from is there, so that no test below waits for it to be made."""
    done = torpor(tmp_path_factory.mktemp("home"), "lab", "prepare")
    _, err = done.communicate()
    assert done.returncode == 0, err


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """An empty home. Machines that a failed test leaves there are ended."""
    yield tmp_path
    for process in machines(tmp_path):
        process.kill()


def machines(home: Path) -> list[ProcessId]:
    """The processes of machines in ``home``, as their records name them."""
    found = []
    for record in home.glob("lab-*/machines/*/machine.json"):
        process = json.loads(record.read_text())["process"]
        if process is not None:
            found.append(ProcessId(process["pid"], process["start"]))
    return found


def with_a_machine(started: "subprocess.Popen[str]", home: Path) -> ProcessId:
    """Wait until the command has a machine that runs, and return its process."""
    deadline = time.monotonic() + LIMIT
    while time.monotonic() < deadline and started.poll() is None:
        running = [process for process in machines(home) if process.alive()]
        if running:
            return running[0]
        time.sleep(0.05)
    started.kill()
    raise AssertionError(f"no machine came: {started.communicate()}")


def test_to_prepare_what_is_there_says_nothing(home: Path) -> None:
    done = torpor(home, "lab", "prepare")
    assert done.communicate() == ("", "")
    assert done.returncode == 0


def test_a_proof_prints_its_json_alone_and_leaves_nothing(home: Path, tmp_path: Path) -> None:
    raw = tmp_path / "raw"
    done = torpor(home, "lab", "proof", "--only", QUICK, "--json", "--raw", str(raw))
    out, err = done.communicate()
    said = json.loads(out)
    assert (done.returncode, said["ok"]) == (0, True), (said, err)
    assert said["checks"]
    assert all(list(check) == ["name", "ok", "expected", "seen"] for check in said["checks"])
    assert [file for file in raw.rglob("*") if file.is_file()]
    assert list(home.glob("lab-*")) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_ends_the_machines_and_removes_their_directory(
    number: signal.Signals, home: Path
) -> None:
    started = torpor(home, "lab", "proof", "--json")
    machine = with_a_machine(started, home)
    started.send_signal(number)
    out, err = started.communicate(timeout=LIMIT)
    assert started.returncode == 128 + number
    assert out == ""
    assert "Traceback" not in err
    assert not machine.alive()
    assert list(home.iterdir()) == []


def test_what_a_killed_command_left_is_told_and_ended(home: Path) -> None:
    started = torpor(home, "lab", "proof", "--json")
    machine = with_a_machine(started, home)
    started.kill()
    started.communicate()
    (left,) = home.glob("lab-*")
    assert machine.alive()  # machines outlive the program that started them
    doctor = torpor(home, "doctor", "--json")
    findings = json.loads(doctor.communicate()[0])["findings"]
    assert [str(left) in each["seen"] for each in findings if each["what"] == "left behind"] == [
        True
    ]
    done = torpor(home, "lab", "prepare")
    assert done.communicate()[0] == ""
    assert done.returncode == 0
    assert not machine.alive()
    assert list(home.iterdir()) == []
