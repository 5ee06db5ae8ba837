"""Latency, throughput, waiting for a batch, and Amdahl's law."""

import math

import pytest

from tidegate.autoscaler.policies.themis.model import (
    StageProfile,
    ceil,
    full_queue_ms,
    queue_ms,
    speedup,
    speedups,
)
from tidegate.errors import InvalidInputError
from tidegate.manifest.policy_parameters import QueueModel

DETECTOR = StageProfile(gamma=148.817, epsilon=5.433, delta=37.494, eta=-15.476)


def test_a_detector_on_one_core_takes_176_ms_and_a_batch_of_8_on_8_cores_carries_18_requests_a_second() -> None:
    assert DETECTOR.latency_ms(1, 1) == pytest.approx(176.268)
    assert DETECTOR.throughput_rps(8, 8) == pytest.approx(18.434, abs=1e-3)


def test_a_fit_that_is_not_positive_counts_as_1_ms_and_is_named_doubtful() -> None:
    below = StageProfile(gamma=10.0, epsilon=0.0, delta=5.0, eta=-20.0)
    zero = StageProfile(gamma=0.0, epsilon=0.0, delta=0.0, eta=0.0)
    assert below.latency_ms(1, 4) == zero.latency_ms(1, 1) == 1.0
    assert below.is_doubtful(1, 4)
    assert not DETECTOR.is_doubtful(8, 8)


def test_a_batch_of_one_never_waits_and_a_larger_one_for_ever_without_arrivals() -> None:
    assert queue_ms(1, 0.0) == queue_ms(1, 20.0) == 0.0
    assert queue_ms(2, 0.0) == full_queue_ms(2, 1, 50.0, 0.0) == math.inf
    assert full_queue_ms(1, 1, 50.0, 0.0) == 0.0


def test_the_99th_percentile_of_gaps_is_4_6_means() -> None:
    assert queue_ms(4, 20.0, QueueModel.P99) == pytest.approx(3 * math.log(100) * 1000 / 20)


def test_cores_side_by_side_never_do_less_than_cores_in_one_instance_or_split_unevenly() -> None:
    """``(n+1) L(n) >= n L(n+1)`` and ``2 L(n) >= 1 + L(2n-1)`` (section 5.1)."""
    for n in range(1, 33):
        for p in (0.0, 0.1, 0.5, 0.9, 0.99, 1.0):
            assert (n + 1) * speedup(p, n) >= n * speedup(p, n + 1) - 1e-12
            found = speedups(p, n)
            assert found.even_split >= found.uneven_split - 1e-12
            assert found.one_core_instances >= found.one_instance - 1e-12


def test_impossible_shares_and_cores_are_named_at_once() -> None:
    with pytest.raises(InvalidInputError) as error:
        speedups(1.5, 0)
    assert "0 to 1" in str(error.value) and "from 1" in str(error.value)


def test_the_fit_by_hand() -> None:
    assert DETECTOR.fitted_ms(3, 5) == pytest.approx(148.817 * 3 / 5 + 5.433 / 5 + 37.494 * 3 - 15.476)
    assert DETECTOR.latency_ms(3, 5) == DETECTOR.fitted_ms(3, 5)
    assert DETECTOR.throughput_rps(3, 5) == pytest.approx(3000.0 / DETECTOR.fitted_ms(3, 5))
    assert StageProfile(gamma=0.0, epsilon=0.0, delta=0.0, eta=0.25).latency_ms(1, 1) == 0.25


@pytest.mark.parametrize(
    ("b_max", "c_max", "is_doubtful"),
    [(1, 3, False), (1, 4, True), (2, 2, False), (2, 3, True), (3, 1, False), (4, 1, True)],
)
def test_a_fit_is_doubtful_where_it_reaches_zero(b_max: int, c_max: int, is_doubtful: bool) -> None:
    profile = StageProfile(gamma=-1.5, epsilon=7.0, delta=0.0, eta=-1.375)
    assert profile.fitted_ms(1, 4) == 0.0
    assert profile.is_doubtful(b_max, c_max) is is_doubtful


def test_a_batch_waits_for_its_last_request_or_for_a_busy_instance() -> None:
    assert (queue_ms(2, 20.0), queue_ms(3, 20.0), queue_ms(3, 0.5)) == (50.0, 100.0, 4000.0)
    assert full_queue_ms(3, 2, 500.0, 20.0) == pytest.approx(500.0 - 1000.0 * 7 / 20)
    assert full_queue_ms(3, 2, 400.0, 20.0) == 100.0
    assert full_queue_ms(1, 1, 300.0, 20.0) == pytest.approx(200.0)


@pytest.mark.parametrize(("value", "up"), [(2.0, 2), (2.0 + 5e-10, 2), (2.0 + 1e-8, 3), (1.1, 2)])
def test_noise_adds_nothing(value: float, up: int) -> None:
    assert ceil(value) == up


def test_what_four_cores_bring_to_half_parallel_work() -> None:
    found = speedups(0.5, 4)
    assert found.one_instance == pytest.approx(1.6)
    assert found.one_core_instances == 4.0
    assert found.even_split == pytest.approx(3.2)
    assert found.uneven_split == pytest.approx(1.0 + 1.0 / (0.5 + 0.5 / 7))
    for p in (0.0, 1.0):
        assert speedups(p, 1).one_instance == 1.0
    for p, r in ((-0.01, 1), (1.01, 1), (0.5, 0)):
        with pytest.raises(InvalidInputError):
            speedups(p, r)
