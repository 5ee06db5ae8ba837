"""Results of the laboratory: a live figure beside the simulated one, and the required values. Pure."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median

from tidegate.columns import aligned

TOLERANCE_S = 1
"""Replicas may come and go so much sooner or later: live decisions fall anywhere in a second, simulated ones at its
end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One figure. ``live`` and ``simulated`` None: it is of the other one alone."""

    experiment: str
    case: str
    measure: str
    """With its unit where it has one: ``throughput_ips``."""
    live: float | None = None
    simulated: float | None = None
    least: float | None = None
    most: float | None = None
    """Bounds of the live figure."""
    apart: float | None = None
    """Most by which the live figure may differ from the simulated one, as a part of that."""
    is_judged: bool = True
    """False: what was required is shown and does not count (a smoke run is too short for it)."""
    note: str = ""

    @property
    def difference(self) -> float | None:
        """Difference of the live figure from the simulated one, as a share of the latter."""
        if self.live is None or not self.simulated:
            return None
        return self.live / self.simulated - 1.0

    @property
    def holds(self) -> bool | None:
        """None: nothing was required."""
        if self.least is None and self.most is None and self.apart is None:
            return None
        if self.live is None:
            return False
        inside = (self.least is None or self.live >= self.least) and (self.most is None or self.live <= self.most)
        if self.apart is None:
            return inside
        return inside and self.difference is not None and abs(self.difference) <= self.apart

    @property
    def is_missed(self) -> bool:
        return self.is_judged and self.holds is False

    @property
    def required(self) -> str:
        """In signs: ``>= 5 and <= 8``."""
        low = "" if self.least is None else f">= {self.least:g}"
        high = "" if self.most is None else f"<= {self.most:g}"
        near = "" if self.apart is None else f"within {100 * self.apart:g} % of simulated"
        return " and ".join(filter(None, (low, high, near)))

    def record(self) -> dict[str, object]:
        """For JSON: what is unknown is left out, numbers have four significant digits."""
        kept = {name: value for name, value in asdict(self).items() if name not in ("least", "most", "apart")}
        kept |= {name: rounded(kept[name]) for name in ("live", "simulated")}
        kept |= {"difference": rounded(self.difference), "required": self.required, "holds": self.holds}
        is_judged = kept.pop("is_judged")
        found = {name: value for name, value in kept.items() if value not in (None, "")}
        if self.holds is not None and not is_judged:
            found["judged"] = False
        return {"benchmark": "laboratory"} | found


def rounded(value: float | None) -> float | None:
    """Four significant digits; None where there is no such number."""
    return None if value is None or not math.isfinite(value) else float(f"{value:.4g}")


HEADINGS = ("experiment", "case", "measure", "live", "simulated", "required", "", "note")


def table(rows: Sequence[Row]) -> str:
    """For a terminal."""
    return "\n".join(aligned([HEADINGS, *map(_cells, rows)]))


def _cells(row: Row) -> tuple[str, ...]:
    judged = {True: "holds", False: "MISSED" if row.is_judged else "(missed)", None: ""}[row.holds]
    live, simulated = ("-" if value is None else f"{rounded(value):g}" for value in (row.live, row.simulated))
    return (row.experiment, row.case, row.measure, live, simulated, row.required, judged, row.note)


def by_second(points: Sequence[tuple[float, int]], seconds: int) -> list[int]:
    """Returns the count at the end of each second 1, 2, ..., ``seconds``: that of the last point up to then, 0 before
    the first. ``points``: (seconds, count), rising in time."""
    found, index, count = [], 0, 0
    for second in range(1, seconds + 1):
        while index < len(points) and points[index][0] <= second:
            count = points[index][1]
            index += 1
        found.append(count)
    return found


def equal_share(live: Sequence[int], simulated: Sequence[int], tolerance: int = TOLERANCE_S) -> float:
    """Share of the seconds in which there are as many live as there are simulated at most ``tolerance`` seconds sooner
    or later. 1.0 of no seconds at all."""
    seconds = min(len(live), len(simulated))
    near = (simulated[max(0, second - tolerance) : second + tolerance + 1] for second in range(seconds))
    return sum(live[second] in around for second, around in enumerate(near)) / seconds if seconds else 1.0


def start_s(starts: Sequence[Mapping[str, float]]) -> float | None:
    """Returns the median start-up time of a replica; None if no start was seen. A start appears in many readings and
    counts once."""
    found: dict[str, float] = {}
    for each in starts:
        found.update(each)
    return median(found.values()) if found else None
