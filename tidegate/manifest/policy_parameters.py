"""Parameters of Tidegate's own policies: one row each, read by the manifest (bounds) and by the policies (values)."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final

from tidegate.schema.rows import Choice, Duration, Kind, Number, Percent, Row, Text


class Shrinking(StrEnum):
    """Reaction of policy ``hpa`` to a smaller recommendation."""

    STABILIZATION = "stabilization"
    """Scales in to the largest recommendation of the cool-down."""
    COOLDOWN = "cooldown"
    """Scales in at once, but not before a cool-down has passed since the last change."""


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


def values(rows: tuple[Row, ...], given: Mapping[str, str]) -> dict[str, Any]:
    """Returns the value of every row: as written, else its default. Raises UnreadableError for texts that no manifest
    may contain."""
    return {row.key: row.kind.read(given.get(row.key, row.default or "")) for row in rows}
