"""A small plot: medians and spans of a few series over a number, as an SVG picture.

The vertical axis is logarithmic, so that a line shows by its slope alone what grows and what does
not.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from torpor.lab.figures import percentile, shown

WIDTH, HEIGHT = 720, 400
LEFT, RIGHT, TOP, BOTTOM = 70, 190, 50, 55
LABEL = 17
"""The height of a line of text, with its space, as the sizes above in pixels."""


@dataclass(frozen=True)
class Series:
    """Samples in seconds over ``x``, with the colour that it is drawn in (as in CSS)."""

    name: str
    colour: str
    points: tuple[tuple[float, tuple[float, ...]], ...]


@dataclass(frozen=True)
class _Axes:
    x_end: float
    low: int
    high: int

    def x(self, value: float) -> float:
        return LEFT + value / self.x_end * (WIDTH - LEFT - RIGHT)

    def y(self, seconds: float) -> float:
        part = (math.log10(seconds) - self.low) / (self.high - self.low)
        return HEIGHT - BOTTOM - part * (HEIGHT - TOP - BOTTOM)


def plot(title: str, x_name: str, x_ticks: Sequence[float], series: Sequence[Series]) -> str:
    """Return the picture. All samples must be above 0; raises ValueError if there are none."""
    samples = [sample for each in series for _, found in each.points for sample in found]
    if not samples or min(samples) <= 0:
        raise ValueError("a plot needs samples above 0")
    low = math.floor(math.log10(min(samples)))
    high = max(low + 1, math.ceil(math.log10(max(samples))))
    axes = _Axes(max(x_ticks) * 1.05, low, high)
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}"'
        f' width="{WIDTH}" height="{HEIGHT}" font-family="sans-serif" font-size="13"'
        ' fill="#222" role="img">'
    )
    parts = [
        head,
        f"<title>{escape(title)}</title>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
        _text(LEFT, 24, title, size=15),
        *_grid(axes, x_name, x_ticks),
    ]
    for each in series:
        parts += _draw(axes, each)
    parts += _labels(axes, series)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _grid(axes: _Axes, x_name: str, x_ticks: Sequence[float]) -> list[str]:
    right, floor = WIDTH - RIGHT, HEIGHT - BOTTOM
    parts = []
    for power in range(axes.low, axes.high + 1):
        y = axes.y(10**power)
        parts.append(_line(LEFT, y, right, y, "#bbb"))
        parts.append(_text(LEFT - 8, y + 4, _decade(power), anchor="end"))
        if power < axes.high:
            lines = (axes.y(digit * 10**power) for digit in range(2, 10))
            parts += [_line(LEFT, fine, right, fine, "#eee") for fine in lines]
    for tick in x_ticks:
        parts.append(_line(axes.x(tick), floor, axes.x(tick), floor + 5, "#888"))
        parts.append(_text(axes.x(tick), floor + 20, f"{tick:g}", anchor="middle"))
    parts.append(_text((LEFT + right) / 2, HEIGHT - 14, x_name, anchor="middle"))
    return parts


def _decade(power: int) -> str:
    return f"{10**power:g} s" if power >= 0 else f"{10 ** (power + 3):g} ms"


def _draw(axes: _Axes, series: Series) -> list[str]:
    """Draw a line through the medians, a bar from the least to the largest sample at each."""
    parts = []
    medians = [(axes.x(x), axes.y(percentile(found, 50))) for x, found in series.points]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in medians)
    parts.append(
        f'<polyline points="{path}" fill="none" stroke="{series.colour}" stroke-width="2"/>'
    )
    for (x, y), (_, found) in zip(medians, series.points, strict=True):
        parts.append(_line(x, axes.y(min(found)), x, axes.y(max(found)), series.colour))
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{series.colour}"/>')
    return parts


def _labels(axes: _Axes, series: Sequence[Series]) -> list[str]:
    """Write name and last median beside the last point of each series, none over another."""
    ends = []
    for each in series:
        x, found = each.points[-1]
        last = percentile(found, 50)
        ends.append((axes.y(last) + 4, axes.x(x) + 12, each, last))
    parts = []
    free = 0.0
    for y, x, each, last in sorted(ends, key=lambda end: end[0]):
        y = max(y, free)
        free = y + LABEL
        parts.append(_text(x, y, f"{each.name}, {shown(last, 's')}", colour=each.colour))
    return parts


def _line(x1: float, y1: float, x2: float, y2: float, colour: str) -> str:
    return f'<path d="M{x1:.1f},{y1:.1f} L{x2:.1f},{y2:.1f}" stroke="{colour}"/>'


def _text(
    x: float, y: float, text: str, *, anchor: str = "start", size: int = 13, colour: str = "#222"
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}"'
        f' fill="{colour}">{escape(text)}</text>'
    )
