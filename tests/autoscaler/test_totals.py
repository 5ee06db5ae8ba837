"""One limit for all: minima first, then evenly, and never more than the limit."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.totals import Totals, Want, allot


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
    totals.wanted("a", Want(6), 4, 4)
    assert totals.most("b", 0) == 0, "nothing is free yet"
    totals.wanted("b", Want(6), 0, 0)
    totals.begin({"a": 4, "b": 0}.items())
    assert (totals.most("a", 4), totals.most("b", 0)) == (2, 0), "one gives back, the other waits for it"
    totals.begin({"a": 2, "b": 0}.items())
    assert totals.most("b", 0) == 2
    totals.wanted("b", Want(6), 0, 2)
    assert totals.most("a", 2) == 2
    assert "0 free" in repr(totals)
