"""Images on this computer, and what machines of them start from."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager
from typing import TypeVar

from torpor.images import Asked, Image, Maker, golden, import_image, open_image
from torpor.images.names import DEFAULT, Names, imported_record
from torpor.images.progress import Report, Step
from torpor.images.references import Reference
from torpor.sessions.hosts import Built, Start
from torpor.vm import SIZES, Host

T = TypeVar("T")
Tell = Callable[[str], Awaitable[None]]


class LocalImages:
    """The images of a host. ``insecure`` are registries that need not prove who they are."""

    def __init__(self, maker: Maker, host: Host, insecure: Collection[str]) -> None:
        self._maker = maker
        self._host = host
        self._insecure = frozenset(insecure)
        self._golden: dict[tuple[str, str], asyncio.Lock] = {}

    def check(self, image: str) -> None:
        """Raise :exc:`torpor.images.ImageError` if there is no image of this name."""
        if image != DEFAULT:
            Names(self._host.home).record(image)

    async def start(self, image: str, size: str, report: Tell) -> Start:
        """See :meth:`torpor.sessions.hosts.MachineHost.image_start`."""
        async with _passed_on(report) as tell:
            found = await open_image(self._maker.cache, self._host.home, image, tell)
            snapshot = await self._golden_of(found, size, tell)
        config = found.config
        defaults = {
            "env": dict(config.env),
            "user": config.user or "0",
            "working_dir": config.working_dir,
        }
        return Start(snapshot, defaults)

    async def build(self, source: Reference, name: str, size: str, report: Tell) -> Built:
        """See :meth:`torpor.sessions.hosts.MachineHost.build_image`."""
        asked = Asked(tls_verify=source.registry not in self._insecure)
        async with _passed_on(report) as tell:
            imported = await import_image(
                self._maker.cache, f"docker://{source.wanted}", tell, asked, name
            )
            record = imported_record(name, imported)
            names = Names(self._host.home)
            root = imported.image.root
            image = await _to_its_end(lambda: names.put(record, root, replace=True))
            await self._golden_of(image, size, tell)
        assert imported.manifest is not None  # registries have nothing without one
        return Built(
            imported.manifest, image.size_bytes, imported.content_bytes, imported.files,
            imported.notes,
        )  # fmt: skip

    async def names(self) -> list[str]:
        """See :meth:`torpor.sessions.hosts.MachineHost.image_names`."""
        records = await asyncio.to_thread(Names(self._host.home).records)
        return [each.name for each in records]

    async def forget(self, name: str) -> None:
        """See :meth:`torpor.sessions.hosts.MachineHost.forget_image`."""
        names = Names(self._host.home)
        await _to_its_end(lambda: _forget(names, name))

    async def _golden_of(self, image: Image, size: str, tell: Report) -> str:
        # The store's own lock serves programs, not tasks.
        lock = self._golden.setdefault((image.digest, size), asyncio.Lock())
        async with lock:
            return await golden(self._maker, image, SIZES[size], tell)


def _forget(names: Names, name: str) -> None:
    if any(each.name == name for each in names.records()):
        names.remove(name)


async def _to_its_end(work: Callable[[], T]) -> T:
    """Do ``work`` in a thread, and do not leave it behind when this is cancelled: it would go on,
    and have changed the names after whoever looks at them next."""
    running = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait({running})
        raise


@asynccontextmanager
async def _passed_on(report: Tell) -> AsyncIterator[Report]:
    """Give a :data:`Report` that may be called in any thread; each new step is reported in words,
    the last one too, before this ends in good order."""
    loop = asyncio.get_running_loop()
    said: asyncio.Queue[str | None] = asyncio.Queue()

    def tell(step: Step) -> None:
        loop.call_soon_threadsafe(said.put_nowait, step.name)

    async def pass_on() -> None:
        last = ""
        while (words := await said.get()) is not None:
            if words != last:
                await report(words)
            last = words

    passing = asyncio.create_task(pass_on(), name="progress of an image")
    try:
        yield tell
        loop.call_soon(said.put_nowait, None)
        await asyncio.wait({passing})
    finally:
        passing.cancel()
        await asyncio.gather(passing, return_exceptions=True)
