"""From samples to observations: differences of cumulative counters, stamped on receipt.

Each gateway worker and each queue_proxy is a *source*. A sample that repeats a sequence number is dropped. A new
incarnation starts from zero. A sample with impossible figures (not a number, negative, running backwards) is ignored
and counted as a fault. Nothing that a source sends raises.

Missing is not zero. A source without a sample for ``STALE_S`` is stale. While a gateway worker is stale, or every ready
replica of a group, an observation has ``complete=False`` and its figures are lower bounds. Within a group the sampled
replicas stand for the others.
"""

import math
from collections import Counter
from collections.abc import Collection, Generator, Iterable, Sequence

from msgspec import UNSET, structs

from tidegate.autoscaler.measure.gateways import GatewayReports
from tidegate.autoscaler.measure.group_measurements import Means
from tidegate.autoscaler.measure.group_observation import observed_group, sampled_means
from tidegate.autoscaler.measure.measurements import EXECUTIONS_EVERY_S, PHASES, RATE_SLOTS, RevisionMeasurements
from tidegate.autoscaler.measure.model_servers import AppFigures
from tidegate.autoscaler.measure.observation import FleetGroup, Observation
from tidegate.autoscaler.measure.plausible import PLAUSIBLE, is_plausible_replica
from tidegate.autoscaler.measure.rates import LearntCell
from tidegate.autoscaler.measure.sampling import ALL_UP_TO
from tidegate.autoscaler.measure.series import seen
from tidegate.autoscaler.measure.sources import (
    RESET_AFTER,
    ReplicaSource,
    began_here,
)
from tidegate.function import ConcurrencyUnit, Revision
from tidegate.records.gateway_sample import GatewaySample, RevisionDemand
from tidegate.records.replica_sample import AppSample, ReplicaSample

STALE_S = 3.0
"""A source without a sample for this long is stale: three pulls were missed."""


class Collector:
    """Holds the measurements of any number of revisions. Only sources in :meth:`expect` and revisions in :meth:`apply`
    count."""

    def __init__(
        self, *, stale_s: float = STALE_S, by_size: Collection[str] = (), by_cores: Collection[str] = ()
    ) -> None:
        """``by_size``: the policies that read arrivals and service times by batch size; ``by_cores``: those that read
        the cores of replicas."""
        self._by_cores = frozenset(by_cores)
        self._stale_s = stale_s
        self._by_size = frozenset(by_size)
        self._replicas: dict[str, ReplicaSource] = {}
        self._revisions: dict[str, RevisionMeasurements] = {}
        self.faults: Counter[str] = Counter()
        """Ignored samples by kind: ``garbage``, ``backwards``, ``repeated``, ``unreadable``, ``unreachable``."""
        self._workers = GatewayReports(self._revisions, self.faults, stale_s)

    # --- what exists

    def apply(self, revision_id: str, now: float) -> None:
        """Measures a revision from now on; its idle time starts here."""
        if revision_id not in self._revisions:
            self._begin(revision_id, now)

    def _begin(self, revision_id: str, now: float) -> RevisionMeasurements:
        measured = self._revisions[revision_id] = RevisionMeasurements(
            since=now, active_at=now, phase=len(self._revisions) % PHASES
        )
        return measured

    def forget(self, revision_id: str) -> None:
        self._revisions.pop(revision_id, None)
        self._workers.forget(revision_id)

    def expect(self, gateways: Collection[str], replicas: Collection[str]) -> None:
        """Sets the sources that exist now. All that is known of others is dropped. Expected gateways that have never
        sent a sample make observations incomplete."""
        self._workers.expect(gateways)
        for replica in self._replicas.keys() - frozenset(replicas):
            self._replicas.pop(replica).at = -math.inf  # stale: cached rows may still refer to it

    def touch(self, revision_id: str, now: float) -> None:
        """Notes a sign of work that is in no sample yet (an activation)."""
        measured = self._revisions.get(revision_id)
        if measured is not None:
            measured.active_at = max(measured.active_at, now)

    def is_used(self, revision_id: str) -> bool:
        """Returns whether a request for the revision, other than for metadata, has ended since it is known."""
        measured = self._revisions.get(revision_id)
        return measured is not None and measured.is_used

    def fault(self, kind: str) -> None:
        """Counts a sample that could not be decoded."""
        self.faults[kind] += 1

    # --- samples in

    def gateway(self, sample: GatewaySample, now: float) -> bool:
        """Processes a gateway worker's sample that arrived at ``now``; returns False if all of it was ignored."""
        parts = self._workers.take(sample, now)
        try:
            while True:
                next(parts)
        except StopIteration as done:
            return bool(done.value)

    def gateway_parts(
        self, sample: GatewaySample, now: float, demands: Iterable[RevisionDemand] | None = None
    ) -> Generator[None, None, bool]:
        """Processes a sample as :meth:`gateway` does, with pauses: :meth:`GatewayReports.take`."""
        return self._workers.take(sample, now, demands)

    def replica(self, sample: ReplicaSample, now: float) -> bool:
        """Processes a queue_proxy's sample that arrived at ``now``; returns False if it was ignored."""
        measured = self._revisions.get(sample.revision)
        if measured is None:
            return False
        known = self._replicas.get(sample.replica)
        if known is None or known.incarnation != sample.incarnation:
            if not is_plausible_replica(sample):
                return self._reject("garbage")
            self._first_of_replica(measured, sample, None if known is None else known.at, now)
            return True
        gain, app = known.advance(sample), sample.app
        if gain is None:
            return self._reject(self._note_fault(measured, known, sample, now))
        measured.note_work(known, sample, gain, now)
        if app is not None:
            group = measured.group(sample.group)
            if group.app is None:
                group.app = AppFigures(RATE_SLOTS)
            group.app.note(app, known.app, now)
        known.app, known.at, known.refused = app, now, 0
        return True

    def _note_fault(
        self, measured: RevisionMeasurements, known: ReplicaSource, sample: ReplicaSample, now: float
    ) -> str:
        """Returns the fault of a sample that does not follow the one before."""
        if not is_plausible_replica(sample):
            return "garbage"
        known.refused += 1
        if known.refused >= RESET_AFTER:
            self._first_of_replica(measured, sample, known.at, now)
        return "repeated" if sample.sequence <= known.sequence else "backwards"

    def _first_of_replica(
        self, measured: RevisionMeasurements, sample: ReplicaSample, last_at: float | None, now: float
    ) -> None:
        in_flight, in_inferences = sample.in_flight + sample.queued, sample.in_flight_inferences + sample.queued
        if (gone := self._replicas.get(sample.replica)) is not None:
            gone.at = -math.inf
        source = self._replicas[sample.replica] = ReplicaSource(
            sample.incarnation,
            now,
            sample.limit,
            in_flight,
            in_inferences,
            sample.app,
            executions=seen(sample.execution),
            executions_due=now + 1.0 + len(self._replicas) % EXECUTIONS_EVERY_S,
        )
        if began_here(last_at, sample.uptime_s, now):
            # Compared with the sample that it would have sent at its very start.
            source.uptime_s = sample.uptime_s - max(sample.uptime_s, 1e-3)
            gain = source.advance(sample)
            if gain is not None:
                measured.note_work(source, sample, gain, now)
        elif in_flight > 0:
            measured.active_at = now
        source.count(sample)

    def _reject(self, kind: str) -> bool:
        self.faults[kind] += 1
        return False

    # --- observations out

    def observe(
        self,
        revision: Revision,
        fleet: tuple[FleetGroup, ...],
        now: float,
        *,
        least: int = 0,
        most: int | None = None,
        is_rolled_out: bool = False,
        lost: int = 0,
    ) -> Observation:
        """Returns everything known of ``revision`` at ``now``; a revision that was never applied is measured from here
        on. ``least``, ``most``, ``is_rolled_out`` and ``lost``: facts of the moment, as in the observation."""
        name, function = revision.id, revision.function
        measured = self._revisions.get(name)
        if measured is None:
            measured = self._begin(name, now)
        is_by_size = measured.is_by_size = function.scaling.policy in self._by_size
        is_by_cores = function.scaling.policy in self._by_cores
        measured.is_limit_in_inferences = function.concurrency_unit is ConcurrencyUnit.INFERENCES
        q = function.sla.percentile / 100.0
        slo_s = math.inf if function.sla.latency_s is None else function.sla.latency_s
        groups, concurrency, concurrency_inferences, oldest = [], 0.0, 0.0, math.inf
        complete, replicas, known = True, self._replicas, measured.groups
        stale, taken_at = now - self._stale_s, measured.taken_at
        means: Means
        apps: Sequence[AppSample]
        for group, kept, source in measured.rows(fleet, replicas):
            if kept is None:
                kept = known.get(group.accelerator)
            if source is not None and source.at >= stale:
                at, means, app = source.at, source, source.app
                apps = () if app is None or not app.up else (app,)
            else:
                at, means, apps = sampled_means(replicas, group.ready, stale)
                if group.ready and not means.sampled:
                    complete = False
                if kept is not None and len(group.ready) > ALL_UP_TO and kept.differs(at, means):
                    measured.uneven.add(group.accelerator)
            if at < oldest:
                oldest = at
            concurrency += means.concurrency
            concurrency_inferences += means.concurrency_inferences
            found = observed_group(group, means, apps, kept, now, q, slo_s, taken_at, is_by_size)
            groups.append(structs.replace(found, cores=group.cores) if is_by_cores else found)
        demands, oldest_demand_at, is_all_known = self._workers.demands(name, now)
        oldest = min(oldest, oldest_demand_at)
        waiting = waiting_inferences = 0
        oldest_waiting_s = rps = 0.0
        for demand in demands:
            waiting += demand.waiting
            waiting_inferences += demand.waiting_inferences
            oldest_waiting_s = max(oldest_waiting_s, demand.oldest_waiting_s)
            concurrency += demand.waiting_mean
            concurrency_inferences += demand.waiting_inferences_mean
            rps += demand.rps
        answered, within = measured.answers.sums(now)
        return Observation(
            function=function.name,
            revision=name,
            at=now,
            complete=complete and is_all_known,
            age_s=None if oldest == math.inf else now - oldest,
            groups=tuple(groups),
            waiting=waiting,
            waiting_inferences=waiting_inferences,
            oldest_waiting_s=oldest_waiting_s,
            concurrency=concurrency,
            concurrency_inferences=concurrency_inferences,
            rps=rps,
            lambda_ips=measured.arrivals.sums(now)[0] / measured.arrivals.span_s(now),
            latency_s=measured.latency.reading(now, q, slo_s).quantile_s,
            within_sla=within / answered if answered > 0 else None,
            idle_s=max(0.0, now - measured.active_at),
            least=least,
            is_rolled_out=is_rolled_out,
            most=most,
            lost=lost or UNSET,
            tokens=None
            if measured.tokens is None
            else measured.tokens.rates(groups, now, is_paced=function.sla.per_token_s is not None),
            counts=measured.counts() if is_by_size else UNSET,
        )

    def uneven(self, revision_id: str) -> tuple[str, ...]:
        """Returns the groups of which two successive samples have differed by more than a factor of ``UNEVEN``; each is
        returned once."""
        measured = self._revisions.get(revision_id)
        if measured is None or not measured.uneven:
            return ()
        found = tuple(sorted(measured.uneven))
        measured.uneven.clear()
        return found

    def mu_ips(self, revision_id: str, accelerator: str) -> float | None:
        """Returns the service rate of one replica, learnt at its limit, for batches as they last were; None if it is
        not learnt."""
        measured = self._revisions.get(revision_id)
        group = None if measured is None else measured.groups.get(accelerator)
        rate = None if group is None else group.rates.rate(group.mean_batch)
        return rate.mu_ips if rate is not None and rate.is_at_limit else None

    def mu_of_size(self, revision_id: str, accelerator: str, batch: float) -> float | None:
        """Returns the service rate of one replica for requests of ``batch`` inferences, as far as it is known. Below
        the limit it is the yield measured there. Returns None if nothing was learnt."""
        measured = self._revisions.get(revision_id)
        group = None if measured is None else measured.groups.get(accelerator)
        rate = None if group is None else group.rates.rate(batch)
        return None if rate is None else rate.mu_ips

    def learnt(self, revision_id: str) -> dict[str, tuple[tuple[LearntCell, ...], float | None]]:
        """Returns what was learnt of a revision, by accelerator: cells of its rates, and the latest mean of inferences
        per request. It is kept over a restart."""
        measured = self._revisions.get(revision_id)
        known = {} if measured is None else measured.groups
        return {name: (group.rates.learnt(), group.mean_batch) for name, group in known.items()}

    def teach(
        self, revision_id: str, accelerator: str, cells: Iterable[LearntCell], mean_batch: float | None = None
    ) -> None:
        """Adds what an earlier process has learnt of a revision; what was learnt here counts more."""
        measured = self._revisions.get(revision_id)
        if measured is None:
            return
        group = measured.group(accelerator)
        group.rates.restore(cells)
        group.services = None
        if group.mean_batch is None and mean_batch is not None and 1.0 <= mean_batch <= PLAUSIBLE:
            group.mean_batch = mean_batch

    def __repr__(self) -> str:
        return (
            f"<Collector {self._workers!r}, {len(self._replicas)} replicas, {len(self._revisions)} revisions, "
            f"faults {dict(self.faults)}>"
        )
