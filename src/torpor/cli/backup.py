"""The commands that carry a server's whole state away, and bring it back: backup and restore."""

from pathlib import Path
from typing import Annotated

import typer

from torpor.cli.running import run, working_places, writable_places
from torpor.cli.server import Form, Host, Output

PANEL = "The server"
app = typer.Typer()
Config = Annotated[
    Path | None,
    typer.Option("--config", metavar="FILE", help="The file of settings; else the usual one."),
]


@app.command(rich_help_panel=PANEL)
def backup(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The new file.")],
    freeze_running: Annotated[
        bool,
        typer.Option(
            "--freeze-running",
            help="Freeze what runs for it (it runs on); else its newest snapshot is taken.",
        ),
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace FILE.")] = False,
    config: Config = None,
    host: Host = None,
    output: Output = Form.TABLE,
) -> None:
    """Write all sessions with their snapshots, the named images and the database to one file.

    While a server runs, it makes the backup, and goes on; else the home is read directly. The file
    is read back and checked before it gets its name. Exit status 1 if something that was to be in
    it could not be read; the rest is there then. Settings are not in it.
    """
    from torpor.cli import backup_work as work
    from torpor.cli.backup_tables import print_backup
    from torpor.cli.session_tables import plain
    from torpor.cli.tables import print_json

    made = run(
        work.backed_up(
            working_places(), file, host, config, freeze_running=freeze_running, replace=force
        )
    )
    if output is Form.JSON:
        print_json(plain(made))
    else:
        print_backup(made)
    raise typer.Exit(0 if made.summary.complete else 1)


@app.command(rich_help_panel=PANEL)
def restore(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The backup.")],
    check: Annotated[
        bool, typer.Option("--check", help="Only read it all, and say what is in it.")
    ] = False,
    config: Config = None,
    output: Output = Form.TABLE,
) -> None:
    """Bring back everything that a backup has, into an empty home.

    Sessions come back paused, as they were saved. All of it is checked before any of it is there;
    if it is cut off, nothing is, or the same command finishes it. Then start the server.
    """
    from torpor.cli import backup_work as work
    from torpor.cli.backup_tables import print_checked, print_restored
    from torpor.cli.session_tables import plain
    from torpor.cli.tables import print_json

    if check:
        made = run(work.checked(file))
        print_json(plain(made)) if output is Form.JSON else print_checked(made)
        return
    places = writable_places()
    found = run(work.brought_back(places, file, config))
    print_json(plain(found)) if output is Form.JSON else print_restored(found, places.home)
