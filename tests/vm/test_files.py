"""What a guest says of its files is checked before it is believed."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path
from typing import Any

import pytest

from tests.vm.test_execs import Guest, attached, both
from torpor.guest import wire
from torpor.guest.wire import Kind
from torpor.vm.channel import Channel
from torpor.vm.errors import ChannelLostError, GuestError
from torpor.vm.files import Files
from torpor.vm.works import MAX_LINE

STATUS = {
    "type": "file", "mode": 0o100644, "size": 5, "stored": 512, "uid": 0, "gid": 0,
    "mtime_ns": -1, "links": 1, "inode": 2, "device": 3,
}  # fmt: skip


@pytest.fixture
async def guest() -> AsyncIterator[Guest]:
    played = Guest()
    yield played
    played.close()


@pytest.fixture
async def channel(guest: Guest) -> AsyncIterator[Channel]:
    opened = await attached(guest)
    yield opened
    await opened.close()


async def answers(guest: Guest, *said: dict[str, Any] | tuple[dict[str, Any], bytes]) -> None:
    for each in said:
        request = await guest.hears(Kind.REQUEST)
        answer = each if isinstance(each, tuple) else (each, b"")
        await guest.says(wire.encode(Kind.REPLY, request.stream, wire.document(*answer)))


async def broken(guest: Guest, call: Coroutine[Any, Any, Any], *said: Any) -> None:
    """See that a call fails with an error that says so, and not by itself."""
    with pytest.raises(GuestError) as caught:
        await both(call, answers(guest, *said))
    assert caught.value.code == "EPROTO"


@pytest.mark.parametrize(
    "change",
    [
        {"mode": "x"}, {"size": None}, {"size": 1.5}, {"mtime_ns": True}, {"uid": 1 << 70},
        {"type": "odd"}, {"type": []}, {"target": 3}, {"major": "x"}, {"size": -5},
        {"size": 1 << 63}, {"mode": -1}, {"mode": 1 << 32}, {"target": "\ud800"}, {"links": -1},
    ],
    ids=str,
)  # fmt: skip
async def test_a_status_that_is_none(guest: Guest, channel: Channel, change: Any) -> None:
    await broken(guest, Files(channel).status("/f"), STATUS | change)


async def test_a_status_that_is_one(guest: Guest, channel: Channel) -> None:
    found, _ = await both(Files(channel).status("/f"), answers(guest, STATUS))
    assert (found.size, found.mtime_ns, found.target) == (5, -1, None)


@pytest.mark.parametrize(
    "said",
    [
        ({"size": 5}, bytes(300 << 10)),
        ({"size": "x"}, b"x"),
        ({}, b"x"),
    ],
    ids=["too-much", "no-number", "nothing"],
)
async def test_a_piece_that_is_none(guest: Guest, channel: Channel, said: Any) -> None:
    await broken(guest, Files(channel).read("/f"), said)


async def test_a_short_piece_is_not_the_end_of_a_file(guest: Guest, channel: Channel) -> None:
    said = [({"size": 0, "end": False}, b"of "), ({"size": 0, "end": False}, b"the kernel")]
    data, _ = await both(
        Files(channel).read("/proc/f"), answers(guest, *said, ({"size": 0, "end": False}, b""))
    )
    assert data == b"of the kernel"


async def test_a_file_without_end_ends_at_the_limit(guest: Guest, channel: Channel) -> None:
    async def endless() -> None:
        while True:
            await answers(guest, ({"size": 1 << 60, "end": False}, bytes(256 << 10)))

    task = asyncio.create_task(endless())
    with pytest.raises(GuestError, match="EFBIG"):
        async with asyncio.timeout(20):
            await Files(channel).read("/f", limit=3 << 20)
    task.cancel()
    assert not channel._replies


@pytest.mark.parametrize(
    "said",
    [
        {"size": 10, "next": 10},
        {"size": 10, "next": 10, "ranges": {}},
        {"size": 10, "next": 10, "ranges": [5]},
        {"size": 10, "next": 10, "ranges": [[0, "x"]]},
        {"size": 10, "next": 10, "ranges": [[0, 11]]},
        {"size": 10, "next": 10, "ranges": [[5, 5]]},
        {"size": 10, "next": 10, "ranges": [[-1, 5]]},
        {"size": 10, "next": 10, "ranges": [[5, 6], [0, 2]]},
        {"size": 10, "next": 0, "ranges": []},
        {"size": 10, "next": 11, "ranges": []},
        {"size": -1, "next": 0, "ranges": []},
    ],
    ids=str,
)
async def test_ranges_that_are_none(
    guest: Guest,
    channel: Channel,
    tmp_path: Path,
    said: Any,
) -> None:
    with pytest.raises(GuestError) as caught:
        await both(Files(channel).download("/f", tmp_path / "f"), answers(guest, said))
    assert caught.value.code in ("EPROTO", "ESTALE")
    assert (tmp_path / "f").stat().st_size == 0


# Work


async def listing(channel: Channel) -> list[Any]:
    return [each async for each in Files(channel).list("/d")]


async def says_lines(guest: Guest, data: bytes, code: int, said: bytes = b"") -> None:
    await guest.follows()
    seq = 0
    for start in range(0, len(data), 100_000):
        await guest.chunk(seq, data[start : start + 100_000])
        seq += len(data[start : start + 100_000])
        if seq > 200_000:
            await asyncio.sleep(0.05)  # until what was sent is read, and the window open
    if said:
        await guest.chunk(seq, said, 2)
    await guest.end(seq + len(said), code)


@pytest.mark.parametrize(
    "line",
    [b"no json", b"3", b"[]", b'{"path": 3}', b'{"path": "x", "mode": 1}', b"[" * 100_000,
     b'{"path": "x", "error": 1}', b'{"path": "x", "sha256": 1}', b"\xff",
     b'{"path": "\\ud800"}', b'{"path": "x", "sha256": "\\u001b[2J"}'],
    ids=range(11),
)  # fmt: skip
async def test_a_line_that_is_none(guest: Guest, channel: Channel, line: bytes) -> None:
    with pytest.raises(GuestError) as caught:
        await both(listing(channel), says_lines(guest, line + b"\n", 0))
    assert caught.value.code == "EPROTO"


async def test_the_word_for_what_is_not_known_cannot_drive_a_terminal(
    guest: Guest, channel: Channel
) -> None:
    line = b'{"path": "x", "error": {"code": "\\u001b[2J", "message": "\\ud800%s"}}\n'
    (found,), _ = await both(listing(channel), says_lines(guest, line % (b"y" * 9000), 0))
    assert found.error is not None
    assert found.error.startswith("?yyy")
    assert len(found.error) <= 2000


async def test_a_line_without_end(guest: Guest, channel: Channel) -> None:
    with pytest.raises(GuestError, match="line without end"):
        await both(listing(channel), says_lines(guest, b"x" * (MAX_LINE + 100_000), 0))


async def test_the_end_in_the_middle_of_a_line(guest: Guest, channel: Channel) -> None:
    with pytest.raises(GuestError, match="middle of a line"):
        await both(listing(channel), says_lines(guest, b'{"path"', 0))


@pytest.mark.parametrize(
    ("said", "code", "told"),
    [
        (b'{"code": "EIO", "message": "bad\\u001b"}\n', "EIO", "bad?"),
        (b'noise\n{"code": "E\\n", "message": 3}\n', "E\n", "3"),
        (b"Traceback\n", "EIO", "Traceback"),
        (b"\xff\x1b", "EIO", "before its time"),
        (b"", "EIO", "code=1"),
        (b"[" * 5000, "EIO", "before its time"),
    ],
    ids=range(6),
)
async def test_work_that_fails_says_why(
    guest: Guest,
    channel: Channel,
    said: bytes,
    code: str,
    told: str,
) -> None:
    with pytest.raises(GuestError) as caught:
        await both(listing(channel), says_lines(guest, b"", 1, said))
    assert caught.value.code == code
    assert told in str(caught.value)


async def test_an_event_that_is_none(guest: Guest, channel: Channel) -> None:
    async def watched() -> None:
        watch = await Files(channel).watch("/d")
        async for _ in watch.events():
            pass

    with pytest.raises(GuestError, match="EPROTO"):
        await both(watched(), says_lines(guest, b'{"event": "created", "path": 3}\n', 0))


async def test_a_lost_channel_is_told_as_one(guest: Guest, channel: Channel) -> None:
    async def lost() -> None:
        await guest.follows()
        await guest.chunk(0, b'{"pa')
        guest.close()

    with pytest.raises(ChannelLostError):
        await both(listing(channel), lost())
