"""The command over events: logs."""

import json
from contextlib import closing
from typing import TYPE_CHECKING, Annotated

import typer

from torpor.cli.server import Form, Host, Output, ask, complete_session
from torpor.cli.watching import followed

if TYPE_CHECKING:
    from torpor import client as api

app = typer.Typer()
PANEL = "The server"


@app.command(rich_help_panel=PANEL)
def logs(
    session: Annotated[
        str | None,
        typer.Argument(
            metavar="[SESSION]",
            help="The session; else all of them, and the server itself.",
            autocompletion=complete_session,
        ),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on with what happens from now on.")
    ] = False,
    tail: Annotated[
        int, typer.Option("--tail", "-n", min=0, max=1000, help="How many of the past.")
    ] = 100,
    host: Host = None,
    output: Output = Form.TABLE,
) -> None:
    """Print the events of a session, or of all: what happened, when, who did it.

    With -o json each is an object on a line of its own. Following goes on over restarts of the
    server, with none left out and none twice.
    """

    def work(client: "api.Client") -> None:
        past = client.get_history(session, limit=max(tail, 1)).events
        printer = Printer(client, output, named=session is None)
        for event in past[len(past) - tail :] if tail else ():
            printer.print(event)
        if not follow:
            return
        newest = past[-1].id if past else None
        with closing(followed(client, session, newest)) as events:
            for event in events:
                printer.print(event)

    ask(host, work)


class Printer:
    """Prints events as they come, those of several sessions with the names of these."""

    def __init__(self, client: "api.Client", form: Form, *, named: bool) -> None:
        from torpor.cli.tables import console

        self._client, self._form, self._named = client, form, named
        self._names: dict[str, str] = {}
        self._out = console()

    def print(self, event: "api.Event") -> None:
        from torpor.cli.session_tables import event_line, plain

        if self._form is Form.JSON:
            typer.echo(json.dumps(plain(event)))
            return
        named = self._name(event.session) if self._named else ""
        self._out.print(event_line(event, named=named), soft_wrap=True)

    def _name(self, session: str | None) -> str:
        from torpor.client import NotFoundError

        if session is None:
            return "server"
        if session not in self._names:
            try:
                self._names[session] = self._client.get_session(session).name
            except NotFoundError:
                self._names[session] = session[:8]
        return self._names[session]
