"""Templates: images of a team's own, which sessions start from by name."""

import asyncio
import uuid
from collections.abc import Awaitable, Callable

from torpor.images import ImageError
from torpor.images.references import read_reference
from torpor.sessions.builder import NEWS, Builder
from torpor.sessions.events import Events
from torpor.sessions.hosts import MachineHost
from torpor.sessions.model import Actor, Key, now
from torpor.sessions.operations import Operations
from torpor.sessions.tasks import Tasks
from torpor.sessions.template_model import (
    NewTemplate,
    TemplateChanges,
    build_of,
    check_base,
    check_template_name,
    checked_source,
    image_of,
    name_taken,
    no_build,
    no_template,
    not_ready,
)
from torpor.store import builds
from torpor.store import operations as operations_table
from torpor.store import templates as table
from torpor.store.database import Database, Transaction
from torpor.store.errors import NameTakenError
from torpor.store.paging import Page
from torpor.store.records import Build, Line, Operation, Template

DELETED = "Its template was deleted."


class Templates:
    """Makes templates, has them built, and says which image a session of one starts from.

    ``called`` is everywhere the id of a template, or its name.
    """

    def __init__(
        self,
        database: Database,
        host: MachineHost,
        events: Events,
        operations: Operations,
        tasks: Tasks,
        size: str,
        me: str | None = None,
    ) -> None:
        self._database = database
        self._host = host
        self._events = events
        self._operations = operations
        self._tasks = tasks
        self._size = size
        self._me = me
        self._builder = Builder(database, host, events, operations, size, me)
        self._ensuring = asyncio.Lock()
        database.on_news(NEWS, lambda _: self._builder.tell())

    def begin(self) -> None:
        """Build what waits, and what comes, until :meth:`close`."""
        self._builder.begin()

    async def close(self) -> None:
        """Leave off what is being built; the next program begins it anew."""
        await self._builder.close()

    # Finding

    async def get(self, called: str) -> Template:
        """Return a template. Raises :exc:`NotFoundError`."""
        async with self._database.read() as conn:
            return await _there(conn, called)

    async def page(self, limit: int, after: str | None = None) -> Page[Template]:
        """Return a page of templates, newest first. Raises :exc:`CursorError` of the store."""
        async with self._database.read() as conn:
            return await table.page(conn, limit, after)

    async def builds(
        self, called: str, limit: int, after: str | None = None
    ) -> tuple[Template, Page[Build]]:
        """Return a template and a page of its builds, newest first. Raises :exc:`NotFoundError`,
        and :exc:`CursorError` of the store."""
        async with self._database.read() as conn:
            found = await _there(conn, called)
            return found, await builds.page(conn, found.id, limit, after)

    async def get_build(self, called: str, build: str) -> tuple[Template, Build]:
        """Return a template and one of its builds. Raises :exc:`NotFoundError`."""
        async with self._database.read() as conn:
            return await _there_with(conn, called, build)

    async def log(self, called: str, build: str) -> list[Line]:
        """Return what was told of a build, as far as it is kept, the oldest line first. Raises
        :exc:`NotFoundError`."""
        async with self._database.read() as conn:
            _, found = await _there_with(conn, called, build)
            return await builds.lines(conn, found.id)

    # Changing

    async def create(self, new: NewTemplate, by: Actor, *, key: Key | None = None) -> Template:
        """Note a new template, and begin to build it. Raises :exc:`InvalidError`, and
        :exc:`ConflictError` if there is one of its name."""
        check_template_name(new.name)
        check_base(new.base)
        source = str(checked_source(new.source))

        async def create() -> Template:
            moment = now()
            template = Template(
                _new_id(), new.name, moment, moment, by.id, "PENDING", new.base, source
            )
            try:
                async with self._database.write() as conn:
                    await table.insert(conn, template)
                    await self._note(conn, "template.created", template, by, key)
            except NameTakenError as error:
                raise name_taken(new.name) from error
            self._told()
            return template

        async def again(operation: Operation) -> Template:
            return await self.get(operation.result["template"])

        return await self._operations.once("creating a template", by, key, create, again)

    async def update(
        self, called: str, changes: TemplateChanges, by: Actor, *, key: Key | None = None
    ) -> Template:
        """Change what a template is built of, and build it. Until that has succeeded, sessions
        start from what was built last. Raises :exc:`InvalidError`, :exc:`NotFoundError`."""
        wanted = {}
        if changes.base is not None:
            check_base(changes.base)
            wanted["base"] = changes.base
        if changes.source is not None:
            wanted["source"] = str(checked_source(changes.source))

        async def update() -> Template:
            async with self._database.write() as conn:
                found = await _there(conn, called)
                status = "BUILDING" if found.status == "BUILDING" else "PENDING"
                template = await table.update(conn, found.id, status=status, **wanted)
                await self._note(conn, "template.updated", template, by, key)
            self._told()
            return template

        async def again(operation: Operation) -> Template:
            return await self.get(operation.result["template"])

        return await self._operations.once("updating a template", by, key, update, again)

    async def _note(
        self, conn: Transaction, what: str, template: Template, by: Actor, key: Key | None
    ) -> None:
        """Note a build of a template, and who has asked for it."""
        moment = now()
        build = Build(
            _new_id(), template.id, moment, moment, "PENDING", template.base, template.source,
            host=self._me,
        )  # fmt: skip
        await builds.insert(conn, build)
        operation = self._operations.done_at_once(
            self._operations.new(what, by, None, key), template=template.id, build=build.id
        )
        await operations_table.insert(conn, operation)
        await self._events.append(
            conn, what, None, by, template_id=template.id, name=template.name,
            build_id=build.id, base_template=template.base, source=template.source,
        )  # fmt: skip

    def _told(self) -> None:
        self._events.tell(None)
        self._builder.tell()

    async def delete(self, called: str, by: Actor) -> Template:
        """Delete a template: what is being built of it is left off, and its images go as soon as no
        session is about to start from them. Sessions that have started live on. Raises
        :exc:`NotFoundError`."""
        return await self._tasks.whole(self._delete(called, by), f"deleting template {called}")

    async def _delete(self, called: str, by: Actor) -> Template:
        async with self._database.write() as conn:
            found = await _there(conn, called)
            for each in await builds.unfinished(conn, found.id):
                await builds.update(conn, each.id, status="FAILED", error=DELETED)
            found = await table.update(conn, found.id, deleted_at=now())
            await self._events.append(
                conn, "template.deleted", None, by, template_id=found.id, name=found.name
            )
            self._database.tell(conn, NEWS, found.id)
        self._events.tell(None)
        await self._builder.cancel(found.id)
        await self._builder.tidy()
        return found

    # Starting from one

    async def resolve(self, conn: Transaction, called: str) -> tuple[str, str]:
        """Return the id of a template and the host's name of the image that a session of it starts
        from, in the transaction in which the session comes to be: until it has started, the image
        stays. Raises :exc:`NotFoundError`, and :exc:`ConflictError` if nothing of it was built."""
        found = await _there(conn, called)
        if found.current_build is None:
            raise not_ready(found)
        return found.id, image_of(found.current_build)

    async def ensure(self, image: str, report: Callable[[str], Awaitable[None]]) -> None:
        """See that the host has the image of a build that has succeeded. If it was removed there,
        or built on another host, it is built again, of the same manifest."""
        async with self._ensuring:  # sessions that start together have it built once
            try:
                self._host.check_image(image)
            except ImageError:
                async with self._database.read() as conn:
                    build = await builds.get(conn, build_of(image))
                if build is None or build.manifest is None:
                    raise
                reference = read_reference(build.source).pinned(build.manifest)
                await self._host.build_image(reference, image, self._size, report)


async def _there(conn: Transaction, called: str) -> Template:
    found = await table.find(conn, called)
    if found is None:
        raise no_template(called)
    return found


async def _there_with(conn: Transaction, called: str, build: str) -> tuple[Template, Build]:
    template = await _there(conn, called)
    found = await builds.get(conn, build)
    if found is None or found.template != template.id:
        raise no_build(template, build)
    return template, found


def _new_id() -> str:
    return str(uuid.uuid4())
