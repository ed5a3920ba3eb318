"""``docs/performance.md`` and its picture, made from one run of the bench."""

import re
from collections.abc import Iterable
from pathlib import Path

from torpor.lab.benches.memory import DIRTY, TOUCHED
from torpor.lab.figures import ELSEWHERE, Results, Row, shown
from torpor.lab.plot import Series, plot
from torpor.lab.spec import PROMISES, SERVICE_PROMISES, Promise, spec

PICTURE = "performance-freeze.svg"

INTRODUCTION = """\
# Performance

This page is made by `torpor lab bench --write docs/performance.md`. All figures on it are from one
run on one host:

{host}

## How to read it

- **p50** is the median and **p95** the 95th percentile of the runs; with fewer than 20 runs p95
  lies close to the slowest.
- **Returned** is when a call has come back, **ready** is when the guest agent has acknowledged the
  wake steps: random numbers, wall clock and identity are right, and the user's processes run. In
  Torpor a call that starts a machine returns only when it is ready, so the two differ by a little
  bookkeeping; both are measured all the same. `_first_exec` goes one step further:
  a new process has run.
- **`_64mib`** is a machine with 768 MiB touched, of which 64 MiB were written since its base.
- A freeze has three parts, each a row of its own. Only in the middle one do the vCPUs stand still:
  `quiesce_64mib` (the user's processes rest, the disk is synced), `freeze_64mib` (stop to
  continue), `commit_64mib` (the snapshot becomes visible). `durable_64mib`, until it survives a
  power cut, comes after that, in the background.
- `full_save` and `full_load` are what the same QEMU does without Torpor: all memory to a file and
  back, with no limit of bandwidth and no fsync. `copy_64mib` is what bounds a freeze: the same
  pages read and written to a file by the simplest program, with no fsync, in turns with the
  freezes.
- `idle_machine_mib` counts anonymous and swapped memory of the machine's processes: what the guest
  has written and what the emulator needs, not the base, which all machines of one base share.
- The first thaw from a base by a program is slower than those here: it opens the base (before QEMU
  8.2: copies it into sealed memory) and reads it once to check its sum.
"""

SERVICE = "## The service"
SERVICE_INTRODUCTION = """\
This section is made by `torpor lab bench --api --write docs/performance.md`, in a run of its own:

{host}

`api_*` is measured over HTTP with the client of this package, on the server's own computer; the
server is a process of its own. `direct_*` is the same operation by `torpor.vm` in the process that
measures, without any server. Both are done in turns, each first every other time, on machines
of the same golden snapshot; `api_*_adds` is the difference, turn by turn, so it may be negative
where the two differ by less than they vary. A session is ready when its event says so.

The 10,000 sessions of `api_start_10000` and `api_page_of_10000` were written into the database: to
make them would take hours. One of them is real. 9,000 are destroyed; 1,000 are paused, each in a
snapshot of its own that is a copy of the real one by hard links: manifest and sums are there a
thousand times, and the start reads each of them.

`sqlite_*` and `postgresql_*` are measured over HTTP too, at two servers on this computer with
10,000 sessions in their history each, in turns, each first every other time. PostgreSQL is one of
the measurement's own, over a socket, as it is set up by itself. `postgresql_*_ratio` is the second
over the first, turn by turn.
"""

AGAINST_TOUCHED = """\
## A freeze costs what was written, not what is touched

The same 64 MiB are dirty in each machine; what differs is how much memory was touched before.
Points are medians, bars reach from the fastest to the slowest run. The vertical axis is
logarithmic.

![Time that the machine stands still over touched memory](performance-freeze.svg)
"""


def performance_page(results: Results) -> str:
    """Return the page, in Markdown. It shows :data:`PICTURE` if the figures for it are there."""
    host = _table(("host", ""), ((name, str(value)) for name, value in results.host.items()))
    parts = [INTRODUCTION.format(host=host.rstrip("\n") + _busy(results))]
    parts.append("## What was measured\n\n" + _measured(results.rows))
    if performance_picture(results) is not None:
        parts.append(AGAINST_TOUCHED)
    parts.append("## Beside what one would do without Torpor\n\n" + _without(results))
    parts.append(
        "## Beside other systems\n\nFigures of others are as they were published or measured"
        " elsewhere,\non other hardware: they say what people are used to, not who is faster.\n\n"
        + _elsewhere(results)
    )
    parts.append(
        "## Promises\n\nThe promises about speed in [SPECIFICATION.md](../SPECIFICATION.md),"
        " checked against the\nmedians above.\n\n" + _promises(results)
    )
    return "\n".join(part.rstrip("\n") + "\n" for part in parts)


def service_section(results: Results) -> str:
    """Return the section of the page about the service, in Markdown."""
    host = _table(("host", ""), ((name, str(value)) for name, value in results.host.items()))
    parts = [
        SERVICE,
        SERVICE_INTRODUCTION.format(host=host.rstrip("\n") + _busy(results)),
        _measured(results.rows),
        "Promises:\n",
        _promises(results, SERVICE_PROMISES),
    ]
    return "\n".join(part.rstrip("\n") + "\n" for part in parts)


def with_service(page: str, section: str) -> str:
    """Return a page with this section about the service, its last, instead of the one it has."""
    before, _, _ = page.partition(f"{SERVICE}\n")
    return f"{before.rstrip()}\n\n{section}"


def performance_picture(results: Results) -> str | None:
    """Return the picture of the page as SVG, or None if its figures were not measured."""
    freeze = _over_touched(results, f"freeze_{DIRTY}mib", "freeze", "#0a6")
    full = _over_touched(results, "full_save", "QEMU's full save", "#b40")
    if len(freeze.points) < 2 or len(full.points) < 2:
        return None
    copy = results.get(f"copy_{DIRTY}mib")
    series = [full, freeze]
    if copy is not None:
        series.append(Series("plain copy", "#777", ((TOUCHED[-1], copy.samples),)))
    title = f"Time that the machine stands still, {DIRTY} MiB dirty"
    return plot(title, "memory touched, MiB", TOUCHED, series)


def write_performance(results: Results, page: Path) -> None:
    """Write the page, and the picture beside it. Raises OSError."""
    picture = performance_picture(results)
    if picture is not None:
        (page.parent / PICTURE).write_text(picture)
    written = performance_page(results)
    if page.exists():  # the service is measured in a run of its own, and keeps its section
        _, heading, rest = page.read_text().partition(f"{SERVICE}\n")
        if heading:
            written = with_service(written, heading + rest)
    page.write_text(written)


def write_service(results: Results, page: Path) -> None:
    """Write the section about the service into the page, which has to be there. Raises OSError."""
    page.write_text(with_service(page.read_text(), service_section(results)))


def _busy(results: Results) -> str:
    """Return a warning if the host had other work when the run began."""
    load, cores = results.host.get("load_at_start", 0), results.host.get("cores", 1)
    if float(load) <= float(cores) / 2:
        return ""
    return (
        f"\n\n**The host was busy with other work when this run began (load {load}): times are"
        "\nlonger than on a quiet one, and p95 more so. What figures of one run say of each other"
        " holds.**"
    )


def _over_touched(results: Results, name: str, title: str, colour: str) -> Series:
    points = []
    for touched in TOUCHED:
        row = results.get(name if touched == TOUCHED[-1] else f"{name}_of_{touched}")
        if row is not None:
            points.append((float(touched), row.samples))
    return Series(title, colour, tuple(points))


def _measured(rows: Iterable[Row]) -> str:
    return _table(
        ("figure", "p50", "p95", "runs", "what it is"),
        (
            (
                f"`{row.figure.name}`",
                shown(row.p50, row.figure.unit),
                shown(row.p95, row.figure.unit),
                str(row.runs),
                row.figure.meaning,
            )
            for row in rows
        ),
    )


def _without(results: Results) -> str:
    pairs = (
        ("start a machine", "create_ready", "cold_boot"),
        ("stand still for a snapshot", "freeze_64mib", "full_save"),
        ("go on from it", "thaw_ready_64mib", "full_load"),
        ("the copy that bounds the freeze", "freeze_64mib", "copy_64mib"),
    )
    lines = []
    for what, name, other in pairs:
        ours, theirs = results.get(name), results.get(other)
        if ours is not None and theirs is not None:
            lines.append(
                (
                    what,
                    f"`{name}` {shown(ours.p50, 's')}",
                    f"`{other}` {shown(theirs.p50, 's')}",
                    f"{theirs.p50 / ours.p50:.2g}",
                )
            )
    return _table(("to", "Torpor, p50", "without, p50", "without / Torpor"), lines)


def _elsewhere(results: Results) -> str:
    lines = []
    for other in ELSEWHERE:
        row = results.get(other.name)
        if row is not None:
            unit = row.figure.unit
            lines.append(
                (
                    other.operation,
                    shown(row.p50, unit),
                    shown(row.p95, unit),
                    other.figure,
                    other.where,
                )
            )
    columns = ("operation", "Torpor p50", "Torpor p95", "figure elsewhere", "where")
    return _table(columns, lines)


def _promises(results: Results, promises: Iterable[Promise] = PROMISES) -> str:
    lines = (
        (check.name, check.expected, check.seen, "kept" if check.ok else "**not kept**")
        for check in spec(results, promises)
        if "not measured" not in check.seen
    )
    return _table(("promise", "expected", "seen", ""), lines)


def _table(columns: tuple[str, ...], lines: Iterable[tuple[str, ...]]) -> str:
    """Return a table in Markdown."""
    rows = [columns, tuple("---" for _ in columns), *lines]
    cells = ([re.sub(r"\s+", " ", cell).replace("|", "\\|") for cell in row] for row in rows)
    return "".join(f"| {' | '.join(row)} |\n" for row in cells)
