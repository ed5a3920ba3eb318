import ctypes
import errno
import mmap
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from torpor.vm import base
from torpor.vm.pages import PAGE, written_runs

COUNT = 64
SIZE = COUNT * PAGE
bounded = settings(
    max_examples=60, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
values = st.dictionaries(st.integers(0, COUNT - 1), st.sampled_from([0, 0, 1, 255]), max_size=COUNT)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "base.mem"


def digest(file: Path) -> str:
    fd = os.open(file, os.O_RDONLY)
    try:
        return base.digest_base(fd)
    finally:
        os.close(fd)


def data_bytes(file: Path) -> int:
    """How many bytes of a file are not holes."""
    fd = os.open(file, os.O_RDONLY)
    try:
        return sum(end - start for start, end in base.data_spans(fd, 0, file.stat().st_size))
    finally:
        os.close(fd)


def test_a_new_base_is_zeros_that_take_no_room(file: Path) -> None:
    base.create_base(file, SIZE)
    assert file.read_bytes() == bytes(SIZE)
    assert file.stat().st_blocks == 0
    assert file.stat().st_mode & 0o777 == 0o600
    with pytest.raises(FileExistsError):
        base.create_base(file, SIZE)


def test_data_is_found_between_any_two_places(file: Path, sparse: Callable[..., None]) -> None:
    sparse(file, {4: 1, 5: 1, 20: 0}, COUNT)
    fd = os.open(file, os.O_RDONLY)

    def pages(first: int, end: int) -> list[tuple[int, int]]:
        spans = base.data_spans(fd, first * PAGE, end * PAGE)
        return [(start // PAGE, stop // PAGE) for start, stop in spans]

    try:
        assert pages(0, COUNT) == [(4, 6), (20, 21)]
        assert pages(5, 20) == [(5, 6)]
        assert pages(6, 20) == []
        assert pages(20, COUNT) == [(20, 21)]
        assert pages(21, COUNT) == []
        assert pages(4, 4) == []
    finally:
        os.close(fd)


# Copying


@bounded
@given(pages=values)
def test_a_copy_has_the_same_content_and_no_more_data(
    file: Path, sparse: Callable[..., None], pages: dict[int, int]
) -> None:
    copy = file.with_name("copy.mem")
    copy.unlink(missing_ok=True)
    sparse(file, pages, COUNT)
    base.copy_base(file, copy)
    assert copy.read_bytes() == file.read_bytes()
    assert data_bytes(copy) <= data_bytes(file)
    with pytest.raises(FileExistsError):
        base.copy_base(file, copy)


@pytest.fixture(params=["another file system", "a kernel that cannot"])
def elsewhere(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Path]:
    """A place that the kernel does not copy to by itself."""
    if request.param == "a kernel that cannot":

        def refuse(*_: Any) -> int:
            raise OSError(errno.EXDEV, "Invalid cross-device link")

        monkeypatch.setattr(os, "copy_file_range", refuse)
        yield tmp_path / "copy.mem"
        return
    shared = Path("/dev/shm")
    if not shared.is_dir() or shared.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("there is only one file system here")
    place = shared / f"torpor-test-{os.getpid()}.mem"
    yield place
    place.unlink(missing_ok=True)


def test_a_base_can_be_copied_to_another_file_system(
    elsewhere: Path, file: Path, sparse: Callable[..., None]
) -> None:
    sparse(file, {3: 1, 4: 2, 60: 3}, COUNT)
    base.copy_base(file, elsewhere)
    assert elsewhere.read_bytes() == file.read_bytes()
    assert data_bytes(elsewhere) == 3 * PAGE


@pytest.mark.parametrize("call", ["copy_file_range", "sendfile"])
def test_a_base_that_ends_early_is_an_error_not_a_wait(
    file: Path, sparse: Callable[..., None], monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    sparse(file, {3: 1}, COUNT)
    monkeypatch.setattr(os, call, lambda *_: 0)

    def copy() -> None:
        if call == "sendfile":
            with open(file, "rb") as opened:
                base.seal_base(opened.fileno())
        else:
            base.copy_base(file, file.with_name("copy.mem"))

    with pytest.raises(OSError, match="became shorter"):
        copy()


# Writing


@bounded
@given(pages=values, written=values, batch=st.sampled_from([1, 3, 1024]))
def test_a_new_base_is_the_memory_of_the_process(
    child: Any,
    file: Path,
    sparse: Callable[..., None],
    filled: Callable[..., bytes],
    pages: dict[int, int],
    written: dict[int, int],
    batch: int,
) -> None:
    new = file.with_name("new.mem")
    new.unlink(missing_ok=True)
    sparse(file, pages, COUNT)
    mapping = child.map(file)
    child.write(written)
    base.copy_base(file, new)
    before = data_bytes(new)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(base, "BATCH", batch)
        base.write_into_base(new, mapping, written_runs(mapping))
    assert new.read_bytes() == filled(pages | written, COUNT) == child.memory(mapping)
    assert data_bytes(new) <= before + PAGE * sum(1 for value in written.values() if value)


def test_zeros_over_data_become_zeros_and_over_a_hole_stay_one(
    child: Any, file: Path, sparse: Callable[..., None]
) -> None:
    sparse(file, {0: 1, 1: 1, 2: 1}, COUNT)
    mapping = child.map(file)
    new = file.with_name("new.mem")
    base.copy_base(file, new)
    child.write({1: 0, 10: 0, 11: 5, 12: 0, 20: 0})
    base.write_into_base(new, mapping, written_runs(mapping))
    content = new.read_bytes()
    assert content[PAGE : 2 * PAGE] == bytes(PAGE)
    assert content[:PAGE] == content[2 * PAGE : 3 * PAGE] == b"\1" * PAGE
    assert data_bytes(new) == 4 * PAGE


# Digests


@bounded
@given(
    pages=st.dictionaries(st.integers(0, COUNT - 1), st.integers(1, 255), max_size=20),
    zeros=st.sets(st.integers(0, COUNT - 1)),
    more=st.sets(st.integers(0, COUNT - 1)),
)
def test_a_digest_is_of_the_content_not_of_how_zeros_are_stored(
    file: Path,
    sparse: Callable[..., None],
    pages: dict[int, int],
    zeros: set[int],
    more: set[int],
) -> None:
    sparse(file, dict.fromkeys(zeros, 0) | pages, COUNT)
    first = digest(file)
    sparse(file, dict.fromkeys(more, 0) | pages, COUNT)
    assert digest(file) == first


@bounded
@given(
    content=st.binary(min_size=1, max_size=300),
    at=st.integers(0, 3 * base.BLOCK),
    place=st.integers(0, 299),
    flip=st.integers(1, 255),
    tail=st.integers(0, 2 * base.BLOCK),
)
def test_a_digest_differs_for_any_change(
    file: Path, content: bytes, at: int, place: int, flip: int, tail: int
) -> None:
    whole = bytearray(bytes(at) + content + bytes(tail))
    file.write_bytes(whole)
    before = digest(file)
    whole[at + place % len(content)] ^= flip
    file.write_bytes(whole)
    assert digest(file) != before
    whole[at + place % len(content)] ^= flip
    file.write_bytes(whole)
    assert digest(file) == before
    for other in (whole + b"\0", whole[:-1], b"\0" + whole):
        file.write_bytes(other)
        assert digest(file) != before


def test_a_block_that_moves_changes_the_digest(file: Path, sparse: Callable[..., None]) -> None:
    digests = set()
    for page in range(COUNT):
        sparse(file, {page: 1}, COUNT)
        digests.add(digest(file))
    assert len(digests) == COUNT


# Sealing

PUNCH_HOLE = 0x02 | 0x01  # FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, linux/falloc.h


@pytest.fixture
def sealed(file: Path, sparse: Callable[..., None]) -> Iterator[int]:
    sparse(file, {3: 1, 4: 2, 60: 3}, COUNT)
    with open(file, "rb") as opened:
        fd = base.seal_base(opened.fileno())
    yield fd
    os.close(fd)


def test_a_sealed_base_has_the_content_and_the_holes(sealed: int, file: Path) -> None:
    assert os.fstat(sealed).st_size == SIZE
    assert list(base.data_spans(sealed, 0, SIZE)) == [(3 * PAGE, 5 * PAGE), (60 * PAGE, 61 * PAGE)]
    assert os.pread(sealed, SIZE, 0) == file.read_bytes()


def test_nobody_can_write_a_sealed_base(sealed: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    before = os.pread(sealed, SIZE, 0)
    reopened = os.open(f"/proc/self/fd/{sealed}", os.O_RDWR)
    for fd in (sealed, reopened):
        with pytest.raises(PermissionError):
            os.pwrite(fd, b"x", 0)
        with pytest.raises(PermissionError):
            os.ftruncate(fd, PAGE)
        with pytest.raises(PermissionError):
            os.ftruncate(fd, 2 * SIZE)
        with pytest.raises(PermissionError):
            mmap.mmap(fd, SIZE, access=mmap.ACCESS_WRITE)
        length = ctypes.c_long(PAGE)
        assert libc.fallocate(fd, PUNCH_HOLE, ctypes.c_long(3 * PAGE), length) == -1
        assert ctypes.get_errno() == errno.EPERM
    os.close(reopened)
    assert os.pread(sealed, SIZE, 0) == before


def test_a_sealed_base_can_be_mapped_privately_and_written_there(sealed: int) -> None:
    before = os.pread(sealed, SIZE, 0)
    with mmap.mmap(sealed, SIZE, access=mmap.ACCESS_COPY) as memory:
        memory[3 * PAGE] = 9
        memory[7 * PAGE] = 9
        assert memory[3 * PAGE] == 9
    assert os.pread(sealed, SIZE, 0) == before
