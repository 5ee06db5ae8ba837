"""The outcome of a decision: the recommendation by accelerator, with its reasons in words. Pure."""

from collections.abc import Sequence
from functools import lru_cache

from tidegate.autoscaler.decisions.groups import row
from tidegate.autoscaler.decisions.reasons import figure, reason
from tidegate.autoscaler.measure.observation import Observation
from tidegate.autoscaler.policies.contract import Recommendation
from tidegate.autoscaler.policies.smif.kinds import KindFacts, utilization_at
from tidegate.autoscaler.policies.smif.load import Load
from tidegate.autoscaler.policies.smif.rule import RuleResult
from tidegate.function import Function
from tidegate.records.decision import Reason


def recommendation(
    function: Function,
    observation: Observation,
    kinds: Sequence[KindFacts],
    counts: Sequence[int],
    result: RuleResult,
    load: Load,
    reasons: list[Reason],
) -> Recommendation:
    """Returns the recommendation of ``counts``, replicas by kind; ``reasons`` are those found on the way."""
    stated = [reason(flag.value) for flag in dict.fromkeys(result.flags)]
    by_name, observed = {}, {"load_ips": load.mid, "utilization": utilization_at(load.mid, kinds)}
    for kind, count in zip(kinds, counts, strict=True):
        name = kind.group.accelerator
        by_name[name] = count
        observed["mu_ips_" + name] = kind.mu_ips
    if load.mid > 0.0:
        rates = ", ".join([f"{kind.group.accelerator} {figure(kind.mu_ips)} ({kind.how})" for kind in kinds])
        ruled = sum([kind.wanted for kind in kinds])
        fewer = f", which alone asks for {ruled}" if ruled < sum(counts) else ""
        seen = f"{figure(load.mid)} inferences/s, {figure(load.low)} to {figure(load.high)}{fewer}"
        stated.insert(0, reason("sla_load", f"{seen}; a replica: {rates}"))
    share = function.gpu.core_percentage
    groups = tuple([row(each.accelerator, by_name[each.accelerator], share) for each in observation.groups])
    return Recommendation(desired=sum(counts), groups=groups, reasons=(*stated, *reasons), observed=observed)


@lru_cache(maxsize=4096)
def held_back(accelerator: str, refusal: str) -> Reason:
    """Returns the reason for a refusal; the same one is given for some seconds."""
    return reason("scale_in_held", f"{accelerator}: {refusal}")
