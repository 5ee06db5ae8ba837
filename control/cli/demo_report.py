"""The demo's report: one HTML file without scripts or anything from elsewhere, plots as inline SVG.

From records to text, nothing else; the demo collects the records.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Final

WIDTH, HEIGHT = 860, 220
LEFT, RIGHT, TOP, BOTTOM = 58, 12, 14, 26

Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Series:
    """One line of a plot. ``steps``: the value holds until the next point."""

    name: str
    points: tuple[Point, ...]
    colour: str
    steps: bool = False
    dashed: bool = False


@dataclass(frozen=True, slots=True)
class Plot:
    title: str
    unit: str
    series: tuple[Series, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    title: str
    passed: bool
    verdict: str
    facts: tuple[tuple[str, str], ...]
    answer: str
    phases: tuple[tuple[str, str], ...]
    plots: tuple[Plot, ...]
    decisions: tuple[str, ...] = field(default=())
    """Lines of ``tidegate explain``."""


COLOURS: Final = {"main": "#1f6feb", "second": "#d1570c", "limit": "#cf222e", "quiet": "#8b949e"}

_STYLE = """
:root { color-scheme: light dark; --text: #1f2328; --soft: #59636e; --line: #d1d9e0; --back: #ffffff; }
@media (prefers-color-scheme: dark) { :root { --text: #e6edf3; --soft: #9198a1; --line: #3d444d; --back: #0d1117; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--text); background: var(--back);
       max-width: 900px; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.1rem; margin: 1.8rem 0 .4rem; }
table { border-collapse: collapse; } td, th { padding: .15rem 1rem .15rem 0; text-align: left; vertical-align: top; }
td:first-child { color: var(--soft); } .good { color: #1a7f37; } .bad { color: #cf222e; }
svg { width: 100%; height: auto; } svg text { fill: var(--soft); font-size: 12px; }
svg .grid { stroke: var(--line); stroke-width: 1; } pre { overflow-x: auto; font-size: 12px; color: var(--soft); }
"""


def render(report: Report) -> str:
    """The whole file."""
    parts = [
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>",
        f"<meta name='viewport' content='width=device-width'><title>{escape(report.title)}</title>",
        f"<style>{_STYLE}</style></head><body><h1>{escape(report.title)}</h1>",
        f"<p class='{'good' if report.passed else 'bad'}'><strong>{escape(report.verdict)}</strong></p>",
        _table(report.facts),
        "<h2>The first request, from zero replicas</h2>",
        f"<p>{escape(report.answer)}</p>",
        _table(report.phases),
    ]
    for plot in report.plots:
        parts += [f"<h2>{escape(plot.title)}</h2>", svg(plot)]
    if report.decisions:
        text = escape("\n".join(report.decisions))
        parts += ["<h2>Decisions and their reasons</h2>", f"<pre>{text}</pre>"]
    parts.append("</body></html>\n")
    return "\n".join(parts)


def svg(plot: Plot) -> str:
    """One plot; the horizontal axis is time in seconds."""
    points = [point for series in plot.series for point in series.points]
    last = max((at for at, _ in points), default=1.0) or 1.0
    top = nice_top(max((value for _, value in points), default=1.0))
    parts = [f"<svg viewBox='0 0 {WIDTH} {HEIGHT}' role='img' aria-label='{escape(plot.title, quote=True)}'>"]
    for part in range(5):
        value = top * part / 4
        y = _y(value, top)
        parts.append(f"<line class='grid' x1='{LEFT}' x2='{WIDTH - RIGHT}' y1='{y:.1f}' y2='{y:.1f}'/>")
        parts.append(f"<text x='{LEFT - 6}' y='{y + 4:.1f}' text-anchor='end'>{value:g}</text>")
    for part in range(7):
        at = last * part / 6
        parts.append(f"<text x='{_x(at, last):.1f}' y='{HEIGHT - 6}' text-anchor='middle'>{at:.0f} s</text>")
    for index, series in enumerate(plot.series):
        dash = " stroke-dasharray='6 4'" if series.dashed else ""
        line = " ".join(f"{_x(at, last):.1f},{_y(value, top):.1f}" for at, value in _drawn(series))
        parts.append(f"<polyline fill='none' stroke='{series.colour}' stroke-width='1.8'{dash} points='{line}'/>")
        x = LEFT + 10 + index * 190
        parts.append(f"<rect x='{x}' y='{TOP - 8}' width='12' height='3' fill='{series.colour}'/>")
        parts.append(f"<text x='{x + 17}' y='{TOP - 2}'>{escape(series.name)}, {escape(plot.unit)}</text>")
    parts.append("</svg>")
    return "".join(parts)


def nice_top(value: float) -> float:
    """The next of 1, 2, 4, 6, 8, 10 times a power of ten at or above ``value``: four equal parts read well."""
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


def _table(rows: Sequence[tuple[str, str]]) -> str:
    cells = "".join(f"<tr><td>{escape(name)}</td><td>{escape(value)}</td></tr>" for name, value in rows)
    return f"<table>{cells}</table>"
