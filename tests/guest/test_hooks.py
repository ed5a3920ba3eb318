"""Hooks run as processes of this host, with a directory in place of their cgroup unless one can be
made."""

import gc
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from torpor.guest import hooks as hooks_module
from torpor.guest.hooks import Hooks
from torpor.guest.loop import Loop


class Place:
    """Hooks in a directory, run to their end."""

    def __init__(self, directory: Path) -> None:
        self.loop = Loop()
        self.directory = directory / "hooks"
        self.cgroup = directory / "cgroup"
        self.hooks = Hooks(self.loop, self.cgroup, self.directory)

    def add(self, stage: str, name: str | bytes, text: str, mode: int = 0o755) -> Path:
        path = self.directory / stage / os.fsdecode(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(mode)
        return path

    def run(self, stage: str, **wanted: Any) -> list[dict[str, Any]]:
        done: list[list[dict[str, Any]]] = []
        self.hooks.run(stage, self.hooks.find().get(stage, []), wanted, done.append)
        while not done:
            self.loop.turn()
        return done[0]


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_an_image_without_hooks_is_asked_once(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    real: Callable[..., list[str]] = os.listdir

    def listdir(path: Any) -> list[str]:
        asked.append(path)
        return real(path)

    monkeypatch.setattr(os, "listdir", listdir)
    assert place.hooks.find() == {}
    assert asked == [place.directory]


def test_hooks_run_in_the_order_of_their_names_and_know_what_happens(
    place: Place, tmp_path: Path
) -> None:
    said = tmp_path / "said"
    text = f'#!/bin/sh\necho "$0 $TORPOR_STAGE $TORPOR_EVENT $LD_PRELOAD." >> {said}\n'
    for name in ("20-b", "10-a"):
        place.add("before-freeze", name, text)
    place.add("before-freeze", "30-plain", text, 0o644)
    place.add("before-freeze", ".hidden", text)
    place.add("before-freeze", "10-a~", text)
    place.add("after-thaw", "10-other", text)
    environment = {"TORPOR_EVENT": "pause", "LD_PRELOAD": "/evil", "PATH": "/evil"}
    results = place.run("before-freeze", env=environment)
    assert [(each["name"], each["exit"]) for each in results] == [("10-a", 0), ("20-b", 0)]
    lines = [line.rsplit("/", 1)[-1] for line in said.read_text().splitlines()]
    assert lines == ["10-a before-freeze pause .", "20-b before-freeze pause ."]
    assert place.hooks.kept()["hooks"] == results


def test_what_became_of_a_hook_is_told(place: Place) -> None:
    place.add("after-thaw", "1", "#!/bin/sh\necho out; echo err >&2; exit 3\n")
    place.add("after-thaw", "2", "#!/bin/sh\nkill -ABRT $$\n")
    place.add("after-thaw", "3", "#!/nowhere/sh\n")
    place.add(
        "after-thaw", b"4\xff", "#!/bin/sh\nprintf '\\377'; head -c 100000 /dev/zero; echo end\n"
    )
    failed, killed, missing, long = place.run("after-thaw")
    assert (failed["exit"], failed["signal"], failed["output"]) == (3, None, "out\nerr\n")
    assert (killed["exit"], killed["signal"]) == (None, 6)
    assert "could not be started" in missing["error"]
    assert missing["exit"] is None
    assert (long["name"], long["exit"]) == ("4\\xff", 0)
    assert len(long["output"]) == hooks_module.TAIL
    assert long["output"].endswith("\0end\n")


def test_a_slow_hook_is_killed_with_its_children_and_the_next_one_runs(
    place: Place, tmp_path: Path
) -> None:
    child = tmp_path / "child"
    place.add("after-thaw", "1", f"#!/bin/sh\nsleep 600 & echo $! > {child}\necho waiting\nwait\n")
    place.add("after-thaw", "2", "#!/bin/sh\nexit 0\n")
    slow, quick = place.run("after-thaw", each_ms=1000)
    assert (slow["timed_out"], slow["signal"], slow["output"]) == (True, 9, "waiting\n")
    assert quick["exit"] == 0
    assert ended(int(child.read_text()))


def test_what_a_hook_leaves_running_ends_with_it(place: Place, tmp_path: Path) -> None:
    child = tmp_path / "child"
    # It holds the pipe open, too: the result must not wait for it.
    place.add("after-thaw", "1", f"#!/bin/sh\nsleep 600 & echo $! > {child}\n")
    [result] = place.run("after-thaw")
    assert (result["exit"], result["timed_out"]) == (0, False)
    assert ended(int(child.read_text()))


def ended(pid: int) -> bool:
    """Whether a process goes; it may be a zombie of whoever adopted it."""
    for _ in range(500):
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except (FileNotFoundError, ProcessLookupError):
            return True
        time.sleep(0.01)
    return False


def test_the_time_for_all_is_bounded(place: Place) -> None:
    place.add("after-thaw", "1", "#!/bin/sh\nsleep 600\n")
    place.add("after-thaw", "2", "#!/bin/sh\nexit 0\n")
    slow, not_run = place.run("after-thaw", total_ms=200)
    assert slow["timed_out"]
    assert not_run["timed_out"]
    assert not_run["error"] == "there was no time left"
    assert not_run["duration_ms"] == 0


def test_only_so_many_hooks_are_run_and_kept(place: Place) -> None:
    for number in range(hooks_module.MOST + 5):
        place.add("after-thaw", f"{number:03}", "#!/bin/sh\nexit 0\n")
    assert len(place.run("after-thaw")) == hooks_module.MOST
    place.run("after-thaw")
    assert len(place.hooks.kept()["hooks"]) == hooks_module.MOST


def test_hooks_do_not_run_twice_at_once(place: Place) -> None:
    place.add("after-thaw", "1", "#!/bin/sh\nsleep 0.2\n")
    [path] = place.hooks.find()["after-thaw"]
    done: list[Any] = []
    place.hooks.run("after-thaw", [path], {}, done.append)
    with pytest.raises(OSError, match="runs"):
        place.hooks.run("after-thaw", [path], {}, done.append)
    while not done:
        place.loop.turn()
    assert len(done) == 1
    assert place.run("after-thaw")[0]["exit"] == 0


def test_a_hook_lives_in_the_cgroup_of_hooks(place: Place) -> None:
    place.add("after-thaw", "1", "#!/bin/sh\nexit 0\n")
    place.run("after-thaw")
    # Plain files here, where a cgroup would have its own.
    assert (place.cgroup / "cgroup.procs").read_text() == "0"
    assert (place.cgroup / "cgroup.kill").read_text() == "1"


def test_descriptors_are_closed(place: Place) -> None:
    place.add("after-thaw", "1", "#!/bin/sh\nexit 0\n")
    place.add("after-thaw", "2", "#!/nowhere\n")
    place.run("after-thaw")
    gc.collect()  # what earlier tests have left
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(5):
        place.run("after-thaw")
    assert len(list(Path("/proc/self/fd").iterdir())) == before
