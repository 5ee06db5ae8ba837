"""What an SLA costs at the load so far: replicas for its latency, for half and for twice of it.

The load is the mean arrival rate of the last day; the replicas are those that keep it inside the target by themselves,
on the accelerator that does it for the least. What comes on top for loads that may come is not known before.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tidegate.autoscaler.policies.tide.cover import AIM
from tidegate.autoscaler.policies.tide.queueing import LateTable, Service
from tidegate.autoscaler.policies.tide.work import ASSUMED_CV, FIXED
from tidegate.autoscaler.profiles.admission import KindFigures
from tidegate.function import Sla

TIMES = (1.0, 0.5, 2.0)
"""Multiples of the latency that are answered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenLoad:
    """The load of a function so far."""

    requests_per_s: float
    """Mean of the last day."""
    size: float
    """Inferences of a request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlaCost:
    """The cost of one latency."""

    latency_s: float
    requests_per_s: float
    accelerator: str | None
    """None if none is known to meet it."""
    replicas: int
    price_per_hour: float


def sla_costs(sla: Sla, kinds: Sequence[KindFigures], load: SeenLoad | None) -> tuple[SlaCost, ...]:
    """Returns the cost of the SLA's latency, of half and of twice of it; empty without a latency, a load, or an
    accelerator with a known service time."""
    known = [each for each in kinds if each.one_s is not None]
    if sla.latency_s is None or load is None or load.requests_per_s <= 0.0 or not known:
        return ()
    allowed = AIM * (1.0 - sla.percentile / 100.0)
    return tuple(_cost(sla.latency_s * times, allowed, known, load) for times in TIMES)


def _cost(latency_s: float, allowed: float, kinds: Sequence[KindFigures], load: SeenLoad) -> SlaCost:
    found: list[SlaCost] = []
    for each in kinds:
        replicas = _replicas(each, latency_s, allowed, load)
        if replicas is not None:
            found.append(
                SlaCost(
                    latency_s=latency_s,
                    requests_per_s=load.requests_per_s,
                    accelerator=each.accelerator,
                    replicas=replicas,
                    price_per_hour=replicas * each.price_per_hour,
                )
            )
    none = SlaCost(
        latency_s=latency_s, requests_per_s=load.requests_per_s, accelerator=None, replicas=0, price_per_hour=0.0
    )
    return min(found, key=lambda each: (each.price_per_hour, each.replicas), default=none)


def _replicas(kind: KindFigures, latency_s: float, allowed: float, load: SeenLoad) -> int | None:
    """Returns the replicas of a kind that keep the latency; None if its service alone is longer."""
    service_s = (kind.one_s or 0.0) * (FIXED + (1.0 - FIXED) * load.size)
    if service_s <= 0.0 or service_s >= latency_s:
        return None
    slots = max(1.0, (kind.mu_ips or 0.0) / load.size * service_s)
    lates = LateTable(Service(((1.0, service_s),), ASSUMED_CV, latency_s), 1.0)
    return max(1, math.ceil(lates.base(load.requests_per_s * service_s, allowed, 1.0) / slots - 1e-9))
