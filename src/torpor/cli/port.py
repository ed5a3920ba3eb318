"""The commands over ports inside sessions: port-forward, preview."""

import asyncio
import re
from typing import TYPE_CHECKING, Annotated

import typer

from torpor.cli.server import Form, Host, Output, Session, ask, connected_async, told

if TYPE_CHECKING:
    from torpor import client as api

app = typer.Typer()
PANEL = "Inside a session"
SECONDS = {"m": 60, "h": 3600, "d": 86400}


@app.command("port-forward", rich_help_panel=PANEL)
def port_forward(
    session: Session,
    ports: Annotated[
        list[str],
        typer.Argument(
            metavar="[LOCAL:]REMOTE...",
            help="A port inside, and perhaps another one here; 0 here: any that is free.",
            show_default=False,
        ),
    ],
    address: Annotated[
        str, typer.Option(metavar="ADDRESS", help="Where it listens here.")
    ] = "127.0.0.1",
    host: Host = None,
) -> None:
    """Connect ports of this computer to ports inside a session, until Ctrl-C.

    A connection wakes the session, and lives over its pauses; while nothing goes through, the
    session may pause. Exit status 1 if a port cannot be listened on.
    """
    from torpor.cli.forwarding import Forwarded, forward

    wanted = [Forwarded.of(each) for each in ports]

    async def connected() -> None:
        async with connected_async(host) as client:
            await forward(client, session, wanted, address)

    with told():
        asyncio.run(connected())


@app.command(rich_help_panel=PANEL)
def preview(
    session: Session,
    port: Annotated[
        int | None,
        typer.Argument(
            metavar="[PORT]", min=1, max=65535, help="A port inside.", show_default=False
        ),
    ] = None,
    share: Annotated[
        str | None,
        typer.Option(metavar="AGE", help="Make a link that is good for so long: 30m, 1h, 7d."),
    ] = None,
    label: Annotated[
        str | None, typer.Option(metavar="TEXT", help="What the link is for; with --share.")
    ] = None,
    revoke: Annotated[
        str | None, typer.Option(metavar="ID", help="Make a link worthless from now on.")
    ] = None,
    host: Host = None,
    output: Output = Form.TABLE,
) -> None:
    """Say where a port inside a session is reached in a browser, share it, or list its links.

    What listens there is reached as long as the session is, and woken by that. Without a PORT the
    links of the session are listed. Whoever has a link may use the port until the link ends or is
    revoked, or the token that made it is; it is printed this once.
    """
    if revoke is not None:
        if port is not None or share is not None:
            raise typer.BadParameter("it is for a link that there is", param_hint="--revoke")
        ask(host, lambda client: client.revoke_preview(session, revoke))
        typer.echo(f"Link {revoke} is revoked.")
    elif port is None:
        if share is not None:
            raise typer.BadParameter("which PORT is to be shared?", param_hint="--share")
        _list_links(host, session, output)
    elif share is None:
        if label is not None:
            raise typer.BadParameter("it is that of a link", param_hint="--label")
        _show_address(host, session, port, output)
    else:
        _share(host, session, port, _seconds(share), label, output)


def _seconds(text: str) -> int:
    found = re.fullmatch(r"([1-9][0-9]{0,4})([mhd])", text, re.ASCII)
    if found is None:
        raise typer.BadParameter(f"{text!r} is no age; say 30m, 1h or 7d", param_hint="--share")
    return int(found[1]) * SECONDS[found[2]]


def _show_address(host: str | None, session: str, port: int, output: Form) -> None:
    from torpor.cli.session_tables import plain
    from torpor.cli.tables import print_json

    found = ask(host, lambda client: client.get_ingress(session, port))
    if output is Form.JSON:
        print_json(plain(found))
        return
    typer.echo(found.url)
    typer.echo(
        f"For programs: {found.path_url}\nBoth ask for a token, in the header"
        " `Torpor-Authorization: Bearer ...`. For a browser: --share.",
        err=True,
    )


def _share(
    host: str | None, session: str, port: int, seconds: int, label: str | None, output: Form
) -> None:
    from torpor.cli.session_tables import plain
    from torpor.cli.tables import print_json

    def work(client: "api.Client") -> "api.Preview":
        return client.create_preview(session, port, lifetime_seconds=seconds, label=label)

    made = ask(host, work)
    if output is Form.JSON:
        print_json(plain(made))
        return
    # The link alone on standard output, so that it can be put where it belongs.
    until = f"{made.expires_at.astimezone():%Y-%m-%d %H:%M}"
    typer.echo(f"Link {made.id}, for whoever has it, until {until}:", err=True)
    typer.echo(made.link_url or made.url)


def _list_links(host: str | None, session: str, output: Form) -> None:
    from torpor.cli.service_tables import print_links
    from torpor.cli.session_tables import plain
    from torpor.cli.tables import print_json

    found = ask(host, lambda client: client.list_previews(session))
    if output is Form.JSON:
        print_json(plain(found))
    else:
        print_links(found)
