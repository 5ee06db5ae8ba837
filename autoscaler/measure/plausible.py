"""Checks whether the figures of a source are possible. Plain comparisons: they run for every sample of every second.

A NaN compares false with everything, so ``low <= value <= high`` refuses it too.
"""

from dataclasses import replace

from tidegate.histogram import BUCKETS
from tidegate.records.gateway_sample import GroupTraffic, RevisionDemand
from tidegate.records.replica_sample import ReplicaSample, SparseHistogram

PLAUSIBLE = 1e15
"""Upper bound of every counter and level; larger ones would only overflow later sums."""
ROUNDING = 1e-6
"""A sum of floats may shrink by this much between two samples without having run backwards."""


def is_plausible_replica(sample: ReplicaSample) -> bool:
    """Returns whether all numbers lie in 0 to PLAUSIBLE; histograms are checked when they are used."""
    return (
        0 <= sample.requests <= PLAUSIBLE
        and 0 <= sample.inferences <= PLAUSIBLE
        and 0 <= sample.failures <= PLAUSIBLE
        and 0 <= sample.cancelled <= PLAUSIBLE
        and 0 <= sample.unanswered <= PLAUSIBLE
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


def demand_fault(demand: RevisionDemand, before: RevisionDemand | None) -> str | None:
    """Returns the fault of a demand after ``before`` of the same worker, or None. Its histograms are checked when their
    gains are computed (``tidegate.autoscaler.measure.series.gained``)."""
    if not _is_plausible_demand(demand):
        return "garbage"
    return None if before is None or _runs_on(demand, before) else "backwards"


def _is_plausible_demand(demand: RevisionDemand) -> bool:
    return (
        0 <= demand.arrivals <= PLAUSIBLE
        and 0 <= demand.arrivals_inferences <= PLAUSIBLE
        and 0 <= demand.refused <= PLAUSIBLE
        and 0 <= demand.expired <= PLAUSIBLE
        and 0 <= demand.dropped <= PLAUSIBLE
        and 0 <= demand.switched <= PLAUSIBLE
        and 0 <= demand.missed <= PLAUSIBLE
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
        and demand.dropped >= before.dropped
        and demand.switched >= before.switched
        and demand.missed >= before.missed
        and demand.cancelled >= before.cancelled
        and demand.answered >= before.answered
        and demand.failed >= before.failed
        and demand.within_sla >= before.within_sla
        and demand.waiting_request_s >= before.waiting_request_s - ROUNDING
        and demand.waiting_inference_s >= before.waiting_inference_s - ROUNDING
    )


def is_plausible_group(group: GroupTraffic) -> bool:
    """Returns whether its counters are possible; its histogram is checked with the demand's."""
    return 0 <= group.requests <= PLAUSIBLE and 0 <= group.inferences <= PLAUSIBLE and 0 <= group.failures <= PLAUSIBLE


def is_histogram(sparse: SparseHistogram) -> bool:
    """Returns whether buckets are known and rise, and counts are possible."""
    last = -1
    for index, count in sparse:
        if not (last < index < BUCKETS and 0 <= count <= PLAUSIBLE):
            return False
        last = index
    return True


def zero_demand(demand: RevisionDemand) -> RevisionDemand:
    """Returns the demand that the worker would have sent at its very start."""
    return replace(
        demand,
        arrivals=0,
        arrivals_inferences=0,
        refused=0,
        expired=0,
        cancelled=0,
        answered=0,
        failed=0,
        metadata=0,
        dropped=0,
        switched=0,
        within_sla=0,
        waiting_request_s=0.0,
        waiting_inference_s=0.0,
        latency=(),
        sizes=(),
        groups=(),
    )
