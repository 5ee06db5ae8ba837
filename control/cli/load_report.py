"""The report of a load as one HTML file: no scripts, nothing from elsewhere, plots as inline SVG."""

from collections.abc import Callable
from html import escape

from control.cli.demo_report import COLOURS, Plot, Point, Series, svg
from loadgen.reports.record import LoadReport, Second
from loadgen.reports.text import facts, rows, tables

_STYLE = """
:root { color-scheme: light dark; --text: #1f2328; --soft: #59636e; --line: #d1d9e0; --back: #ffffff; }
@media (prefers-color-scheme: dark) { :root { --text: #e6edf3; --soft: #9198a1; --line: #3d444d; --back: #0d1117; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--text); background: var(--back);
       max-width: 900px; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.1rem; margin: 1.8rem 0 .4rem; }
table { border-collapse: collapse; } td { padding: .15rem 1rem .15rem 0; vertical-align: top; }
td:first-child { color: var(--soft); } .bad { color: #cf222e; }
svg { width: 100%; height: auto; } svg text { fill: var(--soft); font-size: 12px; }
svg .grid { stroke: var(--line); stroke-width: 1; }
"""


def render(report: LoadReport) -> str:
    """The whole file."""
    title = f"Load on {report.target}"
    parts = [
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>",
        f"<meta name='viewport' content='width=device-width'><title>{escape(title)}</title>",
        f"<style>{_STYLE}</style></head><body><h1>{escape(title)}</h1>",
    ]
    if report.is_partial:
        parts.append("<p class='bad'><strong>Interrupted: this report is partial.</strong></p>")
    parts += [f"<p>{escape(report.began)}, seed {report.seed}</p>", _table(facts(report))]
    for found, table in tables(report):
        parts += [f"<h2>{escape(found.capitalize())}</h2>", _table(tuple(rows(table)))]
    for plot in plots(report):
        parts += [f"<h2>{escape(plot.title)}</h2>", svg(plot)]
    parts.append("</body></html>\n")
    return "\n".join(parts)


def plots(report: LoadReport) -> tuple[Plot, ...]:
    """Rates and latencies by the time at which requests were due, and the latency by its percentile."""
    end = report.slot_s * len(report.seconds)
    target = () if report.sla is None else ((0.0, report.sla.latency_s * 1e3), (end, report.sla.latency_s * 1e3))
    latency = [
        Series("p50", _points(report, lambda each: each.p50_s, 1e3), COLOURS["main"]),
        Series("p99", _points(report, lambda each: each.p99_s, 1e3), COLOURS["second"]),
    ]
    if target:
        latency.append(Series("target", target, COLOURS["limit"], dashed=True))
    rates = (
        Series("answers", _points(report, lambda each: each.answered_per_s), COLOURS["main"]),
        Series("successes", _points(report, lambda each: each.good_per_s), COLOURS["second"], dashed=True),
        Series("inferences", _points(report, lambda each: each.inferences_per_s), COLOURS["quiet"]),
    )
    return (
        Plot("Latency of successes, by when they were due", "ms", tuple(latency)),
        Plot("Rates, by when requests were due", "per second", rates),
    )


def _points(report: LoadReport, value: Callable[[Second], float | None], scale: float = 1.0) -> tuple[Point, ...]:
    found = ((each.at_s, value(each)) for each in report.seconds)
    return tuple((at_s, told * scale) for at_s, told in found if told is not None)


def _table(told: tuple[tuple[str, str], ...]) -> str:
    cells = "".join(f"<tr><td>{escape(name)}</td><td>{escape(value)}</td></tr>" for name, value in told)
    return f"<table>{cells}</table>"
