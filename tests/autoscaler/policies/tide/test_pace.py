"""The time per output token: how many streams a replica may run at a time."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.autoscaler.measure.observation import GroupTokenRate, TokenRates
from tidegate.autoscaler.policies.tide.pace import ROOM, Paced, most_streams, per_token_s

KNOWN = ((4.0, 0.020), (8.0, 0.035))


@pytest.mark.parametrize(("target_s", "streams"), [(0.050, 80 / 7), (0.035, 8.0), (0.025, 16 / 3), (0.010, 2.0)])
def test_the_worked_example(target_s: float, streams: float) -> None:
    assert most_streams(KNOWN, target_s) == pytest.approx(streams)


@pytest.mark.parametrize(("streams", "seconds"), [(1.0, 0.020), (4.0, 0.020), (6.0, 0.0275), (16.0, 0.070)])
def test_a_token_takes_the_longer_the_more_streams_there_are(streams: float, seconds: float) -> None:
    assert per_token_s(KNOWN, streams) == pytest.approx(seconds)


@given(
    st.lists(st.tuples(st.floats(1.0, 200.0), st.floats(1e-4, 1.0)), min_size=1, max_size=8, unique_by=lambda e: e[0]),
    st.floats(1e-3, 1.0),
)
def test_more_time_never_means_fewer_streams(points: list[tuple[float, float]], target_s: float) -> None:
    pace = tuple(zip(sorted(e[0] for e in points), sorted(e[1] for e in points), strict=True))
    assert 0.0 < most_streams(pace, target_s) <= most_streams(pace, 2.0 * target_s) + 1e-9


def test_without_a_target_or_a_stream_nothing_is_known() -> None:
    rate = GroupTokenRate(tps=1.0, mu_tps=None, first_s=0.1, pace=KNOWN, between=50.0)
    silent = GroupTokenRate(tps=1.0, mu_tps=None)
    tokens = TokenRates(
        lambda_tps=1.0, prompt_tps=1.0, completion_tps=1.0, per_inference=None, groups={"gpu": rate, "cpu": silent}
    )
    assert Paced(tokens, None).most("gpu") is None
    assert Paced(None, 0.05).most("gpu") is None
    paced = Paced(tokens, 0.035 / ROOM)
    assert paced.most("cpu") is None
    assert paced.most("gpu") == pytest.approx(8.0)
    assert paced.seconds("gpu", 8.0) == pytest.approx((0.1 + 50 * 0.035) / 8)


def test_between_and_beyond_the_points_lines_join_them() -> None:
    pace = ((2.0, 0.010), (4.0, 0.020), (8.0, 0.028))
    assert [most_streams(pace, each) for each in (0.005, 0.010, 0.015, 0.020, 0.024, 0.028, 0.056)] == pytest.approx(
        [1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 16.0]
    )
    assert [per_token_s(pace, each) for each in (0.5, 2.0, 3.0, 4.0, 6.0, 8.0, 16.0)] == pytest.approx(
        [0.010, 0.010, 0.015, 0.020, 0.024, 0.028, 0.056]
    )


def test_a_mean_may_take_nine_tenths_of_the_target() -> None:
    rate = GroupTokenRate(tps=1.0, mu_tps=None, pace=((1.0, 0.009), (9.0, 0.081)), between=50.0)
    tokens = TokenRates(lambda_tps=1.0, prompt_tps=1.0, completion_tps=1.0, per_inference=None, groups={"gpu": rate})
    paced = Paced(tokens, 0.05)
    assert paced.most("gpu") == pytest.approx(5.0)
    assert paced.is_known
    assert not Paced(tokens, None).is_known
    assert not Paced(None, 0.05).is_known
    assert paced.seconds("gpu", 1.0) == pytest.approx(50.0 * 0.009), "the time to the first output is not known: none"
