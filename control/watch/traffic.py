"""Traffic of each function over the last minute, from the gateways' cumulative counters.

Each pull of a worker becomes the difference to that worker's previous one. A new incarnation starts from zero; a
repeated sequence is dropped. The differences of the last minute are added up when a view is requested. An adopted
worker's counts from before its first pull belong to no minute of this process and are left out.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import takewhile
from typing import Final

from tidegate.control.views.functions import TrafficView
from tidegate.control.watch.tokens import TokenMeter
from tidegate.histogram import FINE_BITS, all_interpolated, bucket_upper_micros, fine_index
from tidegate.records.gateway_sample import GatewaySample, RevisionDemand, ShadowSeen
from tidegate.records.replica_sample import SparseHistogram

WINDOW_S: Final = 60.0
RATE_S: Final = 5.0
"""Window of the rates."""
KEPT_GONE: Final = 64
"""Number of workers whose last sample is kept after their end: an answer of theirs may still be on its way."""
NEW_S: Final = 5.0
"""Age above which a worker, at its first pull, is older than this process."""


@dataclass(slots=True)
class Counts:
    """Requests of one function in one interval, by outcome."""

    requests: int = 0
    inferences: int = 0
    answered: int = 0
    failed: int = 0
    refused: int = 0
    expired: int = 0
    cancelled: int = 0
    within_sla: int = 0
    dropped: int = 0
    """Among the refused ones: those that had waited for ``drop-after``."""
    switched: int = 0
    """Those that another variant of the model served; not among ``requests``."""

    @classmethod
    def of(cls, demand: RevisionDemand) -> "Counts":
        return cls(
            requests=demand.arrivals,
            inferences=demand.arrivals_inferences,
            answered=demand.answered,
            failed=demand.failed,
            refused=demand.refused,
            expired=demand.expired,
            cancelled=demand.cancelled,
            within_sla=demand.within_sla,
            dropped=demand.dropped,
            switched=demand.switched,
        )

    @property
    def ended(self) -> int:
        """Requests that are over, whatever their outcome."""
        return self.answered + self.failed + self.refused + self.expired + self.cancelled

    def add(self, other: "Counts", sign: int = 1) -> None:
        for name in COUNTED:
            setattr(self, name, getattr(self, name) + sign * getattr(other, name))


COUNTED: Final = tuple(field.name for field in fields(Counts))


@dataclass(slots=True)
class _Slice:
    """The differences of one revision between two pulls of one worker."""

    at: float
    revision: str
    counts: Counts
    latency: Mapping[int, int]
    """In fine buckets."""
    sizes: Mapping[int, int]


class _Window:
    """The slices of one function in the window, and their sums: a view costs no look at each of them."""

    __slots__ = ("_latency", "_sizes", "_slices", "counts")

    def __init__(self) -> None:
        self._slices: deque[_Slice] = deque()
        self._latency: dict[int, int] = {}
        self._sizes: dict[int, int] = {}
        self.counts = Counts()

    def __iter__(self) -> Iterator[_Slice]:
        return iter(self._slices)

    def __reversed__(self) -> Iterator[_Slice]:
        return reversed(self._slices)

    def add(self, one: _Slice) -> None:
        self._slices.append(one)
        self._count(one, 1)

    def drop(self, until: float) -> None:
        """Drops the slices of ``until`` and before."""
        while self._slices and self._slices[0].at <= until:
            self._count(self._slices.popleft(), -1)

    def latencies(self, quantiles: Sequence[float]) -> list[float | None]:
        return all_interpolated(self._latency.items(), quantiles, FINE_BITS)

    def sizes(self) -> tuple[tuple[int, int], ...]:
        return tuple((bucket_upper_micros(index) - 1, self._sizes[index]) for index in sorted(self._sizes))

    def _count(self, one: _Slice, sign: int) -> None:
        self.counts.add(one.counts, sign)
        for sums, part in ((self._latency, one.latency), (self._sizes, one.sizes)):
            for index, count in part.items():
                left = sums.get(index, 0) + sign * count
                if left:
                    sums[index] = left
                else:
                    del sums[index]


class TrafficMeter:
    """Takes every gateway sample, and returns the figures of a function or revision."""

    def __init__(self, window_s: float = WINDOW_S) -> None:
        self.window_s = window_s
        self._last: dict[str, GatewaySample] = {}
        self._by_function: dict[str, list[RevisionDemand]] | None = None
        """Content of ``_last`` by function; None after a change."""
        self._gone: dict[str, GatewaySample] = {}
        self._windows: dict[str, _Window] = {}
        self._totals: dict[str, Counts] = {}
        self._revisions: dict[str, Counts] = {}
        self._shadows: dict[str, ShadowSeen] = {}
        self._tokens = TokenMeter(window_s)
        self._lost: dict[str, int] = {}
        """By revision: requests that were under way in workers when these ended."""

    def record(self, sample: GatewaySample, now: float) -> None:
        """Takes one pull of one worker."""
        known = self._last
        if (gone := self._gone.get(sample.worker)) is not None and gone.incarnation == sample.incarnation:
            known = self._gone  # it reported this before its end, of which we learnt first
            self._lose(gone, -1)
            self._lose(sample)
        previous = known.get(sample.worker)
        same_life = previous is not None and previous.incarnation == sample.incarnation
        if previous is not None and same_life and sample.sequence <= previous.sequence:
            return
        known[sample.worker], self._by_function = sample, None
        before = {demand.revision: demand for demand in previous.demands} if previous is not None and same_life else {}
        if previous is None and sample.uptime_s > NEW_S:
            self._adopt(sample)
            return
        for demand in sample.demands:
            self._add(demand, before.get(demand.revision), now)

    def forget_worker(self, worker: str) -> None:
        """Takes the end of a worker: its waiting requests wait no more."""
        last, self._by_function = self._last.pop(worker, None), None
        if last is not None:
            self._gone.pop(worker, None)
            self._gone[worker] = last
            self._lose(last)
            if len(self._gone) > KEPT_GONE:
                del self._gone[next(iter(self._gone))]

    def waiting(self, revision: str) -> int:
        """Returns the present number of waiting requests of a revision, over all workers."""
        return sum(demand.waiting for demand in self._demands_of(_function(revision)) if demand.revision == revision)

    def all_waiting(self) -> dict[str, int]:
        """Returns the same for every revision that a worker lists."""
        found: dict[str, int] = {}
        for demand in self._demands():
            found[demand.revision] = found.get(demand.revision, 0) + demand.waiting
        return found

    def streaming(self, revision: str) -> int:
        """Returns the present number of event streams and tunnels of a revision, over all workers."""
        return sum(demand.streaming for demand in self._demands_of(_function(revision)) if demand.revision == revision)

    def total(self, function: str) -> Counts:
        """Returns the counts of a function since the control process started."""
        return self._totals.get(function, Counts())

    def of(self, revision: str) -> Counts:
        """Returns a copy of the counts of one revision, with the requests under way at the start. Requests under way in
        a worker that ended count as cancelled: their clients lost their connections, and no report will follow."""
        counts = replace(self._revisions.get(revision, Counts()))
        counts.cancelled += self._lost.get(revision, 0)
        return counts

    def recent(self, revision: str, since: float) -> Counts:
        """Returns the counts of a revision after ``since``, within the window."""
        counts = Counts()
        for each in self._windows.get(_function(revision), ()):
            if each.revision == revision and each.at > since:
                counts.add(each.counts)
        return counts

    def sizes(self, revision: str, since: float) -> dict[int, int]:
        """Returns the arrivals of a revision after ``since``, within the window, by bucket of inferences per
        request."""
        found: dict[int, int] = {}
        for each in self._windows.get(_function(revision), ()):
            if each.revision == revision and each.at > since:
                for index, count in each.sizes.items():
                    found[index] = found.get(index, 0) + count
        return found

    def shadow(self, revision: str) -> ShadowSeen:
        """Returns the results of a revision's copied requests, over all workers, since the control process started."""
        return self._shadows.get(revision, ShadowSeen())

    def forget_revision(self, revision: str) -> None:
        """Drops the figures of a revision of which nothing is left. Its part of the last minute stays."""
        self._revisions.pop(revision, None)
        self._lost.pop(revision, None)
        self._shadows.pop(revision, None)

    def view(self, function: str, percentile: float, now: float) -> TrafficView:
        """Returns the last minute of ``function``, with its tail latency at ``percentile`` (0..100)."""
        window = self._window(function, now)
        waiting = self._demands_of(function)
        recent = [each.counts for each in takewhile(lambda each: each.at > now - RATE_S, reversed(window))]
        p50_s, tail_s, p95_s, p99_s = window.latencies((0.5, percentile / 100.0, 0.95, 0.99))
        total = self.total(function)
        return TrafficView(
            window_s=self.window_s,
            **{name: getattr(window.counts, name) for name in COUNTED},
            ended_in_all=total.ended,
            waiting=sum(demand.waiting for demand in waiting),
            waiting_inferences=sum(demand.waiting_inferences for demand in waiting),
            oldest_waiting_s=max((demand.oldest_waiting_s for demand in waiting), default=0.0),
            requests_per_s=sum(each.requests for each in recent) / RATE_S,
            inferences_per_s=sum(each.inferences for each in recent) / RATE_S,
            p50_s=p50_s,
            tail_s=tail_s,
            p95_s=p95_s,
            p99_s=p99_s,
            sizes=window.sizes(),
            tokens=self._tokens.view(function, percentile, now),
        )

    def latencies(self, function: str, quantiles: Sequence[float], now: float) -> list[float | None]:
        """Returns quantiles of the latencies of the last minute; None where no request was answered in it."""
        return self._window(function, now).latencies(quantiles)

    def _window(self, function: str, now: float) -> _Window:
        window = self._windows.get(function) or _Window()
        window.drop(now - self.window_s)
        return window

    def _demands(self) -> Iterator[RevisionDemand]:
        return (demand for sample in self._last.values() for demand in sample.demands)

    def _demands_of(self, function: str) -> Sequence[RevisionDemand]:
        """Returns the demands of one function. They are indexed, since every function is requested after each pull."""
        if self._by_function is None:
            self._by_function = {}
            for demand in self._demands():
                self._by_function.setdefault(demand.function, []).append(demand)
        return self._by_function.get(function, ())

    def _adopt(self, sample: GatewaySample) -> None:
        """Counts the requests under way in an older worker among its revision's requests, since they will end."""
        for demand in sample.demands:
            if under_way := demand.arrivals - Counts.of(demand).ended:
                self._revisions.setdefault(demand.revision, Counts()).requests += under_way

    def _lose(self, sample: GatewaySample, sign: int = 1) -> None:
        for demand in sample.demands:
            if under_way := demand.arrivals - Counts.of(demand).ended:
                self._lost[demand.revision] = self._lost.get(demand.revision, 0) + sign * under_way

    def _add(self, demand: RevisionDemand, before: RevisionDemand | None, now: float) -> None:
        counts = Counts.of(demand)
        if before is not None:
            counts.add(Counts.of(before), sign=-1)
        window = self._windows.setdefault(demand.function, _Window())
        window.drop(now - self.window_s)
        self._totals.setdefault(demand.function, Counts()).add(counts)
        if counts != Counts():  # a worker may report a forgotten revision for a while
            self._revisions.setdefault(demand.revision, Counts()).add(counts)
        if demand.tokens is not None:
            self._tokens.record(demand.function, demand.tokens, None if before is None else before.tokens, now)
        earlier = None if before is None else before.shadow
        if demand.shadow is not None and demand.shadow != earlier:
            self._shadows[demand.revision] = _grown(
                self.shadow(demand.revision), demand.shadow, earlier or ShadowSeen()
            )
        latency = difference(demand.latency, () if before is None else before.latency)
        sizes = difference(demand.sizes, () if before is None else before.sizes)
        if counts != Counts() or latency or sizes:
            window.add(_Slice(now, demand.revision, counts, _fine(demand.recent, latency), sizes))

    def __repr__(self) -> str:
        return f"<TrafficMeter {len(self._last)} workers, {len(self._windows)} functions>"


def _function(revision: str) -> str:
    return revision.rpartition("-")[0]


def difference(after: SparseHistogram, before: SparseHistogram) -> dict[int, int]:
    """Returns the observations between two cumulative histograms of one incarnation."""
    earlier = dict(before)
    found = {index: count - earlier.get(index, 0) for index, count in after}
    return {index: count for index, count in found.items() if count > 0}


def _fine(recent: SparseHistogram, latency: Mapping[int, int]) -> Mapping[int, int]:
    """Returns the latencies since the pull before in fine buckets. Where some are not in ``recent`` (a sample was lost,
    there were too many, or the worker is of an older version), all are of the middle of their coarse bucket."""
    found = dict(recent)
    if sum(found.values()) == sum(latency.values()):
        return found
    found.clear()
    for index, count in latency.items():
        low = bucket_upper_micros(index - 1) if index else 0
        middle = fine_index((low + bucket_upper_micros(index)) // 2)
        found[middle] = found.get(middle, 0) + count
    return found


def _grown(total: ShadowSeen, after: ShadowSeen, before: ShadowSeen) -> ShadowSeen:
    """Returns ``total`` plus the growth between two reports of one worker."""

    def sums(known: SparseHistogram, later: SparseHistogram, earlier: SparseHistogram) -> SparseHistogram:
        counts = dict(known)
        for index, count in difference(later, earlier).items():
            counts[index] = counts.get(index, 0) + count
        return tuple(sorted(counts.items()))

    return ShadowSeen(
        requests=total.requests + after.requests - before.requests,
        skipped=total.skipped + after.skipped - before.skipped,
        failed=total.failed + after.failed - before.failed,
        status_differs=total.status_differs + after.status_differs - before.status_differs,
        output_differs=total.output_differs + after.output_differs - before.output_differs,
        latency=sums(total.latency, after.latency, before.latency),
        served_latency=sums(total.served_latency, after.served_latency, before.served_latency),
    )
