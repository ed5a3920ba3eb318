"""The commands over snapshots of sessions: checkpoint, checkpoints, fork, rollback, tree."""

import time
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from torpor.cli import watching
from torpor.cli.pages import first
from torpor.cli.server import Form, Host, Output, Session, ask, print_plain
from torpor.cli.watching import Watch

if TYPE_CHECKING:
    from torpor import client as api

app = typer.Typer()
PANEL = "Snapshots of a session"

Checkpoint = Annotated[
    str,
    typer.Argument(
        metavar="CHECKPOINT", help="The checkpoint: its id, the beginning of that, or its label."
    ),
]


@app.command(rich_help_panel=PANEL)
def checkpoint(
    session: Session,
    label: Annotated[str, typer.Option("--label", "-l", help="A few words on it.")] = "",
    durable: Annotated[
        bool, typer.Option("--durable", help="Return only when a power cut could not undo it.")
    ] = False,
    host: Host = None,
    output: Output = Form.TABLE,
) -> None:
    """Keep the state of a session, memory and all; it runs on."""
    from torpor.cli.session_tables import print_checkpoint

    made = ask(host, lambda client: client.create_checkpoint(session, label=label, durable=durable))
    if output is Form.JSON:
        print_plain(made)
    else:
        print_checkpoint(made, session)


@app.command(rich_help_panel=PANEL)
def checkpoints(
    session: Session, watch: Watch = False, host: Host = None, output: Output = Form.TABLE
) -> None:
    """List the checkpoints of a session, the newest first."""
    from torpor.cli.session_tables import checkpoints_list

    watched = watching.Watched(
        lambda client: _checkpoints(client, session), checkpoints_list, session=session
    )
    watching.show(host, output, watched, watch=watch)


@app.command(rich_help_panel=PANEL)
def fork(
    session: Session,
    count: Annotated[
        int, typer.Option("--count", "-n", min=1, max=64, help="How many children.")
    ] = 1,
    from_: Annotated[
        str | None,
        typer.Option(
            "--from", metavar="CHECKPOINT", help="Begin at this checkpoint, not where it stands."
        ),
    ] = None,
    wait: Annotated[bool, typer.Option(help="Wait until they are ready.")] = True,
    host: Host = None,
    output: Output = Form.TABLE,
) -> None:
    """Make sessions that go on from where this one stands, with everything in mind.

    It runs on itself. Exit status 1 if there are fewer children than asked for.
    """
    from torpor.cli.session_tables import print_forked
    from torpor.cli.waiting import until_ready

    def work(client: "api.Client") -> tuple["api.Forked", float, list["api.Event"]]:
        start = None if from_ is None else checkpoint_of(client, session, from_).id
        begun = time.monotonic()
        made = client.fork_session(session, count=count, checkpoint=start)
        if wait:
            ready = tuple(until_ready(client, child) for child in made.sessions)
            made = replace(made, sessions=ready)
        seconds = time.monotonic() - begun
        return made, seconds, events_of(client, session, made.not_undone)

    made, seconds, lasting = ask(host, work)
    if output is Form.JSON:
        print_plain(made)
    else:
        print_forked(made, session, seconds, lasting)
    failed = any(child.status == "FAILED" for child in made.sessions)
    raise typer.Exit(1 if made.failures or failed else 0)


@app.command(rich_help_panel=PANEL)
def rollback(
    session: Session,
    checkpoint: Checkpoint,
    host: Host = None,
    output: Output = Form.TABLE,
) -> None:
    """Put a session back to a checkpoint: its processes, memory and files.

    What it did outside of its machine since then is not undone, and is listed.
    """
    from torpor.cli.session_tables import print_rolled_back

    def work(client: "api.Client") -> tuple["api.RolledBack", str, float, list["api.Event"]]:
        which = checkpoint_of(client, session, checkpoint)
        begun = time.monotonic()
        done = client.roll_back(session, which.id)
        seconds = time.monotonic() - begun
        named = which.label or which.id
        return done, named, seconds, events_of(client, session, done.not_undone)

    done, named, seconds, lasting = ask(host, work)
    if output is Form.JSON:
        print_plain(done)
    else:
        print_rolled_back(done.session, named, seconds, lasting)


@app.command(rich_help_panel=PANEL)
def tree(
    session: Session, watch: Watch = False, host: Host = None, output: Output = Form.TABLE
) -> None:
    """Draw the snapshots of a session: which came from which, where it stands, its children.

    Each line is one: generation, kind, id, label, age and what is stored of it.
    """
    from torpor.cli.session_tables import snapshot_tree

    # What becomes of the children is drawn too, and told in their own events.
    watched = watching.Watched(lambda client: client.get_tree(session), snapshot_tree, wide=True)
    watching.show(host, output, watched, watch=watch)


def checkpoint_of(client: "api.Client", session: str, said: str) -> "api.Checkpoint":
    """Return the checkpoint that an id, the beginning of one, or a label names.

    Ends the program with 2 if it names none or several.
    """
    found = _checkpoints(client, session)
    exact = [each for each in found if each.id == said]
    named = exact or [each for each in found if each.label == said or each.id.startswith(said)]
    if len(named) == 1:
        return named[0]
    known = ", ".join(f"{each.id} ({each.label})" if each.label else each.id for each in found[:10])
    which = f"names {len(named)} checkpoints" if named else "names no checkpoint"
    there = f"There are: {known}." if known else f"{session} has none."
    raise typer.BadParameter(f"{said!r} {which} of {session}. {there}", param_hint="CHECKPOINT")


def _checkpoints(client: "api.Client", session: str) -> list["api.Checkpoint"]:
    return first(
        None,
        lambda most, after: client.list_checkpoints(session, limit=most, after=after),
    )[0]


def events_of(client: "api.Client", session: str, ids: Iterable[str]) -> list["api.Event"]:
    """Return the events with these ids, as far as they are still kept, the oldest first."""
    wanted = set(ids)
    if not wanted:
        return []
    # Ids sort as the events happened, so all of them are after the one before the first.
    found = client.events(session, after=_before(min(wanted)), follow=False)
    return [event for event in found if event.id in wanted]


def _before(event: str) -> str:
    """Return a ULID just below that of an event."""
    alphabet = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
    digits = list(event.upper())
    for place in reversed(range(len(digits))):
        value = alphabet.find(digits[place])
        if value > 0:
            digits[place] = alphabet[value - 1]
            break
        digits[place] = "Z"
    return "".join(digits)
