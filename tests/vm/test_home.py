"""The lock of a home."""

import fcntl
import os
import subprocess
from pathlib import Path

import pytest

from torpor.vm import HostError
from torpor.vm import home as homes


def held_for(home: Path, seconds: float, holder: str) -> subprocess.Popen[bytes]:
    """Have the lock held by a child, as one has it that a killed program was just starting."""
    fd = os.open(home / "host.lock", os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(fd, fcntl.LOCK_EX)
    os.pwrite(fd, holder.encode(), 0)
    child = subprocess.Popen(["sleep", str(seconds)], pass_fds=(fd,))
    os.close(fd)
    return child


def gone() -> str:
    """Return the number of a process that has ended."""
    with subprocess.Popen(["true"]) as ended:
        return str(ended.pid)


async def test_what_a_killed_program_was_starting_is_waited_for(tmp_path: Path) -> None:
    with held_for(tmp_path, 0.3, gone()):
        fd = await homes.take_lock(tmp_path, wait=False)
    assert os.pread(fd, 20, 0) == str(os.getpid()).encode()
    os.close(fd)


async def test_but_not_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(homes, "DEAD_HOLDER_LIMIT", 0.2)
    with held_for(tmp_path, 60, gone()) as child:
        with pytest.raises(HostError, match=r"has .* open"):
            await homes.take_lock(tmp_path, wait=False)
        child.kill()


async def test_a_program_that_runs_is_told_at_once(tmp_path: Path) -> None:
    with held_for(tmp_path, 60, str(os.getpid())) as child:
        with pytest.raises(HostError, match=f"process {os.getpid()}"):
            await homes.take_lock(tmp_path, wait=False)
        child.kill()
