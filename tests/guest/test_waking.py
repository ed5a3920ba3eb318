"""The order of a wake: what must be right, the first hooks, the user's processes, the others."""

from pathlib import Path
from typing import Any

import pytest

from torpor.guest import rest as rest_module
from torpor.guest import trust
from torpor.guest import waking as waking_module
from torpor.guest.disks import Disks
from torpor.guest.hooks import Hooks
from torpor.guest.loop import Loop
from torpor.guest.rest import Rest, RestError
from torpor.guest.waking import Waking


class Machine:
    """A rest that only notes what is asked of it, and real hooks that do too."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("freeze", "events"):
            (directory / f"cgroup.{name}").write_text("")
        self.log = directory / "log"
        self.log.write_text("")
        self.loop = Loop()
        self.hooks = Hooks(self.loop, directory / "cgroup", directory / "hooks")
        self.answers: list[dict[str, Any]] = []
        self.right: dict[str, Any] = {"travel_ns": 1}
        self.stuck = False
        monkeypatch.setattr(Rest, "put_right", lambda *_: self.note("right") or dict(self.right))
        monkeypatch.setattr(Rest, "resume", lambda *_: self.resume())
        monkeypatch.setattr(waking_module, "write_hostname", lambda name: self.note(name))
        self.waking = Waking(Rest(directory), self.hooks, Disks(self.loop))
        self.directory = directory

    def note(self, what: str) -> None:
        with self.log.open("a") as log:
            log.write(f"{what}\n")

    def resume(self) -> None:
        self.note("resume")
        if self.stuck:
            raise RestError("they could not be woken")

    def add(self, stage: str, text: str) -> None:
        hook = self.directory / "hooks" / stage / "hook"
        hook.parent.mkdir(parents=True)
        hook.write_text(f"#!/bin/sh\necho {stage} >> {self.log}\n{text}\n")
        hook.chmod(0o755)

    def answer(self) -> dict[str, Any]:
        while not self.answers:
            self.loop.turn()
        return self.answers.pop()

    def wake(self, **wanted: Any) -> dict[str, Any]:
        self.waking.wake(wanted, 0, self.answers.append)
        return self.answer()

    def done(self) -> list[str]:
        return self.log.read_text().split()


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(tmp_path, monkeypatch)


def test_without_hooks_the_answer_comes_at_once(machine: Machine) -> None:
    machine.waking.wake({"hooks": {}, "hostname": "twin"}, 0, machine.answers.append)
    assert machine.answers == [{"travel_ns": 1}]
    # The name in the file is for the next boot, so it is the last of all.
    assert machine.done() == ["right", "resume", "twin"]


def test_first_hooks_run_while_the_processes_are_frozen(machine: Machine) -> None:
    machine.add("first-after-thaw", "exit 7")
    machine.add("after-thaw", "")
    said = machine.wake(hooks={})
    assert machine.done() == ["right", "first-after-thaw", "resume"]
    assert [each["exit"] for each in said["hooks"]] == [7]
    assert said["after_thaw"] is True
    machine.waking.run_stage({"stage": "after-thaw"}, 0, machine.answers.append)
    assert [each["exit"] for each in machine.answer()["hooks"]] == [0]
    assert machine.done()[-1] == "after-thaw"


def test_a_boot_runs_no_hooks_of_a_thaw(machine: Machine) -> None:
    machine.add("first-after-thaw", "")
    assert machine.wake() == {"travel_ns": 1}
    assert machine.done() == ["right", "resume"]


def test_a_request_that_came_late_runs_no_hooks(machine: Machine) -> None:
    machine.add("first-after-thaw", "")
    machine.right = {"again_ns": 5}
    assert machine.wake(hooks={}) == {"again_ns": 5}
    assert machine.done() == ["right"]


def test_processes_that_cannot_be_woken_after_hooks_are_told(machine: Machine) -> None:
    machine.add("first-after-thaw", "")
    machine.stuck = True
    said = machine.wake(hooks={})
    assert said["error"] == {"code": "RestError", "message": "they could not be woken"}


def test_a_stage_without_hooks_is_answered(machine: Machine) -> None:
    machine.waking.run_stage({"stage": "before-freeze"}, 0, machine.answers.append)
    assert machine.answers == [{"hooks": []}]
    with pytest.raises(ValueError, match="no stage 'never'"):
        machine.waking.run_stage({"stage": "never"}, 0, machine.answers.append)


def test_the_host_name_outlasts_a_reboot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[tuple[str, str, int]] = []
    monkeypatch.setattr(rest_module, "_overwrite", lambda *call: written.append(call))
    rest_module.write_hostname("twin")
    assert written == [("/etc/hostname", "twin", 0o644)]

    def refuse(*_call: object) -> None:
        raise OSError("read-only")

    monkeypatch.setattr(rest_module, "_overwrite", refuse)
    rest_module.write_hostname("twin")  # an image in which that cannot be


def test_disks_are_mounted_before_the_first_hooks(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def mount(_self: Disks, wanted: list[dict[str, Any]], done: Any) -> None:
        machine.note(f"mount-{wanted[0]['serial']}")
        machine.loop.after(0, lambda: done(["it is broken"]))

    monkeypatch.setattr(Disks, "mount", mount)
    machine.add("first-after-thaw", "")
    said = machine.wake(hooks={}, disks=[{"serial": "s"}])
    assert machine.done() == ["right", "mount-s", "first-after-thaw", "resume"]
    assert said["disks"] == ["it is broken"]  # and the machine runs all the same


def test_disks_of_a_wake_that_is_to_be_asked_for_again_are_not_mounted(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Disks, "mount", lambda *_: machine.note("mount"))
    machine.right = {"again_ns": 5}
    assert machine.wake(disks=[{"serial": "s"}]) == {"again_ns": 5}
    assert machine.done() == ["right"]


def test_what_is_to_be_trusted_is_so_before_anything_runs(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = [{"pem": "x", "hash": "0" * 8}]
    told: list[Any] = []
    monkeypatch.setattr(trust, "trust", lambda given: (told.append(given), machine.note("trusted")))
    answer = machine.wake(limit_ms=1, authorities=wanted)
    assert "untrusted" not in answer
    assert machine.done() == ["right", "trusted", "resume"]
    assert told == [wanted]


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), ValueError("no list")])
def test_a_machine_that_cannot_trust_wakes_all_the_same_and_says_so(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fails(_given: object) -> None:
        raise error

    monkeypatch.setattr(trust, "trust", fails)
    answer = machine.wake(limit_ms=1, authorities=[{"pem": "x", "hash": "0" * 8}])
    assert str(error) in answer["untrusted"]
    assert machine.done() == ["right", "resume"]
    assert machine.wake(limit_ms=1, authorities=7)["untrusted"]
