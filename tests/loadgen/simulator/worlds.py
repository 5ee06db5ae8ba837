"""What tests of the simulator add to the scenarios of experiments."""

import random
from collections.abc import Iterator

from tidegate.loadgen.arrivals.arrival import Arrival
from tidegate.loadgen.experiments.setups.worlds import deployed, fixed, function, kind, latencies, run, scaling
from tidegate.loadgen.simulator.result import Everything

__all__ = ["deployed", "fixed", "function", "kind", "latencies", "poisson", "run", "scaling", "waits"]


def poisson(rate: float, count: int, seed: int = 1, start_s: float = 0.0) -> Iterator[Arrival]:
    rng, at_s = random.Random(seed), start_s
    for _ in range(count):
        at_s += rng.expovariate(rate)
        yield Arrival(at_s)


def waits(sink: Everything) -> list[float]:
    """Time in the room of each answered request."""
    return [sent_at - request[2] for request, sent_at, _, _, _, end in sink.ended if end == "answered"]
