"""Plans of whole replicas with starts anywhere, and what becomes of a trace under one: the bound's adversary."""

import heapq
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tidegate.loadgen.bound.clairvoyant import Group

Arrivals = Sequence[tuple[float, int]]


@dataclass(frozen=True, slots=True)
class Replica:
    """Paid from ``start_s`` to ``end_s``; it works from the start-up time on, from the beginning if it was there before
    (``start_s`` 0 and ``was_there``), and ends no sooner than with its last request."""

    group: Group
    start_s: float
    end_s: float
    was_there: bool = False

    @property
    def ready_s(self) -> float:
        return 0.0 if self.was_there else self.start_s + self.group.start_s


def played(plan: Sequence[Replica], arrivals: Arrivals, latency_s: float) -> tuple[int, float]:
    """(late requests, dollars) where every request goes, first come first served, to the first slot that is free; of
    several free ones to the fastest. One that no slot takes in time is dropped and late."""
    slots = [(each.ready_s, index, number) for index, each in enumerate(plan) for number in range(each.group.slots)]
    heapq.heapify(slots)
    busy_s = [each.ready_s for each in plan]
    late = 0
    for at_s, batch in arrivals:
        idle = []
        while slots and slots[0][0] <= at_s:
            idle.append(heapq.heappop(slots))
        for each in idle:
            heapq.heappush(slots, (at_s, *each[1:]))
        idle.clear()
        kept, done = [], None
        candidates = sorted(slots, key=lambda each: (each[0], plan[each[1]].group.times.seconds(batch), each[1:]))
        for free_s, index, number in candidates:
            takes_s = plan[index].group.times.seconds(batch)
            if free_s + takes_s <= at_s + latency_s and free_s <= plan[index].end_s:
                done = (free_s, index, number, free_s + takes_s)
                break
        if done is None:
            late += 1
            continue
        free_s, index, number, over_s = done
        kept = [each for each in slots if each[1:] != (index, number)]
        slots = [*kept, (over_s, index, number)]
        heapq.heapify(slots)
        busy_s[index] = max(busy_s[index], over_s)
    return late, sum(_paid(each, used_s) for each, used_s in zip(plan, busy_s, strict=True))


def _paid(each: Replica, used_s: float) -> float:
    """Dollars of one replica; those that were there have had their minimum run time."""
    span_s = max(each.end_s, used_s) - each.start_s
    least_s = 0.0 if each.was_there else each.group.min_run_s
    return max(span_s, least_s) * each.group.price_per_hour / 3600.0


def drawn(rng: random.Random, groups: Sequence[Group], duration_s: float, count: int) -> list[Replica]:
    """So many replicas, each for some time or all of it."""
    plan = []
    for _ in range(count):
        group, was_there = rng.choice(groups), rng.random() < 0.5
        start_s = 0.0 if was_there else rng.uniform(0.0, duration_s)
        end_s = duration_s if rng.random() < 0.3 else rng.uniform(start_s, duration_s)
        plan.append(Replica(group, start_s, end_s, was_there))
    return plan


def shaved(
    plan: list[Replica], arrivals: Arrivals, latency_s: float, may_be_late: int, rng: random.Random, steps: int
) -> list[Replica]:
    """A cheaper plan with no more late requests than that, by cutting at random what is not needed."""
    _, dollars = played(plan, arrivals, latency_s)
    for _ in range(steps):
        index = rng.randrange(len(plan))
        each, share = plan[index], rng.random() ** 2
        cut = (each.end_s - each.start_s) * share
        kinder = [plan[:index] + plan[index + 1 :]] if rng.random() < 0.1 else []
        if rng.random() < 0.5:
            kinder.append([*plan[:index], replace(each, end_s=each.end_s - cut), *plan[index + 1 :]])
        else:
            later = replace(each, start_s=each.start_s + cut, was_there=False)
            kinder.append([*plan[:index], later, *plan[index + 1 :]])
        for other in kinder:
            if not other:
                continue
            late, cost = played(other, arrivals, latency_s)
            if late <= may_be_late and cost <= dollars:
                plan, dollars = other, cost
                break
    return plan
