"""Measurements of one revision: sums, windows and rates, fed with the differences of samples."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tidegate.autoscaler.measure.group_measurements import GroupMeasurements
from tidegate.autoscaler.measure.observation import ArrivalCounts, FleetGroup
from tidegate.autoscaler.measure.plausible import ROUNDING
from tidegate.autoscaler.measure.rates import MAX_UNANSWERED
from tidegate.autoscaler.measure.series import Gain, RecentHistogram, RecentSums, gained, seen
from tidegate.autoscaler.measure.sources import ReplicaGain, ReplicaSource, WorkerDemand
from tidegate.autoscaler.measure.tokens import TokenMeter
from tidegate.histogram import bucket_upper_micros
from tidegate.records.gateway_sample import RevisionDemand, TokensSeen
from tidegate.records.replica_sample import ReplicaSample

RATE_SLOTS = 10
"""Seconds over which arrival rates and execution means are taken."""
MAX_GROUPS = 64
"""Groups kept per revision."""
EXECUTIONS_EVERY_S = 5.0
"""Interval at which a replica's execution times are processed: the tail of a minute needs no second's resolution."""
PHASES = 5
"""Windows in slots of five seconds (latencies of groups) are fed and read every five seconds: in each second those of a
fifth of the revisions."""
CROWDED = 0.5
"""Mean number of waiting requests from which on every slot is taken to be in use."""
CROWDED_FOR_S = 1.5
"""Time after the gateway's sample in which a replica's second of work counts as the same second."""


GroupRow = tuple[FleetGroup, GroupMeasurements | None, ReplicaSource | None]
"""A group of the fleet, its measurements, and, if exactly one replica of it is ready, that replica's source. The source
is None if it had sent no sample when the fleet was set; then it is looked up."""


@dataclass(slots=True)
class RevisionMeasurements:
    """The measurements of one revision."""

    since: float
    """When the revision was made known; earlier counts are not its arrivals."""
    active_at: float
    is_used: bool = False
    """True if a request other than for metadata has ended."""
    arrivals: RecentSums = field(default_factory=lambda: RecentSums(1, RATE_SLOTS))
    answers: RecentSums = field(default_factory=lambda: RecentSums(2, 6, 5.0))
    latency: RecentHistogram = field(default_factory=RecentHistogram)
    groups: dict[str, GroupMeasurements] = field(default_factory=dict)
    phase: int = 0
    """Which of every ``PHASES`` samples feeds its groups' latencies."""
    taken_at: float = -math.inf
    """When the groups' latencies were last processed."""
    is_limit_in_inferences: bool = False
    uneven: set[str] = field(default_factory=set)
    """Groups with samples that have differed since the set was last read."""
    crowded_at: float = -math.inf
    """When requests last waited at a gateway for most of an interval."""
    tokens: TokenMeter | None = None
    """Set once a gateway reports tokens."""
    is_by_size: bool = False
    """Whether arrivals are counted by batch size."""
    arrived: dict[float, float] = field(default_factory=dict)
    """Requests that have arrived, by inferences of a request."""
    late: float = 0.0
    """Requests that missed the SLA: late answers, and those without an answer that count as late."""
    _fleet: tuple[FleetGroup, ...] | None = None
    _rows: Sequence[GroupRow] = ()
    """Rows of that fleet."""

    def group(self, accelerator: str) -> GroupMeasurements:
        """Returns the group's measurements. Names come from samples, so their number is bounded: beyond it nothing is
        kept."""
        known = self.groups.get(accelerator)
        if known is None:
            known = GroupMeasurements()
            if len(self.groups) < MAX_GROUPS:
                self.groups[accelerator] = known
        return known

    def rows(self, fleet: tuple[FleetGroup, ...], replicas: Mapping[str, ReplicaSource]) -> Sequence[GroupRow]:
        """Returns the groups of ``fleet`` with their measurements. While the fleet is the identical object nothing is
        looked up: ten thousand lookups by name in a second cost more than the reading that follows."""
        if fleet is not self._fleet:
            self._fleet, known = fleet, self.groups
            self._rows = [
                (each, known.get(each.accelerator), replicas.get(each.ready[0]) if len(each.ready) == 1 else None)
                for each in fleet
            ]
        return self._rows

    def note_demand(
        self, demand: RevisionDemand, before: RevisionDemand, interval_s: float, now: float
    ) -> WorkerDemand:
        """Adds the difference of two demands, without their histograms."""
        arrivals = demand.arrivals - before.arrivals
        waiting_s = max(0.0, demand.waiting_request_s - before.waiting_request_s)
        waiting_inference_s = max(0.0, demand.waiting_inference_s - before.waiting_inference_s)
        answered = demand.answered - before.answered
        if arrivals > 0 or answered > 0 or demand.waiting > 0:
            self.active_at = now
            # Counted at their end: a metadata request is known as one only then.
            if not self.is_used and _ended(demand) - _ended(before) > demand.metadata - before.metadata:
                self.is_used = True
        if waiting_s >= CROWDED * interval_s and demand.waiting > 0 and before.waiting > 0:
            # At both ends too: a burst of half a second fills no second.
            self.crowded_at = now
        _add_arrivals(self.arrivals, demand.arrivals_inferences - before.arrivals_inferences, interval_s, now)
        if answered > 0:
            within = demand.within_sla - before.within_sla
            self.answers.add(now, (answered, within))
            self.late += max(0, answered - within)
        self.late += demand.missed - before.missed
        if self.is_by_size and arrivals > 0:
            self._note_sizes(demand, before)
        return WorkerDemand(
            now,
            arrivals / interval_s,
            waiting_s / interval_s,
            waiting_inference_s / interval_s,
            demand.waiting,
            demand.waiting_inferences,
            demand.oldest_waiting_s,
        )

    def counts(self) -> ArrivalCounts:
        return ArrivalCounts(tuple(sorted(self.arrived.items())), self.late)

    def _note_sizes(self, demand: RevisionDemand, before: RevisionDemand) -> None:
        known = dict(before.sizes)
        for index, count in demand.sizes:
            more = count - known.get(index, 0)
            if more > 0:
                # The lower bound of the bucket: exact for powers of two, and for all sizes up to 16.
                size = float(max(1, bucket_upper_micros(index - 1) if index else 0))
                self.arrived[size] = self.arrived.get(size, 0.0) + more

    def note_tokens(self, report: TokensSeen, before: TokensSeen | None, now: float) -> bool:
        """Adds the difference of two reports of tokens; returns False if it is impossible."""
        if self.tokens is None:
            self.tokens = TokenMeter()
        return self.tokens.note(report, before, now, self._full_at)

    def _full_at(self, group: str) -> float | None:
        known = self.groups.get(group)
        return None if known is None else known.rates.full_at

    def note_latencies(self, own: Gain, groups: Sequence[tuple[str, Gain]], now: float) -> None:
        self.latency.gain(now, own)
        for name, gain in groups:
            self.group(name).latency.gain(now, gain)

    def note_work(self, source: ReplicaSource, sample: ReplicaSample, gain: ReplicaGain, now: float) -> None:
        """Adds the work of one replica since its last sample, to the source and to its group's sums."""
        interval_s, requests, inferences, busy_s, request_s, inference_s, execution_s, queue_s, lost, is_warm = gain
        queued, limit, limit_was = sample.queued, sample.limit, source.limit
        source.interval_s, source.limit = interval_s, limit
        was_boosted, source.was_boosted = source.was_boosted, sample.boost > 1
        source.concurrency = request_s / interval_s + queued
        source.concurrency_inferences = inference_s / interval_s + queued
        source.rps, source.ips = requests / interval_s, inferences / interval_s
        source.busy = busy_s / interval_s if busy_s < interval_s else 1.0
        if requests > 0 or queued > 0 or sample.in_flight > 0:
            self.active_at = now
        if requests <= 0 and busy_s <= 0.0:
            return
        name, group = sample.group, source.group
        if group is None or name != source.group_name or source.groups is not self.groups:
            group = source.group = self.groups.get(name) or self.group(name)
            source.group_name, source.groups = name, self.groups
        if requests > 0:
            group.work.note(requests, inferences, execution_s, queue_s)
        if not is_warm:
            source.executions = seen(sample.execution)
            return
        slots = float(limit) if limit == limit_was else 0.0
        if slots > 0.0 and self.is_limit_in_inferences and request_s > 0.0:
            slots = max(1.0, slots * request_s / max(inference_s, request_s))
        if busy_s > ROUNDING and request_s > ROUNDING and not (was_boosted or source.was_boosted):
            # Less is rounding; a quotient of it is meaningless.
            unanswered = None
            if lost > MAX_UNANSWERED * requests:
                unanswered = (float(lost), lost * inference_s / request_s)
            is_first = group.rates.served(
                now,
                (requests, inferences, busy_s, request_s, inference_s, execution_s),
                slots,
                now - self.crowded_at <= CROWDED_FOR_S,
                unanswered,
            )
            group.services = group.rates.kept_services
            if is_first:
                group.figures = None
        if now >= source.executions_due or now < source.executions_due - EXECUTIONS_EVERY_S:
            source.executions_due = now + EXECUTIONS_EVERY_S
            found = gained(sample.execution, source.executions)
            if found is not None:
                group.execution.gain(now, found[0])
                source.executions = found[1]


def _ended(demand: RevisionDemand) -> int:
    """Returns the requests that have ended, however."""
    return demand.answered + demand.failed + demand.refused + demand.expired + demand.cancelled


def _add_arrivals(into: RecentSums, inferences: float, interval_s: float, now: float) -> None:
    """Spreads arrivals over the seconds of their interval, as far as the window goes: the first sample after an outage
    covers all of it, and is no burst."""
    seconds = max(1, round(min(interval_s, RATE_SLOTS)))
    share = inferences / max(interval_s, float(seconds)) if seconds > 1 else inferences
    for back in range(seconds - 1, -1, -1):
        into.add(now - back, (share,))
