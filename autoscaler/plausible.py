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


ReplicaCounters = tuple[int, float, int, int, int, int, float, float, float, float, float]
"""What the next sample of a replica is compared with: sequence and uptime; requests, inferences, failures and cancelled
requests; busy seconds, seconds of requests and of inferences in flight, of execution and of queueing. A sample with
its histograms is not kept: ten thousand of them, let go a second later, cost more to free than all that is read."""
ReplicaGain = tuple[float, float, float, float, float, float, float, float]
"""Seconds that passed; requests and inferences that ended; busy seconds, seconds of requests and of inferences in
flight, of execution and of queueing."""


def replica_counters(sample: ReplicaSample) -> ReplicaCounters:
    return (
        sample.sequence,
        sample.uptime_s,
        sample.requests,
        sample.inferences,
        sample.failures,
        sample.cancelled,
        sample.busy_s,
        sample.in_flight_request_s,
        sample.in_flight_inference_s,
        sample.execution_s,
        sample.queue_s,
    )


def unborn_counters(sample: ReplicaSample, age_s: float) -> ReplicaCounters:
    """Those of the sample that the process would have sent at its very start, ``age_s`` ago."""
    return -1, sample.uptime_s - age_s, 0, 0, 0, 0, 0.0, 0.0, 0.0, 0.0, 0.0


def replica_gain(sample: ReplicaSample, after: ReplicaCounters, before: ReplicaCounters) -> ReplicaGain | None:
    """What a replica did until ``after``, the counters of ``sample``, since those of a plausible sample of the same
    life; None: it does not follow that one without a fault. Counters that run on are not negative; what this refuses
    may still be plausible, and is looked at more closely. By rounding a sum may have shrunk a little."""
    number, up_s, requests, inferences, failures, cancelled, busy_s, request_s, inference_s, run_s, queue_s = after
    number_0, up_0, done_0, items_0, failures_0, cancelled_0, busy_0, request_0, inference_0, run_0, queue_0 = before
    interval_s = up_s - up_0
    requests -= done_0
    inferences -= items_0
    busy_s -= busy_0
    request_s -= request_0
    inference_s -= inference_0
    run_s -= run_0
    queue_s -= queue_0
    levels = sample.in_flight, sample.in_flight_inferences, sample.queued, sample.limit
    if (
        interval_s > 0.0
        and number > number_0
        and requests >= 0
        and inferences >= 0
        and failures >= failures_0
        and cancelled >= cancelled_0
        and busy_s >= -ROUNDING
        and request_s >= -ROUNDING
        and inference_s >= -ROUNDING
        and run_s >= -ROUNDING
        and queue_s >= -ROUNDING
        and min(levels) >= 0
        and sum(after) + sum(levels) <= PLAUSIBLE
    ):
        return (
            interval_s,
            requests,
            inferences,
            busy_s if busy_s > 0.0 else 0.0,
            request_s if request_s > 0.0 else 0.0,
            inference_s if inference_s > 0.0 else 0.0,
            run_s if run_s > 0.0 else 0.0,
            queue_s if queue_s > 0.0 else 0.0,
        )
    return None


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
