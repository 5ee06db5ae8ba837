"""From samples to observations: differences of cumulative counters, stamped on receipt.

Each gateway worker and each queue_proxy is a *source*. A sample that repeats a sequence number is dropped; a new
incarnation starts from zero; a sample whose figures cannot be true (not a number, negative, running backwards) is
ignored and counted as a fault. Nothing a source sends raises.

Missing is not zero. A source not heard of for ``STALE_S`` is stale; while a gateway worker is stale, or every ready
replica of a group, an observation says ``complete=False`` and its figures are lower bounds. Within a group the
replicas that were heard of speak for the others.
"""

import math
from collections import Counter
from collections.abc import Collection, Generator, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from autoscaler.apps import AppFigures
from autoscaler.observation import FleetGroup, GroupObservation, Observation, group_observation
from autoscaler.plausible import (
    PLAUSIBLE,
    demand_fault,
    is_histogram,
    is_plausible_group,
    is_plausible_replica,
    replica_fault,
    runs_on,
    unborn_demand,
    unborn_replica,
)
from autoscaler.rates import WARM_REQUESTS, WARM_S, GroupRates, LearntCell, Work
from autoscaler.sampling import ALL_UP_TO, UNEVEN, UNEVEN_RPS, sample_size
from autoscaler.series import NOTHING, Gain, Reading, RecentHistogram, RecentSums, RecentWork, gained
from tidegate.function import ConcurrencyUnit, Revision
from tidegate.records import AppSample, GatewaySample, GroupTraffic, ReplicaSample, RevisionDemand, SparseHistogram

SECOND_S = 2.0
"""The mean of a longer interval is not of this second."""
SAME_ROUND_S = 0.75
"""Samples that lie no further apart were pulled in the same round."""
STALE_S = 3.0
"""A source that was not heard of for so long tells nothing any more: three pulls missed."""
YOUNG_S = 5.0
"""A source first seen at a lower age than this is counted from its start, an older one from its first sample on."""
PATIENCE = 3
"""So many samples in a row that run backwards are a reset that nobody announced: the next one is a new start."""
MAX_GROUPS = 64
"""Groups kept per revision."""
FIGURES_S = 1.5
"""What was read of a group's windows is read anew after so long."""
EXECUTIONS_EVERY_S = 5.0
"""How often a replica's execution times are taken: the tail of a minute needs no second's resolution."""
CROWDED = 0.5
"""Mean number of waiting requests from which on every slot is taken to be in use."""
PART = 100
"""Demands and groups of a gateway's sample that are taken in one go: about a millisecond."""
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
    taken: dict[str, tuple[GroupTraffic, ...]] = field(default_factory=dict)
    """Groups of a revision when their latencies were last taken: every other second, half of the revisions in each.
    Their window is of thirty seconds, in slots of five; a revision's own latencies are taken every second."""
    demands: dict[str, _Demand] = field(default_factory=dict)
    refused: int = 0
    """Samples in a row that were not newer than the last usable one."""
    strikes: Counter[str] = field(default_factory=Counter)
    """Impossible demands in a row, by revision."""

    def forget(self, revision: str) -> None:
        self.before.pop(revision, None)
        self.taken.pop(revision, None)
        self.demands.pop(revision, None)
        self.strikes.pop(revision, None)


@dataclass(slots=True)
class _Replica:
    sample: ReplicaSample
    at: float
    concurrency: float = 0.0
    concurrency_inferences: float = 0.0
    rps: float = 0.0
    ips: float = 0.0
    busy: float = 0.0
    interval_s: float = 0.0
    """What the means are of."""
    refused: int = 0
    """Samples in a row that were not newer than the last usable one, or ran backwards."""
    executions: SparseHistogram = ()
    """Its execution times when they were last taken."""
    executions_due: float = 0.0


class _Figures(NamedTuple):
    """What is read of a group's windows, which reach back ten seconds to a minute, and of its rates."""

    at: float
    latency: Reading
    known: tuple[float, bool, float | None] | None
    mean_batch: float | None
    execution_s: float | None
    queue_s: float | None
    tail_s: float | None


@dataclass(slots=True)
class _Group:
    """What is kept of one group."""

    work: RecentWork = field(default_factory=RecentWork)
    latency: RecentHistogram = field(default_factory=RecentHistogram)
    execution: RecentHistogram = field(default_factory=lambda: RecentHistogram(4, 15.0))
    rates: GroupRates = field(default_factory=GroupRates)
    mean_batch: float | None = None
    """Inferences per request when it was last observed at work."""
    sampled: tuple[float, float] | None = None
    """When those that spoke last for the group had been heard, and their time in the model per inference."""
    figures: _Figures | None = None
    """As last read: every other second, half of the revisions in each."""
    app: AppFigures | None = None
    """What its model servers say, where they are asked."""

    def differs(self, heard: "_Heard") -> bool:
        """Whether those who speak for the group now differ much from those before: in the time that an inference is in
        the replica, because a change of the load is no straggler."""
        before = self.sampled
        if heard.rps < UNEVEN_RPS or heard.ips <= 0.0 or (before is not None and heard.oldest <= before[0]):
            return False
        present_s = heard.concurrency_inferences / heard.ips
        self.sampled = (heard.oldest, present_s)
        return before is not None and not before[1] / UNEVEN <= present_s <= before[1] * UNEVEN


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
    phase: int = 0
    """0 or 1: which seconds its groups' latencies are taken in."""
    is_limit_in_inferences: bool = False
    uneven: set[str] = field(default_factory=set)
    """Groups whose samples differed since that was last asked."""
    crowded_at: float = -math.inf
    """When requests last waited at a gateway for most of an interval."""

    def group(self, accelerator: str) -> _Group:
        """The group's sums. Names come from samples, so their number is bounded: beyond it nothing is kept."""
        known = self.groups.get(accelerator)
        if known is None:
            known = _Group()
            if len(self.groups) < MAX_GROUPS:
                self.groups[accelerator] = known
        return known


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
        if revision_id not in self._meters:
            self._new_meter(revision_id, now)

    def _new_meter(self, revision_id: str, now: float) -> _Meter:
        meter = self._meters[revision_id] = _Meter(since=now, active_at=now, phase=len(self._meters) % 2)
        return meter

    def forget(self, revision_id: str) -> None:
        self._meters.pop(revision_id, None)
        for source in self._gateways.values():
            source.forget(revision_id)

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
        parts = self.gateway_parts(sample, now)
        try:
            while True:
                next(parts)
        except StopIteration as done:
            return bool(done.value)

    def gateway_parts(
        self, sample: GatewaySample, now: float, demands: Iterable[RevisionDemand] | None = None
    ) -> Generator[None, None, bool]:
        """The same in parts of ``PART`` groups, so that a sample of many functions stops nobody for long. Between two
        parts anything may happen but the next sample of the same worker. ``demands``: those of the sample, where they
        are read on the way."""
        known = self._gateways.get(sample.worker)
        if not (0 <= sample.sequence <= PLAUSIBLE and 0 <= sample.uptime_s <= PLAUSIBLE):
            return self._reject("garbage")
        source, interval_s, from_zero = self._gateway_source(known, sample, now)
        if source is None:
            return False
        heard_before = source.at
        source.sequence, source.uptime_s, source.at = sample.sequence, sample.uptime_s, now
        present, done = set(), 0
        for demand in sample.demands if demands is None else demands:
            meter = self._meters.get(demand.revision)
            if meter is None:
                continue
            present.add(demand.revision)
            self._demand(source, meter, demand, interval_s, from_zero and meter.since <= heard_before, now)
            done += 1 + len(demand.groups)
            if done >= PART:
                done = 0
                yield
        for revision in source.before.keys() - present:
            # A worker that no longer lists a revision has nothing of it and will count it from zero again.
            source.forget(revision)
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

    def _demand(
        self,
        source: _Gateway,
        meter: _Meter,
        demand: RevisionDemand,
        interval_s: float,
        from_zero: bool,
        now: float,
    ) -> None:
        revision = demand.revision
        before = source.before.get(revision)
        if demand == before and demand.waiting == 0 and source.taken.get(revision) is before.groups:
            source.demands.pop(revision, None)
            return
        fault = demand_fault(demand, before)
        base = before or (unborn_demand(demand) if from_zero else demand)
        taken = source.taken.get(revision, base.groups)
        is_turn = (source.sequence + meter.phase) % 2 == 1 or len(taken) != len(demand.groups) or demand == before
        groups = demand.groups if is_turn else ()
        gains = None if fault == "garbage" else _latency_gains(demand.latency, base.latency, groups, taken)
        if gains is None:
            fault = "garbage"
        if gains is None or fault is not None:
            self._reject(fault or "garbage")
            source.strikes[revision] += 1
            if fault == "backwards" and source.strikes[revision] >= PATIENCE:
                source.before[revision], source.taken[revision] = demand, demand.groups
                del source.strikes[revision]
            # What was last known of it stays, with its age, until it is stale.
            source.demands.setdefault(revision, _Demand(at=now))
            return
        if source.strikes:
            source.strikes.pop(revision, None)
        source.before[revision], source.taken[revision] = demand, demand.groups if is_turn else taken
        counted = _counted(meter, demand, base, gains, interval_s, now)
        if before is None and not from_zero:
            # The integral of before is unknown: what waits now is the best guess of the mean.
            counted = replace(counted, waiting_mean=demand.waiting, waiting_inferences_mean=demand.waiting_inferences)
        source.demands[revision] = counted

    def replica(self, sample: ReplicaSample, now: float) -> bool:
        """Takes a queue_proxy's sample that arrived at ``now``; False when it was ignored."""
        meter = self._meters.get(sample.revision)
        if meter is None:
            return False
        known = self._replicas.get(sample.replica)
        if known is None or known.sample.incarnation != sample.incarnation:
            if not is_plausible_replica(sample):
                return self._reject("garbage")
            self._first_of_replica(meter, sample, None if known is None else known.at, now)
            return True
        before = known.sample
        if not runs_on(sample, before):
            return self._reject(self._note_fault(meter, known, sample, now))
        known.sample, known.at, known.refused = sample, now, 0
        _note_work(meter, known, sample, before, sample.uptime_s - before.uptime_s, now)
        if sample.app is not None:
            group = meter.group(sample.group)
            if group.app is None:
                group.app = AppFigures(RATE_SLOTS)
            group.app.note(sample.app, before.app, now)
        return True

    def _note_fault(self, meter: _Meter, known: _Replica, sample: ReplicaSample, now: float) -> str:
        """What is wrong with a sample that does not follow the one before."""
        if not is_plausible_replica(sample):
            return "garbage"
        known.refused += 1
        if known.refused >= PATIENCE:
            self._first_of_replica(meter, sample, known.at, now)
        return replica_fault(sample, known.sample)

    def _first_of_replica(self, meter: _Meter, sample: ReplicaSample, last_heard: float | None, now: float) -> None:
        source = self._replicas[sample.replica] = _Replica(
            sample=sample,
            at=now,
            concurrency=sample.in_flight + sample.queued,
            concurrency_inferences=sample.in_flight_inferences + sample.queued,
            executions=sample.execution if is_histogram(sample.execution) else (),
            executions_due=now + 1.0 + len(self._replicas) % EXECUTIONS_EVERY_S,
        )
        if _began_here(last_heard, sample.uptime_s, now):
            _note_work(meter, source, sample, unborn_replica(sample), max(sample.uptime_s, 1e-3), now)
        elif sample.in_flight > 0 or sample.queued > 0:
            meter.active_at = now

    def _reject(self, kind: str) -> bool:
        self.faults[kind] += 1
        return False

    # --- observations out

    def observe(
        self, revision: Revision, fleet: Sequence[FleetGroup], now: float, *, least: int = 0, most: int | None = None
    ) -> Observation:
        """Everything known of ``revision`` at ``now``; a revision that was never applied is measured from here on.
        ``least`` and ``most``: bounds of the moment, as in the observation."""
        name, function = revision.id, revision.function
        meter = self._meters.get(name)
        if meter is None:
            meter = self._new_meter(name, now)
        meter.is_limit_in_inferences = function.concurrency_unit is ConcurrencyUnit.INFERENCES
        q = function.sla.percentile / 100.0
        slo_s = math.inf if function.sla.latency_s is None else function.sla.latency_s
        groups, concurrency, concurrency_inferences, oldest = [], 0.0, 0.0, math.inf
        complete, is_turn = True, (math.floor(now) + meter.phase) % 2 == 1
        for group in fleet:
            heard = self._heard(group, now)
            if heard.replicas:
                oldest = min(oldest, heard.oldest)
            elif group.ready:
                complete = False
            kept = meter.groups.get(group.accelerator)
            if kept is not None and len(group.ready) > ALL_UP_TO and kept.differs(heard):
                meter.uneven.add(group.accelerator)
            observed = _group_observation(group, heard, kept, now, q, slo_s, is_turn=is_turn)
            concurrency += observed.concurrency
            concurrency_inferences += observed.concurrency_inferences
            groups.append(observed)
        demands, oldest_heard, all_heard = self._demands(name, now)
        oldest = min(oldest, oldest_heard)
        waiting = waiting_inferences = 0
        oldest_waiting_s = rps = 0.0
        for demand in demands:
            waiting += demand.waiting
            waiting_inferences += demand.waiting_inferences
            oldest_waiting_s = max(oldest_waiting_s, demand.oldest_waiting_s)
            concurrency += demand.waiting_mean
            concurrency_inferences += demand.waiting_inferences_mean
            rps += demand.rps
        answered, within = meter.answers.sums(now)
        return Observation(
            function=function.name,
            revision=name,
            at=now,
            complete=complete and all_heard,
            age_s=None if oldest == math.inf else now - oldest,
            groups=tuple(groups),
            waiting=waiting,
            waiting_inferences=waiting_inferences,
            oldest_waiting_s=oldest_waiting_s,
            concurrency=concurrency,
            concurrency_inferences=concurrency_inferences,
            rps=rps,
            lambda_ips=meter.arrivals.sums(now)[0] / meter.arrivals.span_s(now),
            latency_s=meter.latency.reading(now, q, slo_s).quantile_s,
            within_sla=within / answered if answered > 0 else None,
            idle_s=max(0.0, now - meter.active_at),
            least=least,
            most=most,
        )

    def uneven(self, revision_id: str) -> tuple[str, ...]:
        """Groups of which two successive samples have differed by more than a factor of ``UNEVEN``; told once."""
        meter = self._meters.get(revision_id)
        if meter is None or not meter.uneven:
            return ()
        found = tuple(sorted(meter.uneven))
        meter.uneven.clear()
        return found

    def _heard(self, group: FleetGroup, now: float) -> "_Heard":
        """The sums over the ready replicas that were heard of lately."""
        replicas, stale = self._replicas, now - self._stale_s
        if len(group.ready) == 1:
            source = replicas.get(group.ready[0])
            if source is None or source.at < stale:
                return NOBODY
            told, app = source.sample.limit, source.sample.app
            apps = () if app is None or not app.up else (app,)
            means = (source.concurrency, source.concurrency_inferences, source.rps, source.ips, source.busy)
            return _Heard(1, source.at, told, *means, apps)
        sources = [each for each in map(replicas.get, group.ready) if each is not None and each.at >= stale]
        if len(group.ready) > ALL_UP_TO:
            sources = _newest(sources, sample_size(len(group.ready)))
        oldest, limit = math.inf, None
        count = 0
        concurrency = concurrency_inferences = rps = ips = busy = 0.0
        told_by: list[AppSample] = []
        for source in sources:
            count += 1
            if source.at < oldest:
                oldest = source.at
            told = source.sample.limit
            if limit is None or 0 < told < (limit or math.inf):
                limit = told
            concurrency += source.concurrency
            concurrency_inferences += source.concurrency_inferences
            rps += source.rps
            ips += source.ips
            busy += source.busy
            app = source.sample.app
            if app is not None and app.up:
                told_by.append(app)
        if not count:
            return NOBODY
        scale = len(group.ready) / count
        return _Heard(
            count,
            oldest,
            limit,
            scale * concurrency,
            scale * concurrency_inferences,
            scale * rps,
            scale * ips,
            scale * busy,
            told_by,
        )

    def _demands(self, revision_id: str, now: float) -> tuple[list[_Demand], float, bool]:
        """(contributions of the gateways heard of, when the oldest of them was heard, whether all expected were)."""
        demands, oldest, complete = [], math.inf, bool(self._expected_gateways)
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
            oldest = min(oldest, at)
        return demands, oldest, complete

    def mu_ips(self, revision_id: str, accelerator: str) -> float | None:
        """The service rate of one replica, learnt at its limit, for batches as they last were; None: not learnt."""
        meter = self._meters.get(revision_id)
        group = None if meter is None else meter.groups.get(accelerator)
        rate = None if group is None else group.rates.rate(group.mean_batch)
        return rate.mu_ips if rate is not None and rate.is_at_limit else None

    def mu_of_size(self, revision_id: str, accelerator: str, batch: float) -> float | None:
        """The service rate of one replica for requests of ``batch`` inferences, as far as it is known: below the limit
        it is what was yielded there; None: nothing was learnt."""
        meter = self._meters.get(revision_id)
        group = None if meter is None else meter.groups.get(accelerator)
        rate = None if group is None else group.rates.rate(batch)
        return None if rate is None else rate.mu_ips

    def learnt(self, revision_id: str) -> dict[str, tuple[tuple[LearntCell, ...], float | None]]:
        """What was learnt of a revision, by accelerator: cells of its rates, and inferences per request as they last
        were. To be kept over a restart."""
        meter = self._meters.get(revision_id)
        known = {} if meter is None else meter.groups
        return {name: (group.rates.learnt(), group.mean_batch) for name, group in known.items()}

    def teach(
        self, revision_id: str, accelerator: str, cells: Iterable[LearntCell], mean_batch: float | None = None
    ) -> None:
        """What an earlier process has learnt of a revision; what was learnt here counts more."""
        meter = self._meters.get(revision_id)
        if meter is None:
            return
        group = meter.group(accelerator)
        group.rates.restore(cells)
        if group.mean_batch is None and mean_batch is not None and 1.0 <= mean_batch <= PLAUSIBLE:
            group.mean_batch = mean_batch

    def __repr__(self) -> str:
        return (
            f"<Collector {len(self._gateways)}/{len(self._expected_gateways)} gateways, "
            f"{len(self._replicas)} replicas, {len(self._meters)} revisions, faults {dict(self.faults)}>"
        )


def _newest(sources: list[_Replica], enough: int) -> list[_Replica]:
    """Of a group that is too large for all to be asked every second: those that were heard of in this one, about this
    one, if they are enough to speak for the others."""
    newest = max((source.at for source in sources), default=0.0)
    found = [each for each in sources if newest - each.at < SAME_ROUND_S and 0.0 < each.interval_s <= SECOND_S]
    return found if len(found) >= enough else sources


class _Heard(NamedTuple):
    """What the ready replicas of a group tell together, scaled up to all of them."""

    replicas: int
    oldest: float
    """When the one heard of least lately was."""
    limit: int | None
    """Slots of the one with fewest, 0: no limit."""
    concurrency: float
    concurrency_inferences: float
    rps: float
    ips: float
    busy: float
    apps: Sequence[AppSample] = ()
    """What their model servers say now."""


NOBODY = _Heard(0, math.inf, None, 0.0, 0.0, 0.0, 0.0, 0.0)


def _latency_gains(
    own: SparseHistogram,
    own_before: SparseHistogram,
    groups: Sequence[GroupTraffic],
    before: Sequence[GroupTraffic],
) -> list[tuple[str, Gain]] | None:
    """What a demand's histogram and those of ``groups`` got, by group, the first one without a name; None: one of them
    cannot be true."""
    gain = gained(own, own_before)
    if gain is None:
        return None
    gains, others = [("", gain)], None
    for index, group in enumerate(groups):
        # They nearly always come in the same order.
        known = before[index] if index < len(before) else None
        if known is None or known.group != group.group:
            if others is None:
                others = {each.group: each for each in before}
            known = others.get(group.group)
        gain = gained(group.latency, () if known is None else known.latency)
        if gain is None or not is_plausible_group(group):
            return None
        if gain.total:
            gains.append((group.group, gain))
    return gains


def _counted(
    meter: _Meter,
    demand: RevisionDemand,
    before: RevisionDemand,
    gains: Sequence[tuple[str, Gain]],
    interval_s: float,
    now: float,
) -> _Demand:
    """Adds the difference of two demands to the revision's meter."""
    arrivals = demand.arrivals - before.arrivals
    waiting_s = max(0.0, demand.waiting_request_s - before.waiting_request_s)
    waiting_inference_s = max(0.0, demand.waiting_inference_s - before.waiting_inference_s)
    answered = demand.answered - before.answered
    if arrivals > 0 or answered > 0 or demand.waiting > 0:
        meter.active_at = now
    if waiting_s >= CROWDED * interval_s and demand.waiting > 0 and before.waiting > 0:
        # At both ends too: a burst of half a second fills nobody's second.
        meter.crowded_at = now
    _add_arrivals(meter.arrivals, demand.arrivals_inferences - before.arrivals_inferences, interval_s, now)
    if answered > 0:
        meter.answers.add(now, (answered, demand.within_sla - before.within_sla))
    for name, gain in gains:
        (meter.group(name).latency if name else meter.latency).gain(now, gain)
    return _Demand(
        at=now,
        rps=arrivals / interval_s,
        waiting_mean=waiting_s / interval_s,
        waiting_inferences_mean=waiting_inference_s / interval_s,
        waiting=demand.waiting,
        waiting_inferences=demand.waiting_inferences,
        oldest_waiting_s=demand.oldest_waiting_s,
    )


def _add_arrivals(into: RecentSums, inferences: float, interval_s: float, now: float) -> None:
    """Spreads what arrived over the seconds in which it did, as far as the window goes: after an outage of the samples
    the first one tells of all of it, and is no burst."""
    seconds = max(1, round(min(interval_s, RATE_SLOTS)))
    share = inferences / max(interval_s, float(seconds)) if seconds > 1 else inferences
    for back in range(seconds - 1, -1, -1):
        into.add(now - back, (share,))


def _note_work(
    meter: _Meter, source: _Replica, sample: ReplicaSample, before: ReplicaSample, interval_s: float, now: float
) -> None:
    """What one replica did between two samples, into its source and its group's sums."""
    requests, inferences = sample.requests - before.requests, sample.inferences - before.inferences
    # By rounding a sum may have shrunk a little.
    request_s = sample.in_flight_request_s - before.in_flight_request_s
    request_s = request_s if request_s > 0.0 else 0.0
    inference_s = sample.in_flight_inference_s - before.in_flight_inference_s
    inference_s = inference_s if inference_s > 0.0 else 0.0
    busy_s = sample.busy_s - before.busy_s
    busy_s = busy_s if busy_s > 0.0 else 0.0
    queued = sample.queued
    source.concurrency = request_s / interval_s + queued
    source.concurrency_inferences = inference_s / interval_s + queued
    source.rps = requests / interval_s
    source.ips = inferences / interval_s
    source.interval_s = interval_s
    source.busy = busy_s / interval_s if busy_s < interval_s else 1.0
    if requests > 0 or queued > 0 or sample.in_flight > 0:
        meter.active_at = now
    if requests <= 0 and busy_s <= 0.0:
        return
    group = meter.group(sample.group)
    execution_s = max(0.0, sample.execution_s - before.execution_s)
    if requests > 0:
        group.work.note(requests, inferences, execution_s, max(0.0, sample.queue_s - before.queue_s))
    if before.requests < WARM_REQUESTS and before.busy_s < WARM_S:
        source.executions = sample.execution if is_histogram(sample.execution) else ()
        return
    limit = float(sample.limit) if sample.limit == before.limit else 0.0
    if limit > 0.0 and meter.is_limit_in_inferences and request_s > 0.0:
        limit = max(1.0, limit * request_s / max(inference_s, request_s))
    work = Work(requests, inferences, busy_s, request_s, inference_s, execution_s)
    group.rates.served(now, work, limit=limit, is_crowded=now - meter.crowded_at <= 1.5)
    if now >= source.executions_due or now < source.executions_due - EXECUTIONS_EVERY_S:
        source.executions_due = now + EXECUTIONS_EVERY_S
        gain = gained(sample.execution, source.executions)
        if gain is not None:
            group.execution.gain(now, gain)
            source.executions = sample.execution


def _figures(kept: _Group, now: float, q: float, slo_s: float) -> _Figures:
    mean_batch = execution_s = queue_s = None
    requests, inferences, executing_s, queueing_s = kept.work.read(now)
    if requests > 0:
        kept.mean_batch = mean_batch = inferences / requests
        execution_s, queue_s = executing_s / requests, queueing_s / requests
    return _Figures(
        now,
        kept.latency.reading(now, q, slo_s),
        kept.rates.known(kept.mean_batch),
        mean_batch,
        execution_s,
        queue_s,
        kept.execution.reading(now, q, math.inf).quantile_s,
    )


def _group_observation(
    group: FleetGroup, heard: _Heard, kept: _Group | None, now: float, q: float, slo_s: float, *, is_turn: bool
) -> GroupObservation:
    latency, known = NOTHING, None
    mean_batch = execution_s = queue_s = tail_s = None
    if kept is not None:
        figures = kept.figures
        if is_turn or figures is None or not 0.0 <= now - figures.at < FIGURES_S:
            figures = kept.figures = _figures(kept, now, q, slo_s)
        _, latency, known, mean_batch, execution_s, queue_s, tail_s = figures
        if not heard.replicas:
            mean_batch = execution_s = queue_s = tail_s = None
    mu_ips, is_learnt, bound_ips, floor_s = group.mu_ips, False, None, None
    if known is not None:
        bound_ips, is_learnt, floor_s = known
        if is_learnt:
            mu_ips = bound_ips
    if mu_ips is not None and not 0.0 < mu_ips <= PLAUSIBLE:
        mu_ips = None  # told by somebody; what is observed is finite, or a recording could not say it
    metrics = group.metrics
    if metrics:
        metrics = {name: value for name, value in metrics.items() if 0.0 <= value <= PLAUSIBLE}
    if heard.apps and kept is not None and kept.app is not None:
        told = kept.app.metrics(heard.apps, now)
        if kept.app.compute_s is not None:
            floor_s = kept.app.compute_s
        if queue_s is not None:
            queue_s += told.get("queue-s", 0.0)
        metrics = {**told, **metrics}
    return group_observation(
        group.accelerator,
        len(group.ready),
        group.starting,
        group.draining,
        group.room,
        group.price_per_hour,
        mu_ips,
        is_learnt,
        bound_ips,
        heard.limit,
        heard.replicas,
        heard.concurrency,
        heard.concurrency_inferences,
        heard.rps,
        heard.ips,
        heard.busy,
        mean_batch,
        execution_s,
        queue_s,
        floor_s,
        tail_s,
        latency.quantile_s,
        latency.total,
        latency.late,
        metrics,
    )


def _began_here(last_heard: float | None, uptime_s: float, now: float) -> bool:
    """Whether all that a process counted happened under our eyes: it is young, or began after its predecessor's last
    sample."""
    return uptime_s <= YOUNG_S if last_heard is None else uptime_s <= now - last_heard + YOUNG_S
