"""The commands over the whole state of an installation: backup, restore.

A backup is one tar archive, compressed by zstd, with holes as holes: ``torpor-backup.json``, which
says what it is, and then Torpor's home as it stood, without the directories of running machines, of
which there are none, and the lock.
"""

import json
import os
import secrets
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from torpor.cli.running import PlaceError, run, working_places

if TYPE_CHECKING:
    from torpor.settings import Places

app = typer.Typer()
PANEL = "The server"

VERSION = 1
MARK = "torpor-backup.json"
LEFT_OUT = ("machines", "host.lock")

File = Annotated[Path, typer.Argument(metavar="FILE", help="The archive.")]


class BackupError(PlaceError):
    """A backup cannot be made, or cannot be restored. The text says why, and what to do."""


@app.command(rich_help_panel=PANEL)
def backup(
    file: File,
    force: Annotated[bool, typer.Option("--force", help="Replace FILE.")] = False,
) -> None:
    """Write all that there is, sessions, snapshots, tokens and events, to one file.

    The server must not run, and no machine: stop it with `on_stop = "freeze"`, or pause them
    first. FILE holds everything that was in their memories, and tokens: only its owner may read it.
    """
    run(_backup(working_places(), file, replace=force))
    typer.echo(f"{file} has all of {working_places().home}.")


@app.command(rich_help_panel=PANEL)
def restore(file: File) -> None:
    """Put back what `torpor backup` has written, here or on another computer.

    Torpor's home must not exist yet, or be empty. What sessions start from anew (kernel, default
    image) is not in it, and made at the next start of the server.
    """
    run(_restore(working_places(), file))
    typer.echo(f"{working_places().home} is as it was. Start the server: torpor serve")


async def _backup(places: "Places", file: Path, *, replace: bool) -> None:
    from torpor.vm.home import machine_records, opened_store

    home = places.home
    if not home.is_dir():
        raise BackupError(f"There is nothing in {home}. No backup was made.")
    _check_database(places)
    if file.exists() and not replace:
        raise BackupError(f"{file} is there already. No backup was made. Name another, or --force.")
    if file.absolute().is_relative_to(home.absolute()):
        raise BackupError(f"{file} is in what it is to hold. No backup was made. Name another.")
    async with opened_store(home, None):
        running = sum(1 for _ in machine_records(home))
        if running:
            raise BackupError(
                f"{running} machines run, or have run and were not yet looked after. No backup was"
                " made. Start the server, pause its sessions (`torpor pause`), stop it, and run this"
                " again."
            )
        _pack(home, file)


def _check_database(places: "Places") -> None:
    from torpor.settings import load_settings

    if load_settings({}).database is not None:
        raise BackupError(
            "The settings keep the database outside of Torpor's home. No backup was made. Copy the"
            " home and the database, both while the server does not run."
        )


def _pack(home: Path, file: Path) -> None:
    part = file.with_name(f".{file.name}.{secrets.token_hex(4)}")
    mark = home / MARK
    try:
        mark.write_text(json.dumps({"version": VERSION}) + "\n")
        handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(handle, "wb") as target:
            left_out = [f"--exclude=./{name}" for name in LEFT_OUT]
            _run_tar(
                ["--create", "--sparse", "--zstd", "--numeric-owner", f"--directory={home}",
                 *left_out, f"--exclude=./{MARK}", f"./{MARK}", "."],
                target.fileno(),
                f"{file} could not be written",
            )  # fmt: skip
            os.fsync(target.fileno())
        part.replace(file)
    finally:
        mark.unlink(missing_ok=True)
        part.unlink(missing_ok=True)
