"""Ports of this computer that lead to ports inside a session: each connection is one of its own."""

import asyncio
import contextlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import typer

from torpor.cli.harmless import complain
from torpor.cli.server import explained

if TYPE_CHECKING:
    from torpor.client import AsyncClient
    from torpor.client.async_streams import AsyncPortStream

PIECE = 64 << 10
HIGHEST = 65535


@dataclass(frozen=True)
class Forwarded:
    """A port here, 0 for any that is free, and the port inside that it leads to."""

    local: int
    remote: int

    @classmethod
    def of(cls, text: str) -> "Forwarded":
        """Read ``[LOCAL:]REMOTE``. Ends the program with 2 for what is neither."""
        local, _, remote = text.rpartition(":")
        try:
            found = cls(_number(local or remote), _number(remote))
        except ValueError:
            found = cls(0, 0)
        if not found.remote:
            raise typer.BadParameter(
                f"{text!r} is not PORT or LOCAL:PORT, with numbers up to {HIGHEST}",
                param_hint="[LOCAL:]REMOTE",
            )
        return found


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) <= HIGHEST):
        raise ValueError(text)
    return int(text)


async def forward(
    client: "AsyncClient", session: str, wanted: Sequence[Forwarded], address: str
) -> None:
    """Listen on all of these ports, or on none, and connect what comes in, for ever.

    Raises the client's errors if there is no such session, and OSError if a port cannot be listened
    on.
    """
    found = await client.get_session(session)
    with contextlib.ExitStack() as stack:
        servers = []
        for each in wanted:
            server = await _listen(client, found.id, each, address)
            stack.callback(server.close)
            servers.append(server)
        for each, server in zip(wanted, servers, strict=True):
            await server.start_serving()
            where = server.sockets[0].getsockname()[1]
            typer.echo(f"{address}:{where} is port {each.remote} of {found.name}.", err=True)
        await asyncio.Event().wait()


async def _listen(
    client: "AsyncClient", session: str, wanted: Forwarded, address: str
) -> asyncio.Server:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            await _connect(client, session, wanted.remote, reader, writer)
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()

    try:
        return await asyncio.start_server(serve, address, wanted.local, start_serving=False)
    except OSError as error:
        raise OSError(
            error.errno, f"{address}:{wanted.local} cannot be listened on: {_words(error)}"
        ) from error


def _words(error: OSError) -> str:
    return os.strerror(error.errno).lower() if error.errno and error.errno > 0 else str(error)


async def _connect(
    client: "AsyncClient",
    session: str,
    port: int,
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
) -> None:
    """Connect one connection, to its end; what keeps it from that is told."""
    from torpor.client import ClientError

    try:
        async with client.forward(session, port) as stream:
            sending = asyncio.create_task(_send(reader, stream))
            try:
                while data := await stream.read():
                    writer.write(data)
                    await writer.drain()
            finally:
                sending.cancel()
                await asyncio.gather(sending, return_exceptions=True)
    except ClientError as error:
        complain(f"port {port}: {explained(error)}")


async def _send(reader: asyncio.StreamReader, stream: "AsyncPortStream") -> None:
    from torpor.client import ClientError

    # An end that was lost is told by what reads.
    with contextlib.suppress(ClientError, OSError):
        while data := await reader.read(PIECE):
            await stream.write(data)
        await stream.close_input()
