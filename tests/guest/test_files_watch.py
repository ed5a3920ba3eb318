"""What changes in a directory is told, each thing once, from a moment that is told too."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.guest.conftest import WORK, work


class Watching:
    """A watch in a process of its own."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self.process = process

    def next(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "the watch has ended"
        value = json.loads(line)
        assert isinstance(value, dict)
        return value

    def until(self, wanted: Callable[[dict[str, Any]], bool]) -> list[dict[str, Any]]:
        seen = [self.next()]
        while not wanted(seen[-1]):
            seen.append(self.next())
        return seen

    def words(self, last: str) -> list[tuple[str, str]]:
        """Events and paths up to the first of ``last``, without those of times and owners."""
        seen = self.until(lambda event: event.get("path") == last)
        return [(e["event"], e["path"]) for e in seen if e["event"] != "attributes"]


@contextmanager
def watching(path: Path, **options: Any) -> Iterator[Watching]:
    line = [sys.executable, "-c", WORK, json.dumps({"name": "watch", "path": str(path), **options})]
    with subprocess.Popen(line, stdout=subprocess.PIPE) as process:
        watch = Watching(process)
        assert watch.next() == {"event": "ready"}
        try:
            yield watch
        finally:
            process.kill()


def test_a_file_is_told_from_its_making_to_its_end(tmp_path: Path) -> None:
    with watching(tmp_path) as watch:
        file = tmp_path / os.fsdecode(b"odd\xff\n")
        with file.open("wb") as opened:
            opened.write(b"x")
        file.chmod(0o600)
        file.unlink()
        name = file.name
        seen = watch.until(lambda event: event["event"] == "deleted")
    assert seen == [
        {"event": word, "path": name}
        for word in ("created", "modified", "written", "attributes", "deleted")
    ]


def test_moves_are_told_with_both_names(tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "d").mkdir(parents=True)
    (tmp_path / "from").touch()
    (root / "f").touch()
    with watching(root, recursive=True) as watch:
        (root / "f").rename(root / "d/g")
        assert watch.next() == {"event": "moved", "path": "d/g", "from": "f"}
        (root / "d/g").rename(tmp_path / "out")
        assert watch.next() == {"event": "moved_out", "path": "d/g"}
        (tmp_path / "from").rename(root / "in")
        assert watch.next() == {"event": "moved_in", "path": "in"}
        (root / "d").rename(root / "e")
        moved = {"event": "moved", "path": "e", "from": "d", "directory": True}
        assert watch.next() == moved
        (root / "e/new").touch()
        assert ("created", "e/new") in watch.words("e/new")
        (root / "e").rename(tmp_path / "gone")
        (tmp_path / "gone/unseen").touch()
        (root / "last").touch()
        seen = watch.until(lambda event: event.get("path") == "last")
    assert {"event": "moved_out", "path": "e", "directory": True} in seen
    assert not any("unseen" in each.get("path", "") for each in seen)


def test_what_is_below_is_only_told_when_asked(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    with watching(tmp_path) as watch:
        (tmp_path / "d/unseen").touch()
        (tmp_path / "seen").touch()
        seen = watch.words("seen")
    assert ("created", "d/unseen") not in seen


def test_nothing_is_missed_or_doubled_in_directories_that_come(tmp_path: Path) -> None:
    """Trees are made as fast as can be, so that most of each is there before it is watched."""
    root = tmp_path / "root"
    root.mkdir()
    expected = set()

    def make() -> None:
        for top in range(30):
            for path in (f"{top}", f"{top}/a", f"{top}/a/b", f"{top}/a/b/c"):
                (root / path).mkdir()
                (root / path / "file").touch()

    for top in range(30):
        for path in (f"{top}", f"{top}/a", f"{top}/a/b", f"{top}/a/b/c"):
            expected |= {path, f"{path}/file"}
    with watching(root, recursive=True) as watch:
        thread = threading.Thread(target=make)
        thread.start()
        created: list[str] = []
        while set(created) != expected:
            event = watch.next()
            if event["event"] == "created":
                created.append(event["path"])
        thread.join()
        (root / "last").touch()
        created += [e["path"] for e in watch.until(lambda e: e["path"] == "last")
                    if e["event"] == "created"]  # fmt: skip
    assert sorted(created) == sorted([*expected, "last"])


def test_what_is_made_anew_after_it_went_is_told_again(tmp_path: Path) -> None:
    with watching(tmp_path, recursive=True) as watch:
        (tmp_path / "d").mkdir()
        (tmp_path / "d/f").touch()
        watch.until(lambda event: event["path"] == "d/f" and event["event"] == "created")
        (tmp_path / "d/f").unlink()
        watch.until(lambda event: event["event"] == "deleted")
        (tmp_path / "d/f").touch()
        seen = watch.until(lambda event: event["path"] == "d/f")
    assert seen[-1] == {"event": "created", "path": "d/f"}


def test_the_end_of_what_is_watched_ends_the_watch(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    with watching(root, recursive=True) as watch:
        (root / "f").touch()
        (root / "f").unlink()
        root.rmdir()
        assert watch.until(lambda event: event["event"] == "gone")[-1] == {"event": "gone"}
        assert watch.process.wait(20) == 0
    file = tmp_path / "file"
    file.touch()
    with watching(file) as watch:
        file.write_text("x")
        assert {"event": "modified", "path": ""} in watch.until(lambda e: e["event"] == "written")
        file.rename(tmp_path / "other")
        assert watch.until(lambda event: event["event"] == "gone")
        assert watch.process.wait(20) == 0


def test_links_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    root = tmp_path / "root"
    root.mkdir()
    (root / "before").symlink_to(tmp_path / "outside")
    with watching(root, recursive=True) as watch:
        (root / "way").symlink_to(tmp_path / "outside")
        (tmp_path / "outside/unseen").touch()
        (root / "last").touch()
        seen = watch.words("last")
    assert seen == [("created", "way"), ("created", "last")]


def test_too_many_directories_are_refused(tmp_path: Path) -> None:
    for number in range(5):
        (tmp_path / f"d{number}").mkdir()
    stdout, _ = work("watch", path=str(tmp_path), recursive=True, limit=5, fails="ENOSPC")
    assert stdout == b""
    with watching(tmp_path, recursive=True, limit=6):
        pass


def test_an_overflow_is_told_and_the_watch_goes_on(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    queue = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    with watching(tmp_path, recursive=True) as watch:
        # Nobody reads what the watch says meanwhile, so it stands still.
        file = tmp_path / "d" / ("n" * 200)
        for _ in range(queue):
            file.touch()
            file.unlink()
        watch.until(lambda event: event["event"] == "overflow")
        (tmp_path / "d/after").touch()
        watch.until(lambda event: event.get("path") == "d/after")
