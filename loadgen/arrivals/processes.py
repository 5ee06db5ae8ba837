"""Arrival processes: times of requests whose rate follows a shape.

A shape is a function of the time since the start, in seconds, that returns a rate in arrivals per second. Poisson
processes use thinning (Lewis and Shedler 1979): arrivals at the highest rate, each kept with the probability rate /
highest rate.
"""

import math
import random
from collections.abc import Callable, Iterator, Sequence

Shape = Callable[[float], float]


def ramp(duration_s: float, low: float, peak: float) -> Shape:
    """Returns a shape that rises linearly from ``low`` to ``peak`` over the first half, stays for a quarter, and falls
    back over the last quarter."""

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
    """Yields arrival times, rising, in [0, ``duration_s``). ``highest`` is an upper bound of the shape; raises
    ValueError if the shape exceeds it."""
    if highest <= 0.0:
        return
    at_s = 0.0
    while (at_s := at_s + rng.expovariate(highest)) < duration_s:
        rate = shape(at_s)
        if rate > highest * (1.0 + 1e-9):
            raise ValueError(f"the shape gives {rate} at {at_s} s, above its bound {highest}")
        if rng.random() * highest < rate:
            yield at_s


def even(shape: Shape, duration_s: float, step_s: float = 0.001) -> Iterator[float]:
    """Yields arrival times, rising, in [0, ``duration_s``): one wherever the shape's integral reaches a whole number,
    the first at 0. The integral is taken in steps of ``step_s``, within which the rate counts as constant."""
    wanted = done = 0.0
    for step in range(math.ceil(duration_s / step_s - 1e-9)):
        rate = shape(step * step_s)
        grown = rate * step_s
        while rate > 0.0 and wanted < done + grown - 1e-9:
            at_s = step * step_s + max(0.0, wanted - done) / rate
            if at_s >= duration_s:
                return
            yield at_s
            wanted += 1.0
        done += grown


def mmpp(rates: Sequence[float], stay_s: Sequence[float], duration_s: float, rng: random.Random) -> Iterator[float]:
    """Yields arrival times of a Markov-modulated Poisson process in [0, ``duration_s``): bursts of any kind.

    State i has ``rates[i]`` arrivals per second and lasts ``stay_s[i]`` seconds on average (exponential). The next
    state is drawn uniformly from the others, the first one by the share of time spent in each. Raises ValueError for
    fewer than two states and for lists of different lengths.
    """
    if len(rates) != len(stay_s) or len(rates) < 2:
        raise ValueError(f"{len(rates)} rates and {len(stay_s)} stays; as many of both, two at least")
    state = rng.choices(range(len(rates)), stay_s)[0]
    now_s = 0.0
    while now_s < duration_s:
        until_s = min(duration_s, now_s + rng.expovariate(1.0 / stay_s[state]))
        at_s = now_s
        while rates[state] > 0.0 and (at_s := at_s + rng.expovariate(rates[state])) < until_s:
            yield at_s
        now_s = until_s
        state = (state + rng.randrange(1, len(rates))) % len(rates)
