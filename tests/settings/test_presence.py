"""Who serves a home is known while it does, and not longer."""

import json
import subprocess
import sys
from pathlib import Path

from torpor.settings.presence import FILE, announce, presence, withdraw


def test_a_server_is_found_until_it_withdraws(tmp_path: Path) -> None:
    assert presence(tmp_path) is None
    announce(tmp_path, "http://127.0.0.1:1", "0.1")
    found = presence(tmp_path)
    assert found is not None
    assert (found.url, found.version) == ("http://127.0.0.1:1", "0.1")
    withdraw(tmp_path)
    assert presence(tmp_path) is None
    withdraw(tmp_path)


def test_one_that_was_killed_is_not_there(tmp_path: Path) -> None:
    program = f"""
import os, pathlib, signal
from torpor.settings.presence import announce
announce(pathlib.Path({str(tmp_path)!r}), "http://127.0.0.1:1", "0.1")
os.kill(os.getpid(), signal.SIGKILL)
"""
    subprocess.run([sys.executable, "-c", program], check=False)
    assert (tmp_path / FILE).exists()
    assert presence(tmp_path) is None


def test_another_process_of_the_same_number_is_not_it(tmp_path: Path) -> None:
    announce(tmp_path, "http://127.0.0.1:1", "0.1")
    said = json.loads((tmp_path / FILE).read_text())
    (tmp_path / FILE).write_text(json.dumps(said | {"started": said["started"] - 1}))
    assert presence(tmp_path) is None


def test_what_is_no_record_is_nobody(tmp_path: Path) -> None:
    for text in ("", "[]", "{}", '{"url": 1, "more": 2}', "null"):
        (tmp_path / FILE).write_text(text)
        assert presence(tmp_path) is None
