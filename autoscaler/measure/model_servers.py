"""Metrics that model servers report of themselves, per group: means of the last seconds, by the names that policies
use.

Durations are means per request over the window. Levels are means over the replicas that report them now. An absent name
is unknown: it was not declared, the figures are stale, or the engine does not report it.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Final

from tidegate.autoscaler.measure.plausible import PLAUSIBLE
from tidegate.autoscaler.measure.series import RecentSums
from tidegate.records.replica_sample import AppSample

COUNTERS: Final = ("requests", "inferences", "executions", "request_s", "queue_s", "compute_s")
LEVELS: Final[Mapping[str, str]] = {
    "pending": "pending",
    "running": "running",
    "gpu-utilization": "gpu_utilization",
    "gpu-memory": "gpu_memory",
    "kv-cache": "kv_cache",
}
"""Name of a metric -> field of the sample."""
UNITS: Final[Mapping[str, str]] = {
    "request-s": "s",
    "queue-s": "s",
    "compute-s": "s",
    "server-batch": "inferences",
    "pending": "requests",
    "running": "requests",
}
"""Units of the metrics that are no percentage."""
PER_REQUEST: Final = ("request-s", "queue-s", "compute-s", "server-batch")
"""Metrics that have no value while there are no requests."""


class AppFigures:
    """The metrics of one group."""

    __slots__ = ("_compute_s", "_sums")

    def __init__(self, slots: int) -> None:
        self._sums = RecentSums(len(COUNTERS), slots)
        self._compute_s: float | None = None

    def note(self, after: AppSample, before: AppSample | None, now: float) -> None:
        """Adds the growth of one replica's counters. A figure that is new, or impossible, adds nothing."""
        if before is None:
            return
        gains = [_gain(getattr(after, name), getattr(before, name)) for name in COUNTERS]
        if any(gains):
            self._sums.add(now, gains)

    def metrics(self, apps: Sequence[AppSample], now: float) -> dict[str, float]:
        """Returns the metrics by name. ``apps``: the last samples of the ready replicas with fresh figures."""
        found: dict[str, float] = {}
        for name, field in LEVELS.items():
            level = _mean([getattr(app, field) for app in apps])
            if level is not None:
                found[name] = level
        requests, inferences, executions, request_s, queue_s, compute_s = self._sums.sums(now)
        if requests > 0:
            first = apps[0]
            per_request = (("request-s", first.request_s, request_s), ("queue-s", first.queue_s, queue_s))
            for name, known, total in (*per_request, ("compute-s", first.compute_s, compute_s)):
                if known is not None:
                    found[name] = total / requests
        self._compute_s = found.get("compute-s", self._compute_s)
        if executions > 0:
            found["server-batch"] = inferences / executions
        elif "running" in found:
            found["server-batch"] = found["running"]
        return found

    @property
    def compute_s(self) -> float | None:
        """Last known mean time of a request in the model, without any waiting."""
        return self._compute_s

    def __repr__(self) -> str:
        return f"<AppFigures {self._sums!r}, compute {self._compute_s}>"


def unit_of(metric: str) -> str:
    return UNITS.get(metric, "%")


def _gain(after: float | None, before: float | None) -> float:
    gain = 0.0 if after is None or before is None else after - before
    return gain if 0.0 <= gain <= PLAUSIBLE else 0.0


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None and 0.0 <= value <= PLAUSIBLE]
    return math.fsum(known) / len(known) if known else None
