import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

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
    assert files.read({"path": str(file), "offset": 0, "size": 1})[0] == {"size": len(model)}


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
    assert stat.S_ISLNK(files.status({"path": str(link)})["mode"])
    with pytest.raises(FileNotFoundError):
        files.status({"path": str(tmp_path / "none")})
