import os
import signal
import struct
from pathlib import Path

import pytest

from torpor.guest import initctl
from torpor.guest.loop import Loop


def record(level: str, magic: int = 0x03091969, command: int = 1) -> bytes:
    return struct.pack("<iiii368x", magic, command, ord(level), 0)


@pytest.mark.parametrize(
    ("sent", "wanted"),
    [
        (record("0"), signal.SIGUSR2),
        (record("6"), signal.SIGTERM),
        (record("3"), None),
        (record("6", magic=1), None),
        (record("6", command=2), None),
        (record("6")[:-1], None),
        (b"", None),
    ],
)
def test_a_record_asks_for_a_signal(sent: bytes, wanted: signal.Signals | None) -> None:
    assert initctl.parse(sent) == wanted


def test_records_reach_init_one_writer_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "kill", lambda pid, number: told.append((pid, number)))
    loop = Loop()
    fifo = tmp_path / "initctl"
    initctl.serve(loop, fifo)
    assert fifo.stat().st_mode & 0o777 == 0o600
    for level in "360":
        fifo.write_bytes(record(level))
        loop.turn()
    assert told == [(1, signal.SIGTERM), (1, signal.SIGUSR2)]


def test_another_file_in_its_place_is_left_alone(tmp_path: Path) -> None:
    fifo = tmp_path / "initctl"
    fifo.write_text("mine")
    initctl.serve(Loop(), fifo)
    assert fifo.read_text() == "mine"
