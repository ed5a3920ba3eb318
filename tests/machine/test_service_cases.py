"""Sessions over HTTP, on real machines: faults that users of such services have reported."""

import hashlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from tests.machine.conftest import Start
from tests.machine.serving import (
    a_server,
    counting,
    destroy_all,
    goes_on,
    left_over,
    numbers,
    status,
    until,
)
from torpor.client import ApiError, Client, ConflictError, NotFoundError, Output, Session
from torpor.lab.probes import program_text
from torpor.lab.server import Server

pytestmark = pytest.mark.machine

WRITER = "n=0; while :; do n=$((n+1)); echo $n >> /root/log; echo $n; sleep 0.01; done"
PORT = 8123
WEB = f"mkdir -p /srv/web && cd /srv/web && echo $$ > id && exec python3 -m http.server {PORT}"
REQUEST = b"GET /id HTTP/1.0\r\n\r\n"
THREADS, SHARED = 50, 5
"""Threads that pause, resume and run, and the sessions that they share."""
CHILDREN, ROOM_FOR = 10, 6


@pytest.fixture(scope="module")
def server(start: Start) -> Iterator[Server]:
    with a_server(start) as opened:
        yield opened


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    """A client; afterwards all sessions are destroyed, and nothing of them is left."""
    with server.waiting_client() as opened:
        yield opened
        destroy_all(opened)
    assert left_over(server) == []
    assert list((server.home / "snapshots").iterdir()) == []
    assert list((server.home / "machines").iterdir()) == []


@pytest.fixture
def session(client: Client) -> Session:
    return client.create_session(wait=True)


def test_files_of_all_cycles_are_there_after_each_resume(client: Client, session: Session) -> None:
    sums = {}
    for cycle in range(1, 11):
        content = os.urandom(200_000)
        client.write_file(session.id, f"/workspace/f{cycle}", content, parents=True)
        sums[f"f{cycle}"] = hashlib.sha256(content).hexdigest()
        client.pause_session(session.id)
        client.resume_session(session.id)
        found = client.run(session.id, "cd /workspace && sha256sum *").stdout.decode()
        assert {name: each for each, name in map(str.split, found.splitlines())} == sums
    assert client.get_session(session.id).generation == 10


def test_an_idle_pause_loses_nothing_that_was_written_and_not_synced(client: Client) -> None:
    session = client.create_session(wait=True, idle_timeout=5)
    writing = client.start_exec(session.id, WRITER)
    until(lambda: status(client, session.id) == "PAUSED")
    assert client.get_session(session.id).pause_reason == "idle"
    client.resume_session(session.id)
    before = len(numbers(client, session.id, "/root/log"))
    client.signal_exec(session.id, writing.id, 15)
    said = b""
    with client.attach(session.id, writing.id) as stream:
        for item in stream:
            said += item.data if isinstance(item, Output) else b""
    believed = int(said.split()[-1])
    written = numbers(client, session.id, "/root/log")
    assert written == list(range(1, len(written) + 1))
    assert believed <= len(written) <= believed + 1
    assert before > 10


def test_threads_that_pause_and_resume_and_run_are_all_answered(client: Client) -> None:
    shared = [client.create_session(wait=True).id for _ in range(SHARED)]

    def work(number: int) -> bytes:
        session = shared[number % SHARED]
        client.pause_session(session)
        client.resume_session(session)
        return client.run(session, ["echo", "ok", str(number)], timeout=120).stdout

    with ThreadPoolExecutor(THREADS) as pool:
        answers = list(pool.map(work, range(THREADS)))
    assert answers == [b"ok %d\n" % number for number in range(THREADS)]


def test_a_web_server_is_listed_answers_and_can_be_killed_after_a_pause(
    client: Client, session: Session
) -> None:
    web = client.start_exec(session.id, WEB)
    until(lambda: fetched(client, session.id) != b"")
    client.pause_session(session.id)
    # The request that wakes the session is itself answered, by the process of before.
    assert fetched(client, session.id).split() == [str(web.pid).encode()]
    (found,) = [each for each in client.list_processes(session.id) if each.pid == web.pid]
    assert "http.server" in " ".join(found.argv)
    client.signal_process(session.id, found.pid, 9)
    until(lambda: not client.get_exec(session.id, web.id).running)
    assert client.get_exec(session.id, web.id).signal == 9
    assert fetched(client, session.id) == b""


def fetched(client: Client, session: str) -> bytes:
    """Return what the web server in a session answers; nothing if none listens."""
    answer = b""
    try:
        with client.forward(session, PORT) as stream:
            stream.write(REQUEST)
            while piece := stream.read():
                answer += piece
    except ApiError:
        return b""
    return answer.partition(b"\r\n\r\n")[2]


def test_a_hundred_requests_at_once_wake_a_session_once(client: Client, session: Session) -> None:
    client.pause_session(session.id)
    with ThreadPoolExecutor(100) as pool:
        answers = list(
            pool.map(
                lambda number: client.run(session.id, ["echo", str(number)], timeout=120).stdout,
                range(100),
            )
        )
    assert answers == [b"%d\n" % number for number in range(100)]
    told = [event.type for event in client.get_history(session.id, limit=500).events]
    assert told.count("session.resumed") == 1


def test_no_stream_stalls_because_others_were_dropped_unread(
    client: Client, session: Session
) -> None:
    client.write_file(session.id, "/root/responder.py", program_text("responder.py").encode())
    responder = client.start_exec(session.id, ["python3", "/root/responder.py"], stdin=True)
    with ExitStack() as dropped:  # not closed before the end of the test
        for turn in range(12):
            known = client.get_exec(session.id, responder.id)
            stream = dropped.enter_context(
                client.attach(session.id, responder.id, seq=known.output_end)
            )
            stream.write(b"turn-%d\n" % turn)
            replies = b""
            for item in stream:
                replies += item.data if isinstance(item, Output) else b""
                if replies.count(b"\n") == 4:
                    break
            short = [b"turn-%d %d" % (turn, each) for each in range(3)]
            assert replies.splitlines() == [b"x" * 8191, *short]
            client.pause_session(session.id)
            client.resume_session(session.id)


def test_a_name_is_free_as_soon_as_its_session_is_destroyed(client: Client) -> None:
    for turn in range(100):
        made = client.create_session("again", wait=turn % 20 == 0)
        with pytest.raises(ConflictError):
            client.create_session("again")
        client.destroy_session("again")
        assert status(client, made.id) == "DESTROYED"


def test_a_rollback_to_a_damaged_checkpoint_leaves_the_session_running(
    server: Server, client: Client, session: Session
) -> None:
    counting(client, session.id)
    good = client.create_checkpoint(session.id, label="good", durable=True)
    bad = client.create_checkpoint(session.id, label="bad", durable=True)
    devices = server.home / "snapshots" / str(bad.snapshot) / "devices"
    content = bytearray(devices.read_bytes())
    content[len(content) // 2 :] = bytes(len(content) - len(content) // 2)
    devices.unlink()
    devices.write_bytes(content)
    before = client.get_session(session.id)
    with pytest.raises(ApiError) as refused:
        client.roll_back(session.id, bad.id)
    assert refused.value.status == 409
    after = client.get_session(session.id)
    assert (after.status, after.generation, after.sandbox, after.boot_id) == (
        "READY",
        before.generation,
        before.sandbox,
        before.boot_id,
    )
    count = goes_on(client, session.id)
    assert client.roll_back(session.id, good.id).session.status == "READY"
    assert goes_on(client, session.id) < count


def test_a_fork_of_a_fork_needs_neither_of_those_before(client: Client, session: Session) -> None:
    counting(client, session.id)
    (first,) = client.fork_session(session.id).sessions
    until(lambda: status(client, first.id) == "READY")
    (second,) = client.fork_session(first.id).sessions
    until(lambda: status(client, second.id) == "READY")
    client.destroy_session(session.id)
    client.destroy_session(first.id)
    reached = goes_on(client, second.id)
    client.pause_session(second.id)
    client.resume_session(second.id)
    (third,) = client.fork_session(second.id).sessions
    until(lambda: status(client, third.id) == "READY")
    assert goes_on(client, third.id) > reached
    assert goes_on(client, second.id) > reached


def test_a_fork_makes_as_many_children_as_there_is_room_for(start: Start) -> None:
    with a_server(start, memory_limit_mib=192 * (ROOM_FOR + 1) + 150) as small:
        with small.waiting_client() as client:
            parent = client.create_session("parent", wait=True)
            point = client.create_checkpoint(parent.id, durable=True)
            made = client.fork_session(parent.id, count=CHILDREN, checkpoint=point.id)
            assert len(made.sessions) == ROOM_FOR
            assert [failure.error.id for failure in made.failures] == ["no_room"] * (
                CHILDREN - ROOM_FOR
            )
            for child in made.sessions:
                until(lambda: status(client, child.id) == "READY")  # noqa: B023
                assert client.run(child.id, ["hostname"]).status == 0
            assert len(client.list_sessions().items) == 1 + ROOM_FOR
            for child in made.sessions:
                client.destroy_session(child.id)
            interrupted_fork(small, parent.id)
            assert left_over(small) == []
            assert status(client, parent.id) == "READY"
            destroy_all(client)
        assert left_over(small) == []
        assert list((small.home / "snapshots").iterdir()) == []


def interrupted_fork(server: Server, parent: str) -> None:
    """Fork in a client that is killed in the middle of it."""
    program = (
        "import sys; from torpor.client import Client\n"
        "client = Client(sys.argv[1], sys.argv[2]); client.health(); print(flush=True)\n"
        "client.fork_session(sys.argv[3], count=3)"
    )
    killed = subprocess.Popen(
        [sys.executable, "-c", program, server.url, server.token, parent], stdout=subprocess.PIPE
    )
    with killed:
        assert killed.stdout is not None
        killed.stdout.readline()
        time.sleep(0.15)
        killed.kill()


def test_what_is_gone_is_not_found(client: Client, session: Session) -> None:
    client.destroy_session(session.id)
    with pytest.raises(NotFoundError):
        client.run(session.id, ["true"])
