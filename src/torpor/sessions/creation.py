"""New sessions: noted at once, and started in the background."""

import asyncio
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from torpor.images import ImageError
from torpor.sessions.attachments import Attachments
from torpor.sessions.configs import Configs
from torpor.sessions.egress_policy import check_wall, normal, wall_of
from torpor.sessions.errors import ConflictError, InvalidError, SessionError
from torpor.sessions.events import Events
from torpor.sessions.hosts import MachineHost, StartEvent
from torpor.sessions.lives import Lives
from torpor.sessions.model import SYSTEM, Actor, Key, NewSession, check_new, new_session_id, now
from torpor.sessions.operations import Noted, Operations
from torpor.sessions.room import Room
from torpor.sessions.standing import GONE, Standing, insert_named
from torpor.sessions.tasks import Tasks
from torpor.sessions.templates import Templates
from torpor.store import operations as operations_table
from torpor.store import sessions
from torpor.store.database import Database, Transaction
from torpor.store.errors import StoreError
from torpor.store.records import Operation, Session, Status
from torpor.vm import VmError

AT_ONCE = 4
"""Machines that are started at the same time; more would only wait for each other."""


@dataclass(frozen=True)
class Defaults:
    """What a session is when nothing else is asked for. ``idle_timeout`` is in seconds, 0 for
    never. ``most_sessions`` may be there at the same time, paused ones too."""

    image: str = "default"
    size: str = "mars-2vcpu-1gb"
    idle_timeout: int = 900
    most_sessions: int = 10_000


class Creation:
    """Makes sessions. ``starting`` bounds how many machines are started at the same time."""

    def __init__(
        self,
        database: Database,
        host: MachineHost,
        events: Events,
        operations: Operations,
        configs: Configs,
        room: Room,
        lives: Lives,
        tasks: Tasks,
        standing: Standing,
        templates: Templates,
        attachments: Attachments,
        defaults: Defaults,
        starting: asyncio.Semaphore,
        me: str | None,
    ) -> None:
        self._database = database
        self._host = host
        self._events = events
        self._operations = operations
        self._configs = configs
        self._room = room
        self._lives = lives
        self._tasks = tasks
        self._standing = standing
        self._templates = templates
        self._attachments = attachments
        self._defaults = defaults
        self._starting = starting
        self._me = me
        self._provisioning: set[asyncio.Task[None]] = set()

    async def create(self, new: NewSession, by: Actor, key: Key | None) -> Session:
        """Note a new session, and begin to start it. Raises :exc:`InvalidError`,
        :exc:`NotFoundError` if its configuration, its template or its workspace is gone,
        :exc:`ConflictError` if its name is taken, nothing of its template was built, another
        session has its workspace, or no machine can be kept to its policy here,
        :exc:`NoRoomError`."""
        check_new(new)
        check_wall(self._host, normal(new.egress))
        if new.template is None:
            self._check_image(new.image or self._defaults.image)
        return await self._operations.once(
            "create", by, key, lambda: self._create(new, by, key), self._created
        )

    async def _created(self, operation: Operation) -> Session:
        return await self._standing.get(operation.session or "")

    def _check_image(self, image: str) -> None:
        try:
            self._host.check_image(image)
        except ImageError as error:
            raise InvalidError(str(error)) from error

    async def _create(self, new: NewSession, by: Actor, key: Key | None) -> Session:
        moment = now()
        session = Session(
            id=new_session_id(),
            name=new.name or invented_name(moment),
            status=Status.PROVISIONING,
            image=new.image or self._defaults.image,
            size=new.size or self._defaults.size,
            created_at=moment,
            updated_at=moment,
            used_at=moment,
            created_by=by.id,
            env=dict(new.env),
            labels=dict(new.labels),
            metadata=dict(new.metadata),
            idle_timeout=new.idle_timeout,
            keep_warm=new.keep_warm,
            host=self._me,
            egress=normal(new.egress),
        )
        self._room.take(session.id, None)
        try:
            # The session is noted: that is what was asked for. Its start is the server's own.
            operation = self._operations.done_at_once(
                self._operations.new("create", by, session.id, key), session=session.id
            )
            async with self._database.write() as conn:
                await self.check_room_for(conn, 1)
                config = await self._configs.of_session(conn, new, session.name, by)
                session = replace(session, config=config)
                if new.template is not None:
                    template, image = await self._templates.resolve(conn, new.template)
                    session = replace(session, template=template, image=image)
                await insert_named(conn, session)
                session = await self._attachments.claim(conn, new, session, by)
                await operations_table.insert(conn, operation)
                more: dict[str, Any] = {}
                if session.workspace is not None:
                    more["workspace_id"] = session.workspace
                if session.egress is not None:
                    more["egress"] = session.egress
                await self._events.append(
                    conn, "session.created", session.id, by, name=session.name,
                    image=session.image, size=session.size, config_id=config, **more,
                )  # fmt: skip
                start = await self.note_start(conn, session.id, by)
        except BaseException:
            self._room.give_back(session.id)
            raise
        self._events.tell(session.id)
        self.provision(start, by)
        return session

    async def check_room_for(self, conn: Transaction, count: int) -> None:
        """Raise :exc:`ConflictError` if there may not be so many more sessions on this host."""
        there = await sessions.count(conn, [each for each in Status if each not in GONE], self._me)
        if there + count > self._defaults.most_sessions:
            raise ConflictError(
                f"There are {there} sessions, and at most {self._defaults.most_sessions} may be.",
                state="Nothing was created.",
                todo="Remove some, or raise max_sessions in the settings.",
            )

    async def note_start(self, conn: Transaction, session: str, by: Actor) -> Operation:
        """Note that a session is to be started for the first time, in the transaction in which it
        comes to be. Then call :meth:`provision`."""
        start = self._operations.new("provision", by, session, None)
        await operations_table.insert(conn, start)
        return start

    def provision(self, start: Operation, by: Actor, event: StartEvent = "create") -> None:
        """Begin to start a session for the first time, with room taken for it already."""
        session = start.session or ""
        task = self._tasks.background(
            self._provision(session, start, by, event), f"provisioning {session}"
        )
        self._lives.of(session).provisioning = task
        self._provisioning.add(task)
        task.add_done_callback(self._provisioning.discard)

    async def provision_anew(self, new: Sequence[Session], by: Actor) -> None:
        """Begin to start sessions whose first start was cut off."""
        async with self._database.write() as conn:
            starts = [await self.note_start(conn, session.id, by) for session in new]
        for session, start in zip(new, starts, strict=True):
            self._room.adopt(session.id)
            self.provision(start, by, "create" if session.parent is None else "fork")

    async def stop_provisioning(self) -> None:
        """Cut off all starts of new sessions: an image may take minutes to be made. The next
        program begins them anew."""
        for task in self._provisioning:
            task.cancel()
        await asyncio.gather(*self._provisioning, return_exceptions=True)

    async def _provision(
        self, session_id: str, start: Operation, by: Actor, event: StartEvent
    ) -> None:
        async with (
            self._operations.under_way(start, by) as noted,
            self._lives.of(session_id).turn("create"),
        ):
            session = await self._standing.get(session_id)
            if session.status is not Status.PROVISIONING:
                return  # destroyed before its turn came
            try:
                await self._start_first(session, noted, by, event)
            except (SessionError, VmError, ImageError, StoreError, OSError) as error:
                await self._fail(session, noted, by, error)

    async def _fail(self, session: Session, noted: Noted, by: Actor, error: Exception) -> None:
        self._room.give_back(session.id)

        async def write() -> None:
            async with self._database.write() as conn:
                await self._operations.failed(conn, noted, by, error)
                why = f"It could not be started: {error}"
                await self._standing.note_failed(conn, session, why, by)
                await self._attachments.leave(conn, session, by)  # nothing of it can be recovered

        await self._operations.until_taken(f"the failure of session {session.id}", write)
        self._events.tell(session.id)
        if session.workspace is not None:
            await self._attachments.let_go(session.id)

    async def _start_first(
        self, session: Session, noted: Noted, by: Actor, event: StartEvent
    ) -> None:
        snapshot, defaults = session.snapshot, session.defaults
        if snapshot is None:

            async def report(step: str) -> None:
                await self._events.add("session.progress", session.id, SYSTEM, step=step)

            if session.template is not None:
                await self._templates.ensure(session.image, report)
            found = await self._host.image_start(session.image, session.size, report)
            snapshot, defaults = found.snapshot, found.defaults
        starting = replace(session, defaults=defaults)  # its image may have rules of its own
        await self._attachments.prepare(session)
        async with self._starting:
            running = await self._host.start(
                snapshot, noted.labels, event, session.name, session.workspace, wall_of(starting)
            )
        await self._standing.started(
            session, running, noted, by, "session.ready", defaults=defaults
        )


def invented_name(moment: datetime) -> str:
    """Return a name for a session that was given none."""
    return f"session-{moment:%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"
