"""Results of an experiment: one row for each figure, with its required value. Pure."""

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field

from tidegate.columns import aligned

Value = float | int | str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One figure."""

    experiment: str
    case: str
    measure: str
    """With its unit where it has one: ``throughput_ips``."""
    value: float | None
    """None: not measured; the note says why."""
    least: float | None = None
    most: float | None = None
    is_judged: bool = True
    """False: its bound is shown and does not count (a smoke run is too short for it)."""
    note: str = ""

    @property
    def holds(self) -> bool | None:
        """None: nothing was required of it, or it was not measured."""
        if self.value is None or (self.least is None and self.most is None):
            return None
        enough = self.least is None or self.value >= self.least
        return enough and (self.most is None or self.value <= self.most)

    @property
    def is_missed(self) -> bool:
        """Whether a judged bound does not hold."""
        return self.is_judged and self.holds is False

    @property
    def required(self) -> str:
        """In signs: ``>= 0.97``."""
        low = "" if self.least is None else f">= {self.least:g}"
        high = "" if self.most is None else f"<= {self.most:g}"
        return " and ".join(filter(None, (low, high)))

    def record(self) -> dict[str, Value]:
        """For JSON: what is unknown is left out, numbers have four significant digits."""
        kept = asdict(self) | {"value": rounded(self.value), "required": self.required, "holds": self.holds}
        left_out = ("least", "most", "is_judged")
        found = {name: value for name, value in kept.items() if name not in left_out and value not in (None, "")}
        if self.holds is not None and not self.is_judged:
            found["judged"] = False
        return {"benchmark": "autoscaling"} | found


def rounded(value: float | None) -> float | None:
    """Four significant digits, at least whole numbers; None where there is no such number."""
    if value is None or not math.isfinite(value):
        return None
    return float(round(value)) if abs(value) >= 1e4 else float(f"{value:.4g}")


@dataclass(slots=True)
class Judge:
    """Makes the rows of one experiment. In a smoke run only what must hold at any length is judged."""

    experiment: str
    smoke: bool
    rows: list[Row] = field(default_factory=list)

    def row(
        self,
        case: str,
        measure: str,
        value: float | None,
        *,
        least: float | None = None,
        most: float | None = None,
        always: bool = False,
        note: str = "",
    ) -> Row:
        """``always``: judged in a smoke run too."""
        row = Row(
            experiment=self.experiment,
            case=case,
            measure=measure,
            value=value,
            least=least,
            most=most,
            is_judged=always or not self.smoke,
            note=note,
        )
        self.rows.append(row)
        return row


HEADINGS = ("experiment", "case", "measure", "value", "required", "", "note")


def table(rows: Iterable[Row]) -> str:
    """For a terminal."""
    return "\n".join(aligned([HEADINGS, *map(_cells, rows)]))


def _cells(row: Row) -> tuple[str, ...]:
    value = rounded(row.value)
    judged = {True: "holds", False: "MISSED" if row.is_judged else "(missed)", None: ""}[row.holds]
    shown = "-" if value is None else f"{value:g}"
    return (row.experiment, row.case, row.measure, shown, row.required, judged, row.note)
