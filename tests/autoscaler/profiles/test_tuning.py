"""From samples to limits: which seconds count, and that nothing moves by missing data."""

from dataclasses import replace
from typing import Any

import pytest

from tests.support.worlds.autoscaling import T0, replica_sample, revision
from tidegate.autoscaler.profiles.concurrency_limit import LearntLimit
from tidegate.autoscaler.profiles.tuning import Move, Tuners
from tidegate.function import ConcurrencyUnit, Sla
from tidegate.histogram import bucket_index
from tidegate.records.replica_sample import ReplicaSample

NAME = revision().id


class Fleet:
    """Replicas of one group, each sampled once a second."""

    def __init__(
        self, limit: int = 4, *, is_declared: bool = True, learnt: LearntLimit | None = None, **values: Any
    ) -> None:
        self.tuners = Tuners()
        self.function = replace(revision(concurrency=None).function, **values)
        if learnt is not None:
            self.tuners.restore(NAME, "cpu", learnt)
        self.last = replica_sample("r1", revision=NAME, limit=limit)
        self.tuners.found(self.function, self.last, "cpu", is_declared=is_declared)
        self.now = T0

    def second(
        self,
        *,
        done: int,
        used: float,
        limit: int | None = None,
        waiting: int = 0,
        batch: int = 1,
        took_s: float = 0.01,
        unanswered: int = 0,
    ) -> list[Move]:
        """``done`` requests ended, each after ``took_s``, with so many slots in use on average."""
        before = self.last
        counts = dict(before.execution)
        index = bucket_index(round(took_s * 1e6))
        counts[index] = counts.get(index, 0) + done
        self.last = after = replace(
            before,
            limit=self.limit if limit is None else limit,
            uptime_s=before.uptime_s + 1.0,
            sequence=before.sequence + 1,
            requests=before.requests + done,
            inferences=before.inferences + done * batch,
            unanswered=before.unanswered + unanswered,
            execution_s=before.execution_s + done * took_s,
            in_flight_request_s=before.in_flight_request_s + used / batch,
            in_flight_inference_s=before.in_flight_inference_s + used,
            execution=tuple(sorted(counts.items())),
        )
        self.tuners.measured(before, after, "cpu")
        return self.turn(waiting)

    def turn(self, waiting: int = 0) -> list[Move]:
        self.now += 1.0
        return self.tuners.turn(self.now, {NAME: waiting})

    @property
    def limit(self) -> int:
        found = self.tuners.limit(NAME, "cpu")
        assert found is not None
        return found.limit


def test_full_seconds_move_the_limit_step_by_step_with_reasons() -> None:
    fleet = Fleet(sla=Sla(latency_s=1.0))
    moves = [move for _ in range(100) for move in fleet.second(done=50, used=float(fleet.limit))]
    assert [(move.limit, move.reason.code) for move in moves] == [
        (3, "limit_tried"),
        (2, "limit_tried"),
        (1, "limit_tried"),
    ]
    found = fleet.tuners.limit(NAME, "cpu")
    assert found is not None
    assert (found.limit, found.most) == (1, 4)
    assert found.reason is not None


@pytest.mark.parametrize(
    "second",
    [
        {"done": 50, "used": 3.0},
        {"done": 50, "used": 1.9, "waiting": 9},
        {"done": 50, "used": 8.0, "limit": 8},
        {"done": 10, "used": 4.0, "unanswered": 40},
    ],
    ids=["a slot is free", "half of them are, though requests wait", "under another limit", "most left unanswered"],
)
def test_other_seconds_tell_nothing(second: dict[str, Any]) -> None:
    fleet = Fleet()
    assert [move for _ in range(100) for move in fleet.second(**second)] == []
    assert fleet.limit == 4


@pytest.mark.parametrize("start", [12, 16])
def test_a_limit_whose_executions_outlast_the_clients_comes_down(start: int) -> None:
    """Ten requests a second are served, however many at a time; clients wait 1.1 s, the target is 1 s."""
    fleet = Fleet(start, sla=Sla(latency_s=1.0))
    moves = []
    while fleet.limit > 6 and fleet.now < T0 + 300:
        took_s = 0.1 * fleet.limit
        served = {"done": 10, "took_s": took_s} if took_s < 1.1 else {"done": 0, "unanswered": round(fleet.limit / 1.1)}
        moves += fleet.second(used=float(fleet.limit), **served)
    assert [move.limit for move in moves] == [limit for limit in (12, 8, 6) if limit < start]
    assert {move.reason.code for move in moves} == {"limit_no_room"}


def test_clients_who_give_up_at_once_say_nothing_of_a_limit() -> None:
    fleet = Fleet(8, sla=Sla(latency_s=1.0))
    moves = [fleet.second(done=20, used=8.0, took_s=0.3, unanswered=100) for _ in range(300)]
    assert not any(moves), "20 ms in the model each"


def test_what_is_still_in_flight_has_not_outlasted_anybody() -> None:
    """Four slots, 6.9 s each, 7.7 have room; one client gives up at once. After 20 s four are 6.2 s on their way."""
    fleet = Fleet(4, sla=Sla(latency_s=11.0))
    for second in range(1, 21):
        done = 4 if second in (7, 14) else 0
        assert fleet.second(done=done, used=4.0, took_s=6.9, unanswered=int(second == 1)) == []


def test_a_moment_of_lost_requests_moves_nothing() -> None:
    fleet = Fleet(4, sla=Sla(latency_s=0.1))
    codes = set()
    for second in range(300):
        is_lost = second % 15 == 0
        seen: dict[str, int] = {"done": 0, "unanswered": 8} if is_lost else {"done": 10 * fleet.limit}
        codes |= {move.reason.code for move in fleet.second(used=float(fleet.limit), took_s=0.05, **seen)}
    assert codes == {"limit_tried", "limit_too_small"}


def test_waiting_requests_say_that_the_other_slots_are_credits_on_their_way() -> None:
    fleet = Fleet()
    assert any(fleet.second(done=50, used=2.4, waiting=3) for _ in range(40))


def test_silence_moves_nothing() -> None:
    fleet = Fleet()
    for _ in range(15):
        fleet.second(done=50, used=4.0)
    assert [move for _ in range(1000) for move in fleet.turn(waiting=50)] == []
    assert fleet.limit == 4


def test_the_tail_is_of_the_present_limit_alone() -> None:
    """Execution grows with company: 25 ms a slot, 100 ms of target; the tail of eight slots must not haunt two."""
    fleet = Fleet(8, sla=Sla(latency_s=0.1))
    for _ in range(200):
        fleet.second(done=20 * fleet.limit, used=float(fleet.limit), took_s=0.025 * fleet.limit)
    assert fleet.limit == 2


def test_another_latency_target_moves_a_limit_that_had_settled() -> None:
    """A stage of a pipeline gets a budget of its own: 100 ms for four slots at once are too long then."""
    fleet = Fleet(4)
    for _ in range(100):
        fleet.second(done=20 * fleet.limit, used=float(fleet.limit), took_s=0.025 * fleet.limit)
    assert fleet.limit == 4, "no target yet"
    budget = replace(fleet.function, sla=Sla(latency_s=0.1, percentile=99.0))
    fleet.tuners.found(budget, fleet.last, "cpu", is_declared=True)
    for _ in range(200):
        fleet.second(done=20 * fleet.limit, used=float(fleet.limit), took_s=0.025 * fleet.limit)
    assert fleet.limit == 2


def test_what_is_not_declared_may_grow() -> None:
    fleet = Fleet(4, is_declared=False)
    moves = [move.limit for _ in range(30) for move in fleet.second(done=12 * fleet.limit, used=float(fleet.limit))]
    assert moves[0] == 6


def test_slots_may_be_inferences() -> None:
    fleet = Fleet(4, concurrency_unit=ConcurrencyUnit.INFERENCES)
    assert any(fleet.second(done=10, used=4.0, batch=4) for _ in range(30))


def test_a_group_goes_on_where_it_was() -> None:
    first = Fleet(16)
    for _ in range(60):
        first.second(done=10 * first.limit, used=float(first.limit))
    ((_, learnt),) = first.tuners.learnt(NAME)
    later = Fleet(4, learnt=learnt)
    assert (later.limit, learnt.most) == (first.limit, 16)
    assert later.second(done=10 * later.limit, used=float(later.limit)) == []


def test_a_given_limit_and_none_at_all_are_left_alone() -> None:
    for given in (4, 0):
        fleet = Fleet(4, concurrency=given)
        assert fleet.tuners.limit(NAME, "cpu") is None
    assert Fleet(0).tuners.limit(NAME, "cpu") is None
    fleet = Fleet()
    fleet.tuners.forget(NAME)
    assert fleet.tuners.limit(NAME, "cpu") is None


def test_a_sample_from_a_clock_that_stands_still_is_passed_over() -> None:
    fleet = Fleet()
    same: ReplicaSample = fleet.last
    fleet.tuners.measured(same, same, "cpu")
    assert fleet.turn() == []
