import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torpor.guest.log import MERGED, Log

bounded = settings(max_examples=100, derandomize=True)

writes = st.lists(
    st.tuples(
        st.sampled_from([1, 2]), st.binary(min_size=1, max_size=30), st.none() | st.integers(0, 200)
    ),
    max_size=30,
)


def read_all(log: Log, seq: int, limit: int) -> list[tuple[int, int]]:
    """Everything from ``seq`` on, as (source, byte)."""
    found: list[tuple[int, int]] = []
    while (chunk := log.read(seq, limit)) is not None:
        assert chunk.seq == seq
        assert 0 < len(chunk.data) <= limit
        found += [(chunk.source, byte) for byte in chunk.data]
        seq += len(chunk.data)
    assert seq == log.end
    return found


@bounded
@given(writes, st.integers(1, 100), st.integers(1, 40))
def test_what_is_kept_is_the_end_of_all_that_was_written(
    written: list[tuple[int, bytes, int | None]], keep: int, limit: int
) -> None:
    log = Log(keep)
    model: list[tuple[int, int]] = []
    for source, data, held_from in written:
        before = log.start
        log.append(source, data, held_from)
        model += [(source, byte) for byte in data]
        assert log.end == len(model)
        assert before <= log.start <= log.end
        # At least what was asked for is kept, and all that somebody still waits for.
        assert log.end - log.start >= min(keep, len(model))
        if held_from is not None and before <= held_from:
            assert log.start <= held_from
    for seq in range(log.start, log.end + 1):
        assert read_all(log, seq, limit) == model[seq:]


@bounded
@given(st.lists(st.tuples(st.sampled_from([1, 2]), st.integers(1, 3 * MERGED)), max_size=60))
def test_no_more_than_one_write_or_merged_piece_beyond_is_kept(
    sizes: list[tuple[int, int]],
) -> None:
    keep = 2 * MERGED
    log = Log(keep)
    for source, size in sizes:
        log.append(source, bytes(size))
        assert log.end - log.start <= keep + 3 * MERGED


def test_a_command_that_writes_byte_by_byte_costs_little_more_than_its_bytes() -> None:
    log = Log(1 << 20)
    for _ in range(100_000):
        log.append(1, b".")
    kept = sum(sys.getsizeof(chunk) + sys.getsizeof(chunk.data) for chunk in log._chunks)
    assert kept < 1.1 * 100_000
    assert read_all(log, 0, 1 << 16) == [(1, ord("."))] * 100_000


@pytest.mark.parametrize("seq", [0, 5])
def test_an_empty_log_has_nothing_to_read(seq: int) -> None:
    assert Log(10).read(seq, 10) is None
