"""The demo's report as one HTML file."""

from dataclasses import dataclass, field

from tidegate.loadgen.reports import page
from tidegate.loadgen.reports.plot import Plot


@dataclass(frozen=True, slots=True)
class ReportTable:
    heading: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoReport:
    title: str
    passed: bool
    verdict: str
    facts: tuple[tuple[str, str], ...]
    answer: str
    phases: tuple[tuple[str, str], ...]
    plots: tuple[Plot, ...]
    tables: tuple[ReportTable, ...] = ()
    """What the console showed."""
    decisions: tuple[str, ...] = field(default=())
    """Lines of ``tidegate explain``."""


def render(report: DemoReport) -> str:
    """Returns the whole file."""
    parts = [
        page.verdict(report.verdict, report.passed),
        page.facts(report.facts),
        page.heading("The first request, from zero replicas"),
        page.paragraph(report.answer),
        page.facts(report.phases),
        *page.plots(report.plots),
    ]
    for each in report.tables:
        if each.rows:
            parts += [page.heading(each.heading), page.wide_table(each.heading, each.head, each.rows)]
    if report.decisions:
        parts += [page.heading("Decisions and their reasons"), page.lines(report.decisions)]
    return page.page(report.title, parts)
