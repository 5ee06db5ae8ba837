"""Timelines of replicas that fail: ejected, probed, on trial, and circuits when all of them fail."""

import pytest

from tidegate.flow.outliers import PROBE_AGAIN_S, STALL_S, TRIAL_S, Outliers, Stalls
from tidegate.records.route_table import OutlierRules

RULES = OutlierRules(failures=3, ejection_s=10.0, max_percent=50)
REV = "f-00001"


class Revision:
    """Replicas that fail and answer one request after the other, one a second."""

    def __init__(self, ready: int, rules: OutlierRules = RULES) -> None:
        self.outliers = Outliers()
        self.ready = ready
        self.rules = rules
        self.now = 100.0

    def fails(self, replica: str, times: int = 1) -> float | None:
        """The end of the ejection that the last failure brought."""
        until = None
        for _ in range(times):
            begun, self.now = self.now, self.now + 1.0
            until = self.outliers.failed(replica, REV, self.rules, begun, self.now, self.ready)
        if until is not None:
            self.ready -= 1
        return until

    def answers(self, replica: str) -> None:
        self.now += 1.0
        self.outliers.succeeded(replica, self.now)

    def probes(self, at: float, ok: bool) -> list[str]:
        self.now = at
        due = self.outliers.due(at)
        for replica in due:
            if self.outliers.probed(replica, ok, at) is None:
                self.ready += 1
        return due


def test_failures_in_a_row_eject_and_an_answer_between_them_does_not() -> None:
    world = Revision(ready=2)
    assert world.fails("a", 2) is None
    world.answers("a")
    assert world.fails("a", 2) is None
    assert world.fails("a") == world.now + 10.0
    assert (world.outliers.ejected(REV), world.outliers.ejections) == (1, {REV: 1})


def test_what_fails_together_is_one_failure() -> None:
    world = Revision(ready=2)
    for _ in range(40):
        assert world.outliers.failed("a", REV, RULES, 100.0, 101.0, 2) is None
    assert world.outliers.failed("a", REV, RULES, 102.0, 103.0, 2) is None
    assert world.outliers.failed("a", REV, RULES, 104.0, 105.0, 2) == 115.0


def test_it_is_probed_when_the_time_is_over_and_the_first_request_decides() -> None:
    world = Revision(ready=2)
    until = world.fails("a", 3)
    assert until is not None
    assert world.probes(until - 0.1, ok=True) == []
    assert world.probes(until, ok=False) == ["a"]
    assert world.probes(until + PROBE_AGAIN_S / 2, ok=True) == []
    assert world.probes(until + PROBE_AGAIN_S, ok=True) == ["a"]
    assert world.outliers.ejected(REV) == 0
    again = world.fails("a")
    assert again == world.now + 20.0, "one failure on trial is enough, and the second time is twice as long"


def test_an_answer_on_trial_gives_it_a_clean_slate() -> None:
    world = Revision(ready=2)
    until = world.fails("a", 3)
    assert until is not None
    world.probes(until, ok=True)
    world.answers("a")
    assert world.fails("a", 2) is None


def test_ejections_double_up_to_ten_times_and_a_long_good_time_is_forgiven() -> None:
    world = Revision(ready=2)
    lengths = []
    until = world.fails("a", 3)
    for _ in range(6):
        assert until is not None
        lengths.append(until - world.now)
        world.probes(until, ok=True)
        until = world.fails("a")
    assert lengths == [10.0, 20.0, 40.0, 80.0, 100.0, 100.0]
    assert until is not None
    world.probes(until, ok=True)
    world.now += 100.0
    world.answers("a")
    assert not world.outliers.suspects
    until = world.fails("a", 3)
    assert until == world.now + 10.0


def test_a_replica_that_flaps_for_days_is_ejected_for_the_longest_time_each_time() -> None:
    """Its probes succeed, its requests fail: no power of two is ever too large."""
    world = Revision(ready=2)
    until = world.fails("a", 3)
    for _ in range(1100):
        assert until is not None
        world.probes(until, ok=True)
        until = world.fails("a")
    assert world.now > 86_400
    assert until == world.now + 100.0


def test_when_those_that_were_left_are_gone_the_ejected_are_asked_at_once_and_then_every_second() -> None:
    world = Revision(ready=3, rules=OutlierRules(failures=1, ejection_s=10.0, max_percent=100))
    for replica in ("a", "b"):
        assert world.fails(replica) is not None
    outliers, now = world.outliers, world.now
    assert outliers.reduced() == {REV}
    outliers.hasten("g-00001", now)
    assert world.probes(now, ok=False) == []
    outliers.hasten(REV, now)
    assert world.probes(now, ok=False) == ["a", "b"]
    outliers.hasten(REV, now + 0.25)
    assert world.probes(now + 0.25, ok=True) == []
    assert world.probes(now + PROBE_AGAIN_S, ok=True) == ["a", "b"]
    assert outliers.reduced() == set()


@pytest.mark.parametrize(
    ("ready", "percent", "ejected"),
    [(1, 100, 0), (2, 100, 1), (2, 50, 1), (3, 50, 1), (4, 50, 2), (4, 100, 3), (10, 9, 0), (10, 10, 1)],
)
def test_never_more_than_the_percentage_and_never_the_last(ready: int, percent: int, ejected: int) -> None:
    world = Revision(ready, OutlierRules(failures=1, max_percent=percent))
    for number in range(ready):
        world.fails(f"r{number}")
    assert world.outliers.ejected(REV) == ejected


def test_one_that_could_not_be_ejected_is_when_another_returns() -> None:
    world = Revision(ready=2)
    until = world.fails("a", 3)
    assert until is not None
    assert world.fails("b", 3) is None, "it is the last one"
    world.probes(until, ok=True)
    assert world.fails("b") is not None


def test_when_every_replica_fails_one_request_a_second_is_let_through_until_one_is_answered() -> None:
    world = Revision(ready=2)
    world.fails("a", 3)
    assert not world.outliers.refuses(REV, world.now)
    world.fails("b", 3)
    now = world.now
    assert [world.outliers.refuses(REV, now + step * TRIAL_S / 10) for step in (0, 9, 10, 11, 19, 20)] == [
        True,
        True,
        False,
        True,
        True,
        False,
    ]
    world.answers("b")
    assert not world.outliers.refuses(REV, world.now)


def test_one_replica_that_still_answers_keeps_the_circuit_closed() -> None:
    world = Revision(ready=3, rules=OutlierRules(failures=3, max_percent=0))
    world.fails("a", 9)
    world.fails("b", 9)
    assert not world.outliers.refuses(REV, world.now)


def test_a_replica_that_changed_starts_anew() -> None:
    world = Revision(ready=1)
    world.fails("a", 3)
    assert world.outliers.refuses(REV, world.now)
    world.outliers.changed("a", REV)
    assert not world.outliers.refuses(REV, world.now)
    assert world.fails("a", 2) is None


def test_a_probe_from_before_it_changed_does_not_end_a_new_ejection() -> None:
    world = Revision(ready=3)
    world.fails("a", 3)
    world.now += 10.0
    assert world.outliers.due(world.now) == ["a"]
    world.outliers.changed("a", REV)
    until = world.fails("a", 3)
    assert until is not None and world.outliers.probed("a", True, world.now) == until
    assert world.outliers.ejected(REV) == 1


def test_without_a_replica_that_serves_none_is_refused() -> None:
    world = Revision(ready=0)
    world.fails("a", 9)
    assert not world.outliers.refuses(REV, world.now)


def test_what_left_the_table_is_forgotten() -> None:
    world = Revision(ready=2)
    world.fails("a", 3)
    world.fails("b", 3)
    world.outliers.keep(frozenset({"b"}), frozenset({REV}))
    assert world.outliers.probed("a", True, world.now) is None
    assert not world.outliers.refuses(REV, world.now)
    world.outliers.keep(frozenset(), frozenset())
    assert (world.outliers.suspects, world.outliers.ejections) == ({}, {})


def test_replicas_that_never_failed_and_other_revisions_count_for_nothing() -> None:
    world = Revision(ready=2)
    world.fails("a", 3)
    world.outliers.keep(frozenset({"a", "never failed"}), frozenset({REV}))
    assert world.outliers.ejected(REV) == 1
    assert (world.outliers.ejected("f-00000"), world.outliers.ejected("f-00002")) == (0, 0)


def test_no_rules_no_ejection() -> None:
    world = Revision(ready=2, rules=OutlierRules(failures=0))
    assert world.fails("a", 50) is None
    assert not world.outliers.suspects


# --- replicas that hang


def test_a_replica_that_hangs_is_ejected_within_the_bounds() -> None:
    outliers = Outliers()
    assert outliers.hangs("a", REV, OutlierRules(failures=0), 100.0, 2) is None, "ejection is off"
    assert outliers.hangs("a", REV, RULES, 100.0, 1) is None, "the last one that serves stays"
    assert outliers.suspects == {}
    assert outliers.hangs("a", REV, RULES, 100.0, 2) == 110.0
    assert outliers.hangs("a", REV, RULES, 101.0, 2) is None, "it is out already"
    assert outliers.due(110.0) == ["a"]
    assert outliers.probed("a", True, 110.0) is None
    assert outliers.hangs("a", REV, RULES, 111.0, 2) == 131.0, "twice as long soon after the first time"
    assert outliers.ejections == {REV: 2}


def test_a_replica_that_ends_nothing_is_asked_once_in_a_while() -> None:
    stalls = Stalls()
    asked = [second for second in range(10) if stalls.look(float(second), [("a", 0.0)])]
    assert asked == [2, 4, 6, 8]
    assert STALL_S == 2.0


def test_a_request_that_ends_begins_the_time_anew() -> None:
    stalls = Stalls()
    assert not any(stalls.look(float(second), [("a", float(second))]) for second in range(10))
    assert not stalls.look(10.0, [("a", 9.0)])
    assert stalls.look(11.0, [("a", 9.0)]) == ["a"]


def test_time_without_work_does_not_count_and_none_is_remembered() -> None:
    stalls = Stalls()
    stalls.look(0.0, [("a", 0.0), ("b", 0.0)])
    assert "2 replicas" in repr(stalls)
    assert not stalls.look(100.0, [])
    assert "0 replicas" in repr(stalls)
    assert not stalls.look(101.0, [("a", 0.0)]), "its work is new"
    assert stalls.look(103.0, [("a", 0.0)]) == ["a"]
