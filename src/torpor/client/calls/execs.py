"""Commands in a session's machine. A paused session is woken by what needs it."""

import base64
from collections.abc import Mapping, Sequence
from typing import Any

from torpor.client import fields
from torpor.client.call import JSON, LONG, Answer, Call, document, keyed, nothing, path, query
from torpor.client.fields import Said
from torpor.client.machine_records import Exec, Process, Ran, Terminal, exec_, output, process

RUN_SECONDS = 60
RUN_AT_MOST = 240


def run(
    session: str,
    argv: Sequence[str] | str,
    *,
    stdin: bytes | None = None,
    env: Mapping[str, str] | None = None,
    workdir: str | None = None,
    user: str | None = None,
    timeout: int = RUN_SECONDS,
) -> Call[Ran]:
    """Run a command to its end and return what it wrote, up to a MiB of each stream.

    ``argv`` is words, or one line for the machine's shell. ``timeout`` is in seconds, at most 240;
    what may take longer, or writes more, is for :func:`start_exec`.
    """
    return Call(
        "POST",
        path("sessions", session, "sandbox", "exec"),
        _ran,
        headers=JSON,
        content=document(
            **_command(argv),
            stdin=None if stdin is None else base64.b64encode(stdin).decode(),
            env=None if env is None else dict(env),
            workdir=workdir,
            user=user,
            timeout_seconds=timeout,
        ),
        seconds=timeout + LONG,
        repeat="unsent",
    )


def _command(argv: Sequence[str] | str) -> dict[str, Any]:
    return {"shell": argv} if isinstance(argv, str) else {"argv": list(argv)}


def _ran(answer: Answer) -> Ran:
    said = answer.json()
    cut = ("x-exec-stdout-truncated", "x-exec-stderr-truncated")
    return Ran(
        status=fields.number(said, "exit_code"),
        signal=fields.perhaps_number(said, "signal"),
        stdout=output(said, "stdout"),
        stderr=output(said, "stderr"),
        seconds=fields.real(said, "duration_ms", 0) / 1000,
        timed_out=fields.flag(said, "timed_out", False),
        cut=any(answer.headers.get(name) == "true" for name in cut),
        exec_id=fields.perhaps_text(said, "exec_id"),
    )


def start_exec(
    session: str,
    argv: Sequence[str] | str,
    *,
    env: Mapping[str, str] | None = None,
    workdir: str | None = None,
    user: str | None = None,
    stdin: bool = False,
    terminal: Terminal | None = None,
    timeout: float | None = None,
    keep_bytes: int | None = None,
    key: str | None = None,
) -> Call[Exec]:
    """Start a command, which belongs to the machine and not to this client: it runs on when the
    client goes, and through pauses. Asked for again with its ``key``, it is not started again.

    ``attach`` reads what it writes, from any point that is kept (``keep_bytes``). ``timeout``
    counts the seconds that the machine runs.
    """
    return Call(
        "POST",
        path("sessions", session, "execs"),
        _one,
        headers=keyed(key),
        content=document(
            **_command(argv),
            env=None if env is None else dict(env),
            workdir=workdir,
            user=user,
            stdin=stdin or None,
            terminal=terminal and {"rows": terminal.rows, "columns": terminal.columns},
            limit_seconds=timeout,
            keep_bytes=keep_bytes,
        ),
        seconds=LONG,
    )


def list_execs(session: str) -> Call[tuple[Exec, ...]]:
    """Return the commands of a session: those that run, and those whose output is still kept."""
    return Call(
        "GET",
        path("sessions", session, "execs"),
        lambda answer: fields.parts(answer.json(), "execs", exec_),
        seconds=LONG,
    )


def get_exec(session: str, exec_id: str) -> Call[Exec]:
    """Return one command."""
    return Call("GET", path("sessions", session, "execs", exec_id), _one, seconds=LONG)


def signal_exec(session: str, exec_id: str, signal: int) -> Call[None]:
    """Send a signal to a command and all that it started."""
    return Call(
        "POST",
        path("sessions", session, "execs", exec_id, "signal"),
        nothing,
        headers=JSON,
        content=document(signal=signal),
        seconds=LONG,
        repeat="unsent",
    )


def resize_exec(session: str, exec_id: str, terminal: Terminal) -> Call[None]:
    """Tell a command that its terminal has another size."""
    return Call(
        "POST",
        path("sessions", session, "execs", exec_id, "resize"),
        nothing,
        headers=JSON,
        content=document(rows=terminal.rows, columns=terminal.columns),
        seconds=LONG,
    )


def write_exec(session: str, exec_id: str, data: bytes, *, eof: bool = False) -> Call[None]:
    """Give a command input; ``eof`` says that it is the last."""
    return Call(
        "POST",
        path("sessions", session, "execs", exec_id, "input"),
        nothing,
        query=query(eof=eof),
        headers={"content-type": "application/octet-stream"},
        content=data,
        seconds=LONG,
        repeat="unsent",
    )


def list_processes(session: str) -> Call[tuple[Process, ...]]:
    """Return the processes of a session's machine."""
    return Call(
        "GET",
        path("sessions", session, "processes"),
        lambda answer: fields.parts(answer.json(), "processes", process),
        seconds=LONG,
    )


def signal_process(session: str, pid: int, signal: int) -> Call[None]:
    """Send a signal to a process of the user's in a session's machine."""
    return Call(
        "POST",
        path("sessions", session, "processes", str(pid), "signal"),
        nothing,
        headers=JSON,
        content=document(signal=signal),
        seconds=LONG,
        repeat="unsent",
    )


def get_statistics(session: str) -> Call[dict[str, Any]]:
    """Return what a session's machine says that it uses, in the server's words."""
    return Call(
        "GET", path("sessions", session, "statistics"), lambda answer: answer.json(), seconds=LONG
    )


def _one(answer: Answer) -> Exec:
    said: Said = answer.json()
    return exec_(fields.part(said, "exec"))
