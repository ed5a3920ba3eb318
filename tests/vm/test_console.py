import asyncio
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from torpor.vm.console import KEEP, Console


class Followed:
    """A console that is followed, and the machine's end of it."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.console = Console(file)
        ours, self.machine = socket.socketpair()
        ours.setblocking(False)
        self.machine.setblocking(False)
        self._ours = ours

    async def begin(self) -> None:
        await self.console.follow(self._ours)

    async def prints(self, data: bytes) -> None:
        async with asyncio.timeout(10):
            await asyncio.get_running_loop().sock_sendall(self.machine, data)

    async def shows(self, text: str) -> None:
        async with asyncio.timeout(10):
            while text not in self.console.tail():  # noqa: ASYNC110 - it tells nobody
                await asyncio.sleep(0.01)


@pytest.fixture
async def followed(tmp_path: Path) -> AsyncIterator[Followed]:
    followed = Followed(tmp_path / "console.log")
    await followed.begin()
    yield followed
    await followed.console.close()
    followed.machine.close()


async def test_the_last_lines_are_shown(followed: Followed) -> None:
    await followed.prints(b"".join(b"line %d\r\n\r\n" % number for number in range(100)))
    await followed.shows("line 99")
    assert followed.console.tail(3) == "line 97\nline 98\nline 99"
    assert followed.console.tail().splitlines()[0] == "line 88"


async def test_a_guest_that_prints_without_end_takes_bounded_memory_and_disk(
    followed: Followed,
) -> None:
    for number in range(64):
        await followed.prints(b"%08d" % number * 8192)
    await followed.prints(b"the end")
    await followed.shows("the end")
    assert len(followed.console._kept) == KEEP
    await followed.console.close()
    assert followed.file.stat().st_size == KEEP
    assert followed.file.read_bytes().endswith(b"the end")


async def test_what_is_shown_cannot_drive_a_terminal(followed: Followed) -> None:
    await followed.prints(b"\x1b[2Jred\x07\x00\x9b1m \xff\xfe \xe2\x80\xae reversed\ttab\x7f\nend")
    await followed.shows("end")
    shown = followed.console.tail()
    assert all(c.isprintable() or c in "\n\t" for c in shown)
    assert "red" in shown
    assert "tab" in shown


async def test_what_was_read_is_in_the_file_for_the_next_program(followed: Followed) -> None:
    await followed.prints(b"before\n")
    await followed.shows("before")
    await followed.console.close()
    again = Followed(followed.file)
    await again.begin()
    await again.prints(b"after\n")
    await again.shows("after")
    assert again.console.tail() == "before\nafter"
    await again.console.close()
    again.machine.close()


async def test_the_file_follows_after_a_moment(followed: Followed) -> None:
    await followed.prints(b"news")
    async with asyncio.timeout(10):
        while not (  # noqa: ASYNC110 - a file has no event
            followed.file.exists() and followed.file.read_bytes() == b"news"
        ):
            await asyncio.sleep(0.02)


async def test_the_last_words_of_a_machine_are_waited_for(followed: Followed) -> None:
    await followed.prints(b"Kernel panic - not syncing\n")
    followed.machine.close()
    await followed.console.drain()
    assert followed.console.tail() == "Kernel panic - not syncing"


async def test_a_file_that_cannot_be_written_does_not_keep_a_machine_from_its_end(
    tmp_path: Path,
) -> None:
    followed = Followed(tmp_path / "gone" / "console.log")
    await followed.begin()
    await followed.prints(b"news")
    await followed.shows("news")
    await asyncio.sleep(0.3)
    await followed.prints(b" more")
    await followed.shows("more")
    await followed.console.close()
    followed.machine.close()
    assert followed.console.tail() == "news more"


async def test_it_can_be_closed_twice_and_without_a_machine(
    followed: Followed, tmp_path: Path
) -> None:
    await followed.console.close()
    await followed.console.close()
    await followed.console.drain()
    await Console(tmp_path / "none").close()
    assert Console(tmp_path / "none").tail() == ""
