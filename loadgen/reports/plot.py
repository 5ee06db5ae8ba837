"""Plots as inline SVG, from values to text.

A plot uses the page's colours (:mod:`tidegate.loadgen.reports.page`) and works in any HTML file by itself.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from html import escape
from typing import Final

WIDTH, HEIGHT = 860, 220
LEFT, RIGHT, TOP, BOTTOM = 58, 12, 14, 26
LEGEND_STEP = 190
TICKS = 6

Point = tuple[float, float]

COLOURS: Final = {"main": "#1f6feb", "second": "#d1570c", "limit": "#cf222e", "quiet": "#8b949e"}
PALETTE: Final = (COLOURS["main"], COLOURS["second"], COLOURS["quiet"], "#1a7f37", "#8250df", COLOURS["limit"])
"""Colours for series without a meaning of their own, in this order."""


@dataclass(frozen=True, slots=True)
class Series:
    """One line of a plot. ``steps``: each value holds until the next point."""

    name: str
    points: tuple[Point, ...]
    colour: str
    steps: bool = False
    dashed: bool = False


@dataclass(frozen=True, slots=True)
class Plot:
    """A plot. ``unit`` is that of the values; ``x_unit`` that of the horizontal axis, which begins at 0 (default:
    seconds)."""

    title: str
    unit: str
    series: tuple[Series, ...]
    x_unit: str = "s"


def svg(plot: Plot) -> str:
    """Returns one plot as an ``<svg>`` element."""
    points = [point for series in plot.series for point in series.points]
    last = max((at for at, _ in points), default=1.0) or 1.0
    top = nice_top(max((value for _, value in points), default=1.0))
    parts = [f"<svg viewBox='0 0 {WIDTH} {HEIGHT}' role='img' aria-label='{escape(plot.title, quote=True)}'>"]
    for part in range(5):
        value = top * part / 4
        y = _y(value, top)
        parts.append(f"<line class='grid' x1='{LEFT}' x2='{WIDTH - RIGHT}' y1='{y:.1f}' y2='{y:.1f}'/>")
        parts.append(f"<text x='{LEFT - 6}' y='{y + 4:.1f}' text-anchor='end'>{value:g}</text>")
    digits = 0 if last >= 2 * TICKS else 1 if last >= 1.0 else 2
    for part in range(TICKS + 1):
        at, anchor = last * part / TICKS, "end" if part == TICKS else "middle"
        x = WIDTH - 1 if part == TICKS else _x(at, last)
        label = escape(f"{at:.{digits}f} {plot.x_unit}")
        parts.append(f"<text x='{x:.1f}' y='{HEIGHT - 6}' text-anchor='{anchor}'>{label}</text>")
    for index, series in enumerate(plot.series):
        dash = " stroke-dasharray='6 4'" if series.dashed else ""
        line = " ".join(f"{_x(at, last):.1f},{_y(value, top):.1f}" for at, value in _drawn(series))
        parts.append(f"<polyline fill='none' stroke='{series.colour}' stroke-width='1.8'{dash} points='{line}'/>")
        x = LEFT + 10 + index * LEGEND_STEP
        parts.append(f"<rect x='{x}' y='{TOP - 8}' width='12' height='3' fill='{series.colour}'/>")
        label = f"{series.name}, {plot.unit}" if plot.unit else series.name
        parts.append(f"<text x='{x + 17}' y='{TOP - 2}'>{escape(label)}</text>")
    parts.append("</svg>")
    return "".join(parts)


def nice_top(value: float) -> float:
    """Returns the next of 1, 2, 4, 6, 8, 10 times a power of ten at or above ``value``: four equal parts are easy to
    read."""
    if value <= 0:
        return 1.0
    power = 10.0 ** _exponent(value)
    return next(step * power for step in (1.0, 2.0, 4.0, 6.0, 8.0, 10.0) if step * power >= value * (1 - 1e-9))


def _exponent(value: float) -> int:
    exponent = 0
    while value >= 10.0:
        value, exponent = value / 10.0, exponent + 1
    while value < 1.0:
        value, exponent = value * 10.0, exponent - 1
    return exponent


def _drawn(series: Series) -> Iterable[Point]:
    if not series.steps:
        return series.points
    drawn: list[Point] = []
    for at, value in series.points:
        if drawn:
            drawn.append((at, drawn[-1][1]))
        drawn.append((at, value))
    return drawn


def _x(at: float, last: float) -> float:
    return LEFT + (WIDTH - LEFT - RIGHT) * at / last


def _y(value: float, top: float) -> float:
    return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM - 8) * min(value, top) / top
