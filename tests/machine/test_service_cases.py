"""Sessions over HTTP, on real machines: the faults that users of such services have reported."""

import asyncio
import hashlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.machine.conftest import Start
from torpor.client import ApiError, Client, ConflictError, Output, Session
from torpor.lab.programs import text_of
from torpor.lab.server import Server, served_for
from torpor.lab.server import leaks

pytestmark = pytest.mark.machine

COUNTER = "n=0; while :; do n=$((n+1)); echo $n >> /root/count; sleep 0.05; done"
WRITER = "n=0; while :; do n=$((n+1)); echo $n >> /root/log; echo $n; sleep 0.01; done"
PORT = 8123
WEB = f"mkdir -p /srv && cd /srv && echo hello > hello && exec python3 -m http.server {PORT}"
REQUEST = b"GET /hello HTTP/1.0\r\n\r\n"
CHILDREN, ROOM_FOR = 10, 6


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    yield from a_directory()


@pytest.fixture(scope="module")
def server(start: Start, place: Path) -> Iterator[Server]:
    """A server for all tests of this module; none of them leaves anything in it."""
    with served_for_tests(start, place) as opened:
        yield opened


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with server.waiting_client() as opened:
        yield opened
        for session in opened.list_sessions(status="ALL").items:
            if session.status != "DESTROYED":
                opened.destroy_session(session.id)


@pytest.fixture
def session(client: Client) -> Session:
    return client.create_session(wait=True)
