"""How many replicas of a large group tell enough about all of them, and whose turn it is.

The size is that of a simple random sample of a finite population for a mean at 95 % confidence, as Knative's scraper
takes it: four of four, seven of ten, fourteen of a hundred, never more than sixteen.
"""

import math
from collections.abc import Sequence

ALL_UP_TO = 3
"""So few are always taken all."""
UNEVEN = 2.0
"""Two successive samples of a group that differ by more than this factor hide a straggler."""
UNEVEN_RPS = 20.0
"""Requests per second from which on two samples are compared: of fewer, chance would tell."""
LARGE = 1.96**2 * 100.0 / 25.0
"""The sample of an endless population."""


def sample_size(population: int) -> int:
    """Replicas to sample of ``population``."""
    if population <= ALL_UP_TO:
        return max(population, 0)
    return math.ceil(population * LARGE / (population + LARGE - 1.0))


def to_sample(replicas: Sequence[str], tick: int) -> frozenset[str]:
    """The replicas to ask at a tick: those whose turn it is, and those whose turn is next. Counters tell of the time
    since the last look, so that a figure of one second takes two."""
    return frozenset((*round_robin(replicas, tick), *round_robin(replicas, tick + 1)))


def round_robin(replicas: Sequence[str], tick: int) -> tuple[str, ...]:
    """The replicas to sample at a tick: as many as needed, the next ones each time, so that a straggler is seen."""
    count, size = len(replicas), sample_size(len(replicas))
    first = tick * size % count if count else 0
    return tuple(replicas[(first + offset) % count] for offset in range(size))
