"""Traces of functions that are seldom used, for ``benchmarks.days``: single requests, and bursts of seconds.

``rare-S``: requests by chance, one in S seconds on average. ``clumps-S``: 10 to 40 requests within 2 to 8 s, by chance
every S seconds on average (half to three halves of it). ``clock-S``: the same, exactly every S seconds. Each may be
called within 0.3 s; ``slow-S`` are the requests of ``rare-S``, to be answered within 15 s: with a short start-up time
that needs no replica beforehand.
"""

import random
from collections.abc import Iterator, Mapping
from functools import partial
from types import MappingProxyType
from typing import Final

from tidegate.loadgen.arrivals.arrival import Arrival
from tidegate.loadgen.arrivals.processes import poisson
from tidegate.loadgen.experiments.championship.fleets import IMAGE, FleetService
from tidegate.loadgen.experiments.championship.traces import DAY_S, League, Lengths, Made

LENGTHS: Final = Lengths(learn_s=DAY_S, judged_s=DAY_S)
SLOW: Final = FleetService(latency_s=15.0)


def _rare(every_s: float, total_s: float, rng: random.Random) -> Iterator[Arrival]:
    return (Arrival(at_s) for at_s in poisson(lambda _: 1.0 / every_s, total_s, 1.0 / every_s, rng))


def _clumps(every_s: float, spread: float, total_s: float, rng: random.Random) -> Iterator[Arrival]:
    now_s = 0.5 * every_s
    while now_s < total_s:
        lasts_s = rng.uniform(2.0, 8.0)
        for at_s in sorted(now_s + rng.uniform(0.0, lasts_s) for _ in range(rng.randint(10, 40))):
            if at_s < total_s:
                yield Arrival(at_s)
        now_s += every_s * rng.uniform(1.0 - spread, 1.0 + spread)


def _league(name: str, title: str, made: Made, service: FleetService = IMAGE) -> League:
    return League(name=name, title=title, lengths=LENGTHS, service=service, made=made)


RARE: Final[Mapping[str, League]] = MappingProxyType(
    {
        league.name: league
        for league in (
            *(_league(f"rare-{s}", f"one request in {s} s", partial(_rare, s)) for s in (60, 300, 900, 3600)),
            *(_league(f"clumps-{s}", f"a burst in {s} s", partial(_clumps, s, 0.5)) for s in (600, 3600)),
            *(_league(f"clock-{s}", f"a burst every {s} s", partial(_clumps, s, 0.0)) for s in (600, 3600)),
            *(
                _league(f"slow-{s}", f"one request in {s} s, 15 s each", partial(_rare, s), SLOW)
                for s in (60, 300, 900)
            ),
        )
    }
)
