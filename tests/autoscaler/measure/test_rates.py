"""Service rates learnt from served requests: by batch and occupancy, without the cold ones, in virtual time."""

import random
from dataclasses import replace

import pytest

from tests.autoscaler.queueing import Kind, QueueWorld, batched, exponential, fixed
from tests.support.worlds.autoscaling import T0, revision
from tidegate.autoscaler.measure.rates import MAX_CELLS, MAX_UNANSWERED, GroupRates, LearntCell, Work, measured_cells
from tidegate.records.profile_point import ProfileCell, ProfilePoint


def work(requests: float, busy_s: float, *, batch: float = 1.0, occupancy: float = 1.0) -> Work:
    request_s = occupancy * busy_s
    return Work(requests, requests * batch, busy_s, request_s, request_s * batch, request_s)


def served(rates: GroupRates, seconds: int, each: Work, *, limit: float, start: float = T0) -> None:
    for second in range(seconds):
        rates.served(start + second, each, limit=limit, is_crowded=False)


def test_a_replica_with_one_slot_is_at_its_limit_whenever_it_works() -> None:
    rates = GroupRates()
    served(rates, 10, work(5, 0.5), limit=1)
    rate = rates.rate(1.0)
    assert rate is not None
    assert rate.is_at_limit
    assert rate.mu_ips == pytest.approx(10.0), "ten a second, although it idled half the time"


def test_below_the_limit_the_rate_is_only_a_lower_bound() -> None:
    rates = GroupRates()
    served(rates, 10, work(10, 1.0, occupancy=1.0), limit=4)
    bound = rates.rate(1.0)
    assert bound is not None
    assert not bound.is_at_limit
    assert bound.mu_ips == pytest.approx(10.0)
    served(rates, 10, work(32, 1.0, occupancy=4.0), limit=4, start=T0 + 10)
    exact = rates.rate(1.0)
    assert exact is not None
    assert exact.is_at_limit
    assert exact.mu_ips == pytest.approx(32.0), "the lower occupancy does not pull it down"
    assert rates.min_execution_s(1.0) == pytest.approx(0.1), "execution time on an empty replica"


def test_requests_that_outlast_an_interval_count_with_their_execution_time() -> None:
    """Four slots and 3 s for a request, at 60 %. A second in which all slots stay taken is one in which few requests
    end: its busy time over its ends would be nearly twice the truth."""
    world = QueueWorld(revision(), {"cpu": Kind(exponential(3.0), slots=4)}, rate=3.2, seed=1, ready={"cpu": 4})
    for _ in range(900):
        world.sample_only()
    mu_ips = world.collector.mu_ips(revision().id, "cpu")
    assert mu_ips == pytest.approx(4.0 / 3.0, rel=0.15)
    measured = world.collector._revisions[revision().id].groups["cpu"].rates
    assert measured.services()[0][1] == pytest.approx(0.75, rel=0.05), "slots that do not slow each other"


def test_a_batch_that_runs_over_the_end_of_an_interval_counts_as_a_whole() -> None:
    """One request after the other: 0.1 s for one inference, 1.15 s for sixteen. The second in which a large one ends is
    mostly of small ones, and the one before it ends nothing."""
    rates, chance, end = GroupRates(), random.Random(1), 0.0
    seconds = [[0.0] * 6 for _ in range(1800)]
    while end < len(seconds):
        size = 16 if chance.random() < 0.1 else 1
        took = 0.03 + 0.07 * size
        begin, end = end, end + took
        for second in range(int(begin), min(int(end) + 1, len(seconds))):
            here = max(0.0, min(end, second + 1.0) - max(begin, second))
            for index, more in ((2, here), (3, here), (4, here * size)):
                seconds[second][index] += more
        if end < len(seconds):
            for index, more in ((0, 1.0), (1, float(size)), (5, took)):
                seconds[int(end)][index] += more
    for second, each in enumerate(seconds):
        rates.served(T0 + second, Work(*each), limit=1, is_crowded=False)
    found = rates.services()
    assert found[-1][0] > 8.0
    for batch, each_s in found:
        assert each_s == pytest.approx(0.03 + 0.07 * batch, rel=0.1)


def test_waiting_requests_say_that_every_slot_is_taken() -> None:
    rates = GroupRates()
    for second in range(5):
        rates.served(T0 + second, work(20, 1.0, occupancy=2.4), limit=4, is_crowded=True)
    rate = rates.rate(1.0)
    assert rate is not None
    assert rate.is_at_limit


def test_batches_have_rates_of_their_own_and_a_line_between_them() -> None:
    """s(b) = 9.05 + 5.532 b ms (SMIF, table 1): 68.6 at batch 1, 178 at 64; at 16 the line is exact."""
    rates = GroupRates()
    second = 0
    for batch in (1, 64):
        took = 0.00905 + 0.005532 * batch
        for _ in range(20):
            second += 1
            rates.served(T0 + second, work(8, 8 * took, batch=batch), limit=1, is_crowded=False)
    known = {batch: rates.rate(batch) for batch in (1, 16, 64, 128)}
    assert {batch: rate and round(rate.mu_ips, 1) for batch, rate in known.items()} == {
        1: 68.6,
        16: 164.0,
        64: 176.3,
        128: 176.3,
    }


def test_slow_requests_are_gathered_until_there_are_enough() -> None:
    """One request of 4 s on a replica: three samples see none end. Left out they would make it four times as fast."""
    rates = GroupRates()
    for second in range(60):
        rates.served(T0 + second, work(1 if second % 4 == 3 else 0, 1.0), limit=1, is_crowded=False)
    rate = rates.rate(1.0)
    assert rate is not None
    assert rate.mu_ips == pytest.approx(0.25, rel=0.05)


def test_garbage_and_idle_intervals_teach_nothing() -> None:
    rates = GroupRates()
    for bad in (work(0, 0.0), work(5, 0.0), Work(5, 0, 1.0, 1.0, 0.0, 1.0), Work(5, 5, float("nan"), 1.0, 1.0, 1.0)):
        served(rates, 3, bad, limit=1)
    served(rates, 3, Work(5, 5, 1.0, 5e-324, 1.0, 1.0), limit=1)
    served(rates, 3, Work(5, 5, 5e-324, 1.0, 1.0, 1.0), limit=1)
    assert rates.rate(1.0) is None
    assert rates.min_execution_s(None) is None


def test_cells_are_bounded() -> None:
    rates, chance = GroupRates(), random.Random(1)
    for second in range(1000):
        batch, occupancy = 2 ** (chance.random() * 12), 2 ** (chance.random() * 8)
        rates.served(T0 + second, work(9, 1.0, batch=batch, occupancy=occupancy), limit=0, is_crowded=False)
    assert repr(rates).count(": ") <= MAX_CELLS


@pytest.mark.parametrize(
    ("kind", "rate", "batch", "mu"),
    [
        (Kind(fixed(0.05)), 10.0, 1, 20.0),
        (Kind(fixed(0.3), slots=1), 3.0, 1, 1 / 0.3),
        (Kind(batched(0.009, 0.0055)), 5.0, 16, 16 / 0.097),
        (Kind(fixed(0.1), slots=4), 60.0, 1, 40.0),
    ],
)
def test_injected_service_times_come_back_within_five_percent_in_thirty_seconds(
    kind: Kind, rate: float, batch: int, mu: float
) -> None:
    world = QueueWorld(revision(concurrency=kind.slots), {"cpu": kind}, rate=rate, batch=batch, ready={"cpu": 1})
    for _ in range(30):
        world.sample_only()
    learnt = world.collector.mu_ips(world.revision.id, "cpu")
    assert learnt == pytest.approx(mu, rel=0.05)


def test_within_ten_percent_of_the_profile_after_two_hundred_requests() -> None:
    """Service times from half to one and a half of the profile's, the first ones ten times as slow (cold)."""
    served_so_far = [0]

    def cold_first(chance: random.Random, _batch: int, _occupancy_gain: int) -> float:
        served_so_far[0] += 1
        return 1.0 if served_so_far[0] <= 5 else chance.uniform(0.05, 0.15)

    for seed in range(5):
        served_so_far[0] = 0
        world = QueueWorld(revision(concurrency=1), {"cpu": Kind(cold_first)}, rate=9.0, seed=seed, ready={"cpu": 1})
        while sum(each.requests for each in world.replicas) < 200:
            world.sample_only()
        assert world.collector.mu_ips(world.revision.id, "cpu") == pytest.approx(10.0, rel=0.10)


@pytest.mark.parametrize("per_second", [3, 20, 200])
@pytest.mark.parametrize("factor", [0.5, 1.5, 3.0])
def test_a_model_that_changes_is_followed_within_thirty_seconds(per_second: int, factor: float) -> None:
    """Work of two minutes at one speed, then of half a minute at another, in seconds that scatter by a tenth."""
    rates, chance = GroupRates(), random.Random(3)
    for second in range(150):
        speed = 1.0 if second < 120 else factor
        busy_s = 0.9 * speed * chance.uniform(0.9, 1.1)
        rates.served(T0 + second, work(per_second, busy_s), limit=1, is_crowded=False)
    rate = rates.rate(1.0)
    assert rate is not None
    assert rate.mu_ips == pytest.approx(per_second / 0.9 / factor, rel=0.05)


@pytest.mark.parametrize("seconds", [2, 6, 60])
@pytest.mark.parametrize("then", [4, 140])
def test_a_stall_is_no_rate(seconds: int, then: int) -> None:
    """A stopped process: its slots are taken and nothing ends, then what was in them does, and more or nothing."""
    rates = GroupRates()
    served(rates, 30, work(140, 1.0, occupancy=4.0), limit=4)
    before = rates.rate(1.0)
    served(rates, seconds, work(0, 1.0, occupancy=4.0), limit=4, start=T0 + 30)
    served(rates, 1, work(then, 0.1 + then / 140, occupancy=4.0), limit=4, start=T0 + 30 + seconds)
    after = rates.rate(1.0)
    assert before is not None
    assert after is not None
    assert after.is_at_limit
    assert after.mu_ips == pytest.approx(before.mu_ips, rel=0.05)


def test_a_stall_of_all_at_once_is_no_rate_and_two_with_work_between_are_no_change() -> None:
    """The replica was not heard of meanwhile: one interval tells of all seconds."""
    rates = GroupRates()
    served(rates, 30, work(140, 1.0, occupancy=4.0), limit=4)
    for at in range(40, 400, 40):
        served(rates, 1, work(8, 6.0, occupancy=4.0), limit=4, start=T0 + at)
        served(rates, 1, work(50, 0.35, occupancy=4.0), limit=4, start=T0 + at + 20)
    rate = rates.rate(1.0)
    assert rate is not None
    assert rate.mu_ips == pytest.approx(140.0, rel=0.05)


@pytest.mark.parametrize("per_second", [10, 20, 200])
@pytest.mark.parametrize("factor", [9.0, 11.0, 15.0])
def test_a_model_that_becomes_ten_times_slower_for_good_is_followed_all_the_same(
    per_second: int, factor: float
) -> None:
    rates, done = GroupRates(), 0.0
    for second in range(30 + 35):
        before = int(done)
        done += per_second * (1.0 if second < 30 else 1.0 / factor)
        rates.served(T0 + second, work(int(done) - before, 1.0), limit=1, is_crowded=True)
    rate = rates.rate(1.0)
    assert rate is not None
    assert rate.mu_ips == pytest.approx(per_second / factor, rel=0.1)


def _belied(*, below: int, each: Work) -> GroupRates:
    """A full cell of 11/s from a disturbed time, then seconds of work below the limit."""
    rates = GroupRates()
    served(rates, 20, work(11, 1.0, occupancy=4.0), limit=4)
    served(rates, below, each, limit=4, start=T0 + 20)
    return rates


def test_a_full_rate_that_a_later_yield_below_the_limit_belies_is_forgotten() -> None:
    """With a rate too low it would get so little to do that it is never full again."""
    rates = _belied(below=60, each=work(8, 0.056))
    rate = rates.rate(1.0)
    assert rate is not None
    assert not rate.is_at_limit
    assert rate.mu_ips == pytest.approx(1 / 0.007, rel=0.01)
    kept = GroupRates()
    kept.restore(rates.learnt())
    assert not any(cell.occupancy < 0 for cell in kept.learnt()), "nor does it come back with a restart"
    served(rates, 5, work(150, 1.0, occupancy=4.0), limit=4, start=T0 + 80)
    exact = rates.rate(1.0)
    assert exact is not None
    assert exact.is_at_limit
    assert exact.mu_ips == pytest.approx(150.0)


@pytest.mark.parametrize(
    ("below", "each"),
    [
        (6, work(8, 0.056)),  # too few
        (60, work(8, 8 / 13)),  # not clearly more
        (60, work(8, 0.8, batch=16)),  # another size
    ],
)
def test_a_full_rate_is_not_forgotten_for_less(below: int, each: Work) -> None:
    rate = _belied(below=below, each=each).rate(1.0)
    assert rate is not None
    assert rate.is_at_limit
    assert rate.mu_ips == pytest.approx(11.0)


def test_a_full_rate_is_not_forgotten_for_what_was_before_it() -> None:
    """The model has become slower; the last requests of an earlier mean are no proof of the opposite."""
    rates = GroupRates()
    served(rates, 60, work(20, 0.2), limit=4)
    served(rates, 20, work(11, 1.0, occupancy=4.0), limit=4, start=T0 + 60)
    served(rates, 4, work(4, 0.4), limit=4, start=T0 + 80)
    served(rates, 2, work(11, 1.0, occupancy=4.0), limit=4, start=T0 + 84)
    rate = rates.rate(1.0)
    assert rate is not None
    assert rate.is_at_limit
    assert rate.mu_ips == pytest.approx(11.0)


def test_chance_is_no_change() -> None:
    """Exponential service times, five a second: the mean of 200 is steadier than that of the last eight seconds."""
    rates, chance = GroupRates(), random.Random(4)
    seen = []
    for second in range(600):
        rates.served(T0 + second, work(5, sum(chance.expovariate(10.0) for _ in range(5))), limit=1, is_crowded=False)
        rate = rates.rate(1.0)
        if second > 60 and rate is not None:
            seen.append(rate.mu_ips)
    assert min(seen) > 7.5
    assert max(seen) < 13.3


def test_a_plateau_is_the_limit_even_where_there_is_none() -> None:
    """``concurrency: 0`` and a server that does one thing at a time: twice the company, the same yield."""
    rates = GroupRates()
    served(rates, 30, work(20, 1.0, occupancy=1.0), limit=0)
    bound = rates.rate(1.0)
    assert bound is not None
    assert not bound.is_at_limit
    served(rates, 30, work(20, 1.0, occupancy=3.0), limit=0, start=T0 + 30)
    rate = rates.rate(1.0)
    assert rate is not None
    assert rate.is_at_limit
    assert rate.mu_ips == pytest.approx(20.0)


def test_a_plateau_of_long_ago_is_not_below_what_is_yielded_now() -> None:
    """Weights that follow from a rate that is too low keep it so: the replica never has as much company again."""
    rates = GroupRates()
    served(rates, 30, work(19, 1.0, occupancy=1.0), limit=0)
    served(rates, 30, work(19, 1.0, occupancy=8.0), limit=0, start=T0 + 30)
    served(rates, 60, work(20, 1.0, occupancy=2.0), limit=0, start=T0 + 60)
    rate = rates.rate(1.0)
    assert rate is not None
    assert rate.is_at_limit
    assert rate.mu_ips == pytest.approx(20.0)
    served(rates, 60, work(18, 1.0, occupancy=2.0), limit=0, start=T0 + 120)
    less = rates.rate(1.0)
    assert less is not None
    assert less.mu_ips == pytest.approx(19.0), "which says nothing of more company"


def test_a_yield_that_grows_with_company_is_no_plateau() -> None:
    rates = GroupRates()
    for step, occupancy in enumerate((1.0, 2.0, 4.0)):
        served(rates, 30, work(20 * occupancy, 1.0, occupancy=occupancy), limit=0, start=T0 + 30 * step)
    rate = rates.rate(1.0)
    assert rate is not None
    assert not rate.is_at_limit
    assert rate.mu_ips == pytest.approx(80.0)


def expected(*yields: float, limit: float, start: int = 0) -> float | None:
    """Expected at ``limit`` after half a minute of each of these yields with 1, 2, 4... in flight."""
    rates = GroupRates()
    for step, each in enumerate(yields):
        occupancy = 2.0 ** (start + step)
        served(rates, 30, work(each, 1.0, occupancy=occupancy), limit=limit, start=T0 + 30 * step)
    known = rates.known(1.0)
    assert known is not None
    return known[3]


def test_what_more_company_brings_is_carried_on_to_the_limit() -> None:
    assert expected(20.0, 22.0, limit=8) == pytest.approx(22.0 * 1.1**2)
    assert expected(20.0, 40.0, limit=8) == pytest.approx(160.0), "as many as slots and execution time say"
    assert expected(20.0, 40.0, 44.0, limit=16) == pytest.approx(44.0 * 1.1**2), "the last doubling counts"
    assert expected(20.0, 22.0, limit=2.5) == pytest.approx(22.0, rel=0.05), "nearly as much company as there can be"


def test_nothing_is_expected_of_company_that_was_not_seen() -> None:
    assert expected(20.0, limit=8) is None
    assert expected(20.0, 22.0, limit=0) is None, "no limit"
    assert expected(20.0, 20.0, limit=8) is None, "a plateau: known"


def crowd(rates: GroupRates, seconds: int, answered: float, left: float, *, occupancy: float = 8.0) -> None:
    """Seconds of eight slots, in which as many requests as ``left`` ended without an answer."""
    each = Work(answered, answered, 1.0, occupancy, occupancy, 0.1 * answered)
    for second in range(seconds):
        rates.served(T0 + 1000 + second, each, limit=8, is_crowded=False, unanswered=(left, left))


@pytest.mark.parametrize(
    ("answered", "left", "expect"),
    [
        (20.0, 400.0, 50.0),  # 50 may be served still
        (0.0, 400.0, 50.0),
        (10.0, 20.0, 30.0),  # 50 cannot be, even if all of them had been answered
        (100.0, 20.0, 100.0),  # more than 50 were
    ],
)
def test_what_is_given_up_moves_a_rate_only_to_what_is_possible(answered: float, left: float, expect: float) -> None:
    rates = GroupRates()
    served(rates, 60, work(50, 1.0, occupancy=8.0), limit=8)
    crowd(rates, 300, answered, left)
    rate = rates.rate(1.0)
    assert rate is not None
    assert rate.mu_ips == pytest.approx(expect, rel=0.16), "as near as chance tells"


@pytest.mark.parametrize("share", [0.2, 0.5, 0.8])
def test_a_rate_does_not_sink_by_chance_while_much_is_given_up(share: float) -> None:
    rates, chance = GroupRates(), random.Random(1)
    served(rates, 60, work(20, 1.0, occupancy=8.0), limit=8)
    for second in range(1800):
        ended = sum(chance.random() < 0.1 for _ in range(200))
        left = sum(chance.random() < share for _ in range(ended))
        each = Work(ended - left, ended - left, 1.0, 8.0, 8.0, 0.4 * (ended - left))
        unanswered = (float(left), float(left)) if left > MAX_UNANSWERED * (ended - left) else None
        rates.served(T0 + 100 + second, each, limit=8, is_crowded=False, unanswered=unanswered)
    rate = rates.rate(1.0)
    assert rate is not None
    assert 0.75 * 20.0 < rate.mu_ips < 1.15 * 20.0


def test_of_a_size_and_company_of_which_nothing_is_known_the_answered_ones_tell_if_they_are_more() -> None:
    rates = GroupRates()
    crowd(rates, 300, 10.0, 11.0)
    assert rates.rate(1.0) is None
    crowd(rates, 300, 10.0, 5.0)
    rate = rates.rate(1.0)
    assert rate is not None
    assert rate.mu_ips == pytest.approx(10.0)


def test_what_leaves_with_little_company_is_no_plateau() -> None:
    """One impatient client: with one in flight nearly nothing is answered, and much ends."""
    rates = GroupRates()
    served(rates, 60, work(30, 1.0, occupancy=1.0), limit=32)
    served(rates, 60, work(100, 1.0, occupancy=4.0), limit=32, start=T0 + 60)
    crowd(rates, 60, 1.0, 96.0, occupancy=1.0)
    served(rates, 30, work(100, 1.0, occupancy=4.0), limit=32, start=T0 + 2000)
    rate = rates.rate(1.0)
    assert rate is not None
    assert not rate.is_at_limit
    assert rates.min_execution_s(1.0) == pytest.approx(1.0 / 30.0, rel=0.05)


def test_the_occupancy_of_the_least_execution_time_is_known() -> None:
    """A server that does one thing at a time, 0.4 s each, with two to four requests in it whenever it works."""
    rates = GroupRates()
    for occupancy in (2.0, 4.0):
        served(rates, 30, work(2.5, 1.0, occupancy=occupancy), limit=8)
    known = rates.known(1.0)
    assert known is not None
    assert known[2] == pytest.approx(0.8), "twice as long as alone"
    assert known[4] == pytest.approx(2.0)


def test_what_was_learnt_outlives_the_process_and_gives_way_to_what_is_seen() -> None:
    rates = GroupRates()
    served(rates, 60, work(10, 0.5), limit=1)
    later = GroupRates()
    later.restore(rates.learnt())
    before = later.rate(1.0)
    assert before is not None
    assert before.is_at_limit
    assert before.mu_ips == pytest.approx(20.0)
    assert later.min_execution_s(1.0) == pytest.approx(0.05)
    served(later, 30, work(10, 1.0), limit=1)
    after = later.rate(1.0)
    assert after is not None
    assert after.mu_ips == pytest.approx(10.0, rel=0.05)


def test_garbage_is_not_restored() -> None:
    cell = LearntCell(size=0, occupancy=-1, batch=1.0, seconds_per_request=0.1, execution_s=0.1, requests=9.0)
    rates = GroupRates()
    for name in ("batch", "seconds_per_request", "execution_s", "requests"):
        for value in (0.0, -1.0, float("nan"), float("inf")):
            rates.restore([replace(cell, **{name: value})])  # type: ignore[arg-type]  # names of float fields
    assert rates.rate(1.0) is None


def test_a_mixture_of_sizes_lies_on_the_line_between_them() -> None:
    """One second of seven requests of 16 (and five of 1) is filed with those of 16, which hold it most of the time. Its
    many small ones must not count as if they were large: 9 + 6 b ms, 152 inferences/s at 16, 67 at 1."""
    rates = GroupRates()
    large_s, small_s = 0.105, 0.015

    def second(at: int, large: int, small: int) -> None:
        request_s = large * large_s + small * small_s
        inference_s = large * large_s * 16 + small * small_s
        each = Work(large + small, 16 * large + small, request_s, request_s, inference_s, request_s)
        rates.served(T0 + at, each, limit=1, is_crowded=True)

    for at in range(60):
        second(at, *((8, 2), (7, 5))[at % 2])
    for at in range(60, 75):
        second(at, 0, 60)
    at_16, at_1 = rates.rate(16.0), rates.rate(1.0)
    assert at_16 is not None
    assert at_1 is not None
    assert at_1.mu_ips == pytest.approx(1 / 0.015, rel=0.01)
    (cell,) = (each for each in rates.learnt() if each.batch > 2.0)
    assert cell.seconds_per_request == pytest.approx(0.009 + 0.006 * cell.batch, rel=0.01)
    assert at_16.mu_ips == pytest.approx(cell.batch / cell.seconds_per_request, rel=0.01)
    for at in range(75, 90):
        second(at, 9, 0)
    exact = rates.rate(16.0)
    assert exact is not None
    assert exact.mu_ips == pytest.approx(16 / 0.105, rel=0.05)


def test_measured_points_are_rates_at_the_limit_and_times_alone() -> None:
    def point(batch: int, slots: int, rate_ips: float) -> ProfilePoint:
        return ProfilePoint(
            cell=ProfileCell(accelerator="t4", cores=0, batch=batch),
            execution_s=0.01 * batch,
            p50_s=0.02,
            p95_s=0.02,
            p99_s=0.02,
            slots=slots,
            full_execution_s=0.03 * batch,
            rate_ips=rate_ips,
            requests=200,
        )

    rates = GroupRates()
    rates.restore(cell for each in (point(1, 4, 150.0), point(8, 4, 190.0)) for cell in measured_cells(each))
    for batch, rate_ips in ((1.0, 150.0), (8.0, 190.0)):
        rate = rates.rate(batch)
        assert rate is not None
        assert rate.is_at_limit
        assert rate.mu_ips == pytest.approx(rate_ips)
    assert rates.min_execution_s(1.0) == pytest.approx(0.01)
    single = GroupRates()
    single.restore(measured_cells(point(1, 1, 90.0)))
    rate = single.rate(1.0)
    assert rate is not None
    assert rate.mu_ips == pytest.approx(90.0)
