"""How a machine that is held goes on."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from tests.waiting import eventually
from torpor.vm import holding as holding_module
from torpor.vm import releasing
from torpor.vm.errors import ChannelLostError, HeldError
from torpor.vm.holding import Holding
from torpor.vm.qmp import QmpError
from torpor.vm.releasing import Release


class Machine:
    """Counts how often it is let go on and its processes are; ``on_cont`` and ``on_resume`` are
    called each time."""

    def __init__(self) -> None:
        self.conts = self.resumes = 0
        self.on_cont: Callable[[], None] = lambda: None
        self.on_resume: Callable[[], None] = lambda: None

    async def cont(self) -> None:
        self.conts += 1
        self.on_cont()

    async def resume(self) -> None:
        self.resumes += 1
        self.on_resume()

    async def counts(self) -> tuple[int, int]:
        return self.conts, self.resumes


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(holding_module, "SPACE_POLL", 0.01)
    monkeypatch.setattr(holding_module, "SPACE", 0)
    monkeypatch.setattr(releasing, "AGAIN", 0.01)


@pytest.fixture
def machine() -> Machine:
    return Machine()


@pytest.fixture
async def release(machine: Machine, tmp_path: Path) -> AsyncIterator[Release]:
    lock = asyncio.Lock()
    made = Release("m", tmp_path, Holding(), lock, machine.cont, machine.resume)
    yield made
    made.close()


async def test_it_goes_on_when_there_is_space(
    machine: Machine, release: Release, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(holding_module, "SPACE", 1 << 60)
    release.hold()
    await asyncio.sleep(0.1)
    assert machine.conts == 0
    monkeypatch.setattr(holding_module, "SPACE", 0)
    await release._holding.over()
    await eventually(machine.counts, lambda found: found[0] == 1)


async def test_a_write_that_fails_again_before_it_is_known_to_go_on_is_tried_again(
    machine: Machine, release: Release
) -> None:
    def full_twice() -> None:
        if machine.conts < 3:
            release.hold()  # QEMU's event, before its answer

    machine.on_cont = full_twice
    release.hold()
    await eventually(machine.counts, lambda found: found[0] == 3)
    await release._holding.over()


async def test_a_monitor_that_refuses_is_asked_again(machine: Machine, release: Release) -> None:
    def refuse_once() -> None:
        if machine.conts == 1:
            raise QmpError("It is busy.")

    machine.on_cont = refuse_once
    release.hold()
    await eventually(machine.counts, lambda found: found[0] == 2)
    await release._holding.over()


async def test_it_does_not_go_on_in_the_middle_of_a_freeze(
    machine: Machine, release: Release
) -> None:
    async with release._exclusive:
        release.hold()
        release.resume_later()
        await asyncio.sleep(0.1)
        assert await machine.counts() == (0, 0)
    await eventually(machine.counts, lambda found: found == (1, 1))


async def test_its_processes_are_taken_up_whatever_comes_between(
    machine: Machine, release: Release
) -> None:
    def trouble() -> None:
        if machine.resumes == 1:
            release.hold()
            raise HeldError("held again")
        if machine.resumes == 2:
            raise ChannelLostError("lost")

    machine.on_resume = trouble
    release.hold()
    release.resume_later()
    release.resume_later()
    await eventually(machine.counts, lambda found: found == (2, 3))
    await asyncio.sleep(0.05)
    assert await machine.counts() == (2, 3)


async def test_who_waits_for_space_counts_as_held(
    release: Release, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(holding_module, "SPACE", 1 << 60)
    waiting = asyncio.ensure_future(release.wait_for_space())
    await asyncio.sleep(0.05)
    assert "full" in (release._holding.why or "")
    monkeypatch.setattr(holding_module, "SPACE", 0)
    await waiting
    assert release._holding.why is None
