"""What cannot be ended at once is ended later, and nobody waits for it for ever."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from tests.waiting import eventually
from torpor.vm import HostError, VmError, jail, leftovers
from torpor.vm import machine as machine_module
from torpor.vm.leftovers import Leftovers
from torpor.vm.machine import Machine
from torpor.vm.manifest import MachineRecord
from torpor.vm.processes import ProcessId


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leftovers, "FIRST", 0.01)
    monkeypatch.setattr(leftovers, "SLOWEST", 0.02)
    monkeypatch.setattr(jail, "END_LIMIT", 0.05)
    monkeypatch.setattr(machine_module, "END_LIMIT", 0.05)


class Ending:
    """Ends processes by name, once it is told that it can."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.error: Exception | None = OSError(24, "Too many open files")

    async def end(self, name: str) -> bool:
        self.asked.append(name)
        if self.error is not None:
            raise self.error
        return True

    async def count(self) -> int:
        return len(self.asked)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "machine").mkdir()
    (tmp_path / "machine" / "machine.json").write_text("{}")
    return tmp_path / "machine"


async def test_what_cannot_be_ended_is_tried_again_and_then_removed(directory: Path) -> None:
    ending = Ending()
    left = Leftovers(ending.end)
    await left.clean("torpor-1-m", directory)
    await eventually(ending.count, lambda count: count > 3)
    assert directory.exists()  # its record says what it uses
    ending.error = None

    async def there() -> bool:
        return directory.exists()

    await eventually(there, lambda found: not found)
    count = len(ending.asked)
    await asyncio.sleep(0.1)
    assert len(ending.asked) == count
    assert set(ending.asked) == {"torpor-1-m"}
    await left.close()


async def test_what_can_be_ended_is_gone_at_once(directory: Path) -> None:
    ending = Ending()
    ending.error = None
    await Leftovers(ending.end).clean("torpor-1-m", directory)
    assert not directory.exists()
    assert len(ending.asked) == 1


async def test_a_host_that_is_closed_leaves_it_to_the_next(directory: Path) -> None:
    ending = Ending()
    left = Leftovers(ending.end)
    await left.clean("torpor-1-m", directory)
    await left.close()
    count = len(ending.asked)
    await asyncio.sleep(0.1)
    assert len(ending.asked) == count
    assert directory.exists()


async def test_processes_that_stay_though_they_are_killed_are_not_waited_for(
    sleeper: ProcessId, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ProcessId, "kill", lambda _: None)
    monkeypatch.setattr(jail, "find_by_prefix", lambda *_: [sleeper])
    with pytest.raises(HostError, match=str(sleeper.pid)):
        await jail.end_all("torpor-1-m")


async def test_a_machine_that_stays_though_it_is_killed_is_not_waited_for(
    sleeper: ProcessId,
    some_record: MachineRecord,
    directory: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine = Machine(directory, replace(some_record, process=sleeper))
    with monkeypatch.context() as stuck:
        stuck.setattr(ProcessId, "kill", lambda _: None)
        with pytest.raises(VmError, match=str(sleeper.pid)):
            await machine.remove()
    assert machine.running
    assert directory.exists()
    monkeypatch.setattr(machine_module, "END_LIMIT", 20)
    await machine.remove()
    assert not machine.running
    assert not directory.exists()
