"""The accounts of a slot ledger, step by step; its decisions are in ``test_slots.py``."""

import zlib

import pytest

from tidegate.flow.accounting import SlotAccounting, parts
from tidegate.flow.credits import BUSY, Admit, Channel, Credit, Send, Visit
from tidegate.flow.messages import Grant, Recall, Void
from tidegate.flow.wants import Want
from tidegate.records.replica_state import ConcurrencyUnit


def accounts(limit: int = 4, channels: int = 1) -> tuple[SlotAccounting, list[Channel]]:
    made = SlotAccounting(incarnation="i1", limit=limit, unit=ConcurrencyUnit.REQUESTS)
    made._channels = [Channel(f"w{number}") for number in range(channels)]
    return made, made._channels


def test_credits_are_numbered_from_the_incarnation_on() -> None:
    made, (one,) = accounts()
    first = made._issue(one, 3, 1.0)
    assert first.number == (zlib.crc32(b"i1") << 20) + 1
    assert made._issue(one, 1, 1.0).number == first.number + 1
    assert (made._charged, next(iter(one.idle.values())), made.queued, made.channels) == (4, first, 0, (one,))


@pytest.mark.parametrize(("limit", "units", "need"), [(4, 3, 3), (4, 4, 4), (4, 5, 4), (0, 5, 5)])
def test_a_request_larger_than_the_limit_is_charged_the_limit(limit: int, units: int, need: int) -> None:
    made, (one,) = accounts(limit)
    made._set_want(one, Want(1, 1, units=units), 0.0)
    assert (made._need(units), one.need) == (need, need)


def test_a_want_has_its_times_on_the_ledgers_clock() -> None:
    made, (one,) = accounts()
    one.short_sent = True
    made._set_want(one, Want(9, 2, age_ms=1500, tail_ms=500), 10.0)
    assert (one.head_at, one.tail_at, one.wants_since, one.sequence, one.short_sent) == (8.5, 9.5, 10.0, 9, False)
    made._set_want(one, Want(10, 3), 12.0)
    assert one.wants_since == 10.0, "since it rose from zero"
    made._set_want(one, Want(11, 0), 13.0)
    made._set_want(one, Want(12, 1), 14.0)
    assert one.wants_since == 14.0


def test_the_channels_that_want_are_counted() -> None:
    made, (one, two) = accounts(channels=2)
    counts = []
    for channel, amount in ((one, 1), (one, 2), (two, 1), (one, 0), (one, 0), (two, 0), (one, 3)):
        made._set_want(channel, Want(1, amount), 0.0)
        counts.append(made._wanting)
    assert counts == [1, 1, 2, 1, 1, 0, 1]


def test_a_new_waiter_is_not_behind_the_virtual_time_nor_before_it() -> None:
    made, (one, two) = accounts(channels=2)
    made._virtual_time, one.spent, two.spent = 5, 3, 8
    for channel in (one, two):
        made._set_want(channel, Want(1, 1), 0.0)
    assert (one.spent, two.spent) == (5, 8)
    made._virtual_time = 9
    made._set_want(one, Want(2, 2), 0.0)
    assert one.spent == 5, "it waited already"


def test_a_charge_grows_the_account_by_the_cost_of_the_head() -> None:
    made, (one, two, idle) = accounts(channels=3)
    for channel, cost, spent in ((one, 7, 4), (two, 1, 6)):
        made._set_want(channel, Want(1, 1, cost=cost), 0.0)
        channel.spent = spent
    made._charge(one)
    assert (one.spent, made._virtual_time, made._last_cost) == (11, 4, 7)
    made._charge(one)
    assert (one.spent, made._virtual_time) == (18, 6), "the lowest that waits, never less than before"
    two.spent = 2
    made._charge(two)
    assert (two.spent, made._virtual_time, made._last_cost) == (3, 6, 1)
    made._set_want(idle, Want(1, 1), 0.0)
    made._charge(idle)
    assert (idle.spent, made._last_cost) == (6, 1), "no cost, no charge"


def test_the_best_is_the_class_then_the_account_then_the_arrival() -> None:
    made, (one, two) = accounts(channels=2)
    assert made._best(()) is None
    made._set_want(one, Want(1, 1, priority=5, age_ms=100), 10.0)
    made._set_want(two, Want(1, 1, priority=5, age_ms=200), 10.0)
    assert made._best(()) is two
    assert made._best((two,)) is one
    assert made._best((one, two)) is None
    two.spent = 1
    assert made._best(()) is one
    made._set_want(two, Want(2, 1, priority=4), 10.0)
    assert made._best(()) is two
    visit = Visit("r", 1, 9.0)
    made._fifo.append(visit)
    assert made._best(()) is two
    assert made._best((two,)) is visit
    made._set_want(one, Want(2, 1, priority=5, age_ms=1500), 10.0)
    assert made._best((two,)) is one
    one.idle[1] = Credit(1, 1, one, 10.0)
    assert made._best((two,)) is visit, "a credit is on its way"


def test_what_is_missing_is_what_waits_beyond_what_is_free() -> None:
    made, (one, two) = accounts(4, 2)
    assert made._missing() == -4
    made._set_want(one, Want(1, 3, units=2), 0.0)
    assert made._missing() == 2
    made._issue(two, 1, 0.0)
    assert made._missing() == 3
    made._fifo.append(Visit("r", 9, 0.0))
    assert made._missing() == 7
    made._issue(one, 2, 0.0)
    assert made._missing() == 7, "one less is lacking, and two less are free"


def test_others_wait_in_the_fifo_or_at_another_channel() -> None:
    made, (one, two) = accounts(channels=2)
    made._set_want(one, Want(1, 1), 0.0)
    assert not made._others_wait(one)
    assert made._others_wait(two)
    made._issue(one, 1, 0.0)
    assert not made._others_wait(two), "its credit is on its way"
    made._fifo.append(Visit("r", 1, 0.0))
    assert made._others_wait(one)


def test_an_idle_credit_is_due_a_second_after_its_want_or_a_tenth_while_others_wait() -> None:
    made, (one, two) = accounts(channels=2)
    credit = made._issue(one, 1, 10.0)
    assert made._due(one, credit) == made._first_due(one) == float("inf")
    made._set_want(one, Want(1, 1), 5.0)
    assert made._due(one, credit) == made._first_due(one) == 11.0
    one.wants_since = 12.0
    assert made._due(one, credit) == 13.0
    made._set_want(two, Want(1, 1), 0.0)
    assert made._due(one, credit) == made._first_due(one) == 12.1
    credit.recalled_at, made._recalled = 20.0, 1
    assert made._due(one, credit) == made._first_due(one) == 20.1
    later = made._issue(one, 1, 30.0)
    assert made._first_due(one) == 20.1
    made._set_want(two, Want(2, 0), 0.0)
    later.since = 15.0
    assert made._first_due(one) == 16.0
    assert made._first_due(two) == float("inf")


def test_the_first_idle_credit_to_lapse_is_that_of_any_channel() -> None:
    made, (one, two) = accounts(channels=2)
    made._issue(one, 1, 10.0)
    made._issue(two, 1, 8.0)
    assert made._first_lapse() is None, "no party waits, and none is recalled"
    made._set_want(one, Want(1, 1), 0.0)
    assert made._first_lapse() == 11.0
    made._set_want(two, Want(1, 1), 0.0)
    assert made._first_lapse() == 9.0
    made._set_want(one, Want(2, 0), 0.0)
    made._set_want(two, Want(2, 0), 0.0)
    made._send_recall(one, list(one.idle.values()), 20.0)
    assert made._first_lapse() == 20.1
    empty, _ = accounts()
    empty._set_want(empty._channels[0], Want(1, 1), 0.0)
    assert empty._first_lapse() is None, "no credit is idle"


def test_a_visit_runs_on_a_credit_that_is_in_no_index() -> None:
    made, _ = accounts(4)
    made._last_cost = 7
    small, large = Visit("a", 1, 0.0), Visit("b", 9, 0.0)
    made._fifo.extend((small, large))
    made._admit_first(2.0)
    assert small.credit is not None
    assert (small.credit.state, small.credit.units, small.credit.channel, small.credit.since) == (BUSY, 1, None, 2.0)
    assert (made._charged, made.running, made._fifo_spent, made.queued, made._credits) == (1, 1, 7, 1, {})
    made._admit_first(3.0)
    assert (made._charged, made.running) == (5, 5), "one larger than the limit is charged the limit"
    assert large.credit is not None
    assert large.credit.number == small.credit.number + 1
    assert made.out == [Admit(small), Admit(large)]


def test_what_is_given_back_is_free_once() -> None:
    made, (one, two) = accounts(channels=2)
    idle, busy = made._issue(one, 3, 0.0), made._issue(one, 1, 0.0)
    busy.state = 1
    made._take_back(two, (idle.number,))
    assert made._charged == 4, "a foreign one"
    idle.recalled_at, made._recalled = 1.0, 1
    made._take_back(one, (idle.number, busy.number, 99))
    made._take_back(one, (idle.number,))
    assert (made._charged, made._recalled, busy.returned) == (1, 0, True)
    assert repr(idle).endswith("gone>")
    assert list(one.idle) == [busy.number]


def test_messages_hold_a_thousand_credits_at_most() -> None:
    assert [len(part) for part in parts(list(range(2500)))] == [1000, 1000, 500]
    assert [len(part) for part in parts(list(range(1000)))] == [1000]
    assert list(parts([])) == []
    made, (one,) = accounts(0)
    credits = [made._issue(one, 2, 0.0) for _ in range(2001)]  # noqa: A001
    made._send_grant(one, credits)
    grants = [command.message for command in made.out if isinstance(command, Send)]
    assert [len(grant.credits) for grant in grants if isinstance(grant, Grant)] == [1000, 1000, 1]
    assert isinstance(grants[0], Grant)
    assert grants[0].credits[0] == (credits[0].number, 2)
    made.out = []
    made._send_recall(one, credits, 5.0)
    recalls = [command.message for command in made.out if isinstance(command, Send)]
    assert [len(recall.credits) for recall in recalls if isinstance(recall, Recall)] == [1000, 1000, 1]
    assert (made._recalled, {credit.recalled_at for credit in credits}) == (2001, {5.0})
    made.out = []
    made._void(one, credits)
    assert made._recalled == 0
    voids = [command.message for command in made.out if isinstance(command, Send)]
    assert [number for void in voids if isinstance(void, Void) for number in void.credits] == [
        credit.number for credit in credits
    ]
    assert made._charged == 0
