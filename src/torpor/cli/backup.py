"""The commands over the whole state of an installation: backup, restore.

A backup is one tar archive, compressed by zstd, with holes as holes: ``torpor-backup.json``, which
says what it is, and then Torpor's home as it stood, without the directories of running machines, of
which there are none, and the lock.
"""

import asyncio
import json
import os
import secrets
import subprocess
import tempfile
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated

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
    run(asyncio.to_thread(_restore, working_places(), file))
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
                f"{running} machines run, or have ended and nobody has looked after them. No backup"
                " was made. Start the server, pause its sessions (`torpor pause`), stop it, and run"
                " this again."
            )
        await asyncio.to_thread(_pack, home, file)


def _check_database(places: "Places") -> None:
    from torpor.settings import load_settings

    if load_settings({}).database is not None:
        raise BackupError(
            "The settings keep the database outside of Torpor's home. No backup was made. Copy the"
            " home and the database, both while the server does not run."
        )


def _pack(home: Path, file: Path) -> None:
    part = file.with_name(f".{file.name}.{secrets.token_hex(4)}")
    handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(handle, "wb") as target, tempfile.TemporaryDirectory() as beside:
            (Path(beside) / MARK).write_text(json.dumps({"version": VERSION}) + "\n")
            left_out = [f"--exclude=./{name}" for name in LEFT_OUT]
            # What it is comes first, so that it is read without reading the rest.
            content = [f"--directory={beside}", f"./{MARK}", f"--directory={home}", "."]
            _tar("--create", "--sparse", *left_out, *content, stdout=target)
            os.fsync(target.fileno())
        part.replace(file)
        _sync(file.parent)
    finally:
        part.unlink(missing_ok=True)


def _restore(places: "Places", file: Path) -> None:
    home = places.home
    if home.exists() and any(home.iterdir()):
        raise BackupError(
            f"{home} is not empty. Nothing was changed. Move it away, or set TORPOR_HOME."
        )
    _check_mark(file)
    home.parent.mkdir(parents=True, exist_ok=True)
    # Beside the home and all at once: what is cut off leaves nothing that looks like one.
    with tempfile.TemporaryDirectory(dir=home.parent, prefix=f".{home.name}.") as directory:
        part = Path(directory) / "home"
        part.mkdir(mode=0o700)
        with file.open("rb") as source:
            own = [f"--directory={part}", f"--exclude=./{MARK}"]
            _tar("--extract", "--preserve-permissions", *own, stdin=source)
        subprocess.run(["sync", "--file-system", part], check=True)
        if home.exists():
            home.rmdir()
        part.rename(home)
    _sync(home.parent)


def _check_mark(file: Path) -> None:
    with file.open("rb") as source:
        said = _tar("--extract", "--to-stdout", "--occurrence=1", f"./{MARK}", stdin=source)
    try:
        version = json.loads(said)["version"]
    except (ValueError, KeyError, TypeError):
        version = None
    if version != VERSION:
        raise BackupError(
            f"{file} is no backup of version {VERSION}, which is what this Torpor reads. Nothing"
            " was changed."
        )


def _tar(*arguments: str, stdin: IO[bytes] | None = None, stdout: IO[bytes] | None = None) -> bytes:
    """Run tar on one of the two, and return what it prints if that goes nowhere else."""
    done = subprocess.run(
        ["tar", "--zstd", "--numeric-owner", *arguments],
        stdin=stdin or subprocess.DEVNULL,
        stdout=stdout or subprocess.PIPE,
        stderr=subprocess.PIPE,
        check=False,
    )
    if done.returncode != 0:
        lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
        why = lines[0] if lines else f"tar ended with {done.returncode}"
        raise BackupError(f"{why}. Nothing was left of it. See that there is space, and try again.")
    return done.stdout or b""


def _sync(directory: Path) -> None:
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
