"""A machine's process is watched, and its end explained, whoever has started it."""

import asyncio
import subprocess
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from torpor.vm.endings import Cause
from torpor.vm.errors import ChannelLostError, RebootedError, VmError
from torpor.vm.machine_process import CONSOLE_LOG, MachineProcess
from torpor.vm.manifest import MachineRecord
from torpor.vm.processes import identify

REBOOTED = RebootedError("It was rebooted.")
LOST = ChannelLostError("The channel was lost.")


class Watched:
    """A program in the place of QEMU, watched as a machine's process."""

    def __init__(self, directory: Path, record: MachineRecord) -> None:
        (directory / CONSOLE_LOG).write_text("the last words\n")
        self.child = subprocess.Popen(["/bin/sleep", "600"])
        self.died = asyncio.Event()
        self.record = replace(record, process=identify(self.child.pid))
        self.process = MachineProcess(directory, self.record, self.died.set, self.child)


@pytest.fixture
async def watched(tmp_path: Path, some_record: MachineRecord) -> AsyncIterator[Watched]:
    watched = Watched(tmp_path, some_record)
    yield watched
    watched.process.unwatch()
    await watched.process.close()
    watched.child.kill()
    watched.child.wait()


async def test_an_end_is_noticed_and_explained_and_no_child_is_left(watched: Watched) -> None:
    watched.process.kill()
    async with asyncio.timeout(10):
        await watched.died.wait()
        cause, reason = await watched.process.explain_end()
    assert cause is Cause.CRASH
    assert "machine died" in reason.happened
    assert reason.console == "the last words"
    assert watched.child.returncode is not None
    assert watched.process.gone is None  # nobody has told yet


async def test_what_the_monitor_said_is_the_reason(watched: Watched) -> None:
    watched.process.shutdown = "guest-shutdown"
    watched.process.kill()
    async with asyncio.timeout(10):
        assert (await watched.process.explain_end())[0] is Cause.POWER_OFF


async def test_what_is_told_first_is_what_all_hear(watched: Watched) -> None:
    waiting = asyncio.create_task(watched.process.or_gone(asyncio.Event().wait()))
    await asyncio.sleep(0)
    watched.process.tell(REBOOTED)
    watched.process.tell(LOST)
    async with asyncio.timeout(10):
        with pytest.raises(RebootedError):
            await waiting
        assert await watched.process.explain(LOST) is REBOOTED
    assert watched.process.gone is REBOOTED


async def test_of_a_process_that_runs_the_result_and_the_error_are_their_own(
    watched: Watched,
) -> None:
    async def fails() -> None:
        raise LOST

    assert await watched.process.or_gone(asyncio.sleep(0, "result")) == "result"
    with pytest.raises(ChannelLostError):
        await watched.process.or_gone(fails())
    assert await watched.process.explain(LOST) is LOST


async def test_an_error_waits_for_the_reason_of_a_process_that_has_ended(watched: Watched) -> None:
    watched.process.kill()
    async with asyncio.timeout(10):
        await watched.died.wait()
        explained = asyncio.create_task(watched.process.explain(LOST))
        await asyncio.sleep(0.7)  # longer than it waits for one that runs
        assert not explained.done()
        watched.process.tell(REBOOTED)
        assert await explained is REBOOTED


async def test_it_is_ended_when_it_is_told_why(watched: Watched) -> None:
    ending = asyncio.create_task(watched.process.end())
    async with asyncio.timeout(10):
        await watched.died.wait()
        assert not ending.done()
        watched.process.tell(REBOOTED)
        await ending


async def test_who_is_cancelled_while_it_ends_takes_the_news_from_nobody(
    watched: Watched,
) -> None:
    ending = asyncio.create_task(watched.process.end())
    async with asyncio.timeout(10):
        await watched.died.wait()
        ending.cancel()
        await asyncio.wait([ending])
        assert watched.process.gone is None
        watched.process.tell(REBOOTED)
        await watched.process.end()
    assert watched.process.gone is REBOOTED


async def test_who_no_longer_watches_is_told_nothing(watched: Watched) -> None:
    watched.process.unwatch()
    async with asyncio.timeout(10):
        await watched.process.end()  # has nothing to wait for
    watched.child.kill()
    await asyncio.to_thread(watched.child.wait)
    await asyncio.sleep(0.05)
    assert not watched.died.is_set()


async def test_of_one_that_has_gone_its_console_is_left(
    tmp_path: Path, some_record: MachineRecord
) -> None:
    (tmp_path / CONSOLE_LOG).write_text("the last words\n")
    process = MachineProcess(tmp_path, replace(some_record, process=None), lambda: None)
    process.kill()
    await process.end()
    assert process.console.tail() == "the last words"
    assert process.gone is None
    process.tell(VmError("It has gone."))
    assert str(process.gone) == "It has gone."
    await process.close()
