"""Reports of gateway workers: their samples as differences of cumulative counters, one source for each worker."""

from collections import Counter
from collections.abc import Collection, Generator, Iterable, Mapping
from math import inf

from msgspec import structs

from tidegate.autoscaler.measure.measurements import PHASES, RevisionMeasurements
from tidegate.autoscaler.measure.plausible import PLAUSIBLE, demand_fault, zero_demand
from tidegate.autoscaler.measure.series import gained
from tidegate.autoscaler.measure.sources import (
    RESET_AFTER,
    GatewaySource,
    RevisionReport,
    WorkerDemand,
    began_here,
)
from tidegate.records.gateway_sample import GatewaySample, RevisionDemand

PART = 100
"""Demands and groups of a gateway's sample that are processed without a pause: about a millisecond."""


class GatewayReports:
    """The last reports of the workers that exist."""

    __slots__ = ("_expected", "_faults", "_known", "_revisions", "_stale_s")

    def __init__(self, revisions: Mapping[str, RevisionMeasurements], faults: Counter[str], stale_s: float) -> None:
        """``revisions``: those that are measured, changed by what is reported; ``faults`` counts ignored samples by
        kind."""
        self._revisions = revisions
        self._faults = faults
        self._stale_s = stale_s
        self._known: dict[str, GatewaySource] = {}
        self._expected: frozenset[str] = frozenset()

    def expect(self, workers: Collection[str]) -> None:
        """Sets the workers that exist now. All that is known of others is dropped."""
        self._expected = frozenset(workers)
        for worker in self._known.keys() - self._expected:
            del self._known[worker]

    def forget(self, revision_id: str) -> None:
        """Drops the reports about a revision."""
        for source in self._known.values():
            source.reports.pop(revision_id, None)

    # --- samples in

    def take(
        self, sample: GatewaySample, now: float, demands: Iterable[RevisionDemand] | None = None
    ) -> Generator[None, None, bool]:
        """Processes a worker's sample that arrived at ``now``. Returns False, at the end, if all of it was ignored.

        It pauses after every ``PART`` groups, so that a sample of many functions does not block the loop. Between two
        parts anything may happen except the next sample of the same worker. ``demands``: those of the sample, if they
        are decoded on the way.
        """
        known = self._known.get(sample.worker)
        if not (0 <= sample.sequence <= PLAUSIBLE and 0 <= sample.uptime_s <= PLAUSIBLE):
            return self._reject("garbage")
        source, interval_s, from_zero = self._gateway_source(known, sample, now)
        if source is None:
            return False
        last_at = source.at
        source.sequence, source.uptime_s, source.at = sample.sequence, sample.uptime_s, now
        present, done = set(), 0
        for demand in sample.demands if demands is None else demands:
            measured = self._revisions.get(demand.revision)
            if measured is None:
                continue
            present.add(demand.revision)
            self._demand(source, measured, demand, interval_s, from_zero and measured.since <= last_at, now)
            done += 1 + len(demand.groups)
            if done >= PART:
                done = 0
                yield
        for revision in source.reports.keys() - present:
            # A worker that no longer lists a revision has no requests of it and will count it from zero again.
            del source.reports[revision]
        return True

    def _gateway_source(
        self, known: GatewaySource | None, sample: GatewaySample, now: float
    ) -> tuple[GatewaySource | None, float, bool]:
        """Returns (source to update or None, interval in seconds, whether absent counters count as zero before)."""
        if known is not None and known.incarnation == sample.incarnation:
            interval_s = sample.uptime_s - known.uptime_s
            if sample.sequence > known.sequence and interval_s > 0:
                known.refused = 0
                return known, interval_s, True
            self._reject("repeated" if sample.sequence <= known.sequence else "backwards")
            known.refused += 1
            if known.refused < RESET_AFTER:
                return None, 0.0, False
        fresh = GatewaySource(incarnation=sample.incarnation, sequence=-1, uptime_s=0.0, at=now)
        self._known[sample.worker] = fresh
        return fresh, max(sample.uptime_s, 1e-3), began_here(None if known is None else known.at, sample.uptime_s, now)

    def _demand(
        self,
        source: GatewaySource,
        measured: RevisionMeasurements,
        demand: RevisionDemand,
        interval_s: float,
        from_zero: bool,
        now: float,
    ) -> None:
        report = source.reports.get(demand.revision)
        if report is None:
            report = source.reports[demand.revision] = RevisionReport()
        before = report.demand
        is_same = before is not None and demand.arrivals == before.arrivals and demand == before
        if is_same and before is not None and demand.waiting == 0 and report.groups is before.groups:
            report.contribution = None
            return
        fault = demand_fault(demand, before)
        is_due = source.sequence % PHASES == measured.phase or len(report.groups) != len(demand.groups) or is_same
        own = groups = None
        if fault != "garbage":
            own = gained(demand.latency, report.latency)
            groups = report.group_gains(demand.groups if is_due else ())
        if own is None or groups is None or fault is not None:
            self._refuse(report, demand, "garbage" if own is None or groups is None else fault or "garbage", now)
            return
        if before is None and not from_zero:
            # The earlier integral is unknown: the present queue is the best guess of the mean.
            report.begin_at(demand)
            report.contribution = structs.replace(
                measured.note_demand(demand, demand, interval_s, now),
                waiting_mean=demand.waiting,
                waiting_inferences_mean=demand.waiting_inferences,
                is_measured=demand.arrivals == 0,
            )
            return
        report.impossible, report.demand, report.latency = 0, demand, own[1]
        if is_due:
            report.groups, report.latencies, measured.taken_at = demand.groups, groups[1], now
        report.contribution = measured.note_demand(demand, before or zero_demand(demand), interval_s, now)
        if demand.tokens is not None and not measured.note_tokens(
            demand.tokens, None if before is None else before.tokens, now
        ):
            self._reject("garbage")
        measured.note_latencies(own[0], groups[0], now)

    def _refuse(self, report: RevisionReport, demand: RevisionDemand, fault: str, now: float) -> None:
        self._reject(fault)
        report.impossible += 1
        if fault == "backwards" and report.impossible >= RESET_AFTER:
            report.begin_at(demand)
        # The last known figures stay, with their age, until they are stale.
        report.contribution = report.contribution or WorkerDemand(now)

    def _reject(self, kind: str) -> bool:
        self._faults[kind] += 1
        return False

    # --- demand out

    def demands(self, revision_id: str, now: float) -> tuple[list[WorkerDemand], float, bool]:
        """Returns (contributions of the gateways that have sent samples, time of the oldest one, whether all expected
        ones are fresh)."""
        demands, oldest, complete = [], inf, bool(self._expected)
        for worker in self._expected:
            source = self._known.get(worker)
            if source is None or now - source.at > self._stale_s:
                complete = False
                continue
            report = source.reports.get(revision_id)
            demand = None if report is None else report.contribution
            at = source.at if demand is None else demand.at
            complete = complete and now - at <= self._stale_s and (demand is None or demand.is_measured)
            if demand is not None:
                demands.append(demand)
            oldest = min(oldest, at)
        return demands, oldest, complete

    def __repr__(self) -> str:
        return f"{len(self._known)}/{len(self._expected)} gateways"
