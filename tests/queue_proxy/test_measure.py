"""Execution as a queue_proxy measures it: integrals, averages per second, samples, scrape."""

import pytest

from queue_proxy.metrics import Identity, Level, Measure
from tidegate import codec
from tidegate.metrics import Exposition
from tidegate.records import ColdStartPhases, ReplicaSample
from tidegate.replica import ReplicaState

WHO = Identity(function="f", revision="f-00001", group="cpu", replica="f-00001-abcde", incarnation="i")
LEVEL = Level(state=ReplicaState.READY, limit=4, queued=2, phases=ColdStartPhases(load_s=1.25))


def begin(measure: Measure, now: float, inferences: int = 1) -> None:
    measure.began(now, inferences, 0.0, None)


def end(measure: Measure, now: float, inferences: int = 1, *, status: int = 200, broke: bool = False) -> None:
    measure.ended(now, inferences, 0.01, status, broke)


def test_the_average_of_a_second_is_the_overlap_with_it() -> None:
    """One request from 0.25 to 2.75, as seconds close: three quarters, one, three quarters, nothing."""
    measure = Measure(WHO, 0.0)
    averages = []
    begin(measure, 0.25)
    for second in (1.0, 2.0):
        measure.second(second)
        averages.append(measure.average_in_flight)
    end(measure, 2.75)
    for second in (3.0, 4.0):
        measure.second(second)
        averages.append(measure.average_in_flight)
    assert averages == [0.75, 1.0, 0.75, 0.0]


def test_a_late_tick_divides_by_the_time_that_really_passed() -> None:
    measure = Measure(WHO, 0.0)
    begin(measure, 0.0)
    measure.second(2.5)
    assert measure.average_in_flight == 1.0
    measure.second(2.5)
    assert measure.average_in_flight == 1.0, "no time passed: the last value stands"


def test_two_at_once_are_two_in_flight_but_one_busy() -> None:
    measure = Measure(WHO, 0.0)
    begin(measure, 1.0, 8)
    begin(measure, 2.0, 2)
    end(measure, 3.0, 8)
    end(measure, 5.0, 2)
    assert (measure.in_flight_request_s, measure.in_flight_inference_s, measure.busy_s) == (5.0, 22.0, 4.0)
    assert (measure.in_flight, measure.in_flight_inferences, measure.inferences) == (0, 0, 10)


def test_endings_by_status() -> None:
    measure = Measure(WHO, 0.0)
    for status, broke in ((200, False), (404, False), (500, False), (200, True), (499, False)):
        begin(measure, 0.0)
        end(measure, 0.0, status=status, broke=broke)
    measure.refused(503)
    assert (measure.requests, measure.failures, measure.cancelled) == (6, 3, 1)
    assert measure.by_class[1:] == [0, 2, 0, 2, 2]


def test_samples_count_up_and_cross_the_border_unchanged() -> None:
    measure = Measure(WHO, 10.0)
    measure.began(10.0, 8, 0.25, 1000)
    first = measure.sample(12.0, LEVEL)
    end(measure, 13.0, 8)
    second = measure.sample(14.0, LEVEL)
    assert (first.sequence, second.sequence) == (1, 2)
    assert (first.in_flight, second.in_flight, second.queued, second.limit) == (1, 0, 2, 4)
    assert second.uptime_s - first.uptime_s == 2.0
    assert second.queue_s == pytest.approx(0.25)
    assert second.batch == ((8, 1),), "eight inferences, recorded as eight steps"
    assert codec.decode(codec.encode(second), ReplicaSample) == second


def test_the_scrape_names_what_features_ask_for() -> None:
    measure = Measure(WHO, 0.0)
    measure.began(0.0, 4, 0.0, 1200)
    end(measure, 1.0, 4)
    measure.second(1.0)
    text = Exposition()
    measure.expose(text, 1.0, LEVEL)
    lines = text.render().decode().splitlines()
    who = 'function="f",revision="f-00001",group="cpu",replica="f-00001-abcde"'
    for expected in (
        f'tidegate_queue_proxy_state{{{who},state="ready"}} 1',
        f'tidegate_queue_proxy_requests_total{{{who},code_class="2xx"}} 1',
        f"tidegate_queue_proxy_in_flight_requests{{{who}}} 0",
        f"tidegate_queue_proxy_average_in_flight_requests{{{who}}} 1.0",
        f"tidegate_queue_proxy_inferences_total{{{who}}} 4",
        f'tidegate_queue_proxy_request_bytes_bucket{{{who},le="1023"}} 0',
        f'tidegate_queue_proxy_request_bytes_bucket{{{who},le="4095"}} 1',
        f"tidegate_queue_proxy_request_bytes_sum{{{who}}} 1200",
        f'tidegate_queue_proxy_batch_inferences_bucket{{{who},le="4"}} 1',
        f'tidegate_queue_proxy_cold_start_seconds{{{who},phase="load"}} 1.25',
    ):
        assert expected in lines
