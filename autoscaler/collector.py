"""From samples to observations: differences of cumulative counters, stamped on receipt.

Each gateway worker and each queue_proxy is a *source*. A sample that repeats a sequence number is dropped; a new
incarnation starts from zero; a sample whose figures cannot be true (not a number, negative, running backwards) is
ignored and counted as a fault. Nothing a source sends raises.

Missing is not zero. A source not heard of for ``STALE_S`` is stale; while a gateway worker is stale, or every ready
replica of a group, an observation says ``complete=False`` and its figures are lower bounds. Within a group the
replicas that were heard of speak for the others.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace

from autoscaler.observation import FleetGroup, GroupObservation, Observation, tightest
from autoscaler.series import RecentHistogram, RecentSums
from tidegate.function import Revision
from tidegate.histogram import BUCKETS
from tidegate.records import GatewaySample, GroupTraffic, ReplicaSample, RevisionDemand, SparseHistogram

STALE_S = 3.0
"""A source that was not heard of for so long tells nothing any more: three pulls missed."""
YOUNG_S = 5.0
"""A source first seen at a lower age than this is counted from its start, an older one from its first sample on."""
PLAUSIBLE = 1e15
"""No honest counter or level is larger; larger ones would only overflow later sums."""
ROUNDING = 1e-6
"""By so much a sum of floats may shrink between two samples without having run backwards."""
PATIENCE = 3
"""So many samples in a row that run backwards are a reset that nobody announced: the next one is a new start."""
MAX_GROUPS = 64
"""Groups kept per revision."""
RATE_SLOTS = 10
"""Seconds over which arrival rates and execution means are taken."""


@dataclass(frozen=True, slots=True)
class _Demand:
    """What one gateway worker contributes to a revision: means over its last interval, levels at its end."""

    at: float
    rps: float = 0.0
    waiting_mean: float = 0.0
    waiting_inferences_mean: float = 0.0
    waiting: int = 0
    waiting_inferences: int = 0
    oldest_waiting_s: float = 0.0


@dataclass(slots=True)
class _Gateway:
    incarnation: str
    sequence: int
    uptime_s: float
    at: float
    """When its last usable sample arrived."""
    before: dict[str, RevisionDemand] = field(default_factory=dict)
    demands: dict[str, _Demand] = field(default_factory=dict)
    refused: int = 0
    """Samples in a row that were not newer than the last usable one."""
    strikes: Counter[str] = field(default_factory=Counter)
    """Impossible demands in a row, by revision."""


@dataclass(slots=True)
class _Replica:
    sample: ReplicaSample
    at: float
    concurrency: float = 0.0
    concurrency_inferences: float = 0.0
    rps: float = 0.0
    ips: float = 0.0
    busy: float = 0.0
    refused: int = 0
    """Samples in a row that were not newer than the last usable one, or ran backwards."""


@dataclass(slots=True)
class _Group:
    """Recent sums of one group: requests, inferences, execution time, queue time."""

    work: RecentSums = field(default_factory=lambda: RecentSums(4, RATE_SLOTS))
    latency: RecentHistogram = field(default_factory=RecentHistogram)


@dataclass(slots=True)
class _Meter:
    """What is kept of one revision."""

    since: float
    """When it was made known; counters of before are nobody's arrivals."""
    active_at: float
    arrivals: RecentSums = field(default_factory=lambda: RecentSums(1, RATE_SLOTS))
    answers: RecentSums = field(default_factory=lambda: RecentSums(2, 6, 5.0))
    latency: RecentHistogram = field(default_factory=RecentHistogram)
    groups: dict[str, _Group] = field(default_factory=dict)

    def group(self, accelerator: str) -> _Group:
        """The group's sums. Names come from samples, so their number is bounded: beyond it nothing is kept."""
        known = self.groups.get(accelerator)
        if known is None:
            known = _Group()
            if len(self.groups) < MAX_GROUPS:
                self.groups[accelerator] = known
        return known


REPLICA_COUNTERS = (
    "requests",
    "inferences",
    "failures",
    "cancelled",
    "busy_s",
    "in_flight_request_s",
    "in_flight_inference_s",
    "execution_s",
    "queue_s",
)
REPLICA_LEVELS = ("limit", "in_flight", "in_flight_inferences", "queued", "uptime_s", "sequence")
DEMAND_COUNTERS = (
    "arrivals",
    "arrivals_inferences",
    "refused",
    "expired",
    "cancelled",
    "answered",
    "failed",
    "within_sla",
    "waiting_request_s",
    "waiting_inference_s",
)
DEMAND_LEVELS = ("waiting", "waiting_inferences", "oldest_waiting_s")


class Collector:
    """Measurements of any number of revisions. Only sources in :meth:`expect` and revisions in :meth:`apply` count."""

    def __init__(self, *, stale_s: float = STALE_S) -> None:
        self._stale_s = stale_s
        self._gateways: dict[str, _Gateway] = {}
        self._replicas: dict[str, _Replica] = {}
        self._expected_gateways: frozenset[str] = frozenset()
        self._meters: dict[str, _Meter] = {}
        self.faults: Counter[str] = Counter()
        """Ignored samples by kind: ``garbage``, ``backwards``, ``repeated``, ``unreadable``, ``unreachable``."""

    # --- what exists

    def apply(self, revision_id: str, now: float) -> None:
        """Measures a revision from now on; its idle time starts here."""
        self._meters.setdefault(revision_id, _Meter(since=now, active_at=now))

    def forget(self, revision_id: str) -> None:
        self._meters.pop(revision_id, None)
        for source in self._gateways.values():
            source.before.pop(revision_id, None)
            source.demands.pop(revision_id, None)
            source.strikes.pop(revision_id, None)

    def expect(self, gateways: Collection[str], replicas: Collection[str]) -> None:
        """The sources that exist now: what is known of others is dropped, and expected gateways that were never heard
        of make observations incomplete."""
        self._expected_gateways = frozenset(gateways)
        for known, wanted in ((self._gateways, self._expected_gateways), (self._replicas, frozenset(replicas))):
            for gone in known.keys() - wanted:
                del known[gone]

    def touch(self, revision_id: str, now: float) -> None:
        """Notes a sign of work that no sample has told yet (an activation)."""
        meter = self._meters.get(revision_id)
        if meter is not None:
            meter.active_at = max(meter.active_at, now)

    def fault(self, kind: str) -> None:
        """Counts a sample that could not even be read."""
        self.faults[kind] += 1

    # --- samples in

    def gateway(self, sample: GatewaySample, now: float) -> bool:
        """Takes a gateway worker's sample that arrived at ``now``; False when all of it was ignored."""
        known = self._gateways.get(sample.worker)
        if not _is_plausible((sample.sequence, sample.uptime_s)):
            return self._reject("garbage")
        source, interval_s, from_zero = self._gateway_source(known, sample, now)
        if source is None:
            return False
        heard_before = source.at
        source.sequence, source.uptime_s, source.at = sample.sequence, sample.uptime_s, now
        present = set()
        for demand in sample.demands:
            meter = self._meters.get(demand.revision)
            if meter is not None:
                present.add(demand.revision)
                self._demand(source, demand, interval_s, from_zero and meter.since <= heard_before, now)
        for revision in source.before.keys() - present:
            # A worker that no longer lists a revision has nothing of it and will count it from zero again.
            del source.before[revision]
            source.demands.pop(revision, None)
            source.strikes.pop(revision, None)
        return True

    def _gateway_source(
        self, known: _Gateway | None, sample: GatewaySample, now: float
    ) -> tuple[_Gateway | None, float, bool]:
        """(source to update or None, interval in seconds, whether absent counters count as zero before)."""
        if known is not None and known.incarnation == sample.incarnation:
            interval_s = sample.uptime_s - known.uptime_s
            if sample.sequence > known.sequence and interval_s > 0:
                known.refused = 0
                return known, interval_s, True
            self._reject("repeated" if sample.sequence <= known.sequence else "backwards")
            known.refused += 1
            if known.refused < PATIENCE:
                return None, 0.0, False
        fresh = _Gateway(incarnation=sample.incarnation, sequence=-1, uptime_s=0.0, at=now)
        self._gateways[sample.worker] = fresh
        return fresh, max(sample.uptime_s, 1e-3), _began_here(None if known is None else known.at, sample.uptime_s, now)

    def _demand(self, source: _Gateway, demand: RevisionDemand, interval_s: float, from_zero: bool, now: float) -> None:
        revision = demand.revision
        before = source.before.get(revision)
        if demand == before and demand.waiting == 0:
            source.demands.pop(revision, None)
            return
        fault = _demand_fault(demand, before)
        if fault is not None:
            self._reject(fault)
            source.strikes[revision] += 1
            if fault == "backwards" and source.strikes[revision] >= PATIENCE:
                source.before[revision] = demand
                del source.strikes[revision]
            # What was last known of it stays, with its age, until it is stale.
            source.demands.setdefault(revision, _Demand(at=now))
            return
        source.strikes.pop(revision, None)
        source.before[revision] = demand
        counted = self._count(demand, before or (None if from_zero else demand), interval_s, now)
        if before is None and not from_zero:
            # The integral of before is unknown: what waits now is the best guess of the mean.
            counted = replace(counted, waiting_mean=demand.waiting, waiting_inferences_mean=demand.waiting_inferences)
        source.demands[revision] = counted

    def _count(self, demand: RevisionDemand, before: RevisionDemand | None, interval_s: float, now: float) -> _Demand:
        """Adds the difference of two demands to the revision's meter."""
        meter = self._meters[demand.revision]
        arrivals = demand.arrivals - (before.arrivals if before else 0)
        inferences = demand.arrivals_inferences - (before.arrivals_inferences if before else 0)
        waiting_s = max(0.0, demand.waiting_request_s - (before.waiting_request_s if before else 0.0))
        waiting_inference_s = max(0.0, demand.waiting_inference_s - (before.waiting_inference_s if before else 0.0))
        answered = demand.answered - (before.answered if before else 0)
        if arrivals > 0 or answered > 0 or demand.waiting > 0:
            meter.active_at = now
        meter.arrivals.add(now, (inferences,))
        if answered > 0:
            meter.answers.add(now, (answered, demand.within_sla - (before.within_sla if before else 0)))
        _add_latency(meter.latency, demand.latency, before.latency if before else (), now)
        groups_before = {group.group: group for group in before.groups} if before else {}
        for group in demand.groups:
            known = groups_before.get(group.group)
            _add_latency(meter.group(group.group).latency, group.latency, known.latency if known else (), now)
        return _Demand(
            at=now,
            rps=arrivals / interval_s,
            waiting_mean=waiting_s / interval_s,
            waiting_inferences_mean=waiting_inference_s / interval_s,
            waiting=demand.waiting,
            waiting_inferences=demand.waiting_inferences,
            oldest_waiting_s=demand.oldest_waiting_s,
        )

    def replica(self, sample: ReplicaSample, now: float) -> bool:
        """Takes a queue_proxy's sample that arrived at ``now``; False when it was ignored."""
        if sample.revision not in self._meters:
            return False
        if not _is_plausible(getattr(sample, name) for name in REPLICA_COUNTERS + REPLICA_LEVELS):
            return self._reject("garbage")
        known = self._replicas.get(sample.replica)
        if known is None or known.sample.incarnation != sample.incarnation:
            self._first_of_replica(sample, None if known is None else known.at, now)
            return True
        before = known.sample
        fault = _replica_fault(sample, before)
        if fault is not None:
            known.refused += 1
            if known.refused >= PATIENCE:
                self._first_of_replica(sample, known.at, now)
            return self._reject(fault)
        known.sample, known.at, known.refused = sample, now, 0
        self._work(known, sample, before, sample.uptime_s - before.uptime_s, now)
        self._note_levels(sample, now)
        return True

    def _first_of_replica(self, sample: ReplicaSample, last_heard: float | None, now: float) -> None:
        source = self._replicas[sample.replica] = _Replica(
            sample=sample,
            at=now,
            concurrency=sample.in_flight + sample.queued,
            concurrency_inferences=sample.in_flight_inferences + sample.queued,
        )
        if _began_here(last_heard, sample.uptime_s, now):
            self._work(source, sample, None, max(sample.uptime_s, 1e-3), now)
        self._note_levels(sample, now)

    def _work(
        self, source: _Replica, sample: ReplicaSample, before: ReplicaSample | None, interval_s: float, now: float
    ) -> None:
        changes = {
            name: max(0, getattr(sample, name) - (0 if before is None else getattr(before, name)))
            for name in REPLICA_COUNTERS
        }
        source.concurrency = changes["in_flight_request_s"] / interval_s + sample.queued
        source.concurrency_inferences = changes["in_flight_inference_s"] / interval_s + sample.queued
        source.rps = changes["requests"] / interval_s
        source.ips = changes["inferences"] / interval_s
        source.busy = min(1.0, changes["busy_s"] / interval_s)
        if changes["requests"] > 0:
            meter = self._meters[sample.revision]
            meter.active_at = now
            meter.group(sample.group).work.add(
                now, (changes["requests"], changes["inferences"], changes["execution_s"], changes["queue_s"])
            )

    def _note_levels(self, sample: ReplicaSample, now: float) -> None:
        if sample.in_flight > 0 or sample.queued > 0:
            self._meters[sample.revision].active_at = now

    def _reject(self, kind: str) -> bool:
        self.faults[kind] += 1
        return False

    # --- observations out

    def observe(self, revision: Revision, fleet: Sequence[FleetGroup], now: float) -> Observation:
        """Everything known of ``revision`` at ``now``; a revision that was never applied is measured from here on."""
        meter = self._meters.setdefault(revision.id, _Meter(since=now, active_at=now))
        q = revision.function.sla.percentile / 100.0
        groups, in_flight, in_flight_inferences, ages = [], 0.0, 0.0, []
        complete = True
        for group in fleet:
            heard = self._heard(group, now)
            complete = complete and (bool(heard) or not group.ready)
            ages += [now - source.at for source in heard]
            observed = _group_observation(group, heard, meter.groups.get(group.accelerator), now, q)
            in_flight += observed.concurrency
            in_flight_inferences += observed.concurrency_inferences
            groups.append(observed)
        demands, gateway_ages, all_heard = self._demands(revision.id, now)
        ages += gateway_ages
        answered, within = meter.answers.sums(now)
        return Observation(
            function=revision.function.name,
            revision=revision.id,
            at=now,
            complete=complete and all_heard,
            age_s=max(ages) if ages else None,
            groups=tuple(groups),
            waiting=sum(demand.waiting for demand in demands),
            waiting_inferences=sum(demand.waiting_inferences for demand in demands),
            oldest_waiting_s=max((demand.oldest_waiting_s for demand in demands), default=0.0),
            concurrency=in_flight + sum(demand.waiting_mean for demand in demands),
            concurrency_inferences=in_flight_inferences + sum(demand.waiting_inferences_mean for demand in demands),
            rps=sum(demand.rps for demand in demands),
            lambda_ips=meter.arrivals.sums(now)[0] / meter.arrivals.span_s(now),
            latency_s=meter.latency.quantile(now, q),
            within_sla=within / answered if answered > 0 else None,
            idle_s=max(0.0, now - meter.active_at),
        )

    def _heard(self, group: FleetGroup, now: float) -> list[_Replica]:
        sources = (self._replicas.get(replica) for replica in group.ready)
        return [source for source in sources if source is not None and now - source.at <= self._stale_s]

    def _demands(self, revision_id: str, now: float) -> tuple[list[_Demand], list[float], bool]:
        """(contributions of the gateways heard of, their ages, whether every expected gateway was heard of)."""
        demands, ages, complete = [], [], bool(self._expected_gateways)
        for worker in self._expected_gateways:
            source = self._gateways.get(worker)
            if source is None or now - source.at > self._stale_s:
                complete = False
                continue
            demand = source.demands.get(revision_id)
            at = source.at if demand is None else demand.at
            complete = complete and now - at <= self._stale_s
            if demand is not None:
                demands.append(demand)
            ages.append(now - at)
        return demands, ages, complete

    def __repr__(self) -> str:
        return (
            f"<Collector {len(self._gateways)}/{len(self._expected_gateways)} gateways, "
            f"{len(self._replicas)} replicas, {len(self._meters)} revisions, faults {dict(self.faults)}>"
        )


def _group_observation(
    group: FleetGroup, heard: Sequence[_Replica], kept: _Group | None, now: float, q: float
) -> GroupObservation:
    scale = len(group.ready) / len(heard) if heard else 0.0
    requests, inferences, execution_s, queue_s = kept.work.sums(now) if kept and heard else (0.0, 0.0, 0.0, 0.0)
    return GroupObservation(
        accelerator=group.accelerator,
        ready=len(group.ready),
        starting=group.starting,
        draining=group.draining,
        room=group.room,
        price_per_hour=group.price_per_hour,
        mu_ips=group.mu_ips,
        limit=tightest(source.sample.limit for source in heard),
        sampled=len(heard),
        concurrency=scale * sum(source.concurrency for source in heard),
        concurrency_inferences=scale * sum(source.concurrency_inferences for source in heard),
        rps=scale * sum(source.rps for source in heard),
        ips=scale * sum(source.ips for source in heard),
        busy=scale * sum(source.busy for source in heard),
        mean_batch=inferences / requests if requests > 0 else None,
        execution_s=execution_s / requests if requests > 0 else None,
        queue_s=queue_s / requests if requests > 0 else None,
        latency_s=kept.latency.quantile(now, q) if kept else None,
    )


def _began_here(last_heard: float | None, uptime_s: float, now: float) -> bool:
    """Whether all that a process counted happened under our eyes: it is young, or began after its predecessor's last
    sample."""
    return uptime_s <= YOUNG_S if last_heard is None else uptime_s <= now - last_heard + YOUNG_S


def _is_plausible(values: Iterable[float]) -> bool:
    """Numbers from 0 to PLAUSIBLE; a NaN compares false with everything."""
    return all(0 <= value <= PLAUSIBLE for value in values)


def _replica_fault(sample: ReplicaSample, before: ReplicaSample) -> str | None:
    if sample.sequence <= before.sequence:
        return "repeated"
    is_older = sample.uptime_s <= before.uptime_s
    if is_older or any(getattr(sample, name) < getattr(before, name) - ROUNDING for name in REPLICA_COUNTERS):
        return "backwards"
    return None


def _demand_fault(demand: RevisionDemand, before: RevisionDemand | None) -> str | None:
    if not _is_plausible(getattr(demand, name) for name in DEMAND_COUNTERS + DEMAND_LEVELS):
        return "garbage"
    if not _is_histogram(demand.latency) or not all(_is_group(group) for group in demand.groups):
        return "garbage"
    if before is not None and any(getattr(demand, name) < getattr(before, name) - ROUNDING for name in DEMAND_COUNTERS):
        return "backwards"
    return None


def _is_group(group: GroupTraffic) -> bool:
    return _is_plausible((group.requests, group.inferences, group.failures)) and _is_histogram(group.latency)


def _is_histogram(sparse: SparseHistogram) -> bool:
    return all(0 <= index < BUCKETS and 0 <= count <= PLAUSIBLE for index, count in sparse)


def _add_latency(into: RecentHistogram, now_counts: SparseHistogram, before: SparseHistogram, now: float) -> None:
    """Adds what came since ``before``; buckets that shrank (a reset nobody announced) add nothing."""
    if now_counts == before:
        return
    known = dict(before)
    gained = tuple((index, count - known.get(index, 0)) for index, count in now_counts if count > known.get(index, 0))
    if gained:
        into.add(now, gained)
