"""Late shares of steady loads: Erlang's C with the exponent of Kingman, Allen and Cunneen."""

import math

import numpy as np
import pytest

from tidegate.autoscaler.policies.tide.queueing import LOADS, LateTable, Service, erlang_b, erlang_c, on_grid

ALLOWED = 0.005
EQUAL = LateTable(Service(sizes=((1.0, 0.1),), cv=0.15, latency_s=0.3), 1.0)
BATCHES = Service(sizes=((0.7, 0.1), (0.2, 0.31), (0.1, 1.15)), cv=0.15, latency_s=1.7)


@pytest.mark.parametrize(
    ("load", "slots", "percent"), [(6, 7, 1.28), (6, 8, 0.017), (4.6, 6, 0.21), (24, 25, 1.6), (24, 26, 0.028)]
)
def test_the_late_share_of_a_load(load: float, slots: float, percent: float) -> None:
    assert 100.0 * EQUAL.late(slots, load) == pytest.approx(percent, rel=0.03)


@pytest.mark.parametrize(("load", "slots"), [(0.5, 2), (1, 3), (2, 4), (5, 7), (6, 8), (10, 12), (20, 22), (50, 52)])
def test_the_least_capacity_of_a_load(load: float, slots: float) -> None:
    assert EQUAL.base(load, ALLOWED, 1.0) == slots


def test_a_load_that_fills_the_slots_is_late() -> None:
    assert EQUAL.late(6.0, 6.0) == EQUAL.late(6.0, 7.5) == 1.0
    assert EQUAL.late(0.0, 0.1) == 1.0


def test_without_load_nothing_is_late_and_no_slot_is_needed() -> None:
    assert EQUAL.late(0.0, 0.0) == 0.0
    assert EQUAL.base(0.0, ALLOWED, 1.0) == 0.0
    assert EQUAL.base(0.99e-3 * 0.1, ALLOWED, 1.0) == 0.0
    assert EQUAL.base(1.01e-3 * 0.1, ALLOWED, 1.0) == 1.0


def test_between_whole_slots_the_late_share_falls_by_factors() -> None:
    """Half a slot more halves it many times over: a line from 1.28 % to 0.017 % would be six times too high."""
    low, between, high = EQUAL.late(7.0, 6.0), EQUAL.late(7.5, 6.0), EQUAL.late(8.0, 6.0)
    assert between == pytest.approx(math.sqrt(low * high), rel=0.05)
    shares = [EQUAL.late(7.0 + 0.1 * count, 6.0) for count in range(11)]
    assert shares == sorted(shares, reverse=True)
    assert (shares[0], shares[-1]) == pytest.approx((low, high))


def test_a_small_load_on_a_little_more_than_a_hundred_slots_is_in_time() -> None:
    """A replica of 98 streams has so many slots: its share of a slot times their number is no whole one."""
    slots = 1.0 / (1.0 / 98.0)
    assert slots != 98.0
    assert EQUAL.late(slots, 1e-3) == EQUAL.late(slots, 1e-4) == 0.0


def test_a_load_is_late_on_less_than_itself_however_fine_the_step() -> None:
    patient = LateTable(Service(sizes=((1.0, 0.7),), cv=0.7, latency_s=15.0), 1.0)
    assert patient.late(4.2, 4.25) == 1.0
    assert patient.late(4.26, 4.25) > 0.5
    assert 4.25 < patient.base(4.25, ALLOWED, 0.05) <= 5.0


def test_a_finer_step_needs_no_more_than_a_whole_slot() -> None:
    fine = EQUAL.base(6.0, ALLOWED, 0.25)
    assert 7.0 < fine <= 8.0
    assert EQUAL.late(fine, 6.0) <= ALLOWED < EQUAL.late(fine - 0.25, 6.0)


def test_a_larger_step_is_rounded_up_to() -> None:
    assert EQUAL.base(6.0, ALLOWED, 3.0) == 9.0


def test_more_variable_arrivals_need_more() -> None:
    bursty = LateTable(EQUAL.service, 9.0)
    assert bursty.late(8.0, 6.0) > 10 * EQUAL.late(8.0, 6.0)
    assert bursty.base(6.0, ALLOWED, 1.0) > 8.0


def test_what_no_number_of_slots_can_keep_does_not_count() -> None:
    slow = LateTable(Service(sizes=((0.98, 0.1), (0.02, 0.4)), cv=0.0, latency_s=0.3), 1.0)
    assert slow.hopeless == pytest.approx(0.02)
    assert slow.late(100.0, 6.0) == pytest.approx(0.02)
    assert slow.base(6.0, ALLOWED, 1.0) < 20.0


@pytest.mark.parametrize(("latency_s", "share"), [(0.3, 0.0), (0.2, 0.011257), (0.16, 0.233333)])
def test_what_is_hopeless_follows_five_service_times(latency_s: float, share: float) -> None:
    """They are 0.1 s, and 0.068 and 0.143 s less and more, of which two are cut at 0.02 s."""
    wide = LateTable(Service(sizes=((1.0, 0.1),), cv=0.5, latency_s=latency_s), 1.0)
    assert wide.hopeless == pytest.approx(share, abs=1e-6)


def test_what_is_late_alone_follows_the_normal_distribution() -> None:
    sizes = ((0.9, 0.1), (0.1, 0.2))
    # Two standard deviations above the mean, and half of one below it.
    assert Service(sizes, 0.25, 0.15).late_alone == pytest.approx(0.9 * 0.02275 + 0.1 * 0.84134, abs=1e-4)
    assert Service(sizes, 0.25, 0.15, first_s=0.1).late_alone == pytest.approx(0.02275, abs=1e-4)


def test_figures_of_a_mix_of_batch_sizes() -> None:
    assert BATCHES.mean_s == pytest.approx(0.247)
    assert BATCHES.cs2 == pytest.approx(((0.7 * 0.01 + 0.2 * 0.0961 + 0.1 * 1.3225) * 1.0225) / 0.247**2 - 1.0)
    assert sum(weight for weight, _ in BATCHES.points) == pytest.approx(1.0, abs=1e-5)


def test_erlangs_formulas() -> None:
    # Two slots, a load of one: B = 1/5, C = 1/3.
    assert erlang_c(2, 1.0) == pytest.approx(1.0 / 3.0)
    assert erlang_c(2, 2.0) == 1.0
    assert float(np.interp(1.0, LOADS, erlang_b(2))) == pytest.approx(0.2, abs=1e-3)


def test_many_loads_at_once_agree_with_each_alone() -> None:
    loads = np.array([0.7, 3.1, 6.0, 11.5])
    weights = np.array([0.4, 0.3, 0.2, 0.1])
    found = EQUAL.by_slots(12, on_grid(loads, weights))
    for slots in (1, 4, 7, 8, 12):
        alone = sum(weight * EQUAL.late(slots, load) for load, weight in zip(loads, weights, strict=True))
        assert found[slots] == pytest.approx(alone, rel=0.05, abs=1e-4)


def test_weights_on_the_grid_are_kept() -> None:
    found = on_grid(np.array([1e-6, 0.02, 5.0, 1e9]), np.array([1.0, 2.0, 3.0, 4.0]))
    assert found.sum() == pytest.approx(9.0)  # The first is too small to be late.
    assert found[-2:].sum() == pytest.approx(4.0)


def test_beyond_the_pooled_slots_a_load_is_late_where_it_exceeds_them() -> None:
    found = EQUAL.by_slots(1000, on_grid(np.array([600.0]), np.array([1.0])))
    assert len(found) == 1001
    assert found[500] == pytest.approx(1.0, abs=0.01)
    assert found[700] == pytest.approx(0.0, abs=0.01)


def test_the_points_of_a_service_are_its_sizes_at_five_nodes() -> None:
    service = Service(sizes=((0.5, 0.1), (0.5, 0.2)), cv=0.5, latency_s=0.3)
    nodes = ((0.0, 8 / 15), (1.3556, 0.222076), (-1.3556, 0.222076), (2.857, 0.011257), (-2.857, 0.011257))
    expected = [
        (0.5 * weight, 0.3 - seconds * max(0.2, 1.0 + 0.5 * node)) for seconds in (0.1, 0.2) for node, weight in nodes
    ]
    assert np.array(service.points) == pytest.approx(np.array(expected))
    stream = Service(sizes=((1.0, 2.0),), cv=0.0, latency_s=0.3, first_s=0.1)
    assert [left for _, left in stream.points] == pytest.approx([0.2] * 5)
    assert (stream.answer_s, stream.mean_s) == (0.1, 2.0)
    assert service.answer_s == service.mean_s == pytest.approx(0.15)


def test_the_late_share_by_hand() -> None:
    """Two slots, a load of one: a third waits. The tail of the wait falls by 2 (slots - load) / (s (ca2 + cs2))."""
    table = LateTable(Service(sizes=((1.0, 0.1),), cv=0.0, latency_s=0.25), 3.0)
    tail = 2.0 / (0.1 * 3.0)
    assert table.late(2.0, 1.0) == pytest.approx(np.exp(-tail * 0.15) / 3.0, rel=1e-5)
    assert repr(table).endswith("ca2 3>")


@pytest.mark.parametrize(("load", "step", "base"), [(10_000.0, 1.0, 10_000.0), (1e9, 3000.0, 12_000.0)])
def test_no_fleet_is_looked_for_beyond_ten_thousand_slots(load: float, step: float, base: float) -> None:
    assert EQUAL.base(load, ALLOWED, step) == base


def test_what_is_hopeless_leaves_a_fifth_of_what_is_allowed() -> None:
    slow = LateTable(Service(sizes=((0.996, 0.1), (0.004, 0.4)), cv=0.0, latency_s=0.3), 1.0)
    assert slow.hopeless == pytest.approx(0.004)
    slots = slow.base(6.0, ALLOWED, 1.0)
    assert slow.late(slots, 6.0) <= 0.004 + 0.001 < slow.late(slots - 1.0, 6.0)


def test_the_grid_spreads_a_weight_over_two_neighbours() -> None:
    middle = float(np.sqrt(LOADS[100] * LOADS[101]))
    found = on_grid(np.array([middle]), np.array([4.0]))
    assert (found[100], found[101]) == (pytest.approx(2.0), pytest.approx(2.0))
    assert on_grid(np.array([LOADS[0]]), np.array([1.0]))[0] == pytest.approx(1.0)
    assert LOADS[0] == pytest.approx(0.005)
    assert LOADS[1] / LOADS[0] == pytest.approx(np.exp(0.03))
    assert 9_700 < LOADS[-1] < 10_000
