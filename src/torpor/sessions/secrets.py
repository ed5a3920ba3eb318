"""Secrets: set once, never read back, and looked up at the moment when the wall uses them.

So a value that is set anew reaches every session that has the secret with its next request, also
one that slept meanwhile; no machine, disk or snapshot has any value in it.
"""

import secrets
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torpor.network.bindings import Binding, check_name, check_open, check_value, parse, plain
from torpor.network.bindings import environment as environment_of
from torpor.network.errors import NetworkError, PolicyError
from torpor.network.injection import Held
from torpor.sessions.errors import ConflictError, InvalidError, NotFoundError
from torpor.sessions.events import Events
from torpor.sessions.model import Actor, now
from torpor.sessions.standing import Standing, check_there
from torpor.store import secrets as table
from torpor.store import sessions as sessions_table
from torpor.store.database import Database, Transaction
from torpor.store.errors import StoreError
from torpor.store.records import Grant, Secret, Session
from torpor.store.sealing import Sealer

MOST = 500
"""Secrets of an installation."""
MOST_BINDINGS = 32


@dataclass(frozen=True)
class NewSecret:
    """What is to be set of a secret: its ``value``, and what requests it is used for, as
    :func:`torpor.network.bindings.parse` reads it. Without ``bindings`` they stay as they are."""

    value: str
    bindings: Sequence[Any] | None = None


async def _open_to_all(_session: Session) -> bool:
    return True


class Secrets:
    """The secrets of an installation, and which sessions have which.

    ``is_open`` says whether a session's policy lets it talk to every public host; until it is given
    every one does.
    """

    def __init__(
        self, database: Database, events: Events, standing: Standing, key: Path | None
    ) -> None:
        self._database = database
        self._events = events
        self._standing = standing
        self._key = key
        self._sealer: Sealer | None = None
        self.is_open: Callable[[Session], Awaitable[bool]] = _open_to_all

    # The secrets

    async def put(self, name: str, new: NewSecret, by: Actor) -> Secret:
        """Set a secret, or set it anew.

        Bindings can be changed only together with the value: it goes nowhere that whoever knows it
        did not mean. Raises :exc:`InvalidError`, :exc:`ConflictError`.
        """
        try:
            check_name(name)
            check_value(new.value)
        except PolicyError as error:
            raise _invalid(error) from error
        sealer = self._opened()
        async with self._database.write() as conn:
            found = await table.named(conn, name)
            bindings = self._bindings(name, new.bindings, found)
            moment = now()
            if found is None:
                if len(await table.listed(conn)) >= MOST:
                    raise ConflictError(f"There are {MOST} secrets already.", todo="Remove some.")
                made = Secret(
                    f"sec_{secrets.token_hex(8)}", name, moment, moment, by.id, by.id,
                    [plain(each) for each in bindings], "", sealer.id, 1,
                )  # fmt: skip
                made = replace(made, sealed=sealer.seal(new.value, made.id))
                await table.insert(conn, made)
            else:
                made = await table.update(
                    conn,
                    found.id,
                    updated_at=moment,
                    updated_by=by.id,
                    bindings=[plain(each) for each in bindings],
                    sealed=sealer.seal(new.value, found.id),
                    key=sealer.id,
                    version=found.version + 1,
                )
                for session in await table.sessions_of(conn, found.id):
                    await self._put_environment(conn, session, found, bindings)
            await self._events.append(
                conn, "secret.set", None, by,
                secret=name, version=made.version, hosts=sorted({each.host for each in bindings}),
            )  # fmt: skip
        self._events.tell(None)
        return made

    def _bindings(
        self, name: str, said: Sequence[Any] | None, found: Secret | None
    ) -> list[Binding]:
        if said is None:
            if found is None:
                raise InvalidError(
                    f"There is no secret {name!r} yet, so it has to be said what it is for.",
                    state="Nothing was changed.",
                    todo="Name the host: `torpor secret set NAME --host api.example.com`.",
                )
            return bindings_of(found)
        if not 1 <= len(said) <= MOST_BINDINGS:
            raise InvalidError(f"bindings: a secret has 1 to {MOST_BINDINGS} of them.")
        # A placeholder that machines have stays the same when more is said of it.
        before = environment_of(bindings_of(found)) if found is not None else {}
        text = next(iter(before.values()), None)
        try:
            return [
                parse(each, name, f"bindings[{number}]", text) for number, each in enumerate(said)
            ]
        except PolicyError as error:
            raise _invalid(error) from error

    async def all(self) -> list[Secret]:
        """Return all secrets, by their names. What they are is sealed."""
        async with self._database.read() as conn:
            return await table.listed(conn)

    async def get(self, name: str) -> Secret:
        """Return a secret. Raises :exc:`NotFoundError`."""
        async with self._database.read() as conn:
            return await _named(conn, name)

    async def sessions_of(self, name: str) -> list[str]:
        """Return the ids of the sessions that have a secret. Raises :exc:`NotFoundError`."""
        async with self._database.read() as conn:
            return await table.sessions_of(conn, (await _named(conn, name)).id)

    async def remove(self, name: str, by: Actor) -> None:
        """Remove a secret, from all sessions that have it too. Raises :exc:`NotFoundError`."""
        async with self._database.write() as conn:
            found = await _named(conn, name)
            for session in await table.sessions_of(conn, found.id):
                await self._put_environment(conn, session, found, [])
            await table.remove(conn, found.id)
            await self._events.append(conn, "secret.removed", None, by, secret=name)
        self._events.tell(None)

    def usable(self, secret: Secret) -> bool:
        """Say whether this server has the key that a secret is sealed with."""
        try:
            return self._opened().id == secret.key
        except ConflictError:
            return False

    # Those of sessions

    async def grant(
        self, session: str, name: str, by: Actor, *, although_open: bool = False
    ) -> Secret:
        """Have requests of a session get a secret.

        Raises :exc:`InvalidError` if its policy lets it talk to everybody, and that was not said
        twice (``although_open``), :exc:`NotFoundError`, :exc:`ConflictError`.
        """
        found = await self._standing.own(session)
        check_there(found)
        try:
            check_open(await self.is_open(found), although_open=although_open)
        except PolicyError as error:
            raise InvalidError(
                error.happened, state=error.state, todo=error.todo, code="policy_is_open"
            ) from error
        async with self._database.write() as conn:
            secret = await _named(conn, name)
            before = {each.secret: each for each in await table.granted(conn, session)}
            if secret.id in before:
                if before[secret.id].although_open or not although_open:
                    return secret
                await table.revoke(conn, session, secret.id)
            taken = {
                variable
                for variable, text in environment_of(bindings_of(secret)).items()
                if found.env.get(variable, text) != text
            }
            if taken:
                raise ConflictError(
                    f"The session has {', '.join(sorted(taken))} in its environment already.",
                    state="Nothing was changed.",
                    todo="Bind the secret to a placeholder in another variable.",
                )
            await table.grant(conn, Grant(session, secret.id, now(), by.id, although_open))
            await self._put_environment(conn, session, secret, bindings_of(secret))
            await self._events.append(
                conn, "secret.granted", session, by, secret=name, although_open=although_open
            )
        self._events.tell(session)
        return secret

    async def revoke(self, session: str, name: str, by: Actor) -> None:
        """Have requests of a session get a secret no more. Raises :exc:`NotFoundError`."""
        async with self._database.write() as conn:
            secret = await _named(conn, name)
            if not await table.revoke(conn, session, secret.id):
                raise NotFoundError(f"The session does not have the secret {name!r}.")
            await self._put_environment(conn, session, secret, [])
            await self._events.append(conn, "secret.revoked", session, by, secret=name)
        self._events.tell(session)

    async def check_may_open(self, session: str) -> None:
        """Raise :exc:`InvalidError` if a session cannot get an open policy: it has a secret, and
        that it has that then too was not said."""
        async with self._database.read() as conn:
            names = {each.id: each.name for each in await table.of_session(conn, session)}
            given = await table.granted(conn, session)
        if closed := sorted(names[each.secret] for each in given if not each.although_open):
            raise InvalidError(
                f"The session has secrets, {', '.join(closed)}: what it fetches with them, it could"
                " hand on to any host then.",
                state="Nothing was changed.",
                todo="Take them from it first (`torpor secret revoke`), or give them to it again"
                " although its policy is open.",
                code="session_has_secrets",
            )

    async def of_session(self, session: str) -> list[Secret]:
        """Return the secrets that a session has, by their names."""
        async with self._database.read() as conn:
            return await table.of_session(conn, session)

    async def held(self, session: str) -> tuple[Held, ...]:
        """Return what the wall uses for requests of a session, as it is at this moment.

        Raises :exc:`NetworkError` if that cannot be told: then no request goes out.
        """
        try:
            async with self._database.read() as conn:
                found = await table.of_session(conn, session)
            if not found:
                return ()
            sealer = self._opened()
            return tuple(
                Held(binding, value)
                for secret in found
                for value in [sealer.unseal(secret.sealed, secret.id)]
                for binding in bindings_of(secret)
            )
        except (StoreError, ConflictError) as error:
            raise NetworkError(error.happened, state=error.state, todo=error.todo) from error

    async def _put_environment(
        self, conn: Transaction, session: str, secret: Secret, bindings: Sequence[Binding]
    ) -> None:
        """Put the placeholders of ``bindings`` into a session's environment, in the place of those
        that the secret had before."""
        found = await sessions_table.get(conn, session)
        if found is None:
            return
        before = environment_of(bindings_of(secret))
        env = {name: text for name, text in found.env.items() if before.get(name) != text}
        env |= environment_of(bindings)
        if env != found.env:
            await sessions_table.update(conn, session, env=env)

    def _opened(self) -> Sealer:
        if self._key is None:
            raise ConflictError("This server has no key to seal secrets with.", code="no_key")
        if self._sealer is None:
            self._sealer = Sealer.open(self._key)
        return self._sealer


def bindings_of(secret: Secret) -> list[Binding]:
    """Return what requests a secret is used for."""
    return [parse(each, secret.name) for each in secret.bindings]


async def _named(conn: Transaction, name: str) -> Secret:
    found = await table.named(conn, name)
    if found is None:
        raise NotFoundError(
            f"There is no secret {name!r}.", todo="`torpor secret list` shows those that there are."
        )
    return found


def _invalid(error: PolicyError) -> InvalidError:
    return InvalidError(error.happened, state=error.state, todo=error.todo)
