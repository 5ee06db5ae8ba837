"""One limit for all: minima first, then evenly, and never more than the limit."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.worlds.autoscaling import group, observation
from tidegate.autoscaler.decisions.totals import Totals, Want, allot, is_idle


@pytest.mark.parametrize(
    ("total", "wants", "expect"),
    [
        (10, {"a": Want(3), "b": Want(4)}, {"a": 3, "b": 4}),
        (10, {"a": Want(8), "b": Want(8)}, {"a": 5, "b": 5}),
        (10, {"a": Want(20), "b": Want(2), "c": Want(20)}, {"a": 4, "b": 2, "c": 4}),
        (5, {"a": Want(9, 4), "b": Want(9)}, {"a": 4, "b": 1}),
        (3, {"a": Want(1, 1), "b": Want(9, 9), "c": Want(1, 1)}, {"a": 1, "b": 1, "c": 1}),
        (2, {"a": Want(1), "b": Want(1), "c": Want(1)}, {"a": 1, "b": 1, "c": 0}),
        (0, {"a": Want(1)}, {"a": 0}),
    ],
)
def test_shares(total: int, wants: dict[str, Want], expect: dict[str, int]) -> None:
    assert allot(total, wants) == expect


@given(
    st.integers(0, 60),
    st.dictionaries(st.text("abcdef", min_size=1, max_size=3), st.tuples(st.integers(0, 30), st.integers(0, 10))),
)
def test_shares_are_bounded_complete_and_max_min_fair(total: int, raw: dict[str, tuple[int, int]]) -> None:
    wants = {name: Want(*each) for name, each in raw.items()}
    got = allot(total, wants)
    assert sum(got.values()) == min(total, sum(want.wanted for want in wants.values()))
    assert all(0 <= got[name] <= want.wanted for name, want in wants.items())
    for name, want in wants.items():
        if got[name] < want.wanted:
            floors = {each: min(other.least, other.wanted) for each, other in wants.items()}
            assert all(got[each] <= max(got[name] + 1, floors[each]) for each in wants), "who has more had to"


def test_a_share_is_had_once_there_is_place() -> None:
    totals = Totals(4)
    totals.begin({"a": 4, "b": 0}.items())
    totals.wanted("a", Want(6), 4, 0)
    assert totals.most("b", 0) == 0, "nothing is free yet"
    totals.wanted("b", Want(6), 0, 0)
    totals.begin({"a": 4, "b": 0}.items())
    assert (totals.most("a", 4), totals.most("b", 0)) == (2, 0), "one gives back, the other waits for it"
    totals.begin({"a": 2, "b": 0}.items())
    assert totals.most("b", 0) == 2
    totals.wanted("b", Want(6), 2, 2)
    assert totals.most("a", 2) == 2
    assert "0 free" in repr(totals)


def test_a_place_stays_with_its_holder_then_with_its_function_and_goes_to_those_who_are_asked_for() -> None:
    one = {name: Want(1, 1, function=name[0]) for name in ("a1", "a2", "b1")}
    assert allot(2, one, {"a1": 1, "b1": 1}) == {"a1": 1, "a2": 0, "b1": 1}, "a deploy takes no other function's place"
    follows = {**one, "b1": Want(0, function="b"), "b2": Want(1, 1, function="b")}
    assert allot(2, follows, {"a1": 1, "b1": 1})["b2"] == 1, "the new revision follows the old one"
    assert allot(2, follows, {"a1": 1}, {"a1": 1, "b1": 1})["b2"] == 1, "also when that has just left"
    promised = {**follows, "a2": Want(0, function="a"), "b2": Want(1, 1, function="b"), "c": Want(1, 1, function="c")}
    assert allot(2, promised, {"a1": 1, "b1": 1}, {"a1": 1, "c": 1})["b2"] == 1, "before a mere promise too"
    idle = {"a": Want(1, idle=1), "z": Want(1)}
    assert allot(1, idle, {"a": 1}) == {"a": 0, "z": 1}
    assert allot(1, {**idle, "z": Want(1, idle=1)}, {"z": 1}) == {"a": 0, "z": 1}


def test_a_new_revision_takes_one_of_several_of_its_own_function() -> None:
    wants = {"a1": Want(5, function="a"), "a2": Want(1, idle=1, function="a"), "b": Want(9, function="b")}
    assert allot(6, wants, {"a1": 3, "b": 3}) == {"a1": 2, "a2": 1, "b": 3}
    assert allot(2, wants, {"a1": 1, "b": 1}) == {"a1": 1, "a2": 0, "b": 1}, "never the only one"


def test_what_none_wanted_is_had_at_once_and_what_drains_has_its_place() -> None:
    totals = Totals(2)
    totals.begin({"a": 0, "b": 0}.items())
    for name in ("a", "b"):
        totals.wanted(name, Want(0), 0, 0)
    totals.begin({"a": 1, "b": 0}.items())
    assert (totals.most("a", 0, draining=1), totals.most("b", 0)) == (2, 1)
    totals.wanted("a", Want(2), 2, 1)
    assert totals.most("b", 0) == 0


def test_who_is_idle() -> None:
    assert is_idle(observation(group(ready=1)), 2.0)
    assert not is_idle(observation(group(ready=1)), 1.9), "a pause between two requests"
    assert is_idle(observation(group()), 0.0), "a first start that no request waits for"
    assert not is_idle(observation(group(starting=1)), 60.0), "a start is let to its end"
    assert not is_idle(observation(group(), waiting=1), 0.0)
    assert not is_idle(observation(group(ready=1), complete=False), 60.0)
