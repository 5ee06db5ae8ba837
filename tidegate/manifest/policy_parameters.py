"""Parameters of Tidegate's own policies: one row each, read by the manifest (bounds) and by the policies (values)."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final

from tidegate.schema.rows import Choice, Duration, Kind, Number, Percent, Row, Text, Whole, WordOr, YesNo


class Shrinking(StrEnum):
    """Reaction of policy ``hpa`` to a smaller recommendation."""

    STABILIZATION = "stabilization"
    """Scales in to the largest recommendation of the cool-down."""
    COOLDOWN = "cooldown"
    """Scales in at once, but not before a cool-down has passed since the last change."""


class QueueModel(StrEnum):
    """The wait for a batch that the programs of Themis count."""

    MEAN = "mean"
    """The first request waits for ``b - 1`` mean gaps between arrivals."""
    P99 = "p99"
    """It waits for as many 99th percentiles of a gap."""


def _row(key: str, kind: Kind, default: str, description: str) -> Row:
    return Row(key=key, kind=kind, default=default, field=f"scaling.parameters.{key}", description=description)


SMIF_PARAMETERS: Final[tuple[Row, ...]] = (
    _row(
        "target-utilization",
        Percent(10, 99),
        "80",
        "Share of a replica's service rate to plan for.",
    ),
    _row(
        "down-watermark",
        Percent(1, 100),
        "50",
        "A group scales in only while its latency is at most this share of the target.",
    ),
    _row(
        "cooldown",
        Duration(1, 3600),
        "60s",
        "Time for which scale-in must have been possible before a group scales in.",
    ),
    _row("max-up-factor", Number(1, 100), "2", "Maximum growth of a group for one miss of the target, as a factor."),
)

TIDE_PARAMETERS: Final[tuple[Row, ...]] = (
    _row(
        "sla-effort",
        Number(0.01, 10_000),
        "20",
        "The most that the SLA may cost: highest price of a late request, where 1 is the price of a replica for as long"
        " as the SLA allows one late request.",
    ),
)

_NUMBER: Final = r"-?[0-9]{1,9}(?:\.[0-9]{1,9})?"
THEMIS_PROFILE: Final = Text(
    f"measured|{_NUMBER}(?:,{_NUMBER}){{3}}",
    "measured, or the milliseconds GAMMA,EPSILON,DELTA,ETA of gamma*b/c + epsilon/c + delta*b + eta",
)
_THEMIS: Final = {
    row.key: row
    for row in (
        _row(
            "profile",
            THEMIS_PROFILE,
            "measured",
            "Latency of a batch of b on c cores. `measured`: the least execution time of a request, over the cores.",
        ),
        _row("headroom", Number(1, 10), "1.2", "Multiple of the load that the replicas must carry."),
        _row(
            "load-window",
            Duration(1, 60),
            "10s",
            "The load is the largest rate of a second in this time.",
        ),
        _row("queue-model", Choice(QueueModel), "mean", "The wait for the last request of a batch that is counted."),
        _row("max-cores", Whole(1, 1024), "8", "Most cores of a replica."),
        _row(
            "stabilization",
            Duration(1, 3600),
            "10s",
            "Time for which fewer cores or replicas must have been enough before they are taken away.",
        ),
    )
}
THEMIS_PARAMETERS: Final[tuple[Row, ...]] = tuple(_THEMIS.values())
HORIZONTAL_PARAMETERS: Final[tuple[Row, ...]] = tuple(row for key, row in _THEMIS.items() if key != "max-cores")

HPA_PARAMETERS: Final[tuple[Row, ...]] = (
    _row(
        "metric",
        Text(
            r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}",
            "the name of a metric: busy, slots, or one of devices and model servers (gpu-memory, queue-s)",
        ),
        "busy",
        "Metric averaged over the ready replicas, in percent, seconds (names that end in -s), requests or inferences.",
    ),
    _row("target", Percent(0.001, 1000), "60", "Value to hold the metric at, in its unit."),
    _row("tolerance", Percent(0, 100), "10", "Deviation from the target without effect."),
    _row("period", Duration(1, 3600), "15s", "Time between two evaluations."),
    _row("window", Duration(1, 3600), "60s", "Time over which the metric is averaged."),
    _row("cooldown", Duration(0, 86_400), "5m", "Cool-down of scale-in."),
    _row(
        "shrink",
        Choice(Shrinking),
        "stabilization",
        "Whether scale-in goes to the largest recommendation of the cool-down, or waits for its end.",
    ),
)

HETSEV_PARAMETERS: Final[tuple[Row, ...]] = (
    _row(
        "saturation",
        Percent(10, 99),
        "80",
        "Share of the capacity whose use launches instances, and that they are sized for.",
    ),
    _row("hold", Duration(0, 3600), "30s", "Time for which it must be exceeded."),
    _row("cooldown", Duration(0, 86_400), "5m", "Time after a change before an instance is removed."),
    _row(
        "launch-weight",
        Number(0, 1000),
        "0.01",
        "Weight of the launch latency, per second of it: unpredictable loads weigh it more; 0: the price alone.",
    ),
    _row("period", Duration(1, 3600), "15s", "Time between two steps."),
    _row("window", Duration(1, 3600), "2m", "Time over which arrivals are averaged."),
    _row(
        "best-effort",
        YesNo(),
        "false",
        "Whether to launch the fastest kind where none meets the latency target; else nothing is launched.",
    ),
)

_KINDS_SIZING: Final = (
    _row("target-utilization", Percent(10, 99), "80", "Share of a replica's service rate to plan for."),
    _row("cooldown", Duration(0, 3600), "60s", "Time for which a rate that was needed is provided for."),
)
OLTUNES_PARAMETERS: Final[tuple[Row, ...]] = (
    _row(
        "class-weight",
        WordOr("auto", Number(0, 1)),
        "auto",
        "What counts of an accelerator kind, from 0 (its throughput alone) to 1 (its latency alone); auto: 0.75 for"
        " latency-critical functions and 0.25 for throughput-oriented ones.",
    ),
    *_KINDS_SIZING,
)
ORION_PARAMETERS: Final = _KINDS_SIZING
_NAME: Final = "[a-z0-9][a-z0-9.-]{0,62}"
RESERVE_AND_PACK_PARAMETERS: Final[tuple[Row, ...]] = (
    _row("large", YesNo(), "false", "Whether the model is large: then it gets the reserved kinds alone."),
    _row(
        "reserved",
        WordOr("auto", Text(f"{_NAME}(?:,{_NAME}){{0,15}}", "names of accelerators, with commas between them")),
        "auto",
        "Accelerators that are reserved for large models. auto: the dearest of those that the function may use, unless"
        " all have one price.",
    ),
    *_KINDS_SIZING,
)

K8S_BASELINE_PARAMETERS: Final[tuple[Row, ...]] = (
    _row("target", Percent(1, 99), "80", "Use of the throughput to hold."),
    _row("tolerance", Percent(0, 100), "10", "Deviation from the target without effect."),
    _row("period", Duration(1, 3600), "15s", "Time between two evaluations."),
    _row("window", Duration(1, 3600), "2m", "Time over which arrivals are averaged."),
    _row("cooldown", Duration(0, 86_400), "5m", "Time over which the largest recommendation counts for scale-in."),
)


def values(rows: tuple[Row, ...], given: Mapping[str, str]) -> dict[str, Any]:
    """Returns the value of every row: as written, else its default. Raises UnreadableError for texts that no manifest
    may contain."""
    return {row.key: row.kind.read(given.get(row.key, row.default or "")) for row in rows}
