"""Larger batches to stronger accelerators; the worked cases are in tests/golden/test_papers.py."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.traffic.size_cuts import BatchClass, CutGroup, Cuts, Mode, route_cuts, split_throughput

T4, V100 = CutGroup("t4", 65.25, 1), CutGroup("v100", 117.0, 1)


def test_small_batches_stay_on_the_weaker_group() -> None:
    cuts = route_cuts([V100, T4], [BatchClass(1, 20), BatchClass(8, 5), BatchClass(16, 3), BatchClass(64, 0.5)])
    assert cuts is not None
    assert cuts.assignment == {1: "t4", 8: "t4", 16: "v100", 64: "v100"}
    assert cuts.sizes == {"t4": (1, 15), "v100": (16, None)}, "a size never seen goes by the same cut"


def test_without_capacity_there_are_no_cuts_and_without_classes_nothing_is_busy() -> None:
    assert route_cuts([CutGroup("t4", 65.25, 0)], [BatchClass(1, 20)]) is None
    assert route_cuts([], []) is None
    assert route_cuts([T4], []) == Cuts(0.0, {}, {})


def test_a_group_without_replicas_gets_nothing_even_if_nothing_comes() -> None:
    cuts = route_cuts([CutGroup("p100", 20.0, 0), T4], [BatchClass(1, 0), BatchClass(4, 2)])
    assert cuts is not None
    assert cuts.sizes == {"t4": (1, None)}


def test_the_work_of_a_class_may_be_profiled() -> None:
    """By batch alone 8 and 64 would share the strong group; a profile knows that 64 takes less than eight times 8."""
    by_batch = route_cuts([T4, V100], [BatchClass(8, 5), BatchClass(64, 1)])
    profiled = route_cuts([T4, V100], [BatchClass(8, 5, work=20), BatchClass(64, 1, work=40)])
    assert by_batch is not None
    assert profiled is not None
    assert by_batch.assignment == {8: "t4", 64: "v100"}
    assert profiled.assignment == {8: "v100", 64: "v100"}


@given(
    st.lists(st.tuples(st.sampled_from([5.0, 20.0, 60.0, 117.0]), st.integers(0, 3)), min_size=1, max_size=4),
    st.dictionaries(st.sampled_from([1, 2, 4, 8, 16, 64]), st.floats(0, 30), min_size=1, max_size=5),
)
@settings(max_examples=150, deadline=None)
def test_no_other_cut_is_better(kinds: list[tuple[float, int]], rates: dict[int, float]) -> None:
    groups = [CutGroup(f"g{index}", mu, replicas) for index, (mu, replicas) in enumerate(kinds)]
    classes = [BatchClass(batch, rate) for batch, rate in rates.items()]
    cuts = route_cuts(groups, classes)
    usable = sorted((group for group in groups if group.capacity), key=lambda group: (group.mu_ips, group.id))
    assert (cuts is None) == (not usable)
    if cuts is None:
        return
    ordered = sorted(classes, key=lambda each: each.batch)
    best = min(
        max(
            sum(each.work_ips for each, at in zip(ordered, places, strict=True) if at == index) / group.capacity
            for index, group in enumerate(usable)
        )
        for places in itertools.combinations_with_replacement(range(len(usable)), len(ordered))
    )
    assert cuts.objective == pytest.approx(best, rel=1e-9, abs=1e-12)
    for each in classes:
        low, high = cuts.sizes[cuts.assignment[each.batch]]
        assert low <= each.batch <= (each.batch if high is None else high)


def test_the_slowest_for_its_share_holds_up_a_closed_loop() -> None:
    assert split_throughput(Mode.CLOSED_SATURATED, [117.0, 65.25], [0.5, 0.5]) == 130.5
    assert split_throughput(Mode.OPEN, [117.0, 65.25], [0.5, 0.5], 200.0) == 165.25
    assert split_throughput(Mode.CLOSED_SATURATED, [117.0], [0.0]) == 0.0


def test_of_cuts_with_equally_busy_busiest_groups_the_one_with_less_busy_others_is_taken() -> None:
    """Size 1 makes g1 busy for half of its time in any case. Size 2 takes half as long on g3 as on g2."""
    groups = [
        CutGroup("g1", 1.0, 1, {1: 0.5, 2: 5.0}),
        CutGroup("g2", 2.0, 1, {1: 0.9, 2: 0.2}),
        CutGroup("g3", 3.0, 1, {1: 0.9, 2: 0.1}),
    ]
    cuts = route_cuts(groups, [BatchClass(1, 1.0), BatchClass(2, 1.0)])
    assert cuts is not None
    assert (cuts.objective, cuts.assignment) == (0.5, {1: "g1", 2: "g3"})
