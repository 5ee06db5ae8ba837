"""Load shapes: functions of the seconds since the start that return arrivals per second, 0.0 outside their duration.

Sources: HetSev, section 6 (production and fluctuating patterns); the other names are those of load tools and papers.
"""

import math
import random
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from tidegate.loadgen.arrivals import processes as arrivals
from tidegate.loadgen.arrivals.changes import Placement, placed
from tidegate.loadgen.arrivals.processes import Shape

DAY_S: Final = 86_400.0
_PARTS: Final = 20


class Load(NamedTuple):
    """A load shape and the bounds that a sampler needs."""

    rate: Shape
    duration_s: float
    highest: float
    """The highest rate; it is reached."""


def constant(duration_s: float, rate: float) -> Load:
    """Returns a shape with the same rate throughout."""
    return steps([(duration_s, rate)])


def steps(spans: Sequence[tuple[float, float]]) -> Load:
    """Returns a shape of one rate after the other; ``spans`` holds (duration in seconds, rate) of each. Raises
    ValueError for no spans, for durations that are not positive and for negative rates."""
    if not spans:
        raise ValueError("no steps")
    ends: list[float] = []
    for span_s, rate in spans:
        if not span_s > 0.0 or not rate >= 0.0:
            raise ValueError(f"a step of {span_s} s at {rate}/s; its duration must be positive, its rate not negative")
        ends.append((ends[-1] if ends else 0.0) + span_s)

    def at(at_s: float) -> float:
        if at_s < 0.0:
            return 0.0
        for end_s, (_, rate) in zip(ends, spans, strict=True):
            if at_s < end_s:
                return rate
        return 0.0

    return Load(at, ends[-1], max(rate for _, rate in spans))


def spike(duration_s: float, base: float, peak: float, at_s: float, span_s: float) -> Load:
    """Returns a shape at ``base``, except ``peak`` for ``span_s`` seconds from ``at_s`` on. Raises ValueError if the
    spike does not lie within the duration."""
    if not (at_s > 0.0 and span_s > 0.0 and at_s + span_s < duration_s):
        raise ValueError(f"a spike of {span_s} s at {at_s} s does not lie inside {duration_s} s")
    return steps([(at_s, base), (span_s, peak), (duration_s - at_s - span_s, base)])


def diurnal(duration_s: float, low: float, high: float, period_s: float = DAY_S) -> Load:
    """Returns a sine between ``low``, where it begins, and ``high``."""

    def at(at_s: float) -> float:
        if not 0.0 <= at_s < duration_s:
            return 0.0
        return low + (high - low) * (1.0 - math.cos(2.0 * math.pi * at_s / period_s)) / 2.0

    return Load(at, duration_s, high)


def waves(duration_s: float, flat: float, spans: Sequence[tuple[float, float, float]]) -> Load:
    """Returns a flat shape with a half sine up to ``peak`` in each of ``spans``: (start, end, peak)."""

    def at(at_s: float) -> float:
        if not 0.0 <= at_s < duration_s:
            return 0.0
        for start_s, end_s, peak in spans:
            if start_s <= at_s < end_s:
                return flat + (peak - flat) * math.sin(math.pi * (at_s - start_s) / (end_s - start_s))
        return flat

    return Load(at, duration_s, max([flat, *(peak for _, _, peak in spans)]))


def production(low: float = 200.0, high: float = 1000.0) -> Load:
    """Returns HetSev's production pattern: 6,000 s, low except for a spike from 3,500 s to 4,100 s."""
    return spike(6000.0, low, high, 3500.0, 600.0)


def fluctuating(capacity: float) -> Load:
    """Returns HetSev's fluctuating pattern: 2,500 s at 20 % of ``capacity``, with waves to 60 % (0 to 1,000 s) and to
    100 % (from 1,200 s on)."""
    return waves(2500.0, 0.2 * capacity, [(0.0, 1000.0, 0.6 * capacity), (1200.0, 2200.0, capacity)])


def stretched(load: Load, duration_s: float) -> Load:
    """Returns the same shape stretched to another duration."""
    speed = load.duration_s / duration_s
    return Load(lambda at_s: load.rate(at_s * speed), duration_s, load.highest)


def times(load: Load, placement: Placement, rng: random.Random) -> Iterator[float]:
    """Yields the arrival times of a shape. With uniform placement each second has as many as the shape says, each at a
    random place in it."""
    if placement is Placement.POISSON:
        return arrivals.poisson(load.rate, load.duration_s, load.highest, rng)
    if placement is Placement.EVEN:
        return arrivals.even(load.rate, load.duration_s)
    return _uniform(load, rng)


def _uniform(load: Load, rng: random.Random) -> Iterator[float]:
    """Integrates the shape over each second, by midpoints."""
    second = 0.0
    while second < load.duration_s:
        span_s = min(1.0, load.duration_s - second)
        mean = sum(load.rate(second + (part + 0.5) * span_s / _PARTS) for part in range(_PARTS)) / _PARTS
        for each in placed([mean * span_s], rng, Placement.UNIFORM, span_s):
            yield second + each.at_s
        second += 1.0
