"""The report of a load as one HTML file: no scripts, no external resources, plots as inline SVG."""

from collections.abc import Callable

from tidegate.loadgen.reports import page
from tidegate.loadgen.reports.plot import COLOURS, Plot, Point, Series
from tidegate.loadgen.reports.record import LoadReport, SecondRecord
from tidegate.loadgen.reports.text import facts, rows, tables


def render(report: LoadReport) -> str:
    """Returns the whole file."""
    parts = [page.verdict("Interrupted: this report is partial.", False)] if report.is_partial else []
    parts += [page.paragraph(f"{report.began}, seed {report.seed}"), page.facts(facts(report))]
    for found, table in tables(report):
        parts += [page.heading(found.capitalize()), page.facts(rows(table))]
    return page.page(f"Load on {report.target}", [*parts, *page.plots(plots(report))])


def plots(report: LoadReport) -> tuple[Plot, ...]:
    """Returns plots of rates and latencies over due time, and of latency by percentile."""
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


def _points(report: LoadReport, value: Callable[[SecondRecord], float | None], scale: float = 1.0) -> tuple[Point, ...]:
    found = ((each.at_s, value(each)) for each in report.seconds)
    return tuple((at_s, value * scale) for at_s, value in found if value is not None)
