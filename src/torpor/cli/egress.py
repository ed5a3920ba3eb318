"""The commands over egress: ``torpor egress``, what sessions may reach, and ``torpor flows``, where
their data went."""

import csv
import json
import sys
from contextlib import closing
from datetime import UTC
from typing import TYPE_CHECKING, Annotated, Any

import typer

from torpor.cli.server import Form, Host, Output, Session, ask, print_plain

if TYPE_CHECKING:
    from torpor import client as api

app = typer.Typer(
    help="What sessions may reach of the network, and what was decided about it.",
    no_args_is_help=True,
)
flows_app = typer.Typer()
PANEL = "Sessions"

Rules = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[HOST...]",
        help="All that it may reach: hosts, *.hosts, host:port, tls://, tcp:// or udp://host:port,"
        " network:port.",
        show_default=False,
    ),
]
_OPEN = typer.Option("--open/", "--unrestricted/", help="It may reach all that is public.")


@app.command()
def show(session: Session, host: Host = None, output: Output = Form.TABLE) -> None:
    """Show what a session may reach."""
    found = ask(host, lambda client: client.get_egress(session))
    if output is Form.JSON:
        print_plain(found)
    else:
        _print_policy(found)


@app.command("set")
def set_(
    session: Session,
    rules: Rules = None,
    add: Annotated[
        list[str] | None,
        typer.Option("--add", "-a", metavar="RULE", help="Let it reach this too."),
    ] = None,
    remove: Annotated[
        list[str] | None,
        typer.Option(
            "--remove", "-r", metavar="RULE", help="Take a rule, or a preset, from its list."
        ),
    ] = None,
    preset: Annotated[
        list[str] | None,
        typer.Option("--preset", "-p", metavar="NAME", help="A preset for its list, as packages."),
    ] = None,
    deny: Annotated[
        list[str] | None,
        typer.Option(
            "--deny", metavar="RULE", help="What it may not reach, whatever else is said."
        ),
    ] = None,
    unrestricted: Annotated[bool, _OPEN] = False,
    none: Annotated[bool, typer.Option("--none", help="It may reach nothing.")] = False,
    host: Host = None,
    output: Output = Form.TABLE,
) -> None:
    """Change what a session may reach, from now on: what is no longer allowed is cut.

    With hosts, or presets, it reaches these and nothing else; what was said of it before is
    replaced. With --add and --remove its list is changed. It is kept over pauses, restarts and
    rollbacks; forks have it too.
    """
    listed = bool(rules or preset or deny)
    ways = [bool(add or remove), none, listed or unrestricted]
    if sum(ways) != 1:
        raise typer.BadParameter(
            "say hosts; or --add and --remove; or --open; or --none", param_hint="HOST"
        )

    def work(client: "api.Client") -> "api.Egress":
        if add or remove:
            return client.change_egress(session, add=add or (), remove=remove or ())
        said = policy_of(rules, preset, deny)
        if unrestricted and said is not None:  # what is not public may be opened, too
            said = {"unrestricted": True, **said}
        return client.set_egress(session, "none" if none else said or "unrestricted")

    changed = ask(host, work)
    if output is Form.JSON:
        print_plain(changed)
        return
    _print_policy(changed)
    if changed.cut:
        cut = "1 connection was" if changed.cut == 1 else f"{changed.cut} connections were"
        typer.echo(f"{cut} cut.")


def policy_of(
    rules: list[str] | None, preset: list[str] | None, deny: list[str] | None
) -> dict[str, Any] | None:
    """Return the policy that options say, None if they say nothing."""
    said = {"allow": rules, "presets": preset, "deny": deny}
    return {name: each for name, each in said.items() if each} or None


def _print_policy(found: "api.Egress") -> None:
    from torpor.cli.egress_tables import policy_table
    from torpor.cli.tables import console

    console().print(policy_table(found))


@app.command()
def log(
    session: Session,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on with what is decided from now on.")
    ] = False,
    denied: Annotated[bool, typer.Option("--denied", "-d", help="Only what was denied.")] = False,
    name: Annotated[
        str | None, typer.Option("--name", metavar="HOST", help="Only what is about this host.")
    ] = None,
    tail: Annotated[
        int, typer.Option("--tail", "-n", min=0, max=10_000, help="How many of the past.")
    ] = 100,
    host: Host = None,
    output: Output = Form.TABLE,
) -> None:
    """Print what was decided about connections of a session: which host, by which rule, and with
    what is denied the command that would allow it.

    With -o json each is an object on a line of its own. Following goes on over restarts of the
    server, up to the end of the session.
    """
    from torpor.cli.egress_tables import decision_line
    from torpor.cli.pages import first
    from torpor.cli.session_tables import plain
    from torpor.cli.tables import console

    out = console()
    allowed = False if denied else None

    def print_one(each: "api.Decision") -> None:
        if output is Form.JSON:
            typer.echo(json.dumps(plain(each)))
        else:
            out.print(decision_line(each, session), soft_wrap=True)
        sys.stdout.flush()

    def work(client: "api.Client") -> None:
        def page(most: int, after: str | None) -> "api.Page[api.Decision]":
            return client.list_decisions(
                session, allowed=allowed, host=name, limit=most, after=after
            )

        past = first(max(tail, 1), page)[0][::-1]
        for each in past[len(past) - tail :] if tail else ():
            print_one(each)
        if follow:
            newest = past[-1].id if past else _FIRST
            following = client.decisions(
                session, after=newest, allowed=allowed, host=name, patience=None
            )
            with closing(following) as decisions:
                for each in decisions:
                    print_one(each)

    ask(host, work)


_FIRST = "0" * 26
"""The id before all others."""


@flows_app.command(rich_help_panel=PANEL)
def flows(
    session: Session,
    everything: Annotated[
        bool, typer.Option("--all", "-a", help="Also hosts that were only denied.")
    ] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print it as CSV.")] = False,
    host: Host = None,
    output: Output = Form.TABLE,
) -> None:
    """Show every host that has received data of a session: since when, how often, how many bytes,
    whether TLS to it was ended at the wall, and which secrets were put in.

    A session that is destroyed has it too: say its id.
    """
    if as_csv and output is Form.JSON:
        raise typer.BadParameter("it is CSV, or JSON", param_hint="--csv")
    found = ask(host, lambda client: client.list_flows(session, everything=everything))
    if output is Form.JSON:
        print_plain(found)
    elif as_csv:
        _print_csv(found)
    else:
        from torpor.cli.egress_tables import flows_table
        from torpor.cli.tables import console

        console().print(flows_table(found))


COLUMNS = (
    "kind", "name", "first_at", "last_at", "connections", "denied", "sent_bytes", "received_bytes",
    "inspected", "secrets",
)  # fmt: skip


def _print_csv(found: "tuple[api.Flow, ...]") -> None:
    writer = csv.writer(sys.stdout)
    writer.writerow(COLUMNS)
    for each in found:
        row: dict[str, Any] = {name: getattr(each, name) for name in COLUMNS}
        for name in ("first_at", "last_at"):
            row[name] = row[name].astimezone(UTC).isoformat().replace("+00:00", "Z")
        row["secrets"] = " ".join(each.secrets)
        row["inspected"] = "yes" if each.inspected else "no"
        writer.writerow(_harmless(value) for value in row.values())


def _harmless(value: Any) -> Any:
    # A spreadsheet takes a text that begins so for a formula; no name of a host does, and a
    # machine can ask for anything.
    return f"'{value}" if isinstance(value, str) and value[:1] in "=+-@\t\r" and value else value
