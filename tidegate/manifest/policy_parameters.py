"""Parameters of Tidegate's own policies: one row each, read by the manifest (bounds) and by the policies (values)."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final

from tidegate.schema.rows import Choice, Duration, Kind, Number, Percent, Row, Text


class Shrinking(StrEnum):
    """How policy ``hpa`` follows a smaller recommendation."""

    STABILIZATION = "stabilization"
    """To the largest recommendation of the cool-down."""
    COOLDOWN = "cooldown"
    """At once, but not before the last change is a cool-down ago."""


def _row(key: str, kind: Kind, default: str, sentence: str) -> Row:
    return Row(key=key, kind=kind, default=default, lands=f"scaling.parameters.{key}", sentence=sentence)


SMIF_PARAMETERS: Final[tuple[Row, ...]] = (
    _row(
        "target-utilization",
        Percent(10, 99),
        "80",
        "Share of a replica's service rate that is planned with.",
    ),
    _row(
        "down-watermark",
        Percent(1, 100),
        "50",
        "A group shrinks only while its latency is at most this share of the target.",
    ),
    _row("cooldown", Duration(1, 3600), "60s", "A group shrinks only after it could have for this long."),
    _row("max-up-factor", Number(1, 100), "2", "Most growth of a group for one miss of the target, as a factor."),
)

HPA_PARAMETERS: Final[tuple[Row, ...]] = (
    _row(
        "metric",
        Text(
            r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}",
            "the name of a metric: busy, slots, or what devices and model servers tell (gpu-memory, queue-s)",
        ),
        "busy",
        "What is averaged over the ready replicas: percent, seconds (names that end in -s), requests or inferences.",
    ),
    _row("target", Percent(0.001, 1000), "60", "What the metric is held at, in its unit."),
    _row("tolerance", Percent(0, 100), "10", "Deviation from the target that changes nothing."),
    _row("period", Duration(1, 3600), "15s", "Time between two evaluations."),
    _row("window", Duration(1, 3600), "60s", "Time over which the metric is averaged."),
    _row("cooldown", Duration(0, 86_400), "5m", "How far back a smaller size looks."),
    _row(
        "shrink",
        Choice(Shrinking),
        "stabilization",
        "Whether a smaller size is the largest one recommended in the cool-down, or waits until it has passed.",
    ),
)


def values(rows: tuple[Row, ...], given: Mapping[str, str]) -> dict[str, Any]:
    """The value of every row: what was written, else its default. Raises UnreadableError for texts that no manifest
    lets through."""
    return {row.key: row.kind.read(given.get(row.key, row.default or "")) for row in rows}
