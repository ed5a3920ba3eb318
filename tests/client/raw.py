"""A server that breaks connections: each gets what it is to get, byte by byte."""

import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

LOST = b""
"""The request is read, and the connection ends."""


@dataclass
class Raw:
    """What came, as heads of requests, and where it came to."""

    url: str
    heads: list[bytes] = field(default_factory=list)


@contextmanager
def raw_server(answers: Sequence[bytes]) -> Iterator[Raw]:
    """Answer one request on each connection, with the next of ``answers``."""
    listening = socket.create_server(("127.0.0.1", 0))
    server = Raw(f"http://127.0.0.1:{listening.getsockname()[1]}")

    def serve() -> None:
        for answer in answers:
            try:
                connection, _ = listening.accept()
            except OSError:
                return  # closed: nobody asks any more
            with connection:
                server.heads.append(_request(connection))
                connection.sendall(answer)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield server
    finally:
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()
        thread.join()


def _request(connection: socket.socket) -> bytes:
    head, _, body = _until(connection, b"\r\n\r\n")
    for line in head.lower().split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name == b"content-length":
            missing = int(value) - len(body)
            while missing > 0:
                missing -= len(connection.recv(missing))
    return head


def _until(connection: socket.socket, end: bytes) -> tuple[bytes, bytes, bytes]:
    data = b""
    while end not in data:
        piece = connection.recv(65536)
        if not piece:
            break
        data += piece
    return data.partition(end)


def answer(status: int, body: bytes = b"", **headers: str) -> bytes:
    """Return an answer as bytes."""
    lines = [f"HTTP/1.1 {status} X", f"content-length: {len(body)}", "connection: close"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join((*lines, "", "")).encode() + body
