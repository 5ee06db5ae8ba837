"""The groups of a revision on their way through a decision: facts that the rule needs, and sums over them. Pure."""

from collections.abc import Sequence

import msgspec

from tidegate.autoscaler.measure.observation import GroupObservation, Observation
from tidegate.autoscaler.policies.smif.load import Load
from tidegate.function import ConcurrencyUnit

INFORMATIVE = 1.2
"""A given rate is used only when it is this much above the yield seen already."""


class KindFacts(msgspec.Struct, gc=False):
    """One group on its way through a decision, with the facts that the rule needs."""

    group: GroupObservation
    mu_ips: float
    how: str
    """Origin of the rate."""
    steady_mu: float
    """The lower of the present rate and its mean over minutes: the rate that a replica is taken away by."""
    replicas: int
    ready: int
    max_replicas: int
    execution_s: float | None
    """Execution time of a request that has a replica for itself; of a stream up to its first output, as the SLA's
    latency is."""
    is_stream: bool = False
    """True if its requests are streams: their whole executions say nothing about the SLA's latency."""
    is_too_slow: bool = False
    """True if its execution alone misses the target: what it serves is late, whatever the others do."""
    load_ips: float = 0.0
    latency_s: float | None = None
    below_for_s: float = 0.0
    wanted: int = 0
    """Replicas that the load alone asks for."""
    least: int = 0
    """Maximum that the load has asked for within the cool-down."""


def service_rate(group: GroupObservation, unit: ConcurrencyUnit) -> tuple[float, str]:
    """Returns (service rate of one replica, its origin); the rate is 0 if unknown."""
    given = group.mu_ips or 0.0
    if given > 0.0 and group.is_mu_learnt:
        return given, "learnt"
    bound = group.mu_bound_ips or 0.0
    if given > INFORMATIVE * bound:
        return given, "profile"
    slots = (group.limit or 0) / group.execution_s if group.execution_s else 0.0
    if unit is not ConcurrencyUnit.INFERENCES:
        slots *= group.mean_batch or 1.0
    if slots <= 0.0:
        return bound, "best seen"
    expected = group.mu_expected_ips
    if expected is not None and expected < slots:
        return expected, "company"
    return (slots if slots > bound else bound), "slots"


def able_kinds(kinds: Sequence[KindFacts]) -> list[KindFacts]:
    """Returns the kinds that can meet the target at all; if none can, the fastest alone, as in the rule."""
    can = [kind for kind in kinds if not kind.is_too_slow]
    return can or [min(kinds, key=lambda kind: kind.execution_s or 0.0)]


def first_s(observation: Observation) -> dict[str, float]:
    """Returns the time to the first output of a stream by accelerator, where tokens are counted and there were
    streams."""
    if observation.tokens is None:
        return {}
    return {name: rate.first_s for name, rate in observation.tokens.groups.items() if rate.first_s is not None}


def mean_batch(observation: Observation) -> float:
    """Returns the inferences of a request that ended in the last second; 1 if none did."""
    requests = sum([group.rps for group in observation.groups])
    return sum([group.ips for group in observation.groups]) / requests if requests > 0.0 else 1.0


def one_more(load: Load, kinds: Sequence[KindFacts], carried: float) -> float:
    """Returns the load that one replica more than there are is right for, at least the present one."""
    existing = sum(kind.replicas for kind in kinds)
    return max(load.mid, carried * (existing + 1) / existing)


def remaining(kinds: Sequence[KindFacts], counts: Sequence[int]) -> tuple[list[int], float]:
    """Returns (ready replicas that stay of each kind, inferences per second that they carry at full use)."""
    staying = [min(kind.ready, count) for kind, count in zip(kinds, counts, strict=True)]
    return staying, sum(kind.steady_mu * count for kind, count in zip(kinds, staying, strict=True))


def capacity_of(kinds: Sequence[KindFacts]) -> float:
    """Returns the inferences per second that the ready replicas serve at full use."""
    return sum([kind.mu_ips * kind.ready for kind in kinds])


def backlog_of(observation: Observation, kinds: Sequence[KindFacts], slo_s: float) -> float:
    """Returns present requests over what the ready replicas serve within the target; 0 while none is ready.

    Requests in the replicas count as waiting ones do: they may queue inside the model server. What execution alone
    takes beyond the target is no backlog.
    """
    present = max(float(observation.waiting_inferences), observation.concurrency_inferences)
    in_time = 0.0
    for kind in kinds:
        unloaded_s = (kind.group.unloaded_s if kind.is_stream else kind.execution_s) or 0.0
        in_time += kind.ready * kind.mu_ips * (unloaded_s if unloaded_s > slo_s else slo_s)
    return present / in_time if in_time > 0.0 else 0.0


def utilization_at(load_ips: float, kinds: Sequence[KindFacts]) -> float:
    """Returns load over what the ready replicas can serve; 0 while none is ready."""
    capacity = capacity_of(kinds)
    return load_ips / capacity if capacity > 0.0 else 0.0
