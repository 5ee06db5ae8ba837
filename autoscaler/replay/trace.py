"""A plain CSV of observations as a recording: one row a moment, or one row for each group of it.

Rows of one moment have the same ``at`` and different accelerators; columns that are not of a group are read from the
first row. An absent column and an empty cell are *unknown*: a policy with unknown inputs holds. Without a column
``ready`` the replicas are those wanted at the moment before (from one on), ready at once.
"""

import csv
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from tidegate.autoscaler.decider import Decider
from tidegate.autoscaler.measure.observation import GroupObservation, Observation
from tidegate.autoscaler.replay.player import Difference, Moment, Played, is_missed
from tidegate.autoscaler.replay.recording import MAX_FAULTS, Step
from tidegate.errors import Fault, InvalidInputError
from tidegate.function import Function, Revision
from tidegate.records.decision import Decision

MAX_VALUE: Final = 1e15
MAX_REPLICAS: Final = 1_000_000
GROUP: Final = "default"
"""The accelerator if no column names one."""
METRIC: Final = "metric:"
"""Prefix of a column with a metric of a device or model server."""


@dataclass(frozen=True, slots=True)
class Column:
    field: str
    """Field of the observation, or of its group."""
    is_whole: bool = False
    scale: float = 1.0
    """Factor of the cell: 1e-3 where milliseconds become seconds."""
    high: float = MAX_VALUE
    of_group: bool = False


COLUMNS: Final[Mapping[str, Column]] = MappingProxyType(
    {
        "lambda_ips": Column("lambda_ips"),
        "rps": Column("rps"),
        "concurrency": Column("concurrency"),
        "concurrency_inferences": Column("concurrency_inferences"),
        "waiting": Column("waiting", is_whole=True),
        "waiting_inferences": Column("waiting_inferences", is_whole=True),
        "oldest_waiting_ms": Column("oldest_waiting_s", scale=1e-3),
        "latency_ms": Column("latency_s", scale=1e-3),
        "within_sla": Column("within_sla", high=1.0),
        "idle_s": Column("idle_s"),
        "desired": Column("desired", is_whole=True, high=MAX_REPLICAS),
        "ready": Column("ready", is_whole=True, high=MAX_REPLICAS, of_group=True),
        "starting": Column("starting", is_whole=True, high=MAX_REPLICAS, of_group=True),
        "draining": Column("draining", is_whole=True, high=MAX_REPLICAS, of_group=True),
        "room": Column("room", is_whole=True, high=MAX_REPLICAS, of_group=True),
        "price_per_hour": Column("price_per_hour", of_group=True),
        "mu_ips": Column("mu_ips", of_group=True),
        "limit": Column("limit", is_whole=True, high=MAX_REPLICAS, of_group=True),
        "busy": Column("busy", of_group=True),
        "mean_batch": Column("mean_batch", of_group=True),
        "execution_ms": Column("execution_s", scale=1e-3, of_group=True),
        "tail_ms": Column("tail_s", scale=1e-3, of_group=True),
        "answers": Column("answers", is_whole=True, of_group=True),
        "late": Column("late", is_whole=True, of_group=True),
        "group_latency_ms": Column("latency_s", scale=1e-3, of_group=True),
        "group_concurrency": Column("concurrency", of_group=True),
        "group_ips": Column("ips", of_group=True),
    }
)

Cells = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class TraceRow:
    line: int
    at: float
    accelerator: str
    cells: Cells
    """Values by column; unknown ones are absent."""
    metrics: Cells


@dataclass(frozen=True, slots=True)
class Trace:
    columns: frozenset[str]
    moments: tuple[tuple[TraceRow, ...], ...]
    """The rows of each moment, in order of time."""


def parse(lines: Iterable[str]) -> Trace:
    """Returns the rows of a CSV. Raises InvalidInputError with all faults, each with its line."""
    faults: list[Fault] = []
    reader = csv.reader(lines)
    try:
        names = [name.strip() for name in next(reader, [])]
        _check_names(names, faults)
        moments: list[list[TraceRow]] = []
        for cells in reader:
            if len(faults) >= MAX_FAULTS:
                faults.append(Fault("file", "more faults", f"the first {MAX_FAULTS} are listed"))
                break
            if not any(cell.strip() for cell in cells):
                continue
            row = _row(names, cells, reader.line_num, faults)
            if row is not None:
                _place(row, moments, faults)
    except csv.Error as error:
        raise InvalidInputError("trace", [Fault("line", str(error), "a CSV row", reader.line_num)]) from error
    if not moments and not faults:
        faults.append(Fault("file", "no rows", "a header row and at least one row"))
    if faults:
        raise InvalidInputError("trace", faults)
    return Trace(frozenset(names), tuple(tuple(rows) for rows in moments))


def _check_names(names: Sequence[str], faults: list[Fault]) -> None:
    known = ("at", "accelerator", "complete", *COLUMNS)
    if "at" not in names:
        faults.append(Fault("at", "no such column", "a column `at`: seconds", 1))
    for name in names:
        if name not in known and not (name.startswith(METRIC) and len(name) > len(METRIC)):
            faults.append(Fault("column", repr(name), f"one of {', '.join(known)}, {METRIC}NAME", 1))
        elif names.count(name) > 1:
            faults.append(Fault("column", repr(name), "each column once", 1))


def _row(names: Sequence[str], cells: Sequence[str], line: int, faults: list[Fault]) -> TraceRow | None:
    if len(cells) != len(names):
        faults.append(Fault("row", f"{len(cells)} cells", f"{len(names)} cells, as in the header row", line))
        return None
    values: dict[str, float] = {}
    metrics: dict[str, float] = {}
    accelerator, at = GROUP, None
    for name, cell in zip(names, cells, strict=True):
        text = cell.strip()
        if name == "accelerator":
            accelerator = text or GROUP
        elif name == "at":
            at = _number(text, Column("at"), name, line, faults)
        elif name == "complete":
            if text.lower() not in ("", "true", "false"):
                faults.append(Fault(name, repr(text), "true or false", line))
            values[name] = 0.0 if text.lower() == "false" else 1.0
        elif text:
            into = metrics if name.startswith(METRIC) else values
            column = COLUMNS.get(name, Column("metrics"))
            value = _number(text, column, name, line, faults)
            if value is not None:
                into[name.removeprefix(METRIC)] = value
    return None if at is None else TraceRow(line, at, accelerator, values, metrics)


def _number(text: str, column: Column, name: str, line: int, faults: list[Fault]) -> float | None:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    is_right = 0 <= value <= column.high and not (column.is_whole and value != math.floor(value))
    if not is_right:
        kind = "a whole number" if column.is_whole else "a number"
        faults.append(Fault(name, repr(text), f"{kind}, 0 to {column.high:g}", line))
        return None
    return value


def _place(row: TraceRow, moments: list[list[TraceRow]], faults: list[Fault]) -> None:
    """Adds a row to the present moment or a new one."""
    now = moments[-1] if moments else None
    if now is None or row.at > now[0].at:
        moments.append([row])
    elif row.at < now[0].at:
        faults.append(Fault("at", repr(row.at), f"not before the row above, at {now[0].at:g}", row.line))
    elif any(row.accelerator == other.accelerator for other in now):
        faults.append(Fault("accelerator", repr(row.accelerator), "each accelerator once for each `at`", row.line))
    else:
        now.append(row)


# --- the replay ------------------------------------------------------------------------------------------------------


def needed(function: Function) -> tuple[str, ...]:
    """Returns the columns that a policy needs: it holds while one of them is unknown."""
    parameters = function.scaling.parameters
    match function.scaling.policy:
        case "smif" | "tide" | "hetsev-greedy" | "hetsev-ilp" | "k8s-baseline":
            return ("lambda_ips",)
        case "oltunes" | "orion" | "reserve-and-pack":
            return ("lambda_ips",)
        case "themis" | "horizontal-only" | "vertical-only":
            return ("rps",)
        case "kpa":
            return (parameters.get("metric", "concurrency"),)
        case "hpa":
            metric = parameters.get("metric", "busy")
            return {"busy": ("busy",), "slots": ("group_concurrency", "limit")}.get(metric, (METRIC + metric,))
        case _:
            return ()


def play(trace: Trace, function: Function) -> Played:
    """Decides with ``function`` at every moment; a column ``desired`` of the trace is compared with the result. Raises
    InvalidInputError if a column that the policy needs is missing."""
    missing = [name for name in needed(function) if name not in trace.columns]
    if missing:
        policy = function.scaling.policy
        raise InvalidInputError(
            "trace", [Fault(name, "no such column", f"a column: {policy} goes by it", 1) for name in missing]
        )
    revision, decider, moments = Revision(function, 1), Decider(), list[Moment]()
    wanted: dict[str, int] | None = None
    active_at = trace.moments[0][0].at
    for rows in trace.moments:
        seen = _observation(rows, revision, wanted, active_at)
        if seen.lambda_ips > 0 or seen.concurrency > 0 or seen.waiting > 0:
            active_at = seen.at
        if not moments:
            decider.apply(revision, seen.at, fresh=False, ready=seen.ready)
        replayed = decider.tick(seen.at, seen)
        recorded = _recorded(rows[0], seen, replayed)
        step = Step(observation=seen, decision=recorded)
        moments.append(Moment(step, replayed, is_missed(step, function)))
        wanted = _next(seen, replayed)
    return _compared(function, revision.id, trace, moments)


def _next(seen: Observation, replayed: Decision) -> dict[str, int]:
    """Returns the replicas that are ready at the next moment if the trace has no such column."""
    if replayed.groups is None or replayed.is_dry_run:
        return {group.accelerator: group.ready for group in seen.groups}
    return {group.accelerator: group.replicas for group in replayed.groups}


def _observation(
    rows: Sequence[TraceRow], revision: Revision, wanted: Mapping[str, int] | None, active_at: float
) -> Observation:
    first = rows[0]
    known: dict[str, Any] = {
        COLUMNS[name].field: _value(name, value) for name, value in first.cells.items() if _is_of_revision(name)
    }
    known.pop("desired", None)
    known.setdefault("waiting_inferences", known.get("waiting", 0))
    known.setdefault("concurrency_inferences", known.get("concurrency", 0.0))
    known.setdefault("rps", known.get("lambda_ips", 0.0))
    at = first.at
    known.setdefault("idle_s", 0.0 if known.get("lambda_ips") or known.get("waiting") else max(0.0, at - active_at))
    groups = tuple(_group(row, known, wanted, alone=len(rows) == 1) for row in rows)
    is_known = all(_knows(rows, name) for name in needed(revision.function))
    return Observation(
        function=revision.function.name,
        revision=revision.id,
        at=at,
        complete=is_known and first.cells.get("complete", 1.0) > 0,
        age_s=0.0,
        groups=groups,
        **known,
    )


def _group(
    row: TraceRow, known: Mapping[str, Any], wanted: Mapping[str, int] | None, *, alone: bool
) -> GroupObservation:
    """Returns the observation of a group. ``alone``: the only group of its moment has the figures of the revision."""
    values: dict[str, Any] = {
        COLUMNS[name].field: _value(name, value)
        for name, value in row.cells.items()
        if name in COLUMNS and COLUMNS[name].of_group
    }
    if "ready" not in values:
        values["ready"] = 1 if wanted is None else wanted.get(row.accelerator, 0)
    if alone:
        values.setdefault("latency_s", known.get("latency_s"))
        values.setdefault("concurrency", known.get("concurrency", 0.0))
        values.setdefault("ips", known.get("lambda_ips", 0.0))
        values.setdefault("rps", known.get("rps", 0.0))
    if "mu_ips" in values:
        values["is_mu_learnt"] = True
    return GroupObservation(accelerator=row.accelerator, sampled=values["ready"], metrics=dict(row.metrics), **values)


def _is_of_revision(name: str) -> bool:
    return name in COLUMNS and not COLUMNS[name].of_group


def _value(name: str, value: float) -> float | int:
    column = COLUMNS[name]
    return int(value) if column.is_whole else value * column.scale


def _knows(rows: Sequence[TraceRow], name: str) -> bool:
    if name.startswith(METRIC):
        return any(name.removeprefix(METRIC) in row.metrics for row in rows)
    if COLUMNS[name].of_group:
        return any(name in row.cells for row in rows)
    return name in rows[0].cells


def _recorded(row: TraceRow, seen: Observation, replayed: Decision) -> Decision | None:
    """Returns the decision that a column ``desired`` records."""
    known = row.cells.get("desired")
    if known is None:
        return None
    return Decision(
        function=seen.function,
        revision=seen.revision,
        at=seen.at,
        policy=replayed.policy,
        ready=seen.ready,
        desired=int(known),
        groups=None,
        reasons=(),
    )


def _compared(function: Function, revision: str, trace: Trace, moments: Sequence[Moment]) -> Played:
    compared, difference = 0, None
    for rows, moment in zip(trace.moments, moments, strict=True):
        recorded = moment.step.decision
        if recorded is None:
            continue
        compared += 1
        if difference is None and recorded.desired != moment.replayed.desired:
            difference = Difference(rows[0].line, recorded.at, "desired", recorded.desired, moment.replayed.desired)
    return Played(function, revision, tuple(moments), compared, difference)
