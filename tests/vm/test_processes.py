import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from torpor.vm.pages import PAGE, find_mapping
from torpor.vm.processes import (
    DeathWatch,
    ProcessId,
    find_by_prefix,
    identify,
    users_of_processes,
)
from torpor.vm.usage import outer_threads, take_usage

Start = Callable[..., "subprocess.Popen[bytes]"]

RENAMES_ITSELF = """
import ctypes, sys
ctypes.CDLL(None).prctl(15, b"\\xff) Z 1 (\\xfe")  # PR_SET_NAME
print(flush=True)
sys.stdin.read()
"""
HIDES = """
import ctypes, mmap, os, sys
name = b"\\xff)\\nNSpid:\\t7\\nVmRSS \\xfe"
ctypes.CDLL(None).prctl(15, name)  # PR_SET_NAME
memory = open(sys.argv[1], "rb")
mapped = mmap.mmap(memory.fileno(), 0, access=mmap.ACCESS_COPY)
os.rename(sys.argv[1].encode(), sys.argv[1].encode() + b"\\xff")
print(flush=True)
sys.stdin.read()
"""
LEAVES_A_THREAD = """
import ctypes, threading, time
threading.Thread(target=time.sleep, args=(60,)).start()
print(flush=True)
ctypes.CDLL(None).syscall(60, 0)  # exit, of this thread alone
"""


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts programs, and ends what is left of them."""
    started: list[subprocess.Popen[bytes]] = []

    def start(*command: str) -> "subprocess.Popen[bytes]":
        started.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
        return started[-1]

    yield start
    for each in started:
        each.kill()
        each.communicate()


def known(pid: int) -> ProcessId:
    found = identify(pid)
    assert found is not None
    return found


async def within_5_s(event: asyncio.Event) -> None:
    async with asyncio.timeout(5):
        await event.wait()


def wait_until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + 5
    while not true():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_process_is_alive_until_it_ends_not_until_it_is_waited_for(start: Start) -> None:
    child = start("sleep", "60")
    process = known(child.pid)
    assert process == known(child.pid)
    assert process.alive()
    process.kill()
    wait_until(lambda: not process.alive())
    assert Path(f"/proc/{child.pid}").exists()  # still to be waited for
    child.wait()
    assert not process.alive()
    assert identify(child.pid) is None
    process.kill()  # again: nothing to do


def test_a_later_process_with_the_same_number_is_another(start: Start) -> None:
    child = start("sleep", "60")
    earlier = ProcessId(child.pid, known(child.pid).start - 1)
    assert not earlier.alive()
    earlier.kill()
    time.sleep(0.05)
    assert known(child.pid).alive()


def test_a_process_may_have_any_name(start: Start) -> None:
    child = start(sys.executable, "-c", RENAMES_ITSELF)
    assert child.stdout is not None
    child.stdout.readline()
    assert b"\xff" in Path(f"/proc/{child.pid}/stat").read_bytes()
    process = known(child.pid)
    assert process.alive()
    assert process.start > known(os.getpid()).start - 1


def test_a_process_runs_as_long_as_one_of_its_threads(start: Start) -> None:
    child = start(sys.executable, "-c", LEAVES_A_THREAD)
    assert child.stdout is not None
    child.stdout.readline()
    stat = Path(f"/proc/{child.pid}/stat")
    wait_until(lambda: b") Z " in stat.read_bytes())
    process = known(child.pid)
    assert process.alive()
    process.kill()
    wait_until(lambda: not process.alive())


def test_processes_are_found_by_their_argument(start: Start) -> None:
    name = f"torpor-{os.getpid()}-"
    first = start("sleep", "60", f"--{name}")
    child = start(sys.executable, "-c", "input()", f"{name}a")
    program = Path(sys.executable).name
    wait_until(lambda: find_by_prefix(name, [program]) != [])
    assert find_by_prefix(name, [program]) == [known(child.pid)]
    assert find_by_prefix(f"{name}b", [program]) == []
    assert find_by_prefix(name, ["another"]) == []
    assert find_by_prefix(program, [program]) == []  # the program's own name is no argument
    first.wait()


async def test_an_end_is_told_once_and_at_once(start: Start) -> None:
    child = start("sleep", "60")
    ended = asyncio.Event()
    times: list[float] = []
    watch = DeathWatch(known(child.pid), lambda: (times.append(time.monotonic()), ended.set()))  # type: ignore[func-returns-value]
    await asyncio.sleep(0.05)
    assert times == []
    child.kill()
    await within_5_s(ended)
    await asyncio.sleep(0.05)
    assert len(times) == 1
    watch.close()


@pytest.mark.parametrize("state", ["zombie", "gone", "another"])
async def test_an_end_that_has_been_is_told_too(start: Start, state: str) -> None:
    child = start("sleep", "60")
    process = known(child.pid)
    if state == "another":
        process = ProcessId(process.pid, process.start - 1)
    else:
        child.kill()
        wait_until(lambda: not process.alive())
        if state == "gone":
            child.wait()
    ended = asyncio.Event()
    DeathWatch(process, ended.set)
    assert not ended.is_set()  # not before its maker knows it
    await within_5_s(ended)


@pytest.mark.parametrize("state", ["running", "gone"])
async def test_after_close_nothing_is_told_and_nothing_is_open(start: Start, state: str) -> None:
    child = start("sleep", "60")
    process = known(child.pid)
    if state == "gone":
        child.kill()
        child.wait()
    before = len(list(Path("/proc/self/fd").iterdir()))
    told: list[str] = []
    watch = DeathWatch(process, lambda: told.append("ended"))
    watch.close()
    watch.close()
    child.kill()
    await asyncio.sleep(0.1)
    assert told == []
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_a_process_of_any_name_is_counted_and_its_memory_found(
    start: Start, tmp_path: Path
) -> None:
    base = tmp_path / "base"
    base.write_bytes(bytes(4 * PAGE))
    status = base.stat()
    process = start(sys.executable, "-c", HIDES, str(base))
    assert process.stdout is not None
    process.stdout.readline()
    assert b"\xff" in Path(f"/proc/{process.pid}/status").read_bytes()
    inner = outer_threads(process.pid, {process.pid})
    assert inner == {process.pid}
    assert take_usage(process.pid, inner).private > 0
    mapping = find_mapping(process.pid, (status.st_dev, status.st_ino), 4 * PAGE)
    assert mapping.end - mapping.start == 4 * PAGE


def test_one_that_has_ended_is_not_taken_for_one_with_memory(start: Start) -> None:
    process = start(sys.executable, "-c", RENAMES_ITSELF.replace(") Z 1 (", "VmRSS"))
    assert process.stdout is not None
    process.stdout.readline()
    process.kill()
    found = known(process.pid)
    while found.alive():
        time.sleep(0.01)
    with pytest.raises(ProcessLookupError):
        take_usage(process.pid, ())


def test_users_of_processes_are_seen() -> None:
    assert os.geteuid() in users_of_processes()
