"""The commands of ``torpor secret``: credentials that the wall uses, and that no machine has."""

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from torpor.cli.harmless import harmless
from torpor.cli.server import Form, Host, Output, Session, ask, print_plain

if TYPE_CHECKING:
    from torpor import client as api

app = typer.Typer(
    help="Secrets: credentials that are put into requests at the wall; no machine has them.",
    no_args_is_help=True,
)

Name = Annotated[str, typer.Argument(metavar="NAME", help="The secret's name.")]


@app.command("set")
def set_(
    name: Name,
    hosts: Annotated[
        list[str] | None,
        typer.Option(
            "--host", metavar="HOST", help="A host that it is for, or *.HOST. May be repeated."
        ),
    ] = None,
    port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="Its port; 443 if not said.")
    ] = None,
    path: Annotated[
        str | None,
        typer.Option(metavar="PATTERN", help="Only for these paths, as '/v1/*' or '/v1/**'."),
    ] = None,
    methods: Annotated[
        list[str] | None,
        typer.Option("--method", metavar="METHOD", help="Only for this method. May be repeated."),
    ] = None,
    header: Annotated[
        str | None,
        typer.Option(metavar="NAME[: TEMPLATE]", help="The header, as 'X-Key' or 'X-Key: a {}'."),
    ] = None,
    basic: Annotated[
        str | None, typer.Option(metavar="USER", help="Use it as the password of this user.")
    ] = None,
    query: Annotated[
        str | None, typer.Option(metavar="NAME", help="Use it as this parameter of the query.")
    ] = None,
    placeholder: Annotated[
        bool,
        typer.Option("--placeholder", help="Swap it for a text that the machine has in $NAME."),
    ] = False,
    variable: Annotated[
        str | None, typer.Option(metavar="NAME", help="The variable that has the placeholder.")
    ] = None,
    in_body: Annotated[
        bool, typer.Option("--in-body", help="Swap it in small bodies of JSON and forms too.")
    ] = False,
    server: Annotated[
        str | None,
        typer.Option(
            "--server",
            metavar="URL",
            envvar="TORPOR_URL",
            help="The server; by default the one on this computer.",
            show_default=False,
        ),
    ] = None,
    output: Output = Form.TABLE,
) -> None:
    """Set a secret, or set it anew. The value is asked for, or read from standard input.

    Without a host, one that is there stays as it is but for its value: every session that has it
    uses the new one from its next request on.
    """
    bindings = None
    if hosts:
        use = _use(header, basic, query, variable, placeholder=placeholder, in_body=in_body)
        said = {"port": port, "path": path, "methods": [each.upper() for each in methods or []]}
        common = {key: value for key, value in said.items() if value} | use
        bindings = [{"host": each, **common} for each in hosts]
    elif any((port, path, methods, header, basic, query, placeholder, variable, in_body)):
        raise typer.BadParameter("what it is used for is said together with --host")
    value = _value()
    found = ask(server, lambda client: client.set_secret(name, value, bindings=bindings))
    if output is Form.JSON:
        print_plain(found)
        return
    hosts_of = ", ".join(harmless(str(each.get("host"))) for each in found.bindings)
    typer.echo(f"{found.name} is set, for {hosts_of} (version {found.version}).")
    if not found.sessions:
        typer.echo(f"Give it to a session: torpor secret grant SESSION {found.name}")


@app.command("list")
def list_(
    session: Annotated[
        str | None,
        typer.Option("--session", metavar="SESSION", help="Only those that this session has."),
    ] = None,
    host: Host = None,
    output: Output = Form.TABLE,
) -> None:
    """List the secrets, without their values."""
    from torpor.cli.secret_tables import secrets_list

    def work(client: "api.Client") -> "list[api.Secret]":
        return client.list_secrets() if session is None else client.list_session_secrets(session)

    found = ask(host, work)
    print_plain(found) if output is Form.JSON else _print(secrets_list(found))


@app.command()
def show(name: Name, host: Host = None, output: Output = Form.TABLE) -> None:
    """Show what a secret is for, and which sessions have it; not its value."""
    from torpor.cli.secret_tables import secret_table

    found = ask(host, lambda client: client.get_secret(name))
    print_plain(found) if output is Form.JSON else _print(secret_table(found))


@app.command()
def grant(
    session: Session,
    name: Name,
    although_open: Annotated[
        bool,
        typer.Option("--although-open", help="Also if the session may talk to every public host."),
    ] = False,
    host: Host = None,
) -> None:
    """Have requests of a session get a secret, from the next one on. Its forks have it too."""
    granted = ask(
        host, lambda client: client.grant_secret(session, name, although_open=although_open)
    )
    typer.echo(f"Requests of {harmless(session)} get {granted.name} from now on.")


@app.command()
def revoke(session: Session, name: Name, host: Host = None) -> None:
    """Have requests of a session get a secret no more."""
    ask(host, lambda client: client.revoke_secret(session, name))
    typer.echo(f"Requests of {harmless(session)} get {harmless(name)} no more.")


@app.command()
def rm(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="The secrets' names.")],
    host: Host = None,
) -> None:
    """Remove secrets, from all sessions that have them too."""

    def work(client: "api.Client") -> None:
        for found in [client.get_secret(each) for each in names]:
            client.remove_secret(found.name)
            typer.echo(f"{found.name} is removed.")

    ask(host, work)


def _use(
    header: str | None,
    basic: str | None,
    query: str | None,
    variable: str | None,
    *,
    placeholder: bool,
    in_body: bool,
) -> dict[str, Any]:
    """Return how it is used, as bindings say it; what cannot be together the server refuses."""
    use: dict[str, Any] = {}
    if header is not None:
        named, colon, template = header.partition(":")
        use["header"] = named.strip()
        if colon:
            use["template"] = template.strip()
    said = {"basic": basic, "query": query, "variable": variable}
    use |= {key: value for key, value in said.items() if value is not None}
    if placeholder or variable is not None or in_body:
        use["placeholder"] = True
    if in_body:
        use["in_body"] = True
    return use


def _value() -> str:
    """Return the value, which is never an argument: those are seen by every user of a computer,
    and kept by shells."""
    if sys.stdin.isatty():
        return str(typer.prompt("Value", hide_input=True, confirmation_prompt=True))
    return sys.stdin.read().removesuffix("\n").removesuffix("\r")


def _print(what: Any) -> None:
    from torpor.cli.tables import console

    console().print(what)
