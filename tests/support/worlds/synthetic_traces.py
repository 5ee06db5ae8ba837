"""Traces that are made, not measured: counts per second with the character of a public stream of short messages.

The level swings slowly and drifts; now and then something happens: within seconds the rate is a multiple, stays there
for minutes and fades. That is what makes such a stream hard for an autoscaler, and what a sine does not have.
"""

import math
import random
from collections.abc import Iterator
from typing import Final

LEVEL: Final = 50.0
"""Requests per second at the middle of the swing."""
SWING: Final = 0.3
SWING_S: Final = 6 * 3600.0
DRIFT: Final = 0.02
"""Step of the drift, as a share of the level; it forgets a hundredth of itself every second."""
BURST_EVERY_S: Final = 1500.0
RISE_S: Final = 5.0
MOST: Final = 400.0


def bursts(seconds: int, rng: random.Random) -> Iterator[int]:
    """Requests of each of ``seconds`` seconds: Poisson around a level with bursts, one every 25 minutes on average, of
    2 to 5 times the level for 2 to 8 minutes."""
    drift = burst = height = until_s = 0.0
    next_s = rng.expovariate(1.0 / BURST_EVERY_S)
    for second in range(seconds):
        if second >= next_s:
            height, until_s = rng.uniform(1.0, 4.0), second + rng.uniform(120.0, 480.0)
            next_s = until_s + rng.expovariate(1.0 / BURST_EVERY_S)
        aim, pace_s = (height, RISE_S) if second < until_s else (0.0, 12.0 * RISE_S)
        burst += (aim - burst) / pace_s
        drift += DRIFT * rng.gauss(0.0, 1.0) - 0.01 * drift
        swing = 1.0 - SWING * math.cos(2.0 * math.pi * second / SWING_S)
        yield _poisson(min(MOST, LEVEL * swing * math.exp(drift) * (1.0 + burst)), rng)


def _poisson(mean: float, rng: random.Random) -> int:
    """A draw, by the arrivals of one unit of time."""
    count, at = 0, rng.expovariate(mean)
    while at < 1.0:
        count, at = count + 1, at + rng.expovariate(mean)
    return count
