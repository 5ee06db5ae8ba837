"""The report of a simulation as a record, and its text, CSV and plots. No IO."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tidegate.loadgen.reports import page
from tidegate.loadgen.reports.plot import COLOURS, Plot, Point, Series
from tidegate.loadgen.reports.timeline import Timeline, TimelineSlot

VIOLATIONS_S: Final = 5
"""Minimum seconds over which violations are plotted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundFigures:
    """Costs of the cheapest fleets of a planner that knows the future (:mod:`tidegate.loadgen.bound`), in dollars."""

    b0_dollars: float | None
    """With no late request; None if no fleet achieves that."""
    bq_dollars: float
    """With as many late requests as the percentile allows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyRun:
    """The run of one policy. ``figures``: docs/inside/figures.md; each name ends in its unit."""

    policy: str
    is_partial: bool
    figures: dict[str, float]
    """Of all functions together."""
    cost_over_b0: float | None
    cost_over_bq: float | None
    functions: dict[str, dict[str, float]]
    """Figures by function, where there are several."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionFacts:
    """One of several functions."""

    function: str
    load: str
    latency_s: float | None
    percentile: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationReport:
    function: str
    load: str
    seed: int
    latency_s: float | None
    """The SLA's latency; None without one, and where there are several functions."""
    percentile: float
    functions: tuple[FunctionFacts, ...]
    """Each of several functions; empty for one."""
    is_partial: bool
    """Whether the run was interrupted; figures cover the time until then."""
    bound: BoundFigures | None
    notes: tuple[str, ...]
    """Assumptions that a reader must know."""
    policies: tuple[PolicyRun, ...]


def run_of(
    policy: str,
    figures: dict[str, float],
    most_ready: int,
    bound: BoundFigures | None,
    *,
    is_partial: bool,
    functions: dict[str, dict[str, float]] | None = None,
) -> PolicyRun:
    """Returns a policy's part of the report, with its cost relative to the bound and its replica counts.
    ``most_ready``: replicas ready at once, of all functions; ``functions``: figures by function, of several."""
    seconds = figures.get("duration_s", 0.0)
    if seconds > 0.0:
        figures = figures | {
            "mean_replicas": figures.get("replica_seconds", 0.0) / seconds,
            "most_ready_replicas": float(most_ready),
        }
    cost = figures.get("cost_dollars")
    return PolicyRun(
        policy=policy,
        is_partial=is_partial,
        figures=figures,
        cost_over_b0=None if bound is None else _over(cost, bound.b0_dollars),
        cost_over_bq=None if bound is None else _over(cost, bound.bq_dollars),
        functions=functions or {},
    )


def _over(cost: float | None, bound: float | None) -> float | None:
    return cost / bound if cost is not None and bound else None


# --- tables -----------------------------------------------------------------------------------------------------------

_MAIN: Final = (
    ("requests", "requests"),
    ("answered", "answered"),
    ("failures", "failed"),
    ("unended", "not ended"),
    ("mean_latency_s", "latency, mean"),
    ("p50_s", "latency, 50 %"),
    ("p90_s", "latency, 90 %"),
    ("p98_s", "latency, 98 %"),
    ("p99_s", "latency, 99 %"),
    ("max_latency_s", "latency, slowest"),
    ("queue_p99_s", "waiting, 99 %"),
    ("execution_p99_s", "execution, 99 %"),
    ("violations_share", "SLA violations"),
    ("slot_violations_share", "violations per 5 s, mean"),
    ("worst_slot_violations_share", "violations per 5 s, worst"),
    ("cold_starts", "cold starts"),
    ("cold_start_requests", "requests that waited for one"),
    ("mean_cold_start_wait_s", "their wait, mean"),
    ("mean_replicas", "replicas, mean"),
    ("most_ready_replicas", "replicas ready, most"),
    ("core_seconds", "core-seconds"),
    ("activity_variation", "balance (variation of work)"),
    ("mean_watts", "power, mean"),
    ("energy_joules", "energy"),
    ("inferences_per_dollar", "inferences per dollar"),
    ("cost_dollars", "cost"),
)
_COST: Final = (("cost over B0", "cost_over_b0"), ("cost over Bq", "cost_over_bq"))


def value(name: str, figure: float | None) -> str:
    """Formats a figure; its name contains the unit."""
    if figure is None:
        return "-"
    stem = name.partition(".")[0]
    if stem.endswith("_dollars"):
        return f"${figure:.4g}"
    if stem.endswith("_share"):
        return f"{100.0 * figure:.2f} %"
    if stem.endswith("_percent"):
        return f"{figure:.1f} %"
    if stem.endswith("_watts"):
        return f"{figure:.0f} W"
    if stem.endswith("_joules"):
        return f"{figure / 3600.0:.4g} Wh"
    if stem.endswith("_s"):
        return (
            f"{figure * 1e3:.3g} ms" if figure < 0.1 else f"{figure * 1e3:.0f} ms" if figure < 10 else f"{figure:.1f} s"
        )
    return f"{figure:.0f}" if figure == int(figure) or abs(figure) >= 1000.0 else f"{figure:.4g}"


def main_rows(report: SimulationReport) -> Iterator[tuple[str, ...]]:
    """Yields (name, a value for each policy) of the main figures."""
    for name, label in _named([run.figures for run in report.policies]):
        if any(name in run.figures for run in report.policies):
            yield label, *(value(name, run.figures.get(name)) for run in report.policies)
    if report.bound is not None:
        for label, field in _COST:
            found = (getattr(run, field) for run in report.policies)
            yield label, *("-" if each is None else f"{each:.2f}" for each in found)
    names = dict.fromkeys(name for run in report.policies for name in run.figures if name.count(".") == 1)
    for name in names:
        stem, _, kind = name.partition(".")
        if stem == "utilisation_percent":
            yield f"utilisation, {kind}", *(value(name, run.figures.get(name)) for run in report.policies)


def all_rows(report: SimulationReport) -> Iterator[tuple[str, ...]]:
    """Yields every figure by name, as numbers."""
    for name in dict.fromkeys(name for run in report.policies for name in run.figures):
        yield name, *("" if (each := run.figures.get(name)) is None else f"{each:g}" for run in report.policies)


def facts(report: SimulationReport) -> Iterator[tuple[str, str]]:
    """Yields the facts of the simulated setup."""
    if report.functions:
        for each in report.functions:
            yield "function", f"{each.function}: {each.load}; {_sla(each.latency_s, each.percentile)}"
        yield "seed", str(report.seed)
    else:
        yield "function", report.function
        yield "load", report.load
        yield "seed", str(report.seed)
        yield "SLA", _sla(report.latency_s, report.percentile)
    if report.bound is not None:
        yield "B0", f"{value('_dollars', report.bound.b0_dollars)}: the least that no late request costs"
        yield "Bq", f"{value('_dollars', report.bound.bq_dollars)}: with as many late as the SLA allows"
    for note in report.notes:
        yield "note", note


def _sla(latency_s: float | None, percentile: float) -> str:
    return "no latency promised" if latency_s is None else f"{percentile:g} % within {value('_s', latency_s)}"


def function_rows(report: SimulationReport, function: str) -> Iterator[tuple[str, ...]]:
    """Yields (name, a value for each policy) of one function's main figures."""
    figures = [run.functions[function] for run in report.policies]
    for name, label in _named(figures):
        if any(name in each for each in figures):
            yield label, *(value(name, each.get(name)) for each in figures)


def _named(figures: Sequence[Mapping[str, float]]) -> Iterator[tuple[str, str]]:
    """Yields (name, label) of the main figures; behind the failures they follow by their code."""
    codes = sorted({name for each in figures for name in each if name.startswith("failures.")})
    for name, label in _MAIN:
        yield name, label
        if name == "failures":
            yield from ((each, f"failed, {each.partition('.')[2]}") for each in codes)


def text(report: SimulationReport) -> str:
    """Returns the report as text, with a column for each policy; several functions follow their total."""
    lines = ["INTERRUPTED: this report is partial", ""] if report.is_partial else []
    lines += [f"{name:<9} {label}" for name, label in facts(report)]
    heads = tuple(_head(run) for run in report.policies)
    lines += ["", *_aligned([("" if not report.functions else "all functions", *heads), *main_rows(report)])]
    for each in report.functions:
        lines += ["", *_aligned([(each.function, *heads), *function_rows(report, each.function)])]
    return "\n".join(lines)


def _head(run: PolicyRun) -> str:
    return f"{run.policy} (partial)" if run.is_partial else run.policy


def _aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for first, *cells in rows:
        yield "  ".join(
            [first.ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(cells, widths[1:], strict=True))]
        )


# --- rows of seconds --------------------------------------------------------------------------------------------------

CSV_HEAD: Final = (
    "policy,at_s,wanted,ready,starting,draining,waiting,ended,answered,late_or_failed,p50_ms,p99_ms,busy_units,watts"
)


CSV_HEAD_OF_SEVERAL: Final = CSV_HEAD.replace("policy,", "policy,function,", 1)


def csv_row(policy: str, second: TimelineSlot, *, has_units: bool = True) -> str:
    """Returns one second after ``policy``, which contains the function's name too where there are several: replica
    counts and waiting requests at its end, requests that ended in it. Empty cells are unknown: without
    ``has_units`` the work of the units, which several functions share."""
    p50, p99 = ("" if each is None else f"{each * 1e3:.3f}" for each in second.latency.quantiles((0.5, 0.99)))
    watts = f"{second.watts / second.samples:g}" if second.samples else ""
    replicas = f"{second.wanted},{second.ready},{second.starting},{second.draining},{second.waiting}"
    requests = f"{second.ended},{second.answered},{second.broken},{p50},{p99}"
    busy = f"{second.busy_s:.6g}" if has_units else ""
    return f"{policy},{second.at_s:g},{replicas},{requests},{busy},{watts}"


# --- plots ------------------------------------------------------------------------------------------------------------


def plots(timeline: Timeline, *, latency_s: float | None, has_power: bool, has_units: bool = True) -> list[Plot]:
    """Returns the plots of one policy over time; a slot's value is drawn at its beginning. Without ``has_units`` the
    work of the units is left out, which several functions share."""
    slots = [slot for slot in timeline.slots if slot.seconds]
    latency = [
        Series("p50", tuple(_quantile(slots, 0.5)), COLOURS["main"]),
        Series("p99", tuple(_quantile(slots, 0.99)), COLOURS["second"]),
    ]
    if latency_s is not None and slots:
        ends = (0.0, slots[-1].at_s + slots[-1].seconds)
        latency.append(Series("SLA", tuple((at_s, latency_s * 1e3) for at_s in ends), COLOURS["limit"], dashed=True))
    found = [
        Plot(
            "Replicas",
            "replicas",
            (
                Series("wanted", _means(slots, [each.wanted for each in slots]), COLOURS["second"], True, True),
                Series("ready", _means(slots, [each.ready for each in slots]), COLOURS["main"], True),
            ),
        ),
        Plot("Waiting", "requests", (_line("waiting, most", [(each.at_s, float(each.waiting)) for each in slots]),)),
        Plot("Latency, by when requests ended", "ms", tuple(latency)),
    ]
    if latency_s is not None:
        width_s = max(VIOLATIONS_S, timeline.slot_s)
        found.append(Plot(f"SLA violations per {width_s} s", "%", (_line("late or failed", _broken(slots, width_s)),)))
    if not has_units:
        return found
    found.append(
        Plot(
            "Utilisation",
            "units",
            (
                Series("ready", _means(slots, [each.ready for each in slots]), COLOURS["quiet"], True),
                _line("at work", [(each.at_s, each.busy_s / each.seconds) for each in slots]),
            ),
        )
    )
    if has_power:
        watts = [(each.at_s, each.watts / each.samples) for each in slots if each.samples]
        found.append(Plot("Power of all units", "W", (_line("power", watts),)))
    return found


def _line(name: str, points: Iterable[Point]) -> Series:
    return Series(name, tuple(points), COLOURS["main"])


def _means(slots: Sequence[TimelineSlot], sums: Sequence[int]) -> tuple[Point, ...]:
    return tuple((slot.at_s, each / slot.seconds) for slot, each in zip(slots, sums, strict=True))


def _quantile(slots: Iterable[TimelineSlot], q: float) -> Iterator[Point]:
    for slot in slots:
        found = slot.latency.quantile(q)
        if found is not None:
            yield slot.at_s, found * 1e3


def _broken(slots: Iterable[TimelineSlot], width_s: int) -> list[Point]:
    """Returns the percent of requests that broke the SLA in each period; no point where none ended."""
    sums: dict[int, list[int]] = {}
    for slot in slots:
        found = sums.setdefault(int(slot.at_s) // width_s, [0, 0])
        found[0] += slot.ended
        found[1] += slot.broken
    return [(float(at * width_s), 100.0 * broken / ended) for at, (ended, broken) in sums.items() if ended]


def html(report: SimulationReport, timelines: Sequence[Sequence[Timeline]], *, has_power: bool) -> str:
    """Returns the whole file; ``timelines`` are those of the policies, in their order, one for each function."""
    heads = ("", *(_head(run) for run in report.policies))
    parts = [page.verdict("Interrupted: this report is partial.", False)] if report.is_partial else []
    parts += [page.facts(facts(report)), page.heading("Figures"), page.table(heads, main_rows(report))]
    for each in report.functions:
        parts += [page.heading(f"Figures of {each.function}"), page.table(heads, function_rows(report, each.function))]
    for run, drawn in zip(report.policies, timelines, strict=True):
        if not report.functions:
            parts.append(page.heading(f"Policy {_head(run)}"))
            parts += page.plots(plots(drawn[0], latency_s=report.latency_s, has_power=has_power))
        for each, timeline in zip(report.functions, drawn if report.functions else (), strict=True):
            parts.append(page.heading(f"Policy {_head(run)}, {each.function}"))
            parts += page.plots(plots(timeline, latency_s=each.latency_s, has_power=False, has_units=False))
    parts += [page.heading("All figures"), page.table(heads, all_rows(report))]
    return page.page(f"Simulation of {report.function}", parts)
