"""Connections to ports inside sessions, over WebSockets."""

import asyncio
from typing import Annotated

from fastapi import Path
from starlette.websockets import WebSocket

from torpor.api.errors import refused
from torpor.api.permissions import Permission, needs
from torpor.api.routes import SESSION, router
from torpor.api.sockets import Socket, check_parameters, chosen_protocol, serve_socket
from torpor.api.wiring import By, Server, SessionId, note
from torpor.sessions import Sessions
from torpor.sessions.following import LOST
from torpor.sessions.model import Actor
from torpor.vm import Connection, Gap

routes = router("ports")

MOMENT = 0.05
"""Seconds before a lost channel is attached again."""


@routes.websocket(SESSION + "/port-forward/{port}")
@needs(Permission.USE)
async def forward_port(
    websocket: WebSocket,
    server: Server,
    session_id: SessionId,
    by: By,
    port: Annotated[int, Path(ge=1, le=65535)],
) -> None:
    """Connect to a port on the machine's loopback; binary frames carry the bytes, both ways.

    A paused session is woken, and the connection made, before the WebSocket is accepted: so what
    fails is an ordinary error. The connection lives over pauses, as everything in the machine does;
    bytes of the client wake the session, and while there are none it may pause.
    """
    check_parameters(websocket)
    note(websocket, port=port)
    service = server.sessions
    async with service.use(session_id, by) as used:
        connection = await used.agent.dial(port)
    tunnel = _Tunnel(service, session_id, by, connection)
    try:
        await service.open_port(session_id, by, port)
        await websocket.accept(chosen_protocol(websocket))
        socket = Socket(websocket)
        await serve_socket(websocket, server.closing, tunnel.outward(socket), tunnel.inward(socket))
    finally:
        connection.close()


class _Tunnel:
    """A connection into a machine, which is attached again after a pause."""

    def __init__(self, service: Sessions, session: str, by: Actor, connection: Connection) -> None:
        self._service = service
        self._session = session
        self._by = by
        self._connection = connection
        self._attached = asyncio.Event()
        self._attached.set()

    async def outward(self, socket: Socket) -> None:
        """Pass on what comes out of the machine, to its end."""
        while True:
            try:
                item = await self._connection.next_output()
            except LOST:
                self._attached.clear()
                await asyncio.sleep(MOMENT)
                found = await self._service.attached(self._session)
                await self._connection.attach(found.agent.channel)
                self._attached.set()
                continue
            if item is None:
                return
            if isinstance(item, Gap):
                raise refused(502, "bytes_lost", "Bytes of this connection were lost.")
            await socket.send(item.data)

    async def inward(self, socket: Socket) -> None:
        """Pass on what the client sends, until it has gone."""
        while True:
            message = await socket.receive()
            if isinstance(message, str):
                raise refused(400, "invalid_request", "Only binary frames are passed on.")
            await socket.patiently(self._write(message))

    async def _write(self, data: bytes) -> None:
        connection = self._connection
        end = connection.written + len(data)
        async with self._service.use(self._session, self._by, patient=True):
            while connection.written < end:
                await self._attached.wait()
                try:
                    await connection.write(data[len(data) - (end - connection.written) :])
                except LOST:
                    self._attached.clear()
