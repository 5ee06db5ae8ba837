"""Traces made from traces: cut, scaled, sped up, joined; counts made into arrivals. One arrival at a time, seeded."""

import heapq
import math
import random
from collections.abc import Iterable, Iterator
from enum import StrEnum

from tidegate.loadgen.arrivals.arrival import Arrival


class Placement(StrEnum):
    """Where in its second a request of a trace of counts arrives."""

    POISSON = "poisson"
    """The counts are rates of a Poisson process; the number in a second is drawn too."""
    UNIFORM = "uniform"
    """As many as the trace says, each anywhere in its second."""
    EVEN = "even"
    """As many as the trace says, at equal distances."""


def placed(
    counts: Iterable[float], rng: random.Random, placement: Placement = Placement.POISSON, period_s: float = 1.0
) -> Iterator[Arrival]:
    """Arrivals of a trace of counts; ``counts[i]`` are the requests of the period that begins at ``i * period_s``.

    Fractions (of scaled counts) are rates for POISSON; for the others a request more is drawn with that probability.
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
    """The process has no memory: each period begins anew."""
    at_s = 0.0
    while rate > 0.0 and (at_s := at_s + rng.expovariate(rate)) < span_s:
        yield start_s + at_s


def scaled(arrivals: Iterable[Arrival], factor: float, rng: random.Random) -> Iterator[Arrival]:
    """So many times the rate: each arrival comes ``factor`` times on average, as often as it can evenly."""
    for arrival in arrivals:
        times = math.floor(factor)
        for _ in range(times + (rng.random() < factor - times)):
            yield arrival


def sliced(arrivals: Iterable[Arrival], start_s: float, end_s: float = math.inf) -> Iterator[Arrival]:
    """Those in [``start_s``, ``end_s``), timed from ``start_s``."""
    for arrival in arrivals:
        if arrival.at_s >= end_s:
            return
        if arrival.at_s >= start_s:
            yield arrival._replace(at_s=arrival.at_s - start_s)


def faster(arrivals: Iterable[Arrival], factor: float) -> Iterator[Arrival]:
    """The same requests in a ``factor``-th of the time."""
    for arrival in arrivals:
        yield arrival._replace(at_s=arrival.at_s / factor)


def joined(*traces: Iterable[Arrival]) -> Iterator[Arrival]:
    """All of them together, by time."""
    return heapq.merge(*traces, key=lambda arrival: arrival.at_s)
