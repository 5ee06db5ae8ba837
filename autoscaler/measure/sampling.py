"""Sampling of large groups: how many replicas stand for all of them, and which ones are sampled next.

The size is that of a simple random sample of a finite population for a mean at 95 % confidence, as Knative's scraper
takes it: four of four, seven of ten, fourteen of a hundred, never more than sixteen.
"""

import math
from collections.abc import Sequence

ALL_UP_TO = 3
"""Groups of up to this size are sampled whole."""
UNEVEN = 2.0
"""Two successive samples of a group that differ by more than this factor hide a straggler."""
UNEVEN_RPS = 20.0
"""Requests per second from which on two samples are compared: with fewer, chance would dominate."""
LARGE = 1.96**2 * 100.0 / 25.0
"""The sample size of an infinite population."""


def sample_size(population: int) -> int:
    """Returns the number of replicas to sample of ``population``."""
    if population <= ALL_UP_TO:
        return max(population, 0)
    return math.ceil(population * LARGE / (population + LARGE - 1.0))


def to_sample(replicas: Sequence[str], tick: int) -> frozenset[str]:
    """Returns the replicas to sample at a tick: those of this tick's round robin, and those of the next. Counters cover
    the time since the last sample, so a figure of one second takes two."""
    return frozenset((*round_robin(replicas, tick), *round_robin(replicas, tick + 1)))


def round_robin(replicas: Sequence[str], tick: int) -> tuple[str, ...]:
    """Returns the replicas of a tick's sample: as many as needed, the next ones each time, so that a straggler is
    seen."""
    count, size = len(replicas), sample_size(len(replicas))
    first = tick * size % count if count else 0
    return tuple(replicas[(first + offset) % count] for offset in range(size))
