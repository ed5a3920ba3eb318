"""A QEMU that was taken over lies on its monitor: each lie is an error of ours, and none grows."""

import asyncio
import contextlib
import json
import os
import signal
import socket
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from torpor.vm import qmp as monitors
from torpor.vm.qmp import EVENTS_KEPT, Qmp, QmpError, connect_unix, listen_unix

GREETING = {"QMP": {"version": {"qemu": {"micro": 0, "minor": 2, "major": 7}}, "capabilities": []}}

NAMED = ("disk_top", "release", "disk_counts")


class Liar:
    """A monitor that greets as QEMU does and answers each command with the same bytes."""

    def __init__(self, answer: bytes, greeting: bytes | None = None) -> None:
        self.ours, self._theirs = socket.socketpair()
        self.ours.setblocking(False)
        self._theirs.setblocking(False)
        self._answer = answer
        self._greeting = greeting or json.dumps(GREETING).encode() + b"\n"

    async def run(self) -> None:
        reader, self.writer = await asyncio.open_connection(sock=self._theirs)
        try:
            await self._answer_all(reader)
        except ConnectionError:
            return
        finally:
            self.writer.close()

    async def _answer_all(self, reader: asyncio.StreamReader) -> None:
        self.writer.write(self._greeting)
        first = True
        while said := await reader.read(1 << 16):  # one command, which ends with no newline
            number = json.loads(said).get("id")
            answer = b'{"return": {}, "id": %s}\n' % json.dumps(number).encode()
            if not first:
                answer = self._answer.replace(b"ID", json.dumps(number).encode())
            first = False
            self.writer.write(answer)


async def lied_to(answer: bytes, command: str = "status") -> None:
    liar = Liar(answer)
    lying = asyncio.create_task(liar.run())
    try:
        async with asyncio.timeout(30):
            qmp = await Qmp.connect(liar.ours, lambda *_: None)
            try:
                await getattr(qmp, command)(*(["x"] if command in NAMED else []))
            finally:
                await qmp.disconnect()
    finally:
        lying.cancel()
        await asyncio.gather(lying, return_exceptions=True)


def answers(value: Any) -> bytes:
    return b'{"return": %s, "id": ID}\n' % json.dumps(value).encode()


LYING = {"thread-id": 1 << 70}
STATS = {"qdev": "x", "stats": dict.fromkeys(("rd_bytes", "rd_operations", "wr_bytes"), -1)}


@pytest.mark.parametrize(
    "command", ["status", "disk_top", "release", "vcpu_threads", "disk_counts"]
)
@pytest.mark.parametrize(
    "value",
    [7, "text", [7], [[]], [{}], {"status": {}}, None, [{"qdev": "x"}], [LYING], [STATS]],
)
async def test_an_answer_of_another_form_is_refused(command: str, value: Any) -> None:
    try:
        await lied_to(answers(value), command)
    except QmpError as error:
        assert "QEMU" in str(error)  # noqa: PT017 - some of them are good answers


@pytest.mark.parametrize(
    "said",
    [
        b"no json\n",
        b"\xff\xfe\n",
        b"[" * 50_000 + b"\n",
        b'{"return": ' + b"9" * 10_000 + b', "id": ID}\n',
        b"x" * (1 << 22) + b"\n",
        b"[]\n",
        b'{"error": 5, "id": ID}\n',
        b'{"error": {"class": "x", "desc": "\\u001b[2J"}, "id": ID}\n',
        b'{"event": {}, "timestamp": []}\n{"return": 1, "id": "nobody"}\n',
    ],
)
async def test_what_no_qemu_says_ends_the_monitor_with_an_error_of_ours(said: bytes) -> None:
    with pytest.raises(QmpError) as caught:
        await lied_to(said)
    assert all(c.isprintable() or c == "\n" for c in str(caught.value))


async def test_a_flood_of_events_takes_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(monitors, "MOST_SAID", 1 << 30)
    event = b'{"event": "MIGRATION", "data": {"status": "active"}, "timestamp": {}}\n'
    liar = Liar(b"")
    lying = asyncio.create_task(liar.run())
    qmp = await Qmp.connect(liar.ours, lambda *_: None)
    tracemalloc.start()
    try:
        async with asyncio.timeout(300):
            for _ in range(400):
                liar.writer.write(event * 100)
                await liar.writer.drain()
                await asyncio.sleep(0)
            while not qmp._migrations.full():  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        await qmp.disconnect()
        lying.cancel()
        await asyncio.gather(lying, return_exceptions=True)
    assert qmp._migrations.qsize() == EVENTS_KEPT
    assert most < 16 << 20


@pytest.mark.parametrize(
    "message",
    [
        b'{"event": "X", "data": {}, "timestamp": {}}\n',
        b'{"return": {}, "id": "nobody"}\n',
        b'{"return": {"x": "%s"}, "id": "nobody"}\n' % (b"y" * 100_000),
    ],
    ids=["events", "answers", "long answers"],
)
async def test_a_flood_ends_the_monitor_and_is_told(
    message: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(monitors, "MOST_SAID", 1 << 20)
    liar = Liar(answers({"status": "running"}))
    lying = asyncio.create_task(liar.run())
    qmp = await Qmp.connect(liar.ours, lambda *_: None)
    assert await qmp.status() == "running"
    async with asyncio.timeout(30):
        with contextlib.suppress(ConnectionError):
            for _ in range(20_000):
                liar.writer.write(message)
                await liar.writer.drain()
        with pytest.raises(QmpError, match="floods it"):
            await qmp.status()
        await qmp.disconnect()
    lying.cancel()
    await asyncio.gather(lying, return_exceptions=True)


@pytest.mark.parametrize("greeting", [b"\n", b'{"QMP": '])
async def test_a_monitor_that_never_greets_is_waited_for_no_longer_than_for_an_answer(
    greeting: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(monitors, "ANSWER_LIMIT", 0.2)
    liar = Liar(b"", greeting)
    lying = asyncio.create_task(liar.run())
    async with asyncio.timeout(30):
        with pytest.raises(QmpError, match="monitor"):
            await Qmp.connect(liar.ours, lambda *_: None)
    lying.cancel()
    await asyncio.gather(lying, return_exceptions=True)


def test_a_socket_at_which_nobody_accepts_makes_nobody_wait(tmp_path: Path) -> None:
    directory = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    with listen_unix(directory, "agent"):
        ours: list[socket.socket] = []
        before = signal.signal(signal.SIGALRM, _waited)
        signal.alarm(30)  # far beyond what it takes: a wait for ever fails
        try:
            with pytest.raises(BlockingIOError):
                ours.extend(connect_unix(directory, "agent") for _ in range(100))
        finally:
            signal.alarm(0)
            signal.signal(signal.SIGALRM, before)
        assert ours
        assert not any(each.getblocking() for each in ours)
        for each in ours:
            each.close()
    os.close(directory)


def _waited(*_: object) -> None:
    raise AssertionError("it waited")
