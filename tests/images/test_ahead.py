"""Chunks made ahead: few of them, in order, and whoever makes them ends with the reader."""

import threading
import time
from collections.abc import Iterator
from contextlib import closing

import pytest

from torpor.images.ahead import MOST, ahead
from torpor.images.errors import HostileImageError


def makers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "ahead"]


def test_all_comes_in_order() -> None:
    chunks = [bytes([number]) * 9 for number in range(200)]
    assert list(ahead(iter(chunks))) == chunks
    assert list(ahead(iter(()))) == []
    assert makers() == []


def test_a_bomb_is_made_no_further_than_it_is_read() -> None:
    made = 0

    def bomb() -> Iterator[bytes]:
        nonlocal made
        while True:
            made += 1
            yield b"\0"

    with closing(ahead(bomb())) as chunks:
        for read in range(1, 20):
            next(chunks)
            time.sleep(0.01)
            assert made <= read + MOST
    assert makers() == []


def test_an_error_comes_where_it_happened() -> None:
    def broken() -> Iterator[bytes]:
        yield b"sound"
        raise HostileImageError("A layer is not sound.")

    chunks = ahead(broken())
    assert next(chunks) == b"sound"
    with pytest.raises(HostileImageError, match="not sound"):
        next(chunks)
    assert makers() == []
