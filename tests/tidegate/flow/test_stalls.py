"""Who has work and ends none of it is asked, again and again; who ends some is not."""

from tidegate.flow.stalls import STALL_S, Stalls


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


def test_time_without_work_does_not_count_and_nobody_is_remembered() -> None:
    stalls = Stalls()
    stalls.look(0.0, [("a", 0.0), ("b", 0.0)])
    assert "2 replicas" in repr(stalls)
    assert not stalls.look(100.0, [])
    assert "0 replicas" in repr(stalls)
    assert not stalls.look(101.0, [("a", 0.0)]), "its work is new"
    assert stalls.look(103.0, [("a", 0.0)]) == ["a"]
