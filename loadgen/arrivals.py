"""When requests arrive: times of a Poisson process whose rate follows a shape.

A shape is a function of the time since the start, in seconds, that gives a rate in arrivals per second. Times come by
thinning (Lewis and Shedler 1979): arrivals at the highest rate, each kept with the probability rate / highest rate.
"""

import random
from collections.abc import Callable, Iterator

Shape = Callable[[float], float]


def ramp(duration_s: float, low: float, peak: float) -> Shape:
    """Rises evenly from ``low`` to ``peak`` over the first half, stays for a quarter, falls back over the last one."""

    def rate(at_s: float) -> float:
        part = at_s / duration_s
        if part < 0.0 or part >= 1.0:
            return 0.0
        if part < 0.5:
            return low + (peak - low) * part / 0.5
        if part < 0.75:
            return peak
        return peak - (peak - low) * (part - 0.75) / 0.25

    return rate


def poisson(shape: Shape, duration_s: float, highest: float, rng: random.Random) -> Iterator[float]:
    """Arrival times, rising, in [0, ``duration_s``). ``highest``: a bound of the shape; raises ValueError above it."""
    if highest <= 0.0:
        return
    at_s = 0.0
    while (at_s := at_s + rng.expovariate(highest)) < duration_s:
        rate = shape(at_s)
        if rate > highest * (1.0 + 1e-9):
            raise ValueError(f"the shape gives {rate} at {at_s} s, above its bound {highest}")
        if rng.random() * highest < rate:
            yield at_s
