"""The static fleet: the constant one that keeps the SLA for the least money, chosen with all requests known.

Requests wait in one line for the next free slot, as in the waiting room.
"""

import random
from array import array
from collections.abc import Iterable, Sequence
from heapq import heapify, heapreplace

from tidegate.loadgen.arrivals.arrival import Arrival
from tidegate.loadgen.experiments.championship.fleets import QUANTILE, UNITS, FleetGroup, FleetService


def cheapest(
    service: FleetService, fleet: Sequence[FleetGroup], arrivals: Iterable[Arrival], seed: int
) -> tuple[str, int] | None:
    """Returns (group, replicas) of the cheapest constant fleet of one group that keeps the SLA; None without one.
    ``arrivals``: those that are judged."""
    times, works, variations = array("d"), array("d"), array("f")
    rng, profile = random.Random(seed), service.profile(fleet[0])
    for each in arrivals:
        times.append(each.at_s)
        variations.append(profile.varied(1.0, rng))
        works.append(float(service.work(each)))
    if not times:
        return None
    found: tuple[str, int] | None = None
    least = float("inf")
    for group in fleet:
        line, seconds = service.bound_times(group), dict[float, float]()
        for work in works:
            if work not in seconds:
                seconds[work] = line.seconds(int(work))
        took = array("d", (seconds[work] * factor for work, factor in zip(works, variations, strict=True)))
        most = min(UNITS, int((least - 1e-9) / group.price_per_hour) if found else UNITS)
        count = _smallest(times, took, service, most)
        if count is not None:
            found, least = (group.name, count), count * group.price_per_hour
    return found


def _smallest(times: Sequence[float], took: Sequence[float], service: FleetService, most: int) -> int | None:
    """Returns the fewest replicas that keep the SLA; None if ``most`` do not."""
    allowed = (1.0 - QUANTILE) * len(times)
    load = sum(took) / max(1.0, times[-1] - times[0]) / service.slots
    low, high = max(1, int(load)), most
    if high < 1 or not _keeps(times, took, service, high, allowed):
        return None
    guess = low + 1
    while low < high:
        middle = min(guess, high - 1)
        if _keeps(times, took, service, middle, allowed):
            high = middle
            guess = (low + high) // 2
        else:
            low = middle + 1
            guess = min(2 * low, (low + high) // 2)
    return low


def _keeps(times: Sequence[float], took: Sequence[float], service: FleetService, count: int, allowed: float) -> bool:
    free = [0.0] * (count * service.slots)
    heapify(free)
    late, latency_s = 0, service.latency_s
    for at_s, seconds in zip(times, took, strict=True):
        begin = free[0]
        end = (begin if begin > at_s else at_s) + seconds
        heapreplace(free, end)
        if end - at_s > latency_s:
            late += 1
            if late > allowed:
                return False
    return True
