"""Workspaces of a real server: made, given to sessions, kept over all that happens to these."""

import asyncio
import os
import signal
from collections.abc import Iterator

import pytest

from tests.machine.conftest import Start
from tests.machine.serving import (
    a_server,
    destroy_all,
    left_over,
    numbers,
    status,
    until,
)
from torpor.client import Client, ConflictError, InvalidError, NotFoundError
from torpor.lab.remains import machine_processes
from torpor.lab.server import Server

pytestmark = pytest.mark.machine

BUSYBOX = "/run/torpor/tools/bin/busybox"
FILE = "/workspace/count"
COUNTER = f"n=0; while :; do n=$((n+1)); echo $n >> {FILE}; sync {FILE}; sleep 0.05; done"


@pytest.fixture(scope="module")
def server(start: Start) -> Iterator[Server]:
    """A server for the tests that do not stop it."""
    limits = {"workspace_limit_gib": 4, "workspace_default_gib": 3, "max_workspaces": 2}
    with a_server(start, **limits) as server:
        yield server


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    """Its client. At the end nothing is left."""
    with server.waiting_client() as client:
        yield client
        remove_all(client)
    assert left_over(server) == []


def remove_all(client: Client) -> None:
    destroy_all(client)
    for each in client.list_workspaces().items:
        client.delete_workspace(each.id)


def session(client: Client, name: str, workspace: str = "notes") -> str:
    """Make a session that has a workspace; return its id."""
    made = client.create_session(name, workspace=workspace, wait=True)
    assert client.get_workspace(workspace).session == made.id
    return made.id


def write(client: Client, name: str, text: str, file: str = "/workspace/file") -> None:
    ran = client.run(name, ["sh", "-c", f"echo {text} >> {file}"])
    assert ran.status == 0, ran.stderr


def read(client: Client, name: str, file: str = "/workspace/file") -> list[str]:
    return client.read_file(name, file).decode().split()


def count(client: Client, name: str) -> None:
    """Begin to count in the workspace of a session."""
    client.start_exec(name, COUNTER)
    until(lambda: client.run(name, f"test -s {FILE}").status == 0)


def counts_on(client: Client, name: str) -> int:
    """Check that it goes on without a gap, and return how far it was at first."""
    before = numbers(client, name, FILE)
    assert before == list(range(1, len(before) + 1))
    until(lambda: len(numbers(client, name, FILE)) > len(before))
    return len(before)


def test_what_one_session_wrote_the_next_one_finds(client: Client) -> None:
    made = client.create_workspace(2, name="notes")
    assert (made.state, made.size_gib, made.saved_at) == ("AVAILABLE", 2, None)
    session(client, "one")
    kib = int(client.run("one", "df -k /workspace | awk 'END { print $2 }'").stdout)
    assert 1.8 * (1 << 20) < kib < 2 * (1 << 20)
    write(client, "one", "hello")
    with pytest.raises(ConflictError):
        client.delete_workspace("notes")
    with pytest.raises(ConflictError):
        client.create_session("two", workspace="notes")
    client.destroy_session("one")
    free = client.get_workspace("notes")
    assert (free.state, free.session) == ("AVAILABLE", None)
    assert free.saved_at is not None
    session(client, "two")
    assert read(client, "two") == ["hello"]
    client.pause_session("two")
    client.destroy_session("two")
    client.delete_workspace("notes")
    with pytest.raises(NotFoundError):
        client.get_workspace("notes")


def test_one_that_is_made_for_a_session_outlives_it(client: Client) -> None:
    made = client.create_session("one", persistent_workspace=True, wait=True)
    workspace = client.get_workspace("one")
    assert (made.workspace, workspace.size_gib) == (workspace.id, 3)
    write(client, "one", "hello")
    client.destroy_session("one")
    session(client, "two", "one")
    assert read(client, "two") == ["hello"]


def test_the_settings_say_how_many_and_how_large(client: Client) -> None:
    with pytest.raises(InvalidError, match="1 to 4"):
        client.create_workspace(5)
    for _ in range(2):
        client.create_workspace(4)
    with pytest.raises(ConflictError, match="at most 2"):
        client.create_workspace(1)


def test_it_goes_through_pauses_and_comes_back_with_a_checkpoint(client: Client) -> None:
    client.create_workspace(1, name="notes")
    session(client, "one")
    count(client, "one")
    client.pause_session("one", durable=True)
    paused = client.get_workspace("notes")
    assert paused.state == "ATTACHED"
    assert paused.saved_at is not None
    counts_on(client, "one")
    write(client, "one", "first")
    checkpoint = client.create_checkpoint("one")
    write(client, "one", "second")
    at = counts_on(client, "one")
    client.roll_back("one", checkpoint.id)
    assert read(client, "one") == ["first"]
    counts_on(client, "one")  # the counter, its memory and its file are of one moment
    write(client, "one", "third")
    client.destroy_session("one")
    session(client, "two")
    assert read(client, "two") == ["first", "third"]
    kept = numbers(client, "two", FILE)
    assert kept == list(range(1, len(kept) + 1))
    assert at > 1


def test_children_have_copies(client: Client) -> None:
    client.create_workspace(1, name="notes")
    session(client, "one")
    count(client, "one")
    forked = client.fork_session("one", count=2)
    for child in forked.sessions:
        assert child.workspace is None
        assert "copy of workspace" in child.warnings[0]
        until(lambda name=child.id: status(client, name) == "READY")
        counts_on(client, child.id)
        write(client, child.id, "child")
        client.pause_session(child.id)
        counts_on(client, child.id)
        client.destroy_session(child.id)
    counts_on(client, "one")
    client.destroy_session("one")
    session(client, "two")
    assert client.run("two", "test -e /workspace/file").status != 0


def test_it_is_mounted_again_after_a_reboot(client: Client) -> None:
    client.create_workspace(1, name="notes")
    session(client, "one")
    write(client, "one", "before")
    boot = client.get_session("one").boot_id
    client.start_exec("one", f"sleep 0.2; {BUSYBOX} reboot")
    until(lambda: client.get_session("one").boot_id != boot, 240)
    assert read(client, "one") == ["before"]


def test_what_was_synced_is_there_after_the_machine_was_killed(
    server: Server, client: Client
) -> None:
    client.create_workspace(1, name="notes")
    made = session(client, "one")
    write(client, "one", "hello")
    client.run("one", "sync")
    (process,) = machine_processes(server.home).values()
    os.kill(process.pid, signal.SIGKILL)
    until(lambda: status(client, made) == "FAILED")  # which gives its name up
    assert client.get_workspace("notes").state == "ATTACHED"
    client.destroy_session(made)
    session(client, "two")
    assert read(client, "two") == ["hello"]


def test_a_server_that_is_killed_leaves_each_with_its_session(start: Start) -> None:
    with a_server(start) as server:
        with server.waiting_client() as client:
            for name in ("runs", "paused", "free"):
                client.create_workspace(1, name=name)
            for name in ("runs", "paused"):
                session(client, name, name)
                count(client, name)
            client.pause_session("paused")
            client.create_session("starting", workspace="free")
        asyncio.run(server.kill())
        asyncio.run(server.start())
        with server.waiting_client() as client:
            for name in ("runs", "paused"):
                counts_on(client, name)
            until(lambda: status(client, "starting") == "READY", 120)
            assert client.get_workspace("free").state == "ATTACHED"
            write(client, "starting", "hello")
        asyncio.run(destroyed_under_a_kill(server, "starting"))
        asyncio.run(server.start())
        with server.waiting_client() as client:
            until(lambda: client.get_workspace("free").session is None)
            assert client.get_workspace("free").state == "AVAILABLE"
            session(client, "next", "free")
            assert read(client, "next") == ["hello"]
            remove_all(client)
        assert left_over(server) == []


async def destroyed_under_a_kill(server: Server, name: str) -> None:
    """Begin to destroy a session, and kill the server in the middle."""
    async with server.client() as client:
        work = asyncio.create_task(client.destroy_session(name))
        events = client.events(name)
        async for event in events:
            if event.type == "session.destroying":
                break
        await events.aclose()
        await server.kill()
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
