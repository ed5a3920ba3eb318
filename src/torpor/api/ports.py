"""Connections to ports inside sessions, over WebSockets."""

from typing import Annotated

from fastapi import Path, Response
from starlette.requests import Request
from starlette.websockets import WebSocket

from torpor.api.errors import Problem, RefusedError, refused
from torpor.api.permissions import Permission, needs
from torpor.api.routes import SESSION, errors, router
from torpor.api.sockets import Socket, check_parameters, chosen_protocol, serve_socket
from torpor.api.wiring import By, Server, SessionId, note
from torpor.sessions import PortConnection

routes = router("ports")

Port = Annotated[int, Path(ge=1, le=65535, description="A port of the machine's loopback.")]
END = '{"type":"eof"}'
"""The text frame with which a client says that it sends no more, and reads on."""


@routes.websocket(SESSION + "/port-forward/{port}")
@needs(Permission.USE)
async def forward_port(
    websocket: WebSocket, server: Server, session_id: SessionId, by: By, port: Port
) -> None:
    """Connect to a port on the machine's loopback; binary frames carry the bytes, both ways.

    Torpor: the text frame `{"type":"eof"}` says that the client sends no more.

    A paused session is woken, and the connection made, before the WebSocket is accepted: so what
    fails is an ordinary error. The connection lives over pauses, as everything in the machine does;
    bytes of the client wake the session, and while there are none it may pause.
    """
    check_parameters(websocket)
    note(websocket, port=port)
    ports = server.sessions.ports
    connection = await ports.connect(session_id, port, by)
    try:
        await ports.opened(session_id, by, port)
        await websocket.accept(chosen_protocol(websocket))
        socket = Socket(websocket)
        works = _outward(connection, socket), _inward(connection, socket)
        await serve_socket(websocket, server.closing, *works)
    finally:
        connection.close()


async def _outward(connection: PortConnection, socket: Socket) -> None:
    """Pass on what comes out of the machine, to its end."""
    while data := await connection.read():
        await socket.send(data)


async def _inward(connection: PortConnection, socket: Socket) -> None:
    """Pass on what the client sends, until it has gone."""
    while True:
        message = await socket.receive()
        if isinstance(message, bytes):
            await socket.patiently(connection.write(message))
        elif message == END:
            await connection.shut()
        else:
            raise refused(400, "invalid_request", "Only binary frames are passed on.")


@routes.get(
    SESSION + "/port-forward/{port}",
    responses=errors(400, 404),
    include_in_schema=False,  # there the path is that of the WebSocket
)
@needs(Permission.USE)
async def refuse_plain_request(request: Request, session_id: SessionId, port: Port) -> Response:
    """Torpor: say that a port is reached over a WebSocket."""
    raise RefusedError(
        Problem(
            400,
            "upgrade_required",
            "A port is reached over a WebSocket, and this request asks for none.",
            state="Nothing was connected, and the session was not woken.",
            todo="Send it with `Connection: Upgrade` and `Upgrade: websocket`; `torpor"
            " port-forward` does.",
        )
    )
