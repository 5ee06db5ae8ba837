"""The last minute of a function, from cumulative counters of several workers."""

import random
from collections.abc import Iterator
from dataclasses import replace

import pytest

from tidegate.control.watch.traffic import KEPT_GONE, TrafficMeter
from tidegate.histogram import Histogram, fine_buckets
from tidegate.records.gateway_sample import GatewaySample, RevisionDemand, ShadowSeen


def demand(
    arrivals: int,
    *,
    latencies: tuple[float, ...] = (),
    waiting: int = 0,
    oldest: float = 0.0,
    under_way: int = 0,
    recent: tuple[float, ...] = (),
) -> RevisionDemand:
    histogram = Histogram()
    for seconds in latencies:
        histogram.record(seconds)
    return RevisionDemand(
        function="echo",
        revision="echo-00001",
        arrivals=arrivals,
        arrivals_inferences=arrivals * 2,
        refused=0,
        expired=0,
        cancelled=0,
        answered=arrivals - under_way,
        failed=0,
        within_sla=arrivals - under_way,
        waiting=waiting,
        waiting_inferences=waiting,
        oldest_waiting_s=oldest,
        waiting_request_s=0.0,
        waiting_inference_s=0.0,
        latency=histogram.sparse(),
        recent=fine_buckets(recent),
    )


def sample(
    sequence: int, *demands: RevisionDemand, worker: str = "g0", life: str = "a", uptime_s: float = 1.0
) -> GatewaySample:
    return GatewaySample(
        worker=worker,
        incarnation=life,
        sequence=sequence,
        uptime_s=uptime_s,
        table_epoch=1,
        table_number=1,
        connections=0,
        demands=demands,
    )


def test_differences_add_up_over_workers_and_leave_after_a_minute() -> None:
    meter = TrafficMeter()
    meter.record(sample(1, demand(10)), 0.0)
    meter.record(sample(2, demand(30)), 1.0)
    meter.record(sample(1, demand(5), worker="g1"), 1.0)
    view = meter.view("echo", 98.0, 2.0)
    assert (view.requests, view.inferences, view.requests_per_s) == (35, 70, 7.0)
    assert meter.view("echo", 98.0, 60.5).requests == 25, "the first pull is more than a minute old"
    assert meter.view("echo", 98.0, 61.0).requests == 0
    assert meter.total("echo").requests == 35


def test_percentiles_are_less_than_one_percent_off() -> None:
    """The coarse buckets are as wide as an eighth: 0.0655 and 0.0736 are in one."""
    meter, rng = TrafficMeter(), random.Random(7)
    every = [0.0655 + 0.008 * rng.random() ** 4 for _ in range(40)] + [0.3]
    for count in range(1, len(every) + 1):
        seen = tuple(every[:count])
        meter.record(sample(count, demand(count, latencies=seen, recent=seen[-1:])), count / 2)
    view, ordered = meter.view("echo", 98.0, 21.0), sorted(every)
    for shown, exact in ((view.p50_s, ordered[20]), (view.p95_s, ordered[38]), (view.tail_s, ordered[40])):
        assert shown == pytest.approx(exact, rel=0.01)
    assert meter.latencies("echo", (0.5, 0.98), 21.0) == [view.p50_s, view.tail_s]
    assert (view.ended_in_all, meter.view("echo", 98.0, 100.0).ended_in_all) == (41, 41)
    assert meter.latencies("echo", (0.5,), 100.0) == [None]


def test_latencies_of_a_lost_sample_are_taken_from_the_coarse_buckets() -> None:
    meter = TrafficMeter()
    meter.record(sample(1, demand(1, latencies=(0.1,), recent=(0.1,))), 0.0)
    every = (0.1, *[0.04] * 5, 0.2)
    meter.record(sample(3, demand(7, latencies=every, recent=(0.2,))), 2.0)
    assert meter.view("echo", 98.0, 3.0).p50_s == pytest.approx(0.04, rel=0.07)


def test_a_repeated_sample_counts_once_and_a_new_life_from_zero() -> None:
    meter = TrafficMeter()
    meter.record(sample(1, demand(10)), 0.0)
    meter.record(sample(1, demand(10)), 1.0)
    meter.record(sample(1, demand(4), life="b"), 2.0)
    assert meter.view("echo", 98.0, 2.0).requests == 14


def test_history_of_an_adopted_worker_counts_in_no_minute() -> None:
    meter = TrafficMeter()
    meter.record(sample(40, demand(1000), uptime_s=500.0), 0.0)
    meter.record(sample(41, demand(1003), uptime_s=501.0), 1.0)
    assert meter.view("echo", 98.0, 1.0).requests == 3


def test_latency_is_of_the_window_and_waiting_is_the_level_now() -> None:
    meter = TrafficMeter()
    meter.record(sample(1, demand(1, latencies=(5.0,))), 0.0)
    meter.record(sample(2, demand(3, latencies=(5.0, 0.010, 0.020), waiting=2, oldest=0.5)), 50.0)
    meter.record(sample(1, demand(0, waiting=1, oldest=0.9), worker="g1"), 50.0)
    view = meter.view("echo", 98.0, 65.0)
    assert view.tail_s is not None
    assert 0.019 <= view.tail_s < 0.022, "the middle of its coarse bucket: what the worker sent has no fine ones"
    assert (view.waiting, view.oldest_waiting_s, meter.waiting("echo-00001")) == (3, 0.9, 3)
    meter.forget_worker("g0")
    assert meter.waiting("echo-00001") == 1


def test_an_unknown_function_has_seen_nothing() -> None:
    view = TrafficMeter().view("none", 98.0, 0.0)
    assert (view.requests, view.p50_s, view.tail_s) == (0, None, None)


def test_the_last_answer_of_a_worker_may_come_after_its_end_and_counts_once() -> None:
    meter = TrafficMeter()
    meter.record(sample(1, demand(10, waiting=3)), 0.0)
    meter.forget_worker("g0")
    meter.record(sample(2, demand(12, waiting=3)), 0.1)
    meter.record(sample(1, demand(5), worker="g0.2", life="b"), 0.2)
    assert meter.total("echo").requests == 17
    assert meter.waiting("echo-00001") == 0, "what waited in it waits no more"
    meter.record(sample(1, demand(1), life="c"), 1.0)
    assert meter.total("echo").requests == 18, "one of the same name in a new life"


def test_workers_that_are_gone_are_not_kept_for_ever() -> None:
    meter = TrafficMeter()
    for life in range(1000):
        meter.record(sample(1, demand(1), worker=f"g0.{life}", life=str(life)), float(life))
        meter.forget_worker(f"g0.{life}")
    assert repr(meter) == "<TrafficMeter 0 workers, 1 functions>"
    assert len(meter._gone) == KEPT_GONE


def test_what_a_worker_had_under_way_at_its_end_is_not_under_way_for_ever() -> None:
    meter = TrafficMeter()
    meter.record(sample(1, demand(10, under_way=4)), 0.0)
    meter.forget_worker("g0")
    counts = meter.of("echo-00001")
    assert (counts.requests, counts.ended, counts.cancelled) == (10, 10, 4)
    meter.record(sample(2, demand(12, under_way=1)), 0.1)
    counts = meter.of("echo-00001")
    assert (counts.requests, counts.ended, counts.cancelled) == (12, 12, 1), "it reported more before its end"


def test_what_an_adopted_worker_has_under_way_hides_nothing_that_hangs() -> None:
    meter = TrafficMeter()

    def under_way() -> int:
        counts = meter.of("echo-00001")
        return counts.requests - counts.ended - meter.streaming("echo-00001")

    meter.record(sample(40, replace(demand(1000, under_way=50), streaming=50), uptime_s=500.0), 0.0)
    assert under_way() == 0, "fifty streams go on"
    meter.record(sample(41, replace(demand(1030, under_way=80), streaming=50), uptime_s=501.0), 1.0)
    assert under_way() == 30
    meter.record(sample(42, demand(1030, under_way=30), uptime_s=502.0), 2.0)
    assert under_way() == 30, "the streams have ended"
    assert meter.total("echo").requests == 30
    meter.forget_worker("g0")
    assert under_way() == 0


def test_a_forgotten_revision_leaves_nothing_though_a_worker_still_tells_of_it() -> None:
    meter = TrafficMeter()
    shadow = ShadowSeen(requests=3)
    meter.record(sample(1, replace(demand(10), shadow=shadow)), 0.0)
    assert (meter.of("echo-00001").requests, meter.shadow("echo-00001").requests) == (10, 3)
    meter.forget_revision("echo-00001")
    meter.record(sample(2, replace(demand(10), shadow=shadow)), 1.0)
    assert not (meter._revisions or meter._shadows)
    meter.record(sample(3, replace(demand(11), shadow=shadow)), 2.0)
    assert meter.of("echo-00001").requests == 1, "it is back: it begins anew"
    assert meter.view("echo", 98.0, 2.0).requests == 11


def test_what_waits_of_all_revisions_is_what_waits_of_each() -> None:
    meter = TrafficMeter()
    one, other = replace(demand(9), waiting=2), replace(demand(9), function="other", revision="other-00001", waiting=1)
    meter.record(sample(1, one, other), 0.0)
    meter.record(sample(1, replace(one, waiting=3), worker="g1"), 0.0)
    assert meter.all_waiting() == {one.revision: 5, "other-00001": 1}
    assert {name: meter.waiting(name) for name in meter.all_waiting()} == meter.all_waiting()


class Walked(tuple[RevisionDemand, ...]):
    """Counts how often somebody goes through it."""

    times = 0

    def __iter__(self) -> Iterator[RevisionDemand]:
        self.times += 1
        return super().__iter__()


def test_a_sample_is_not_gone_through_for_each_function() -> None:
    names = [f"f{index}" for index in range(20)]
    demands = Walked(
        replace(demand(9), function=name, revision=f"{name}-00001", waiting=index, streaming=index)
        for index, name in enumerate(names)
    )
    meter = TrafficMeter()
    meter.record(sample(1, *demands), 0.0)
    meter.record(replace(sample(1, worker="g1"), demands=demands), 0.0)
    demands.times = 0
    for index, name in enumerate(names):
        revision = f"{name}-00001"
        waiting = (meter.waiting(revision), meter.streaming(revision), meter.view(name, 98.0, 0.0).waiting)
        assert waiting == (2 * index, 2 * index, 2 * index)
    assert demands.times == 1
    meter.forget_worker("g1")
    assert (meter.waiting("f3-00001"), meter.view("f3", 98.0, 0.0).waiting) == (3, 3)
    meter.record(sample(2, replace(demand(9), waiting=7)), 1.0)
    assert (meter.waiting("f3-00001"), meter.waiting("echo-00001")) == (0, 7)
