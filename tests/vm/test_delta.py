import os
import struct
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from torpor.vm.delta import Delta, write_delta
from torpor.vm.errors import SnapshotError
from torpor.vm.pages import PAGE, Run, written_runs

COUNT = 64
SIZE = COUNT * PAGE
bounded = settings(
    max_examples=60, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
values = st.dictionaries(st.integers(0, COUNT - 1), st.sampled_from([0, 0, 1, 255]), max_size=COUNT)


@pytest.fixture(scope="module")
def second(children: Callable[[], Any]) -> Any:
    """Another process, into which deltas are injected."""
    return children()


@pytest.fixture
def make(
    tmp_path: Path, child: Any, sparse: Callable[..., None]
) -> Callable[[Mapping[int, int], Mapping[int, int]], tuple[Path, Path]]:
    """Returns a base with some pages, and the delta of a process that wrote others over it."""

    def make(base_pages: Mapping[int, int], written: Mapping[int, int]) -> tuple[Path, Path]:
        base, delta = tmp_path / "base.mem", tmp_path / "memory.delta"
        sparse(base, base_pages, COUNT)
        delta.unlink(missing_ok=True)
        mapping = child.map(base)
        child.write(written)
        size = write_delta(delta, mapping, written_runs(mapping))
        assert size == delta.stat().st_size
        return base, delta

    return make


def inject(delta: Path, base: Path, mapping: Any) -> None:
    fd = os.open(base, os.O_RDONLY)
    opened = Delta(delta, SIZE)
    try:
        opened.inject(mapping, fd)
    finally:
        opened.close()
        os.close(fd)


@bounded
@given(base_pages=values, written=values)
def test_memory_is_the_same_after_a_delta(
    make: Callable[..., tuple[Path, Path]],
    second: Any,
    filled: Callable[..., bytes],
    base_pages: dict[int, int],
    written: dict[int, int],
) -> None:
    base, delta = make(base_pages, written)
    before = base.read_bytes()
    mapping = second.map(base)
    inject(delta, base, mapping)
    assert second.memory(mapping) == filled(base_pages | written, COUNT)
    assert base.read_bytes() == before
    # Zeros take no room, neither in the file nor, over a hole, in memory.
    data = sum(1 for value in written.values() if value)
    assert delta.stat().st_size <= PAGE + data * PAGE + 16 * len(written) + 4
    touched = sum(run.length for run in written_runs(mapping))
    assert touched <= data + sum(1 for page in written if page in base_pages)


def test_memory_is_the_same_however_it_is_cut_into_batches(
    make: Callable[..., tuple[Path, Path]],
    second: Any,
    filled: Callable[..., bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("torpor.vm.delta.BATCH", 3)
    base_pages = dict.fromkeys(range(20, 50), 5)
    written = {page: (page * 7) % 3 for page in range(3, 60) if page % 11}
    base, delta = make(base_pages, written)
    mapping = second.map(base)
    inject(delta, base, mapping)
    assert second.memory(mapping) == filled(base_pages | written, COUNT)


@bounded
@given(written=values)
def test_the_pages_of_a_delta_can_be_listed(
    make: Callable[..., tuple[Path, Path]], written: dict[int, int]
) -> None:
    _, delta = make({}, written)
    opened = Delta(delta, SIZE)
    found = {
        address // PAGE + i: set(data[i * PAGE : (i + 1) * PAGE])
        for address, data in opened.pages()
        for i in range(len(data) // PAGE)
    }
    zeros = {page for first, length in opened.zeros for page in range(first, first + length)}
    opened.close()
    assert found == {page: {value} for page, value in written.items() if value}
    assert zeros == {page for page, value in written.items() if not value}


def test_a_delta_is_never_written_over_another_file(
    make: Callable[..., tuple[Path, Path]], child: Any
) -> None:
    base, delta = make({}, {1: 1})
    with pytest.raises(FileExistsError):
        write_delta(delta, child.map(base), [Run(1, 1)])


# Damage


def refused(delta: Path, size: int = SIZE) -> str:
    with pytest.raises(SnapshotError) as error:
        Delta(delta, size)
    return str(error.value)


@pytest.mark.parametrize("flip", [0x01, 0x80, 0xFF])
def test_each_damaged_byte_of_header_and_index_is_noticed_or_means_nothing(
    make: Callable[..., tuple[Path, Path]], flip: int
) -> None:
    _, delta = make({}, {1: 1, 2: 0, 3: 0, 40: 9, 63: 0})
    good = delta.read_bytes()
    (index,) = struct.unpack_from("<Q", good, 24)
    assert index == PAGE + 2 * PAGE
    before = Delta(delta, SIZE)
    before.close()
    for place in [*range(128), *range(index, len(good))]:
        broken = bytearray(good)
        broken[place] ^= flip
        delta.write_bytes(broken)
        if 64 <= place < index:  # filling, read by nobody
            opened = Delta(delta, SIZE)
            opened.close()
            assert (opened.data, opened.zeros) == (before.data, before.zeros)
        else:
            assert "memory.delta" in refused(delta)


def test_a_delta_of_any_other_length_is_refused(make: Callable[..., tuple[Path, Path]]) -> None:
    _, delta = make({}, {1: 1, 2: 0, 40: 9})
    good = delta.read_bytes()
    lengths = [*range(130), 4095, 4096, 4097, PAGE * 2, *range(len(good) - 60, len(good))]
    for length in lengths:
        delta.write_bytes(good[:length])
        refused(delta)
    delta.write_bytes(good + b"\0")
    refused(delta)


def test_a_delta_that_shrinks_while_it_is_read_is_an_error(
    make: Callable[..., tuple[Path, Path]], second: Any
) -> None:
    base, delta = make({}, {1: 1, 2: 2})
    fd = os.open(base, os.O_RDONLY)
    opened = Delta(delta, SIZE)
    os.truncate(delta, PAGE + 100)
    with pytest.raises(SnapshotError, match="ended early"):
        opened.inject(second.map(base), fd)
    with pytest.raises(SnapshotError, match="ended early"):
        list(opened.pages())
    opened.close()
    os.close(fd)


def test_memory_of_another_size_is_refused(make: Callable[..., tuple[Path, Path]]) -> None:
    _, delta = make({}, {1: 1})
    assert f"{SIZE} bytes of memory" in refused(delta, 2 * SIZE)


@pytest.mark.parametrize("kind", ["missing", "directory"])
def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path, kind: str) -> None:
    file = tmp_path / "memory.delta"
    if kind == "directory":
        file.mkdir()
    assert "cannot be read" in refused(file)


def delta_file(
    entries: list[tuple[int, int, int]],
    *,
    pages: int = 0,
    version: int = 1,
    page: int = PAGE,
    size: int = SIZE,
    offset: int | None = None,
    count: int | None = None,
) -> bytes:
    """A delta with right checksums and anything in its fields."""
    index = b"".join(struct.pack("<QII", *entry) for entry in entries)
    offset = PAGE + pages * PAGE if offset is None else offset
    head = struct.pack(
        "<8sIIQQQ20x",
        b"TORPORMD",
        version,
        page,
        size,
        offset,
        len(entries) if count is None else count,
    )
    head += struct.pack("<I", zlib.crc32(head))
    body = head.ljust(PAGE, b"\0") + bytes(pages * PAGE)
    return body + index + struct.pack("<I", zlib.crc32(index))


def test_this_test_can_make_a_good_delta(tmp_path: Path) -> None:
    file = tmp_path / "memory.delta"
    file.write_bytes(delta_file([(0, 2, 0), (2, 5, 1), (COUNT - 1, 1, 0)], pages=3))
    opened = Delta(file, SIZE)
    opened.close()
    assert opened.data == [Run(0, 2), Run(COUNT - 1, 1)]
    assert opened.zeros == [Run(2, 5)]


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (delta_file([], version=2), "version 2"),
        (delta_file([], page=8192), "pages of 8192"),
        (delta_file([(0, 1, 2)]), "outside the memory"),
        (delta_file([(COUNT, 1, 1)]), "outside the memory"),
        (delta_file([(COUNT - 1, 2, 1)]), "outside the memory"),
        (delta_file([(2**64 - 1, 1, 1)]), "outside the memory"),
        (delta_file([(0, 2**32 - 1, 1)]), "outside the memory"),
        (delta_file([(0, 4, 1), (3, 1, 1)]), "not in order"),
        (delta_file([(0, 4, 1), (2, 1, 0)], pages=1), "not in order"),
        (delta_file([(5, 1, 1), (4, 1, 1)]), "not in order"),
        (delta_file([(5, 0, 1)]), "not in order"),
        (delta_file([(0, 2, 0)], pages=1), "do not fit"),
        (delta_file([(0, 1, 0)], pages=2), "do not fit"),
        (delta_file([(0, 1, 1)], count=0), "not as long"),
        (delta_file([(0, 1, 1)], count=2), "not as long"),
        (delta_file([(0, 1, 1)], count=1 << 40), "not as long"),
        (delta_file([(0, 1, 1)], count=2**64 - 1), "not as long"),
        (delta_file([(0, 1, 1)], offset=2**64 - 1), "not as long"),
        (delta_file([(0, 1, 1)], offset=0), "not as long"),
        (b"", "too short"),
        (b"TORPORMD", "too short"),
        (bytes(8192), "header"),
        (b"QFI\xfb" + bytes(8192), "header"),
    ],
    ids=range(23),
)
def test_fields_that_lie_are_refused(tmp_path: Path, content: bytes, why: str) -> None:
    file = tmp_path / "memory.delta"
    file.write_bytes(content)
    assert why in refused(file)


def test_nothing_stays_open_after_a_refusal(tmp_path: Path) -> None:
    file = tmp_path / "memory.delta"
    file.write_bytes(delta_file([(0, 1, 2)]))
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(20):
        refused(file)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_a_process_that_is_gone_makes_no_delta(
    children: Callable[[], Any], tmp_path: Path, sparse: Callable[..., None]
) -> None:
    base = tmp_path / "base.mem"
    sparse(base, {}, COUNT)
    gone = children()
    mapping = gone.map(base)
    gone.write({1: 1})
    runs = written_runs(mapping)
    gone.end()
    with pytest.raises(OSError, match="No such process"):
        write_delta(tmp_path / "memory.delta", mapping, runs)
