"""Series of functions and groups: what is kept how long, what is not known, and how much memory it takes."""

import sys

import pytest

from tidegate.autoscaler.measure.history import (
    APP,
    COARSE,
    FINE,
    METRICS,
    RING_BYTES,
    STEP,
    UNITS,
    History,
    Ring,
    SeriesLine,
)
from tidegate.autoscaler.policies.hpa import OF_DEVICES

T0 = 1_700_000_010.0  # a multiple of 30


def only(history: History, now: float, **asked: object) -> SeriesLine:
    terms = {"since_s": 10.0, "step_s": 1.0, "metric": "rps", "group": None} | asked
    (line,) = history.query("f", now, **terms).lines  # type: ignore[arg-type]
    return line


def values(line: SeriesLine) -> list[float | None]:
    return [value for _, value in line.points]


def fed(seconds: int, every: int = 1) -> tuple[History, float]:
    """``rps`` counts the seconds up from 1."""
    history = History()
    for second in range(0, seconds, every):
        history.record(T0 + second, "f", None, {"rps": second + 1.0})
    return history, T0 + seconds - 1


def test_every_second_of_the_last_ones() -> None:
    history, now = fed(20)
    line = only(history, now + 0.9, since_s=5)
    assert line == SeriesLine("rps", None, "requests/s", tuple((int(T0) + n, n + 1.0) for n in range(15, 20)))


def test_steps_are_means_on_round_times() -> None:
    history, now = fed(29)
    line = only(history, now, since_s=20, step_s=10)
    assert line.points == ((int(T0) + 10, 15.5), (int(T0) + 20, 25.0))


def test_beyond_five_minutes_steps_are_thirty_seconds() -> None:
    history, now = fed(900)
    answer = history.query("f", now, since_s=900, step_s=5, metric=None, group=None)
    assert answer.step_s == STEP
    assert list(answer.lines[0].points[:2]) == [(int(T0), 15.5), (int(T0) + 30, 45.5)]
    assert len(answer.lines[0].points) == 30
    assert history.query("f", now, since_s=900, step_s=61, metric=None, group=None).step_s == 90


def test_four_hours_are_kept_and_not_more() -> None:
    history, now = fed(STEP * COARSE + 600)
    line = only(history, now, since_s=1e9)
    assert len(line.points) == COARSE
    assert line.points[0][0] == int(T0) + 600
    assert values(line)[0] == pytest.approx(615.5)
    assert len(only(history, now, since_s=FINE).points) == FINE


def test_what_was_not_recorded_is_not_known() -> None:
    history, now = fed(20, every=4)
    assert values(only(history, now, since_s=8)) == [13.0, None, None, None, 17.0, None, None, None]
    history.record(now + 1, "f", None, {"rps": None, "ready": 1.0})
    history.record(now + 2, "f", None, {"rps": float("nan"), "ready": 1.0})
    history.record(now + 3, "f", None, {"rps": 0.0, "ready": 1.0})
    assert values(only(history, now + 3, since_s=3)) == [None, None, 0.0]
    assert values(only(history, now + 3, since_s=2, metric="ready")) == [1.0, 1.0]


@pytest.mark.parametrize("gap", [FINE - 1, FINE, FINE + 1, STEP * COARSE, STEP * COARSE + STEP, 10**6])
def test_after_an_outage_nothing_of_before_shows_as_new(gap: int) -> None:
    history, now = fed(40)
    history.record(now + gap, "f", None, {"rps": 7.0})
    fine = only(history, now + gap, since_s=FINE)
    assert [point for point in fine.points if point[1] == 7.0] == [(int(now) + gap, 7.0)]
    assert all(value is None for at, value in fine.points if now < at < now + gap)
    coarse = only(history, now + gap, since_s=STEP * COARSE)
    assert all(value is None for at, value in coarse.points if now < at <= now + gap - STEP)
    assert coarse.points[-1][1] is not None


def test_of_one_second_the_last_record_counts_and_the_past_does_not_change() -> None:
    history, now = fed(5)
    history.record(now, "f", None, {"rps": 50.0})
    history.record(now - 3, "f", None, {"rps": 99.0})
    assert values(only(history, now, since_s=5)) == [1.0, 2.0, 3.0, 4.0, 50.0]


def test_groups_and_metrics_are_asked_for_by_name() -> None:
    history, now = fed(3)
    history.record(now, "f", "t4", {"mu_ips": 65.25, "ready": 2.0, "queue-s": 0.5, "gpu-memory": 50.0})
    history.record(now, "f", "v100", {"mu_ips": 117.0})
    found = history.query("f", now, since_s=1, metric=None, group=None).lines
    assert [(line.group, line.metric, line.unit) for line in found] == [
        (None, "rps", "requests/s"),
        ("t4", "gpu-memory", "%"),
        ("t4", "mu_ips", "inferences/s"),
        ("t4", "queue-s", "s"),
        ("t4", "ready", "replicas"),
        ("v100", "mu_ips", "inferences/s"),
    ]
    assert [line.group for line in history.query("f", now, since_s=1, metric="mu_ips", group="v100").lines] == ["v100"]
    assert history.query("unknown", now, since_s=1, metric=None, group=None).lines == ()


def test_what_never_happened_costs_nothing() -> None:
    history = History()
    for second in range(100):
        history.record(T0 + second, "idle", None, {"rps": 0.0, "latency_s": None})
    assert history.size_bytes == 0


def test_memory_is_bounded_and_given_back() -> None:
    history = History(max_rings=3)
    history.record(T0, "f", None, {"rps": 1.0, "ready": 1.0})
    history.record(T0, "g", None, {"rps": 1.0, "ready": 1.0})
    assert (history.size_bytes, history.refused) == (3 * RING_BYTES, 1)
    history.forget("f")
    history.forget("f")
    history.record(T0 + 1, "g", None, {"rps": 1.0, "ready": 1.0})
    assert (history.size_bytes, list(history.functions)) == (2 * RING_BYTES, ["g"])


def test_a_function_that_slept_for_four_hours_gives_its_memory_back() -> None:
    history, now = fed(10)
    for second in range(0, STEP * COARSE + 2 * STEP, STEP):
        history.record(now + second, "f", None, {"rps": 0.0})
    assert history.size_bytes == 0


def test_what_a_series_costs() -> None:
    ring = Ring()
    cost = sum(map(sys.getsizeof, (ring, ring.fine, ring.coarse)))
    assert cost <= RING_BYTES + 300 == 3420


def test_every_metric_has_a_unit() -> None:
    assert set(METRICS) == UNITS.keys() | set(APP)


def test_what_devices_tell_can_be_asked_for_by_name() -> None:
    assert set(OF_DEVICES) <= set(METRICS)


def test_a_group_is_kept_from_its_first_value_that_is_not_zero_and_zeros_after_it_count() -> None:
    history = History()
    history.record(T0, "f", "t4", {"rps": 0.0})
    assert not history.groups("f")
    history.record(T0 + 1.0, "f", "t4", {"rps": 2.0})
    history.record(T0 + 2.0, "f", "t4", {"rps": 0.0})
    assert list(history.groups("f")) == ["t4"]
    assert values(only(history, T0 + 2.0, since_s=3.0)) == [None, 2.0, 0.0]
