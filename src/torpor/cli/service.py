"""The commands over the server itself: serve, status, token."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from torpor.cli import watching
from torpor.cli.server import Form, Host, Output, ask
from torpor.cli.watching import Watch

if TYPE_CHECKING:
    from torpor import client as api

app = typer.Typer()
PANEL = "The server"
token = typer.Typer(help="Tokens that the server takes.", no_args_is_help=True)
app.add_typer(token, name="token", rich_help_panel=PANEL)


@app.command(rich_help_panel=PANEL)
def status(watch: Watch = False, host: Host = None, output: Output = Form.TABLE) -> None:
    """Say which server this is, whom it takes us for, and what its host has.

    Exit status 1 if there is none, or it does not take us.
    """
    from torpor.cli.service_tables import Status, status_line, status_table

    def look(client: "api.Client") -> Status:
        return Status(client.target.url, client.who_am_i(), client.get_host())

    watched = watching.Watched(look, status_table, line=status_line)
    watching.show(host, output, watched, watch=watch)


@token.command("create")
def create_token(
    name: Annotated[str, typer.Argument(metavar="NAME", help="What it is for, in a word.")],
    role: Annotated[
        str, typer.Option("--role", "-r", help="viewer, approver, operator or admin.")
    ] = "operator",
    expires: Annotated[
        str | None, typer.Option(metavar="AGE", help="When it ends: 12h, 30d, 8w; else never.")
    ] = None,
    host: Host = None,
    output: Output = Form.TABLE,
) -> None:
    """Make a token. Its secret is printed this once, and kept nowhere."""
    from torpor.cli.session_tables import plain
    from torpor.cli.snapshot import age_of
    from torpor.cli.tables import print_json

    lifetime = None if expires is None else int(age_of(expires, "--expires").total_seconds())
    made = ask(host, lambda client: client.create_token(name, role, lifetime_seconds=lifetime))
    if output is Form.JSON:
        print_json(plain(made))
        return
    # The secret alone on standard output, so that it can be put where it belongs.
    typer.echo(f"Token {made.token.id} ({name}, {made.token.role}):", err=True)
    typer.echo(made.bearer)


@token.command("list")
def list_tokens(host: Host = None, output: Output = Form.TABLE) -> None:
    """List the tokens, without their secrets."""
    from torpor.cli.service_tables import print_tokens
    from torpor.cli.session_tables import plain
    from torpor.cli.tables import print_json

    found = ask(host, lambda client: client.list_tokens())
    if output is Form.JSON:
        print_json(plain(found))
    else:
        print_tokens(found)


@token.command("revoke")
def revoke_token(
    token_id: Annotated[str, typer.Argument(metavar="ID", help="The token's id.")],
    host: Host = None,
) -> None:
    """End a token; who uses it is refused from now on, in the middle of a stream too."""
    ask(host, lambda client: client.revoke_token(token_id))
    typer.echo(f"Token {token_id} is revoked.")


@app.command(rich_help_panel=PANEL)
def serve(
    config: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The file of settings; else the usual one."),
    ] = None,
    listen: Annotated[
        str | None, typer.Option(metavar="ADDRESS:PORT", help="Where it is reached.")
    ] = None,
    preview_listen: Annotated[
        str | None, typer.Option(metavar="ADDRESS:PORT", help="Where previews are reached, or off.")
    ] = None,
    preview_url: Annotated[
        str | None, typer.Option(metavar="URL", help="What previews are called from outside.")
    ] = None,
    tls_certificate: Annotated[
        str | None, typer.Option(metavar="FILE", help="The certificate that it shows.")
    ] = None,
    tls_key: Annotated[
        str | None, typer.Option(metavar="FILE", help="The key of that certificate.")
    ] = None,
    database: Annotated[
        str | None, typer.Option(metavar="URL", help="Where its database is.")
    ] = None,
    authentication: Annotated[
        str | None, typer.Option(help="tokens, or none (for this computer alone).")
    ] = None,
    memory_reserve_mib: Annotated[
        int | None, typer.Option(help="Memory that is left free when a machine is started.")
    ] = None,
    memory_limit_mib: Annotated[
        int | None, typer.Option(help="The most memory that machines are promised in all.")
    ] = None,
    idle_timeout_seconds: Annotated[
        int | None, typer.Option(help="Pause sessions after so long without use; 0 never.")
    ] = None,
    default_image: Annotated[
        str | None, typer.Option(help="The image of a session that asks for none.")
    ] = None,
    default_size: Annotated[
        str | None, typer.Option(help="The size of a session that asks for none.")
    ] = None,
    sample_seconds: Annotated[
        int | None, typer.Option(help="How often it is noted what sessions use.")
    ] = None,
    samples_keep_days: Annotated[int | None, typer.Option(help="How long that is kept.")] = None,
    events_keep_days: Annotated[int | None, typer.Option(help="How long events are kept.")] = None,
    egress_log_keep_days: Annotated[
        int | None, typer.Option(help="How long decisions about connections are kept.")
    ] = None,
    flows_keep_days: Annotated[
        int | None, typer.Option(help="How long it is kept where data of sessions went.")
    ] = None,
    rate_limit_per_second: Annotated[
        int | None, typer.Option(help="Requests a second that a token may make in the long run.")
    ] = None,
    rate_limit_burst: Annotated[
        int | None, typer.Option(help="Requests that a token may make at once.")
    ] = None,
    on_stop: Annotated[
        str | None, typer.Option(help="leave: machines run on when it stops; freeze: they pause.")
    ] = None,
    max_sessions: Annotated[
        int | None, typer.Option(help="How many sessions there may be.")
    ] = None,
    exec_output_limit_mib: Annotated[
        int | None, typer.Option(help="How much output an exec returns that is waited for.")
    ] = None,
    template_insecure_registries: Annotated[
        str | None,
        typer.Option(
            metavar="HOST,...", help="Registries of templates that need not prove who they are."
        ),
    ] = None,
    public_url: Annotated[
        str | None, typer.Option(help="What the URLs begin with that the server gives out.")
    ] = None,
    transfer_limit_gib: Annotated[
        int | None, typer.Option(help="How large one transfer may be, in GiB.")
    ] = None,
    transfer_keep_hours: Annotated[
        int | None, typer.Option(help="How long transfers that stand still are kept, in hours.")
    ] = None,
    workspace_limit_gib: Annotated[
        int | None, typer.Option(help="How large one workspace may be, in GiB.")
    ] = None,
    workspace_default_gib: Annotated[
        int | None, typer.Option(help="How large one is that is made for a session, in GiB.")
    ] = None,
    max_workspaces: Annotated[
        int | None, typer.Option(help="How many workspaces there may be.")
    ] = None,
    lease_seconds: Annotated[
        int | None, typer.Option(help="For how long at a time it holds its host.")
    ] = None,
    standby: Annotated[
        bool,
        typer.Option(
            "--standby",
            help="Wait, if another server has this home, until that one has ended; then serve.",
        ),
    ] = False,
    print_unit: Annotated[
        bool,
        typer.Option("--print-unit", help="Only print the unit with which systemd runs it here."),
    ] = False,
) -> None:
    """Run the server, until Ctrl-C or SIGTERM. Machines run on, and the next server finds them.

    Each option is a setting: the same name in the file, or as TORPOR_<NAME> in the environment; an
    option is stronger than both. The first start makes what machines start from, which takes
    minutes, and leaves a token for this user's commands in Torpor's home.
    """
    flags = {
        name: value
        for name, value in locals().items()
        if name not in ("config", "print_unit", "standby")
    }
    if print_unit:
        from torpor.cli.unit import own_program, unit

        given = [name for name, value in flags.items() if value is not None]
        given += ["standby"] if standby else []
        if given:
            raise typer.BadParameter(
                "a unit takes settings from their file alone", param_hint=f"--{given[0]}"
            )
        typer.echo(unit(root=os.geteuid() == 0, program=own_program(), config=config), nl=False)
        return
    from torpor.cli import serving

    serving.serve(flags, config, standby=standby)
