"""The commands over sessions: create, list, show, pause, resume, rm."""

import secrets
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from torpor.cli import watching
from torpor.cli.egress import policy_of
from torpor.cli.harmless import complain
from torpor.cli.pages import first
from torpor.cli.server import (
    Form,
    Host,
    Output,
    Session,
    Sessions,
    ask,
    print_plain,
    variables,
)
from torpor.cli.watching import Watch

if TYPE_CHECKING:
    from torpor import client as api

app = typer.Typer()
PANEL = "Sessions"

Labels = Annotated[
    list[str] | None,
    typer.Option("--label", "-l", metavar="NAME=VALUE", help="A label; say it again for more."),
]


@app.command(rich_help_panel=PANEL)
def create(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="What to call it; else it gets a name.")
    ] = None,
    image: Annotated[
        str | None, typer.Option(help="The image; `torpor image list` shows them.")
    ] = None,
    template: Annotated[
        str | None,
        typer.Option(
            "--template", "-t", help="A template, in place of an image: its name or its id."
        ),
    ] = None,
    size: Annotated[
        str | None, typer.Option(help="The size of its machine, as mars-2vcpu-1gb.")
    ] = None,
    env: Annotated[
        list[str] | None,
        typer.Option("--env", "-e", metavar="NAME[=VALUE]", help="A variable of its commands."),
    ] = None,
    label: Labels = None,
    idle_timeout: Annotated[
        int | None,
        typer.Option(min=0, metavar="SECONDS", help="Pause it after so long without use; 0 never."),
    ] = None,
    keep_warm: Annotated[bool, typer.Option(help="Never pause it by itself.")] = False,
    workspace: Annotated[
        str | None,
        typer.Option(
            "--workspace",
            "-w",
            metavar="WORKSPACE",
            help="The workspace that it has as /workspace: its id, or its name.",
        ),
    ] = None,
    persistent_workspace: Annotated[
        bool, typer.Option("--persistent-workspace", help="Make a workspace for it.")
    ] = False,
    allow: Annotated[
        list[str] | None,
        typer.Option(
            "--allow",
            metavar="HOST",
            help="It may reach this host, and nothing that is not said so; say it again for more.",
        ),
    ] = None,
    preset: Annotated[
        list[str] | None,
        typer.Option("--preset", metavar="NAME", help="The same for a preset, as packages."),
    ] = None,
    no_network: Annotated[bool, typer.Option("--no-network", help="It may reach nothing.")] = False,
    config: Annotated[
        str | None,
        typer.Option(metavar="CONFIG", help="Make it as this configuration says."),
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option(
            "--file",
            "-f",
            metavar="FILE",
            help="Make it as the manifest in this file says, in YAML; - is standard input.",
        ),
    ] = None,
    wait: Annotated[bool, typer.Option(help="Wait until it is ready.")] = True,
    host: Host = None,
    output: Output = Form.TABLE,
) -> None:
    """Create a session, and wait until it is ready.

    Exit status 1 if it fails; `torpor logs` says then how.
    """
    from torpor.cli.waiting import until_ready

    if image is not None and template is not None:
        raise typer.BadParameter("say --image, or --template", param_hint="--template")
    begun = time.monotonic()
    rest = image or size or env or label or keep_warm or idle_timeout is not None
    egress = "none" if no_network else policy_of(allow, preset, None)
    rest = rest or persistent_workspace or egress is not None
    if no_network and (allow or preset):
        raise typer.BadParameter("say what it may reach, or nothing", param_hint="--no-network")
    if config is not None and (rest or file):
        raise typer.BadParameter(
            "the configuration says all but the name and the workspace", param_hint="--config"
        )
    if file is not None and (rest or name or workspace):
        raise typer.BadParameter("the manifest says all, the name too", param_hint="--file")

    def make(client: "api.Client") -> "api.Session":
        if file is not None:
            return client.create_session_from_manifest(read_manifest(file))
        if config is not None:
            called = name or _name_after(config)
            return client.create_session_from_config(called, config, workspace=workspace)
        return client.create_session(
            name,
            image=image,
            template=template,
            size=size,
            env=variables(env, "--env", environ=True) or None,
            labels=variables(label, "--label") or None,
            idle_timeout=idle_timeout,
            keep_warm=keep_warm or None,
            workspace=workspace,
            persistent_workspace=persistent_workspace or None,
            egress=egress,
        )

    def work(client: "api.Client") -> tuple["api.Session", float]:
        made = make(client)
        created = time.monotonic() - begun
        return (until_ready(client, made) if wait else made), created

    made, created = ask(host, work)
    if output is Form.JSON:
        print_plain(made)
    else:
        _print_created(made, created, time.monotonic() - begun)
    raise typer.Exit(1 if made.status == "FAILED" else 0)


def read_manifest(file: Path) -> bytes:
    """Return what is in a file, or comes through standard input if it is ``-``."""
    return sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()


def _name_after(config: str) -> str:
    """Return a new name for a session of a configuration, which has to bring one."""
    return f"{config[:40]}-{secrets.token_hex(3)}"


def _print_created(made: "api.Session", created: float, all_of_it: float) -> None:
    from torpor.cli.tables import console

    out = console()
    for warning in made.warnings:
        out.print(warning, style="yellow", markup=False)
    if made.status == "FAILED":
        out.print(f"{made.name} failed: {made.failure}", style="red", markup=False)
    elif made.status == "READY":
        out.print(
            f"{made.name} is ready: {all_of_it:.2f} s, of which {created:.2f} s to create it."
            f"\nUse it: torpor shell {made.name}",
            markup=False,
            soft_wrap=True,
        )
    else:
        out.print(f"{made.name} is {made.status.lower()}.", markup=False)


@app.command("list", rich_help_panel=PANEL)
def list_(
    everything: Annotated[
        bool, typer.Option("--all", "-a", help="Also those that are destroyed or failed.")
    ] = False,
    status: Annotated[
        str | None, typer.Option(help="Only those in this state: ready, paused, failed...")
    ] = None,
    label: Labels = None,
    search: Annotated[str | None, typer.Option(help="Only those with this in their name.")] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="How many at most.")] = 100,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only the ids.")] = False,
    watch: Watch = False,
    host: Host = None,
    output: Output = Form.TABLE,
) -> None:
    """List the sessions, the newest first."""
    from torpor.cli.session_tables import sessions_list

    if watch and quiet:
        raise typer.BadParameter("not with --quiet", param_hint="--watch")
    labels = variables(label, "--label")
    wanted = "ALL" if everything and status is None else status

    def found(client: "api.Client") -> tuple[list["api.Session"], bool]:
        return first(
            limit,
            lambda most, after: client.list_sessions(
                status=wanted, labels=labels, search=search, limit=most, after=after
            ),
        )

    if quiet and output is Form.TABLE:
        for each in ask(host, found)[0]:
            typer.echo(each.id)
    else:
        watching.show(host, output, watching.listing(found, sessions_list), watch=watch)


def _each(
    host: str | None,
    output: Form,
    sessions: Sequence[str],
    work: "Callable[[api.Client, str], None]",
    done: str,
) -> None:
    """Do something with each session; those after one that fails are done all the same.

    Exit status 1 if one has failed.
    """
    from torpor.cli.server import explained
    from torpor.client import ApiError

    def all_of_them(client: "api.Client") -> tuple[list["api.Session"], bool]:
        found, ok = [], True
        for session in sessions:
            begun = time.monotonic()
            try:
                work(client, session)
                seconds = time.monotonic() - begun
                found.append(client.get_session(session))
            except ApiError as error:
                complain(explained(error))
                ok = False
                continue
            if output is Form.TABLE:
                typer.echo(f"{found[-1].name} {done} ({seconds:.2f} s).")
        return found, ok

    found, ok = ask(host, all_of_them)
    if output is Form.JSON:
        print_plain(found)
    raise typer.Exit(0 if ok else 1)


@app.command(rich_help_panel=PANEL)
def show(
    session: Session, watch: Watch = False, host: Host = None, output: Output = Form.TABLE
) -> None:
    """Show one session: its state, what it is made of, what it can go on from."""
    from torpor.cli.session_tables import session_table

    watched = watching.Watched(
        lambda client: client.get_session(session), session_table, session=session
    )
    watching.show(host, output, watched, watch=watch)


@app.command(rich_help_panel=PANEL)
def pause(
    sessions: Sessions,
    durable: Annotated[
        bool, typer.Option("--durable", help="Return only when a power cut could not undo it.")
    ] = False,
    host: Host = None,
    output: Output = Form.TABLE,
) -> None:
    """Freeze sessions, and stop their machines: they cost only storage then.

    One that is paused already stays so.
    """

    def work(client: "api.Client", session: str) -> None:
        client.pause_session(session, durable=durable)

    _each(host, output, sessions, work, "is paused")


@app.command(rich_help_panel=PANEL)
def resume(
    sessions: Sessions,
    snapshot: Annotated[
        str | None,
        typer.Option(metavar="ID", help="Not the newest snapshot, but this one. (One session.)"),
    ] = None,
    host: Host = None,
    output: Output = Form.TABLE,
) -> None:
    """Thaw sessions where they stood. One that runs runs on.

    Any use of a paused session wakes it, too.
    """
    if snapshot is not None and len(sessions) > 1:
        raise typer.BadParameter("a snapshot is one session's", param_hint="--snapshot")

    def work(client: "api.Client", session: str) -> None:
        client.resume_session(session, snapshot=snapshot)

    _each(host, output, sessions, work, "runs")


@app.command(rich_help_panel=PANEL)
def rm(
    sessions: Sessions,
    checkpoint: Annotated[
        str | None,
        typer.Option(metavar="ID", help="Remove only this checkpoint of it. (One session.)"),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    host: Host = None,
) -> None:
    """Destroy sessions, with their machines and snapshots, for good.

    On a terminal it asks first. It needs no living machine.
    """
    if checkpoint is not None and len(sessions) > 1:
        raise typer.BadParameter("a checkpoint is one session's", param_hint="--checkpoint")

    def work(client: "api.Client") -> None:
        found = [client.get_session(session) for session in sessions]
        if checkpoint is not None:
            from torpor.cli.checkpoints import checkpoint_of

            which = checkpoint_of(client, found[0].id, checkpoint)
            client.delete_checkpoint(found[0].id, which.id)
            typer.echo(f"Checkpoint {which.id} of {found[0].name} is removed.")
            return
        if not yes and sys.stdin.isatty():
            names = ", ".join(each.name for each in found)
            whose = "its" if len(found) == 1 else "their"
            typer.confirm(f"Destroy {names}, with all of {whose} snapshots?", abort=True, err=True)
        for each in found:
            client.destroy_session(each.id)
            typer.echo(f"{each.name} is destroyed.")

    ask(host, work)
