"""The program ``torpor``: its commands and global options."""

from typing import Annotated

import typer

from torpor.cli import backup, checkpoints, command, file, log, port, service, session
from torpor.cli.config import app as config
from torpor.cli.database import app as database
from torpor.cli.egress import app as egress
from torpor.cli.egress import flows_app as flows
from torpor.cli.image import app as image
from torpor.cli.lab import app as lab
from torpor.cli.running import run, working_places
from torpor.cli.secret import app as secret
from torpor.cli.snapshot import app as snapshot
from torpor.cli.template import app as template
from torpor.cli.workspace import app as workspace

app = typer.Typer(
    name="torpor",
    help="Runs agents in microVMs that can be frozen, thawed and forked.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
HOST = "This host"
SESSIONS = "Sessions"
for part in (session, command, file, port, checkpoints, service, backup, log):
    app.add_typer(part.app)
app.add_typer(config, name="config", rich_help_panel=SESSIONS)
app.add_typer(template, name="template", rich_help_panel=SESSIONS)
app.add_typer(workspace, name="workspace", rich_help_panel=SESSIONS)
app.add_typer(secret, name="secret", rich_help_panel=SESSIONS)
app.add_typer(egress, name="egress", rich_help_panel=SESSIONS)
app.add_typer(flows)
app.add_typer(database, name="database", rich_help_panel=HOST)
app.add_typer(image, name="image", rich_help_panel=HOST)
app.add_typer(lab, name="lab", rich_help_panel=HOST)
app.add_typer(snapshot, name="snapshot", rich_help_panel=HOST)


def _version(wanted: bool) -> None:
    if wanted:
        import torpor

        typer.echo(f"torpor {torpor.__version__}")
        raise typer.Exit


@app.callback()
def _torpor(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    pass  # the callback of --version has done all there is to do


@app.command(rich_help_panel=HOST)
def doctor(
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the findings as JSON on standard output.")
    ] = False,
    fix: Annotated[
        bool,
        typer.Option("--fix", help="Put right what can be; each change is shown and asked for."),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="With --fix: do not ask.")] = False,
) -> None:
    """Say what this host can do, what it lacks and what to do about it.

    Exit status 1 if something is broken; a warning is not.
    """
    from torpor.cli.facts import gather
    from torpor.cli.findings import diagnose
    from torpor.cli.fixing import put_right
    from torpor.cli.tables import print_findings, print_json

    facts = run(gather(working_places()))
    if fix and put_right(facts, ask=not yes):
        facts = run(gather(working_places()))
    findings = diagnose(facts)
    ok = all(finding.state != "broken" for finding in findings)
    if as_json:
        print_json({"ok": ok, "findings": findings})
    else:
        print_findings(findings)
    raise typer.Exit(0 if ok else 1)
