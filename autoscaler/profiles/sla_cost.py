"""What an SLA costs at the load so far: replicas for its latency, for half and for twice of it.

The load is the mean arrival rate of the last day; the replicas are those that keep it inside the target by themselves,
on the accelerator that does it for the least. What comes on top for loads that may come is not known before.

Where answers are streams of tokens, the latency is that of the first token, and a stream holds its slot until its last
one. A time per output token is halved and doubled with the latency; it bounds the streams of a replica.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from tidegate.autoscaler.measure.observation import Observation
from tidegate.autoscaler.policies.tide.cover import AIM
from tidegate.autoscaler.policies.tide.pace import ROOM, Pace, most_streams, per_token_s
from tidegate.autoscaler.policies.tide.queueing import LateTable, Service
from tidegate.autoscaler.policies.tide.work import ASSUMED_CV, FIXED, ONE_STREAM
from tidegate.autoscaler.profiles.admission import KindFigures
from tidegate.function import Sla

TIMES = (1.0, 0.5, 2.0)
"""Multiples of the latency that are answered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Streams:
    """The streams of a function on one accelerator."""

    first_s: float
    """Least time to the first token."""
    most: float
    """Streams that a replica runs at a time at most."""
    whole_s: float
    """Mean time of a stream with so many at a time."""
    pace: Pace = ()
    """Seconds per token by streams at a time; empty unless the SLA has a time per output token."""
    between: float = 0.0
    """Tokens of a stream behind its first; with ``pace``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenLoad:
    """The load of a function so far."""

    requests_per_s: float
    """Mean of the last day."""
    size: float
    """Inferences of a request."""
    streams: Mapping[str, Streams] = field(default_factory=dict)
    """By accelerator; empty unless answers are streams."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlaCost:
    """The cost of one latency."""

    latency_s: float
    """Of streams: to the first token."""
    requests_per_s: float
    accelerator: str | None
    """None if none is known to meet it."""
    replicas: int
    price_per_hour: float
    per_token_s: float | None = None


def streams(observation: Observation | None) -> dict[str, Streams]:
    """Returns the streams by accelerator, as far as they were measured."""
    found: dict[str, Streams] = {}
    if observation is None or observation.tokens is None:
        return found
    for group in observation.groups:
        tokens = observation.tokens.groups.get(group.accelerator)
        if tokens is None or not tokens.first_s or not group.limit or not group.mu_ips:
            continue
        pace = tokens.pace if isinstance(tokens.pace, tuple) else ()
        between = tokens.between if isinstance(tokens.between, float) else 0.0
        found[group.accelerator] = Streams(
            first_s=tokens.first_s,
            most=float(group.limit),
            whole_s=group.limit * (group.mean_batch or 1.0) / group.mu_ips,
            pace=pace,
            between=between,
        )
    return found


def sla_costs(sla: Sla, kinds: Sequence[KindFigures], load: SeenLoad | None) -> tuple[SlaCost, ...]:
    """Returns the cost of the SLA's latency, of half and of twice of it; empty without a latency, a load, or an
    accelerator with a known service time."""
    if sla.latency_s is None or load is None or load.requests_per_s <= 0.0:
        return ()
    if load.streams:
        known = [each for each in kinds if _is_known(load.streams.get(each.accelerator), sla)]
    else:
        known = [each for each in kinds if each.one_s is not None]
    if not known:
        return ()
    found: dict[float, SlaCost] = {}
    least: SlaCost | None = None
    for times in sorted(TIMES):
        cost = _cost(sla, times, known, load)
        if least is not None and least.accelerator is not None and _is_dearer(cost, least):
            # What keeps the stricter latency keeps this one: streams that are many at a time may pass more slowly.
            cost = replace(
                cost, accelerator=least.accelerator, replicas=least.replicas, price_per_hour=least.price_per_hour
            )
        found[times] = least = cost
    return tuple(found[times] for times in TIMES)


def _is_dearer(cost: SlaCost, other: SlaCost) -> bool:
    return (cost.price_per_hour, cost.replicas) > (other.price_per_hour, other.replicas)


def _is_known(streams: Streams | None, sla: Sla) -> bool:
    return streams is not None and (sla.per_token_s is None or bool(streams.pace))


def _cost(sla: Sla, times: float, kinds: Sequence[KindFigures], load: SeenLoad) -> SlaCost:
    latency_s = times * (sla.latency_s or 0.0)
    token_s = None if sla.per_token_s is None or not load.streams else times * sla.per_token_s
    allowed = AIM * (1.0 - sla.percentile / 100.0)
    found = {
        each.accelerator: (replicas * each.price_per_hour, replicas)
        for each in kinds
        if (replicas := _replicas(each, latency_s, token_s, allowed, load)) is not None
    }
    accelerator = min(found, key=found.__getitem__, default=None)
    price, replicas = (0.0, 0) if accelerator is None else found[accelerator]
    return SlaCost(
        latency_s=latency_s,
        requests_per_s=load.requests_per_s,
        accelerator=accelerator,
        replicas=replicas,
        price_per_hour=price,
        per_token_s=token_s,
    )


def _replicas(kind: KindFigures, latency_s: float, token_s: float | None, allowed: float, load: SeenLoad) -> int | None:
    """Returns the replicas of a kind that keep the latency; None if its service alone is longer."""
    known = load.streams.get(kind.accelerator)
    if known is None:
        service_s = alone_s = (kind.one_s or 0.0) * (FIXED + (1.0 - FIXED) * load.size)
        slots = max(1.0, (kind.mu_ips or 0.0) / load.size * service_s)
        first_s = None
    else:
        found = _slots(known, token_s)
        if found is None:
            return None
        slots, service_s = found
        first_s = alone_s = known.first_s
    if service_s <= 0.0 or alone_s >= latency_s:
        return None
    lates = LateTable(Service(((1.0, service_s),), ASSUMED_CV, latency_s, first_s), 1.0)
    return max(1, math.ceil(lates.base(load.requests_per_s * service_s, allowed, 1.0) / slots - 1e-9))


def _slots(streams: Streams, token_s: float | None) -> tuple[float, float] | None:
    """Returns (streams of a replica at a time, seconds of each) within a time per output token; None if one stream
    alone is slower."""
    if token_s is None:
        return streams.most, streams.whole_s
    most = min(streams.most, most_streams(streams.pace, ROOM * token_s))
    if most < ONE_STREAM:
        return None
    most = max(1.0, math.floor(most))
    return most, streams.first_s + streams.between * per_token_s(streams.pace, most)
