"""Figures: what is measured, the samples of one run, and other systems' figures beside them."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from torpor.images import Report, Step

Unit = Literal["s", "MiB", "%", "x"]


@dataclass(frozen=True)
class Figure:
    """Something that is measured. ``meaning`` says from where to where, for people.

    ``%`` is of one processor core, ``x`` how many times another figure. A ``signed`` one is a
    difference, which may be negative.
    """

    name: str
    unit: Unit
    meaning: str
    signed: bool = False


@dataclass(frozen=True)
class Row:
    """A figure and what was measured for it, in the order of the runs; at least one sample."""

    figure: Figure
    samples: tuple[float, ...]

    @property
    def p50(self) -> float:
        """The median."""
        return percentile(self.samples, 50)

    @property
    def p95(self) -> float:
        """The 95th percentile; with fewer than 20 runs it lies close to the largest sample."""
        return percentile(self.samples, 95)

    @property
    def runs(self) -> int:
        """How many samples there are."""
        return len(self.samples)


@dataclass(frozen=True)
class Results:
    """One run of the bench: ``host`` is what it ran on, as names and plain values."""

    host: dict[str, str | int | float]
    rows: tuple[Row, ...]

    def get(self, name: str) -> Row | None:
        """Return the row of a figure, if it was measured."""
        return next((row for row in self.rows if row.figure.name == name), None)


class Notebook:
    """Collects the samples of one group of figures, and tells how far it is."""

    def __init__(self, group: str, figures: Iterable[Figure], report: Report) -> None:
        self._group = group
        self._report = report
        self._samples: dict[Figure, list[float]] = {figure: [] for figure in figures}
        self._figures = {figure.name: figure for figure in self._samples}

    def note(self, name: str, value: float) -> None:
        """Add a sample, in the figure's unit. Raises KeyError for a figure that is not declared."""
        figure = self._figures[name]
        if not math.isfinite(value) or (value < 0 and not figure.signed):
            raise ValueError(f"{value} cannot be a sample of {name}")
        self._samples[figure].append(value)

    def runs(self, count: int) -> Iterator[int]:
        """Yield the numbers of ``count`` runs, telling each."""
        for run in range(count):
            self._report(Step(f"bench: {self._group}", run, count, "runs"))
            yield run
        self._report(Step(f"bench: {self._group}", count, count, "runs"))

    def rows(self) -> tuple[Row, ...]:
        """Return the figures that have samples."""
        return tuple(Row(figure, tuple(s)) for figure, s in self._samples.items() if s)


def percentile(samples: Sequence[float], percent: float) -> float:
    """Return a percentile, linear between the two nearest samples. Raises ValueError if none."""
    if not samples:
        raise ValueError("there is no percentile of nothing")
    ordered = sorted(samples)
    rank = (len(ordered) - 1) * percent / 100
    low = math.floor(rank)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (rank - low)


def results_json(results: Results) -> dict[str, Any]:
    """Return the form for scripts: the host, and for each figure unit, p50, p95 and count of
    runs."""
    return {
        "host": dict(results.host),
        "results": [
            {
                "name": row.figure.name,
                "unit": row.figure.unit,
                "p50": round(row.p50, 6),
                "p95": round(row.p95, 6),
                "runs": row.runs,
            }
            for row in results.rows
        ],
    }


def shown(value: float, unit: Unit) -> str:
    """Return a value with its unit, in three significant digits, short times in ms."""
    if unit == "s":
        return f"{_short(value * 1000)} ms" if value < 1 else f"{_short(value)} s"
    return f"{_short(value)} {unit}"


def _short(value: float) -> str:
    digits = 2 if value == 0 else max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:.{min(digits, 3)}f}"


# Figures of other systems


@dataclass(frozen=True)
class Elsewhere:
    """A figure that was published or measured for another system, on other hardware."""

    operation: str
    name: str
    figure: str
    where: str


_AGENTS = "DigitalOcean Managed Agents"
_MODAL = "Modal VM sandboxes"
_CUBE = "CubeSandbox, bare metal"
_UNSAID = " (not said whether returned or ready)"
ELSEWHERE = (
    Elsewhere("create: call returned", "create_returned", "2.4-3.1 s", _MODAL),
    Elsewhere("create: ready", "create_ready", "15.97 s", f"{_AGENTS}, small size"),
    Elsewhere("create: ready", "create_ready", "4.9, 6.7, 9.8 s", _MODAL),
    Elsewhere("create: ready", "create_ready", "< 60 ms; 137 ms p99 at 50 at once", _CUBE),
    Elsewhere("cold boot", "cold_boot", "<= 125 ms to init", "Firecracker, its specification"),
    Elsewhere("pause: call returned", "pause_returned", "0.86 s", _AGENTS),
    Elsewhere("resume: call returned", "resume_returned", "1.16 s", _AGENTS),
    Elsewhere("resume: call returned", "resume_returned", "1.05-2.24 s (restore)", _MODAL),
    Elsewhere("resume: ready", "resume_ready", "0.305 s", f"{_AGENTS}, the vendor's own figure"),
    Elsewhere("resume: ready", "resume_ready", "4.4, 5.1 s (restore)", _MODAL),
    Elsewhere("checkpoint: call returned", "checkpoint_returned", f"25.25 s{_UNSAID}", _AGENTS),
    Elsewhere(
        "checkpoint: call returned", "checkpoint_returned", f"6.3, 7.2, 10.7 s{_UNSAID}", _MODAL
    ),
    Elsewhere("snapshot of the files", "files_snapshot", "1.18 s", _MODAL),
    Elsewhere("create from files: ready", "files_create_ready", f"0.56 s{_UNSAID}", _MODAL),
    Elsewhere("fork, 2 children: ready", "fork_2_ready", f"30.98 s{_UNSAID}", _AGENTS),
    Elsewhere(
        "fork, 10 children: ready",
        "fork_10_ready",
        f"0.101 s for 100{_UNSAID}",
        "forkd, bare metal",
    ),
    Elsewhere("exec round trip", "exec_roundtrip", "0.189 s", _AGENTS),
    Elsewhere("exec round trip", "exec_roundtrip", "about 0.079 s", "Fly.io Sprites, reckoned"),
    Elsewhere(
        "memory of an idle machine",
        "idle_machine_mib",
        "<= 5 MiB (the monitor alone)",
        "Firecracker, its specification",
    ),
)
"""An API that has returned is not a machine that is ready: each says which of the two it is, as far
as that is known."""
