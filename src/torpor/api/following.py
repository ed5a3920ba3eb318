"""Following a command: its output as events, or output and input over a WebSocket."""

import struct
from collections.abc import AsyncGenerator
from typing import Annotated, Any

from fastapi import Header, Query
from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import Response
from starlette.websockets import WebSocket

from torpor.api.errors import RefusedError, complaint, invalid
from torpor.api.execs import EXEC, ExecId, find_exec, followed
from torpor.api.permissions import Permission, needs
from torpor.api.routes import errors, router
from torpor.api.schemas.execs import encoded
from torpor.api.schemas.frames import EofFrame, FromClient, ResizeFrame
from torpor.api.sockets import Socket, check_parameters, chosen_protocol, serve_socket
from torpor.api.streaming import EVENT_STREAM, event_stream, frame
from torpor.api.wiring import By, Found, Server
from torpor.sessions import Following, Paused, Sessions
from torpor.sessions.following import Item
from torpor.sessions.model import Actor
from torpor.store.records import Status
from torpor.vm import STDERR, Exit, Gap, Output, Terminal

routes = router("execs")

KINDS = {False: "stdout", True: "stderr"}
HEAD = struct.Struct(">BQ")
"""What a binary frame begins with: which output (1 standard output, 2 standard error), and the
number of the first byte."""

Seq = Annotated[
    int | None,
    Query(ge=0, description="From which byte of its output on; what is no longer kept is a `gap`."),
]
Hold = Annotated[
    bool,
    Query(
        description="Whether the command waits for this reader when it falls behind; else bytes"
        " may be missed, and a `gap` says so."
    ),
]

_STREAM: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "A stream of events: `output` with `seq`, `source` (stdout or stderr) and"
        " `data` (base64); `gap` with `start` and `end`, for bytes that are no longer kept;"
        " `paused` and `resumed`; last `exit` with `code` or `signal`, and `timed_out`. The id of"
        " an event says where to go on: send it as `seq` or Last-Event-ID.",
        "content": {
            EVENT_STREAM: {
                "example": 'id: 3\nevent: output\ndata: {"seq":0,"source":"stdout","data":"aGkK"}'
                '\n\nevent: exit\ndata: {"code":0,"signal":null,"timed_out":false}\n\n',
            }
        },
    }
}


def said_of(item: Item) -> tuple[str, dict[str, Any]]:
    """Return the word for something that a command does, and what more is said of it."""
    if isinstance(item, Output):
        source = KINDS[item.source == STDERR]
        return "output", {"seq": item.seq, "source": source, "data": encoded(item.data)}
    if isinstance(item, Gap):
        return "gap", {"start": item.start, "end": item.end}
    if isinstance(item, Exit):
        return "exit", {"code": item.code, "signal": item.signal, "timed_out": item.timed_out}
    return ("paused" if isinstance(item, Paused) else "resumed"), {}


def _next_seq(item: Item) -> int | None:
    if isinstance(item, Output):
        return item.seq + len(item.data)
    return item.end if isinstance(item, Gap) else None


@routes.get(
    EXEC + "/output",
    responses={**_STREAM, **errors(400, 404, 409, 502, 503, 507)},
    response_class=Response,
    summary="Follow a command's output",
)
@needs(Permission.USE)
async def get_exec_output(
    request: Request,
    server: Server,
    session: Found,
    exec_id: ExecId,
    by: By,
    seq: Seq = None,
    follow: Annotated[
        bool,
        Query(description="False: end with what there is by now. That wakes a paused session."),
    ] = True,
    hold: Hold = True,
    last_event_id: Annotated[
        str | None, Header(description="Says the same as `seq`, if that is left out.")
    ] = None,
) -> Response:
    """Torpor: follow what a command writes, from any byte that is kept, until it ends.

    Over a pause of the session the stream stands still and goes on; it does not wake the session.
    """
    if seq is None:
        said = last_event_id or ""
        seq = int(said) if said.isascii() and said.isdigit() and len(said) < 19 else 0
    end = None
    if not follow:
        end = (await find_exec(server.sessions, session.id, by, exec_id)).output_end
    frames = _frames(server.sessions, session.id, by, exec_id, seq, end, hold and follow)
    return event_stream(request, frames, server.closing)


async def _frames(
    service: Sessions, session: str, by: Actor, exec_id: str, seq: int, end: int | None, hold: bool
) -> AsyncGenerator[bytes, None]:
    if (await service.get(session)).status is Status.PAUSED:
        yield frame("paused", {})
    following = service.execs.follow(session, by, exec_id, seq=seq, hold=hold, patient=end is None)
    async with followed(following) as items:
        if end is not None and seq >= end:
            return
        async for item in items:
            word, more = said_of(item)
            after = _next_seq(item)
            yield frame(word, more, None if after is None else str(after))
            if end is not None and after is not None and after >= end:
                return


@routes.websocket(EXEC + "/stream")
@needs(Permission.USE)
async def stream_exec(
    websocket: WebSocket,
    server: Server,
    session: Found,
    exec_id: ExecId,
    by: By,
    seq: Annotated[int, Query(ge=0)] = 0,
    hold: bool = True,
) -> None:
    """Follow a command and write to it. Input wakes a paused session, following does not."""
    check_parameters(websocket, "seq", "hold")
    following = server.sessions.execs.follow(session.id, by, exec_id, seq=seq, hold=hold)
    await websocket.accept(chosen_protocol(websocket))
    socket = Socket(websocket)
    if session.status is Status.PAUSED:
        await socket.say(type="paused")
    client = _Client(server.sessions, session.id, by, following, socket)
    await serve_socket(websocket, server.closing, client.show(), client.listen())


class _Client:
    """Who follows a command over a WebSocket."""

    def __init__(
        self, service: Sessions, session: str, by: Actor, following: Following, socket: Socket
    ) -> None:
        self._service = service
        self._session = session
        self._by = by
        self._following = following
        self._socket = socket

    async def show(self) -> None:
        """Pass on what the command writes, to its end."""
        async with followed(self._following) as items:
            async for item in items:
                if isinstance(item, Output):
                    await self._socket.send(HEAD.pack(item.source, item.seq) + item.data)
                else:
                    word, more = said_of(item)
                    await self._socket.say(type=word, **more)

    async def listen(self) -> None:
        """Pass on what the client says, until it has gone."""
        while True:
            message = await self._socket.receive()
            await self._socket.patiently(self._take(message))

    async def _take(self, message: bytes | str) -> None:
        async with self._service.use(self._session, self._by, patient=True):
            if isinstance(message, bytes):
                await self._following.write(message)
                return
            try:
                said = FromClient.validate_json(message)
            except ValidationError as error:
                raise RefusedError(
                    invalid(complaint({**each, "loc": each["loc"][1:]}) for each in error.errors())
                ) from None
            execs, exec_id = self._service.execs, self._following.id
            if isinstance(said, EofFrame):
                await self._following.close_input()
            elif isinstance(said, ResizeFrame):
                size = Terminal(said.rows, said.columns)
                await execs.resize(self._session, self._by, exec_id, size, patient=True)
            else:
                await execs.signal(self._session, self._by, exec_id, said.signal, patient=True)
