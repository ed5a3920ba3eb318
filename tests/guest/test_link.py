import os
import socket
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from torpor.guest import wire
from torpor.guest.link import Link, open_port
from torpor.guest.loop import Loop
from torpor.guest.wire import Decoder, Frame, Kind


class Guest:
    """A link whose port is one end of a socket pair; the test plays the host at the other."""

    def __init__(self, ours: socket.socket, theirs: socket.socket) -> None:
        self.host = theirs
        self.loop = Loop()
        self.frames: list[Frame] = []
        self.attached = 0
        self.stream: deque[bytes] = deque()
        self._decoder = Decoder()
        self.link = Link(
            self.loop, ours.fileno(), {"boot_id": "b"}, self.frames.append, self._attach, self._pull
        )

    def _attach(self) -> None:
        self.attached += 1

    def _pull(self) -> bytes | None:
        return self.stream.popleft() if self.stream else None

    def says(self, data: bytes) -> None:
        """Give the guest bytes of the host and let it work."""
        self.host.sendall(data)
        self.turn()

    def turn(self) -> None:
        self.loop.after(0.01, lambda: None)
        self.loop.turn()

    def said(self) -> list[Frame]:
        """The whole frames that the guest has sent since the last call."""
        try:
            return list(self._decoder.feed(self.host.recv(1 << 22)))
        except BlockingIOError:
            return []

    def welcomes(self) -> list[dict[str, Any]]:
        said = self.said()
        assert [frame.kind for frame in said] == [Kind.WELCOME] * len(said)
        return [wire.parse_document(frame.payload)[0] for frame in said]


@pytest.fixture
def guest() -> Iterator[Guest]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        theirs.setblocking(False)
        guest = Guest(ours, theirs)
        guest.turn()
        assert [frame.kind for frame in guest.said()] == [Kind.BORN]
        yield guest
        guest.loop._epoll.close()


def hello(epoch: str) -> bytes:
    return wire.FLAG + wire.encode(Kind.HELLO, 0, wire.document({"version": 1, "epoch": epoch}))


def request(number: int) -> bytes:
    return wire.encode(Kind.REQUEST, number, wire.document({"op": "ping"}))


def test_nothing_is_sent_before_the_first_hello(guest: Guest) -> None:
    guest.link.send(Kind.REPLY, 1, b"")
    guest.stream.append(wire.encode(Kind.CHUNK, 1, b""))
    guest.link.flush()
    guest.turn()
    assert guest.said() == []


def test_frames_before_the_first_hello_are_dropped(guest: Guest) -> None:
    guest.says(request(1) + hello("a") + request(2))
    assert [frame.stream for frame in guest.frames] == [2]
    assert [each["epoch"] for each in guest.welcomes()] == ["a"]


def test_each_hello_is_answered_and_only_a_new_one_attaches(guest: Guest) -> None:
    guest.says(hello("a") + hello("a"))
    guest.says(hello("a"))
    welcomes = guest.welcomes()
    assert [each["epoch"] for each in welcomes] == ["a"] * 3
    assert all(each["boot_id"] == "b" and each["version"] == wire.VERSION for each in welcomes)
    assert welcomes == sorted(welcomes, key=lambda each: each["mono_ns"])
    assert guest.attached == 1
    guest.says(hello("b"))
    assert guest.attached == 2
    assert [each["epoch"] for each in guest.welcomes()] == ["b"]


def test_a_new_epoch_drops_what_the_old_one_still_had_to_send(guest: Guest) -> None:
    guest.says(hello("a"))
    guest.welcomes()
    guest.link.send(Kind.REPLY, 1, b"of the old epoch")
    guest.says(hello("b"))
    said = guest.said()
    assert [frame.kind for frame in said] == [Kind.WELCOME]


def test_a_request_that_was_cut_by_a_new_attachment_is_dropped(guest: Guest) -> None:
    guest.says(hello("a"))
    guest.says(request(1)[:-4])
    guest.says(hello("b") + request(2))
    assert [frame.stream for frame in guest.frames] == [2]
    assert [each["epoch"] for each in guest.welcomes()] == ["a", "b"]


def test_a_frame_that_was_half_sent_is_ended_before_the_welcome(guest: Guest) -> None:
    guest.says(hello("a"))
    guest.welcomes()
    # Fill the port, so that a frame is cut in the middle.
    guest.stream.extend(wire.encode(Kind.CHUNK, 1, bytes(100_000)) for _ in range(40))
    guest.link.flush()
    assert guest.stream, "the port took everything"
    got = b""
    guest.host.sendall(hello("b"))
    decoder = Decoder()
    frames: list[Frame] = []
    for _ in range(100):
        guest.turn()
        try:
            got = guest.host.recv(1 << 22)
        except BlockingIOError:
            break
        frames += decoder.feed(got)
    kinds = [frame.kind for frame in frames]
    assert kinds.count(Kind.WELCOME) == 1
    assert all(len(frame.payload) == 100_000 for frame in frames if frame.kind == Kind.CHUNK)
    assert decoder.dropped <= 1


def test_replies_go_before_stream_data(guest: Guest) -> None:
    guest.says(hello("a"))
    guest.welcomes()
    guest.stream.extend(wire.encode(Kind.CHUNK, 1, b"data") for _ in range(3))
    guest.link.send(Kind.REPLY, 9, b"urgent")
    guest.link.flush()
    assert [frame.kind for frame in guest.said()] == [Kind.REPLY] + [Kind.CHUNK] * 3


def test_a_full_port_holds_the_streams_back_and_loses_nothing(guest: Guest) -> None:
    guest.says(hello("a"))
    guest.welcomes()
    sent = [bytes([number]) * 20_000 for number in range(100)]
    guest.stream.extend(wire.encode(Kind.CHUNK, 1, data) for data in sent)
    guest.link.flush()
    assert guest.stream, "the port took everything"
    seen: list[Frame] = []
    for _ in range(200):
        seen += guest.said()
        guest.turn()
    assert [frame.payload for frame in seen] == sent


def test_it_opens_the_port_with_the_right_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for port, name in (("vport0p1", "another\n"), ("vport0p2", "torpor.agent\n")):
        (tmp_path / port).mkdir()
        (tmp_path / port / "name").write_text(name)
    opened: list[str] = []
    monkeypatch.setattr(os, "open", lambda path, _flags: opened.append(path) or 7)
    assert open_port(ports=tmp_path) == 7
    assert opened == ["/dev/vport0p2"]
    with pytest.raises(FileNotFoundError, match="no virtio-serial port called no"):
        open_port("no", tmp_path)
