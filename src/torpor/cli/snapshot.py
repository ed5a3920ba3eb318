"""The commands of ``torpor snapshot``: what is kept, for how long, and how it travels.

They work on the snapshots in Torpor's home. Those that change something need it for themselves.
"""

import re
import sys
from datetime import timedelta
from typing import Annotated

import typer

from torpor.cli import snapshot_work as work
from torpor.cli.harmless import harmless
from torpor.cli.running import run, working_places, writable_places

app = typer.Typer(
    help="Snapshots: list, verify, remove, export and import them.", no_args_is_help=True
)

JSON = Annotated[
    bool, typer.Option("--json", help="Print JSON on standard output, and nothing else there.")
]
Snapshot = Annotated[str, typer.Argument(metavar="ID", help="The snapshot.")]

UNITS = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
AGES = {"h": "hours", "d": "days", "w": "weeks"}


@app.command("list")
def list_(as_json: JSON = False) -> None:
    """List the snapshots, the oldest first, with what removing each of them would free."""
    from torpor.cli.snapshot_tables import print_snapshots
    from torpor.cli.tables import print_json

    rows = run(work.rows(working_places()))
    if as_json:
        print_json(rows)
    else:
        print_snapshots(rows)


@app.command()
def show(snapshot: Snapshot, as_json: JSON = False) -> None:
    """Show one snapshot: its manifest, its files, and whether it can be thawed here."""
    from torpor.cli.snapshot_tables import print_snapshot
    from torpor.cli.tables import print_json

    found = run(work.shown_one(working_places(), snapshot))
    if as_json:
        print_json(found)
    else:
        print_snapshot(found)


@app.command()
def verify(
    snapshots: Annotated[
        list[str] | None, typer.Argument(metavar="ID", help="Only these snapshots.")
    ] = None,
    as_json: JSON = False,
) -> None:
    """Read every file of snapshots and check that it is what was saved.

    Exit status 1 if one is damaged.
    """
    from torpor.cli.tables import print_json

    checked = run(work.verified(working_places(), snapshots))
    ok = all(not each["damaged"] for each in checked)
    if as_json:
        print_json({"ok": ok, "snapshots": checked})
    else:
        for each in checked:
            typer.echo(harmless(f"{each['id']}  {each['damaged'] or 'whole'}"))
    raise typer.Exit(0 if ok else 1)


@app.command()
def keep(
    snapshot: Snapshot,
    no_more: Annotated[
        bool, typer.Option("--no-more", help="It need not be kept any longer.")
    ] = False,
) -> None:
    """Keep a snapshot, whatever the policy of `prune` says."""
    run(work.mark(writable_places(), snapshot, kept=not no_more))


@app.command()
def rm(
    snapshots: Annotated[list[str], typer.Argument(metavar="ID", help="The snapshots.")],
    erase: Annotated[
        bool, typer.Option("--erase", help="Make sure that its content cannot be read back.")
    ] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="With --erase: write over the bytes first.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Also one that is to be kept.")] = False,
    as_json: JSON = False,
) -> None:
    """Remove snapshots, and what only they needed.

    With --erase, exit status 1 if something of them is left in the store.
    """
    from torpor.cli.snapshot_tables import print_erased
    from torpor.cli.tables import print_json

    if overwrite and not erase:
        raise typer.BadParameter("only with --erase", param_hint="--overwrite")
    reports, freed = run(
        work.removed(writable_places(), snapshots, erasing=erase, overwrite=overwrite, force=force)
    )
    if as_json:
        told = [{"complete": report.complete, "report": report} for report in reports]
        print_json({"removed": snapshots, "freed_bytes": freed, "erased": told})
    else:
        print_erased(snapshots, reports, freed)
    raise typer.Exit(0 if all(report.complete for report in reports) else 1)


@app.command("export")
def export_(
    snapshot: Snapshot,
    file: Annotated[str, typer.Argument(metavar="FILE", help="The new file; - is a pipe.")],
    without_golden: Annotated[
        bool,
        typer.Option("--without-golden", help="Leave out what golden snapshots have as well."),
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace FILE.")] = False,
    as_json: JSON = False,
) -> None:
    """Write a snapshot and all that it needs to one file.

    If it is cut off, the same command goes on where it was. With --without-golden the target must
    have a golden snapshot of the same image.
    """
    from torpor.cli.snapshot_tables import print_exported
    from torpor.cli.tables import print_json

    if file == "-" and (as_json or force):
        raise typer.BadParameter("not with FILE -", param_hint="--json, --force")
    if file == "-" and sys.stdout.isatty():
        raise typer.BadParameter("a terminal is no place for it", param_hint="FILE")
    places = working_places()
    made = run(work.exported(places, snapshot, file, shared=not without_golden, replace=force))
    if as_json:
        print_json(made)
    elif file != "-":
        print_exported(made, file)


@app.command("import")
def import_(
    file: Annotated[str, typer.Argument(metavar="FILE", help="The file; - is a pipe.")],
    name: Annotated[
        str | None, typer.Option("--as", metavar="ID", help="Give it this id, not its own.")
    ] = None,
    as_json: JSON = False,
) -> None:
    """Add an exported snapshot, after every byte of it was checked.

    If it is cut off, the same command goes on where it was. Says whether it can be thawed here.
    """
    from torpor.cli.snapshot_tables import print_imported
    from torpor.cli.tables import print_json

    made, verdict = run(work.imported(writable_places(), file, name))
    if as_json:
        print_json({"imported": made, "here": verdict})
    else:
        print_imported(made, verdict)


@app.command()
def prune(
    keep_newest: Annotated[
        int | None, typer.Option("--keep", min=0, help="Keep the newest N of each line.")
    ] = None,
    older_than: Annotated[
        str | None, typer.Option(metavar="AGE", help="Remove what is older: 12h, 30d, 8w.")
    ] = None,
    max_size: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Remove the oldest beyond: 500MiB, 50GiB.")
    ] = None,
    newest_too: Annotated[
        bool, typer.Option("--newest-too", help="Also the newest of a line.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what would be removed.")
    ] = False,
    as_json: JSON = False,
) -> None:
    """Remove snapshots by count, age and size, and imports that were given up.

    Those that are to be kept stay, and the newest of each line unless you say otherwise.
    """
    from torpor.cli.snapshot_tables import print_plan
    from torpor.cli.tables import print_json
    from torpor.vm.retention import Policy

    policy = Policy(
        keep_newest,
        age_of(older_than) if older_than is not None else None,
        size_of(max_size) if max_size is not None else None,
        newest_too,
    )
    if policy == Policy(newest_too=newest_too):
        raise typer.BadParameter("say at least one of --keep, --older-than and --max-size")
    made = run(work.pruned(writable_places(), policy, dry_run=dry_run))
    if as_json:
        print_json({"plan": made, "done": not dry_run})
    else:
        print_plan(made, done=not dry_run)


def size_of(text: str) -> int:
    """Return what a size like ``50GiB`` says, in bytes. Ends the program with 2 if it is none."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?) ?(|KiB|MiB|GiB|TiB)", text)
    if found is None:
        raise typer.BadParameter(
            f"{text!r} is no size; say 500MiB or 50GiB", param_hint="--max-size"
        )
    return int(float(found[1]) * UNITS[found[2]])


def age_of(text: str, option: str = "--older-than") -> timedelta:
    """Return what an age like ``30d`` says. Ends the program with 2 if it is none."""
    found = re.fullmatch(r"(\d{1,5})(h|d|w)", text)
    if found is None:
        raise typer.BadParameter(f"{text!r} is no age; say 12h, 30d or 8w", param_hint=option)
    return timedelta(**{AGES[found[2]]: int(found[1])})
