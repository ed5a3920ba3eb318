import asyncio
import os
from pathlib import Path

import pytest

from torpor.vm.said import KEEP, PIPE, Said


@pytest.fixture
def said(tmp_path: Path) -> Said:
    """What a machine's QEMU says; its directory is the test's."""
    said = Said(tmp_path)
    said.open()
    return said


def say(end: int, data: bytes) -> int:
    """Write as QEMU does: what does not fit is lost."""
    try:
        return os.write(end, data)
    except BlockingIOError:
        return 0


async def test_what_is_said_is_there_afterwards(said: Said) -> None:
    end = said.writing_end()
    say(end, b"qemu: something is wrong\n")
    os.close(end)
    assert said.text(100) == "qemu: something is wrong"
    assert said.text(5) == "wrong"
    said.close()


async def test_who_talks_while_nobody_reads_neither_waits_nor_fills_the_host(
    said: Said, tmp_path: Path
) -> None:
    end = said.writing_end()
    said.close()
    taken = sum(say(end, bytes(4096)) for _ in range(1000))
    assert taken == PIPE
    assert [file.stat().st_size for file in tmp_path.iterdir()] == [0]
    os.close(end)


async def test_the_next_program_finds_what_was_said_meanwhile(said: Said, tmp_path: Path) -> None:
    end = said.writing_end()
    said.close()
    say(end, b"said to nobody")
    again = Said(tmp_path)
    again.open()
    assert again.text(100) == "said to nobody"
    again.close()
    os.close(end)


async def test_the_newest_words_are_kept_while_somebody_follows(said: Said) -> None:
    end = said.writing_end()
    said.follow()
    written = 0
    async with asyncio.timeout(30):
        while written < 3 * PIPE:
            written += say(end, b"." * 4096)
            await asyncio.sleep(0.001)
        while say(end, b"the last words") == 0:  # noqa: ASYNC110 - a pipe has no event
            await asyncio.sleep(0.01)
        while "the last words" not in said.text(PIPE):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert len(said.text(PIPE)) <= KEEP
    said.close()
    os.close(end)


async def test_nobody_can_make_us_wait(said: Said) -> None:
    end = said.writing_end()
    os.set_blocking(end, True)  # what a QEMU that was taken over would try
    assert said.text(10) == ""
    said.close()
    os.close(end)


async def test_what_is_said_cannot_drive_a_terminal(said: Said) -> None:
    end = said.writing_end()
    say(end, b"\x1b[2Jred\x07")
    assert said.text(100) == "?[2Jred?"
    said.close()
    os.close(end)
