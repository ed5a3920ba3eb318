"""A server's disk fills: what cannot be done says so, what runs is held, and nothing breaks."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.machine.conftest import Start

pytestmark = [
    pytest.mark.machine,
    pytest.mark.skipif(os.geteuid() != 0, reason="a file system is mounted"),
]

ROOT = Path(__file__).parents[2]


def test_a_full_disk_holds_writers_and_breaks_nothing(start: Start, home: Path) -> None:
    program = [sys.executable, "-m", "tests.machine.full_disk", str(home), str(start.maker.cache)]
    done = subprocess.run(
        ["unshare", "--mount", *program],
        stdout=subprocess.PIPE,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'src'}"},
        timeout=400,
    )
    assert done.returncode == 0
    said = json.loads(done.stdout)
    almost, full = said["refused"].values()
    for name, answer in [*almost.items(), *full.items()]:
        # A machine whose own writing is held by it cannot be frozen; a new one may still start.
        done = answer.startswith("done") and name == "create" and answer in almost.values()
        assert done or "space" in answer or "full" in answer, f"{name}: {answer}"
        assert not name.endswith("held") or answer.startswith("507 no_space"), f"{name}: {answer}"
    assert said["states"] == [["READY", "READY"]] * 3  # the last of another program
    quick = list(said["seconds"].values())[1]
    assert max(quick.values()) < 30
    assert said["read"][0] == "ok"
    assert said["reads"] < 10
    assert {answer.partition(":")[0] for answer in said["asked"].values()} == {"507 no_space"}
    assert "The disk is full" in said["start"]
    assert said["uploaded"] == 32 << 20
    assert said["written"] == said["there"]
    assert said["written"].split()[-1] == str(96 << 20)
    assert said["counted"]
    assert set(said["statuses"]) == {"READY"}
    assert said["integrity"] == "ok"
