"""The report and the summary of a demo, from its records. No clock, no sockets."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tidegate.control.cli.common import seconds
from tidegate.control.cli.demo.records import Records, by_second, quantile
from tidegate.control.cli.demo.shown import Compared, FiguresShown, Pair, agreement
from tidegate.control.views.functions import ColdStartView
from tidegate.loadgen.reports.demo_page import DemoReport, ReportTable
from tidegate.loadgen.reports.plot import COLOURS, Plot, Series


@dataclass(frozen=True, slots=True)
class DemoResult:
    report: DemoReport
    summary: dict[str, Any]


def conclude(
    records: Records,
    first_good: bool,
    answer: str,
    cold: ColdStartView,
    explained: str,
    load_s: float,
    compared: Sequence[Compared],
) -> DemoResult:
    """Builds the report and the summary from the records."""
    verdict, agrees = records.verdict(first_good), agreement(compared)
    good = [outcome.latency_s for outcome in records.outcomes if outcome.is_good]
    q, name = records.percentile / 100, f"p{records.percentile:g}"
    slices = by_second(records.outcomes, load_s)
    p50, tail = [], []
    for second, found in enumerate(slices):
        latencies = [outcome.latency_s * 1e3 for outcome in found if outcome.is_good]
        if latencies:
            p50.append((float(second), quantile(latencies, 0.5) or 0.0))
            tail.append((float(second), quantile(latencies, q) or 0.0))
    target = records.latency_s * 1e3
    rates = tuple((float(at), float(len(found))) for at, found in enumerate(slices))
    ips = tuple((float(at), float(sum(outcome.inferences for outcome in found))) for at, found in enumerate(slices))
    looks = [look for look in records.looks if look.at_s >= 0]
    ready = tuple((look.at_s, float(look.ready)) for look in looks)
    waiting = tuple((look.at_s, float(look.waiting)) for look in looks)
    wanted = tuple((look.at_s, float(look.desired)) for look in looks if look.desired is not None)
    plots = (
        Plot(
            "Latency against its target, by second of arrival",
            "ms",
            (
                Series("p50", tuple(p50), COLOURS["main"]),
                Series(name, tuple(tail), COLOURS["second"]),
                Series("target", ((0.0, target), (load_s, target)), COLOURS["limit"], dashed=True),
            ),
        ),
        Plot(
            "Arrivals",
            "per second",
            (Series("requests", rates, COLOURS["main"]), Series("inferences", ips, COLOURS["second"])),
        ),
        Plot("Waiting requests", "requests", (Series("waiting", waiting, COLOURS["main"], steps=True),)),
        Plot(
            "Replicas",
            "replicas",
            (
                Series("wanted", wanted, COLOURS["quiet"], steps=True, dashed=True),
                Series("ready", ready, COLOURS["main"], steps=True),
            ),
        ),
    )
    within = records.within_sla
    facts = (
        ("requests", f"{len(records.outcomes) + 1}, {len(records.lost)} lost"),
        ("latency", f"p50 {seconds(quantile(good, 0.5))}, {name} {seconds(quantile(good, q))}, from the due times"),
        ("target", "-" if within is None else target_words(f"{name} within {seconds(records.latency_s)}", within, q)),
        ("replicas", f"0, then up to {records.most()}, then {records.looks[-1].present}"),
        ("figures", agrees.text),
    )
    report = DemoReport(
        title=f"Tidegate demo: {cold.function}",
        passed=verdict.passed,
        verdict=verdict.text,
        facts=facts,
        answer=answer,
        phases=phases_of(cold),
        plots=plots,
        tables=(*shown_beside_client(compared, name), groups_at_most(records)),
        decisions=tuple(explained.splitlines()),
    )
    summary = {
        "passed": verdict.passed,
        "verdict": verdict.text,
        "requests": len(records.outcomes) + 1,
        "lost": len(records.lost),
        "p50_s": quantile(good, 0.5),
        "tail_s": quantile(good, q),
        "within_sla": within,
        "most_replicas": records.most(),
        "figures_agree": agrees.holds,
        "figures": agrees.text,
        "compared": compared,
        "cold_start": cold,
    }
    return DemoResult(report, summary)


def target_words(target: str, within: float, wanted: float) -> str:
    """Returns whether the load kept its latency target. ``within``, ``wanted``: shares of the answers, 0 to 1."""
    return f"{target}: {'met' if within >= wanted else 'MISSED'}, {within:.2%} within"


def shown_beside_client(compared: Sequence[Compared], tail: str) -> tuple[ReportTable, ...]:
    """Returns the tables of the console's and of the boards' figures beside the load client's."""

    def off(pair: Pair) -> str:
        return "" if pair.difference is None else f" ({round(100 * pair.difference, 1) + 0.0:+.1f} %)"

    def rate(pair: Pair) -> str:
        return " / ".join("-" if value is None else f"{value:.1f}" for value in (pair.client, pair.shown)) + off(pair)

    def duration(pair: Pair) -> str:
        return f"{seconds(pair.client)} / {seconds(pair.shown)}{off(pair)}"

    def part(pair: Pair) -> str:
        return " / ".join("-" if value is None else f"{value:.2%}" for value in (pair.client, pair.shown))

    def cells(each: Compared, shown: FiguresShown) -> tuple[str, ...]:
        place = str(each.ready), f"{each.until_s:.0f} s", rate(shown.requests_per_s)
        return *place, duration(shown.p50_s), duration(shown.tail_s), part(shown.within_sla)

    head = ("replicas ready", "until", "requests/s", "p50", tail, "within the target")
    console = tuple(
        (*cells(each, each.console), seconds(each.due_p50_s), seconds(each.due_tail_s)) for each in compared
    )
    boards = tuple(cells(each, each.boards) for each in compared if each.boards is not None)
    due = ("the client's p50 from the due time", f"its {tail}")
    return (
        ReportTable("The load client's figures / the console's, by replicas", (*head, *due), console),
        ReportTable("The load client's figures / the boards' in Prometheus, by replicas", head, boards),
    )


def groups_at_most(records: Records) -> ReportTable:
    """Returns the table of the groups, as the console showed them at the largest number of replicas while they had the
    most work."""
    most = records.most()
    seen = [look.groups for look in records.looks if look.ready == most and most]
    groups = max(seen, key=lambda found: sum(each.ips for each in found), default=())
    rows = tuple(
        (
            each.accelerator,
            str(each.ready),
            "-" if each.mu_ips is None else f"{each.mu_ips:.4g}/s",
            f"{each.ips:.1f}/s",
            f"{each.weight:.0%}",
            f"{each.busy:.0%}",
        )
        for each in groups
    )
    return ReportTable("Groups at the peak", ("group", "ready", "mu per replica", "lambda", "weight", "busy"), rows)


def phases_of(cold: ColdStartView) -> tuple[tuple[str, str], ...]:
    """Returns a cold start as (phase, duration) texts."""
    phases = cold.phases
    until_ready = sum(value or 0.0 for value in (phases.decide_s, phases.schedule_s, phases.load_s, phases.warm_s))
    return (
        ("decide", seconds(phases.decide_s)),
        ("spawn", seconds(phases.schedule_s)),
        ("load", seconds(phases.load_s)),
        ("ready", f"after {seconds(until_ready)}"),
        ("first answer", f"{seconds(phases.first_response_s)} later"),
    )
