"""Channels and credits: what a waiting head lacks, and its place among others."""

import pytest

from tidegate.flow.credits import BUSY, GONE, IDLE, Channel, Credit, Visit
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
