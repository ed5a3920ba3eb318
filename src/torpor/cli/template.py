"""The commands of ``torpor template``: images of registries, for sessions to start from."""

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from torpor.cli import watching
from torpor.cli.pages import first
from torpor.cli.server import Form, Host, Output, ask, print_plain
from torpor.cli.watching import Watch, Watched

if TYPE_CHECKING:
    from torpor import client as api

app = typer.Typer(
    help="Templates: images of a registry, for sessions to start from.", no_args_is_help=True
)

Name = Annotated[str, typer.Argument(metavar="TEMPLATE", help="The template: its name or its id.")]
Wait = Annotated[bool, typer.Option(help="Wait until it is built.")]
BASES = "What the image is put on: sandbox or coding-base."


@app.command()
def create(
    name: Annotated[str, typer.Argument(metavar="NAME", help="What to call it.")],
    source: Annotated[
        str,
        typer.Option(
            "--from", metavar="REFERENCE", help="The image: registry/repository:tag or @sha256:..."
        ),
    ],
    base: Annotated[str, typer.Option(help=BASES)] = "sandbox",
    wait: Wait = True,
    host: Host = None,
    output: Output = Form.TABLE,
) -> None:
    """Make a template of an image in a registry, and wait until it is built.

    The server fetches it, with its own log-ins. Exit status 1 if it fails.
    """
    _built(host, output, wait, lambda client: client.create_template(name, source, base=base))


@app.command()
def update(
    template: Name,
    source: Annotated[
        str | None,
        typer.Option("--from", metavar="REFERENCE", help="Another image; else the same again."),
    ] = None,
    base: Annotated[str | None, typer.Option(help=BASES)] = None,
    wait: Wait = True,
    host: Host = None,
    output: Output = Form.TABLE,
) -> None:
    """Build a template anew: of another image, or of what the tag of the same one names by now.

    Sessions start from what was built last until it has succeeded.
    """

    def work(client: "api.Client") -> "api.Template":
        said = source
        if source is None and base is None:
            said = str(client.get_template(template).source)
        return client.update_template(template, source=said, base=base)

    _built(host, output, wait, work)


def _built(
    host: str | None,
    output: Form,
    wait: bool,
    work: "Callable[[api.Client], api.Template]",
) -> None:
    """Begin a build, wait for it if that is wanted, and say what came of it."""
    from torpor.cli.harmless import harmless
    from torpor.cli.template_watch import until_built

    def both(client: "api.Client") -> "tuple[api.Template, api.Build | None]":
        made = work(client)
        return made, until_built(client, made) if wait else None

    made, build = ask(host, both)
    failed = build is not None and build.status != "SUCCEEDED"
    if output is Form.JSON:
        print_plain({"template": made, "build": build})
    elif build is None:
        typer.echo(f"{made.name} is to be built; `torpor template logs {made.name}` tells of it.")
    elif failed:
        typer.echo(harmless(f"{made.name} was not built. {build.error or ''}".rstrip()))
    else:
        typer.echo(f"{made.name} is built of {build.source}.")
        typer.echo(f"Use it: torpor create --template {made.name}")
    raise typer.Exit(1 if failed else 0)


@app.command("list")
def list_(watch: Watch = False, host: Host = None, output: Output = Form.TABLE) -> None:
    """List the templates, the newest first."""
    from torpor.cli.template_tables import templates_list

    def look(client: "api.Client") -> "list[api.Template]":
        return first(None, lambda most, after: client.list_templates(limit=most, after=after))[0]

    watched = Watched(look, templates_list, lambda event: event.type.startswith("template."))
    watching.show(host, output, watched, watch=watch)


@app.command()
def show(
    template: Name, watch: Watch = False, host: Host = None, output: Output = Form.TABLE
) -> None:
    """Show one template, and how its newest build stands."""
    from torpor.cli.template_tables import template_table
    from torpor.cli.template_watch import newest_build, of_template

    def look(client: "api.Client") -> "tuple[api.Template, api.Build | None]":
        return client.get_template(template), newest_build(client, template)

    watched = of_template(look, lambda found: template_table(*found), lambda found: found[0].id)
    watching.show(host, output, replace(watched, value=lambda found: found[0]), watch=watch)


@app.command()
def rm(
    templates: Annotated[
        list[str], typer.Argument(metavar="TEMPLATE...", help="Templates: names or ids.")
    ],
    host: Host = None,
) -> None:
    """Delete templates and their images. Sessions that were started from them live on."""

    def work(client: "api.Client") -> None:
        for found in [client.get_template(each) for each in templates]:
            client.delete_template(found.id)
            typer.echo(f"{found.name} is deleted.")

    ask(host, work)


@app.command()
def builds(
    template: Name,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=200, help="How many.")] = 20,
    watch: Watch = False,
    host: Host = None,
    output: Output = Form.TABLE,
) -> None:
    """List the builds of a template, the newest first."""
    from torpor.cli.template_tables import builds_table
    from torpor.cli.template_watch import of_template

    watched = of_template(
        lambda client: client.list_template_builds(template, limit=limit).items,
        builds_table,
        lambda found: found[0].template,  # to make a template is to begin a build
    )
    watching.show(host, output, watched, watch=watch)


@app.command()
def logs(
    template: Name,
    build: Annotated[
        str | None, typer.Argument(metavar="[BUILD]", help="The build; else the newest.")
    ] = None,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Go on until the build has ended.")
    ] = False,
    host: Host = None,
) -> None:
    """Print what was told of a build of a template, line by line."""
    from torpor.cli.harmless import harmless
    from torpor.cli.template_watch import Log, newest_build

    def write(line: str) -> None:
        typer.echo(harmless(line))

    def work(client: "api.Client") -> None:
        which = build
        if which is None:
            newest = newest_build(client, template)
            assert newest is not None  # to make a template is to begin one
            which = newest.id
        log = Log(client, template, which)
        if watch:
            log.follow(write)
        else:
            log.print_new(write)

    ask(host, work)
