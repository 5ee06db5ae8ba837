"""Channels and credits: what a waiting head lacks, its place among others, and who gets and gives idle credits."""

import pytest

from tidegate.flow.credits import BUSY, GONE, IDLE, Channel, Credit, Visit, to_deal, to_recall
from tidegate.flow.wants import Want


def channel(amount: int = 0, idle: tuple[int, ...] = (), *, need: int = 1) -> Channel:
    """``idle``: the units of its idle credits."""
    made = Channel("w1")
    made.want, made.need = Want(1, amount, priority=3), need
    made.idle = {number: Credit(number, units, made, 0.0) for number, units in enumerate(idle)}
    return made


def test_a_channel_begins_open_and_without_a_want() -> None:
    made = Channel("w1")
    assert (made.open, made.silent, made.want, made.need, made.sequence) == (True, False, Want(0, 0), 1, 0)
    assert (made.head_at, made.tail_at, made.wants_since, made.spent, made.typical) == (0.0, 0.0, 0.0, 0, 1)
    assert (made.short_sent, made.idle) == (False, {})
    assert repr(made) == "<Channel w1 wants 0, 0 idle>"
    made.silent = True
    assert repr(made) == "<Channel w1 wants 0, 0 idle, silent>"


@pytest.mark.parametrize(
    ("amount", "idle", "need", "lacks", "serving"),
    [
        (3, (), 1, 3, 0),
        (3, (1, 1), 1, 1, 2),
        (3, (4, 1), 1, 1, 2),
        (3, (4, 1), 2, 2, 1),
        (3, (4, 2), 2, 1, 2),
        (1, (1, 1), 1, -1, 2),
        (1, (1, 1), 2, 1, 0),
    ],
)
def test_a_request_lacks_a_credit_of_its_size(
    amount: int, idle: tuple[int, ...], need: int, lacks: int, serving: int
) -> None:
    made = channel(amount, idle, need=need)
    assert (made.lacks, made.serving) == (lacks, serving)


@pytest.mark.parametrize(
    ("amount", "idle", "arrived"),
    [(5, 0, 10.0), (5, 1, 12.0), (5, 2, 14.0), (5, 4, 18.0), (1, 1, 10.0), (1, 0, 10.0), (2, 1, 18.0)],
)
def test_the_arrival_of_the_first_without_a_credit_lies_between_head_and_tail(
    amount: int, idle: int, arrived: float
) -> None:
    made = channel(amount, (1,) * idle)
    made.head_at, made.tail_at, made.spent = 10.0, 18.0, 7
    assert made.place() == (3, 7, arrived)


def test_a_credit_shows_its_state() -> None:
    made = Credit(7, 2, Channel("w1"), 5.0)
    assert (made.state, made.since, made.recalled_at, made.kept, made.returned) == (IDLE, 5.0, None, False, False)
    assert repr(made) == "<Credit 7 of 2 at w1, idle>"
    made.state = BUSY
    assert repr(made) == "<Credit 7 of 2 at w1, busy>"
    made.state = GONE
    assert repr(made) == "<Credit 7 of 2 at w1, gone>"
    assert repr(Credit(7, 2, None, 5.0)) == "<Credit 7 of 2 at visit, idle>"
    assert Visit("r", 1, 0.0).credit is None


def numbers(chosen: list[Credit]) -> list[int]:
    return [credit.number for credit in chosen]


def test_a_credit_that_does_not_carry_the_head_is_spared_first() -> None:
    made = channel(1, (4, 1, 2, 1), need=2)
    assert numbers(made.spare(0)) == [1, 3, 0, 2]
    assert numbers(made.spare(3)) == [1]
    assert made.spare(4) == made.spare(5) == []
    made.idle[1].recalled_at = 1.0
    assert numbers(made.spare(1)) == [3, 0], "one is recalled already"


def test_the_channel_that_holds_most_beyond_its_wants_gives_first() -> None:
    wanting, holding = channel(3, (1, 1, 1, 1)), channel(0, (1, 1))

    def recalled(units: int, *, is_shrinking: bool = False) -> list[tuple[Channel, list[int]]]:
        return [(one, numbers(chosen)) for one, chosen in to_recall((wanting, holding), units, is_shrinking)]

    assert recalled(0) == recalled(-1) == []
    assert recalled(1) == [(holding, [0])]
    assert recalled(3) == [(holding, [0, 1]), (wanting, [0])]
    assert recalled(9) == [(holding, [0, 1]), (wanting, [0])], "the others are for its own requests"
    assert recalled(9, is_shrinking=True) == [(holding, [0, 1]), (wanting, [0, 1, 2, 3])]


def test_a_claim_is_no_larger_than_the_credits_that_can_serve_it() -> None:
    made = channel(3, (1, 1, 4), need=2)
    assert [numbers(chosen) for _, chosen in to_recall((made,), 9, False)] == [[0, 1]]


def test_credits_are_recalled_until_their_units_suffice() -> None:
    made = channel(0, (3, 3, 3))
    assert [numbers(chosen) for _, chosen in to_recall((made,), 4, False)] == [[0, 1]]
    assert [numbers(chosen) for _, chosen in to_recall((made,), 3, False)] == [[0]]


def test_the_channel_that_holds_fewest_is_dealt_to_in_the_order_given() -> None:
    one, two, three = channel(0, (1,)), channel(), channel()
    dealt = [(each, units) for each, units in to_deal((one, two, three), 4, 9)]
    assert dealt == [(two, 1), (three, 1), (one, 1), (two, 1)]
    assert list(to_deal((one, two), 0, 9)) == list(to_deal((), 1, 9)) == []


def test_a_channel_is_dealt_credits_of_its_usual_size_while_they_fit() -> None:
    large, small = channel(), channel()
    large.typical, small.typical = 3, 1
    assert list(to_deal((large, small), 5, 9)) == [(large, 3), (small, 1), (small, 1)]
    assert list(to_deal((large,), 3, 9)) == [(large, 3)]
    assert list(to_deal((large,), 4, 2)) == [(large, 2), (large, 2)], "one larger than the limit runs alone"
