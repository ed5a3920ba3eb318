"""Names are resolved as the host does, for many at once, and nobody waits for another's."""

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from ipaddress import ip_address
from pathlib import Path

import pytest

from torpor.network import resolver as module
from torpor.network.resolver import (
    FRESH,
    MOST_WAITING,
    Resolved,
    Resolver,
    host_lookup,
)

FOUND = Resolved("found", (ip_address("198.51.100.1"),))


class Silence:
    """A look-up that answers names in ``hang`` only once it is told to, and counts."""

    def __init__(self) -> None:
        self.hang: set[str] = set()
        self.asked: list[str] = []
        self.go_on = threading.Event()

    def __call__(self, name: str) -> Resolved:
        self.asked.append(name)
        if name in self.hang:
            self.go_on.wait(30)
        return Resolved("missing") if name.startswith("no") else FOUND


@pytest.fixture
def silence() -> Iterator[Silence]:
    lookup = Silence()
    yield lookup
    lookup.go_on.set()


@asynccontextmanager
async def resolving(
    lookup: Callable[[str], Resolved], **options: float | int | Callable[[], float]
) -> AsyncIterator[Resolver]:
    resolver = Resolver(lookup, **options)  # type: ignore[arg-type]
    try:
        yield resolver
    finally:
        resolver.close()


async def until(true: Callable[[], object]) -> None:
    async with asyncio.timeout(20):
        while not true():  # noqa: ASYNC110 - threads tell nobody
            await asyncio.sleep(0.005)


async def test_one_question_answers_all_who_ask(silence: Silence) -> None:
    silence.hang = {"a.test"}
    async with resolving(silence) as resolver, asyncio.TaskGroup() as tasks:
        askers = [tasks.create_task(resolver.resolve("a.test", str(n))) for n in range(20)]
        await until(lambda: silence.asked)
        await asyncio.sleep(0.05)
        silence.go_on.set()
        assert [await each for each in askers] == [FOUND] * 20
        assert silence.asked == ["a.test"]


async def test_one_who_gives_up_takes_the_answer_from_nobody(silence: Silence) -> None:
    silence.hang = {"a.test"}
    async with resolving(silence) as resolver:
        one = asyncio.ensure_future(resolver.resolve("a.test", "one"))
        other = asyncio.ensure_future(resolver.resolve("a.test", "other"))
        await until(lambda: silence.asked)
        one.cancel()
        await asyncio.gather(one, return_exceptions=True)
        silence.go_on.set()
        assert await other == FOUND


async def test_names_that_nobody_answers_stop_neither_others_nor_their_asker(
    silence: Silence,
) -> None:
    """As many as there are threads by default in asyncio, and many more."""
    silence.hang = {f"h{number}.test" for number in range(60)}
    async with resolving(silence, patience=20) as resolver, asyncio.TaskGroup() as tasks:
        hanging = [tasks.create_task(resolver.resolve(name, "bad")) for name in silence.hang]
        await until(lambda: len(silence.asked) == module.PER_ASKER)
        async with asyncio.timeout(10):
            assert await resolver.resolve("good.test", "good") == FOUND
        assert len(silence.asked) == module.PER_ASKER + 1, "the other names of the asker wait"
        silence.go_on.set()
        assert {await each for each in hanging} == {FOUND}


async def test_askers_take_turns_where_threads_are_few(silence: Silence) -> None:
    silence.hang = {"first.test"}
    async with (
        resolving(silence, threads=1, patience=20) as resolver,
        asyncio.TaskGroup() as tasks,
    ):
        tasks.create_task(resolver.resolve("first.test", "one"))
        await until(lambda: silence.asked)
        for number in range(3):
            tasks.create_task(resolver.resolve(f"one{number}.test", "one"))
        await asyncio.sleep(0)
        tasks.create_task(resolver.resolve("two.test", "two"))
        await asyncio.sleep(0.05)
        silence.go_on.set()
        await until(lambda: len(silence.asked) == 5)
        assert silence.asked.index("two.test") <= 2, "not behind all of the first asker's"


async def test_an_asker_is_told_after_a_time_and_later_ones_get_the_answer(
    silence: Silence,
) -> None:
    silence.hang = {"a.test"}
    async with resolving(silence, patience=0.05) as resolver:
        first = await resolver.resolve("a.test")
        assert first.outcome == "failed"
        assert "0.05 s" in first.why
        silence.go_on.set()
        await until(lambda: resolver._kept)
        assert await resolver.resolve("a.test") == FOUND
        assert silence.asked == ["a.test"]


async def test_there_is_an_end_to_what_waits(silence: Silence) -> None:
    silence.hang = {f"h{number}.test" for number in range(module.PER_ASKER)}
    many = [f"h{number}.test" for number in range(module.PER_ASKER + MOST_WAITING + 1)]
    async with resolving(silence, patience=20) as resolver, asyncio.TaskGroup() as tasks:
        asked = [tasks.create_task(resolver.resolve(name)) for name in many]
        refused = await asked[-1]
        assert refused.outcome == "failed"
        assert "wait to be resolved" in refused.why
        assert (await resolver.resolve("good.test", "other")).outcome == "found"
        silence.go_on.set()


async def test_answers_are_kept_for_a_moment_and_failures_for_a_shorter_one() -> None:
    now = 0.0
    asked = []
    answers = {"a.test": FOUND, "no.test": Resolved("missing"), "x.test": Resolved("failed")}

    def lookup(name: str) -> Resolved:
        asked.append(name)
        return answers[name]

    async with resolving(lookup, clock=lambda: now) as resolver:
        for name, answer in answers.items():
            kept = FRESH[answer.outcome]
            assert await resolver.resolve(name) == answer
            now += kept - 0.1
            await resolver.resolve(name)
            assert asked.count(name) == 1
            now += 0.2
            await resolver.resolve(name)
            assert asked.count(name) == 2
    assert FRESH["failed"] < FRESH["missing"] < FRESH["found"]


async def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_KEPT", 3)
    async with resolving(lambda _: FOUND) as resolver:
        for number in range(10):
            await resolver.resolve(f"h{number}.test")
        assert list(resolver._kept) == ["h7.test", "h8.test", "h9.test"]


@pytest.mark.parametrize("name", ["127.1", "0x7f000001", "2130706433", "a..b", "", "A.test"])
async def test_what_is_no_name_is_asked_of_nobody(name: str, silence: Silence) -> None:
    async with resolving(silence) as resolver:
        assert (await resolver.resolve(name)).outcome == "missing"
    assert silence.asked == []


async def test_a_lookup_that_breaks_is_told_and_costs_no_thread() -> None:
    def broken(name: str) -> Resolved:
        if name == "bad.test":
            raise RuntimeError("broken")
        return FOUND

    async with resolving(broken, threads=1) as resolver:
        resolved = await resolver.resolve("bad.test")
        assert resolved.outcome == "failed"
        assert "broken" in resolved.why
        assert await resolver.resolve("good.test") == FOUND


async def test_who_waits_at_the_end_is_told_and_threads_go(silence: Silence) -> None:
    silence.hang = {"a.test"}
    before = set(threading.enumerate())
    resolver = Resolver(silence)
    waiting = asyncio.ensure_future(resolver.resolve("a.test"))
    await until(lambda: silence.asked)
    resolver.close()
    assert (await waiting).outcome == "failed"
    assert (await resolver.resolve("b.test")).outcome == "failed"
    silence.go_on.set()
    await until(lambda: set(threading.enumerate()) <= before)


# The host's own look-up


def answering(code: int) -> Callable[..., list[object]]:
    def getaddrinfo(*_: object, **__: object) -> list[object]:
        raise socket.gaierror(code, "said")

    return getaddrinfo


@pytest.mark.parametrize(
    ("code", "outcome"),
    [
        (socket.EAI_NONAME, "missing"),
        (socket.EAI_NODATA, "empty"),
        (socket.EAI_AGAIN, "failed"),
        (socket.EAI_FAIL, "failed"),
        (socket.EAI_SYSTEM, "failed"),
    ],
)
def test_that_a_name_is_not_there_and_that_nobody_answers_are_told_apart(
    code: int, outcome: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", answering(code))
    assert host_lookup("a.test").outcome == outcome


def test_no_domain_of_the_hosts_own_is_tried_behind_a_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = []

    def getaddrinfo(host: bytes, *_: object, **__: object) -> list[object]:
        asked.append(host)
        return [(0, 0, 0, "", (address, 0)) for address in ("198.51.100.1", "fe80::1%eth0")]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    assert host_lookup("a.test").addresses == (ip_address("198.51.100.1"), ip_address("fe80::1"))
    assert asked == [b"a.test."]


def test_the_hosts_file_is_read_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text(
        "# a.test\n127.0.0.1 localhost\n198.51.100.1 b.test A.test # c.test\nnonsense a.test\n"
        "2001:db8::1 a.test\n198.51.100.1 a.test\n"
    )
    monkeypatch.setattr(module, "HOSTS", hosts)
    monkeypatch.setattr(socket, "getaddrinfo", answering(socket.EAI_NONAME))
    assert host_lookup("a.test").addresses == (
        ip_address("198.51.100.1"),
        ip_address("2001:db8::1"),
    )
    assert host_lookup("c.test").outcome == "missing"
