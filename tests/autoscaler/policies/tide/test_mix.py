"""The cheapest mix of replicas."""

import itertools
import random

import pytest

from tidegate.autoscaler.policies.tide.mix import MixGroup, cheapest, chosen

SMALL = MixGroup(slots=1.0, price=0.53, present=0, most=8)
MIDDLE = MixGroup(slots=1.6, price=0.80, present=0, most=8)
LARGE = MixGroup(slots=5.0, price=3.5, present=0, most=8)


def exact(kinds: list[MixGroup], slots: float) -> float:
    """Returns the least price over all mixes."""
    costs = [
        sum(kind.cost(count) for kind, count in zip(kinds, counts, strict=True))
        for counts in itertools.product(*(range(kind.most + 1) for kind in kinds))
        if sum(kind.slots * count for kind, count in zip(kinds, counts, strict=True)) >= slots - 1e-9
    ]
    return min(costs)


@pytest.mark.parametrize("seed", range(30))
def test_it_is_the_exact_optimum(seed: int) -> None:
    rng = random.Random(seed)
    kinds = [
        MixGroup(
            rng.uniform(0.5, 5.0), rng.uniform(0.3, 4.0), rng.randrange(4), rng.randrange(1, 9), rng.choice((5, 120))
        )
        for _ in range(3)
    ]
    slots = rng.uniform(0.1, 0.9) * sum(kind.slots * kind.most for kind in kinds)
    best, other = cheapest(tuple(kinds), slots)
    assert best.cost == pytest.approx(exact(kinds, slots))
    assert best.slots >= slots - 1e-9
    assert other is None or (other.cost >= best.cost and other.counts != best.counts)


def test_no_capacity_needs_no_replica() -> None:
    assert cheapest(
        (
            SMALL,
            LARGE,
        ),
        0.0,
    )[0].counts == (0, 0)


def test_without_room_all_there_is_counts() -> None:
    best, other = cheapest(
        (
            SMALL,
            LARGE._replace(most=1),
        ),
        100.0,
    )
    assert best.counts == (8, 1)
    assert other is None


def test_a_group_that_cannot_serve_gets_none() -> None:
    assert cheapest(
        (
            SMALL._replace(slots=0.0),
            MIDDLE,
        ),
        3.0,
    )[0].counts == (0, 2)


def test_a_replica_that_runs_needs_no_start() -> None:
    """Two small ones cost 1.06 and a middle one 0.80, but its start costs as much once more."""
    there = [SMALL._replace(present=2), MIDDLE._replace(start_s=600.0)]
    assert cheapest(tuple(there), 1.5)[0].counts == (2, 0)
    assert cheapest(
        (
            SMALL._replace(start_s=600.0),
            MIDDLE._replace(present=1),
        ),
        1.5,
    )[0].counts == (0, 1)


def fluid(kinds: list[MixGroup], slots: float) -> float:
    """Returns the least price if parts of replicas could be had: a lower bound."""
    parts = [(kind.price / kind.slots, kind.slots * min(kind.present, kind.most)) for kind in kinds]
    parts += [
        (kind.cost(kind.present + 1) / kind.slots - kind.cost(kind.present) / kind.slots, kind.slots * kind.most)
        for kind in kinds
    ]
    cost = 0.0
    for price, amount in sorted(parts):
        taken = min(amount, slots)
        cost, slots = cost + price * taken, slots - taken
    return cost


@pytest.mark.parametrize("seed", range(10))
def test_ten_groups_are_near_the_optimum(seed: int) -> None:
    rng = random.Random(seed)
    kinds = [MixGroup(rng.uniform(0.5, 5.0), rng.uniform(0.3, 4.0), rng.randrange(3), 20, 30.0) for _ in range(10)]
    best, _ = cheapest(tuple(kinds), 57.0)
    assert best.cost <= 1.05 * fluid(kinds, 57.0) + min(kind.price for kind in kinds)


@pytest.mark.parametrize(("count", "cost"), [(0, 0.0), (2, 1.0), (3, 1.55), (5, 2.65)])
def test_a_start_is_written_off_over_ten_minutes(count: int, cost: float) -> None:
    assert MixGroup(slots=1.0, price=0.5, present=2, most=8, start_s=59.0).cost(count) == pytest.approx(cost)


def test_the_next_best_mix_costs_more_or_as_much() -> None:
    best, other = cheapest((SMALL, MIDDLE), 3.2)
    assert other is not None
    assert (best.counts, other.counts) == ((0, 2), (2, 1))
    assert [best.cost, best.slots, other.cost] == pytest.approx([1.6 * (1 + 1 / 600), 3.2, 1.86 * (1 + 1 / 600)])


def test_binary_noise_adds_no_replica() -> None:
    assert cheapest((SMALL,), 2.0 + 5e-10)[0].counts == (2,)
    assert cheapest((SMALL,), 2.0 + 1e-8)[0].counts == (3,)
    assert cheapest((SMALL,), 8.0 + 5e-10)[0].counts == (8,)
    assert cheapest((SMALL._replace(most=0), MIDDLE), 1.0)[0].counts == (0, 1)


@pytest.mark.parametrize(("price", "counts"), [(1.9, (2, 0)), (1.7, (0, 1))])
def test_what_is_there_stays_unless_another_mix_is_much_cheaper(price: float, counts: tuple[int, int]) -> None:
    kinds = ((1.0, 1.0, 2, 9, 0.0), (2.0, price, 0, 9, 0.0))
    assert chosen(kinds, 2.0, 2.0)[0].counts == counts
    assert chosen(kinds, 2.0, 2.1)[0] == cheapest(kinds, 2.1)[0]
