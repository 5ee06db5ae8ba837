"""The parts of the bound against the plain definitions that they compute."""

import math
import random
from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.errors import Fault
from tidegate.loadgen.bound.demand import Job, demand
from tidegate.loadgen.bound.levels import Levels, Supply, levels
from tidegate.loadgen.bound.table import Quanta, least_costs

TRACES = st.lists(st.tuples(st.floats(0.0, 9.9), st.integers(1, 3)), max_size=30)


def clamp(share: float) -> float:
    return min(1.0, max(0.0, share))


@given(TRACES, st.floats(0.05, 3.0))
def test_the_curves_are_the_sums_of_the_requests_ramps(arrivals: list[tuple[float, int]], latency_s: float) -> None:
    def job(batch: int) -> Job:
        return Job(work_s=0.3 * batch, least_s=0.2 * batch)

    faults: list[Fault] = []
    found = demand(arrivals, job, latency_s=latency_s, duration_s=10.0, slot_s=0.25, faults=faults)
    counted = [each for each in arrivals if 0.2 * each[1] <= latency_s]
    assert not faults and found.requests == len(arrivals) and found.hopeless == len(arrivals) - len(counted)
    for slot in range(40):
        until_s = 0.25 * (slot + 1)
        possible = sum(0.3 * batch * clamp((until_s - at_s) / (0.2 * batch)) for at_s, batch in counted)
        required = sum(
            0.3 * batch * clamp((until_s - (at_s + latency_s - 0.2 * batch)) / (0.2 * batch)) for at_s, batch in counted
        )
        assert found.possible_s[slot] == pytest.approx(possible, abs=1e-9)
        assert found.required_s[slot] == pytest.approx(required, abs=1e-9)


def test_arrivals_behind_the_end_are_ignored_and_a_part_of_a_slot_asks_for_nothing() -> None:
    found = demand(
        [(0.1, 1), (1.05, 1), (1.2, 1)],
        lambda _: Job(work_s=0.1, least_s=0.1),
        latency_s=0.2,
        duration_s=1.1,
        slot_s=0.25,
        faults=[],
    )
    assert found.requests == 2 and len(found.possible_s) == 4
    assert found.possible_s[-1] == pytest.approx(0.1) and found.required_s[-1] == pytest.approx(0.1)


def cheapest(levels_: Levels, quanta: Quanta, slot_s: float, price: float) -> float:
    """Every way through the levels."""
    best = math.inf
    added = np.diff(quanta.possible, prepend=0).tolist()
    room = (quanta.possible - quanta.required).tolist()
    for path in product(range(levels_.count), repeat=len(added)):
        backlog, cost = 0, 0.0
        for slot, level in enumerate(path):
            if slot:
                cost += levels_.price_per_s[level] * slot_s + levels_.up_price * max(0, level - path[slot - 1])
            backlog = max(0, backlog + added[slot] - level * quanta.per_level)
            cost += price * max(0, backlog - room[slot])
            backlog = min(backlog, room[slot])
        best = min(best, cost)
    return best


STEPS = st.lists(st.tuples(st.sampled_from([0, 0, 0, 1, 2, 5]), st.integers(0, 6)), min_size=1, max_size=6)


@given(STEPS, st.integers(1, 3), st.sampled_from([0.0, 0.4, 3.0]), st.booleans())
@settings(max_examples=150)
def test_the_table_finds_the_cheapest_of_all_ways(
    steps: list[tuple[int, int]], per_level: int, up_price: float, is_convex: bool
) -> None:
    """Idle slots, which are passed over together, included."""
    possible = np.cumsum([new for new, _ in steps])
    required = np.minimum(
        possible, np.maximum.accumulate([max(0, done - wait) for done, (_, wait) in zip(possible, steps, strict=True)])
    )
    quanta = Quanta(possible=possible, required=required, per_level=per_level)
    choice = Levels(step=1.0, price_per_s=np.array([0.0, 1.0, 2.5 if is_convex else 1.5]), up_price=up_price)
    prices = [0.0, 0.13, 1.0, 50.0]
    found = least_costs(quanta, choice, 0.5, np.array(prices))
    assert found.tolist() == pytest.approx([cheapest(choice, quanta, 0.5, price) for price in prices])


SUPPLIES = st.lists(
    st.tuples(st.sampled_from([1.0, 1.5, 1.7, 4.0]), st.floats(0.1, 3.0), st.floats(1.0, 9.0), st.integers(1, 4)),
    min_size=1,
    max_size=3,
)


@given(SUPPLIES, st.floats(0.5, 12.0))
def test_a_level_costs_no_more_than_any_fleet_that_has_it(
    given_: list[tuple[float, float, float, int]], most: float
) -> None:
    supplies = [
        Supply(capacity=capacity, price_per_s=price, start_s=start_s, max_replicas=limit)
        for capacity, price, start_s, limit in given_
    ]
    found = levels(supplies, most, 0.25)
    fleets = list(product(*(range(each.max_replicas + 1) for each in supplies)))
    for counts in fleets:
        capacity = sum(count * each.capacity for count, each in zip(counts, supplies, strict=True))
        price = sum(count * each.price_per_s for count, each in zip(counts, supplies, strict=True))
        level = min(found.count - 1, math.ceil(capacity / found.step - 1e-9))
        assert found.price_per_s[level] <= price + 1e-9
    assert all(low <= high for low, high in pairwise(found.price_per_s.tolist()))
    for each in supplies:
        rise = each.capacity / found.step
        assert found.up_price * rise <= each.price_per_s * (each.start_s - 0.5) + 1e-9


def test_one_group_has_a_level_for_each_replica() -> None:
    found = levels([Supply(capacity=4.0, price_per_s=2.0, start_s=3.0, max_replicas=3)], 100.0, 0.5)
    assert found.step == 4.0 and found.price_per_s.tolist() == [0.0, 2.0, 4.0, 6.0] and found.up_price == 4.0


@given(st.randoms(use_true_random=False), st.integers(2, 6))
@settings(max_examples=60)
def test_levels_of_many_replicas_cost_no_more_than_levels_of_one(rng: random.Random, limit: int) -> None:
    supply = [Supply(capacity=1.0, price_per_s=1.0, start_s=rng.uniform(0.5, 6.0), max_replicas=40)]
    fine, coarse = levels(supply, 12.0, 0.25), levels(supply, 12.0, 0.25, limit=limit)
    per_coarse = round(coarse.step / fine.step)
    assert coarse.count <= limit + 3 and per_coarse > 1
    new = [rng.choice([0, 0, 1, 3, 8]) for _ in range(20)]
    possible = np.cumsum(new)
    required = np.concatenate(([0, 0], possible[:-2]))
    price = np.array([1e9])
    (exact,) = least_costs(Quanta(possible=possible, required=required, per_level=1), fine, 0.25, price)
    (less,) = least_costs(Quanta(possible=possible, required=required, per_level=per_coarse), coarse, 0.25, price)
    assert less <= exact + 1e-9
