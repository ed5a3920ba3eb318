"""The gate: the one place where it is judged whether a request may pass.

It stands before routing and before anything is read or looked up. So who has no valid token gets
the same answer for every path, in the same time, whether or not there is such a session, and wakes
nothing.

And whatever a token has under way ends with the token, streams of all kinds and transfers too.
"""

import contextlib
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager

from starlette.routing import BaseRoute, Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from torpor.api.answering import Answering, answer
from torpor.api.bearers import ANYBODY, Bearers, Caller, TokenEndedError
from torpor.api.connections import welcome
from torpor.api.errors import Problem, RefusedError, refused
from torpor.api.origins import check_origin
from torpor.api.permissions import Needs, Permission, needs_of
from torpor.api.rates import Rates
from torpor.api.requests import SIGNED, header
from torpor.api.signing import Signer

PROTOCOL = "bearer."
"""What the WebSocket subprotocol that carries a token begins with: a browser can set no header."""

UNKNOWN = Problem(
    401,
    "unauthorized",
    "This request needs a valid token.",
    todo="Send the header `Authorization: Bearer <token>`; `torpor token create` makes tokens.",
    headers={"WWW-Authenticate": "Bearer"},
)
ENDED = Problem(
    401,
    "unauthorized",
    "The token of this request was revoked, or has expired, while the request was under way.",
    state="What the request had begun, a command or an operation, goes on.",
    todo="Ask again with a valid token.",
    # Of a body that is still coming nothing more is taken.
    headers={**UNKNOWN.headers, "Connection": "close"},
)


class Gate:
    """Lets a request pass or answers it. ``bearers`` is None where no authentication is asked
    for. What ``signer`` has signed is as good as a token for its one thing, as long as the token of
    who asked for it is good."""

    def __init__(
        self,
        app: ASGIApp,
        routes: Sequence[BaseRoute],
        bearers: Bearers | None,
        rates: Rates,
        signer: Signer,
    ) -> None:
        self._app = app
        self._routes = routes
        self._open = frozenset(
            getattr(route, "path", "")
            for route in routes
            if (wanted := needs_of(route)) and wanted.permission is Permission.NONE
        )
        self._bearers = bearers
        self._rates = rates
        self._signer = signer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Judge one request."""
        if scope["type"] not in ("http", "websocket") or scope["path"] in self._open:
            await self._app(scope, receive, send)
            return
        headers: dict[str, str] = {}
        try:
            caller = self._caller(scope)
            scope["state"]["caller"] = caller
            welcome(scope["state"])
            if "signed" not in scope["state"]:  # else it was counted when it was asked for
                headers = self._rated(caller)
            wanted = self._needs(scope)
            if wanted is not None:
                scope["state"]["needs"] = wanted
                _check(caller, wanted)
                if wanted.body_limit is not None and scope["type"] == "http":
                    receive = _limited(scope, receive, wanted.body_limit)
        except RefusedError as error:
            await answer(error.problem, scope, receive, send, headers)
            return

        answering = Answering(scope, send, headers)
        try:
            async with self._while_valid(caller):
                await self._app(scope, receive, answering.send)
        except TokenEndedError:
            await answering.cut_off(ENDED, receive)

    def _while_valid(self, caller: Caller) -> AbstractAsyncContextManager[None]:
        if self._bearers is None:
            return contextlib.nullcontext()
        return self._bearers.while_valid(caller.actor.id)

    def _rated(self, caller: Caller) -> dict[str, str]:
        """Count a request; return the headers that say how many more there may be."""
        standing = self._rates.take(caller.actor.id)
        if not standing.allowed:
            raise refused(
                429,
                "too_many_requests",
                "This token has made too many requests.",
                todo=f"Ask again in {standing.reset_seconds} s.",
                Retry_After=str(standing.reset_seconds),
                **standing.headers(),
            )
        return standing.headers()

    def _caller(self, scope: Scope) -> Caller:
        if scope["path"].startswith(SIGNED):
            signed = self._signer.read(scope["path"])
            if signed is None or not (
                self._bearers is None or self._bearers.stands(signed.caller.actor.id)
            ):
                raise RefusedError(UNKNOWN)
            scope["state"]["signed"] = signed
            return signed.caller
        if self._bearers is None:
            check_origin(scope)
            return ANYBODY
        caller = self._bearers.find(bearer_of(scope))
        if caller is None:
            raise RefusedError(UNKNOWN)
        return caller

    def _needs(self, scope: Scope) -> Needs | None:
        """Return what the route takes that will serve this; None if there is no such route, which
        the router answers."""
        for route in self._routes:
            match, _ = route.matches(scope)
            if match is Match.FULL:
                wanted = needs_of(route)
                if wanted is None:
                    raise AssertionError(f"{route} does not say what it needs")
                return wanted
        return None


def bearer_of(scope: Scope) -> str | None:
    """Return the token that a request shows."""
    said = header(scope, b"authorization")
    if said is not None:
        scheme, _, token = said.partition(" ")
        return token.strip() if scheme.lower() == "bearer" else None
    for protocol in scope.get("subprotocols", ()):
        if protocol.startswith(PROTOCOL):
            return str(protocol.removeprefix(PROTOCOL))
    return None


def _check(caller: Caller, wanted: Needs) -> None:
    if not caller.may(wanted.permission):
        raise refused(
            403,
            "forbidden",
            f"The role {caller.role} does not have the permission {wanted.permission!r}.",
            todo="Use a token with another role.",
        )


def _limited(scope: Scope, receive: Receive, most: int) -> Receive:
    """Return ``receive`` that refuses a body of more than ``most`` bytes. What is announced to be
    larger is refused at once."""
    too_large = refused(
        413,
        "body_too_large",
        f"The body of this request may have at most {most} bytes.",
        todo="Bring large content through the files of a session.",
    )
    announced = header(scope, b"content-length")
    if announced is not None and announced.isdigit() and int(announced) > most:
        raise too_large
    taken = 0

    async def limited() -> Message:
        nonlocal taken
        message = await receive()
        taken += len(message.get("body", b""))
        if taken > most:
            raise too_large
        return message

    return limited
