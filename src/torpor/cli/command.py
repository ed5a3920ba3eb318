"""The commands that run something in a session's machine: exec, shell."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Annotated, Any

import typer

from torpor.cli.server import Host, Session, connected_async, told, variables

if TYPE_CHECKING:
    from torpor.client import AsyncClient

    Work = Callable[[AsyncClient], Coroutine[Any, Any, int]]

app = typer.Typer()
PANEL = "Inside a session"

# What comes after the session is the command's, also if it looks like an option.
OWN_WORDS = {"allow_interspersed_args": False}

Env = Annotated[
    list[str] | None,
    typer.Option("--env", "-e", metavar="NAME[=VALUE]", help="A variable; say it again for more."),
]
Workdir = Annotated[
    str | None, typer.Option("--workdir", "-w", metavar="DIR", help="Where it starts.")
]
User = Annotated[str | None, typer.Option("--user", "-u", help="As whom: a name or a number.")]
Words = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="-- COMMAND...", help="The program and its arguments.", show_default=False
    ),
]


@app.command("exec", rich_help_panel=PANEL, context_settings=OWN_WORDS)
def exec_(
    session: Session,
    command: Words = None,
    terminal: Annotated[
        bool, typer.Option("--terminal", "-t", help="Run it on a terminal, as `shell` does.")
    ] = False,
    no_stdin: Annotated[
        bool, typer.Option("--no-stdin", "-n", help="Give it no input; read none here.")
    ] = False,
    detach: Annotated[
        bool, typer.Option("--detach", "-d", help="Start it, print its id, and go.")
    ] = False,
    attach: Annotated[
        str | None,
        typer.Option(
            metavar="EXEC_ID",
            help="Follow the output of a command that runs on, as far as it is kept.",
        ),
    ] = None,
    env: Env = None,
    workdir: Workdir = None,
    user: User = None,
    timeout: Annotated[
        float | None,
        typer.Option(min=0.001, metavar="SECONDS", help="End it after so long a run."),
    ] = None,
    host: Host = None,
) -> None:
    """Run a command in a session, with standard input, output and error kept apart.

    Exit status: the command's own; 128 and the signal's number if a signal ended it. Ctrl-C and
    other signals are passed on. The command belongs to the machine: it runs on over pauses, lost
    connections and restarts of the server, and its output is followed again.
    """
    from torpor.cli import remote, shell

    if attach is not None:
        if command or terminal or detach or env or workdir or user or timeout:
            raise typer.BadParameter(
                "what it runs, and how, has been said already; with a terminal: torpor shell",
                param_hint="--attach",
            )
        raise typer.Exit(_run(host, lambda client: remote.follow(client, session, attach)))
    if detach and terminal:
        raise typer.BadParameter("a terminal is to sit at: not with --detach", param_hint="-t")
    if terminal and no_stdin:
        raise typer.BadParameter("a terminal has input: not with --no-stdin", param_hint="-t")
    said = variables(env, "--env", environ=True)
    wanted = remote.Wanted(
        session,
        _words(command or []),
        shell.variables() | said if terminal else said,
        workdir,
        user,
        timeout,
        stdin=not (no_stdin or detach),
    )

    async def work(client: "AsyncClient") -> int:
        if terminal:
            return await shell.run(client, wanted, session)
        if detach:
            typer.echo((await remote.start(client, wanted)).id)
            return 0
        return await remote.run(client, wanted)

    raise typer.Exit(_run(host, work))


@app.command("shell", rich_help_panel=PANEL)
def shell_(
    session: Session,
    command: Annotated[
        list[str] | None,
        typer.Argument(metavar="[-- COMMAND...]", help="Not a shell, but this."),
    ] = None,
    attach: Annotated[
        str | None,
        typer.Option(metavar="EXEC_ID", help="Go back to a command that runs on."),
    ] = None,
    env: Env = None,
    workdir: Workdir = None,
    user: User = None,
    host: Host = None,
) -> None:
    """Open a terminal in a session.

    It survives pauses (any key wakes the session), lost connections and restarts of the server.
    `~.` after Enter leaves it running. Exit status: that of the shell, 0 if it was left.
    """
    from torpor.cli import remote, shell

    if attach is not None and (command or env or workdir or user):
        raise typer.BadParameter("what it runs has been said already", param_hint="--attach")
    words = _words(command) if command else list(shell.LOGIN)
    said = shell.variables() | variables(env, "--env", environ=True)
    wanted = remote.Wanted(session, words, said, workdir, user)

    async def work(client: "AsyncClient") -> int:
        if attach is not None:
            return await shell.sit(client, session, attach, session)
        return await shell.run(client, wanted, session)

    raise typer.Exit(_run(host, work))


def _words(command: list[str]) -> list[str]:
    # With options only before the session, `--` after it is one of the words.
    words = command[1:] if command[:1] == ["--"] else command
    if not words:
        raise typer.BadParameter("there must be a command", param_hint="COMMAND")
    return words


def _run(host: str | None, work: "Work") -> int:
    from torpor.cli.shell import NoTerminalError

    async def connected() -> int:
        async with connected_async(host) as client:
            return await work(client)

    with told():
        try:
            return asyncio.run(connected())
        except NoTerminalError:
            raise typer.BadParameter(
                "standard input and output must be a terminal. Without one: torpor exec"
            ) from None
