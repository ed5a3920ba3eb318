"""Links that are prepared ahead, handed out once each, and leave nothing behind."""

import asyncio
import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.network.link.conftest import ANYWHERE, OtherEnd, dialled
from torpor.network import errors
from torpor.network.link import BuildError, Link, Links, build
from torpor.network.link import links as module
from torpor.network.link.rules import RULES
from torpor.vm import HostError, Wire

LIMIT = 60.0


@pytest.fixture(autouse=True)
def _can_be_built() -> None:
    try:
        build().close()
    except BuildError as error:
        pytest.skip(f"this host cannot build links: {error}")


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def until_ready(links: Links, count: int) -> None:
    async with asyncio.timeout(LIMIT):
        while links.ready < count:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_those_that_were_taken_are_replaced_and_none_is_left() -> None:
    before = descriptors()
    links = Links(ahead=2)
    first = await links.take()
    await until_ready(links, 2)
    taken = [await links.take() for _ in range(3)]  # the third is built for it
    networks = {os.fstat(each.wire.network).st_ino for each in (first, *taken)}
    assert len(networks) == 4
    await until_ready(links, 2)
    for each in (first, *taken):
        links.let_go(each)
    await links.close()
    assert descriptors() == before


async def test_a_burst_finds_the_processors_free(monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[int] = []
    monkeypatch.setattr(module, "build", lambda pid: built.append(pid) or build(pid))
    links = Links(ahead=1)
    links.prepare()
    await until_ready(links, 1)
    one = await links.take()
    for _ in range(5):
        links.prepare()
        await asyncio.sleep(module.QUIET / 3)  # less than the quiet that it waits for
    assert len(built) == 1
    await links.close()
    links.let_go(one)
    await links.close()


async def test_who_gives_up_waiting_leaves_nothing() -> None:
    before = descriptors()
    links = Links(ahead=0)
    waiting = asyncio.ensure_future(links.take())
    await asyncio.sleep(0)
    waiting.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await waiting
    links.prepare()
    await links.close()
    assert descriptors() == before


async def test_a_host_that_cannot_is_told_by_who_asks_and_not_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refused(_pid: int) -> Link:
        raise BuildError("make a tap", 1, "Operation not permitted")

    monkeypatch.setattr(module, "build", refused)
    links = Links(ahead=2)
    links.prepare()
    await asyncio.sleep(2 * module.QUIET)
    with pytest.raises(HostError, match="make a tap failed: Operation not permitted") as error:
        await links.take()
    assert isinstance(error.value, errors.LinkError)
    assert error.value.todo == "Run `torpor doctor`."
    await links.close()


@contextlib.contextmanager
def held(wire: Wire) -> Iterator[int]:
    """Have a process hold on to a wire, as a QEMU that outlives its program does."""
    ours = f"/proc/{os.getpid()}/fd"
    words = ["nsenter", f"--net={ours}/{wire.network}"]
    if os.geteuid() != 0:
        words += [f"--user={ours}/{wire.users}", "--preserve-credentials"]
    line = [*words, "sh", "-c", "echo; exec sleep 1000"]
    with subprocess.Popen(line, pass_fds=(wire.tap,), stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.read(1)  # it is inside
        yield process.pid
        process.kill()


@pytest.fixture
def holder(link: Link) -> Iterator[int]:
    """A process that holds on to the link's wire."""
    with held(link.wire) as pid:
        yield pid


def test_the_rules_of_an_older_server_are_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as older:
        first = "ip daddr {"
        assert RULES.count(first) == 1
        rules = RULES.replace(first, f"tcp dport {ANYWHERE[1]} drop\n{first}")
        older.setattr("torpor.network.link.link.RULES", rules)
        link = build()
    with held(link.wire) as pid:
        machine = OtherEnd(link.wire)
        link.ends.close()
        again = build(pid)
        machine.dial(ANYWHERE)
        dialled(again.ends).close()
        machine.close()
        again.close()
    link.close()


def test_a_link_is_rebuilt_on_the_wire_of_a_process_that_runs(link: Link, holder: int) -> None:
    tap = os.dup(link.wire.tap)
    network = os.fstat(link.wire.network).st_ino
    machine = OtherEnd(link.wire)
    try:
        old = machine.dial(ANYWHERE)
        with dialled(link.ends) as before:
            assert before.getsockname() == ANYWHERE
            link.ends.close()
            with pytest.raises(ConnectionRefusedError):
                machine.dial(ANYWHERE)
        again = build(holder)
        try:
            assert os.fstat(again.wire.network).st_ino == network
            assert os.fstat(again.wire.tap).st_rdev == os.makedev(10, 200)
            machine.dial(ANYWHERE)
            with dialled(again.ends) as accepted:
                assert accepted.getsockname() == ANYWHERE
            # What was open is told that it is not, as soon as it says something.
            with contextlib.suppress(ConnectionError):
                old.send(b"still there?")
                assert old.recv(10) == b""
        finally:
            again.close()
    finally:
        machine.close()
        os.close(tap)


def test_a_process_without_a_wire_has_none_to_be_rebuilt() -> None:
    process = subprocess.Popen(["sleep", "1000"])
    try:
        with pytest.raises(BuildError, match="enter the namespaces of process"):
            build(process.pid)
    finally:
        process.kill()
        process.wait()


def test_a_build_that_says_nothing_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    script = tmp_path / "build.py"
    monkeypatch.setattr("torpor.network.link.link.BUILD", script)
    before = descriptors()
    for text in ("raise SystemExit(3)", "import os; os.kill(os.getpid(), 9)"):
        script.write_text(text)
        with pytest.raises(BuildError, match="ended without a word"):
            build()
    assert descriptors() == before
