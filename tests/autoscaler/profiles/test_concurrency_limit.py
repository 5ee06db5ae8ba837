"""The learnt concurrency limit: the smallest one that yields nearly the best, with room inside the target."""

import itertools
from collections.abc import Callable

import pytest

from tests.support.worlds.autoscaling import T0
from tidegate.autoscaler.profiles.concurrency_limit import RETRY_S, STEPS, FullWork, LimitLearner


def run(
    learner: LimitLearner,
    yields: Callable[[int], float],
    seconds: int,
    tail: Callable[[int], float] = lambda limit: 0.01,
    start: float = T0,
) -> list[int]:
    """The limit after each second in which one replica has every slot taken."""
    limits = []
    for second in range(seconds):
        work = FullWork(inferences=yields(learner.limit), busy_s=1.0, tail_s=tail(learner.limit))
        limits.append(learner.observe(start + second, work).limit)
    return limits


def saturating(limit: int) -> float:
    """Parallel up to eight, no more after."""
    return 10.0 * min(limit, 8)


def moves(limits: list[int]) -> list[int]:
    return [later for earlier, later in itertools.pairwise(limits) if earlier != later]


def test_it_climbs_to_where_more_slots_bring_nothing() -> None:
    limits = run(LimitLearner(slo_s=1.0), saturating, 500)
    assert limits[-1] == 8
    assert moves(limits) == [6, 8, 12, 8], "twelve was tried and given up; six is known to be worse"


def test_it_comes_down_to_one_where_the_server_does_one_at_a_time() -> None:
    limits = run(LimitLearner(slo_s=1.0), lambda limit: 10.0, 500)
    assert moves(limits) == [6, 4, 3, 2, 1]


def test_what_was_left_is_tried_again_later_and_later() -> None:
    learner = LimitLearner(start=8, slo_s=1.0)
    limits = run(learner, saturating, int(8 * RETRY_S))
    assert limits[-1] == 8
    tries = [index for index, (now, then) in enumerate(itertools.pairwise(limits)) if (now, then) == (8, 12)]
    waits = [(later - earlier) / RETRY_S for earlier, later in itertools.pairwise(tries)]
    assert waits == sorted(waits)
    assert len(tries) <= 4
    assert limits.count(8) > 0.95 * len(limits), "trying costs little"
    # The server became more parallel meanwhile.
    assert max(run(learner, lambda limit: 10.0 * limit, int(20 * RETRY_S), start=T0 + 8 * RETRY_S)) > 12


def test_execution_must_leave_room_inside_the_target() -> None:
    learner = LimitLearner(slo_s=0.2)
    limits = run(learner, lambda limit: 10.0 * limit**0.5, 400, tail=lambda limit: 0.03 * limit)
    assert limits[-1] == 4, "120 ms of 200; six would take 180"
    crowded = LimitLearner(start=32, slo_s=0.2)
    assert run(crowded, lambda limit: 10.0, 400, tail=lambda limit: 0.03 * limit)[-1] <= 4
    hopeless = LimitLearner(start=2, slo_s=0.01)
    assert run(hopeless, lambda limit: 10.0, 60, tail=lambda limit: 1.0)[-1] == 1


def test_what_outlasts_clients_lowers_the_limit_and_voids_what_larger_ones_yielded() -> None:
    learner = LimitLearner(start=8, slo_s=1.0)
    assert run(learner, saturating, 500)[-1] == 8, "twelve is known"
    assert learner.outlasted(T0 + 500, 0.7) is None
    moved = learner.outlasted(T0 + 500, 1.5)
    assert moved is not None
    assert (moved.limit, moved.reason.code) == (6, "limit_no_room")
    assert run(learner, saturating, 60, start=T0 + 500)[-1] <= 6, "eight has no room, so twelve has none"
    assert LimitLearner(start=8).outlasted(T0, 99.0) is None, "any time is good"


@pytest.mark.parametrize("bad", [FullWork(), FullWork(inferences=float("nan"), busy_s=1.0), FullWork(busy_s=-1.0)])
def test_nothing_is_learnt_without_full_replicas(bad: FullWork) -> None:
    learner = LimitLearner()
    advice = [learner.observe(T0 + second, bad) for second in range(100)]
    assert {(each.limit, each.reason.code) for each in advice} == {(4, "limit_measuring")}


def test_the_server_may_allow_less() -> None:
    learner = LimitLearner(most=5)
    run(learner, lambda limit: 10.0 * limit, 200)
    assert learner.limit == 4
    assert LimitLearner(start=4, most=2).limit == 2
    assert list(STEPS) == sorted(STEPS)
