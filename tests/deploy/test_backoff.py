"""A timeline of one revision that breaks and heals."""

import random

import pytest

from tidegate.deploy.backoff import FIRST_WAIT_S, FORGOTTEN_S, JITTER, MAX_WAIT_S, BackOff, wait_s

R = "resnet-00001"


class Midway(random.Random):
    """No jitter."""

    def uniform(self, a: float, b: float) -> float:
        return (a + b) / 2


def test_waits_double_up_to_half_a_minute() -> None:
    waits = [wait_s(number, Midway()) for number in range(1, 12)]
    assert waits[:4] == pytest.approx([0.2, 0.4, 0.8, 1.6])
    assert waits[-1] == MAX_WAIT_S
    assert wait_s(5000, Midway()) == MAX_WAIT_S


def test_waits_vary_by_a_fifth() -> None:
    rng = random.Random(1)
    waits = [wait_s(1, rng) for _ in range(200)]
    assert min(waits) >= FIRST_WAIT_S * (1 - JITTER)
    assert max(waits) <= FIRST_WAIT_S * (1 + JITTER)
    assert max(waits) - min(waits) > 0.05


def test_failures_within_a_running_wait_are_one_failure() -> None:
    """Three replicas killed by one lack of memory."""
    back_off = BackOff(Midway())
    assert back_off.failed(R, "oom", 100.0, 50.0).not_before == pytest.approx(100.2)
    again = back_off.failed(R, "oom, too", 100.1, 50.0)
    assert (again.failures, again.reason) == (1, "oom, too")
    assert again.not_before == pytest.approx(100.2)
    assert back_off.failed(R, "oom", 100.3, None).failures == 2


def test_a_healthy_minute_forgives() -> None:
    back_off = BackOff(Midway())
    for at in (0.0, 1.0, 2.0):
        back_off.failed(R, "no weights", at, None)
    back_off.healthy(R, 10.0, 69.0)
    assert back_off.failure(R) is not None, "59 s are no minute"
    back_off.healthy(R, 10.0, 70.0)
    assert back_off.failure(R) is None


def test_a_replica_that_is_healthy_beside_one_that_breaks_does_not_forgive_at_once() -> None:
    back_off = BackOff(Midway())
    back_off.failed(R, "crash", 1000.0, None)
    back_off.healthy(R, 0.0, 1010.0)
    assert back_off.failure(R) is not None
    back_off.healthy(R, 0.0, 1060.0)
    assert back_off.failure(R) is None


def test_one_that_breaks_after_a_healthy_minute_starts_anew() -> None:
    back_off = BackOff(Midway())
    counts = [back_off.failed(R, "no weights", at, None).failures for at in (0.0, 1.0, 3.0, 7.0)]
    assert counts == [1, 2, 3, 4]
    crash = back_off.failed(R, "crash", 100.0, 39.0)
    assert (crash.failures, crash.was_ready) == (1, True)


def test_one_that_breaks_long_after_the_last_wait_starts_anew() -> None:
    back_off = BackOff(Midway())
    assert [back_off.failed(R, "crash", 3600.0 * hour, 3600.0 * hour - 15.0).failures for hour in range(9)] == [1] * 9
    again = back_off.failed(R, "crash", 3600.0 * 8 + 1.0, None)
    assert back_off.failed(R, "crash", again.not_before + FORGOTTEN_S - 1.0, None).failures == 3


def test_revisions_do_not_share_their_fate() -> None:
    back_off = BackOff(Midway())
    back_off.failed(R, "x", 0.0, None)
    assert back_off.failure("resnet-00002") is None


def test_a_first_start_that_was_killed_costs_no_wait_the_second_does() -> None:
    back_off = BackOff(Midway())
    first = back_off.failed(R, "killed", 100.0, None, was_killed=True)
    assert (first.not_before, first.is_excused) == (100.0, True)
    beside = back_off.failed(R, "killed, too", 100.1, None, was_killed=True)
    assert (beside.failures, beside.is_excused) == (1, True), "both were started together"
    second = back_off.failed(R, "killed", 100.25, None, was_killed=True)
    assert (second.failures, second.is_excused) == (2, False)
    assert second.not_before == pytest.approx(100.65)


def test_only_a_start_is_excused_and_only_for_a_signal() -> None:
    assert not BackOff(Midway()).failed(R, "exited with status 1", 100.0, None).is_excused
    assert not BackOff(Midway()).failed(R, "killed while it served", 100.0, 90.0, was_killed=True).is_excused
