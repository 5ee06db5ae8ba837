"""Execution as a queue_proxy measures it: integrals, averages per second, samples, scrape."""

import pytest

from tidegate.histogram import bucket_index
from tidegate.metrics import Exposition
from tidegate.queue_proxy.metrics import Identity, ReplicaCounters, ReplicaLevels
from tidegate.records import codec
from tidegate.records.replica_sample import ReplicaSample
from tidegate.records.replica_state import ColdStartPhases, ReplicaState

WHO = Identity(function="f", revision="f-00001", group="cpu", replica="f-00001-abcde", incarnation="i")
LEVEL = ReplicaLevels(state=ReplicaState.READY, limit=4, queued=2, phases=ColdStartPhases(load_s=1.25))


class Timeline:
    """Requests that begin and end at given times, first in first out."""

    def __init__(self, now: float = 0.0) -> None:
        self.measure = ReplicaCounters(WHO, now)
        self._running: list[tuple[float, int]] = []

    def begin(self, now: float, inferences: int = 1) -> None:
        self.measure.began(now, inferences)
        self._running.append((now, inferences))

    def end(
        self, now: float, status: int = 200, *, broke: bool = False, queue_s: float = 0.0, unanswered: bool = False
    ) -> None:
        sent_at, inferences = self._running.pop(0)
        self.measure.ended(now, sent_at, inferences, queue_s, 1200, status, broke, unanswered)


@pytest.mark.parametrize("micros", [1, 32_767, 32_768, 250_000, 2**25 - 1, 2**25, 60_000_000])
def test_an_execution_is_counted_in_its_bucket_however_long_it_took(micros: int) -> None:
    timeline = Timeline()
    timeline.begin(0.0)
    timeline.end((micros + 0.5) / 1e6)
    assert timeline.measure.execution.counts[bucket_index(micros)] == 1


def test_the_average_of_a_second_is_the_overlap_with_it() -> None:
    """One request from 0.25 to 2.75, as seconds close: three quarters, one, three quarters, nothing."""
    timeline = Timeline()
    measure, averages = timeline.measure, []
    timeline.begin(0.25)
    for second in (1.0, 2.0):
        measure.second(second)
        averages.append(measure.average_in_flight)
    timeline.end(2.75)
    for second in (3.0, 4.0):
        measure.second(second)
        averages.append(measure.average_in_flight)
    assert averages == [0.75, 1.0, 0.75, 0.0]


def test_a_late_tick_divides_by_the_time_that_really_passed() -> None:
    timeline = Timeline()
    measure = timeline.measure
    timeline.begin(0.0)
    measure.second(2.5)
    assert measure.average_in_flight == 1.0
    measure.second(2.5)
    assert measure.average_in_flight == 1.0, "no time passed: the last value stands"


def test_two_at_once_are_two_in_flight_but_one_busy() -> None:
    timeline = Timeline(100.0)
    measure = timeline.measure
    timeline.begin(101.0, 8)
    timeline.begin(102.0, 2)
    assert (measure.in_flight_request_s(102.5), measure.in_flight_inference_s(102.5), measure.busy_s(102.5)) == (
        2.0,
        13.0,
        1.5,
    )
    timeline.end(103.0)
    timeline.end(105.0)
    for later in (105.0, 200.0):
        assert (measure.in_flight_request_s(later), measure.in_flight_inference_s(later)) == (5.0, 22.0)
        assert measure.busy_s(later) == 4.0
    assert (measure.in_flight, measure.in_flight_inferences, measure.inferences) == (0, 0, 10)


def test_endings_by_status() -> None:
    timeline = Timeline()
    measure = timeline.measure
    for status, broke in ((200, False), (404, False), (500, False), (200, True), (499, False)):
        timeline.begin(0.0)
        timeline.end(0.0, status, broke=broke)
    measure.refused(503)
    assert (measure.requests, measure.failures, measure.cancelled) == (6, 3, 1)
    assert measure.by_class[1:] == [0, 2, 0, 2, 2]


def test_who_left_before_an_answer_was_not_served() -> None:
    timeline = Timeline()
    measure = timeline.measure
    for status in (200, 499, 504):
        timeline.begin(0.0, 4)
        timeline.end(0.5, status, unanswered=status != 200)
    sample = measure.sample(1.0, LEVEL)
    assert (sample.requests, sample.inferences, sample.execution_s, sample.batch) == (1, 4, 0.5, ((4, 1),))
    assert (sample.cancelled, sample.failures, sample.unanswered) == (1, 1, 2)
    assert (sample.in_flight, sample.in_flight_inferences) == (0, 0)
    assert (sample.in_flight_request_s, sample.busy_s) == (1.5, 1.5)
    assert measure.by_class[1:] == [0, 1, 0, 1, 1], "as clients saw it"


def test_samples_count_up_and_cross_the_border_unchanged() -> None:
    timeline = Timeline(10.0)
    timeline.begin(10.0, 8)
    first = timeline.measure.sample(12.0, LEVEL)
    timeline.end(13.0, queue_s=0.25)
    second = timeline.measure.sample(14.0, LEVEL)
    assert (first.sequence, second.sequence) == (1, 2)
    assert (first.in_flight, second.in_flight, second.queued, second.limit) == (1, 0, 2, 4)
    assert (first.busy_s, second.busy_s, second.execution_s) == (2.0, 3.0, 3.0)
    assert second.uptime_s - first.uptime_s == 2.0
    assert second.queue_s == pytest.approx(0.25)
    assert second.batch == ((8, 1),), "eight inferences, recorded as eight steps"
    assert codec.decode(codec.encode(second), ReplicaSample) == second


def test_rounding_does_not_add_up() -> None:
    timeline = Timeline(1e6)
    now = 1e6
    for _ in range(20000):
        timeline.begin(now + 0.1)
        timeline.begin(now + 0.2)
        timeline.end(now + 0.3)
        timeline.end(now + 0.4)
        now += 0.7
    measure = timeline.measure
    assert measure.in_flight_request_s(now) == pytest.approx(20000 * 0.4, abs=1e-3)
    assert measure.busy_s(now) == pytest.approx(20000 * 0.3, abs=1e-3)
    before = measure.in_flight_request_s(now)
    assert measure.in_flight_request_s(now + 1000.0) == before, "idle adds nothing at all"


def test_the_scrape_names_what_features_ask_for() -> None:
    timeline = Timeline()
    measure = timeline.measure
    timeline.begin(0.0, 4)
    timeline.end(1.0)
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
