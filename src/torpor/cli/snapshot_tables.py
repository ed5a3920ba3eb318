"""What the commands of ``torpor snapshot`` say, as people read it."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from torpor.cli.tables import console

if TYPE_CHECKING:
    from torpor.vm.compatibility import Verdict
    from torpor.vm.erasure import Erased
    from torpor.vm.export import Exported
    from torpor.vm.importing import Imported
    from torpor.vm.retention import Plan

MIB = 1 << 20


def size(count: int) -> str:
    """Return a number of bytes in a unit that fits."""
    for unit, name in ((1 << 40, "TiB"), (1 << 30, "GiB"), (MIB, "MiB"), (1 << 10, "KiB")):
        if count >= unit:
            return f"{count / unit:.1f} {name}"
    return f"{count} bytes"


def _table(*columns: tuple[str, str]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for name, justify in columns:
        table.add_column(name, justify=justify, overflow="fold")  # type: ignore[arg-type]
    return table


def print_snapshots(rows: Sequence[dict[str, Any]]) -> None:
    """Print the list."""
    out = console()
    if not rows:
        out.print("There are no snapshots.")
        return
    table = _table(
        ("id", "left"), ("made", "left"), ("frees", "right"), ("here", "left"), ("", "left")
    )
    for row in rows:
        if "damaged" in row:
            table.add_row(Text(row["id"]), "", "", Text("damaged", "red"), Text(row["damaged"]))
            continue
        notes = [
            *(["kept"] if row["kept"] else []),
            *([] if row["durable"] else ["not durable yet"]),
            *(f"{name}={value}" for name, value in row["labels"].items()),
        ]
        here = Text(row["thaws_here"] or "not known")
        made = Text(row["created_at"][:19])
        table.add_row(Text(row["id"]), made, size(row["frees"]), here, Text(", ".join(notes)))
    out.print(table)


def print_snapshot(found: dict[str, Any]) -> None:
    """Print one snapshot."""
    out = console()
    manifest = found["manifest"]
    facts = {
        "id": manifest.id,
        "made": manifest.created_at,
        "came from": manifest.parent or "nothing",
        "machine": str(manifest.shape),
        "kernel": manifest.guest.kernel,
        "made under": f"{manifest.accelerator}, QEMU {'.'.join(map(str, manifest.qemu_version))},"
        f" {manifest.cpu}",
        "durable": "yes" if found["durable"] else "not yet",
        "kept": "yes" if found["kept"] else "no",
        "labels": ", ".join(f"{name}={value}" for name, value in manifest.labels.items()) or "none",
        "here": _said(found["here"]),
    }
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    for name, value in facts.items():
        table.add_row(Text(name, "dim"), Text(value))
    out.print(table)
    files = _table(("file", "left"), ("size", "right"), ("on disk", "right"))
    for file in found["files"]:
        files.add_row(Text(file["name"]), size(file["size"]), size(file["stored_bytes"]))
    out.print()
    out.print(files)


def _said(verdict: "Verdict | None") -> str:
    if verdict is None:
        return "not known before `torpor lab prepare`"
    return f"{verdict.state}: {verdict.why} {verdict.todo}".strip()


def print_erased(snapshots: Sequence[str], reports: Sequence["Erased"], freed: int) -> None:
    """Print what was removed, and the reports of an erasure."""
    out = console()
    for report in reports:
        out.print(Text(f"Snapshot {report.snapshot}", "bold"))
        table = _table(("file", "left"), ("on disk", "right"), ("", "left"))
        for file in report.files:
            why = file.what if not file.why else f"kept: {file.why}"
            if file.open_in:
                why += f" (open in process {', '.join(map(str, file.open_in))}, empty there too)"
            style = "" if file.what == "erased" else "yellow" if file.own else "dim"
            table.add_row(Text(file.name), size(file.bytes), Text(why, style))
        out.print(table)
        if report.descendants:
            names = ", ".join(report.descendants)
            out.print(Text(f"These came from it and hold what they took over: {names}", "yellow"))
        if report.complete:
            how = "written over, and cut" if report.overwritten else "cut"
            out.print(
                f"Nothing that it brought is left in the store: every file was {how} to nothing."
            )
        for limit in report.limits:
            out.print(Text(f"  {limit}", "dim"))
    out.print(f"Removed {', '.join(snapshots)}: {size(freed)} are free.", markup=False)


def print_exported(made: "Exported", file: str) -> None:
    """Print what was exported."""
    resumed = f" ({size(made.resumed)} of it were there)" if made.resumed else ""
    console().print(
        f"Snapshot {made.manifest.id}, {size(made.content)} of content, is in {file}:"
        f" {size(made.size)}{resumed}.",
        markup=False,
    )
    if made.left_out:
        console().print(
            f"Left out, and to be had where it is imported: {', '.join(made.left_out)}.",
            markup=False,
        )


def print_imported(made: "Imported", verdict: "Verdict | None") -> None:
    """Print what was imported, and what can be done with it."""
    out = console()
    if made.already:
        out.print(f"Snapshot {made.manifest.id} is here already.", markup=False)
    else:
        resumed = f", {size(made.resumed)} of it by an earlier try" if made.resumed else ""
        shared = f"; {len(made.shared)} files were here" if made.shared else ""
        out.print(
            f"Snapshot {made.manifest.id} is here: {size(made.written)} were written{resumed}"
            f"{shared}.",
            markup=False,
        )
    out.print(Text(f"On this host: {_said(verdict)}"))


def print_plan(made: "Plan", *, done: bool) -> None:
    """Print which snapshots go, or have gone."""
    out = console()
    if not made.removals:
        out.print("Nothing is to be removed.")
    else:
        table = _table(("id", "left"), ("frees", "right"), ("why", "left"))
        for removal in made.removals:
            table.add_row(Text(removal.id), size(removal.frees), Text(removal.why))
        out.print(table)
    verb = "are" if done else "would be"
    out.print(f"{size(made.before - made.after)} {verb} free; {size(made.after)} stay.")
    if made.left_alone:
        out.print(f"{len(made.left_alone)} are sessions' own, and were left alone.")
    if made.exceeds:
        out.print(
            f"That is {size(made.exceeds)} more than asked for: what must stay takes it.",
            style="yellow",
        )
