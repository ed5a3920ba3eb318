"""File systems that do not answer: the agent does, and so does all that is not about them."""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.guest import hung
from tests.guest.conftest import Guest
from tests.guest.hung import Silent
from tests.waiting import eventually
from torpor.guest.errands import AT_ONCE, MOST_LEFT, Errands
from torpor.guest.loop import Loop
from torpor.guest.mounts import Mounts
from torpor.vm import Command, GuestAgent, GuestError, Terminal

pytestmark = pytest.mark.skipif(not hung.available(), reason="FUSE is mounted, which needs root")


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that every user can reach."""
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o755)
        yield Path(directory)


@pytest.fixture
def guest(tmp_path: Path) -> Iterator[Guest]:
    """An agent with mounts of its own."""
    started = Guest(tmp_path, within=["unshare", "--mount"])
    yield started
    started.end()


@pytest.fixture
async def agent(guest: Guest) -> AsyncIterator[GuestAgent]:
    attached = await guest.attach()
    yield attached
    await attached.channel.close()


@pytest.fixture
def silent(guest: Guest, agent: GuestAgent, place: Path) -> Iterator[Silent]:
    """A file system at `far` that does not answer, mounted when the agent runs already."""
    mounted = Silent(guest.process.pid, place / "far")
    yield mounted
    mounted.end()


ASKED: dict[str, Callable[[GuestAgent, str], Awaitable[Any]]] = {
    "status": lambda agent, far: agent.files.status(f"{far}/x"),
    "read": lambda agent, far: agent.files.read(f"{far}/x"),
    "write": lambda agent, far: agent.files.write(f"{far}/x", bytes(2 << 20)),
    "replace": lambda agent, far: agent.files.write(f"{far}/x", b"x", atomic=True),
    "directory": lambda agent, far: agent.files.make_directory(f"{far}/x/y", parents=True),
    "link": lambda agent, far: agent.files.make_link(f"{far}/x", "target"),
    "move": lambda agent, far: agent.files.move(f"{far}/x", f"{far}/y"),
    "remove": lambda agent, far: agent.files.remove(f"{far}/x"),
    "change": lambda agent, far: agent.files.change(f"{far}/x", mode=0o600),
    "as a user": lambda agent, far: agent.files.status(f"{far}/x", user="1000:1000"),
    "through a link": lambda agent, far: agent.files.read(f"{far}.link/x"),
    "run there": lambda agent, far: agent.run("/bin/true", cwd=far),
    "run from there": lambda agent, far: agent.run(f"{far}/program"),
    "on a terminal": lambda agent, far: agent.start(
        Command(["/bin/true"], cwd=far, terminal=Terminal())
    ),
}


async def refused(code: str, call: Awaitable[Any]) -> None:
    with pytest.raises(GuestError) as caught:
        await call
    assert caught.value.code == code


@pytest.mark.parametrize("ask", ASKED.values(), ids=ASKED)
async def test_what_asks_it_is_given_up_and_all_else_goes_on(
    agent: GuestAgent,
    silent: Silent,
    place: Path,
    ask: Callable[[GuestAgent, str], Awaitable[Any]],
) -> None:
    (place / "far.link").symlink_to("far")
    asking = asyncio.ensure_future(ask(agent, str(place / "far")))

    async def asked() -> int:
        return silent.asked

    await eventually(asked, bool)
    near = str(place / "near")
    assert (await agent.status())["resting"] is False
    await agent.files.write(near, b"x" * 700_000)
    assert len(await agent.files.read(near)) == 700_000
    assert (await agent.shell("echo here")).stdout == b"here\n"
    assert await agent.processes()
    assert not asking.done()
    await refused("ETIMEDOUT", asking)
    # A freeze waits until all is answered.
    async with agent.channel.quiet(5):
        pass


async def test_before_and_after_it_files_are_as_they_always_are(
    guest: Guest, agent: GuestAgent, place: Path
) -> None:
    near = str(place / "near")
    await agent.files.write(near, b"before")
    mounted = Silent(guest.process.pid, place / "far")
    try:
        await refused("ETIMEDOUT", agent.files.read(str(place / "far/x")))
        assert await agent.files.read(near) == b"before"
        assert (await agent.run("/bin/cat", near)).stdout == b"before"
        await agent.run("/bin/umount", "--lazy", str(place / "far"))
    finally:
        mounted.end()
    children = Path(f"/proc/{guest.process.pid}/task/{guest.process.pid}/children")

    async def beside() -> int:
        return len(children.read_text().split())

    (place / "far/x").write_text("after")
    assert await agent.files.read(str(place / "far/x")) == b"after"
    assert await eventually(beside, lambda found: found == 1)  # the spawner
    assert (await agent.shell("echo here", cwd=str(place / "far"))).stdout == b"here\n"


async def test_what_hangs_takes_no_more_than_so_many_processes_and_leaves_none(
    guest: Guest, agent: GuestAgent, place: Path
) -> None:
    children = Path(f"/proc/{guest.process.pid}/task/{guest.process.pid}/children")
    before = len(children.read_text().split())

    async def count() -> int:
        return len(children.read_text().split()) - before

    mounted = Silent(guest.process.pid, place / "far")
    try:
        far = [str(place / f"far/{n}") for n in range(MOST_LEFT + 2 * AT_ONCE)]
        async with asyncio.timeout(60):
            answers = await asyncio.gather(
                *(agent.files.status(each) for each in far), return_exceptions=True
            )
            codes = [each.code for each in answers if isinstance(each, GuestError)]
            assert len(codes) == len(far)
            assert set(codes) == {"ETIMEDOUT"}
            assert await count() >= MOST_LEFT
            assert await count() <= len(far)
            for _ in range(2):
                await refused("EBUSY", agent.files.status(str(place)))
        assert (await agent.shell("echo here")).stdout == b"here\n"
    finally:
        mounted.end()
    await eventually(count, lambda found: found <= 1)
    assert await agent.files.status(str(place)) is not None


def test_what_an_agent_leaves_behind_is_reaped_by_the_next() -> None:
    mounts = Mounts()
    older = Errands(Loop(), mounts)
    older.start({"path": "/"}, b"", lambda _: None)
    (left,) = older.hand_over()
    loop = Loop()
    newer = Errands(loop, mounts, [left])
    while newer._left:
        loop.turn()
    mounts.close()
    assert not Path(f"/proc/{left}").exists()
