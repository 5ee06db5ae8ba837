"""What a policy sees of the world of one queue: the observation of a second, with the windows of the live collector.

Counts are exact. Rates and service times by size are the true ones, known of a group once it has served enough of them;
before, what the emulated accelerator states is known, as live. Percentiles are read every five seconds.
"""

from collections import Counter, deque
from collections.abc import Mapping

import numpy as np
from msgspec import UNSET

from benchmarks.days.world import Group, World
from tidegate.autoscaler.measure.observation import ArrivalCounts, GroupObservation, Observation
from tidegate.autoscaler.measure.series import UPPER_MICROS, Reading, RecentHistogram, RecentSums, RecentWork
from tidegate.autoscaler.profiles.admission import KnownFigures
from tidegate.function import Revision
from tidegate.histogram import bucket_index
from tidegate.loadgen.experiments.championship.fleets import UNITS
from tidegate.records.decision import Reason

RATE_S = 10
"""Seconds of the rates of arrivals and of mean execution times."""
EVERY_S = 5
"""Seconds from one reading of percentiles to the next."""
LEARNT = 12
"""Answers from which on a group's rate is learnt; those of one size its time."""
SIZES_S = 30
"""Seconds of the arrivals by size that routing reads."""
NOTHING = Reading(None, 0, 0)
_UPPER_S = np.array(UPPER_MICROS[:-1]) / 1e6


class GroupEyes:
    """The windows of one group."""

    def __init__(self, group: Group, known: KnownFigures, q: float, latency_s: float) -> None:
        """``known``: the figures that are known of its accelerator before it has served."""
        self.group = group
        self.known = known
        self._q, self._latency_s = q, latency_s
        self._served: Counter[int] = Counter()
        self._services: tuple[tuple[float, float], ...] = ()
        self._running = 0
        self._work = RecentWork(RATE_S)
        self._execution, self._latency = RecentHistogram(4, 15.0), RecentHistogram()
        self._took: list[float] = []
        self._passed: list[float] = []
        self._tail_s: float | None = None
        self._reading = NOTHING
        self._batch: float | None = None
        self.late = 0
        """Late answers of this second."""
        self.passed: list[float] = []
        """Latencies of the answers since the last reading."""

    @property
    def running(self) -> int:
        return self._running

    def seconds(self, size: float) -> float:
        """Returns the mean service time of requests of so many inferences on average."""
        times = self.group.times
        return times.base_s + times.per_item_s * size

    @property
    def mu_ips(self) -> float | None:
        """Inferences per second of one replica for requests as they last were; None until it is learnt."""
        batch = self._batch
        return None if batch is None or self._served.total() < LEARNT else batch / self.seconds(batch)

    def observe(self, now: float, *, is_timed: bool) -> GroupObservation:
        """Returns the group at the end of a second. ``is_timed``: percentiles are read."""
        group = self.group
        done = group.ends.pop(int(now) - 1, None)
        area_s = self._running + group.begun * now - group.begun_s
        self._running += group.begun
        group.begun, group.begun_s = 0, 0.0
        rps, inferences, self.late = 0, 0, 0
        if done:
            ended, took, passed, sizes = zip(*done, strict=True)
            rps, inferences = len(done), sum(sizes)
            self._running -= rps
            area_s -= rps * now - sum(ended)
            self.late = sum(map(self._latency_s.__lt__, passed))
            self._took += took
            self._passed += passed
            self._work.note(rps, inferences, sum(took), 0.0)
            if min(map(self._served.__getitem__, sizes)) < LEARNT:
                self._served.update(sizes)
                self._services = tuple(
                    sorted((float(size), self.seconds(size)) for size, n in self._served.items() if n >= LEARNT)
                )
        if is_timed:
            self._read(now)
        requests, served, executing_s, _ = self._work.read(now)
        ready = group.ready(now)
        existing = len(group.replicas)
        batch = execution_s = None
        if requests:
            self._batch = batch = served / requests
            execution_s = executing_s / requests
        mu_ips, known = self.mu_ips, self.known
        mean_s = self.seconds(self._batch) if mu_ips is not None and self._batch is not None else None
        is_seen = ready > 0
        busy = min(float(ready), max(0.0, area_s)) if is_seen else 0.0
        return GroupObservation(
            group.name,
            ready=ready,
            starting=existing - ready,
            room=UNITS - existing,
            price_per_hour=group.price_per_hour,
            mu_ips=known.mu_ips if mu_ips is None else mu_ips,
            is_mu_learnt=mu_ips is not None,
            mu_bound_ips=mu_ips,
            limit=1 if is_seen else None,
            sampled=ready,
            concurrency=busy,
            concurrency_inferences=busy * (batch or 1.0),
            rps=float(rps) if is_seen else 0.0,
            ips=float(inferences) if is_seen else 0.0,
            busy=busy,
            mean_batch=batch if is_seen else None,
            execution_s=execution_s if is_seen else None,
            queue_s=0.0 if is_seen and requests else None,
            min_execution_s=mean_s,
            tail_s=self._tail_s if is_seen else None,
            latency_s=self._reading.quantile_s,
            answers=self._reading.total,
            late=self._reading.late,
            min_execution_occupancy=None if mean_s is None else 1.0,
            one_s=known.one_s,
            services=self._services,
            cores=0,
        )

    def _read(self, now: float) -> None:
        if self._took:
            self._execution.add(now, _buckets(self._took))
            self._took.clear()
        if self._passed:
            self._latency.add(now, _buckets(self._passed))
            self.passed, self._passed = self._passed, []
        else:
            self.passed = []
        self._tail_s = self._execution.quantile(now, self._q)
        self._reading = self._latency.reading(now, self._q, self._latency_s)


class Eyes:
    """The observations of the world."""

    def __init__(
        self, revision: Revision, world: World, known: Mapping[str, KnownFigures], *, is_by_size: bool
    ) -> None:
        """``is_by_size``: the policy reads arrivals by size."""
        sla = revision.function.sla
        self._q, self._latency_s = sla.percentile / 100.0, world.latency_s
        self._revision = revision
        self._world = world
        self._is_by_size = is_by_size
        self.groups = [GroupEyes(each, known[each.name], self._q, self._latency_s) for each in world.groups]
        self._by_name = {each.group.name: each for each in self.groups}
        self._rates = RecentSums(1, RATE_S)
        self._latency = RecentHistogram()
        self._arrived: Counter[int] = Counter()
        self._recent: deque[Mapping[int, int]] = deque(maxlen=SIZES_S)
        self._waiting = 0
        self._late = 0
        self._active_at = 0.0

    def observe(self, now: float, arrived: Mapping[int, int], arrived_s: float) -> Observation:
        """Returns the world at the end of a second. ``arrived``: requests of that second by inferences; ``arrived_s``:
        the sum of the times at which those came that were not refused."""
        world = self._world
        is_timed = int(now) % EVERY_S == 0
        groups = tuple([each.observe(now, is_timed=is_timed) for each in self.groups])
        requests, inferences = sum(arrived.values()), sum([size * count for size, count in arrived.items()])
        if requests:
            self._rates.add(now - 0.5, (float(inferences),))
            self._arrived.update(arrived)
        self._recent.append(arrived)
        came = world.waiting + world.begun - self._waiting
        waiting_s = max(0.0, self._waiting + came * now - arrived_s - (world.begun * now - world.begun_s))
        self._waiting = world.waiting
        world.begun, world.begun_s = 0, 0.0
        self._late += sum([each.late for each in self.groups])
        late = self._late + world.refused
        if is_timed:
            passed = [each for one in self.groups for each in one.passed]
            if passed:
                self._latency.add(now, _buckets(passed))
        if requests or world.waiting or any(each.running or each.late for each in self.groups):
            self._active_at = now
        waiting = world.waiting
        busy = sum([each.concurrency for each in groups])
        batch = inferences / requests if requests else 1.0
        in_line = sum([size * len(line) for size, line in world.lines.items()])
        counts = tuple(sorted((float(size), float(count)) for size, count in self._arrived.items()))
        return Observation(
            function=self._revision.function.name,
            revision=self._revision.id,
            at=now,
            complete=True,
            age_s=0.0,
            groups=groups,
            waiting=waiting,
            waiting_inferences=in_line,
            oldest_waiting_s=world.oldest_s(now) if waiting else 0.0,
            concurrency=busy + waiting_s,
            concurrency_inferences=sum([each.concurrency_inferences for each in groups]) + waiting_s * batch,
            rps=float(requests),
            lambda_ips=self._rates.sums(now - 0.5)[0] / self._rates.span_s(now - 0.5),
            latency_s=self._latency.reading(now, self._q, self._latency_s).quantile_s,
            idle_s=now - self._active_at,
            counts=ArrivalCounts(counts, float(late)) if self._is_by_size else UNSET,
        )

    def at_zero(self, now: float, size: int) -> Observation:
        """Returns the world without a replica when a request comes, between two seconds."""
        self._active_at = now
        groups = tuple(
            GroupObservation(
                each.group.name,
                room=UNITS,
                price_per_hour=each.group.price_per_hour,
                mu_ips=each.known.mu_ips if each.mu_ips is None else each.mu_ips,
                is_mu_learnt=each.mu_ips is not None,
                one_s=each.known.one_s,
            )
            for each in self.groups
        )
        return Observation(
            function=self._revision.function.name,
            revision=self._revision.id,
            at=now,
            complete=True,
            groups=groups,
            waiting=1,
            waiting_inferences=size,
        )

    # --- what routing reads

    def mu_ips(self, revision: str, accelerator: str) -> float | None:
        return self._by_name[accelerator].mu_ips

    def mu_of_size(self, revision_id: str, accelerator: str, batch: float) -> float | None:
        eyes = self._by_name[accelerator]
        return None if eyes.mu_ips is None else batch / eyes.seconds(batch)

    def sizes(self, revision: str, since: float) -> Mapping[int, int]:
        """Returns the arrivals of the last seconds by bucket of their size."""
        found: Counter[int] = Counter()
        for each in self._recent:
            for size, count in each.items():
                found[bucket_index(size)] += count
        return found

    def add_reason(self, revision_id: str, reason: Reason) -> None: ...


def _buckets(seconds: list[float]) -> list[tuple[int, int]]:
    """Returns (bucket of the live histograms, count) of durations."""
    at = np.searchsorted(_UPPER_S, np.array(seconds), side="right")
    counts = np.bincount(at)
    return [(int(index), int(counts[index])) for index in np.flatnonzero(counts)]
