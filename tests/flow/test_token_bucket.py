"""TokenBucket: never more than the burst and what has flowed in."""

import math
import random

import pytest

from tidegate.flow.token_bucket import TokenBucket


def test_a_burst_then_the_rate() -> None:
    bucket = TokenBucket(rate=2, burst=10, now=0)
    assert bucket.take(10, 0)
    assert not bucket.take(1, 0.4)
    assert bucket.wait_s(1, 0.4) == pytest.approx(0.1)
    assert bucket.take(1, 0.5)
    assert not bucket.take(11, 1000), "never above the burst"
    assert bucket.take(10, 1000)


def test_a_tenth_ten_times_is_one() -> None:
    bucket = TokenBucket(rate=0.1, burst=1, now=0)
    assert bucket.take(1, 0)
    assert all(not bucket.take(1, tenth / 10) for tenth in range(1, 100))
    assert bucket.take(1, 10)


def test_what_it_really_took() -> None:
    bucket = TokenBucket(rate=1, burst=10, now=0)
    assert bucket.take(4, 0)
    bucket.settle(6, 0)
    assert bucket.wait_s(1, 0) == 1
    bucket.settle(-100, 0)
    assert bucket.wait_s(10, 0) == 0
    assert not bucket.take(11, 0)


def test_never() -> None:
    assert TokenBucket(1, 10, 0).wait_s(11, 0) == math.inf
    empty = TokenBucket(0, 1, 0)
    assert empty.take(1, 0)
    assert empty.wait_s(1, 9) == math.inf
    for rate, burst in ((-1, 1), (1, 0), (math.nan, 1), (math.inf, 1)):
        with pytest.raises(ValueError, match="a rate of at least 0"):
            TokenBucket(rate, burst, 0)


def test_time_that_runs_backwards_gives_nothing() -> None:
    bucket = TokenBucket(1, 10, 100)
    assert bucket.take(10, 100)
    assert not bucket.take(1, 50)
    assert not bucket.take(1, 100.9)
    assert bucket.take(1, 101)


def test_the_promise_under_any_load() -> None:
    chance = random.Random(5)
    bucket, now, taken = TokenBucket(3, 7, 0), 0.0, 0.0
    for _ in range(2000):
        now += chance.expovariate(10)
        amount = chance.choice((0.5, 1, 2))
        if bucket.take(amount, now):
            taken += amount
        assert taken <= 7 + 3 * now + 1e-6
    assert taken >= 3 * now - 7
