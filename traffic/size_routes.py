"""Size routing of each revision: collects arrivals and rates by request size for ``tidegate.traffic.sizing``."""

from collections.abc import Mapping
from typing import Final, Protocol

from tidegate.function import Function, SizeRouting
from tidegate.histogram import bucket_upper_micros
from tidegate.records.decision import Reason
from tidegate.traffic.size_cuts import BatchClass, SizeClass
from tidegate.traffic.sizing import BY_HAND, SizeChoice, SizedGroup, Sizing

WINDOW_S: Final = 30.0
"""Length of the window of arrivals that a choice is made from."""
CLASSES: Final = 32
"""Largest number of size classes; beyond it neighbouring sizes form one class. Our choice."""


class Arrivals(Protocol):
    """The part of ``TrafficMeter`` that is used here."""

    def sizes(self, revision: str, since: float) -> Mapping[int, int]: ...


class RatesBySize(Protocol):
    """The part of the autoscaler that is used here."""

    def mu_of_size(self, revision_id: str, accelerator: str, batch: float) -> float | None: ...

    def add_reason(self, revision_id: str, reason: Reason) -> None: ...


class SizeRoutes:
    """The size routing in force of each revision."""

    def __init__(self, arrivals: Arrivals, rates: RatesBySize) -> None:
        self._arrivals = arrivals
        self._rates = rates
        self._sizing = Sizing()

    def of(
        self,
        revision: str,
        function: Function,
        ready: Mapping[str, int],
        mu_ips: Mapping[str, float | None],
        now: float,
    ) -> SizeChoice:
        """Returns the choice in force, and makes a new one if it is due. ``ready``: ready replicas; ``mu_ips``: rate of
        one replica, used where no rate by size is known."""
        routing = function.routing
        if routing.size_routing is SizeRouting.OFF or routing.group_weights is not None:
            self._sizing.fix(revision, BY_HAND)
            return BY_HAND
        groups = frozenset(name for name, count in ready.items() if count > 0)
        if not self._sizing.is_due(revision, groups, now):
            return self._sizing.in_force(revision)
        before = self._sizing.in_force(revision)
        counts = self._arrivals.sizes(revision, now - WINDOW_S) if len(groups) > 1 else {}
        classes = size_classes(counts)
        sized = [self._group(revision, name, ready[name], mu_ips.get(name), classes) for name in sorted(groups)]
        known = [group for group in sized if group is not None]
        requests = sum(counts.values()) if len(known) == len(sized) else 0
        choice = self._sizing.review(revision, known if requests else sized_anyhow(groups), classes, requests, now)
        if choice.sizes != before.sizes:
            code = "sizes_cut" if choice.sizes else "sizes_by_weights"
            text = ", ".join(f"{name} {_words(size)}" for name, size in sorted(choice.sizes.items()))
            self._rates.add_reason(revision, Reason(code=code, detail=f"{text}: {choice.why}" if text else choice.why))
        return choice

    def why(self, revision: str) -> str:
        """Returns the choice in force in words."""
        return self._sizing.in_force(revision).why

    def forget(self, revision: str) -> None:
        self._sizing.forget(revision)

    def _group(
        self, revision: str, name: str, replicas: int, mu_ips: float | None, classes: list[BatchClass]
    ) -> SizedGroup | None:
        """Returns None if no rate of the group is known."""
        seconds = {}
        for each in classes:
            items = each.batch if each.work is None else each.work
            rate = self._rates.mu_of_size(revision, name, items) or mu_ips
            if not rate:
                return None
            seconds[each.batch] = items / rate
        return SizedGroup(name, replicas, seconds)

    def __repr__(self) -> str:
        return f"<SizeRoutes {self._sizing!r}>"


def sized_anyhow(groups: frozenset[str]) -> list[SizedGroup]:
    """Returns groups of which only the names count."""
    return [SizedGroup(name, 1, {}) for name in sorted(groups)]


def size_classes(counts: Mapping[int, int]) -> list[BatchClass]:
    """Returns classes of the arrivals by size bucket over the window. A class begins at its smallest size; its ``work``
    is the mean of its bounds."""
    buckets = sorted(index for index, count in counts.items() if count > 0)
    stride = -(-len(buckets) // CLASSES) or 1
    classes = []
    for start in range(0, len(buckets), stride):
        part = buckets[start : start + stride]
        total = sum(counts[index] for index in part)
        mean = sum(counts[index] * _middle(index) for index in part) / total
        classes.append(BatchClass(max(1, _lowest(part[0])), total / WINDOW_S, max(1.0, mean)))
    return classes


def _lowest(index: int) -> int:
    return bucket_upper_micros(index - 1) if index else 0


def _middle(index: int) -> float:
    return (_lowest(index) + bucket_upper_micros(index) - 1) / 2.0


def _words(size: SizeClass) -> str:
    low, high = size
    return f"{low} and more" if high is None else f"{low} to {high}"
