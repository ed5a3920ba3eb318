"""What a user does with a session while its server is killed again and again: one operation after
the other, each repeated with its key until it is acknowledged, and each then checked."""

import asyncio
import contextlib
import random
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from torpor.client import AsyncClient, ClientError, Exec, Output, Session, UnreachableError

T = TypeVar("T")

COUNTER = "n=0; while :; do n=$((n+1)); echo $n >> /root/count; echo $n; sleep 0.05; done"
"""Counts in memory; what it writes is read by nobody in the machine."""
MARK = "/root/mark"
PATIENCE = 120.0
"""Seconds within which an operation has to be acknowledged, with restarts of the server."""
MOST_CHECKPOINTS = 3


class LostError(Exception):
    """Something that was acknowledged is not so."""


@dataclass(frozen=True)
class Point:
    """A checkpoint, and what was so when it was made."""

    id: str
    mark: str
    count: int


class Follower:
    """Reads the output of a session's counter, through pauses and restarts of the server."""

    def __init__(self, client: AsyncClient, session: str, running: Exec) -> None:
        self._stream = client.attach(session, running.id, patience=None)
        self._task = asyncio.create_task(self._read(), name=f"output of {session}")
        self._text = b""
        self.count = 0
        """The last number that was read: all before it were read too, each once."""

    async def _read(self) -> None:
        async with self._stream as stream:
            async for item in stream:
                if not isinstance(item, Output):
                    continue
                *lines, self._text = (self._text + item.data).split(b"\n")
                for line in lines:
                    if int(line) != self.count + 1:
                        raise LostError(f"a counter's output goes from {self.count} to {int(line)}")
                    self.count += 1

    async def goes_on(self) -> None:
        """Wait until the counter has written something new. Raises :exc:`LostError`."""
        before, end = self.count, asyncio.get_running_loop().time() + PATIENCE
        while self.count == before:
            if self._task.done():
                await self._task
                raise LostError("a counter's output has ended")
            if asyncio.get_running_loop().time() > end:
                raise LostError(f"a counter's output stands still at {before}")
            await asyncio.sleep(0.05)

    async def stop(self) -> None:
        """Read no more."""
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError, ClientError):
            await self._task


class Worker:
    """Does one thing after the other with a session of its own.

    ``state`` is the session as it was after the last operation; what is kept besides is what has
    been acknowledged. All raise :exc:`LostError` when that is not so.
    """

    def __init__(self, client: AsyncClient, number: int, seed: int) -> None:
        self._client = client
        self._chance = random.Random(seed * 1000 + number)  # noqa: S311 - repeatable, no secret
        self.number = number
        self.state: Session | None = None
        self.doing: str | None = None
        self.done = 0
        self._mark = ""
        self._counter: Exec | None = None
        self._follower: Follower | None = None
        self._points: list[Point] = []

    @property
    def session(self) -> Session:
        """The session as it was after the last operation."""
        assert self.state is not None
        return self.state

    async def step(self) -> None:
        """Do one operation, whatever happens to the server in the middle of it."""
        if self.state is None:
            await self._did("create", self._create)
            return
        running = self.state.status == "READY"
        ways = {
            "pause": (self._pause, 4 if running else 0),
            "resume": (self._resume, 0 if running else 8),
            "checkpoint": (self._checkpoint, 3),
            "fork": (self._fork, 1),
            "roll back": (self._roll_back, 2 if self._points and running else 0),
            "write": (self._write, 3 if running else 0),
            "destroy": (self._destroy, 1),
        }
        names = list(ways)
        (name,) = self._chance.choices(names, [ways[each][1] for each in names])
        await self._did(name, ways[name][0])

    async def _did(self, name: str, operation: Callable[[], Awaitable[None]]) -> None:
        self.doing = name
        try:
            await operation()
        except ClientError as error:
            raise LostError(f"{name} of session {self.number}: {error}") from error
        except LostError as error:
            raise LostError(f"{name} of session {self.number}: {error}") from error
        self.doing = None
        self.done += 1

    async def acknowledged(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Ask again and again until the server has answered."""
        async with asyncio.timeout(PATIENCE):
            while True:
                try:
                    return await ask()
                except UnreachableError:
                    await asyncio.sleep(0.1)

    async def _look(self, status: str, grown: int | None = None) -> None:
        """See that the session is in a state, its generation ``grown`` by so many (None: any)."""
        before = self.session
        found = await self.acknowledged(lambda: self._client.get_session(before.id))
        if found.status != status:
            raise LostError(f"it is {found.status}, not {status}: {found.failure}")
        least = before.generation + (grown or 0)
        if found.generation < least or (grown is not None and found.generation != least):
            raise LostError(f"its generation is {found.generation}, not {least}")
        self.state = found

    # Operations

    async def _create(self) -> None:
        key = secrets.token_hex(8)
        made = await self.acknowledged(
            lambda: self._client.create_session(
                f"work-{self.number}", labels={"key": key}, wait=True, key=key
            )
        )
        found = await self.acknowledged(lambda: self._client.list_sessions(labels={"key": key}))
        if [each.id for each in found.items] != [made.id]:
            raise LostError(f"one create has made {len(found.items)} sessions")
        self.state, self._points, self._mark = made, [], ""
        await self._look("READY")
        # Not repeatable: a command whose start was not acknowledged may run nevertheless, so it
        # is one that does nothing the second time.
        start = f"mkdir /root/once || exit 0; {COUNTER}"
        while not await self._has_counter(made.id):
            with contextlib.suppress(UnreachableError):
                await self._client.start_exec(made.id, start)
        await self._follow()

    async def _has_counter(self, session: str) -> bool:
        execs = await self.acknowledged(lambda: self._client.list_execs(session))
        self._counter = next((each for each in execs if each.running), None)
        return self._counter is not None

    async def _follow(self) -> None:
        assert self._counter is not None
        self._follower = Follower(self._client, self.session.id, self._counter)
        await self._follower.goes_on()

    async def _unfollow(self) -> None:
        if self._follower is not None:
            await self._follower.stop()
            self._follower = None

    async def _pause(self) -> None:
        key, session = secrets.token_hex(8), self.session.id
        await self.acknowledged(lambda: self._client.pause_session(session, key=key))
        await self._look("PAUSED", 1)

    async def _resume(self) -> None:
        key, session = secrets.token_hex(8), self.session.id
        await self.acknowledged(lambda: self._client.resume_session(session, key=key))
        await self._look("READY", 0)
        await self._is_whole()

    async def _checkpoint(self) -> None:
        key, session, running = secrets.token_hex(8), self.session.id, self._running()
        seen = self._follower.count if self._follower is not None else 0
        made = await self.acknowledged(
            lambda: self._client.create_checkpoint(session, label=key, key=key)
        )
        await self._look("READY" if running else "PAUSED", 1 if running else 0)
        found = await self.acknowledged(lambda: self._client.list_checkpoints(session, limit=200))
        same = [each.id for each in found.items if each.label == key]
        if same != [made.id]:
            raise LostError(f"one checkpoint was made {len(same)} times")
        if made.id not in [each.id for each in self._points]:
            self._points.append(Point(made.id, self._mark, seen))
        while len(self._points) > MOST_CHECKPOINTS:
            old = self._points.pop(0)
            await self.acknowledged(lambda: self._client.delete_checkpoint(session, old.id))  # noqa: B023

    async def _fork(self) -> None:
        key, session, running = secrets.token_hex(8), self.session.id, self._running()
        before = {each.id for each in await self._children()}
        made = await self.acknowledged(lambda: self._client.fork_session(session, count=2, key=key))
        if made.failures:
            raise LostError(f"children are missing: {made.failures}")
        await self._look("READY" if running else "PAUSED")
        new = {each.id for each in await self._children()} - before
        if new != {each.id for each in made.sessions}:
            raise LostError(f"a fork into 2 has made {len(new)} sessions")
        for child in made.sessions:
            await self._ready(child.id)
            await self._is_whole(child.id)
            await self.acknowledged(lambda: self._client.destroy_session(child.id))  # noqa: B023

    async def _children(self) -> tuple[Session, ...]:
        tree = await self.acknowledged(lambda: self._client.get_tree(self.session.id))
        return tree.children

    async def _ready(self, session: str) -> None:
        async with asyncio.timeout(PATIENCE):
            while True:
                found = await self.acknowledged(lambda: self._client.get_session(session))
                if found.status != "PROVISIONING":
                    break
                await asyncio.sleep(0.05)
        if found.status != "READY":
            raise LostError(f"a child is {found.status}: {found.failure}")

    async def _roll_back(self) -> None:
        key, session = secrets.token_hex(8), self.session.id
        point = self._chance.choice(self._points)
        await self._unfollow()
        await self.acknowledged(lambda: self._client.roll_back(session, point.id, key=key))
        await self._look("READY")
        self._mark = point.mark
        await self._is_whole()
        await self._follow()
        assert self._follower is not None
        if self._follower.count < point.count:
            raise LostError(f"the count is {self._follower.count}, at the checkpoint {point.count}")

    async def _write(self) -> None:
        session, mark = self.session.id, secrets.token_hex(16)
        await self.acknowledged(
            lambda: self._client.write_file(session, MARK, mark.encode(), atomic=True)
        )
        self._mark = mark
        await self._is_whole()

    async def _destroy(self) -> None:
        session = self.session.id
        await self._unfollow()
        await self.acknowledged(lambda: self._client.destroy_session(session))
        await self._look("DESTROYED")
        self.state, self._points = None, []

    def _running(self) -> bool:
        return self.session.status == "READY"

    # Checks

    async def _is_whole(self, session: str | None = None) -> None:
        """Check what the machine has: the newest file, and a count without a gap."""
        where = session or self.session.id
        ran = await self.acknowledged(
            lambda: self._client.run(where, f"cat {MARK}; echo; cat /root/count")
        )
        mark, *numbers = ran.stdout.decode().split("\n")
        if mark != self._mark:
            raise LostError(f"the file has {mark!r}, and {self._mark!r} was written last")
        numbers = [each for each in numbers if each]
        if numbers != [str(n + 1) for n in range(len(numbers))]:
            raise LostError("the count in the file has a gap, or a number twice")

    async def inspect(self) -> None:
        """Check that all is as it was after the last operation, nothing being under way."""
        if self.state is None:
            return
        before = self.state
        await self._look(before.status, 0)
        same = ("sandbox", "boot_id", "pause_reason", "name", "labels")
        for name in same:
            if getattr(before, name) != getattr(self.session, name):
                raise LostError(
                    f"{name} of session {self.number} is {getattr(self.session, name)!r}, and was"
                    f" {getattr(before, name)!r}"
                )
        if self._running():
            await self._is_whole()
            if self._follower is not None:
                await self._follower.goes_on()

    async def failed(self) -> None:
        """Check that the session, whose machine was killed, can be recovered, and recover it."""
        before = self.session
        await self._unfollow()
        await self._look("FAILED")
        offered = self.session.recoverable
        if not offered:
            raise LostError(f"session {self.number} has failed with nothing to recover it from")
        with contextlib.suppress(UnreachableError):
            try:
                await self._client.resume_session(before.id)
            except ClientError:
                pass
            else:
                raise LostError("a failed session was resumed without a word from where")
        await self.acknowledged(
            lambda: self._client.resume_session(before.id, snapshot=offered[0].snapshot)
        )
        await self._look("READY")
        if self.session.generation <= before.generation:
            raise LostError(f"generation {self.session.generation} after {before.generation}")
        await self._did("destroy", self._destroy)

    async def close(self) -> None:
        """Follow the output no more."""
        await self._unfollow()
