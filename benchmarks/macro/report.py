"""Measurements by round, and their results: medians of per-round ratios, bounds, a table."""

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

from tidegate.columns import aligned

Key = tuple[str, str, str]
"""(load, proxy, measure)."""


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that at least so many percent do not exceed (nearest rank)."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]


def pooled(rounds: Sequence[Sequence[float]], size: int) -> list[list[float]]:
    """Joins the values of so many rounds each time. Rounds that are left over go to the last ones."""
    starts = range(0, max(len(rounds) - size, 0) + 1, size)
    ends = (*starts[1:], len(rounds))
    return [[value for each in rounds[start:end] for value in each] for start, end in zip(starts, ends, strict=True)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One figure. The bound is on the ratio where there is one, on the value where not."""

    benchmark: str = "macro"
    question: str
    load: str
    proxy: str
    measure: str
    """With its unit: ``cpu_us_per_request``."""
    value: float | None
    """Median over the rounds; None: not measured, see the note."""
    value_min: float | None = None
    value_max: float | None = None
    against: str | None = None
    """The denominator of the ratio: a proxy, and its measure if that is another one."""
    ratio: float | None = None
    """Median of the per-round ratios."""
    ratio_min: float | None = None
    ratio_max: float | None = None
    bound: float | None = None
    least: bool = False
    """The bound is a lower one."""
    holds: bool | None = None
    rounds: int = 0
    note: str = ""

    def record(self) -> dict[str, object]:
        """For JSON: what is unknown is left out."""
        return {
            name: value for name, value in asdict(self).items() if value is not None and value not in ("", False)
        } | ({"holds": self.holds} if self.holds is not None else {})


def missing(question: str, load: str, proxy: str, why: str) -> Row:
    """A figure that cannot be taken here, said aloud."""
    return Row(question=question, load=load, proxy=proxy, measure="-", value=None, note=f"not measured: {why}")


class Book:
    """The figures of one question, one per round."""

    def __init__(self, question: str) -> None:
        self.question = question
        self._figures: dict[Key, list[float]] = defaultdict(list)

    def add(self, load: str, proxy: str, **measures: float) -> None:
        """The figures of one visit."""
        for measure, value in measures.items():
            self._figures[load, proxy, measure].append(value)

    def last(self, load: str, proxy: str, measure: str) -> float:
        return self._figures[load, proxy, measure][-1]

    def row(
        self,
        load: str,
        proxy: str,
        measure: str,
        *,
        against: str | None = None,
        their_measure: str | None = None,
        bound: float | None = None,
        least: bool = False,
        note: str = "",
    ) -> Row:
        """The figure of all rounds; ``against`` another proxy under the same load, where it was measured."""
        ours = self._figures[load, proxy, measure]
        theirs = self._figures.get((load, against, their_measure or measure), []) if against is not None else []
        ratios = [mine / other if other > 0 else math.inf for mine, other in zip(ours, theirs, strict=False)]
        judged = ratios if against is not None else ours
        holds = None
        if bound is not None and judged:
            middle = statistics.median(judged)
            holds = middle >= bound if least else middle <= bound
        named = f"{against} {their_measure}" if their_measure is not None else against
        return Row(
            question=self.question,
            load=load,
            proxy=proxy,
            measure=measure,
            value=_rounded(statistics.median(ours)),
            value_min=_rounded(min(ours)),
            value_max=_rounded(max(ours)),
            against=named if ratios else None,
            ratio=_rounded(statistics.median(ratios)) if ratios else None,
            ratio_min=_rounded(min(ratios)) if ratios else None,
            ratio_max=_rounded(max(ratios)) if ratios else None,
            bound=bound,
            least=least,
            holds=holds,
            rounds=len(ours),
            note=note or (f"not measured: no {against} beside it" if against is not None and not ratios else ""),
        )


def _rounded(value: float) -> float | None:
    """Four significant digits; None where there is no such number (a ratio to nothing)."""
    return float(f"{value:.4g}") if math.isfinite(value) else None


HEADINGS = ("question", "load", "proxy", "measure", "value", "ratio", "spread", "bound", "")


def _cells(row: Row) -> tuple[str, ...]:
    sign = "≥" if row.least else "≤"
    low, high = (row.value_min, row.value_max) if row.ratio is None else (row.ratio_min, row.ratio_max)
    return (
        row.question,
        row.load,
        row.proxy,
        row.measure,
        "-" if row.value is None else f"{row.value:g}",
        "" if row.ratio is None else f"{row.ratio:.2f} x {row.against}",
        "" if low is None or high is None else f"{low:g}–{high:g}",
        "" if row.bound is None else f"{sign} {row.bound:g}",
        " ".join(filter(None, ({True: "holds", False: "MISSED", None: ""}[row.holds], row.note))),
    )


def table(rows: Iterable[Row]) -> str:
    """For a terminal."""
    return "\n".join(aligned([HEADINGS, *map(_cells, rows)]))


def markdown(rows: Iterable[Row]) -> str:
    """For a page of the documentation."""
    lines = [(*HEADINGS[:-1], "judgement"), ("---",) * len(HEADINGS), *map(_cells, rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
