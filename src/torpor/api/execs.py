"""Commands in sessions: run to their end, or started, listed, written to and signalled. How one is
followed is in :mod:`torpor.api.following`."""

import asyncio
import codecs
import contextlib
from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import Path, Query, Response
from starlette.requests import ClientDisconnect, Request

from torpor.api.permissions import Permission, needs
from torpor.api.routes import SESSION, errors, router
from torpor.api.schemas.execs import (
    ExecBody,
    ExecList,
    OneExec,
    RanBody,
    RunBody,
    SignalBody,
    StartBody,
    TerminalBody,
    encoded,
)
from torpor.api.streaming import unless_gone
from torpor.api.uploads import body_pieces
from torpor.api.wiring import By, Idempotency, Server, Service, SessionId
from torpor.images.workspace import WORKSPACE
from torpor.sessions import Following, Sessions
from torpor.sessions.following import Item, no_command
from torpor.sessions.model import Actor
from torpor.vm import Exit, KnownCommand, Terminal

routes = router("execs")

EXEC = SESSION + "/execs/{exec_id}"
USUAL_SECONDS, LONGEST_SECONDS = 60, 240
PREFERRED = WORKSPACE.decode()
"""Where a command starts that is waited for, if nobody has removed it."""
STDIN_LIMIT = 8 << 20

ExecId = Annotated[str, Path(description="The command's id.", pattern=r"^[0-9a-zA-Z_-]{1,64}$")]


@routes.post(
    SESSION + "/sandbox/exec",
    responses={
        200: {
            "headers": {
                "X-Exec-Stdout-Truncated": {
                    "description": "`true` if there was more standard output.",
                    "schema": {"type": "string"},
                },
                "X-Exec-Stderr-Truncated": {
                    "description": "`true` if there was more standard error.",
                    "schema": {"type": "string"},
                },
            }
        },
        **errors(400, 404, 409, 413, 415, 502, 503, 507),
    },
    summary="Run a command to its end",
)
@needs(Permission.USE, body_limit=STDIN_LIMIT * 4 // 3 + (1 << 20))
async def exec_in_sandbox(
    request: Request,
    response: Response,
    server: Server,
    session_id: SessionId,
    by: By,
    body: RunBody,
) -> RanBody:
    """Run a command in a session and wait for its end. A paused session is woken for it.

    Another status than 0 is no error of the request. If whoever asked goes away, the command runs
    on until its time limit.
    """
    ran = await unless_gone(
        request,
        server.sessions.execs.run(
            session_id,
            by,
            body.words,
            stdin=body.stdin or b"",
            most=server.settings.exec_output_limit_mib << 20,
            env=body.env,
            workdir=body.workdir or None,
            prefer=PREFERRED,
            user=body.user,
            limit=float(_seconds(body.timeout_seconds)),
        ),
    )
    if ran is None:
        raise ClientDisconnect
    if ran.stdout_cut:
        response.headers["X-Exec-Stdout-Truncated"] = "true"
    if ran.stderr_cut:
        response.headers["X-Exec-Stderr-Truncated"] = "true"
    stdout, stdout_whole = _text(ran.stdout, ran.stdout_cut)
    stderr, stderr_whole = _text(ran.stderr, ran.stderr_cut)
    return RanBody(
        exit_code=_exit_code(ran.exit),
        stdout=stdout,
        stderr=stderr,
        duration_ms=round(ran.seconds * 1000),
        exec_id=ran.id,
        signal=ran.exit.signal,
        timed_out=ran.exit.timed_out,
        stdout_base64=None if stdout_whole else encoded(ran.stdout),
        stderr_base64=None if stderr_whole else encoded(ran.stderr),
    )


def _seconds(said: int) -> int:
    return USUAL_SECONDS if said < 1 else min(said, LONGEST_SECONDS)


def _exit_code(ended: Exit) -> int:
    if ended.code is not None:
        return ended.code
    return 128 + (ended.signal or 0)


def _text(data: bytes, cut: bool) -> tuple[str, bool]:
    """Return bytes as text, and whether the text says all of them. What was cut may end in the
    middle of a character."""
    try:
        return codecs.getincrementaldecoder("utf-8")().decode(data, final=not cut), True
    except UnicodeDecodeError:
        return data.decode("utf-8", "replace"), False


@routes.post(
    SESSION + "/execs",
    responses=errors(400, 404, 409, 415, 502, 503, 507),
    summary="Start a command",
)
@needs(Permission.USE)
async def start_exec(
    service: Service, session_id: SessionId, by: By, key: Idempotency, body: StartBody
) -> OneExec:
    """Torpor: start a command in a session. A paused session is woken for it.

    The command belongs to the machine: it runs on when nobody follows it, stands still while the
    session is paused, and goes on after that.
    """
    size = body.terminal
    started = await service.execs.start(
        session_id,
        by,
        body.words,
        key=key,
        env=body.env,
        workdir=body.workdir,
        user=body.user,
        stdin=body.stdin,
        terminal=size and Terminal(size.rows, size.columns),
        limit=body.limit_seconds,
        keep=body.keep_bytes,
    )
    return OneExec(
        exec=ExecBody(
            exec_id=started.id,
            argv=list(body.words),
            pid=started.pid,
            running=True,
            output_start=0,
            output_end=0,
        )
    )


def _exec_body(said: KnownCommand) -> ExecBody:
    return ExecBody(
        exec_id=said.id,
        argv=list(said.argv),
        pid=said.pid,
        running=said.running,
        output_start=said.start,
        output_end=said.end,
    )


async def find_exec(service: Sessions, session_id: str, by: Actor, exec_id: str) -> ExecBody:
    """Return a command that a session knows; a paused session is woken. Raises NotFoundError."""
    for said in await service.execs.list(session_id, by):
        if said.id == exec_id:
            return _exec_body(said)
    raise no_command(exec_id)


@routes.get(
    SESSION + "/execs",
    responses=errors(404, 409, 502, 503, 507),
    summary="List commands",
)
@needs(Permission.USE)
async def list_execs(service: Service, session_id: SessionId, by: By) -> ExecList:
    """Torpor: list the commands that a session knows, ended ones too. Wakes a paused session: its
    memory is where they are known."""
    return ExecList(execs=[_exec_body(said) for said in await service.execs.list(session_id, by)])


@routes.get(
    EXEC,
    responses=errors(404, 409, 502, 503, 507),
    summary="Show a command",
)
@needs(Permission.USE)
async def get_exec(service: Service, session_id: SessionId, exec_id: ExecId, by: By) -> OneExec:
    """Torpor: show a command, and how it ended. Wakes a paused session."""
    found = await find_exec(service, session_id, by, exec_id)
    if found.running:
        return OneExec(exec=found)
    following = service.execs.follow(
        session_id, by, exec_id, seq=found.output_end, hold=False, patient=False
    )
    async with followed(following) as items:
        async for item in items:
            if isinstance(item, Exit):
                ended = {
                    "exit_code": _exit_code(item),
                    "signal": item.signal,
                    "timed_out": item.timed_out,
                }
                found = found.model_copy(update=ended)
    return OneExec(exec=found)


@contextlib.asynccontextmanager
async def followed(following: Following) -> AsyncIterator[AsyncIterator[Item]]:
    """Follow a command until the block ends; it runs on."""
    items = following.items()
    try:
        async with contextlib.aclosing(items):  # type: ignore[type-var]
            yield items
    finally:
        following.leave()


@routes.post(
    EXEC + "/signal",
    status_code=204,
    responses=errors(400, 404, 409, 415, 502, 503, 507),
    summary="Signal a command",
)
@needs(Permission.USE, audit="exec.signalled")
async def signal_exec(
    service: Service,
    session_id: SessionId,
    exec_id: ExecId,
    by: By,
    body: SignalBody | None = None,
) -> Response:
    """Torpor: send a signal to a command and all that is in its process group; SIGTERM if none is
    named."""
    await service.execs.signal(session_id, by, exec_id, body.signal if body else 15)
    return Response(status_code=204)


@routes.post(
    EXEC + "/resize",
    status_code=204,
    responses=errors(400, 404, 409, 415, 502, 503, 507),
    summary="Resize a command's terminal",
)
@needs(Permission.USE)
async def resize_exec(
    service: Service, session_id: SessionId, exec_id: ExecId, by: By, body: TerminalBody
) -> Response:
    """Torpor: give the terminal of a command another size; the command gets SIGWINCH."""
    await service.execs.resize(session_id, by, exec_id, Terminal(body.rows, body.columns))
    return Response(status_code=204)


@routes.post(
    EXEC + "/input",
    status_code=204,
    responses=errors(400, 404, 409, 502, 503, 507),
    openapi_extra={
        "requestBody": {
            "content": {
                "application/octet-stream": {"schema": {"type": "string", "format": "binary"}}
            }
        }
    },
    summary="Write to a command",
)
@needs(Permission.USE, audit="exec.written", body_limit=None)
async def write_exec(
    request: Request,
    service: Service,
    session_id: SessionId,
    exec_id: ExecId,
    by: By,
    eof: Annotated[bool, Query(description="Then its input ends.")] = False,
) -> Response:
    """Torpor: write the body to a command's input, as it comes. Wakes a paused session. It answers
    when the command has been given all of it; one that does not read holds it up."""
    found = await find_exec(service, session_id, by, exec_id)
    following = service.execs.follow(session_id, by, exec_id, seq=found.output_end, hold=False)

    async def feed() -> None:
        async for piece in body_pieces(request):
            await following.write(piece)
        await following.all_taken()
        if eof:
            await following.close_input()

    try:
        async with service.use(session_id, by), asyncio.TaskGroup() as group:
            # Who writes is attached, and has to take what comes.
            draining = group.create_task(_drop(following))
            await feed()
            draining.cancel()
    finally:
        following.leave()
    return Response(status_code=204)


async def _drop(following: Following) -> None:
    async for _ in following.items():
        pass
