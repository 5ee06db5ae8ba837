"""Seconds of replicas on one device in, increases out."""

import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.support.worlds.autoscaling import replica_sample
from tidegate.autoscaler.profiles.interference import (
    MAX_CELLS,
    MAX_MODELS,
    MAX_PAIRS,
    InterferenceLearner,
    LearntPair,
    SharedWork,
    shared_work,
)
from tidegate.deploy.placement.interference import DIFFERENT, EQUAL, Interference


def work(
    model: str, *, busy: float = 0.5, execution_s: float = 0.02, requests: float = 20.0, batch: float = 1.0
) -> SharedWork:
    return SharedWork(
        kind="t4",
        model=model,
        share=50,
        seconds=1.0,
        requests=requests,
        inferences=requests * batch,
        busy_s=busy,
        request_s=busy,
        execution_s=requests * execution_s,
    )


class Device:
    """A device on which ``slowed`` gives the true execution time of model a by the work of its neighbours."""

    def __init__(self, slowed: Callable[[dict[str, float]], float], *, noise: float = 0.1) -> None:
        self.table = Interference()
        self.learner = InterferenceLearner(self.table)
        self.rng = random.Random(1)
        self.slowed = slowed
        self.noise = noise

    def second(self, **busy: float) -> None:
        """A second in which the neighbours were at work for these parts of it; each name is a model."""
        mean_s = self.slowed(busy) * (1.0 + self.noise * (2.0 * self.rng.random() - 1.0))
        works = {"a": work("a", execution_s=mean_s)} | {name: work(name, busy=part) for name, part in busy.items()}
        self.learner.learn(works, {"a": list(busy)})

    def learnt(self) -> dict[str, float]:
        return {pair.beside: pair.increase for pair in self.learner.learnt("t4", "a")}


def by_increase(**increases: float) -> Callable[[dict[str, float]], float]:
    return lambda busy: 0.02 * (1.0 + sum(increases[name] * part for name, part in busy.items()))


@pytest.mark.parametrize("increase", [0.0, 0.09, 0.18, 0.6, 2.0])
def test_the_increase_beside_a_neighbour_that_is_now_more_and_now_less_at_work_is_learnt(increase: float) -> None:
    device = Device(by_increase(b=increase))
    for second in range(300):
        device.second(b=0.2 if second % 2 else 0.9)
    assert device.learnt() == {"b": pytest.approx(increase, abs=0.03)}
    assert device.table.increase("t4", "a", "b") == device.learnt()["b"]


def test_seconds_alone_are_points_of_the_line_of_every_neighbour() -> None:
    device = Device(by_increase(b=0.3))
    for _ in range(60):
        device.second()
        device.second(b=1.0)
    assert device.learnt() == {"b": pytest.approx(0.3, abs=0.03)}


def test_a_neighbour_that_is_always_equally_at_work_teaches_nothing() -> None:
    device = Device(by_increase(b=0.5), noise=0.0)
    for _ in range(300):
        device.second(b=0.7)
    assert device.learnt() == {}
    assert device.table.increase("t4", "a", "b") == DIFFERENT


def test_a_few_requests_teach_nothing() -> None:
    device = Device(by_increase(b=0.5))
    device.second()
    device.second(b=1.0)
    assert device.learnt() == {}


def test_of_two_neighbours_each_is_learnt_with_the_other_taken_off() -> None:
    device = Device(by_increase(b=0.1, c=0.5))
    for _ in range(60):
        device.second()
        device.second(b=1.0)
    assert device.learnt().keys() == {"b"}
    for second in range(300):
        device.second(b=1.0, c=0.1 if second % 2 else 0.9)
    assert device.learnt() == {"b": pytest.approx(0.1, abs=0.03), "c": pytest.approx(0.5, abs=0.05)}


def test_while_neither_of_two_neighbours_is_known_nothing_is_blamed_on_either() -> None:
    device = Device(by_increase(b=0.1, c=0.5))
    for second in range(100):
        device.second(b=second % 2, c=1.0)
    assert device.learnt() == {}, "c was always at work, so that nothing shows what it takes alone"


def test_a_neighbour_that_starts_makes_a_second_count_for_nothing() -> None:
    device = Device(by_increase(b=0.5))
    for second in range(100):
        works = {"a": work("a", execution_s=0.02 * (1 + second % 2))}
        device.learner.learn(works, {"a": ["starting"]})
    assert device.learnt() == {}


@pytest.mark.parametrize("figure", [float("inf"), float("nan")])
def test_impossible_figures_count_for_nothing(figure: float) -> None:
    learner = InterferenceLearner(Interference())
    own = work("a")
    for wrong in (
        replace(own, requests=figure),
        replace(own, inferences=figure),
        replace(own, busy_s=figure),
        replace(own, request_s=figure),
        replace(own, execution_s=figure),
    ):
        learner.learn({"a": wrong, "b": work("b")}, {"a": ["b"]})
    assert learner.learnt("t4", "a") == ()


def test_larger_batches_are_a_line_of_their_own() -> None:
    table = Interference()
    learner = InterferenceLearner(table)
    for second in range(100):
        busy, batch = (0.9, 8.0) if second % 4 < 2 else (0.1, 1.0)
        slow = 1.0 if second % 2 else 0.0
        own = work("a", execution_s=0.01 * batch * (1.0 + 0.2 * busy * slow), batch=batch)
        learner.learn({"a": own, "b": work("b", busy=busy * slow)}, {"a": ["b"]})
    (pair,) = learner.learnt("t4", "a")
    assert pair.increase == pytest.approx(0.2, abs=0.01), "not 8 times as slow"


def test_more_cells_by_turns_than_are_kept_do_not_drive_each_other_out() -> None:
    learner = InterferenceLearner(Interference())
    for second in range(100):
        busy = 0.9 if second % 2 else 0.1
        for index in range(MAX_CELLS + 1):
            own = work("a", batch=2.0**index, execution_s=0.01 * (1.0 + 0.5 * busy))
            learner.learn({"a": own, "b": work("b", busy=busy)}, {"a": ["b"]})
    (pair,) = learner.learnt("t4", "a")
    assert pair.increase == pytest.approx(0.5, abs=0.01)


def test_cells_that_are_no_longer_used_make_room() -> None:
    table = Interference()
    learner = InterferenceLearner(table)
    for index in range(MAX_CELLS):
        learner.learn({"a": work("a", batch=2.0**index), "b": work("b")}, {"a": ["b"]})
    for second in range(4 * MAX_CELLS + 100):
        busy = 0.9 if second % 2 else 0.1
        own = work("a", batch=2.0**MAX_CELLS, execution_s=0.01 * (1.0 + 0.5 * busy))
        learner.learn({"a": own, "b": work("b", busy=busy)}, {"a": ["b"]})
    (pair,) = learner.learnt("t4", "a")
    assert pair.increase == pytest.approx(0.5, abs=0.01)


def test_the_latest_neighbours_are_known_and_placement_forgets_the_others() -> None:
    device = Device(by_increase(**{f"b{index}": 0.5 for index in range(MAX_PAIRS + 1)}), noise=0.0)
    for index in (*range(MAX_PAIRS), 0, MAX_PAIRS):
        for second in range(20):
            device.second(**{f"b{index}": 0.9 if second % 2 else 0.1})
    learnt = device.learnt()
    assert len(learnt) == MAX_PAIRS
    assert {"b0", f"b{MAX_PAIRS}"} <= learnt.keys()
    assert "b1" not in learnt
    assert device.table.increase("t4", "a", "b1") == DIFFERENT


def test_a_model_that_changes_is_followed() -> None:
    device = Device(by_increase(b=0.5))
    for second in range(200):
        device.second(b=second % 2)
    device.slowed = by_increase(b=0.1)
    for second in range(1000):
        device.second(b=second % 2)
    assert device.learnt() == {"b": pytest.approx(0.1, abs=0.05)}


def test_what_was_kept_is_in_force_until_more_is_learnt_here() -> None:
    device = Device(by_increase(b=0.1))
    kept = (LearntPair(beside="b", increase=0.7, requests=900.0), LearntPair(beside="x", increase=-1.0, requests=1.0))
    device.learner.restore("t4", "a", kept)
    assert device.table.increase("t4", "a", "b") == 0.7
    assert device.learnt() == {"b": 0.7}, "an impossible figure is left out"
    for second in range(100):
        device.second(b=second % 2)
    assert device.learnt() == {"b": pytest.approx(0.1, abs=0.03)}
    device.learner.restore("t4", "a", kept)
    assert device.learnt() == {"b": pytest.approx(0.1, abs=0.03)}


def test_memory_is_bounded() -> None:
    table = Interference()
    learner = InterferenceLearner(table)
    for index in range(3 * MAX_CELLS):
        own = work("a", batch=2.0**index)
        learner.learn({"a": own, "b": work(f"b{index}")}, {"a": ["b"]})
    for index in range(3 * MAX_PAIRS):
        learner.learn({"a": work("a"), "b": work(f"c{index}")}, {"a": ["b"]})
    (model,) = learner._models.values()
    for index in range(2 * MAX_MODELS):
        learner.restore("t4", f"m{index}", (LearntPair(beside="b", increase=0.5, requests=100.0),))
    assert len(learner._models) == MAX_MODELS
    assert learner.learnt("t4", "m0") == ()
    assert table.increase("t4", "m0", "b") == DIFFERENT, "placement forgets it too"
    assert table.increase("t4", f"m{2 * MAX_MODELS - 1}", "b") == 0.5
    assert len(model.cells) <= MAX_CELLS
    assert max(len(cell.beside) for cell in model.cells.values()) <= MAX_PAIRS


def test_without_knowledge_equal_models_slow_each_other_most_as_published() -> None:
    table = Interference()
    assert table.increase("t4", "a", "b") == DIFFERENT < EQUAL == table.increase("t4", "a", "a")
    table.set("t4", "a", "a", 0.05)
    table.set("t4", "b", "a", 0.3)
    assert table.added("t4", "a", ("a", "b")) == pytest.approx(0.05 + 0.05 + DIFFERENT + 0.3)
    assert table.added("t4", "a", ()) == 0.0
    assert table.increase("v100", "a", "a") == EQUAL


def test_work_is_the_difference_of_two_samples_and_a_cold_replica_has_none() -> None:
    before = replica_sample(
        "r", uptime_s=10.0, requests=8, inferences=8, busy_s=1.0, execution_s=1.0, in_flight_request_s=1.0
    )
    after = replica_sample(
        "r", uptime_s=12.0, requests=18, inferences=28, busy_s=2.0, execution_s=1.5, in_flight_request_s=2.5
    )
    found = shared_work(before, after, "t4", "a", 50)
    assert found is not None
    assert (found.seconds, found.requests, found.inferences, found.busy, found.execution_s) == (2.0, 10, 20, 0.5, 0.5)
    assert found.cell == (50, 2, 2)
    assert shared_work(after, after, "t4", "a", 50) is None
    assert shared_work(replica_sample("r", uptime_s=1.0, requests=7), after, "t4", "a", 50) is None
