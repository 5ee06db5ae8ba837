"""The state kept of each source of samples: gateway workers and replicas.

A sample that repeats a sequence number is dropped; a new incarnation starts from zero. What a sample adds to the
figures of its revision is in ``tidegate.autoscaler.measure.measurements``.
"""

from dataclasses import dataclass, field

import msgspec

from tidegate.autoscaler.measure.group_measurements import GroupMeasurements
from tidegate.autoscaler.measure.plausible import PLAUSIBLE, ROUNDING, is_plausible_group
from tidegate.autoscaler.measure.rates import WARM_REQUESTS, WARM_S
from tidegate.autoscaler.measure.series import NO_GAIN, NOTHING_SEEN, Gain, Seen, gained, seen
from tidegate.records.gateway_sample import GroupTraffic, RevisionDemand
from tidegate.records.replica_sample import AppSample, ReplicaSample

ReplicaGain = tuple[float, float, float, float, float, float, float, float, int, bool]
"""Seconds that passed; requests and inferences that ended; busy seconds, seconds of requests and of inferences in
flight, of execution and of queueing; requests that ended without an answer; whether the replica was warm before."""
YOUNG_S = 5.0
"""A source first seen at a lower age than this is counted from its start, an older one from its first sample on."""
RESET_AFTER = 3
"""Samples in a row that run backwards count as an unannounced reset after this many: the next one is a new start."""


class WorkerDemand(msgspec.Struct, frozen=True, gc=False):
    """The contribution of one gateway worker to a revision: means over its last interval, levels at its end."""

    at: float
    rps: float = 0.0
    waiting_mean: float = 0.0
    waiting_inferences_mean: float = 0.0
    waiting: int = 0
    waiting_inferences: int = 0
    oldest_waiting_s: float = 0.0
    is_measured: bool = True
    """False: the worker counted requests before its first sample here, so the present rate is unknown before the next
    one."""


@dataclass(slots=True)
class RevisionReport:
    """The last report of one gateway worker about one revision."""

    demand: RevisionDemand | None = None
    """The last usable demand."""
    latency: Seen = NOTHING_SEEN
    """Histogram of that demand."""
    groups: tuple[GroupTraffic, ...] = ()
    """Groups when their latencies were last processed, in the revision's phase. Their window is of thirty seconds, in
    slots of five; a revision's own latencies are processed every second."""
    latencies: tuple[Seen, ...] = ()
    """Histograms of those groups."""
    contribution: WorkerDemand | None = None
    impossible: int = 0
    """Impossible demands in a row."""

    def begin_at(self, demand: RevisionDemand) -> None:
        """Counts from this demand on."""
        self.demand, self.latency = demand, seen(demand.latency)
        self.groups, self.latencies = demand.groups, tuple([seen(each.latency) for each in demand.groups])
        self.impossible = 0

    def group_gains(self, groups: tuple[GroupTraffic, ...]) -> tuple[list[tuple[str, Gain]], tuple[Seen, ...]] | None:
        """Returns the growth of the histograms of ``groups``, by group, and what is to be kept of them; None if one is
        impossible."""
        gains, kept = [], []
        known, count, others = self.groups, len(self.groups), None
        for index, group in enumerate(groups):
            # They nearly always come in the same order.
            if index < count and known[index].group == group.group:
                before = self.latencies[index]
            else:
                if others is None:
                    others = {each.group: latency for each, latency in zip(known, self.latencies, strict=True)}
                before = others.get(group.group, NOTHING_SEEN)
            found = gained(group.latency, before)
            if found is None or not is_plausible_group(group):
                return None
            gain, latency = found
            kept.append(latency)
            if gain is not NO_GAIN and gain[2]:
                gains.append((group.group, gain))
        return gains, tuple(kept)


@dataclass(slots=True)
class GatewaySource:
    incarnation: str
    sequence: int
    uptime_s: float
    at: float
    """When its last usable sample arrived."""
    reports: dict[str, RevisionReport] = field(default_factory=dict)
    """Last reports by revision."""
    refused: int = 0
    """Samples in a row that were not newer than the last usable one."""


@dataclass(slots=True)
class ReplicaSource:
    """The state kept of one replica: its means, as :class:`Means`, and the counters of its last usable sample. All in
    one object that is written in place: each further object of ten thousand replicas would be fetched from memory in
    each second. A sample with its histograms is not kept: freeing ten thousand of them a second later costs more than
    all that is read."""

    incarnation: str
    at: float
    limit: int
    concurrency: float
    concurrency_inferences: float
    app: AppSample | None = None
    """Metrics of its model server in the last usable sample."""
    sampled: int = 1
    rps: float = 0.0
    ips: float = 0.0
    busy: float = 0.0
    interval_s: float = 0.0
    """Length of the interval that the means cover."""
    sequence: int = -1
    uptime_s: float = 0.0
    requests: int = 0
    inferences: int = 0
    failures: int = 0
    cancelled: int = 0
    unanswered: int = 0
    busy_s: float = 0.0
    request_s: float = 0.0
    inference_s: float = 0.0
    execution_s: float = 0.0
    queue_s: float = 0.0
    refused: int = 0
    """Samples in a row that were not newer than the last usable one, or ran backwards."""
    group: GroupMeasurements | None = None
    """Measurements of its group, looked up once: by the name, among the groups of its revision."""
    group_name: str = ""
    groups: dict[str, GroupMeasurements] | None = None
    executions: Seen = NOTHING_SEEN
    """Its execution times when they were last processed."""
    executions_due: float = 0.0
    was_boosted: bool = False
    """True if it worked with borrowed cores at the last sample."""

    def count(self, sample: ReplicaSample) -> None:
        """Keeps the counters that the next sample is compared with."""
        self.sequence, self.uptime_s = sample.sequence, sample.uptime_s
        self.requests, self.inferences = sample.requests, sample.inferences
        self.failures, self.cancelled = sample.failures, sample.cancelled
        self.unanswered = sample.unanswered
        self.busy_s = sample.busy_s
        self.request_s, self.inference_s = sample.in_flight_request_s, sample.in_flight_inference_s
        self.execution_s, self.queue_s = sample.execution_s, sample.queue_s

    def advance(self, sample: ReplicaSample) -> ReplicaGain | None:
        """Returns the work of the replica since its last usable sample, of the same incarnation, and counts from this
        one on; None, and nothing is changed, if this sample does not follow that one without a fault. Counters that run
        on are not negative. A sample refused here may still be plausible, and is checked more closely. By rounding a
        sum may have shrunk a little."""
        number, up_s, requests, inferences = sample.sequence, sample.uptime_s, sample.requests, sample.inferences
        failures, cancelled, unanswered = sample.failures, sample.cancelled, sample.unanswered
        busy_s, request_s, inference_s = sample.busy_s, sample.in_flight_request_s, sample.in_flight_inference_s
        execution_s, queue_s = sample.execution_s, sample.queue_s
        in_flight, in_inferences = sample.in_flight, sample.in_flight_inferences
        queued, limit = sample.queued, sample.limit
        total = sum(
            (
                number, up_s, requests, inferences, failures, cancelled, busy_s, request_s, inference_s, execution_s,
                queue_s,
            )
        )  # fmt: skip
        if not (
            number > self.sequence
            and failures >= self.failures
            and cancelled >= self.cancelled
            and self.unanswered <= unanswered <= PLAUSIBLE
            and in_flight >= 0
            and in_inferences >= 0
            and queued >= 0
            and limit >= 0
            and total + (in_flight + in_inferences + queued + limit) <= PLAUSIBLE
        ):
            return None
        interval_s, ended, items = up_s - self.uptime_s, requests - self.requests, inferences - self.inferences
        worked_s, ran_s, queued_s = busy_s - self.busy_s, execution_s - self.execution_s, queue_s - self.queue_s
        flown_s, items_s = request_s - self.request_s, inference_s - self.inference_s
        if not (interval_s > 0.0 and ended >= 0 and items >= 0):
            return None
        if worked_s < 0.0 or flown_s < 0.0 or items_s < 0.0 or ran_s < 0.0 or queued_s < 0.0:
            if min(worked_s, flown_s, items_s, ran_s, queued_s) < -ROUNDING:
                return None
            worked_s, flown_s, items_s = max(0.0, worked_s), max(0.0, flown_s), max(0.0, items_s)
            ran_s, queued_s = max(0.0, ran_s), max(0.0, queued_s)
        lost, is_warm = unanswered - self.unanswered, self.requests >= WARM_REQUESTS or self.busy_s >= WARM_S
        self.sequence, self.uptime_s, self.requests, self.inferences = number, up_s, requests, inferences
        self.failures, self.cancelled, self.unanswered = failures, cancelled, unanswered
        self.busy_s, self.request_s, self.inference_s = busy_s, request_s, inference_s
        self.execution_s, self.queue_s = execution_s, queue_s
        return interval_s, ended, items, worked_s, flown_s, items_s, ran_s, queued_s, lost, is_warm


def began_here(last_at: float | None, uptime_s: float, now: float) -> bool:
    """Returns whether all that a process counted happened since it was watched: it is young, or began after its
    predecessor's last sample."""
    return uptime_s <= YOUNG_S if last_at is None else uptime_s <= now - last_at + YOUNG_S
