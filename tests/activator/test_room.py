"""The rules of the waiting room, each a short timeline: what comes in -> what the room does."""

import random
from collections import Counter

import pytest

from tests.support.worlds.routes import function, table
from tests.support.worlds.waiting_room import F, Lobby, lobby
from tidegate.activator.commands import Refuse
from tidegate.activator.state.bind import Bind
from tidegate.activator.state.revisions import BACKLOG
from tidegate.flow.messages import (
    Grant,
    Limit,
    Recall,
    State,
    Void,
)
from tidegate.flow.ordered_queue import OrderedQueue
from tidegate.records.replica_state import ReplicaState
from tidegate.records.route_table import FunctionRoute, RevisionRoute

# --- binding ----------------------------------------------------------------------------------------------------------


def test_a_request_that_finds_an_idle_credit_never_waits() -> None:
    one = lobby("r0")
    one.ready("r0", 7)
    assert one.arrive("a") == "a -> r0 on 7"
    assert one.did() == []


def test_a_kept_credit_carries_the_next_request_without_a_message() -> None:
    one = lobby("r0")
    one.ready("r0", 7)
    for number in range(50):
        assert one.arrive(f"q{number}") == f"q{number} -> r0 on 7"
        assert one.answer(f"q{number}") == []


def test_a_credit_that_went_home_is_gone() -> None:
    one = lobby("r0")
    one.ready("r0", 7)
    one.arrive("a")
    assert one.answer("a", keep=False) == []
    assert one.arrive("b") == "waits"


def test_a_credit_that_arrives_with_none_waiting_stays_idle() -> None:
    one = lobby("r0")
    one.ready("r0")
    assert one.hear("r0", Grant(((1, 1),))) == []
    assert one.arrive("a") == "a -> r0 on 1"


# --- wants ------------------------------------------------------------------------------------------------------------


def test_wants_are_reported_once_per_turn_and_when_the_class_changes() -> None:
    one = lobby("r0")
    one.ready("r0")
    one.arrive("a", 1.0)
    one.arrive("b", 1.0)
    assert one.did(1.5) == ["r0 < want 1 2 0 0 500 500 1 0"]
    one.arrive("c", 2.0)
    one.arrive("d", 2.0)
    assert one.did(2.0) == [], "two to four are one class"
    one.arrive("e", 2.0)
    assert one.did(2.0) == ["r0 < want 2 5 0 0 1000 0 1 0"]


def test_a_want_that_fell_to_zero_is_reported() -> None:
    one = lobby("r0", "r1")
    one.ready("r0")
    one.ready("r1")
    one.arrive("a", 1.0)
    assert one.did(1.0) == ["r0 < want 1 1 0 0 0 0 1 0", "r1 < want 1 1 0 0 0 0 1 0"]
    assert one.hear("r1", Grant(((5, 1),)), now=1.1) == ["a -> r1 on 5, want 2 0", "r0 < want 2 0"]


def test_a_void_makes_the_want_reported_anew() -> None:
    one = lobby("r0")
    one.ready("r0")
    one.arrive("a", 1.0)
    one.did(1.0)
    assert one.hear("r0", Void((9,)), now=1.2) == ["r0 < want 2 1 0 0 200 200 1 0"]


def test_wants_go_to_replicas_that_start_so_that_ready_finds_them() -> None:
    one = lobby("r0")
    one.ready("r0", state=ReplicaState.STARTING)
    one.arrive("a", 1.0)
    assert "r0 < want 1 1 0 0 0 0 1 0" in one.did(1.0)


def test_replicas_get_one_want_in_the_numbers_of_each_and_one_without_work_none_of_it() -> None:
    one = lobby("r0", "r1", "r2", "r3")
    for name in ("r0", "r1", "r2"):
        one.ready(name)
    one.ready("r3", state=ReplicaState.STARTING)
    one.room.eject("r1", 1.0, 10.0)
    one.did(1.0)
    one.arrive("a", 1.0)
    assert one.did(1.5) == [f"{name} < want 1 1 0 0 500 500 1 0" for name in ("r0", "r2", "r3")]
    one.hear("r0", Void((9,)), now=2.0)
    one.arrive("b", 2.0)
    assert one.did(2.0) == [
        "r0 < want 3 2 0 0 1000 0 1 0", "r2 < want 2 2 0 0 1000 0 1 0", "r3 < want 2 2 0 0 1000 0 1 0"
    ]  # fmt: skip


# --- recall, void, channel --------------------------------------------------------------------------------------------


def test_recalled_idle_credits_go_back_at_once() -> None:
    one = lobby("r0")
    one.ready("r0", 1, 2)
    assert one.hear("r0", Recall((1,))) == ["r0 < return 1"]
    assert one.arrive("a") == "a -> r0 on 2"


def test_a_recalled_busy_credit_goes_back_when_its_request_has_ended() -> None:
    one = lobby("r0")
    one.ready("r0", 1)
    one.arrive("a")
    assert one.hear("r0", Recall((1,))) == []
    assert one.answer("a", keep=True) == ["r0 < return 1"]
    assert one.arrive("b") == "waits"


def test_a_recalled_credit_whose_answer_is_only_read_to_its_end_goes_back_at_once() -> None:
    """The queue_proxy has ended the request and counts the credit as idle; a slow client has yet to read."""
    one = lobby("r0")
    one.ready("r0", 1, 2)
    one.arrive("a")
    one.arrive("b")
    one.room.keep_credit(one.binds["a"])
    assert one.hear("r0", Recall((1, 2))) == ["r0 < return 2"], "the request of the other may be on its way"
    assert one.answer("a", keep=True) == one.answer("b", keep=False) == []
    assert one.arrive("c") == "waits"


def test_a_long_answer_leaves_its_credit_here_if_none_asks_for_it() -> None:
    one = lobby("r0")
    one.ready("r0", 1)
    for name in ("a", "b"):
        assert one.arrive(name) == f"{name} -> r0 on 1"
        one.room.keep_credit(one.binds[name])
        assert one.answer(name) == []
    assert one.arrive("c") == "c -> r0 on 1"
    assert one.hear("r0", Recall((1,))) == [], "its own answer has said nothing yet"


def test_many_recalls_that_crossed_do_not_bring_back_a_credit_that_went() -> None:
    one = lobby("r0")
    one.ready("r0", 1, 2)
    for name in ("long", "other"):
        one.arrive(name)
    one.room.keep_credit(one.binds["long"])
    assert one.hear("r0", Recall((one.binds["long"].credit,))) == [f"r0 < return {one.binds['long'].credit}"]
    for number in range(100, 200):
        one.hear("r0", Recall((number,)))
    assert one.answer("long") == []
    assert one.arrive("next") == "waits"


def test_a_recall_of_a_credit_that_is_not_here_is_answered() -> None:
    one = lobby("r0")
    one.ready("r0")
    assert one.hear("r0", Recall((44,))) == ["r0 < return 44"]


def test_a_void_that_overtakes_the_answer_counts() -> None:
    """The queue_proxy kept, then voided; the void arrives before the answer that says keep."""
    one = lobby("r0")
    one.ready("r0", 1)
    one.arrive("a")
    one.hear("r0", Void((1,)))
    one.answer("a", keep=True)
    assert one.arrive("b") == "waits"


def test_an_abort_gives_the_credit_back() -> None:
    one = lobby("r0")
    one.ready("r0", 1)
    one.arrive("a")
    one.room.aborted(one.binds["a"], 1.0)
    assert one.did() == ["r0 < return 1"]


def test_an_abort_tells_the_want_anew_that_the_request_carried() -> None:
    one = lobby("r0")
    one.ready("r0")
    one.arrive("a", 1.0)
    one.arrive("b", 1.0)
    one.did(1.0)
    one.hear("r0", Grant(((1, 1),)), now=1.1)
    one.room.aborted(one.binds["a"], 1.2)
    assert one.did(1.2) == ["r0 < return 1", "r0 < want 3 1 0 0 200 200 1 0"]


def test_a_broken_channel_takes_its_credits_with_it() -> None:
    one = lobby("r0")
    one.ready("r0", 1, 2)
    one.arrive("a")
    one.room.unlinked("r0", 1.0)
    assert one.arrive("b", 1.0) == "waits"
    assert one.answer("a", keep=True, now=1.1) == [], "a credit of the last channel"
    assert one.ready("r0", 3, now=1.2)[0].startswith("b -> r0 on 3")


def test_a_refused_request_returns_to_its_old_place() -> None:
    one = lobby("r0")
    one.ready("r0", 1)
    one.arrive("a", 1.0)
    one.arrive("b", 1.1)
    one.did(1.1)
    one.room.refused(one.binds["a"], 1.2)
    assert one.did(1.2) == ["r0 < want 2 2 0 0 200 100 1 0"]
    assert one.hear("r0", Grant(((2, 1),)), now=1.3)[0].startswith("a -> r0")


def test_a_request_that_could_not_be_sent_goes_elsewhere_and_the_replica_rests() -> None:
    one = lobby("r0", "r1")
    one.ready("r0", 1)
    one.ready("r1", 1)
    assert one.arrive("a", 1.0).startswith("a -> r0")
    one.room.unsent(one.binds["a"], 1.0)
    assert one.did(1.0)[:2] == ["r0 < return 1", "a -> r1 on 1"]
    one.hear("r0", Grant(((2, 1),)), now=1.01)
    assert one.arrive("b", 1.05) == "waits"
    one.did(1.05)
    assert one.wake(1.1)[0].startswith("b -> r0 on 2"), "rested for 100 ms"


# --- bounds, deadlines, failures --------------------------------------------------------------------------------------


def test_a_deadline_ends_the_waiting_and_the_request_is_never_bound() -> None:
    one = lobby("r0")
    one.ready("r0")
    one.arrive("a", 1.0, deadline=1.5)
    one.arrive("b", 1.0)
    one.did(1.0)
    one.wake(1.2)
    assert one.room.next_wakeup() == 1.5
    assert one.wake(1.5) == ["refuse a: deadline_exceeded", "r0 < want 2 1 0 0 500 500 1 0"]
    assert one.hear("r0", Grant(((1, 1),)), now=1.6)[0].startswith("b ->")


def test_a_deadline_in_the_past_is_refused_on_arrival() -> None:
    one = lobby("r0")
    one.ready("r0", 1)
    assert one.arrive("a", 5.0, deadline=5.0) == "refuse a: deadline_exceeded"


def test_the_longest_wait_ends_in_503() -> None:
    one = Lobby(table(functions=[function([("r0", "cpu")], max_wait_s=2.0)]))
    one.arrive("a", 1.0)
    one.did()
    assert "refuse a: waited_too_long" in one.wake(3.0)


def test_a_request_that_has_waited_for_drop_after_is_dropped_with_its_age_and_when_to_retry() -> None:
    one = Lobby(table(functions=[function([("r0", "cpu")], drop_after_s=0.6)]))
    one.arrive("a", 1.0)
    one.arrive("b", 1.3)
    one.did()
    assert not any(line.startswith("refuse") for line in one.wake(1.5))
    one.room.on_wakeup(1.6)
    (refusal,) = [each for each in one.room.out if isinstance(each, Refuse)]
    assert (refusal.request, refusal.kind.code, refusal.retry_after_s) == ("a", "dropped", 1)
    assert refusal.message == "waited 0.6 s for a slot; the function drops requests after 0.6 s (drop-after)"
    one.room.out.clear()
    assert "refuse b: dropped" in one.wake(1.9)


def test_a_deadline_before_drop_after_ends_a_request_as_ever() -> None:
    one = Lobby(table(functions=[function([("r0", "cpu")], drop_after_s=0.6)]))
    one.arrive("a", 1.0, deadline=1.5)
    one.did()
    assert "refuse a: deadline_exceeded" in one.wake(1.5)


def test_a_client_that_goes_away_leaves_the_room() -> None:
    one = lobby("r0")
    one.ready("r0")
    one.arrive("a", 1.0)
    one.did(1.0)
    assert one.room.withdraw("a", 1.1)
    assert one.did(1.1) == ["r0 < want 2 0"]
    assert not one.room.withdraw("a", 1.1)
    counts = one.room.counts(F, 1.2)
    assert counts is not None
    assert (counts.waiting, counts.cancelled) == (0, 2)


def test_an_unknown_revision_is_refused() -> None:
    assert lobby().arrive("a", revision="g-00001") == "refuse a: not_servable"


# --- activation -------------------------------------------------------------------------------------------------------


def test_a_crowd_before_ready_replicas_is_reported_at_once_and_again_after_a_second() -> None:
    one = lobby("r0")
    one.ready("r0", 7)
    one.hear("r0", Limit(2))

    def came(first: int, last: int, at: float) -> list[str]:
        for number in range(first, last):
            one.arrive(f"q{number}", at)
        return [line for line in one.did(at) if line.startswith(("crowd", "activate"))]

    assert came(0, BACKLOG * 2, 10.0) == [], "one runs, the others are no crowd for two slots"
    assert came(8, 9, 10.0) == [], "slots are not counted for each request"
    assert came(9, 10, 10.1) == ["crowd at f-00001 of 9"]
    assert came(10, 20, 11.0) == []
    assert came(20, 21, 11.1) == ["crowd at f-00001 of 20"]


def test_requests_before_a_replica_without_a_limit_are_no_crowd() -> None:
    one = lobby("r0")
    one.ready("r0")
    one.hear("r0", Limit(0))
    for number in range(50):
        one.arrive(f"q{number}", 10.0 + number)
    assert not [line for line in one.did(60.0) if line.startswith("crowd")]


def test_the_first_waiting_request_without_replicas_asks_for_activation_at_once_and_keeps_asking() -> None:
    one = Lobby(table())
    assert one.arrive("a", 10.0) == "waits"
    assert one.did(10.0) == ["activate f-00001 for 1"]
    one.arrive("b", 10.05)
    assert one.did(10.05) == [], "one wish, however many wait"
    assert one.room.next_wakeup() == pytest.approx(10.2)
    assert one.wake(10.2) == ["activate f-00001 for 2"]
    assert one.wake(10.4) == ["activate f-00001 for 2"]
    one.room.withdraw("a", 10.5)
    one.room.withdraw("b", 10.5)
    assert one.wake(10.6) == []


def test_two_hundred_first_requests_are_one_wish() -> None:
    one = Lobby(table())
    for number in range(200):
        one.arrive(f"q{number}", 10.0)
    assert one.did(10.0) == ["activate f-00001 for 1"]


def test_a_ready_replica_ends_the_wish() -> None:
    one = lobby("r0")
    one.arrive("a", 1.0)
    one.did(1.0)
    assert one.wake(1.2)[0] == "activate f-00001 for 1"
    one.ready("r0", now=1.3)
    assert one.wake(2.0) == []


def test_a_starting_replica_does_not_end_it() -> None:
    one = lobby("r0")
    one.ready("r0", state=ReplicaState.STARTING)
    one.arrive("a", 1.0)
    assert "activate f-00001 for 1" in one.did(1.0)
    assert one.wake(1.2) == ["activate f-00001 for 1"]


def test_replicas_that_are_being_asked_count_as_perhaps_ready_for_a_moment() -> None:
    one = Lobby(table([("r0", "cpu")]))
    one.arrive("a", 1.0)
    assert one.did(1.0) == ["link r0"]
    assert one.wake(1.2) == ["activate f-00001 for 1"], "not heard within 200 ms"


def test_a_want_on_the_draining_last_replica_asks_for_activation_and_is_reported_there() -> None:
    one = lobby("r0")
    one.ready("r0")
    one.hear("r0", State(ReplicaState.DRAINING), now=1.0)
    one.arrive("a", 1.1)
    assert one.did(1.1) == ["activate f-00001 for 1", "r0 < want 1 1 0 0 0 0 1 0"]
    assert one.hear("r0", State(ReplicaState.READY), Grant(((3, 1),)), now=1.3) == ["a -> r0 on 3, want 2 0"]


def test_a_replica_that_drains_under_a_waiting_request_raises_the_wish() -> None:
    one = lobby("r0")
    one.ready("r0")
    one.arrive("a", 1.0)
    one.did(1.0)
    assert one.hear("r0", State(ReplicaState.DRAINING), now=1.1) == ["activate f-00001 for 1"]


# --- channels ---------------------------------------------------------------------------------------------------------


def test_channels_open_with_the_first_request_and_close_after_a_minute_without() -> None:
    one = Lobby(table([("r0", "cpu"), ("r1", "cpu")]))
    one.arrive("a", 1.0)
    assert one.did(1.0) == ["link r0", "link r1"]
    one.ready("r0", 1, now=1.0)
    one.answer("a", now=30.0)
    assert one.wake(61.0) == []
    assert one.wake(90.0) == ["unlink r0", "unlink r1"]
    assert one.arrive("b", 100.0) == "waits"
    assert one.did(100.0) == ["link r0", "link r1"]


def test_a_long_answer_keeps_the_channels_open() -> None:
    one = lobby("r0")
    one.ready("r0", 1)
    one.arrive("a", 1.0)
    assert one.wake(70.0) == []
    assert one.answer("a", now=500.0) == []


def test_a_new_replica_of_a_function_in_use_is_linked_while_it_starts() -> None:
    one = lobby("r0")
    one.room.apply(table([("r0", "cpu"), ("r1", "cpu")], number=2), 1.0)
    assert one.did(1.0) == ["link r1"]


def test_above_64_replicas_the_workers_together_cover_all() -> None:
    replicas = [(f"f-00001-{index:05d}", "cpu") for index in range(300)]
    linked: Counter[str] = Counter()
    for index in range(8):
        one = Lobby(table(replicas, workers=8), worker_index=index)
        one.arrive("a")
        links = [line.split()[1] for line in one.did() if line.startswith("link")]
        assert 40 <= len(links) <= 100
        linked.update(links)
    assert len(linked) == 300


def test_a_replica_that_is_awake_among_many_that_sleep_serves_every_worker() -> None:
    replicas = [(f"f-00001-{index:05d}", "cpu") for index in range(300)]
    awake = replicas[7][0]
    asleep = [replica for replica, _ in replicas]
    for index in range(8):
        one = Lobby(table(replicas, workers=8, asleep=asleep), worker_index=index)
        one.arrive("a")
        links = [line for line in one.did() if line.startswith("link")]
        assert 40 <= len(links) <= 100
        one.room.apply(table(replicas, workers=8, asleep=[each for each in asleep if each != awake], number=2), 1.0)
        links += [line for line in one.did(1.0) if line.startswith("link")]
        assert f"link {awake}" in links


# --- groups -----------------------------------------------------------------------------------------------------------


def two_groups(a: float, b: float, *, mu_ips: dict[str, float] | None = None, credits: int = 4) -> Lobby:  # noqa: A002
    replicas = [("ra", "a"), ("rb", "b")]
    one = Lobby(table(functions=[function(replicas, weights={"a": a, "b": b}, mu_ips=mu_ips)]))
    one.arrive("first")
    one.room.withdraw("first", 0.0)
    one.did()
    for name in ("ra", "rb"):
        one.ready(name, *range(1, credits + 1), limit=4)
    return one


def test_at_low_load_groups_take_their_shares_in_inferences() -> None:
    one = two_groups(0.75, 0.25)
    taken: Counter[str] = Counter()
    rng = random.Random(2)
    for number in range(2000):
        size = rng.choice([1, 8])
        outcome = one.room.arrive(number, F, size, 1e9, 1.0)
        assert isinstance(outcome, Bind)
        taken[outcome.replica.group.accelerator] += size
        one.room.answered(outcome, True, 1.0)
    assert taken["a"] / taken.total() == pytest.approx(0.75, abs=0.01)


def test_at_saturation_the_slot_that_frees_takes_the_work() -> None:
    one = two_groups(0.9, 0.1, credits=1)
    one.arrive("x")
    one.arrive("y")
    for number in range(5):
        one.arrive(f"w{number}")
    one.did()
    slow = next(name for name in "xy" if one.binds[name].replica.id == "rb")
    assert one.answer(slow)[0].startswith("w0 -> rb")


def test_weight_zero_is_no_new_work_even_if_slots_are_free() -> None:
    one = two_groups(1.0, 0.0)
    for number in range(4):
        assert "-> ra" in one.arrive(f"q{number}")
    assert one.arrive("waiting") == "waits"
    assert not any(line.startswith("rb") for line in one.did()), "no want there either"


def test_a_slot_that_frees_in_a_group_whose_weight_fell_to_zero_takes_none_who_waits() -> None:
    one = two_groups(0.5, 0.5, credits=1)
    one.arrive("x")
    one.arrive("y")
    assert one.arrive("waiting") == "waits"
    replicas = [("ra", "a"), ("rb", "b")]
    one.room.apply(table(number=2, functions=[function(replicas, weights={"a": 1.0, "b": 0.0})]), 1.0)
    one.did(1.0)
    on_a, on_b = sorted("xy", key=lambda name: one.binds[name].replica.id)
    assert one.answer(on_b, now=2.0) == []
    assert one.answer(on_a, now=3.0)[0].startswith("waiting -> ra")


def test_all_weights_zero_say_nothing_about_shares() -> None:
    one = two_groups(0.0, 0.0)
    assert {one.arrive(f"q{number}").split()[2] for number in range(4)} == {"ra", "rb"}


def test_a_group_that_cannot_finish_in_time_is_passed_over() -> None:
    # 4 at a time at 4 per second: a second each; at 400 per second: 10 ms each.
    one = two_groups(0.99, 0.01, mu_ips={"a": 4.0, "b": 400.0})
    assert "-> rb" in one.arrive("hurried", 1.0, deadline=1.5)
    assert "-> ra" in one.arrive("patient", 1.0, deadline=60.0)


def test_if_none_can_finish_in_time_the_earliest_takes_it() -> None:
    one = two_groups(0.99, 0.01, mu_ips={"a": 4.0, "b": 8.0})
    assert "-> rb" in one.arrive("hopeless", 1.0, deadline=1.01)


def test_without_a_limit_ready_replicas_take_work_at_once_by_weight() -> None:
    one = two_groups(0.5, 0.5, credits=0)
    for name in ("ra", "rb"):
        one.hear(name, Limit(0))
    bound = [one.arrive(f"q{number}") for number in range(100)]
    assert Counter(line.split()[2] for line in bound) == {"ra": 50, "rb": 50}
    assert all(line.endswith("on 0") for line in bound)
    assert one.binds["q0"].header() == b""
    assert one.answer("q0") == []


def test_without_a_limit_a_replica_that_drains_takes_no_more() -> None:
    one = lobby("r0")
    one.ready("r0", limit=0)
    assert one.arrive("a") == "a -> r0 on 0"
    one.hear("r0", State(ReplicaState.DRAINING))
    assert one.arrive("b") == "waits"


# --- units ------------------------------------------------------------------------------------------------------------


def test_credits_that_do_not_fit_the_head_go_back_with_the_want() -> None:
    one = lobby("r0", unit_inferences=True)
    one.ready("r0", 1, 2, limit=8)
    assert one.arrive("a", 1.0, inferences=6) == "waits"
    assert one.did(1.0) == ["r0 < want 1 1 0 0 0 0 6 1", "r0 < return 1 2"]


# --- route table ------------------------------------------------------------------------------------------------------


def test_a_table_that_is_not_newer_is_ignored() -> None:
    one = lobby("r0")
    assert not one.room.apply(table(number=1), 1.0)
    assert one.room.apply(table(number=2), 1.0)


def test_a_replica_that_is_gone_takes_its_credits_and_nothing_else() -> None:
    one = lobby("r0", "r1")
    one.ready("r0", 1)
    one.ready("r1", 1, 2)
    one.arrive("a")
    one.arrive("b")
    where = {one.binds[name].replica.id for name in "ab"}
    assert where == {"r0", "r1"}
    one.arrive("c")
    assert one.arrive("waits") == "waits"
    one.did()
    one.room.apply(table([("r0", "cpu")], number=2), 1.0)
    assert one.did(1.0) == ["unlink r1"]
    on_r1 = next(name for name in "abc" if one.binds[name].replica.id == "r1")
    assert one.answer(on_r1, now=2.0) == [], "it ran on; its credit is worth nothing"
    on_r0 = next(name for name in "abc" if one.binds[name].replica.id == "r0")
    assert one.answer(on_r0, now=2.0)[0].startswith("waits -> r0")


def test_weights_change_without_disturbing_credits() -> None:
    one = two_groups(1.0, 0.0)
    replicas = [("ra", "a"), ("rb", "b")]
    one.room.apply(table(number=2, functions=[function(replicas, weights={"a": 0.0, "b": 1.0})]), 1.0)
    assert one.did(1.0) == []
    assert "-> rb" in one.arrive("q")


def test_a_replica_whose_address_changed_is_another_one() -> None:
    one = lobby("r0")
    one.ready("r0", 1)
    moved = function([("r0", "cpu")])
    group = moved.revisions[0].groups[0]
    replica = type(group.replicas[0])(id="r0", address="unix:/elsewhere")
    group = type(group)(accelerator="cpu", weight=1.0, replicas=(replica,))
    route = RevisionRoute(id=F, percent=100.0, groups=(group,))
    moved = FunctionRoute(
        **{name: getattr(moved, name) for name in moved.__slots__ if name != "revisions"}, revisions=(route,)
    )
    one.room.apply(table(number=2, functions=[moved]), 1.0)
    assert one.did(1.0) == ["unlink r0", "link r0"]
    assert one.arrive("a", 1.0) == "waits"


# --- counters ---------------------------------------------------------------------------------------------------------


def test_counts_follow_a_request_through_the_room() -> None:
    one = lobby("r0")
    one.ready("r0", 1)
    one.arrive("a", 1.0, inferences=3)
    one.arrive("b", 1.0, inferences=2)
    counts = one.room.counts(F, 3.0)
    assert counts is not None
    assert (counts.arrivals, counts.arrivals_inferences) == (3, 6), "the lobby's own first one included"
    assert (counts.waiting, counts.waiting_inferences, counts.oldest_waiting_s) == (1, 2, 2.0)
    assert (counts.waiting_request_s, counts.waiting_inference_s) == (2.0, 4.0)
    one.answer("a", now=5.0)
    counts = one.room.counts(F, 9.0)
    assert counts is not None
    assert (counts.waiting, counts.waiting_request_s, counts.oldest_waiting_s) == (0, 4.0, 0.0)


def test_waiting_that_took_no_time_is_never_below_zero() -> None:
    for tick in range(100):
        one, now = lobby("r0"), tick / 7
        one.ready("r0")
        for number in range(6):
            one.arrive(f"q{number}", now, inferences=3)
        sums = [one.room.counts(F, now)]
        for number in range(6):
            one.room.withdraw(f"q{number}", now)
            sums.append(one.room.counts(F, now))
        for counts in sums:
            assert counts is not None
            assert min(counts.waiting_request_s, counts.waiting_inference_s) >= 0.0, now


def test_timers_of_requests_that_left_do_not_pile_up() -> None:
    one = lobby("r0")
    one.ready("r0")
    for number in range(20_000):
        one.arrive(f"q{number}", 1.0)
        one.room.withdraw(f"q{number}", 1.0)
    assert len(one.room._timers) < 3000
    queue = one.room._fleet.revisions[F].main.queue
    assert isinstance(queue, OrderedQueue)
    assert len(queue._line) + len(queue._heap) < 200


def test_timers_of_a_wish_that_lasts_do_not_pile_up() -> None:
    one = lobby("r0")
    one.arrive("q", 1.0)
    for tick in range(5 * 300):
        one.wake(1.0 + tick / 5)
    assert len(one.room._timers) < 10
