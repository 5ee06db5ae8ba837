"""Time series of every function and group: one second apart for five minutes, thirty for four hours, in bounded memory.

A metric of a function (or of one of its groups) costs ``RING_BYTES`` from its first value that is not zero on; a metric
that is always zero costs nothing. Beyond ``MAX_RINGS`` no further metric is kept, which :attr:`History.refused` counts.
A point is the value of its second, or the mean of the known values of its thirty; None if it is unknown.
"""

import math
from array import array
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from tidegate.autoscaler.measure.model_servers import LEVELS, unit_of

FINE: Final = 300
"""Seconds kept one by one."""
STEP: Final = 30
COARSE: Final = 480
"""Steps kept: four hours."""
RING_BYTES: Final = 4 * (FINE + COARSE)
MAX_RINGS: Final = 20_000
"""About 70 MB with what surrounds them."""
UNKNOWN: Final = math.nan

UNITS: Final[Mapping[str, str]] = {
    "rps": "requests/s",
    "ips": "inferences/s",
    "lambda_ips": "inferences/s",
    "mu_ips": "inferences/s",
    "tps": "tokens/s",
    "lambda_tps": "tokens/s",
    "mu_tps": "tokens/s",
    "waiting": "requests",
    "latency_s": "s",
    "p50_s": "s",
    "tail_s": "s",
    "within_sla": "fraction",
    "ready": "replicas",
    "starting": "replicas",
    "desired": "replicas",
    "devices": "devices",
    "weight": "fraction",
    "busy": "replicas",
    "execution_s": "s",
    "queue_s": "s",
}
"""Units of what is recorded of every function and group, where it is known. Metrics of model servers and devices are in
``APP``."""
APP: Final = (*LEVELS, "request-s", "queue-s", "compute-s", "server-batch", "cpu", "gpu-memory-busy")
METRICS: Final = (*UNITS, *APP)


@dataclass(frozen=True, slots=True)
class SeriesLine:
    """One metric of a function, or of one of its groups, over time."""

    metric: str
    group: str | None
    unit: str
    points: tuple[tuple[int, float | None], ...]
    """(Unix second at which the step begins, value)."""


@dataclass(frozen=True, slots=True)
class HistoryAnswer:
    step_s: int
    """The step in use: steps finer than what is kept that far back are widened."""
    lines: tuple[SeriesLine, ...]


class Ring:
    """The points of one metric."""

    __slots__ = ("coarse", "fine", "known", "total")

    def __init__(self) -> None:
        self.fine = array("f", [UNKNOWN]) * FINE
        self.coarse = array("f", [UNKNOWN]) * COARSE
        self.total, self.known = 0.0, 0
        """Sum and count of the known values of the step that is not over."""

    def write(self, second: int, value: float | None) -> None:
        if value is None or not math.isfinite(value):
            self.fine[second % FINE] = UNKNOWN
            return
        self.fine[second % FINE] = value
        self.total += value
        self.known += 1
        self.coarse[second // STEP % COARSE] = self.total / self.known


class Scope:
    """The metrics of one function or group, written together."""

    __slots__ = ("last", "rings", "used")

    def __init__(self) -> None:
        self.rings: dict[str, Ring] = {}
        self.last = -1
        self.used = -1
        """Last second with a value that is not zero."""

    def advance(self, second: int) -> None:
        """Opens a second; seconds left out become unknown."""
        before, self.last = self.last, second
        first = max(before + 1, second - FINE + 1)
        step, first_step = second // STEP, max(before // STEP + 1, second // STEP - COARSE + 1)
        for ring in self.rings.values():
            for missed in range(first, second):
                ring.fine[missed % FINE] = UNKNOWN
            for opened in range(first_step, step + 1):
                ring.coarse[opened % COARSE] = UNKNOWN
                ring.total, ring.known = 0.0, 0


class History:
    """All series. To be fed once a second; can be queried at any time."""

    def __init__(self, max_rings: int = MAX_RINGS) -> None:
        self._max_rings = max_rings
        self._scopes: dict[str, dict[str | None, Scope]] = {}
        self._rings = 0
        self.refused = 0
        """Values that were not kept for want of room."""

    @property
    def functions(self) -> Collection[str]:
        return self._scopes.keys()

    @property
    def size_bytes(self) -> int:
        return self._rings * RING_BYTES

    def record(self, now: float, function: str, group: str | None, values: Mapping[str, float | None]) -> None:
        """Records the values at ``now``; without ``group`` those of the
        function as a whole. Of two records of one second
        the later counts; an older second is dropped."""
        scopes = self._scopes.setdefault(function, {})
        scope = scopes.get(group)
        if scope is None:
            if not any(values.values()):
                return  # A series begins with its first value that is not zero.
            scope = scopes[group] = Scope()
        second = int(now)
        if second < scope.last:
            return
        if second > scope.last:
            scope.advance(second)
        rings = scope.rings
        for name, ring in rings.items():
            ring.write(second, values.get(name))
        for name, value in values.items():
            if value:
                scope.used = second
                if name not in rings and (made := self._ring()) is not None:
                    rings[name] = made
                    made.write(second, value)
        if second - scope.used > STEP * COARSE and rings:
            self._rings -= len(rings)
            rings.clear()

    def groups(self, function: str) -> Collection[str | None]:
        """Returns the groups of a function that have had a value."""
        return self._scopes.get(function, {}).keys()

    def forget(self, function: str) -> None:
        self._rings -= sum(len(scope.rings) for scope in self._scopes.pop(function, {}).values())

    def query(
        self, function: str, now: float, *, since_s: float, step_s: float = 1.0, metric: str | None, group: str | None
    ) -> HistoryAnswer:
        """Returns the last ``since_s`` seconds. ``metric`` None: all metrics. ``group`` None: all groups and the
        function as a whole."""
        is_fine = since_s <= FINE and step_s < STEP
        width = max(1, round(step_s)) if is_fine else STEP * max(1, math.ceil(step_s / STEP - 1e-9))
        lines = []
        for name, scope in self._scopes.get(function, {}).items():
            if group is not None and name != group:
                continue
            for key, ring in scope.rings.items():
                if metric is None or key == metric:
                    points = tuple(_points(ring, scope.last, int(now), since_s, width, is_fine))
                    lines.append(SeriesLine(key, name, UNITS.get(key) or unit_of(key), points))
        lines.sort(key=lambda line: (line.group or "", line.metric))
        return HistoryAnswer(width, tuple(lines))

    def _ring(self) -> Ring | None:
        if self._rings >= self._max_rings:
            self.refused += 1
            return None
        self._rings += 1
        return Ring()

    def __repr__(self) -> str:
        return f"<History {len(self._scopes)} functions, {self._rings} series, {self.refused} refused>"


def _points(
    ring: Ring, last: int, now: int, since_s: float, width: int, is_fine: bool
) -> Iterator[tuple[int, float | None]]:
    """Yields means over ``width`` seconds, on multiples of it."""
    kept, unit, size = (ring.fine, 1, FINE) if is_fine else (ring.coarse, STEP, COARSE)
    oldest = max(now - math.ceil(since_s) + 1, (last // unit - size + 1) * unit, (now // unit - size + 1) * unit)
    for start in range(-(-oldest // width) * width, now + 1, width):
        slots = range(start // unit, min(start + width - 1, last) // unit + 1)
        known = [value for slot in slots if not math.isnan(value := kept[slot % size])]
        yield start, round(math.fsum(known) / len(known), 6) if known else None
