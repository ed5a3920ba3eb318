"""What the commands of backup and restore say, as people read it."""

from pathlib import Path
from typing import TYPE_CHECKING

from rich.text import Text

from torpor.cli.snapshot_tables import size
from torpor.cli.tables import console

if TYPE_CHECKING:
    from torpor.backup import About, Restored, SavedSession, Summary
    from torpor.cli.backup_work import Made

RUNS = ("READY", "DETACHED")
MOST_NAMED = 20
"""Sessions that are named one by one; of more only the number is told."""


def print_backup(made: "Made") -> None:
    """Print what was written, and what is not in it."""
    out = console()
    out.print(Text(f"{made.file}: {size(made.size)}, read back and whole."))
    _print_contents(made.summary)
    if any(each.becomes == "failed" and each.status in RUNS for each in made.summary.sessions):
        out.print("`torpor backup --freeze-running` saves what runs as well.", style="yellow")
    out.print(
        "It is not encrypted: who has it has the memory of every session in it. Settings are not"
        " in it; keep their file with it.",
        style="dim",
    )


def print_checked(made: "Made") -> None:
    """Print what is in a backup."""
    out = console()
    out.print(Text(f"{made.file}: {size(made.size)}, whole."))
    _print_about(made.about)
    _print_contents(made.summary)


def print_restored(found: "Restored", home: Path) -> None:
    """Print what came back, and what to do now."""
    out = console()
    if found.earlier:
        out.print("An earlier restore had been cut off in its last step: it is finished.")
    _print_about(found.about)
    _print_contents(found.summary)
    out.print(Text(f"All of it is in {home} now; `torpor serve` serves it."))


def _print_about(about: "About") -> None:
    out = console()
    out.print(
        Text(f"Made on {about.host} by Torpor {about.torpor}, {about.created_at:%Y-%m-%d %H:%M}Z.")
    )
    if about.settings:
        said = ", ".join(f"{name} = {value!r}" for name, value in about.settings.items())
        out.print(Text(f"Its settings there, which are not restored: {said}."))


def _print_contents(summary: "Summary") -> None:
    out = console()
    disks = f", {len(summary.disks)} workspaces" if summary.disks else ""
    images = f", {len(summary.images)} named images" if summary.images else ""
    out.print(
        f"{len(summary.sessions)} sessions, {len(summary.snapshots)} snapshots"
        f" ({size(summary.bytes_of_snapshots)}){disks}{images}."
    )
    # What is not as one would think comes first, for it may be cut.
    ordered = sorted(summary.sessions, key=lambda each: _plain(each))
    for each in ordered[:MOST_NAMED]:
        out.print(_line(each))
    if len(ordered) > MOST_NAMED:
        out.print(f"    and {len(ordered) - MOST_NAMED} more")
    for lost in summary.missing:
        what = f"{lost.what} {lost.name}"
        out.print(Text(f"Not in it: {what}: {lost.why}", "red"))


def _plain(each: "SavedSession") -> bool:
    return each.becomes == "paused" and each.status == "PAUSED"


def _line(each: "SavedSession") -> Text:
    if each.becomes == "paused" and each.saved_at is not None:
        what = f"paused as of {each.saved_at:%Y-%m-%d %H:%M:%S}Z"
        if each.status != "PAUSED":
            what += " (it ran on: what came after that is not in it)"
        style = ""
    else:
        what = f"{each.becomes}: {each.why}" if each.why else str(each.becomes)
        style = "yellow" if each.becomes == "failed" else ""
    return Text(f"    {each.name}  {what}", style)
