"""HetSev's greedy rule: which instances to launch, and which one to remove.

Scale-out sizes for the threshold and not for the whole capacity, so that a launch ends the saturation that triggered
it; the paper states the trigger alone. It takes one type where one suffices, the cheapest with its launch latency
weighed in; a mix only where none does, which is our choice. Nothing that runs is ever replaced by something cheaper.

Worked example: 100 inferences/s at a threshold of 0.8 ask for 125. V100: 36.7/s at 0.764 each, so 4; T4: 19.8/s at
0.096, so 7. With 30 s of launch at a weight of 0.01/s the costs are 3.97 and 0.874: seven T4 are launched.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf

from tidegate.autoscaler.policies.hetsev.instances import TIE, InstanceType, capacity_ips, ceil, floor


@dataclass(frozen=True, slots=True)
class ScaleOut:
    launch: tuple[int, ...]
    """Instances to launch, in the order of the types."""
    cost: float
    """Their cost with the launch latency weighed in."""
    is_satisfied: bool
    """False if what fits does not carry the load: the gateway sheds the rest."""


def scale_out(
    types: Sequence[InstanceType],
    arrivals_ips: float,
    slo_s: float,
    weight: float,
    free: Mapping[str, float],
    threshold: float,
) -> ScaleOut:
    """Returns what to launch for ``arrivals_ips``. ``weight``: of unpredictability, per second. ``free``: what is left
    of each resource; one that is missing has nothing left."""
    missing = arrivals_ips / threshold - capacity_ips(types)
    launch = [0] * len(types)
    if missing > TIE:
        usable = [index for index, each in enumerate(types) if each.may_launch(slo_s)]
        alone = _one_type(types, usable, missing, weight, free)
        if alone is None:
            missing = _mix(types, usable, missing, weight, dict(free), launch)
        else:
            launch[alone] = ceil(missing / _throughput(types[alone]))
            missing = 0.0
    cost = sum(count * each.launch_cost(weight) for count, each in zip(launch, types, strict=True))
    return ScaleOut(tuple(launch), cost, missing <= TIE)


def scale_in(
    types: Sequence[InstanceType],
    arrivals_ips: float,
    threshold: float,
    now: float,
    last_scale: float | None,
    cooldown_s: float,
    min_instances: int,
) -> int | None:
    """Returns the index of the type that one instance is removed of; None if none is. The others still carry the load
    below the threshold. ``last_scale``: time of the last change of any kind; None if there was none."""
    if last_scale is not None and now - last_scale < cooldown_s - TIE:
        return None
    if sum(each.running for each in types) <= min_instances:
        return None
    capacity, needed = capacity_ips(types), arrivals_ips / threshold
    best: int | None = None
    for index, each in enumerate(types):
        if each.running < 1 or capacity - _throughput(each) < needed - TIE:
            continue
        if best is None or _is_less((-each.cost, _throughput(each)), (-types[best].cost, _throughput(types[best]))):
            best = index
    return best


def room_for(needs: Mapping[str, float], free: Mapping[str, float]) -> float:
    """Returns how many instances with these needs fit; infinity if nothing limits them."""
    return min(
        (float(max(0, floor(free.get(name, 0.0) / need))) for name, need in needs.items() if need > 0.0), default=inf
    )


def _throughput(each: InstanceType) -> float:
    return each.throughput_ips or 0.0


def _one_type(
    types: Sequence[InstanceType], usable: Sequence[int], missing: float, weight: float, free: Mapping[str, float]
) -> int | None:
    """Returns the cheapest type that carries everything by itself; among equal ones that of more throughput."""
    best: int | None = None
    best_score = (inf, inf)
    for index in usable:
        each = types[index]
        count = ceil(missing / _throughput(each))
        score = (count * each.launch_cost(weight), -_throughput(each))
        if count <= room_for(each.needs, free) and (best is None or _is_less(score, best_score)):
            best, best_score = index, score
    return best


def _mix(
    types: Sequence[InstanceType],
    usable: Sequence[int],
    missing: float,
    weight: float,
    free: dict[str, float],
    launch: list[int],
) -> float:
    """Fills ``launch`` from ``free``, the cheapest throughput first; returns the rate that is still missing."""
    while missing > TIE:
        best: int | None = None
        best_score = (inf, inf)
        for index in usable:
            each = types[index]
            score = (each.launch_cost(weight) / _throughput(each), -_throughput(each))
            if room_for(each.needs, free) >= 1 and (best is None or _is_less(score, best_score)):
                best, best_score = index, score
        if best is None:
            break
        each = types[best]
        count = int(min(room_for(each.needs, free), ceil(missing / _throughput(each))))
        launch[best] += count
        missing -= count * _throughput(each)
        for name, need in each.needs.items():
            free[name] = free.get(name, 0.0) - count * need
    return missing


def _is_less(one: tuple[float, float], other: tuple[float, float]) -> bool:
    """Compares two scores; parts that differ by binary noise are equal."""
    if abs(one[0] - other[0]) > TIE:
        return one[0] < other[0]
    return one[1] < other[1] - TIE
