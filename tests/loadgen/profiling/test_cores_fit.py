"""The part of a model's work that cores divide among them."""

import pytest

from tidegate.loadgen.profiling.cores_fit import on_one_core, parallel_part


@pytest.mark.parametrize("part", [0.0, 0.3, 0.8, 1.0])
def test_the_part_of_exact_times_is_found(part: float) -> None:
    times = {(batch, cores): 0.01 * batch * ((1 - part) + part / cores) for batch in (1, 4) for cores in (1, 2, 4)}
    assert parallel_part(times) == pytest.approx(part, abs=1e-9)
    assert on_one_core(times[4, 4], 4, part) == pytest.approx(0.04)


def test_one_number_of_cores_says_nothing() -> None:
    assert parallel_part({(1, 2): 0.01, (2, 2): 0.02}) == 0.0
    assert parallel_part({(1, 0): 0.01, (2, 0): 0.02}) == 0.0
    assert parallel_part({}) == 0.0
    assert on_one_core(0.01, 0, 0.5) == 0.01


def test_a_model_that_more_cores_slow_down_divides_nothing() -> None:
    assert parallel_part({(1, 1): 0.01, (1, 2): 0.02}) == 0.0


def test_longer_batches_count_more() -> None:
    times = {(1, 1): 0.001, (1, 2): 0.0005, (8, 1): 1.0, (8, 2): 1.0}
    assert parallel_part(times) == pytest.approx(0.001 / 1.001)
