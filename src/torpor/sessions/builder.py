"""The builder of templates: one build at a time, in the order in which they were asked for.

What was asked for at a server is built on its host; others make the image when they need it.

A build that was cut off because its program ended is begun anew by the next one. What is told while
it is made is kept as its log, and as events.
"""

import asyncio
import logging
from dataclasses import dataclass

from torpor.images import ImageError
from torpor.images.references import read_reference
from torpor.sessions.events import Events
from torpor.sessions.hosts import Built, MachineHost
from torpor.sessions.model import SYSTEM, now
from torpor.sessions.operations import AGAIN_SECONDS, Operations
from torpor.sessions.template_model import image_of, images_of_builds, status_of
from torpor.store import builds, templates
from torpor.store.builds import UNFINISHED
from torpor.store.database import Database, Transaction
from torpor.store.errors import StoreError
from torpor.store.records import Build
from torpor.vm import VmError

logger = logging.getLogger("torpor.sessions")

NEWS = "b"
"""The kind of news that a template was built, or deleted."""
LONGEST_LINE = 2000
"""Characters of a line of a log; what a registry says may have more."""


@dataclass
class _Making:
    template: str
    task: asyncio.Task[None]


class Builder:
    """Makes the images of builds on a host; each is booted once at ``size``, so that what has
    succeeded starts."""

    def __init__(
        self,
        database: Database,
        host: MachineHost,
        events: Events,
        operations: Operations,
        size: str,
        me: str | None = None,
    ) -> None:
        self._database = database
        self._host = host
        self._events = events
        self._operations = operations
        self._size = size
        self._me = me
        self._news = asyncio.Event()
        self._tidying = asyncio.Lock()
        self._making: _Making | None = None
        self._working: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Build what waits, and what comes, until :meth:`close`."""
        self._working = asyncio.create_task(self._work(), name="builds of templates")

    async def close(self) -> None:
        """Leave off. The next program begins anew what is being built."""
        if self._working is not None:
            self._working.cancel()
            await asyncio.gather(self._working, return_exceptions=True)

    def tell(self) -> None:
        """Say that there is a new build, or an image that may be needed no longer."""
        self._news.set()

    async def cancel(self, template: str) -> None:
        """Leave off what is being built of a template."""
        making = self._making
        if making is not None and making.template == template:
            making.task.cancel()
            await asyncio.wait({making.task})

    async def tidy(self) -> None:
        """Have the host forget the images that no template and no session needs. What it does not
        forget now, it is asked again later."""
        async with self._tidying:
            try:
                async with self._database.read() as conn:
                    unneeded = await builds.unneeded(conn, self._me)
                for each in unneeded:
                    await self._host.forget_image(each.image or "")
                    async with self._database.write() as conn:
                        await builds.update(conn, each.id, image=None, updated_at=each.updated_at)
                await self._tidy_of_others()
            except (ImageError, VmError, StoreError, OSError) as error:
                logger.warning("images of templates are left for later: %s", error)

    async def _tidy_of_others(self) -> None:
        """Have the host forget what it has made after the builds of other hosts."""
        if self._me is None:
            return
        images = images_of_builds(await self._host.image_names())
        async with self._database.read() as conn:
            unneeded = await builds.unneeded_elsewhere(conn, images, self._me)
        for image in unneeded:
            await self._host.forget_image(image)

    async def _work(self) -> None:
        await self.tidy()
        while True:
            self._news.clear()
            try:
                async with self._database.read() as conn:
                    waiting = await builds.unfinished(conn, host=self._me)
            except StoreError as error:
                logger.warning("which templates are to be built could not be read: %s", error)
                await asyncio.sleep(AGAIN_SECONDS)
                continue
            if waiting:
                await self._make_cancellable(waiting[0])
            else:
                await self._news.wait()
            await self.tidy()

    async def _make_cancellable(self, build: Build) -> None:
        """Make a build, in a task that can be cancelled without ending this one."""
        task = asyncio.create_task(self._make(build), name=f"build {build.id}")
        self._making = _Making(build.template, task)
        try:
            await asyncio.wait({task})
        finally:
            self._making = None
            task.cancel()
            (ended,) = await asyncio.gather(task, return_exceptions=True)
        if isinstance(ended, Exception):
            logger.error("what became of build %s was not noted", build.id, exc_info=ended)
            await asyncio.sleep(AGAIN_SECONDS)

    async def _make(self, build: Build) -> None:
        wanted = await self._operations.until_taken(
            "the beginning of a build", lambda: self._begin(build)
        )
        if not wanted:
            return

        async def report(step: str) -> None:
            try:
                async with self._database.write() as conn:
                    await self._say(conn, build, step)
                    await self._events.append(
                        conn, "template.build_progress", None, SYSTEM,
                        template_id=build.template, build_id=build.id, step=step,
                    )  # fmt: skip
            except StoreError as error:
                logger.warning("a step of build %s was not noted: %s", build.id, error)
            self._events.tell(None)

        reference = read_reference(build.source)
        try:
            built = await self._host.build_image(reference, image_of(build.id), self._size, report)
        except Exception as error:  # whatever it is, it is this build's, and the next one waits
            if not isinstance(error, (ImageError, VmError, StoreError, OSError)):
                logger.exception("build %s failed in a way that was not foreseen", build.id)
            words = _writable(str(error) or type(error).__name__)
            await self._operations.until_taken(
                "the failure of a build", lambda: self._end(build, None, words)
            )
        else:
            await self._operations.until_taken(
                "the success of a build", lambda: self._end(build, built, "")
            )

    async def _begin(self, build: Build) -> bool:
        """Note that a build is begun. Return whether it is still wanted."""
        async with self._database.write() as conn:
            found = await builds.get(conn, build.id)
            if found is None or found.status not in UNFINISHED:
                return False
            if found.status == "BUILDING":
                await self._say(conn, build, "begun anew: the server had ended meanwhile")
            else:
                await self._say(conn, build, f"begun: {build.source}")
            # From now on the host may have it.
            await builds.update(conn, build.id, status="BUILDING", image=image_of(build.id))
            await self._restate(conn, build.template)
            await self._events.append(
                conn, "template.build_started", None, SYSTEM,
                template_id=build.template, build_id=build.id, source=build.source,
            )  # fmt: skip
        self._events.tell(None)
        return True

    async def _end(self, build: Build, built: Built | None, error: str) -> None:
        """Note how a build has ended, unless its template was deleted meanwhile."""
        async with self._database.write() as conn:
            found = await builds.get(conn, build.id)
            if found is None or found.status not in UNFINISHED:
                return
            told = {"template_id": build.template, "build_id": build.id}
            if built is None:
                await self._say(conn, build, *error.splitlines(), "failed")
                await builds.update(conn, build.id, status="FAILED", error=error)
                await self._restate(conn, build.template)
                await self._events.append(
                    conn, "template.build_failed", None, SYSTEM, **told, error=error
                )
            else:
                await self._say(conn, build, *built.notes, _summary(built))
                await builds.update(conn, build.id, status="SUCCEEDED", manifest=built.manifest)
                await self._restate(conn, build.template, current_build=build.id)
                await self._events.append(
                    conn, "template.build_succeeded", None, SYSTEM, **told, manifest=built.manifest
                )
                self._database.tell(conn, NEWS, build.template)
        self._events.tell(None)

    async def _restate(self, conn: Transaction, template: str, **changes: str) -> None:
        """Write down the status that a template has, after one of its builds has changed."""
        found = await templates.update(conn, template, **changes)
        unfinished = await builds.unfinished(conn, template)
        status = status_of(unfinished, found.current_build)
        await templates.update(conn, template, status=status)

    async def _say(self, conn: Transaction, build: Build, *words: str) -> None:
        for each in words:
            await builds.add_line(conn, build.id, now(), _writable(each)[:LONGEST_LINE])


def _writable(text: str) -> str:
    """Return a text as databases can keep it: what a registry or an image says may have NUL in it,
    and bytes that are no text."""
    return text.encode(errors="backslashreplace").decode().replace("\0", "\\0")


def _summary(built: Built) -> str:
    return (
        f"done: {built.manifest}, {built.files} files, a disk of {built.size_bytes >> 20} MiB,"
        " booted once"
    )
