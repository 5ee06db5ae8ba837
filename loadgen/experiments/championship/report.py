"""The championship as JSON, text and one HTML page."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from tidegate.autoscaler.policies.registry import names
from tidegate.loadgen.experiments.championship.fleets import QUANTILE
from tidegate.loadgen.experiments.championship.row import Failed
from tidegate.loadgen.experiments.championship.run import ChampionshipResult, ChampionshipRow
from tidegate.loadgen.experiments.championship.traces import LEAGUES
from tidegate.loadgen.reports import page
from tidegate.loadgen.reports.plot import COLOURS, PALETTE, Plot, Series

MOST_LATE_PERCENT: Final = 10.0
"""Late shares above it are drawn at it: the SLA's limit would be a line at the bottom otherwise."""
ALLOWED: Final = 1.0 - QUANTILE
HEAD: Final = (
    "groups",
    "start-up",
    "seed",
    "policy",
    "late",
    "cost/B0",
    "cost/Bq",
    "cost",
    "p99",
    "starts",
    "starts/day",
    "waited",
    "replicas",
)
WIDTHS: Final = (6, 8, 4, max(map(len, names())), 9, 7, 7, 9, 8, 6, 10, 8, 8)


def record(row: ChampionshipRow) -> dict[str, Any]:
    """Returns plain values for JSON. Equal cells and policies give equal records; a figure that is not known is
    null."""
    cell, played = row.cell, row.played
    found: dict[str, Any] = {
        "trace": cell.trace,
        "groups": cell.groups,
        "start_up_s": cell.start_up_s,
        "seed": cell.seed,
        "policy": row.policy,
        "learned_s": cell.lengths.learn_s,
        "judged_s": cell.lengths.judged_s,
        "min_run_s": cell.min_run_s,
    }
    if isinstance(played, Failed):
        return found | {"error": played.why}
    b0, bq = bounds(row)
    found |= {
        "requests": played.requests,
        "late_share": played.late_share,
        "failed_share": played.failed_share,
        "keeps_sla": keeps(row),
        "cost_dollars": played.cost_dollars,
        "b0_dollars": b0,
        "bq_dollars": bq,
        "cost_over_b0": over(played.cost_dollars, b0),
        "cost_over_bq": over(played.cost_dollars, bq),
        "p50_s": played.p50_s,
        "p99_s": played.p99_s,
        "cold_starts": played.cold_starts,
        "starts_per_day": played.starts_per_day,
        "cold_start_requests": played.cold_start_requests,
        "mean_replicas": played.mean_replicas,
        "most_replicas": played.most_replicas,
    }
    if isinstance(row.bound, Failed):
        found["no_bound"] = row.bound.why
    return found


def bounds(row: ChampionshipRow) -> tuple[float | None, float | None]:
    """Returns (B0, Bq) in dollars; None where there is none."""
    if row.bound is None or isinstance(row.bound, Failed):
        return None, None
    b0, bq = row.bound.b0, row.bound.bq
    return (b0 if b0 < float("inf") else None), (bq if bq < float("inf") else None)


def over(cost: float, bound: float | None) -> float | None:
    return cost / bound if bound else None


def keeps(row: ChampionshipRow) -> bool:
    """Returns whether the row keeps the SLA."""
    return not isinstance(row.played, Failed) and row.played.late_share <= ALLOWED


# --- words


def text(row: ChampionshipRow) -> str:
    """Returns one line of text."""
    cells = cells_of(row)
    return f"{row.cell.trace:<10}" + " ".join(f"{each:>{width}}" for each, width in zip(cells, WIDTHS, strict=False))


def head() -> str:
    """Returns the line above the rows."""
    return f"{'trace':<10}" + " ".join(f"{each:>{width}}" for each, width in zip(HEAD, WIDTHS, strict=True))


def cells_of(row: ChampionshipRow) -> tuple[str, ...]:
    """Returns the cells of a row, by :data:`HEAD`; a row that could not be played has its reason in place of
    figures."""
    cell, played = row.cell, row.played
    place = (str(cell.groups), f"{cell.start_up_s:g} s", str(cell.seed), row.policy)
    if isinstance(played, Failed):
        return (*place, f"failed: {played.why}")
    b0, bq = bounds(row)
    return (
        *place,
        f"{100.0 * played.late_share:.3f} %",
        _times(over(played.cost_dollars, b0)),
        _times(over(played.cost_dollars, bq)),
        f"${played.cost_dollars:.4g}",
        "-" if played.p99_s is None else f"{played.p99_s * 1e3:.0f} ms",
        str(played.cold_starts),
        f"{played.starts_per_day:.0f}",
        str(played.cold_start_requests),
        f"{played.mean_replicas:.2f}",
    )


def _times(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


# --- HTML


def html(result: ChampionshipResult, notes: Sequence[str]) -> str:
    """Returns one file: for each trace plots over the start-up time, and a table sorted by cost."""
    parts = []
    if result.missing:
        parts.append(page.verdict(f"Interrupted: {result.missing} rows are missing.", False))
    parts.append(
        page.paragraph(
            "Cost over B0: dollars over the least that any fleet costs with no late request, for a planner that knows "
            f"the future; over Bq: with {100.0 * ALLOWED:g} % late. Late: requests later than the SLA allows, or "
            "failed. A policy keeps the SLA with at most that share late."
        )
    )
    parts += [page.paragraph(note) for note in notes]
    for name in dict.fromkeys(row.cell.trace for row in result.rows):
        rows = [row for row in result.rows if row.cell.trace == name]
        parts += _section(name, rows)
    return page.page("Championship of the policies", parts)


def _section(name: str, rows: Sequence[ChampionshipRow]) -> Iterator[str]:
    league, lengths = LEAGUES[name], rows[0].cell.lengths
    yield page.heading(f"{name}: {league.title}")
    yield page.paragraph(
        f"{100.0 * QUANTILE:g} % within {league.service.latency_s:g} s; {lengths.judged_s / 3600.0:g} h judged after "
        f"{lengths.learn_s / 3600.0:g} h of learning."
    )
    is_seeded = len({row.cell.seed for row in rows}) > 1
    shown = [index for index, name in enumerate(HEAD) if name != "starts" and (is_seeded or name != "seed")]
    head = (*(HEAD[index] for index in shown), "SLA")
    yield page.table(head, (_cells(row, shown) for row in ranked(rows)), _marks(rows))
    for groups in dict.fromkeys(row.cell.groups for row in rows):
        yield from page.plots(_plots(groups, [row for row in rows if row.cell.groups == groups]))


def ranked(rows: Iterable[ChampionshipRow]) -> list[ChampionshipRow]:
    """Returns rows by fleet, start-up time and seed; there those that keep the SLA come first, cheapest first, and
    the others by their late share."""

    def key(row: ChampionshipRow) -> tuple[int, float, int, int, float, str]:
        cell, played = row.cell, row.played
        place = (cell.groups, cell.start_up_s, cell.seed)
        if isinstance(played, Failed):
            return (*place, 2, 0.0, row.policy)
        value = played.cost_dollars if keeps(row) else played.late_share
        return (*place, 0 if keeps(row) else 1, value, row.policy)

    return sorted(rows, key=key)


def _cells(row: ChampionshipRow, shown: Sequence[int]) -> tuple[str, ...]:
    """Returns the cells of a row on the page, by the places of :data:`HEAD` that it shows."""
    cells = cells_of(row)
    padded = (*cells, *("" for _ in range(len(HEAD) - len(cells))))
    return (*(padded[index] for index in shown), "kept" if keeps(row) else "broken")


def _marks(rows: Iterable[ChampionshipRow]) -> Iterator[page.Mark | None]:
    for row in ranked(rows):
        yield "good" if keeps(row) else "bad"


def _plots(groups: int, rows: Sequence[ChampionshipRow]) -> Iterator[Plot]:
    """Yields cost and late share over the start-up time, means over the seeds, and replicas over time."""
    words = "one group" if groups == 1 else f"{groups} groups"
    policies = list(dict.fromkeys(row.policy for row in rows))
    colours = {policy: PALETTE[index % len(PALETTE)] for index, policy in enumerate(policies)}
    costs = {policy: _means(rows, policy, lambda row, cost, late: over(cost, bounds(row)[0])) for policy in policies}
    late = {
        policy: _means(rows, policy, lambda row, cost, late: min(MOST_LATE_PERCENT, 100.0 * late))
        for policy in policies
    }
    if any(costs.values()):
        yield Plot(f"Cost over B0 by start-up time, {words}", "", _series(costs, colours))
    last = max(row.cell.start_up_s for row in rows)
    limit = Series("allowed", ((0.0, 100.0 * ALLOWED), (last, 100.0 * ALLOWED)), COLOURS["limit"], dashed=True)
    yield Plot(
        f"Late requests by start-up time, {words} (10 % and more drawn at 10 %)", "%", (*_series(late, colours), limit)
    )
    shown = _shown(rows)
    if shown:
        cell = shown[0].cell
        yield Plot(
            f"Ready replicas over time, {words}, start-up {cell.start_up_s:g} s, seed {cell.seed}",
            "",
            tuple(
                Series(row.policy, row.played.ready, colours[row.policy])
                for row in shown
                if not isinstance(row.played, Failed)
            ),
            x_unit="h",
        )


def _means(rows: Sequence[ChampionshipRow], policy: str, figure: Any) -> tuple[tuple[float, float], ...]:
    """Returns (start-up time, mean over seeds)."""
    found: dict[float, list[float]] = {}
    for row in rows:
        if row.policy == policy and not isinstance(row.played, Failed):
            value = figure(row, row.played.cost_dollars, row.played.late_share)
            if value is not None:
                found.setdefault(row.cell.start_up_s, []).append(value)
    return tuple((at, sum(values) / len(values)) for at, values in sorted(found.items()))


def _series(curves: dict[str, tuple[tuple[float, float], ...]], colours: dict[str, str]) -> tuple[Series, ...]:
    return tuple(Series(policy, points, colours[policy]) for policy, points in curves.items() if points)


def _shown(rows: Sequence[ChampionshipRow]) -> list[ChampionshipRow]:
    """Returns the rows of the middle start-up time and the first seed."""
    starts = sorted({row.cell.start_up_s for row in rows})
    seed = min(row.cell.seed for row in rows)
    middle = starts[len(starts) // 2]
    return [row for row in rows if row.cell.start_up_s == middle and row.cell.seed == seed]
