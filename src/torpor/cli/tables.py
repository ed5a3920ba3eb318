"""Results as people read them, and as programs do."""

import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, is_dataclass
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.filesize import decimal
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from torpor.cli.screen import Screen

if TYPE_CHECKING:  # they are only printed here; whoever has one has imported it
    from torpor.cli.findings import Finding
    from torpor.images.names import Listed
    from torpor.lab.check import Check
    from torpor.lab.figures import Results

MARKS = {
    "ok": Text("ok", style="green"),
    "warning": Text("warning", style="yellow"),
    "broken": Text("broken", style="bold red"),
    "failed": Text("FAILED", style="bold red"),
}


def console() -> Screen:
    """Return a console on standard output, as it is now."""
    return Screen(highlight=False)


def print_json(value: Any) -> None:
    """Print ``value`` on standard output as JSON; dataclasses become objects."""
    json.dump(value, sys.stdout, indent=1, default=_plain)
    sys.stdout.write("\n")
    sys.stdout.flush()


def _plain(value: object) -> object:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    return str(value)


def print_findings(findings: Sequence["Finding"]) -> None:
    """Print what the doctor found, group by group; what to do stands under what was seen."""
    out = console()
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    group = ""
    for finding in findings:
        if finding.group != group:
            if group:
                table.add_row()
            group = finding.group
            table.add_row(Text(group, style="bold"))
        seen = Text(finding.seen)
        if finding.todo:
            seen.append(f"\n→ {finding.todo}", style="" if finding.state == "ok" else "bold")
        table.add_row(f"  {finding.what}", MARKS[finding.state], seen)
    out.print(table)
    count = {state: sum(f.state == state for f in findings) for state in ("warning", "broken")}
    out.print()
    if count["broken"]:
        out.print(f"{_many(count['broken'], 'thing is', 'things are')} broken.", style="bold red")
    elif count["warning"]:
        out.print(f"Torpor works here, with {_many(count['warning'], 'warning', 'warnings')}.")
    else:
        out.print("Torpor works here, and nothing is to be wished for.")


def _many(count: int, one: str, more: str) -> str:
    return f"{count} {one if count == 1 else more}"


def print_checks(
    out: Console, experiment: str, story: str, checks: Iterable["Check"], seconds: float
) -> None:
    """Print the checks of one experiment under its name and what it does.

    Where a check's name begins with the experiment's, the rest of it is enough.
    """
    out.print(Text.assemble((experiment, "bold"), f"  {seconds:.1f} s"))
    if story:
        out.print(Padding(Text(story), (0, 0, 0, 2)))
    # The same columns for every experiment, so that the eye can run down them.
    width = out.width - 2
    mark, name = 6, max(14, width * 27 // 100)
    rest = width - mark - name - 6
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=True, header_style="dim")
    table.add_column("", width=mark)
    table.add_column("check", width=name, overflow="fold")
    table.add_column("expected", width=rest // 2, overflow="fold")
    table.add_column("seen", width=rest - rest // 2, overflow="fold")
    for check in checks:
        mark_text = MARKS["ok" if check.ok else "failed"]
        style = "" if check.ok else "red"
        name_text = Text(check.name.removeprefix(f"{experiment}-"))
        table.add_row(mark_text, name_text, Text(check.expected), Text(check.seen, style))
    out.print(Padding(table, (0, 0, 1, 2)))


def print_verdict(out: Console, checks: Sequence["Check"], seconds: float) -> None:
    """Print the sum of all checks."""
    failed = [check.name for check in checks if not check.ok]
    time = f"in {seconds:.0f} s"
    if not checks:
        out.print("No checks were made, so nothing has been shown.", style="bold red")
    elif failed:
        names = ", ".join(failed)
        out.print(
            f"{len(failed)} of {_many(len(checks), 'check', 'checks')} FAILED {time}: {names}",
            style="bold red",
            markup=False,
        )
    else:
        out.print(f"{_many(len(checks), 'check', 'checks')}, all as expected, {time}.")


def print_figures(out: Console, results: "Results") -> None:
    """Print what was measured, and on what."""
    from torpor.lab.figures import shown

    host = ", ".join(f"{name} {value}" for name, value in results.host.items() if name != "why")
    out.print(Text(f"measured on: {host}", style="dim"))
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("figure", no_wrap=True)
    table.add_column("p50", justify="right", no_wrap=True)
    table.add_column("p95", justify="right", no_wrap=True)
    table.add_column("runs", justify="right", no_wrap=True)
    table.add_column("what it is", overflow="fold")
    for row in results.rows:
        unit = row.figure.unit
        table.add_row(
            row.figure.name,
            shown(row.p50, unit),
            shown(row.p95, unit),
            str(row.runs),
            Text(row.figure.meaning),
        )
    out.print()
    out.print(table)


def print_elsewhere(out: Console, results: "Results") -> None:
    """Print the figures of other systems beside ours, where we have one."""
    from torpor.lab.figures import ELSEWHERE, shown

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("operation", overflow="fold")
    table.add_column("here, p50", justify="right", no_wrap=True)
    table.add_column("elsewhere, on other hardware", overflow="fold")
    for other in ELSEWHERE:
        row = results.get(other.name)
        if row is not None:
            there = Text(f"{other.figure}  {other.where}")
            table.add_row(other.operation, shown(row.p50, row.figure.unit), there)
    if table.row_count:
        out.print()
        out.print(table)


def print_image(listed: "Listed") -> None:
    """Print what is known of a named image."""
    record, config = listed.record, listed.record.config
    alone = "" if listed.alone_bytes else " (shared with the cache, a machine or a snapshot)"
    lines: list[tuple[str, str]] = [
        ("name", record.name),
        ("from", record.source),
        ("manifest", record.manifest or ""),
        ("packages", ", ".join(record.recipe.packages) if record.recipe else ""),
        ("created", record.created_at),
        ("digest", record.digest),
        ("disk", decimal(record.size_bytes)),
        ("stored", decimal(listed.stored_bytes) + alone),
        ("content", f"{record.files} files, {decimal(record.content_bytes)}"
         if record.files is not None and record.content_bytes is not None else ""),
        ("entrypoint", " ".join(config.entrypoint)),
        ("command", " ".join(config.cmd)),
        ("user", config.user),
        ("directory", config.working_dir),
        ("environment", "\n".join(f"{name}={value}" for name, value in config.env.items())),
        ("labels", "\n".join(f"{name}={value}" for name, value in config.labels.items())),
        ("ports", ", ".join(config.ports)),
        ("stop signal", config.stop_signal),
        ("authorities", "\n".join(record.authorities)),
        ("note", "\n".join(record.notes)),
    ]  # fmt: skip
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    for name, value in lines:
        if value:
            table.add_row(Text(name, style="bold"), Text(value))
    console().print(table)
