"""The silences of a function that is seldom used."""

import random

import pytest

from tests.autoscaler.policies.tide.test_level import arrivals
from tidegate.autoscaler.policies.tide.silence import HALF_LIFE_S, HEAVIEST, Silence

HORIZON_S = 31.0


def bursts(silence: Silence, count: int, every_s: int = 600, size: float = 20.0) -> Silence:
    """Adds bursts of one second, each at the end of a silence."""
    for _ in range(count):
        quiet(silence, every_s - 1)
        silence.update(size, HORIZON_S)
    return silence


def quiet(silence: Silence, seconds: int) -> Silence:
    for _ in range(seconds):
        silence.update(0.0, HORIZON_S)
    return silence


def test_without_a_request_none_is_expected() -> None:
    assert Silence().rate == 0.0
    assert quiet(Silence(), 1000).rate == 0.0


def test_requests_by_chance_are_expected_at_their_rate_however_long_none_has_come() -> None:
    silence, rng = Silence(), random.Random(1)
    for _ in range(200_000):
        silence.update(float(arrivals(rng, 1 / 100)), HORIZON_S)
    silence.update(1.0, HORIZON_S)
    for seconds in (0, 20, 60, 120):
        quiet(silence, seconds - silence.seconds)
        assert silence.rate == pytest.approx(1 / 100, rel=0.4)


def test_after_a_burst_none_is_expected_until_the_next_one_is_due() -> None:
    silence = bursts(Silence(), 20)
    soon = quiet(silence, 100).rate
    due = quiet(silence, 470).rate
    assert soon < 1 / 500
    assert due > 20 / 200


def test_after_a_silence_that_was_never_seen_one_request_is_expected_in_as_long_a_time() -> None:
    silence = quiet(bursts(Silence(), 3, every_s=60), 7200)
    row_s = 7200 - 6634  # Seconds that were spent in the present row.
    assert silence.rate == pytest.approx(1 / (7200 + row_s), rel=0.1)


def test_a_request_counts_for_the_silence_one_horizon_before_it() -> None:
    silence = quiet(Silence(), 100)
    silence.update(5.0, HORIZON_S)
    (row,) = [row for row, (_, came) in silence._rows.items() if came]
    assert row == quiet(Silence(), 100 - 30).row


def test_another_horizon_keeps_what_was_learnt() -> None:
    silence = bursts(Silence(), 5)
    before = dict(silence._rows)
    silence.update(0.0, 6.0)
    assert len(silence._past) == 6
    assert before.keys() <= silence._rows.keys()


def test_a_sample_weighs_half_after_its_half_life() -> None:
    silence = Silence()
    for _ in range(100):
        silence.update(1.0, 1.0)
    before = silence._weight
    silence._weight *= 2.0 ** (1000 / HALF_LIFE_S)
    for _ in range(1000):
        silence.update(0.0, 1.0)
    assert silence._weight / before == pytest.approx(2.0 ** (2000 / (3 * 86_400.0)))


def test_weights_are_scaled_back_before_they_grow_too_large() -> None:
    silence = bursts(Silence(), 20)
    before = silence.rate
    silence._weight, factor = HEAVIEST, HEAVIEST / silence._weight
    silence._rows = {row: (seconds * factor, came * factor) for row, (seconds, came) in silence._rows.items()}
    silence._seconds, silence._arrivals = silence._seconds * factor, silence._arrivals * factor
    assert silence.rate == pytest.approx(before)
    silence.update(0.0, HORIZON_S)
    assert silence._weight == 1.0
    assert silence._rows[0][0] < HEAVIEST


def test_seconds_that_were_not_seen_lengthen_the_silence_and_teach_nothing() -> None:
    silence = quiet(bursts(Silence(), 3), 10)
    before = silence._seconds
    silence.skip(1000)
    assert silence.seconds == 1010
    quiet(silence, 31)
    assert silence._seconds == before
