"""The commands of ``torpor workspace``: disks that outlive sessions."""

from typing import TYPE_CHECKING, Annotated

import typer

from torpor.cli import watching
from torpor.cli.harmless import harmless
from torpor.cli.pages import first
from torpor.cli.server import Form, Host, Output, ask, print_plain
from torpor.cli.watching import Watch, Watched

if TYPE_CHECKING:
    from torpor import client as api

app = typer.Typer(
    help="Workspaces: disks that outlive sessions, /workspace in one of them at a time.",
    no_args_is_help=True,
)

Name = Annotated[
    str, typer.Argument(metavar="WORKSPACE", help="The workspace: its id, or its name.")
]


@app.command()
def create(
    size: Annotated[
        int, typer.Option("--size", min=1, metavar="GIB", help="How much it can hold, in GiB.")
    ],
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="What to call it, if anything.")
    ] = None,
    key: Annotated[
        str | None,
        typer.Option(
            "--idempotency-key", metavar="KEY", help="Make no second one when this is run again."
        ),
    ] = None,
    host: Host = None,
    output: Output = Form.TABLE,
) -> None:
    """Make a workspace, which is empty. It takes the room of what is stored in it.

    Its size cannot be changed later.
    """
    made = ask(host, lambda client: client.create_workspace(size, name=name, key=key))
    if output is Form.JSON:
        print_plain(made)
        return
    called = _called(made)
    typer.echo(f"{called} is made: {made.size_gib} GiB, {made.state.lower()}.")
    typer.echo(f"Use it: torpor create --workspace {called}")


@app.command("list")
def list_(
    state: Annotated[
        str | None,
        typer.Option(metavar="STATE", help="Only those in this state, as available or attached."),
    ] = None,
    watch: Watch = False,
    host: Host = None,
    output: Output = Form.TABLE,
) -> None:
    """List the workspaces, the newest first."""
    from torpor.cli.workspace_tables import workspaces_list

    def look(client: "api.Client") -> "list[api.Workspace]":
        def page(most: int, after: str | None) -> "api.Page[api.Workspace]":
            return client.list_workspaces(state=state, limit=most, after=after)

        return first(None, page)[0]

    watching.show(host, output, Watched(look, workspaces_list, _concerns), watch=watch)


@app.command()
def show(
    workspace: Name, watch: Watch = False, host: Host = None, output: Output = Form.TABLE
) -> None:
    """Show one workspace: which session has it, and how much is stored in it."""
    from torpor.cli.workspace_tables import workspace_table

    seen: list[str] = []

    def look(client: "api.Client") -> "api.Workspace":
        found = client.get_workspace(seen[0] if seen else workspace)
        seen[:] = [found.id]  # from now on that one, whatever else comes to have its name
        return found

    def ends(event: "api.Event") -> bool:
        return event.type == "workspace.deleted" and event.data.get("workspace_id") in seen

    watched = Watched(look, workspace_table, _concerns, ends)
    watching.show(host, output, watched, watch=watch)


@app.command()
def rm(
    workspaces: Annotated[
        list[str], typer.Argument(metavar="WORKSPACE...", help="Workspaces: ids or names.")
    ],
    host: Host = None,
) -> None:
    """Delete workspaces, with all that they hold. None may be a session's."""

    def work(client: "api.Client") -> None:
        for found in [client.get_workspace(each) for each in workspaces]:
            client.delete_workspace(found.id)
            typer.echo(f"{_called(found)} is deleted.")

    ask(host, work)


def _concerns(event: "api.Event") -> bool:
    # At each of these what a workspace holds is saved, or who has it is another.
    return event.type.startswith("workspace.") or event.type in _SAVES


_SAVES = ("session.paused", "session.rolled_back", "checkpoint.created")


def _called(found: "api.Workspace") -> str:
    return harmless(found.name or found.id)
