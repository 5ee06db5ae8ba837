"""The exact program that the mix is compared with."""

import random

import pytest

from benchmarks.micro.mix_bench import drawn, exact
from tests.autoscaler.policies.tide.test_mix import exact as enumerated
from tidegate.autoscaler.policies.tide.mix import MixGroup, cheapest

pytest.importorskip("scipy")


@pytest.mark.parametrize("seed", range(5))
def test_it_is_the_least_of_all_mixes(seed: int) -> None:
    rng = random.Random(seed)
    groups = tuple(MixGroup(rng.uniform(0.5, 5.0), rng.uniform(0.3, 4.0), rng.randrange(4), 6, 60.0) for _ in range(3))
    slots = rng.uniform(1.0, 20.0)
    assert exact(groups, slots) == pytest.approx(enumerated(list(groups), slots))


def test_the_mix_is_within_a_twentieth_of_it() -> None:
    rng = random.Random(1)
    for _ in range(10):
        groups, slots = drawn(10, rng)
        assert cheapest(groups, slots)[0].cost <= 1.05 * exact(groups, slots)
