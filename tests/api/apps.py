"""Programs that listen inside sessions, for tests of what leads to them."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import h11

Pairs = list[tuple[str, str]]
Answer = Callable[["Asked", "App"], Awaitable[None]]


@dataclass
class Asked:
    """A request as it came, and the connection on which it is answered."""

    method: str
    target: str
    headers: Pairs
    connection: "Conversation"
    body: bytes = b""

    def all(self, name: str) -> list[str]:
        """Return the values of a header."""
        return [value for its_name, value in self.headers if its_name == name]


@dataclass
class Conversation:
    """A connection: h11's, and the streams below it."""

    h11: h11.Connection
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def send(self, *events: Any) -> None:
        for event in events:
            self.writer.write(self.h11.send(event) or b"")
            await self.writer.drain()

    async def event(self) -> Any:
        while (event := self.h11.next_event()) is h11.NEED_DATA:
            self.h11.receive_data(await self.reader.read(1 << 16))
        return event


@dataclass
class App:
    """A program that answers with what it was asked, or as ``answers`` has it for a path."""

    port: int = 0
    asked: list[Asked] = field(default_factory=list)
    answers: dict[str, Answer] = field(default_factory=dict)
    connections: int = 0
    writers: list[asyncio.StreamWriter] = field(default_factory=list)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.writers.append(writer)
        talk = Conversation(h11.Connection(h11.SERVER), reader, writer)
        with contextlib.suppress(OSError, h11.RemoteProtocolError):
            while isinstance(request := await talk.event(), h11.Request):
                said = [(n.decode(), v.decode("latin-1")) for n, v in request.headers]
                asked = Asked(request.method.decode(), request.target.decode(), said, talk)
                self.asked.append(asked)
                answer = self.answers.get(asked.target.partition("?")[0], echo)
                await answer(asked, self)
                if talk.h11.our_state is not h11.DONE or talk.h11.their_state is not h11.DONE:
                    break
                talk.h11.start_next_cycle()
        writer.close()


async def read_body(asked: Asked) -> bytes:
    """Read the rest of a request."""
    while not isinstance(event := await asked.connection.event(), h11.EndOfMessage):
        if not isinstance(event, h11.Data):
            break
        asked.body += event.data
    return asked.body


async def echo(asked: Asked, _: App) -> None:
    """Answer with what was asked."""
    body = await read_body(asked)
    said = {"method": asked.method, "target": asked.target, "headers": asked.headers}
    told = json.dumps({**said, "body": body.decode("latin-1")}).encode()
    await answer(asked, told, ("content-type", "application/json"))


async def answer(asked: Asked, body: bytes, *headers: tuple[str, str], status: int = 200) -> None:
    """Answer with a body."""
    head = [*headers, ("content-length", str(len(body)))]
    events: list[Any] = [h11.Response(status_code=status, headers=head, reason=b"Fine")]
    if body and asked.method != "HEAD":
        events.append(h11.Data(data=body))
    await asked.connection.send(*events, h11.EndOfMessage())


@contextlib.asynccontextmanager
async def running(**answers: Answer) -> AsyncIterator[App]:
    """Run a program; ``answers`` are those of the paths of their names."""
    app = App(answers={f"/{name}": each for name, each in answers.items()})
    server = await asyncio.start_server(app.serve, "127.0.0.1", 0)
    app.port = server.sockets[0].getsockname()[1]
    try:
        yield app
    finally:
        server.close()
        for writer in app.writers:
            writer.close()
