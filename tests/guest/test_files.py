import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.guest.conftest import needs_users, open_to_all
from torpor.guest import files


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "file"


@pytest.fixture
def cautious_umask() -> Iterator[None]:
    before = os.umask(0o077)
    yield
    os.umask(before)


def write(file: Path, data: bytes, **more: Any) -> dict[str, Any]:
    return files.write({"path": str(file), "offset": 0, **more}, data)


def read(file: Path, offset: int = 0, size: int = 1 << 20) -> bytes:
    return files.read({"path": str(file), "offset": offset, "size": size})[1]


@settings(
    max_examples=50, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.lists(st.tuples(st.integers(0, 300), st.binary(max_size=200)), max_size=8))
def test_pieces_land_where_they_were_sent(file: Path, pieces: list[tuple[int, bytes]]) -> None:
    write(file, b"", truncate=True)
    model = bytearray()
    for offset, data in pieces:
        assert write(file, data, offset=offset) == {"written": len(data)}
        if data:
            model.extend(bytes(max(0, offset - len(model))))
            model[offset : offset + len(data)] = data
    assert read(file) == bytes(model)
    assert read(file, 7, 20) == bytes(model[7:27])
    told = files.read({"path": str(file), "offset": 0, "size": 1})[0]
    assert told == {"size": len(model), "end": len(model) == 1}


def test_a_piece_whose_forerunner_is_missing_is_refused(file: Path) -> None:
    write(file, b"one", truncate=True)
    with pytest.raises(OSError, match="Stale"):
        write(file, b"three", offset=6, after=6)
    assert file.read_bytes() == b"one"
    write(file, b"two", offset=3, after=3)
    write(file, b"after a hole", offset=9, after=6)
    assert file.read_bytes() == b"onetwo\0\0\0after a hole"


def test_a_reply_is_never_larger_than_a_frame_takes(file: Path) -> None:
    file.write_bytes(bytes(files.MAX_PIECE + 100))
    assert len(read(file, 0, 1 << 40)) == files.MAX_PIECE


def test_only_truncate_empties_a_file(file: Path) -> None:
    file.write_bytes(b"old content")
    write(file, b"new")
    assert file.read_bytes() == b"new content"
    write(file, b"new", truncate=True)
    assert file.read_bytes() == b"new"


@pytest.mark.usefixtures("cautious_umask")
def test_a_new_file_has_the_mode_that_was_asked_for(file: Path) -> None:
    write(file, b"", mode=0o666)
    assert stat.S_IMODE(file.stat().st_mode) == 0o666


def test_the_mode_of_a_file_that_is_there_stays(file: Path) -> None:
    file.touch()
    file.chmod(0o640)
    write(file, b"x", mode=0o777, truncate=True)
    assert stat.S_IMODE(file.stat().st_mode) == 0o640


def test_missing_directories_are_made_when_asked(tmp_path: Path) -> None:
    file = tmp_path / "a/b/file"
    with pytest.raises(FileNotFoundError):
        write(file, b"x")
    write(file, b"x", parents=True)
    write(file, b"y", parents=True)
    assert file.read_bytes() == b"y"


def test_a_symbolic_link_is_written_through(tmp_path: Path, file: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(file)
    write(link, b"through a dangling link")
    write(link, b"T")
    assert file.read_bytes() == b"Through a dangling link"
    assert link.is_symlink()


def test_a_pipe_that_nobody_reads_does_not_hold_the_agent(file: Path) -> None:
    os.mkfifo(file)
    with pytest.raises(OSError, match="No such device"):
        write(file, b"x")
    with pytest.raises(OSError, match="Illegal seek"):
        read(file)


def test_a_directory_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError):
        read(tmp_path)
    with pytest.raises(IsADirectoryError):
        write(tmp_path, b"x")


@pytest.mark.parametrize(
    "wanted",
    [
        {},
        {"path": 3, "offset": 0, "size": 1},
        {"path": "/dev/null\0", "offset": 0, "size": 1},
        {"path": "/dev/null", "offset": "x", "size": 1},
        {"path": "/dev/null", "offset": 0, "size": -1},
        {"path": "/dev/null", "offset": -1, "size": 1},
        {"path": "/dev/null", "offset": 1 << 80, "size": 1},
    ],
)
def test_a_request_that_makes_no_sense_is_an_error_that_the_agent_answers(
    wanted: dict[str, Any],
) -> None:
    with pytest.raises((OSError, ValueError, KeyError, TypeError, OverflowError)):
        files.read(wanted)


def test_status_is_that_of_the_link_itself(tmp_path: Path, file: Path) -> None:
    file.write_bytes(b"12345")
    link = tmp_path / "link"
    link.symlink_to(file)
    found = files.status({"path": str(file)})
    assert found["size"] == 5
    assert found["mtime_ns"] == file.stat().st_mtime_ns
    assert (found["uid"], found["gid"]) == (os.getuid(), os.getgid())
    assert found["type"] == "file"
    told = files.status({"path": str(link)})
    assert stat.S_ISLNK(told["mode"])
    assert (told["type"], told["target"]) == ("link", str(file))
    assert files.status({"path": str(link), "follow": True}) == files.status({"path": str(file)})
    with pytest.raises(FileNotFoundError):
        files.status({"path": str(tmp_path / "none")})


def test_status_of_a_device_has_its_numbers(tmp_path: Path) -> None:
    found = files.status({"path": "/dev/null"})
    assert (found["type"], found["major"], found["minor"]) == ("character", 1, 3)


def test_a_file_that_does_not_know_its_size_is_read_to_its_end() -> None:
    wanted = {"path": "/proc/self/status", "offset": 0, "size": 1 << 20}
    told, data = files.read(wanted)
    assert not told["end"]
    assert data.startswith(b"Name:")
    assert files.read(wanted | {"offset": len(data)})[1] == b""


# Names


def test_a_directory_has_the_mode_that_was_asked_for(tmp_path: Path, cautious_umask: None) -> None:
    path = tmp_path / "made"
    files.make_directory({"path": str(path), "mode": 0o2775})
    assert stat.S_IMODE(path.stat().st_mode) == 0o2775
    with pytest.raises(FileExistsError):
        files.make_directory({"path": str(path)})
    assert files.make_directory({"path": str(path), "parents": True}) == {"made": False}
    deep = tmp_path / "a/b/c"
    with pytest.raises(FileNotFoundError):
        files.make_directory({"path": str(deep)})
    files.make_directory({"path": f"{deep}/", "parents": True})
    assert deep.is_dir()
    (tmp_path / "file").touch()
    with pytest.raises(FileExistsError):
        files.make_directory({"path": str(tmp_path / "file"), "parents": True})


def test_a_move_replaces_or_is_refused(tmp_path: Path, file: Path) -> None:
    other = tmp_path / os.fsdecode(b"\xff other")
    file.write_text("new")
    other.write_text("old")
    with pytest.raises(FileExistsError):
        files.move({"path": str(file), "to": str(other), "replace": False})
    assert (file.read_text(), other.read_text()) == ("new", "old")
    files.move({"path": str(file), "to": str(other)})
    assert other.read_text() == "new"
    files.move({"path": str(other), "to": str(file), "replace": False})
    assert file.read_text() == "new"
    with pytest.raises(ValueError, match="null"):
        files.move({"path": str(file), "to": "a\0b", "replace": False})


def test_a_move_into_another_file_system_is_refused(file: Path) -> None:
    if Path("/dev/shm").stat().st_dev == file.parent.stat().st_dev:
        pytest.fail("this test needs two file systems, /tmp and /dev/shm")
    file.touch()
    with pytest.raises(OSError, match="cross-device"):
        files.move({"path": str(file), "to": "/dev/shm/torpor-test"})
    assert file.exists()


def test_only_an_empty_directory_is_removed_with_one_request(tmp_path: Path) -> None:
    inner = tmp_path / "outer/inner"
    inner.mkdir(parents=True)
    link = tmp_path / "link"
    link.symlink_to(inner)
    with pytest.raises(OSError, match="not empty"):
        files.remove({"path": str(inner.parent)})
    files.remove({"path": str(link)})
    assert inner.is_dir()
    files.remove({"path": str(inner)})
    assert not inner.exists()


def test_what_is_not_named_does_not_change(file: Path) -> None:
    file.write_bytes(b"12345")
    before = file.stat()
    files.change({"path": str(file), "mtime_ns": 17})
    files.change({"path": str(file), "mode": 0o4711})
    after = file.stat()
    assert (after.st_mtime_ns, stat.S_IMODE(after.st_mode)) == (17, 0o4711)
    assert (after.st_uid, after.st_gid, after.st_size) == (before.st_uid, before.st_gid, 5)
    files.change({"path": str(file), "size": 3})
    assert file.read_bytes() == b"123"
    files.change({"path": str(file), "size": 5})
    assert file.read_bytes() == b"123\0\0"


def test_ranges_of_data_are_told(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with file.open("wb") as opened:
        for place in (1 << 20, 3 << 20, 5 << 20):
            opened.seek(place)
            opened.write(b"x" * 4096)
        opened.truncate(8 << 20)
    told = files.ranges({"path": str(file)})
    assert told["ranges"] == [(n << 20, (n << 20) + 4096) for n in (1, 3, 5)]
    assert told["size"] == told["next"] == 8 << 20
    monkeypatch.setattr(files, "MAX_RANGES", 2)
    some = files.ranges({"path": str(file)})
    assert some["ranges"] == told["ranges"][:2]
    assert files.ranges({"path": str(file), "offset": some["next"]})["ranges"] == told["ranges"][2:]


@needs_users
def test_a_request_is_done_as_the_user_who_is_named(tmp_path: Path) -> None:
    open_to_all(tmp_path)
    tmp_path.chmod(0o777)
    secret = tmp_path / "secret"
    secret.write_text("for root")
    secret.chmod(0o600)
    wanted = {"path": str(secret), "offset": 0, "size": 9, "user": "1234:4321"}
    with pytest.raises(PermissionError):
        files.do("file.read", wanted, b"")
    assert files.do("file.read", wanted | {"user": "0"}, b"")[1] == b"for root"
    with pytest.raises(PermissionError):
        files.do("file.change", {"path": str(secret), "owner": "1234", "user": "1234"}, b"")
    own = tmp_path / "own"
    files.do("file.write", {"path": str(own), "offset": 0, "user": "1234:4321"}, b"x")
    assert (own.stat().st_uid, own.stat().st_gid) == (1234, 4321)
    assert (os.geteuid(), os.getegid()) == (0, 0)
    with pytest.raises(ValueError, match="no user"):
        files.do("file.stat", {"path": "/", "user": "nobody-at-all"}, b"")
