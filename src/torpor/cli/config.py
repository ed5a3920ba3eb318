"""The commands over configurations: kept manifests that sessions are made of."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from torpor.cli import watching
from torpor.cli.pages import first
from torpor.cli.server import Form, Host, Output, ask, print_plain
from torpor.cli.session import read_manifest
from torpor.cli.watching import Watch

if TYPE_CHECKING:
    from torpor import client as api

app = typer.Typer(
    help="Configurations: kept manifests that sessions are made of.", no_args_is_help=True
)

Config = Annotated[
    str,
    typer.Argument(
        metavar="CONFIG", help="The configuration: its name or its id.", show_default=False
    ),
]
Name = Annotated[str, typer.Argument(metavar="NAME", help="What to call it.", show_default=False)]


@app.command()
def create(
    file: Annotated[
        Path,
        typer.Argument(metavar="FILE", help="The manifest, in YAML; - is standard input."),
    ],
    name: Annotated[
        str | None,
        typer.Option("--name", "-n", help="What to call it; else as the file is, without ending."),
    ] = None,
    host: Host = None,
    output: Output = Form.TABLE,
) -> None:
    """Keep a manifest, so that sessions can be made of it. It never changes."""
    if name is None and str(file) == "-":
        raise typer.BadParameter("a name is needed for standard input", param_hint="--name")
    called = name or file.stem

    def work(client: "api.Client") -> "api.Config":
        try:
            return client.create_config(called, read_manifest(file))
        except UnicodeDecodeError:
            raise typer.BadParameter("it is not UTF-8", param_hint="FILE") from None

    made = ask(host, work)
    if output is Form.JSON:
        print_plain(made)
        return
    typer.echo(
        f"Configuration {made.name} is {made.id}.\n"
        f"A session of it: torpor create --config {made.name}"
    )


@app.command("list")
def list_(
    search: Annotated[str | None, typer.Option(help="Only those with this in their name.")] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="How many at most.")] = 100,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only the ids.")] = False,
    watch: Watch = False,
    host: Host = None,
    output: Output = Form.TABLE,
) -> None:
    """List the configurations, the newest first."""
    from torpor.cli.config_tables import configs_list

    if watch and quiet:
        raise typer.BadParameter("not with --quiet", param_hint="--watch")

    def work(client: "api.Client") -> tuple[list["api.Config"], bool]:
        return first(
            limit, lambda most, after: client.list_configs(search=search, limit=most, after=after)
        )

    if quiet and output is Form.TABLE:
        for each in ask(host, work)[0]:
            typer.echo(each.id)
    else:
        watched = watching.listing(
            work, configs_list, lambda event: event.type.startswith("config.")
        )
        watching.show(host, output, watched, watch=watch)


@app.command()
def show(config: Config, host: Host = None, output: Output = Form.TABLE) -> None:
    """Show a configuration, with its manifest."""
    from torpor.cli.config_tables import print_config

    found = ask(host, lambda client: client.get_config(config))
    if output is Form.JSON:
        print_plain(found)
    else:
        print_config(found)


@app.command()
def clone(config: Config, name: Name, host: Host = None, output: Output = Form.TABLE) -> None:
    """Keep the manifest of a configuration under another name too.

    That of a session that was made without one, as `torpor show` names it, gets a name this way.
    """
    made = ask(host, lambda client: client.clone_config(config, name))
    if output is Form.JSON:
        print_plain(made)
    else:
        typer.echo(f"Configuration {made.name} is {made.id}.")


@app.command()
def rm(
    configs: Annotated[
        list[str],
        typer.Argument(
            metavar="CONFIG...", help="The configurations: names or ids.", show_default=False
        ),
    ],
    host: Host = None,
) -> None:
    """Delete configurations.

    That cannot be while a session that was made of one is neither destroyed nor failed.
    """

    def work(client: "api.Client") -> None:
        for each in [client.get_config(config) for config in configs]:
            client.delete_config(each.id)
            typer.echo(f"{each.name} is deleted.")

    ask(host, work)


@app.command()
def sessions(
    config: Config,
    everything: Annotated[
        bool, typer.Option("--all", "-a", help="Also those that are destroyed or failed.")
    ] = False,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="How many at most.")] = 100,
    watch: Watch = False,
    host: Host = None,
    output: Output = Form.TABLE,
) -> None:
    """List the sessions that were made of a configuration, the newest first."""
    from torpor.cli.session_tables import sessions_list

    def work(client: "api.Client") -> tuple[list["api.Session"], bool]:
        status = "ALL" if everything else None
        return first(
            limit,
            lambda most, after: client.list_config_sessions(
                config, status=status, limit=most, after=after
            ),
        )

    watching.show(host, output, watching.listing(work, sessions_list), watch=watch)
