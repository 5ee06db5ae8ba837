"""The order of placement: similarity queues, the fair pick, and rounds of both."""

import random

from hypothesis import given
from hypothesis import strategies as st

from tidegate.deploy.placement.queues import (
    BUFFER,
    Pending,
    Pick,
    _Centre,
    _mean,
    fair_pick,
    schedule,
    similarity_queues,
)
from tidegate.deploy.placement.strategies import WORST_FIT, Cluster, Device, Free, Instance


def instance(name: str, model: str = "resnet", memory: float = 4.0) -> Instance:
    return Instance(id=name, model=model, memory=memory)


def gpus(count: int) -> Cluster:
    return Cluster(
        Device(id=f"g{number}", node="n1", kind="t4", memory=16.0, free=Free(16.0, 100.0)) for number in range(count)
    )


def test_degenerate_queues() -> None:
    assert similarity_queues([]) == []
    assert similarity_queues([instance("a"), instance("b", "bert")], 0) == [["a", "b"]], "at least one queue"
    assert similarity_queues([instance("a", memory=0.0), instance("b", memory=0.0)]) == [["a", "b"]]


@given(
    st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from([0.0, 0.1, 2.0, 4.0, 7.9])), max_size=30),
    st.integers(1, 6),
)
def test_every_instance_is_in_one_queue(wanted: list[tuple[str, float]], count: int) -> None:
    instances = [instance(f"{number:02}", model, memory) for number, (model, memory) in enumerate(wanted)]
    queues = similarity_queues(instances, count)
    assert sorted(name for queue in queues for name in queue) == [each.id for each in instances]
    assert len(queues) <= count
    assert queues == sorted(sorted(queue) for queue in queues)


def test_degenerate_picks() -> None:
    assert fair_pick([]) == Pick((), ())
    assert fair_pick([[], []], 4) == Pick((0, 0), ())
    assert fair_pick([[3.0]], 0) == Pick((0,), ())
    assert fair_pick([[3.0], []], -1) == Pick((0, 0), ())


@given(st.lists(st.lists(st.sampled_from([0.0, 0.1, 1.0, 30.0]), max_size=8), max_size=6), st.integers(0, 20))
def test_a_pick_spends_its_budget_and_no_queue_gives_more_than_it_holds(waits: list[list[float]], budget: int) -> None:
    pick = fair_pick(waits, budget)
    assert sum(pick.counts) == min(budget, sum(map(len, waits)))
    assert all(0 <= count <= len(queue) for count, queue in zip(pick.counts, waits, strict=True))
    assert sorted(pick.order) == [index for index, count in enumerate(pick.counts) if count]


def test_no_queue_starves_in_ten_thousand_rounds() -> None:
    """A queue that gets nothing grows and waits, so its weight rises until it gets something."""
    rng = random.Random(7)
    queues: list[list[float]] = [[], [], [], []]
    longest = 0.0
    for now in range(10_000):
        # 7.6 arrive a round, most of them in the first queue, and 8 are picked.
        for queue, mean in zip(queues, (5.0, 2.0, 0.5, 0.1), strict=True):
            queue += [float(now)] * sum(rng.random() < mean / 10.0 for _ in range(10))
        pick = fair_pick([[now - since for since in queue] for queue in queues], BUFFER)
        for queue, count in zip(queues, pick.counts, strict=True):
            longest = max([longest, *(now - since for since in queue[:count])])
            del queue[:count]
    assert longest < 200.0
    assert all(len(queue) < 200 for queue in queues)


def test_rounds_end_when_one_places_nothing() -> None:
    waiting = [Pending(instance(f"r{number}"), 0.0) for number in range(5)]
    placed = schedule(gpus(3), WORST_FIT, waiting, 10.0)
    assert placed == [("r0", ("g0",)), ("r1", ("g1",)), ("r2", ("g2",))]
    assert schedule(gpus(0), WORST_FIT, waiting, 10.0) == []
    assert schedule(gpus(3), WORST_FIT, [], 10.0) == []


def test_a_round_mixes_models() -> None:
    waiting = [Pending(instance(f"r{number}", "resnet"), 0.0) for number in range(9)]
    waiting += [Pending(instance("b", "bert"), 0.0)]
    placed = dict(schedule(gpus(10), WORST_FIT, waiting, 5.0, buffer=2))
    assert len(placed) == 10
    assert len(set(placed.values())) == 10, "one model never twice on a device, and empty devices first"


def grouped(*memories: float, count: int = 2, models: str = "") -> list[list[str]]:
    """Returns the queues of instances a, b, c, ... with these memories."""
    names = "abcdefghij"
    return similarity_queues(
        [
            instance(names[place], models[place : place + 1] or "resnet", memory)
            for place, memory in enumerate(memories)
        ],
        count,
    )


def test_like_sizes_wait_in_one_queue() -> None:
    assert grouped(1.0, 1.2, 1.4, 9.0, 9.5, 10.0) == [["a", "b", "c"], ["d", "e", "f"]]
    assert grouped(10.0, 1.0, 9.5, 1.2, 9.0, 1.4) == [["a", "c", "e"], ["b", "d", "f"]]
    assert grouped(1.0, 1.2, 5.0, 5.2, 9.0, 9.5, count=3) == [["a", "b"], ["c", "d"], ["e", "f"]]
    assert grouped(1.0, 5.0, 5.4, 5.8, 10.0) == [["a", "b", "c", "d"], ["e"]], "the centre has moved to the many"


def test_another_model_is_as_far_as_the_largest_size() -> None:
    assert grouped(1.0, 9.0, 1.0, 9.0, models="xxyy") == [["a", "b"], ["c", "d"]]
    assert grouped(1.0, 9.0, 1.0, 9.0, models="xxyy", count=4) == [["a"], ["b"], ["c"], ["d"]]
    assert grouped(4.0, 4.0, 4.0, models="xyx") == [["a", "c"], ["b"]]


def test_a_centre_is_the_mean_size_and_the_commonest_model_the_first_of_equals() -> None:
    points = [_Centre(0.25, "a"), _Centre(0.5, "b"), _Centre(0.75, "b")]
    assert _mean(points) == _Centre(0.5, "b")
    assert _mean(points[:2]) == _Centre(0.375, "a")


def test_more_than_a_buffer_waits_for_the_next_round() -> None:
    assert fair_pick([[0.0] * 20]) == Pick((8,), (0,))
    assert fair_pick([[0.0] * 20], -1) == Pick((0,), ())
    assert fair_pick([[2.0] * 4, [1.0] * 4], 6) == Pick((4, 2), (0, 1))
    assert fair_pick([[1.0] * 4, [2.0] * 4], 3) == Pick((1, 2), (1, 0))
    assert fair_pick([[1.0], [1.0] * 9], 5) == Pick((0, 5), (1,)), "of equal fractions the heavier is rounded up"
