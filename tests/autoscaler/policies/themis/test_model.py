"""Latency, throughput, waiting for a batch, and Amdahl's law."""

import math

import pytest

from tidegate.autoscaler.policies.themis.model import (
    StageProfile,
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
