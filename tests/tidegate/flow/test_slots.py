"""The rules of the slot ledger, each a short timeline: messages and requests -> the ledger's commands."""

import re
import zlib

import pytest

from tidegate.flow.messages import Grant, Return, Void, encode_message
from tidegate.flow.slots import Admit, Channel, Credit, Reject, Send, SlotLedger, StateIs, Visit
from tidegate.flow.wants import DEFAULT_PRIORITY, Want, encode_want, read_want
from tidegate.function import ConcurrencyUnit
from tidegate.records.replica_state import ColdStartPhases, ReplicaState

BASE = zlib.crc32(b"i1") << 20
"""Credits of incarnation ``i1`` are numbered from here; the tests say 1, 2, 3."""


class Desk:
    """A ledger with named channels; reads like a conversation."""

    def __init__(self, limit: int, *workers: str, unit: ConcurrencyUnit = ConcurrencyUnit.REQUESTS) -> None:
        self.ledger = SlotLedger(incarnation="i1", limit=limit, unit=unit, fifo_bound=2)
        self.ledger.ready(0.0)
        self.channels: dict[str, Channel] = {}
        for worker in workers:
            self.open(worker)
        self.said()

    def open(self, worker: str, now: float = 0.0) -> None:
        self.channels[worker] = self.ledger.opened(worker, now)

    def said(self) -> list[str]:
        """Returns the ledger's commands since the last call."""
        commands, self.ledger.out = self.ledger.out, []
        lines = []
        for command in commands:
            if isinstance(command, Send):
                text = encode_message(command.message).decode().strip()
                text = re.sub(r"\d{12,}", lambda number: str(int(number.group()) - BASE), text)
                lines.append(f"{command.channel.worker}: {text}")
            elif isinstance(command, Admit):
                lines.append(f"admit {command.visit.request}")
            elif isinstance(command, Reject):
                lines.append(f"reject {command.visit.request}")
            elif isinstance(command, StateIs):
                lines.append(f"state {command.state.value}")
        return lines

    def want(self, worker: str, amount: int, now: float, **key: int) -> list[str]:
        channel = self.channels[worker]
        reserves = bool(key.pop("reserves", 0))
        self.ledger.heard(channel, Want(channel.sequence + 1, amount, reserves=reserves, **key), now)
        return self.said()

    def returns(self, worker: str, *numbers: int, now: float) -> list[str]:
        self.ledger.heard(self.channels[worker], Return(tuple(BASE + number for number in numbers)), now)
        return self.said()

    def start(self, number: int, now: float, *, units: int = 1, want: bytes = b"") -> Credit:
        credit = self.ledger.start(BASE + number, units, read_want(want), now)
        assert credit is not None, f"credit {number} is not outstanding"
        return credit

    def is_refused(self, number: int, now: float, *, units: int = 1) -> bool:
        return self.ledger.start(BASE + number, units, None, now) is None

    def answer(self, credit: Credit, now: float) -> str:
        """Head and end of the answer at one moment."""
        keep = self.ledger.keeps(credit, now)
        self.ledger.ended(credit, now)
        return "keep" if keep else "home"

    def enter(self, request: str, now: float, units: int = 1) -> Visit:
        visit = self.ledger.enter(request, units, now)
        assert visit is not None
        return visit


# --- welcome, dealing, steady state -----------------------------------------------------------------------------------


def test_a_channel_is_welcomed_reported_the_state_and_dealt_what_was_not_asked_for() -> None:
    desk = Desk(2)
    desk.open("g0")
    assert desk.said() == ["g0: welcome i1 2 requests", "g0: state ready", "g0: grant 1:1 2:1"]


def test_free_slots_are_dealt_evenly() -> None:
    desk = Desk(5)
    desk.ledger.drain(0.0)
    desk.open("g0")
    desk.open("g1")
    desk.said()
    desk.ledger.revive(0.0)
    assert desk.said() == [
        "state ready",
        "g0: state ready",
        "g1: state ready",
        "g0: grant 1:1 3:1 5:1",
        "g1: grant 2:1 4:1",
    ]


def test_steady_state_costs_no_message() -> None:
    desk = Desk(1, "g0")
    for step in range(100):
        assert desk.answer(desk.start(1, step), step) == "keep"
    assert desk.said() == []
    assert desk.ledger.next_wakeup() is None


def test_numbers_differ_between_incarnations() -> None:
    # A request on a credit of the process before must not run on a credit of this one.
    one, two = SlotLedger(incarnation="one", limit=1), SlotLedger(incarnation="two", limit=1)
    for ledger in (one, two):
        ledger.ready(0.0)
    first = next(iter(one.opened("g0", 0.0).idle))
    two.opened("g0", 0.0)
    assert two.start(first, 1, None, 0.0) is None


# --- refusals ---------------------------------------------------------------------------------------------------------


def test_a_credit_that_is_not_outstanding_is_refused() -> None:
    desk = Desk(1, "g0")
    assert desk.is_refused(99, 0.0)
    desk.start(1, 0.0)
    assert desk.is_refused(1, 0.0), "one credit runs one request at a time"


def test_a_credit_that_went_home_is_refused() -> None:
    desk = Desk(1, "g0", "g1")
    credit = desk.start(1, 0.0)
    desk.want("g1", 1, 0.1)
    assert desk.answer(credit, 0.2) == "home"
    assert desk.said() == ["g1: grant 2:1"]
    assert desk.is_refused(1, 0.3)


# --- wants, order, contention -----------------------------------------------------------------------------------------


def test_a_new_worker_gets_its_part_of_what_others_hold_idle() -> None:
    """A worker chooses at once only among slots that it holds: without a part, nothing would be near to its keys."""
    desk = Desk(4, "g0")
    desk.open("g1", 1.0)
    assert desk.said()[-1] == "g0: recall 1 2"
    assert desk.returns("g0", 1, 2, now=1.001) == ["g1: grant 5:1 6:1"]
    desk.open("g2", 2.0)
    assert desk.said()[-1] == "g0: recall 3", "four over three is one"
    assert desk.returns("g0", 3, now=2.001) == ["g2: grant 7:1"]


def test_none_is_asked_for_a_part_while_somebody_waits_or_there_is_less_than_one_each() -> None:
    desk = Desk(1, "g0")
    desk.open("g1", 1.0)
    assert desk.said()[-1] == "g1: state ready"
    desk = Desk(4, "g0", "g1")
    desk.want("g1", 9, 1.0)
    desk.open("g2", 1.0)
    assert desk.said()[-1] == "g2: state ready"


def shared_desk(limit: int) -> Desk:
    """g0 holds one half of the slots idle, g1 runs requests on the other."""
    desk = Desk(limit, "g0", "g1")
    desk.returns("g0", *range(1, limit // 2 + 1), now=0.0)
    for number in range(limit + 1, limit + limit // 2 + 1):
        desk.start(number, 0.0)
    return desk


def test_idle_credits_of_others_are_recalled_for_a_want() -> None:
    desk = shared_desk(2)
    assert desk.want("g1", 1, 1.0) == ["g0: recall 2"]
    assert desk.returns("g0", 2, now=1.001) == ["g1: grant 4:1"]


def test_more_is_not_recalled_than_is_missing() -> None:
    desk = shared_desk(8)
    assert desk.want("g1", 2, 1.0) == ["g0: recall 5 6"]
    assert desk.want("g1", 2, 1.0) == [], "two are on their way"
    assert desk.want("g1", 3, 1.0) == ["g0: recall 7"]


def test_free_slots_go_to_the_head_that_waits_longest() -> None:
    desk = Desk(1, "g0", "g1", "g2")
    credit = desk.start(1, 1.0)
    desk.want("g1", 1, 1.0, age_ms=20)
    desk.want("g2", 1, 1.0, age_ms=50)
    assert desk.answer(credit, 1.1) == "home"
    assert desk.said() == ["g2: grant 2:1"]


def test_of_two_equal_heads_the_one_whose_channel_opened_first_goes_first() -> None:
    desk = Desk(1, "g0", "g1", "g2")
    credit = desk.start(1, 1.0)
    for worker in ("g2", "g1"):
        desk.want(worker, 1, 1.0, age_ms=20)
    desk.ledger.ended(credit, 1.1)
    assert desk.said() == ["g1: grant 2:1"]


def test_a_request_of_the_queue_goes_before_an_equal_head_of_a_channel() -> None:
    desk = Desk(1, "g0")
    credit = desk.start(1, 1.0)
    desk.enter("own", 1.0)
    desk.want("g0", 1, 1.0, priority=DEFAULT_PRIORITY)
    desk.ledger.ended(credit, 1.1)
    assert desk.said() == ["admit own"]


def test_priority_class_goes_before_age() -> None:
    desk = Desk(1, "g0", "g1", "g2", "g3")
    credit = desk.start(1, 1.0)
    desk.want("g1", 1, 1.0, age_ms=500, priority=1)
    desk.want("g2", 1, 1.0, age_ms=90)
    desk.want("g3", 1, 1.0, age_ms=10, priority=0)
    desk.ledger.ended(credit, 1.1)
    assert desk.said() == ["g2: grant 2:1"]
    desk.ledger.ended(desk.start(2, 1.1, want=b"9 0"), 1.2)
    assert desk.said() == ["g3: grant 3:1"]


# --- turns between workers ---


def served(desk: Desk, credit: Credit, count: int) -> list[str]:
    """Returns the workers that get the one slot, answer after answer; all go on wanting."""
    order = []
    for number in range(2, 2 + count):
        desk.ledger.ended(credit, 1.0)
        (line,) = desk.said()
        worker, _, text = line.partition(": ")
        assert text == f"grant {number}:1"
        order.append(worker)
        credit = desk.start(number, 1.0)
    return order


def test_workers_that_tell_costs_have_turns_by_them() -> None:
    """A slot costs g1 ten times as much as g2, and g1's have waited longest."""
    desk = Desk(1, "g0", "g1", "g2")
    credit = desk.start(1, 1.0)
    desk.want("g1", 1000, 1.0, age_ms=9000, tail_ms=8000, cost=1000)
    desk.want("g2", 1000, 1.0, age_ms=20, tail_ms=10, cost=100)
    order = served(desk, credit, 44)
    assert order == ["g1", *["g2"] * 10] * 4


def test_a_worker_that_comes_later_has_its_turn_at_once_and_no_more() -> None:
    desk = Desk(1, "g0", "g1", "g2")
    credit = desk.start(1, 1.0)
    desk.want("g1", 1000, 1.0, age_ms=900, cost=7)
    assert served(desk, credit, 30) == ["g1"] * 30
    desk.want("g2", 1000, 1.0, cost=7)
    credit = desk.ledger._credits[BASE + 31]
    desk.ledger.ended(credit, 1.0)
    order = []
    for number in range(32, 40):
        (line,) = desk.said()
        order.append(line.partition(":")[0])
        desk.ledger.ended(desk.start(number, 1.0), 1.0)
    assert order == ["g2", "g1"] * 4


def test_strangers_are_one_more_among_workers_that_tell_costs() -> None:
    desk = Desk(1, "g0", "g1")
    credit = desk.start(1, 1.0)
    desk.want("g1", 1000, 1.0, age_ms=900, cost=50, priority=5)
    visits = [desk.enter(f"x{number}", 1.0 + number / 100) for number in range(2)]
    order = []
    granted = 1
    desk.ledger.ended(credit, 2.0)
    for _ in range(4):
        (line,) = desk.said()
        order.append("x" if line.startswith("admit") else "g1")
        granted += 1
        if line.startswith("admit"):
            running = visits.pop(0).credit
            assert running is not None
            desk.ledger.ended(running, 2.0)
        else:
            desk.ledger.ended(desk.start(granted, 2.0), 2.0)
    assert order == ["g1", "x"] * 2


def test_strangers_that_come_later_have_one_turn_and_no_more() -> None:
    """What was served before they came is not owed to them."""
    desk = Desk(1, "g0", "g1")
    credit = desk.start(1, 1.0)
    desk.want("g1", 1000, 1.0, age_ms=900, cost=50, priority=5)
    assert served(desk, credit, 10) == ["g1"] * 10
    first = desk.enter("x0", 1.0)
    desk.ledger.ended(desk.ledger._credits[BASE + 11], 1.0)
    assert desk.said() == ["admit x0"]
    desk.enter("x1", 1.0)
    assert first.credit is not None
    desk.ledger.ended(first.credit, 1.0)
    assert [line.partition(" ")[0] for line in desk.said()] == ["g1:"]


def test_the_channel_that_holds_most_is_recalled_first() -> None:
    desk = Desk(5)
    desk.ledger.drain(0.0)
    desk.open("g1")
    desk.open("g0")
    desk.ledger.revive(0.0)
    desk.said()
    assert {name: len(channel.idle) for name, channel in desk.channels.items()} == {"g1": 3, "g0": 2}
    desk.open("g2")
    assert desk.said()[2:] == ["g1: recall 1"], "the part of the new one, less than one each"


def test_slots_that_free_together_go_to_several_workers_in_the_interpolated_order() -> None:
    """Only the ages of the head and of the youngest are sent: those between are interpolated, so g0's second goes
    first."""
    desk = Desk(3)
    desk.ledger.drain(0.0)
    for worker in ("g0", "g1"):
        desk.open(worker)
    desk.want("g0", 3, 1.0, age_ms=90, tail_ms=70)
    desk.want("g1", 2, 1.0, age_ms=75, tail_ms=10)
    desk.ledger.revive(1.0)
    assert desk.said()[-2:] == ["g0: grant 1:1 2:1", "g1: grant 3:1"]


def test_the_second_of_two_heads_is_as_old_as_the_youngest() -> None:
    desk = Desk(2)
    desk.ledger.drain(0.0)
    for worker in ("g0", "g1"):
        desk.open(worker)
    desk.want("g0", 2, 1.0, age_ms=90, tail_ms=10)
    desk.want("g1", 1, 1.0, age_ms=50)
    desk.ledger.revive(1.0)
    assert desk.said()[-2:] == ["g0: grant 1:1", "g1: grant 2:1"]


def test_every_request_carries_the_want_that_remains() -> None:
    desk = Desk(1, "g0", "g1")
    desk.want("g1", 1, 1.0, age_ms=5)
    desk.said()
    credit = desk.start(1, 1.0, want=encode_want(Want(1, 2, age_ms=50, tail_ms=50)))
    assert desk.answer(credit, 1.1) == "home", "two want one slot"
    assert desk.said() == ["g0: grant 2:1"], "g0's next is older than g1's"


def test_an_older_want_that_arrives_late_is_dropped() -> None:
    # Header and channel overtake each other.
    desk = Desk(1, "g0", "g1")
    desk.start(1, 1.0, want=b"5 0")
    desk.ledger.heard(desk.channels["g0"], Want(4, 3), 1.0)
    assert desk.channels["g0"].want.amount == 0


def test_fewer_slots_than_wanting_workers_sends_each_credit_home() -> None:
    desk = Desk(1, "g0", "g1")
    credit = desk.start(1, 1.0, want=encode_want(Want(1, 5, age_ms=900, tail_ms=900)))
    desk.want("g1", 1, 1.0)
    assert desk.answer(credit, 1.1) == "home", "even though g0's own head is next"


def test_with_slots_enough_a_credit_stays_where_the_best_head_waits() -> None:
    desk = Desk(2, "g0", "g1")
    one = desk.start(1, 1.0)
    two = desk.start(2, 1.0, want=encode_want(Want(1, 1, age_ms=50)))
    desk.want("g1", 1, 1.0, age_ms=10)
    assert desk.answer(one, 1.1) == "keep", "g0's head is older"
    assert desk.answer(two, 1.1) == "home", "g1 is next"
    assert desk.said() == ["g1: grant 3:1"]


def test_a_credit_of_a_worker_that_wants_nothing_goes_home_when_another_wants() -> None:
    desk = Desk(2, "g0", "g1")
    credit = desk.start(1, 1.0)
    desk.start(2, 1.0)
    desk.want("g1", 1, 1.0)
    assert desk.answer(credit, 1.1) == "home"
    assert desk.said() == ["g1: grant 3:1"]


def test_contention_after_the_head_said_keep_recalls_the_credit_at_the_end() -> None:
    desk = Desk(1, "g0", "g1")
    credit = desk.start(1, 1.0)
    assert desk.ledger.keeps(credit, 1.1)
    assert desk.want("g1", 1, 1.2) == []
    desk.ledger.ended(credit, 5.0)
    assert desk.said() == ["g0: recall 1"]


def test_a_credit_that_a_waiting_worker_is_about_to_use_is_not_recalled() -> None:
    desk = Desk(1, "g0", "g1")
    desk.want("g0", 1, 1.0)
    assert desk.want("g1", 1, 1.01, age_ms=500) == [], "its request is on the way"


# --- silence ----------------------------------------------------------------------------------------------------------


def test_a_recall_without_an_answer_voids_after_100_ms() -> None:
    desk = Desk(1, "g0", "g1")
    assert desk.want("g1", 1, 1.0) == ["g0: recall 1"]
    assert desk.ledger.next_wakeup() == pytest.approx(1.1)
    desk.ledger.on_wakeup(1.1)
    assert desk.said() == ["g0: void 1", "g1: grant 2:1"]
    assert desk.is_refused(1, 1.2), "late use"


def test_a_request_answers_a_recall_as_well() -> None:
    desk = Desk(1, "g0", "g1")
    desk.want("g1", 1, 1.0)
    credit = desk.start(1, 1.05)
    desk.ledger.on_wakeup(1.2)
    assert desk.said() == []
    assert desk.answer(credit, 2.0) == "home"


def test_a_recall_that_a_request_answered_is_over() -> None:
    desk = Desk(1, "g0", "g1")
    assert desk.want("g1", 1, 1.0) == ["g0: recall 1"]
    credit = desk.start(1, 1.01)
    desk.want("g1", 0, 1.02)
    assert desk.answer(credit, 1.03) == "keep"
    assert desk.ledger.next_wakeup() is None
    desk.ledger.on_wakeup(2.0)
    assert desk.said() == []


def test_a_grant_unused_for_100_ms_voids_while_others_wait_and_the_want_counts_as_zero() -> None:
    desk = Desk(1, "g0", "g1")
    desk.ledger.ended(desk.start(1, 0.9), 0.9)
    desk.said()
    credit = desk.start(2, 1.0)
    desk.want("g0", 3, 1.0, age_ms=50)
    desk.want("g1", 1, 1.0)
    desk.ledger.ended(credit, 1.0)
    assert desk.said() == ["g0: grant 3:1"]
    assert desk.ledger.next_wakeup() == pytest.approx(1.1)
    desk.ledger.on_wakeup(1.1)
    assert desk.said() == ["g0: void 3", "g1: grant 4:1"]
    assert desk.channels["g0"].want.amount == 0, "until it is heard again"


def test_a_grant_stays_while_none_else_waits() -> None:
    desk = Desk(1, "g0")
    desk.want("g0", 1, 5.0)
    desk.ledger.on_wakeup(5.5)
    assert desk.said() == []
    desk.start(1, 5.6)


def test_a_credit_that_its_waiting_worker_does_not_use_for_a_second_must_be_lost() -> None:
    desk = Desk(1, "g0")
    desk.want("g0", 1, 5.0)
    assert desk.ledger.next_wakeup() == pytest.approx(6.0)
    desk.ledger.on_wakeup(6.0)
    assert desk.said() == ["g0: void 1", "g0: grant 2:1"], "and the worker tells its want anew"


def test_a_credit_that_its_only_worker_keeps_is_watched_from_then_on() -> None:
    desk = Desk(1, "g0")
    credit = desk.start(1, 5.0)
    desk.want("g0", 1, 6.0)
    assert desk.ledger.next_wakeup() is None, "its slot is busy"
    assert desk.ledger.keeps(credit, 7.0)
    desk.ledger.ended(credit, 7.0)
    assert desk.ledger.next_wakeup() == pytest.approx(8.0)


def test_requests_on_old_credits_may_come_after_the_want_that_remains() -> None:
    """Two arrive at g0, which holds one old credit: its want for the second overtakes the request of the first."""
    desk = Desk(1, "g0", "g1")
    desk.want("g0", 1, 60.0)
    desk.want("g1", 1, 60.0)
    assert desk.ledger.next_wakeup() == pytest.approx(60.1), "not at once, old as the credit is"
    desk.start(1, 60.05)


def test_a_stopped_worker_is_dealt_nothing_until_it_is_heard() -> None:
    desk = Desk(1, "g0", "g1")
    desk.want("g1", 1, 1.0)
    desk.ledger.on_wakeup(1.1)
    desk.said()
    desk.ledger.ended(desk.start(2, 1.2, want=b"2 0"), 1.3, aborted=True)
    assert desk.said() == ["g1: grant 3:1"], "not g0, whose turn it is"
    desk.ledger.ended(desk.start(3, 1.4), 1.5, aborted=True)
    desk.said()
    desk.want("g0", 0, 2.0)
    granted = []
    for number in (4, 5):
        credit = desk.ledger.start(BASE + number, 1, None, 2.1)
        assert credit is not None
        desk.ledger.ended(credit, 2.2, aborted=True)
        granted += [line.split(":")[0] for line in desk.said()]
    assert "g0" in granted


def test_all_idle_credits_of_a_silent_worker_are_void_at_once() -> None:
    desk = shared_desk(4)
    assert desk.want("g1", 1, 1.0) == ["g0: recall 3"]
    desk.ledger.on_wakeup(1.1)
    said = desk.said()
    assert said[0] == "g0: void 3 4"
    assert said[1].startswith("g1: grant 7:1")


# --- channels, cancellation -------------------------------------------------------------------------------------------


def test_a_closed_channel_returns_idle_credits_at_once_and_busy_ones_when_they_end() -> None:
    desk = Desk(2, "g0", "g1")
    credit = desk.start(1, 1.0)
    desk.want("g1", 2, 1.0)
    desk.said()
    desk.ledger.closed(desk.channels["g0"], 1.1)
    assert desk.said() == ["g1: grant 3:1"]
    assert desk.answer(credit, 2.0) == "home"
    assert desk.said() == ["g1: grant 4:1"]
    assert desk.is_refused(2, 2.0)


def test_a_channel_that_closed_after_keep_was_said_keeps_nothing() -> None:
    desk = Desk(1, "g0", "g1")
    credit = desk.start(1, 1.0)
    assert desk.ledger.keeps(credit, 1.0)
    desk.ledger.closed(desk.channels["g0"], 1.1)
    desk.ledger.ended(credit, 1.2)
    assert desk.said() == ["g1: grant 2:1"]


def test_after_an_abort_the_slot_is_granted_anew() -> None:
    desk = Desk(1, "g0", "g1")
    credit = desk.start(1, 1.0)
    desk.want("g1", 1, 1.0)
    desk.ledger.ended(credit, 1.1, aborted=True)
    assert desk.said() == ["g1: grant 2:1"]


def test_an_abort_after_keep_was_said_brings_the_credit_home() -> None:
    desk = Desk(1, "g0")
    credit = desk.start(1, 1.0)
    assert desk.ledger.keeps(credit, 1.0)
    assert desk.returns("g0", 1, now=1.1) == [], "the gateway aborted; here it still runs"
    desk.ledger.ended(credit, 1.2)
    assert desk.said() == ["g0: grant 2:1"]
    assert desk.is_refused(1, 1.3)


def test_unknown_and_foreign_credits_cannot_be_returned() -> None:
    desk = Desk(1, "g0", "g1")
    assert desk.returns("g1", 1, now=1.0) == []
    assert desk.returns("g0", 77, now=1.0) == []
    desk.start(1, 1.0)


# --- units ------------------------------------------------------------------------------------------------------------


def inference_desk(limit: int, *workers: str) -> Desk:
    return Desk(limit, *workers, unit=ConcurrencyUnit.INFERENCES)


def test_a_grant_is_whole_or_nothing_and_the_worker_learns_what_is_free() -> None:
    desk = inference_desk(8, "g0", "g1")
    busy = [desk.start(number, 1.0) for number in (1, 2, 3)]
    assert desk.want("g1", 1, 1.0, units=6) == ["g0: recall 5 6 7 8"], "4 was to be g1's part, and is on its way"
    assert desk.returns("g0", 4, 5, 6, 7, 8, now=1.0) == ["g1: short 5"]
    desk.ledger.ended(busy[0], 1.1)
    assert desk.said() == ["g1: grant 9:6"]


def test_others_pass_a_head_that_does_not_fit() -> None:
    desk = inference_desk(4, "g0", "g1", "g2")
    busy = [desk.start(number, 1.0) for number in (1, 2, 3, 4)]
    desk.want("g1", 1, 1.0, units=4, age_ms=500)
    desk.want("g2", 1, 1.0, units=1, age_ms=1)
    desk.ledger.ended(busy[0], 1.1)
    assert desk.said() == ["g2: grant 5:1", "g1: short 0"]


def test_a_head_that_reserves_holds_back_what_is_younger() -> None:
    desk = inference_desk(4, "g0", "g1", "g2")
    busy = desk.start(1, 1.0)
    desk.want("g1", 1, 1.0, units=4, age_ms=500, reserves=1)
    desk.returns("g0", 2, 3, 4, now=1.0)
    assert desk.want("g2", 1, 1.0, units=1, age_ms=1) == [], "younger: it waits"
    desk.ledger.ended(busy, 1.1)
    assert desk.said() == ["g1: grant 5:4"]


def test_an_older_head_passes_a_reservation() -> None:
    desk = inference_desk(4, "g0", "g1", "g2")
    desk.start(1, 1.0)
    desk.want("g1", 1, 1.0, units=4, age_ms=10, reserves=1)
    desk.returns("g0", 2, 3, 4, now=1.0)
    assert desk.want("g2", 1, 1.0, units=1, age_ms=100) == ["g2: grant 5:1"]


def test_a_request_larger_than_the_limit_runs_alone() -> None:
    desk = inference_desk(4, "g0", "g1")
    desk.want("g1", 1, 1.0, units=100)
    assert desk.returns("g0", 1, 2, 3, 4, now=1.0) == ["g1: grant 5:4"]
    desk.start(5, 1.0, units=100)
    assert desk.ledger.running == 4


def test_a_smaller_request_than_its_credit_frees_the_rest() -> None:
    desk = inference_desk(4, "g0")
    desk.want("g0", 1, 1.0, units=4)
    assert desk.returns("g0", 1, 2, 3, 4, now=1.0) == ["g0: grant 5:4"]
    desk.start(5, 1.0, units=1, want=b"9 0")
    assert desk.said() == ["g0: grant 6:1 7:1 8:1"]


def test_a_larger_request_than_its_credit_is_refused() -> None:
    desk = inference_desk(4, "g0")
    assert desk.is_refused(1, 1.0, units=2)


def test_credits_not_asked_for_have_the_usual_size() -> None:
    desk = inference_desk(4, "g0")
    desk.want("g0", 1, 1.0, units=2)
    desk.returns("g0", 1, 2, 3, 4, now=1.0)
    desk.ledger.ended(desk.start(5, 1.0, units=2, want=b"9 0"), 1.1)
    assert desk.said()[-1] == "g0: grant 8:2"


# --- strangers --------------------------------------------------------------------------------------------------------


def test_strangers_take_slots_from_the_same_ledger() -> None:
    desk = Desk(1)
    one = desk.enter("one", 1.0)
    assert one.credit is not None
    two = desk.enter("two", 1.1)
    assert two.credit is None
    desk.ledger.ended(one.credit, 2.0)
    assert desk.said() == ["admit two"]
    assert two.credit is not None


def test_a_stranger_enters_at_once_only_while_none_waits_and_it_fits() -> None:
    desk = Desk(2)
    ledger = desk.ledger
    assert ledger.enter_at_once(5) == 1, "the slots count requests"
    assert ledger.enter_at_once(1) == 1
    assert (ledger.enter_at_once(1), ledger.running) == (0, 2)
    assert desk.enter("waits", 1.0).credit is None
    assert ledger.left(1, 2.0), "somebody got the slot"
    assert desk.said() == ["admit waits"]
    ledger.drain(2.5)
    assert (ledger.left(1, 3.0), ledger.running) == (True, 1)
    assert ledger.enter_at_once(1) == 0, "what drains takes nothing in by the short way"


def test_units_of_a_request_that_entered_at_once_are_capped_by_the_limit_and_not_without_one() -> None:
    ledger = SlotLedger(incarnation="i1", limit=8, unit=ConcurrencyUnit.INFERENCES, state=ReplicaState.READY)
    assert ledger.enter_at_once(20) == 8
    assert not ledger.left(8, 1.0), "no gateway is there to get the slots"
    ledger.resize(0, 1.0)
    assert (ledger.enter_at_once(20), ledger.running) == (20, 20)


def test_a_stranger_waits_where_slots_are_free_but_too_few_for_it() -> None:
    desk = Desk(4, unit=ConcurrencyUnit.INFERENCES)
    assert desk.enter("large", 1.0, units=3).credit is not None
    assert desk.enter("larger than what is left", 1.1, units=2).credit is None
    assert desk.enter("fits, but is younger", 1.2, units=1).credit is None
    assert (desk.ledger.running, desk.said()) == (3, [])


def test_a_stranger_recalls_an_idle_credit() -> None:
    desk = Desk(1, "g0")
    desk.enter("one", 1.0)
    assert desk.said() == ["g0: recall 1"]
    assert desk.returns("g0", 1, now=1.0) == ["admit one"]


def test_the_fifo_is_bounded() -> None:
    desk = Desk(1)
    desk.enter("runs", 1.0)
    desk.enter("waits", 1.0)
    desk.enter("waits too", 1.0)
    assert desk.ledger.enter("too many", 1, 1.0) is None


def test_a_stranger_and_a_channel_go_by_arrival() -> None:
    desk = Desk(1, "g0")
    credit = desk.start(1, 1.0)
    desk.want("g0", 1, 1.0, age_ms=5)
    desk.enter("later", 1.01)
    desk.ledger.ended(credit, 1.1)
    assert desk.said() == ["g0: grant 2:1"]
    assert desk.answer(desk.start(2, 1.2, want=b"9 0"), 1.3) == "home"
    assert desk.said() == ["admit later"]


def test_strangers_go_by_arrival_where_no_worker_tells_costs() -> None:
    desk = Desk(1, "g0")
    credit = desk.start(1, 1.0)
    one, two = desk.enter("one", 1.1), desk.enter("two", 1.2)
    desk.want("g0", 1, 1.3, priority=DEFAULT_PRIORITY)
    desk.ledger.ended(credit, 2.0)
    assert desk.said() == ["admit one"]
    assert one.credit is not None
    desk.ledger.ended(one.credit, 2.1)
    assert desk.said() == ["admit two"]
    assert two.credit is not None


def test_a_stranger_is_of_the_middle_class() -> None:
    """A head of a better class goes first, though it came later; one of a lower class goes after it."""
    for priority, first in ((4, "g0: grant 2:1"), (6, "admit stranger")):
        desk = Desk(1, "g0")
        credit = desk.start(1, 1.0)
        if priority > DEFAULT_PRIORITY:
            desk.want("g0", 1, 1.01, priority=priority)
            desk.enter("stranger", 1.02)
        else:
            desk.enter("stranger", 1.01)
            desk.want("g0", 1, 1.02, priority=priority)
        desk.ledger.keeps(credit, 1.1)
        desk.ledger.ended(credit, 1.1)
        assert desk.said() == [first]


def test_a_stranger_that_went_away_is_not_admitted() -> None:
    desk = Desk(1)
    runs = desk.enter("runs", 1.0)
    waits = desk.enter("waits", 1.0)
    desk.ledger.leave(waits, 1.1)
    assert runs.credit is not None
    desk.ledger.ended(runs.credit, 1.2)
    assert desk.said() == []
    assert desk.ledger.queued == 0


def test_strangers_wait_for_a_replica_that_starts() -> None:
    ledger = SlotLedger(incarnation="i1", limit=1)
    visit = ledger.enter("early", 1, 0.0)
    assert visit is not None
    assert visit.credit is None
    ledger.ready(1.0)
    assert [type(command) for command in ledger.out] == [StateIs, Admit]


# --- ready, limit, drain ----------------------------------------------------------------------------------------------


def test_wants_reported_while_starting_are_granted_the_moment_it_is_ready() -> None:
    desk = Desk(0)
    desk.ledger = SlotLedger(incarnation="i1", limit=2)
    desk.open("g0")
    assert desk.said() == ["g0: welcome i1 2 requests", "g0: state starting"]
    assert desk.want("g0", 3, 1.0) == []
    desk.ledger.ready(2.0, ColdStartPhases(load_s=2.0))
    said = desk.said()
    assert said[0] == "state ready"
    assert said[1].startswith("g0: state ready phases:")
    assert said[2:] == ["g0: grant 1:1 2:1"]


def test_draining_recalls_idle_credits_and_drained_follows_the_last_work() -> None:
    desk = Desk(2, "g0")
    credit = desk.start(1, 1.0)
    desk.ledger.drain(1.1)
    assert desk.said() == ["state draining", "g0: state draining", "g0: recall 2"]
    assert desk.returns("g0", 2, now=1.2) == []
    assert desk.answer(credit, 9.0) == "home"
    assert desk.said() == ["state drained", "g0: state drained"]


def test_a_request_that_crossed_the_drain_is_served() -> None:
    desk = Desk(1, "g0")
    desk.ledger.drain(1.0)
    credit = desk.start(1, 1.01)
    assert desk.answer(credit, 2.0) == "home"
    assert desk.ledger.state is ReplicaState.DRAINED


def test_a_credit_that_was_kept_before_the_drain_does_not_hold_it_up() -> None:
    desk = Desk(1, "g0")
    credit = desk.start(1, 1.0)
    assert desk.ledger.keeps(credit, 2.0)
    desk.ledger.drain(2.0)
    desk.said()
    desk.ledger.ended(credit, 2.1)
    assert desk.said() == ["g0: recall 1"]
    assert "state drained" in desk.returns("g0", 1, now=2.2)


def test_a_silent_worker_does_not_hold_up_a_drain() -> None:
    desk = Desk(2, "g0")
    desk.ledger.drain(1.0)
    desk.said()
    desk.ledger.on_wakeup(1.1)
    assert desk.said() == ["g0: void 1 2", "state drained", "g0: state drained"]


def test_a_worker_that_was_silent_in_a_drain_is_dealt_nothing_after_it_until_it_is_heard() -> None:
    desk = Desk(2, "g0")
    desk.ledger.drain(1.0)
    desk.ledger.on_wakeup(1.1)
    desk.said()
    desk.ledger.revive(2.0)
    assert desk.said() == ["state ready", "g0: state ready"]
    assert desk.want("g0", 0, 3.0) == ["g0: grant 3:1 4:1"]


def test_a_drained_replica_is_revived_and_serves_the_wants_it_was_reported() -> None:
    desk = Desk(1, "g0")
    desk.ledger.drain(1.0)
    desk.returns("g0", 1, now=1.0)
    assert desk.ledger.state is ReplicaState.DRAINED
    assert desk.want("g0", 1, 1.5) == [], "noted, not granted"
    desk.ledger.revive(2.0)
    assert desk.said() == ["state ready", "g0: state ready", "g0: grant 2:1"]


def test_a_drain_while_starting_is_at_once_drained_and_rejects_strangers() -> None:
    ledger = SlotLedger(incarnation="i1", limit=1)
    ledger.enter("early", 1, 0.0)
    ledger.drain(1.0)
    assert ledger.state is ReplicaState.DRAINED
    assert [type(command) for command in ledger.out] == [StateIs, Reject]
    assert ledger.queued == 0, "what was rejected does not come back with a revival"
    assert ledger.enter("late", 1, 2.0) is None


def test_strangers_in_the_fifo_are_served_before_a_drain_ends() -> None:
    desk = Desk(1)
    runs = desk.enter("runs", 1.0)
    desk.enter("waits", 1.0)
    desk.ledger.drain(1.1)
    desk.said()
    assert runs.credit is not None
    desk.ledger.ended(runs.credit, 1.2)
    assert desk.said() == ["admit waits"]
    assert desk.ledger.state is ReplicaState.DRAINING


def test_the_limit_that_it_has_already_is_not_sent() -> None:
    desk = Desk(1000, "g1")
    desk.ledger.resize(int("1000"), 1.0)
    assert desk.said() == []
    desk.ledger.resize(1001, 1.0)
    assert desk.said()[0] == "g1: limit 1001"


def test_a_higher_limit_is_granted_at_once() -> None:
    desk = Desk(1, "g0")
    desk.start(1, 1.0)
    desk.want("g0", 2, 1.0)
    desk.ledger.resize(3, 1.1)
    assert desk.said() == ["g0: limit 3", "g0: grant 2:1 3:1"]


def test_a_lower_limit_recalls_idle_credits_and_refuses_those_that_would_exceed_it() -> None:
    desk = Desk(3, "g0")
    first = desk.start(1, 1.0)
    desk.ledger.resize(1, 1.1)
    assert desk.said() == ["g0: limit 1", "g0: recall 2 3"]
    assert desk.is_refused(2, 1.11), "it crossed the recall; the model would run two"
    assert desk.answer(first, 1.2) == "home"
    assert desk.ledger.running == 0


def test_without_a_limit_there_are_no_credits() -> None:
    desk = Desk(0, "g0")
    assert not desk.channels["g0"].idle
    visits = [desk.enter(f"request {number}", 1.0) for number in range(100)]
    assert all(visit.credit is not None for visit in visits)
    assert desk.ledger.running == 100


def test_a_limit_that_is_lifted_voids_credits() -> None:
    desk = Desk(2, "g0")
    desk.ledger.resize(0, 1.0)
    assert desk.said() == ["g0: limit 0", "g0: void 1 2"]


def test_a_limit_that_is_lifted_after_keep_was_said_voids_the_credit_at_the_end() -> None:
    desk = Desk(1, "g0")
    credit = desk.start(1, 1.0)
    assert desk.ledger.keeps(credit, 1.0)
    desk.ledger.resize(0, 1.1)
    desk.ledger.ended(credit, 1.2)
    assert desk.said() == ["g0: limit 0", "g0: void 1"]


def test_a_thousand_slots_are_dealt_in_lines_of_bounded_length() -> None:
    desk = Desk(2500)
    desk.open("g0")
    grants = [command.message for command in desk.ledger.out if isinstance(command, Send)][2:]
    assert [len(encode_message(grant)) < 64 * 1024 for grant in grants] == [True, True, True]
    assert len(desk.channels["g0"].idle) == 2500
    numbers = [number for grant in grants if isinstance(grant, Grant) for number, _ in grant.credits]
    assert numbers == list(desk.channels["g0"].idle), "every credit is in one line, in order"
    desk.said()
    desk.ledger.resize(0, 1.0)
    voids = [command.message for command in desk.ledger.out if isinstance(command, Send)][1:]
    assert [len(void.credits) for void in voids if isinstance(void, Void)] == [1000, 1000, 500]
    assert [number for void in voids if isinstance(void, Void) for number in void.credits] == numbers


def test_credits_too_small_for_the_waiting_head_are_recalled_first() -> None:
    desk = Desk(8, "g0")
    channel = desk.channels["g0"]
    for credit in tuple(channel.idle.values()):
        desk.ledger._drop(credit)
    large = [desk.ledger._issue(channel, 2, 1.0) for _ in range(2)]
    small = desk.ledger._issue(channel, 1, 1.0)
    channel.want, channel.need = Want(9, 1, units=2), 2
    desk.ledger._recall(1, 2.0)
    assert [credit.recalled_at for credit in (*large, small)] == [None, None, 2.0]
    desk.ledger._recall(4, 2.0)
    assert [credit.recalled_at for credit in (*large, small)] == [2.0, None, 2.0], "one serves its own head"
