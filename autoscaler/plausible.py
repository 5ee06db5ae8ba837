"""Whether what a source tells can be true. Plain comparisons: they run for every sample of every second.

A NaN compares false with everything, so ``low <= value <= high`` refuses it too.
"""

from dataclasses import replace

from tidegate.histogram import BUCKETS
from tidegate.records import GroupTraffic, ReplicaSample, RevisionDemand, SparseHistogram

PLAUSIBLE = 1e15
"""No honest counter or level is larger; larger ones would only overflow later sums."""
ROUNDING = 1e-6
"""By so much a sum of floats may shrink between two samples without having run backwards."""


def is_plausible_replica(sample: ReplicaSample) -> bool:
    """Numbers from 0 to PLAUSIBLE; histograms are looked at when they are used."""
    return (
        0 <= sample.requests <= PLAUSIBLE
        and 0 <= sample.inferences <= PLAUSIBLE
        and 0 <= sample.failures <= PLAUSIBLE
        and 0 <= sample.cancelled <= PLAUSIBLE
        and 0 <= sample.busy_s <= PLAUSIBLE
        and 0 <= sample.in_flight_request_s <= PLAUSIBLE
        and 0 <= sample.in_flight_inference_s <= PLAUSIBLE
        and 0 <= sample.execution_s <= PLAUSIBLE
        and 0 <= sample.queue_s <= PLAUSIBLE
        and 0 <= sample.limit <= PLAUSIBLE
        and 0 <= sample.in_flight <= PLAUSIBLE
        and 0 <= sample.in_flight_inferences <= PLAUSIBLE
        and 0 <= sample.queued <= PLAUSIBLE
        and 0 <= sample.uptime_s <= PLAUSIBLE
        and 0 <= sample.sequence <= PLAUSIBLE
    )


ReplicaGain = tuple[float, float, float, float, float, float, float, float]
"""Seconds that passed; requests and inferences that ended; busy seconds, seconds of requests and of inferences in
flight, of execution and of queueing."""


def replica_gain(sample: ReplicaSample, before: ReplicaSample) -> ReplicaGain | None:
    """What a replica did since ``before``, a plausible sample of the same life; None: this one does not follow it
    without a fault. Counters that run on are not negative; what this refuses may still be plausible, and is looked at
    more closely. By rounding a sum may have shrunk a little."""
    interval_s = sample.uptime_s - before.uptime_s
    requests = sample.requests - before.requests
    inferences = sample.inferences - before.inferences
    busy_s = sample.busy_s - before.busy_s
    request_s = sample.in_flight_request_s - before.in_flight_request_s
    inference_s = sample.in_flight_inference_s - before.in_flight_inference_s
    execution_s = sample.execution_s - before.execution_s
    queue_s = sample.queue_s - before.queue_s
    levels = sample.in_flight, sample.in_flight_inferences, sample.queued, sample.limit
    if (
        interval_s > 0.0
        and sample.sequence > before.sequence
        and requests >= 0
        and inferences >= 0
        and sample.failures >= before.failures
        and sample.cancelled >= before.cancelled
        and busy_s >= -ROUNDING
        and request_s >= -ROUNDING
        and inference_s >= -ROUNDING
        and execution_s >= -ROUNDING
        and queue_s >= -ROUNDING
        and min(levels) >= 0
        and sample.requests + sample.inferences + sample.failures + sample.cancelled + sum(levels) <= PLAUSIBLE
        and sample.busy_s
        + sample.in_flight_request_s
        + sample.in_flight_inference_s
        + sample.execution_s
        + sample.queue_s
        + sample.uptime_s
        + sample.sequence
        <= PLAUSIBLE
    ):
        return (
            interval_s,
            requests,
            inferences,
            busy_s if busy_s > 0.0 else 0.0,
            request_s if request_s > 0.0 else 0.0,
            inference_s if inference_s > 0.0 else 0.0,
            execution_s if execution_s > 0.0 else 0.0,
            queue_s if queue_s > 0.0 else 0.0,
        )
    return None


def replica_fault(sample: ReplicaSample, before: ReplicaSample) -> str:
    """What is wrong with a plausible sample after ``before`` of the same life."""
    return "repeated" if sample.sequence <= before.sequence else "backwards"


def demand_fault(demand: RevisionDemand, before: RevisionDemand | None) -> str | None:
    """What is wrong with a demand after ``before`` of the same worker; None: nothing. Its histograms are looked at when
    what they have got is taken (``autoscaler.series.gained``)."""
    if not _is_plausible_demand(demand):
        return "garbage"
    return None if before is None or _runs_on(demand, before) else "backwards"


def _is_plausible_demand(demand: RevisionDemand) -> bool:
    return (
        0 <= demand.arrivals <= PLAUSIBLE
        and 0 <= demand.arrivals_inferences <= PLAUSIBLE
        and 0 <= demand.refused <= PLAUSIBLE
        and 0 <= demand.expired <= PLAUSIBLE
        and 0 <= demand.cancelled <= PLAUSIBLE
        and 0 <= demand.answered <= PLAUSIBLE
        and 0 <= demand.failed <= PLAUSIBLE
        and 0 <= demand.within_sla <= PLAUSIBLE
        and 0 <= demand.waiting_request_s <= PLAUSIBLE
        and 0 <= demand.waiting_inference_s <= PLAUSIBLE
        and 0 <= demand.waiting <= PLAUSIBLE
        and 0 <= demand.waiting_inferences <= PLAUSIBLE
        and 0 <= demand.oldest_waiting_s <= PLAUSIBLE
    )


def _runs_on(demand: RevisionDemand, before: RevisionDemand) -> bool:
    return (
        demand.arrivals >= before.arrivals
        and demand.arrivals_inferences >= before.arrivals_inferences
        and demand.refused >= before.refused
        and demand.expired >= before.expired
        and demand.cancelled >= before.cancelled
        and demand.answered >= before.answered
        and demand.failed >= before.failed
        and demand.within_sla >= before.within_sla
        and demand.waiting_request_s >= before.waiting_request_s - ROUNDING
        and demand.waiting_inference_s >= before.waiting_inference_s - ROUNDING
    )


def is_plausible_group(group: GroupTraffic) -> bool:
    """Its counters; its histogram is looked at with the demand's."""
    return 0 <= group.requests <= PLAUSIBLE and 0 <= group.inferences <= PLAUSIBLE and 0 <= group.failures <= PLAUSIBLE


def is_histogram(sparse: SparseHistogram) -> bool:
    """Known buckets in rising order with plausible counts."""
    last = -1
    for index, count in sparse:
        if not (last < index < BUCKETS and 0 <= count <= PLAUSIBLE):
            return False
        last = index
    return True


def unborn_replica(sample: ReplicaSample, age_s: float) -> ReplicaSample:
    """The sample that the process would have sent at its very start, ``age_s`` ago."""
    return replace(
        sample,
        sequence=-1,
        uptime_s=sample.uptime_s - age_s,
        requests=0,
        inferences=0,
        failures=0,
        cancelled=0,
        busy_s=0.0,
        in_flight_request_s=0.0,
        in_flight_inference_s=0.0,
        execution_s=0.0,
        queue_s=0.0,
        execution=(),
    )


def unborn_demand(demand: RevisionDemand) -> RevisionDemand:
    """The demand that the worker would have told at its very start."""
    return replace(
        demand,
        arrivals=0,
        arrivals_inferences=0,
        refused=0,
        expired=0,
        cancelled=0,
        answered=0,
        failed=0,
        within_sla=0,
        waiting_request_s=0.0,
        waiting_inference_s=0.0,
        latency=(),
        groups=(),
    )
