"""The links of a host: some are prepared ahead, so that a machine waits for none."""

import asyncio
import contextlib
from collections import deque

from torpor import vm
from torpor.network.link.link import BuildError, Link, build

AHEAD = 4
"""Links that are kept ready: some 0.3 MB of kernel memory each, 40 ms to build."""
QUIET = 0.3
"""Seconds after which those that were taken are replaced: whoever takes one starts a machine with
it, and is to have the processors."""


class Links:
    """Makes links; implements :class:`torpor.vm.wire.Links`."""

    def __init__(self, ahead: int = AHEAD) -> None:
        """Keep ``ahead`` of them ready, from the first that is taken on."""
        self._ahead = ahead
        self._ready: deque[Link] = deque()
        self._taken = asyncio.Event()
        self._preparing: asyncio.Task[None] | None = None
        self._closing: set[asyncio.Future[None]] = set()

    async def take(self) -> Link:
        """Return a new link, the caller's own. Raises :exc:`LinkError`."""
        if self._ready:
            link = self._ready.popleft()
        else:
            link = await _built()
        self.prepare()
        return link

    def prepare(self) -> None:
        """Begin to make ready what is to be kept ready, if it is not."""
        self._taken.set()
        if self._ahead and (self._preparing is None or self._preparing.done()):
            self._preparing = asyncio.create_task(self._prepare())

    def let_go(self, link: vm.Link) -> None:
        """Close a link in the background; nobody need wait for it."""
        assert isinstance(link, Link)
        closing = asyncio.ensure_future(asyncio.to_thread(link.close))
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    async def rebuilt(self, pid: int) -> Link:
        """Return a link on the wire of a QEMU that runs, whose ends went with an earlier program.

        Raises :exc:`LinkError`.
        """
        return await _built(pid)

    async def close(self) -> None:
        """Let go of those that were not taken, and return when all are closed that were let go."""
        if self._preparing is not None:
            self._preparing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._preparing
        while self._ready:
            self.let_go(self._ready.popleft())
        await asyncio.gather(*self._closing)

    @property
    def ready(self) -> int:
        """How many can be had without waiting."""
        return len(self._ready)

    async def _prepare(self) -> None:
        while len(self._ready) < self._ahead:
            self._taken.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(QUIET):
                    await self._taken.wait()
                    continue  # one more was taken: the quiet begins anew
            try:
                self._ready.append(await _built())
            except BuildError:
                return  # whoever needs one tries again, and is told


async def _built(pid: int = 0) -> Link:
    """Build a link in a thread; if whoever waits is cancelled, nothing of it is left."""
    building = asyncio.ensure_future(asyncio.to_thread(build, pid))
    try:
        return await asyncio.shield(building)
    except asyncio.CancelledError:
        with contextlib.suppress(BuildError):
            (await building).close()
        raise
