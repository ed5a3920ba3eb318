"""The agent's end of the guest channel: one virtio-serial port, epochs, a send queue."""

import os
import select
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torpor.guest import wire
from torpor.guest.loop import EDGE, READ, WRITE, Loop, Timer
from torpor.guest.wire import Frame, Kind

Answer = Callable[[dict[str, Any]], None]
"""Answers a request, whenever that is."""
PORT_NAME = "torpor.agent"
WRITE_SIZE = 32 << 10
"""The kernel takes at most 32 KiB in one write to a port (``drivers/char/virtio_console.c``)."""

CLOSED_FOR = 1.0
"""Seconds after which a host's end that is closed counts as gone. A port is also reported closed
for a moment after a thaw, perhaps when the host has already begun a new epoch: QEMU tells its guest
so before and after the host connects, and the guest's kernel hears it later than the bytes."""


def open_port(name: str = PORT_NAME, ports: Path = Path("/sys/class/virtio-ports")) -> int:
    """Open the virtio-serial port called ``name`` and return its descriptor. Raises OSError."""
    for port in sorted(ports.iterdir()):
        if (port / "name").read_text().strip() == name:
            return os.open(f"/dev/{port.name}", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    raise FileNotFoundError(f"this machine has no virtio-serial port called {name}")


class Link:
    """Sends and receives frames; knows which epoch is current.

    ``on_frame`` gets each frame of the current epoch, ``on_lost`` is called when it is over (the
    host's end was closed, or a new one begins), ``pull`` is asked for one more stream frame
    whenever nothing more urgent waits: streams are read only as fast as the port drains, so nothing
    piles up here. ``born`` says that this agent knows nothing of what went before.
    """

    def __init__(
        self,
        loop: Loop,
        port: int,
        greeting: dict[str, Any],
        on_frame: Callable[[Frame], None],
        on_lost: Callable[[], None],
        pull: Callable[[], bytes | None],
        *,
        born: bool = True,
    ) -> None:
        self._loop = loop
        self._port = port
        self._greeting = greeting
        self._on_frame = on_frame
        self._on_lost = on_lost
        self._pull = pull
        self._decoder = wire.Decoder()
        self._epoch: str | None = None
        self._urgent: deque[bytes] = deque()
        # An agent that took the place of a dead one says so to whoever waits for the old one.
        self._unsent = wire.FLAG + wire.encode(Kind.BORN, 0) if born else b""
        self._closed: Timer | None = None
        self._leaving = False
        # Edge-triggered, because a port whose host end is closed reports a hang-up all the time.
        loop.watch(port, READ | WRITE | EDGE, lambda _events: self._ready())

    @property
    def epoch(self) -> str | None:
        """The current epoch; an answer goes to the one that asked or to nobody."""
        return self._epoch

    def send(self, kind: Kind, stream: int, payload: bytes) -> None:
        """Queue one frame ahead of all stream data."""
        if len(payload) > wire.MAX_BODY:  # the host would drop it, and wait
            error = {"code": "EMSGSIZE", "message": "the answer does not fit into a frame"}
            payload = wire.document({"error": error})
        self._urgent.append(wire.encode(kind, stream, payload))

    def leave(self) -> None:
        """Take nothing any more: what comes is for whoever follows. What is queued is sent."""
        self._leaving = True

    @property
    def drained(self) -> bool:
        """Whether all that was to be sent has been."""
        return not self._unsent and not self._urgent

    def _ready(self) -> None:
        while True:
            try:
                data = os.read(self._port, 64 << 10)
            except BlockingIOError:
                break
            if not data:
                if self._closed is None:
                    self._closed = self._loop.after(CLOSED_FOR, self._check_closed)
                break
            for frame in self._decoder.feed(data):
                self._take(frame)
        self.flush()

    def _check_closed(self) -> None:
        self._closed = None
        poll = select.poll()
        poll.register(self._port, 0)
        if self._epoch is not None and poll.poll(0):  # a hang-up: nothing else was asked for
            self._epoch = None
            self._urgent.clear()
            self._unsent = b""
            self._on_lost()

    def _take(self, frame: Frame) -> None:
        if self._leaving:
            return
        if frame.kind == Kind.HELLO:
            self._hello(frame)
        elif self._epoch is not None:
            self._on_frame(frame)

    def _hello(self, frame: Frame) -> None:
        hello, _ = wire.parse_document(frame.payload)
        epoch = str(hello.get("epoch"))
        if epoch != self._epoch:
            self._epoch = epoch
            self._urgent.clear()
            # What was being sent is cut off; the flag ends the cut frame for the receiver.
            self._unsent = wire.FLAG
            self._on_lost()
        welcome = {"version": wire.VERSION, "epoch": epoch, "mono_ns": time.monotonic_ns()}
        self.send(Kind.WELCOME, 0, wire.document(welcome | self._greeting))

    def flush(self) -> None:
        """Send until the port is full or nothing is left to send."""
        while self._unsent or self._epoch is not None:
            if not self._unsent and not self._fill():
                return
            try:
                sent = os.write(self._port, self._unsent[:WRITE_SIZE])
            except (BlockingIOError, BrokenPipeError):  # the latter from a socket
                return
            if sent == 0:
                return
            self._unsent = self._unsent[sent:]

    def _fill(self) -> bool:
        batch = []
        size = 0
        while size < WRITE_SIZE:
            frame = self._urgent.popleft() if self._urgent else self._pull()
            if frame is None:
                break
            batch.append(frame)
            size += len(frame)
        self._unsent = b"".join(batch)
        return bool(batch)
