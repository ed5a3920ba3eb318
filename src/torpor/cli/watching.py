"""``--watch``: what a command shows, again and again, until Ctrl-C.

The server tells in events what happens, so nobody polls where there are events. On a terminal what
is shown is drawn anew in its place; elsewhere each event is a line, and with -o json each change is
a JSON value on a line: all that the command prints without --watch. A server that is away is waited
for, and that is said.
"""

import json
import sys
import time
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Generic, TypeVar

import typer

from torpor.cli.harmless import complain
from torpor.cli.server import Form, ask, print_plain

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live

    from torpor.client import Client, ClientError, Event

T = TypeVar("T")

Watch = Annotated[
    bool,
    typer.Option("--watch", "-w", help="Go on with what changes, until Ctrl-C."),
]
AWAY = "Not as it is now"
BACK = "The server is there again."
POLL_SECONDS = 2.0


@dataclass(frozen=True)
class Watched(Generic[T]):
    """Something to watch: ``look`` asks for it, ``draw`` is how people read it.

    ``concerns`` picks the events after which it may be another, of ``session`` or, if that is None,
    of all; ``ends`` those after which there is nothing more to see. ``line`` says in a line how it
    is, of what changes without events and is looked at each 2 s.
    """

    look: "Callable[[Client], T]"
    draw: "Callable[[T], RenderableType]"
    concerns: "Callable[[Event], bool]" = lambda event: event.session is not None
    ends: "Callable[[Event], bool]" = lambda event: False
    session: str | None = None
    wide: bool = False
    """Lines of it are not folded where nothing folds them by itself."""
    line: Callable[[T], str] | None = None
    value: Callable[[T], Any] = lambda found: found
    """What of it is printed as JSON."""


def listing(
    look: "Callable[[Client], tuple[list[T], bool]]",
    draw: "Callable[..., RenderableType]",
    concerns: "Callable[[Event], bool]" = lambda event: event.session is not None,
) -> Watched[tuple[list[T], bool]]:
    """Return a list as something to watch: ``look`` returns it and whether it was cut, ``draw``
    takes that as ``more``."""
    return Watched(
        look,
        lambda found: draw(found[0], more=found[1]),
        concerns,
        value=lambda found: found[0],
    )


def show(host: str | None, form: Form, watched: Watched[T], *, watch: bool) -> None:
    """Show something once; with ``watch`` until Ctrl-C, or until there is nothing more to see."""

    def work(client: "Client") -> None:
        shown = _Shown(watched, form, named=watched.session is None, client=client)
        with shown.drawing():
            if watched.line is None:
                _by_events(client, watched, shown)
            else:
                _by_looking(client, watched, shown)
        shown.leave()

    if watch:
        ask(host, work)
        return
    found = ask(host, watched.look)
    if form is Form.JSON:
        print_plain(watched.value(found))
    else:
        from torpor.cli.tables import console

        console().print(watched.draw(found), soft_wrap=watched.wide)


def last_event(client: "Client", session: str | None = None) -> str | None:
    """Return the id of the newest event: after that follows what is not yet to be seen."""
    events = client.get_history(session, limit=1).events
    return events[-1].id if events else None


def followed(
    client: "Client", session: str | None, after: str | None
) -> "Generator[Event, None, None]":
    """Yield the events of a session, or of all, after one, up to the end, for what is printed line
    by line. A server that is away is waited for, and that is said on standard error."""
    from torpor.client import ClientError
    from torpor.client.tries import passes

    while True:
        try:
            with closing(client.events(session, after=after, patience=0)) as events:
                for event in events:
                    after = event.id
                    yield event
            return
        except ClientError as error:
            if not passes(error):
                raise
            complain(f"The server is away, and waited for: {error}")
        _wait_for(client)
        complain(BACK)


def _wait_for(client: "Client") -> None:
    """Wait until the server answers."""
    from torpor.client import ClientError
    from torpor.client.tries import passes, pause_before

    attempts = 0
    while True:
        attempts += 1
        time.sleep(pause_before(attempts))
        try:
            client.health()
            return
        except ClientError as error:
            if not passes(error):
                raise


def _by_events(client: "Client", watched: Watched[T], shown: "_Shown[T]") -> None:
    from torpor.client import ClientError
    from torpor.client.tries import pause_before

    following = _Following(client, watched, shown)
    following.look()
    attempts = 0
    while True:
        try:
            if attempts:
                following.look()
            following.follow()
            return
        except ClientError as error:
            shown.away(error)
        attempts += 1
        time.sleep(pause_before(attempts))


class _Following(Generic[T]):
    """Follows the events, and looks after those that concern what is watched."""

    def __init__(self, client: "Client", watched: Watched[T], shown: "_Shown[T]") -> None:
        self._client, self._watched, self._shown = client, watched, shown
        self._looked_after: str | None = None
        """The newest event that there was before the last look."""
        self._told: str | None = None
        """The newest event that has been told of, or that there was before all of this."""

    def look(self) -> None:
        """Look, and show what is seen."""
        self._looked_after = last_event(self._client, self._watched.session)
        self._told = self._told or self._looked_after
        self._shown.show(self._watched.look(self._client))

    def follow(self) -> None:
        """Follow to the end. Raises ClientError when the connection is lost."""
        watched = self._watched
        with closing(self._client.events(watched.session, after=self._told, patience=0)) as events:
            for event in events:
                self._told = event.id
                if not watched.concerns(event):
                    continue
                self._shown.tell(event)
                if watched.ends(event):
                    return
                # What was looked at has all that came until then: many events, one look.
                if self._looked_after is None or event.id > self._looked_after:
                    self.look()


def _by_looking(client: "Client", watched: Watched[T], shown: "_Shown[T]") -> None:
    from torpor.client import ClientError

    shown.show(watched.look(client))
    while True:
        time.sleep(POLL_SECONDS)
        try:
            shown.show(watched.look(client))
        except ClientError as error:
            shown.away(error)


class _Shown(Generic[T]):
    """What has been shown so far, and how."""

    def __init__(self, watched: Watched[T], form: Form, *, named: bool, client: "Client") -> None:
        from torpor.cli.log import Printer
        from torpor.cli.tables import console

        self._watched, self._form = watched, form
        self._out = console()
        self._printer = Printer(client, form, named=named)
        self._found: T | None = None
        self._before: Any = None
        self._away: ClientError | None = None
        self._live: Live | None = None

    def drawing(self) -> AbstractContextManager[Any]:
        """Return a context in which the terminal, if it is one, is drawn on."""
        if self._form is Form.JSON or not self._out.is_terminal:
            return nullcontext()
        from rich.live import Live

        # Anew each second without a question to anybody: what is so many seconds old gets older.
        self._live = Live(
            get_renderable=self._drawn, console=self._out, screen=True, refresh_per_second=1
        )
        return self._live

    def leave(self) -> None:
        """Leave on the terminal what was drawn last."""
        if self._live is not None:
            self._out.print(self._drawn(), soft_wrap=self._watched.wide)

    def show(self, found: T) -> None:
        """Show what was found."""
        first = self._found is None
        self._found = found
        self._back()
        if self._live is not None:
            self._live.refresh()
            return
        from torpor.cli.session_tables import plain

        json_wanted = self._form is Form.JSON
        now = plain(self._watched.value(found)) if json_wanted else self._words(found)
        if not first and now == self._before:
            return
        self._before = now
        if json_wanted:
            typer.echo(json.dumps(now))
        elif first:
            self._out.print(self._watched.draw(found), soft_wrap=self._watched.wide)
        elif now is not None:
            typer.echo(now)
        sys.stdout.flush()

    def _words(self, found: T) -> str | None:
        return None if self._watched.line is None else self._watched.line(found)

    def tell(self, event: "Event") -> None:
        """Say what has happened, where nothing is drawn anew."""
        if self._live is None and self._form is Form.TABLE:
            self._printer.print(event)
            sys.stdout.flush()

    def away(self, error: "ClientError") -> None:
        """Say that the server is away. Raises the error if it will not pass by itself."""
        from torpor.client.tries import passes

        if not passes(error):
            raise error
        if self._live is None and self._away is None:
            complain(f"{AWAY}: {error}")
        self._away = error
        if self._live is not None:
            self._live.refresh()

    def _back(self) -> None:
        if self._away is not None and self._live is None:
            complain(BACK)
        self._away = None

    def _drawn(self) -> "RenderableType":
        from rich.console import Group
        from rich.text import Text

        drawn = "" if self._found is None else self._watched.draw(self._found)
        if self._away is None:
            return drawn
        return Group(drawn, Text(f"{AWAY}: {self._away}", "italic"))
