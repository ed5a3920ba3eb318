import mmap
import os
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from torpor.vm import pages
from torpor.vm.errors import HostError
from torpor.vm.pages import PAGE, Run, batches, find_mapping, read_pages, write_all, write_pages
from torpor.vm.pages import Mapping as MemoryMapping

COUNT = 64
bounded = settings(
    max_examples=60, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
some_pages = st.sets(st.integers(0, COUNT - 1), max_size=COUNT)


@pytest.fixture
def base(tmp_path: Path, sparse: Callable[..., None]) -> Path:
    """A base with data in half of its pages and holes elsewhere."""
    file = tmp_path / "base.mem"
    sparse(file, dict.fromkeys(range(0, COUNT, 2), 1), COUNT)
    return file


def numbers(runs: list[Run]) -> list[int]:
    return [page for first, length in runs for page in range(first, first + length)]


def by_ioctl(mapping: MemoryMapping) -> list[tuple[int, int]] | None:
    try:
        return list(pages._scan_ioctl(mapping))
    except OSError:
        return None  # Linux before 6.7


@bounded
@given(written=some_pages, looked_at=some_pages)
def test_exactly_the_written_pages_are_found(
    child: Any, base: Path, written: set[int], looked_at: set[int]
) -> None:
    mapping = child.map(base)
    child.look(*looked_at)
    assert pages.written_runs(mapping) == []
    child.write(dict.fromkeys(written, 7))
    child.look(*looked_at)
    runs = pages.written_runs(mapping)
    assert numbers(runs) == sorted(written)
    assert all(a.first + a.length < b.first for a, b in pairwise(runs))
    words = list(pages._scan_words(mapping))
    assert by_ioctl(mapping) in (words, None)
    assert [start for start, _ in words] == [mapping.start + run.first * PAGE for run in runs]


def test_a_page_written_with_what_it_held_counts_as_written(child: Any, base: Path) -> None:
    mapping = child.map(base)
    child.write({0: 1, 1: 0})
    assert pages.written_runs(mapping) == [Run(0, 2)]


def test_a_kernel_without_the_scan_is_read_word_by_word(
    child: Any, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mapping = child.map(base)
    child.write({3: 1, 4: 1, COUNT - 1: 1})

    def no_scan(_mapping: MemoryMapping) -> list[tuple[int, int]]:
        raise OSError("Inappropriate ioctl for device")

    monkeypatch.setattr(pages, "_scan_ioctl", no_scan)
    assert pages.written_runs(mapping) == [Run(3, 2), Run(COUNT - 1, 1)]


def test_more_runs_than_one_scan_returns(
    child: Any, tmp_path: Path, sparse: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "_REGIONS", 5)
    file = tmp_path / "large.mem"
    sparse(file, {}, 400)
    mapping = child.map(file)
    written = [page for page in range(400) if page % 4 != 3]
    child.write(dict.fromkeys(written, 1))
    assert numbers(pages.written_runs(mapping)) == written


@pytest.mark.parametrize("scan", ["_scan_words", "written_runs"])
def test_a_process_that_ends_meanwhile_is_an_error_not_less_pages(
    children: Callable[[], Any], base: Path, monkeypatch: pytest.MonkeyPatch, scan: str
) -> None:
    dying = children()
    mapping = dying.map(base)
    dying.write({1: 1, 9: 1})
    real = os.open

    def end_after_opening(path: Any, *arguments: Any, **more: Any) -> int:
        fd = real(path, *arguments, **more)
        if "pagemap" in str(path):
            dying.end()
        return fd

    monkeypatch.setattr(os, "open", end_after_opening)
    real_open = open

    def end_after_opening_file(path: Any, *arguments: Any, **more: Any) -> Any:
        opened = real_open(path, *arguments, **more)
        if "pagemap" in str(path):
            dying.end()
        return opened

    monkeypatch.setattr("builtins.open", end_after_opening_file)
    with pytest.raises(OSError):  # noqa: PT011 - which one depends on the moment and the kernel
        list(getattr(pages, scan)(mapping))


def test_the_mapping_is_found_by_file_and_size(child: Any, base: Path, tmp_path: Path) -> None:
    mapping = child.map(base)
    assert mapping.pid == child.process.pid
    assert mapping.end - mapping.start == COUNT * PAGE
    status = base.stat()
    other = tmp_path / "other"
    other.touch()
    for file, size in (
        ((status.st_dev, status.st_ino), COUNT * PAGE // 2),
        ((status.st_dev, other.stat().st_ino), COUNT * PAGE),
        ((status.st_dev + 1, status.st_ino), COUNT * PAGE),
    ):
        with pytest.raises(HostError, match="was not found"):
            find_mapping(child.process.pid, file, size)


def test_a_shared_mapping_is_not_guest_memory(base: Path) -> None:
    status = base.stat()
    with open(base, "r+b") as opened, mmap.mmap(opened.fileno(), 0), pytest.raises(HostError):
        find_mapping(os.getpid(), (status.st_dev, status.st_ino), status.st_size)


runs_of_pages = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 30)), max_size=12).map(
    lambda steps: _apart(steps)
)


def _apart(steps: list[tuple[int, int]]) -> list[Run]:
    runs, next_page = [], 0
    for gap, length in steps:
        runs.append(Run(next_page + gap, length))
        next_page += gap + length
    return runs


@bounded
@given(runs_of_pages, st.integers(1, 20))
def test_batches_hold_all_pages_in_order_and_no_more_than_asked(runs: list[Run], size: int) -> None:
    made = list(batches(runs, size))
    assert [page for batch in made for page in numbers(batch)] == numbers(runs)
    assert all(1 <= sum(run.length for run in batch) <= size for batch in made)
    assert all(sum(run.length for run in batch) == size for batch in made[:-1])


def test_a_batch_is_no_longer_than_one_call_takes() -> None:
    made = list(batches([Run(2 * page, 1) for page in range(3000)], 1 << 20))
    assert [len(batch) for batch in made] == [1024, 1024, 952]


@bounded
@given(written=some_pages)
def test_pages_are_copied_out_of_and_into_a_process(
    child: Any, base: Path, filled: Callable[..., bytes], written: set[int]
) -> None:
    mapping = child.map(base)
    values = {page: 10 + page for page in written}
    child.write(values)
    for batch in batches(pages.written_runs(mapping), COUNT):
        buffer = bytearray(len(numbers(batch)) * PAGE)
        assert read_pages(mapping, batch, buffer) == len(buffer)
        assert buffer == b"".join(bytes([values[page]]) * PAGE for page in numbers(batch))
        for page in numbers(batch):
            values[page] ^= 0xFF
        buffer = bytearray(byte ^ 0xFF for byte in buffer)
        assert write_pages(mapping, batch, buffer) == len(buffer)
    expected: Mapping[int, int] = dict.fromkeys(range(0, COUNT, 2), 1) | values
    assert child.memory(mapping) == filled(expected, COUNT)


@pytest.mark.parametrize("transfer", [read_pages, write_pages])
def test_pages_that_are_not_there_are_an_error(
    child: Any, base: Path, transfer: Callable[..., int]
) -> None:
    mapping = child.map(base)
    beyond = [Run(0, 1), Run(1 << 40, 1)]
    with pytest.raises(OSError, match="Bad address"):
        transfer(mapping, beyond, bytearray(2 * PAGE))


@pytest.mark.parametrize("transfer", [read_pages, write_pages])
def test_a_buffer_that_is_too_small_is_refused_before_anything_is_copied(
    child: Any, base: Path, transfer: Callable[..., int]
) -> None:
    mapping = child.map(base)
    with pytest.raises(ValueError, match="do not fit"):
        transfer(mapping, [Run(0, 2)], bytearray(2 * PAGE - 1))


@pytest.mark.parametrize("transfer", [read_pages, write_pages])
def test_a_process_that_is_gone_is_an_error(
    children: Callable[[], Any], base: Path, transfer: Callable[..., int]
) -> None:
    gone = children()
    mapping = gone.map(base)
    gone.end()
    with pytest.raises(OSError, match="No such process"):
        transfer(mapping, [Run(0, 1)], bytearray(PAGE))


def test_all_is_written_although_the_system_takes_less_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: real(fd, data[:3], at))
    fd = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    try:
        write_all(fd, b"0123456789", 5)
        assert os.pread(fd, 100, 0) == bytes(5) + b"0123456789"
    finally:
        os.close(fd)
