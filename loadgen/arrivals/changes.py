"""Transformations of arrivals: cut, scaled, sped up, joined; counts turned into arrivals. One arrival at a time,
seeded."""

import heapq
import math
import random
from collections.abc import Iterable, Iterator
from enum import StrEnum

from tidegate.loadgen.arrivals.arrival import Arrival


class Placement(StrEnum):
    """Placement of requests within their second, for a trace of counts."""

    POISSON = "poisson"
    """Counts are rates of a Poisson process; the number in a second is random too."""
    UNIFORM = "uniform"
    """As many as the trace says, each at a random place in its second."""
    EVEN = "even"
    """As many as the trace says, at equal distances."""


def placed(
    counts: Iterable[float], rng: random.Random, placement: Placement = Placement.POISSON, period_s: float = 1.0
) -> Iterator[Arrival]:
    """Yields the arrivals of a trace of counts; ``counts[i]`` are the requests of the period that begins at ``i *
    period_s``.

    Fractions (of scaled counts) are rates for POISSON; for the others one more request is drawn with that probability.
    """
    for index, count in enumerate(counts):
        start_s = index * period_s
        if placement is Placement.POISSON:
            yield from (Arrival(at_s) for at_s in _poisson(start_s, count / period_s, period_s, rng))
            continue
        whole = math.floor(count)
        whole += rng.random() < count - whole
        if placement is Placement.EVEN:
            yield from (Arrival(start_s + period_s * at / whole) for at in range(whole))
        else:
            yield from (Arrival(at_s) for at_s in sorted(start_s + period_s * rng.random() for _ in range(whole)))


def _poisson(start_s: float, rate: float, span_s: float, rng: random.Random) -> Iterator[float]:
    """Yields the arrivals of one period; the process has no memory across periods."""
    at_s = 0.0
    while rate > 0.0 and (at_s := at_s + rng.expovariate(rate)) < span_s:
        yield start_s + at_s


def scaled(arrivals: Iterable[Arrival], factor: float, rng: random.Random) -> Iterator[Arrival]:
    """Scales the rate: each arrival is repeated ``factor`` times on average, as evenly as possible."""
    for arrival in arrivals:
        times = math.floor(factor)
        for _ in range(times + (rng.random() < factor - times)):
            yield arrival


def sliced(arrivals: Iterable[Arrival], start_s: float, end_s: float = math.inf) -> Iterator[Arrival]:
    """Yields the arrivals in [``start_s``, ``end_s``), timed from ``start_s``."""
    for arrival in arrivals:
        if arrival.at_s >= end_s:
            return
        if arrival.at_s >= start_s:
            yield arrival._replace(at_s=arrival.at_s - start_s)


def faster(arrivals: Iterable[Arrival], factor: float) -> Iterator[Arrival]:
    """Yields the same requests in 1/``factor`` of the time."""
    for arrival in arrivals:
        yield arrival._replace(at_s=arrival.at_s / factor)


def joined(*traces: Iterable[Arrival]) -> Iterator[Arrival]:
    """Merges traces by time."""
    return heapq.merge(*traces, key=lambda arrival: arrival.at_s)
