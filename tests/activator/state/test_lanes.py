"""Lanes: sizes that groups serve, groups fixed at arrival, replicas to avoid, and the order of the lanes' heads."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

import pytest

from tests.support.worlds.routes import function, table
from tests.support.worlds.waiting_room import F, Lobby
from tidegate.activator.choice import DEFICIT_LIMIT
from tidegate.activator.state.bind import Bind
from tidegate.flow.messages import Grant, Short
from tidegate.records.replica_state import ReplicaState
from tidegate.records.route_table import Binding, QueueOrder, RouteTable, Spread

SMALL_AND_LARGE = {"s": (1, 8), "l": (9, 64)}


def sized(
    sizes: Mapping[str, tuple[int, int | None]], *, number: int = 1, unit_inferences: bool = False, early: bool = False
) -> RouteTable:
    """One replica per group, named after it."""
    replicas = [(f"r-{kind}", kind) for kind in sizes]
    binding = Binding.EARLY if early else Binding.LATE
    route = function(replicas, sizes=sizes, unit_inferences=unit_inferences, binding=binding)
    return table(number=number, functions=[route])


def open_lobby(routes: RouteTable, *replicas: str, limit: int = 4) -> Lobby:
    """All replicas ready, without a credit."""
    one = Lobby(routes)
    one.arrive("first", inferences=1)
    one.room.withdraw("first", 0.0)
    one.did()
    for replica in replicas:
        one.ready(replica, limit=limit)
    return one


# --- classes of sizes -------------------------------------------------------------------------------------------------


def test_a_group_gets_only_requests_of_its_sizes() -> None:
    one = open_lobby(sized(SMALL_AND_LARGE), "r-s", "r-l")
    one.hear("r-s", Grant(((1, 1), (2, 1))))
    one.hear("r-l", Grant(((3, 1), (4, 1))))
    assert one.arrive("small", inferences=8) == "small -> r-s on 2"
    assert one.arrive("large", inferences=9) == "large -> r-l on 4"


def test_a_large_head_never_blocks_small_requests_behind_it() -> None:
    one = open_lobby(sized(SMALL_AND_LARGE), "r-s", "r-l")
    assert one.arrive("large", 1.0, inferences=64) == "waits"
    assert one.arrive("small", 1.1, inferences=1) == "waits"
    assert one.did(1.1) == ["r-s < want 1 1 0 0 0 0 1 0", "r-l < want 1 1 0 0 100 100 1 0"], "each gets its own wants"
    assert one.hear("r-s", Grant(((1, 1),)), now=1.2) == ["small -> r-s on 1, want 2 0"]
    assert one.hear("r-l", Grant(((1, 1),)), now=1.3) == ["large -> r-l on 1, want 2 0"]


def test_a_free_slot_that_the_waiting_may_not_use_is_taken_at_once() -> None:
    one = open_lobby(sized(SMALL_AND_LARGE), "r-s", "r-l")
    one.arrive("large", 1.0, inferences=64)
    one.hear("r-s", Grant(((1, 1),)), now=1.0)
    assert one.arrive("small", 1.1, inferences=1) == "small -> r-s on 1"


def test_where_classes_overlap_the_slot_goes_to_the_best_key_of_all_that_it_may_serve() -> None:
    one = open_lobby(sized({"a": (1, 8), "b": (1, None)}), "r-a", "r-b")
    one.arrive("large", 1.0, inferences=20)
    one.arrive("small", 1.1, inferences=2)
    one.arrive("late", 1.2, inferences=2)
    assert one.did(1.2) == ["r-a < want 1 2 0 0 100 0 1 0", "r-b < want 1 3 0 0 200 0 1 0"]
    assert one.hear("r-b", Grant(((1, 1),)), now=1.3)[0].startswith("large -> r-b"), "it came first"
    assert one.hear("r-b", Grant(((2, 1),)), now=1.3)[0].startswith("small -> r-b")
    assert one.hear("r-a", Grant(((1, 1),)), now=1.3)[0].startswith("late -> r-a")


def test_a_request_that_no_group_serves_is_refused_and_reported() -> None:
    one = open_lobby(sized(SMALL_AND_LARGE), "r-s", "r-l")
    assert one.arrive("huge", inferences=65) == "refuse huge: batch_too_large"
    counts = one.room.counts(F, 1.0)
    assert counts is not None and (counts.waiting, counts.refused) == (0, 1)


def test_while_no_group_exists_any_size_waits_and_is_judged_when_one_does() -> None:
    one = Lobby(table())
    for name, size in (("small", 1), ("huge", 65)):
        assert one.arrive(name, inferences=size) == "waits"
    one.room.apply(sized(SMALL_AND_LARGE, number=2), 1.0)
    assert "refuse huge: batch_too_large" in one.did(1.0)
    assert one.ready("r-s", 1, now=1.1)[0].startswith("small -> r-s")
    counts = one.room.counts(F, 1.2)
    assert counts is not None and (counts.waiting, counts.refused) == (0, 1)


def test_other_classes_sort_the_waiting_anew_in_their_old_order() -> None:
    one = open_lobby(sized(SMALL_AND_LARGE), "r-s", "r-l")
    for name, size in (("a", 4), ("b", 16), ("c", 4)):
        one.arrive(name, inferences=size)
    one.did()
    one.room.apply(sized({"s": (1, 16), "l": (9, 64)}, number=2), 1.0)
    one.did(1.0)
    said = one.hear("r-s", Grant(((1, 1), (2, 1), (3, 1))), now=1.1)
    assert [line.split()[0] for line in said[:3]] == ["a", "b", "c"]


def test_who_waits_for_a_group_that_lost_its_range_is_reported_to_and_served_by_the_one_that_has_it() -> None:
    one = open_lobby(sized({"s": (1, 8), "m": (9, 64), "l": (65, None)}), "r-s", "r-m", "r-l")
    one.hear("r-l", Grant(((7, 1),)))
    assert one.arrive("b", 1.0, inferences=16) == "waits"
    assert one.arrive("c", 1.1, inferences=32) == "waits"
    one.did(1.1)
    one.room.apply(sized({"s": (1, 8), "m": (9, 24), "l": (25, None)}, number=2), 2.0)
    said = one.did(2.0)
    assert said[0].startswith("c -> r-l on 7"), "it has an idle slot there, and takes it at once"
    one.room.apply(sized({"s": (1, 16), "m": (17, 24), "l": (25, None)}, number=3), 3.0)
    said = one.did(3.0)
    assert said == ["r-s < want 1 1 0 0 2000 2000 1 0", "r-m < want 3 0"], (
        "wants go where it waits, and are taken back elsewhere"
    )
    assert one.hear("r-s", Grant(((1, 1),)), now=3.1) == ["b -> r-s on 1, want 2 0"]


def test_who_was_given_back_after_the_ranges_changed_waits_for_the_new_ones() -> None:
    one = open_lobby(sized(SMALL_AND_LARGE), "r-s", "r-l")
    one.hear("r-s", Grant(((1, 1),)))
    assert one.arrive("a", inferences=8) == "a -> r-s on 1"
    one.room.apply(sized({"s": (1, 4), "l": (5, 64)}, number=2), 1.0)
    one.did(1.0)
    one.room.refused(one.binds["a"], 1.1)
    one.did(1.1)
    assert one.hear("r-l", Grant(((2, 1),)), now=1.2)[0].startswith("a -> r-l on 2")


def test_who_waits_for_a_size_that_no_group_serves_any_more_is_reported_and_none_else() -> None:
    one = open_lobby(sized(SMALL_AND_LARGE), "r-s", "r-l")
    one.hear("r-l", Grant(((1, 1),)))
    assert one.arrive("running", inferences=64) == "running -> r-l on 1"
    for name, size in (("small", 8), ("large", 64), ("largest", 60)):
        assert one.arrive(name, inferences=size) == "waits"
    one.did()
    one.room.apply(sized({"s": (1, 8), "l": (9, 60)}, number=2), 1.0)
    assert [line for line in one.did(1.0) if "refuse" in line] == ["refuse large: batch_too_large"]
    one.room.refused(one.binds["running"], 1.1)
    assert [line for line in one.did(1.1) if "refuse" in line] == ["refuse running: batch_too_large"]
    assert one.room.waiting == 2
    counts = one.room.counts(F, 1.2)
    assert counts is not None
    assert counts.refused == 2


def test_a_group_that_is_gone_leaves_its_range_to_the_groups_of_the_next_table() -> None:
    one = open_lobby(sized(SMALL_AND_LARGE), "r-s", "r-l")
    assert one.arrive("large", inferences=64) == "waits"
    one.did()
    one.room.apply(sized({"s": (1, None)}, number=2), 1.0)
    one.did(1.0)
    assert one.hear("r-s", Grant(((1, 1),)), now=1.1)[0].startswith("large -> r-s on 1")


# --- a moment for a quicker group -------------------------------------------------------------------------------------


def unequal(number: int = 1, workers: int = 2) -> RouteTable:
    """A slow and a fast group; a request takes 100 ms and 20 ms, so one may wait for the fast one for 1 ms."""
    route = function(
        [("r-slow", "slow"), ("r-fast", "fast")],
        weights={"slow": 10.0, "fast": 50.0},
        mu_ips={"slow": 10.0, "fast": 50.0},
    )
    return table(number=number, workers=workers, functions=[route])


def with_slow_ahead(workers: int = 2) -> Lobby:
    """The slow group has had three requests, the fast one, which has no slot for this worker, none."""
    one = open_lobby(unequal(workers=workers), "r-slow", "r-fast", limit=1)
    one.hear("r-slow", Grant(((1, 1),)))
    for number in range(3):
        assert one.arrive(f"early-{number}", float(number)) in (f"early-{number} -> r-slow on 1", "waits")
        one.wake(number + 0.1)
        one.answer(f"early-{number}", number + 0.2)
    return one


def test_a_slot_of_a_slow_group_that_is_ahead_waits_a_moment_for_a_quicker_one() -> None:
    one = with_slow_ahead()
    assert one.arrive("x", 10.0) == "waits"
    assert [line.split(" < ")[0] for line in one.did(10.0)] == ["r-slow", "r-fast"]
    assert one.hear("r-fast", Grant(((2, 1),)), now=10.0005)[0].startswith("x -> r-fast on 2")


def test_it_takes_the_slow_one_when_the_moment_is_over() -> None:
    one = with_slow_ahead()
    assert one.arrive("x", 10.0) == "waits"
    one.did(10.0)
    assert one.room.next_wakeup() == pytest.approx(10.001)
    assert one.wake(10.001)[0].startswith("x -> r-slow on 1")


def test_a_slot_that_frees_in_that_moment_is_left_alone_as_well_and_looked_at_in_time() -> None:
    one = with_slow_ahead()
    assert one.arrive("before", 9.0) == "waits"
    assert one.wake(9.001)[0].startswith("before -> r-slow on 1")
    assert one.arrive("x", 10.0) == "waits"
    one.did(10.0)
    assert one.answer("before", 10.0004) == []
    assert one.room.next_wakeup() == pytest.approx(10.001)
    assert one.wake(10.001)[0].startswith("x -> r-slow on 1")


def test_who_waited_before_a_slot_was_free_waits_no_moment_more() -> None:
    one = with_slow_ahead()
    assert one.arrive("before", 9.0) == "waits"
    assert one.wake(9.001)[0].startswith("before -> r-slow on 1")
    assert one.arrive("x", 10.0) == "waits"
    one.did(10.0)
    assert one.answer("before", 10.002)[0].startswith("x -> r-slow on 1")


def test_a_worker_alone_knows_that_the_quicker_one_is_busy() -> None:
    one = with_slow_ahead(workers=1)
    assert one.arrive("x", 10.0) == "x -> r-slow on 1"


def test_work_that_may_not_wait_takes_no_slot_that_somebody_has_left_alone() -> None:
    one = with_slow_ahead()
    assert one.arrive("x", 10.0) == "waits"
    assert one.room.take_idle_slot("copy", F, 1, 10.0) is None
    one.wake(10.001)
    one.answer("x", 10.1)
    copy = one.room.take_idle_slot("copy", F, 1, 10.2)
    assert copy is not None
    assert copy.replica.id == "r-slow", "it has no moment to wait"


def test_a_small_request_leaves_the_debts_of_large_ones_alone() -> None:
    lane = open_lobby(sized({"s": (1, None)})).room._fleet.revisions[F].main
    assert lane.deficit_limit(64) == 64 * DEFICIT_LIMIT
    assert lane.deficit_limit(1) == pytest.approx(64 * DEFICIT_LIMIT, rel=0.02)
    limits = [lane.deficit_limit(1) for _ in range(1000)]
    assert limits[-1] == DEFICIT_LIMIT, "what is long ago fades"


# --- inferences as units ----------------------------------------------------------------------------------------------


def test_in_inferences_a_head_that_does_not_fit_holds_back_only_what_it_may_use() -> None:
    one = open_lobby(sized({"a": (1, 4), "b": (1, 64)}, unit_inferences=True), "r-a", "r-b", limit=8)
    one.arrive("large", 1.0, inferences=8)
    one.arrive("small", 1.1, inferences=2)
    said = one.hear("r-b", Grant(((1, 4),)), now=1.2)
    assert "r-b < return 1" in said, "4 units carry the small one, but the large one came first"
    assert one.hear("r-a", Grant(((1, 2),)), now=1.2)[0].startswith("small -> r-a")


def test_a_full_room_of_large_requests_does_not_refuse_a_small_one_that_may_run_at_once() -> None:
    sizes: dict[str, tuple[int, int | None]] = {"a": (1, 4), "b": (5, 64)}
    replicas = [(f"r-{kind}", kind) for kind in sizes]
    route = function(replicas, sizes=sizes, unit_inferences=True, queue_requests=1)
    one = open_lobby(table(functions=[route]), "r-a", "r-b", limit=8)
    assert one.arrive("large", inferences=8) == "waits"
    one.hear("r-a", Grant(((1, 4),)))
    assert one.arrive("small", inferences=1).startswith("small -> r-a on 1")
    assert one.arrive("next", inferences=1) == "refuse next: queue_full"


def test_a_lane_reserves_at_one_of_its_own_replicas() -> None:
    sizes = {"a": (1, 4), "b": (1, 64), "c": (1, 64)}
    one = open_lobby(sized(sizes, unit_inferences=True), "r-a", "r-b", "r-c", limit=8)
    one.arrive("large", 1.0, inferences=8)
    one.arrive("small", 1.0, inferences=1)
    one.did(1.0)
    one.hear("r-b", Short(2), now=1.1)
    said = one.hear("r-c", Short(5), now=1.1)
    assert said == ["r-b < want 2 1 0 0 100 100 1 0", "r-c < want 2 2 0 0 100 100 8 1"]
    assert one.hear("r-c", Grant(((3, 8),)), now=1.3)[0].startswith("large -> r-c")


# --- groups fixed at arrival ------------------------------------------------------------------------------------------


def early(weights: dict[str, float], number: int = 1) -> RouteTable:
    replicas = [(f"r-{kind}", kind) for kind in weights]
    return table(number=number, functions=[function(replicas, weights=weights, binding=Binding.EARLY)])


def test_early_binding_shares_by_weight_whatever_is_free() -> None:
    """All wait; each group's slots serve its own share alone, three of four at a."""
    one = open_lobby(early({"a": 0.75, "b": 0.25}), "r-a", "r-b")
    for number in range(8):
        assert one.arrive(f"q{number}", 1.0) == "waits"
    one.did(1.0)
    on_b = [line for line in one.hear("r-b", Grant(tuple((n, 1) for n in range(1, 9))), now=1.1) if "->" in line]
    on_a = [line for line in one.hear("r-a", Grant(tuple((n, 1) for n in range(1, 9))), now=1.1) if "->" in line]
    assert (len(on_a), len(on_b)) == (6, 2)


def test_early_binding_waits_for_its_group_though_another_has_a_free_slot() -> None:
    one = open_lobby(early({"a": 0.5, "b": 0.5}), "r-a", "r-b")
    one.hear("r-a", Grant(((1, 1), (2, 1), (3, 1), (4, 1))))
    outcomes = Counter(one.arrive(f"q{number}").split()[-1] for number in range(6))
    assert outcomes["waits"] == 3
    free = one.room._fleet.replicas["r-a"].free
    assert free == 1, "left for the next of a's"


def test_early_binding_moves_what_waits_for_a_group_that_is_gone_or_gets_nothing() -> None:
    one = open_lobby(early({"a": 0.5, "b": 0.5}), "r-a", "r-b")
    for name in "wxyz":
        one.arrive(name, 1.0)
    one.did(1.0)
    one.room.apply(early({"a": 1.0, "b": 0.0}, number=2), 2.0)
    one.did(2.0)
    said = one.hear("r-a", Grant(tuple((n, 1) for n in range(1, 5))), now=2.1)
    assert [line.split()[0] for line in said[:4]] == list("wxyz"), "in their old order"
    for name in "st":
        one.arrive(name, 3.0)
    one.did(3.0)
    one.room.apply(early({"b": 1.0}, number=3), 3.1)
    one.did(3.1)
    assert [line.split()[0] for line in one.hear("r-b", Grant(((1, 1), (2, 1))), now=3.2)[:2]] == ["s", "t"]


def test_early_binding_and_classes_of_sizes_together() -> None:
    one = open_lobby(sized(SMALL_AND_LARGE, early=True), "r-s", "r-l")
    one.arrive("large", inferences=9)
    one.arrive("small", inferences=1)
    assert one.hear("r-s", Grant(((1, 1),)))[0].startswith("small")
    assert one.hear("r-l", Grant(((1, 1),)))[0].startswith("large")


# --- replicas to avoid ------------------------------------------------------------------------------------------------


def pair() -> Lobby:
    return open_lobby(table([("r0", "cpu"), ("r1", "cpu")]), "r0", "r1")


def test_a_request_never_runs_on_the_replica_that_it_avoids() -> None:
    one = pair()
    one.hear("r0", Grant(((1, 1), (2, 1), (3, 1))))
    one.hear("r1", Grant(((4, 1),)))
    assert one.arrive("hedge", avoid="r0") == "hedge -> r1 on 4"
    assert one.arrive("second", avoid="r0") == "waits"
    assert one.arrive("other") == "other -> r0 on 3", "it delays no other request; r0 gets no message"
    assert one.did() == ["r1 < want 1 1 0 0 0 0 1 0"]
    assert one.hear("r1", Grant(((5, 1),)))[0].startswith("second -> r1")


def test_lanes_of_requests_that_avoid_a_replica_go_with_them() -> None:
    one = pair()
    one.hear("r1", Grant(((4, 1),)))
    room = one.room._fleet.revisions[F]
    one.arrive("bound", avoid="r0")
    assert len(room.lanes) == 1
    one.arrive("waits", avoid="r0")
    assert len(room.lanes) == 2
    one.room.withdraw("waits", 1.0)
    assert len(room.lanes) == 1
    assert all(len(group.lanes) == 1 for group in room.groups)


def test_a_lane_of_its_own_keeps_its_place_when_its_request_was_refused() -> None:
    one = pair()
    one.hear("r1", Grant(((4, 1),)))
    one.arrive("hedge", 1.0, avoid="r0")
    one.arrive("later", 1.1)
    one.did(1.1)
    one.room.refused(one.binds["hedge"], 1.2)
    one.did(1.2)
    assert one.hear("r1", Grant(((5, 1),)), now=1.3)[0].startswith("hedge -> r1")
    assert one.hear("r0", Grant(((6, 1),)), now=1.3)[0].startswith("later -> r0")


def test_a_replica_to_avoid_that_is_gone_is_nothing_special() -> None:
    one = pair()
    one.arrive("hedge", avoid="r9")
    assert one.hear("r0", Grant(((1, 1),)))[0].startswith("hedge -> r0")


def test_a_request_whose_exchange_broke_goes_to_another_replica_and_none_rests() -> None:
    one = pair()
    one.hear("r0", Grant(((1, 1), (2, 1))))
    one.arrive("broken", 1.0)
    one.arrive("later", 1.0)
    one.room.broke_off(one.binds["broken"], 1.1)
    assert one.did(1.1) == ["r0 < return 2", "r1 < want 1 1 0 0 100 100 1 0"]
    one.hear("r0", Grant(((3, 1),)), now=1.1)
    assert one.arrive("another", 1.2) == "another -> r0 on 3", "it serves"
    assert one.hear("r1", Grant(((4, 1),)), now=1.3)[0].startswith("broken -> r1 on 4")


def test_a_request_whose_exchange_broke_returns_where_no_other_replica_serves() -> None:
    one = open_lobby(table([("r0", "cpu")]), "r0")
    one.hear("r0", Grant(((1, 1),)))
    one.arrive("broken", 1.0)
    one.room.broke_off(one.binds["broken"], 1.1)
    assert one.did(1.1) == ["r0 < return 1", "r0 < want 1 1 0 0 100 100 1 0"]
    assert one.hear("r0", Grant(((2, 1),)), now=1.2)[0].startswith("broken -> r0 on 2")


def test_it_returns_as_well_when_the_last_other_replica_goes() -> None:
    one = pair()
    one.hear("r0", Grant(((1, 1), (2, 1), (3, 1))))
    for name in ("first", "second"):
        one.arrive(name, 1.0)
    one.room.broke_off(one.binds["second"], 1.1)
    one.room.broke_off(one.binds["first"], 1.1)
    assert not any("->" in line for line in one.did(1.1))
    one.room.unlinked("r1", 1.2)
    assert one.did(1.2)[0].startswith("first -> r0"), "in its old place"
    assert len(one.room._fleet.revisions[F].lanes) == 1


# --- order ------------------------------------------------------------------------------------------------------------


def test_priorities_go_first_over_all_lanes_and_are_reported_class_by_class() -> None:
    one = open_lobby(table([("r0", "cpu")]), "r0")
    for name, priority in (("p9", 9), ("p5", 5), ("p0", 0), ("also p5", 5)):
        one.arrive(name, 1.0, priority=priority)
    assert one.did(1.0) == ["r0 < want 1 1 0 0 0 0 1 0"], "one of class 0; the others when it is their turn"
    assert one.hear("r0", Grant(((1, 1),)), now=1.1) == ["p0 -> r0 on 1, want 2 2"]
    said = one.hear("r0", Grant(((2, 1), (3, 1))), now=1.2)
    assert said == ["p5 -> r0 on 3, want 3 1", "also p5 -> r0 on 2, want 4 1"]


def test_a_request_without_a_priority_is_of_the_middle_class() -> None:
    one = open_lobby(table([("r0", "cpu")]), "r0")
    assert one.room.arrive("plain", F, 1, 1e9, 1.0) is None
    one.arrive("after", 1.0, priority=6)
    one.arrive("before", 1.0, priority=4)
    one.did(1.0)
    said = one.hear("r0", Grant(((1, 1),)), now=1.1)
    assert said[0].startswith("before")
    one.room.heard("r0", Grant(((2, 1),)), 1.1)
    (bind,) = (command for command in one.room.out if isinstance(command, Bind))
    assert bind.request == "plain"


def test_the_oldest_that_waits_is_not_the_head() -> None:
    one = open_lobby(table([("r0", "cpu")]), "r0")
    one.arrive("old", 1.0, priority=9)
    one.arrive("young", 5.0, priority=0)
    counts = one.room.counts(F, 6.0)
    assert counts is not None and counts.oldest_waiting_s == 5.0


def test_in_the_order_of_deadlines_who_has_less_time_goes_first() -> None:
    """As if it had arrived earlier by as much as its time is shorter: the age in the want says so to all workers."""
    route = function([("r0", "cpu")], queue_order=QueueOrder.DEADLINE)
    one = open_lobby(table(functions=[route]), "r0")
    one.arrive("patient", 1000.0, deadline=1300.0)
    assert one.did(1000.0) == ["r0 < want 1 1 0 0 0 0 1 0"]
    one.arrive("hurried", 1001.0, deadline=1031.0)
    one.arrive("urgent, but of a lower class", 1001.0, deadline=1002.0, priority=1)
    said = one.hear("r0", Grant(((1, 1),)), now=1001.5)
    assert said[0].startswith("hurried")
    assert "want 2 1" in said[0]
    assert one.hear("r0", Grant(((2, 1),)), now=1001.6)[0].startswith("patient")


def test_the_reported_age_of_a_deadline_is_the_time_that_it_lacks() -> None:
    route = function([("r0", "cpu")], queue_order=QueueOrder.DEADLINE)
    one = open_lobby(table(functions=[route]), "r0")
    one.arrive("hurried", 1001.0, deadline=1031.0)
    assert one.did(1001.0) == ["r0 < want 1 1 0 0 270000 270000 1 0"], "300 s are the longest: it lacks 270"


def by_urgency(number: int = 1, deadline_s: float | None = None) -> RouteTable:
    route = function([("r0", "cpu")], queue_order=QueueOrder.URGENCY)
    return table(number=number, functions=[replace(route, task_deadline_s=deadline_s)])


def test_by_urgency_the_least_time_left_for_its_size_goes_first_as_of_now() -> None:
    """At 1001 s: 24 s left for 8 inferences, 9 s for one. At 1009 s 16/8 against 1/1."""
    one = open_lobby(by_urgency(), "r0")
    one.arrive("large", 1000.0, deadline=1025.0, inferences=8)
    one.arrive("small", 1000.0, deadline=1010.0)
    one.arrive("of a lower class", 1000.0, deadline=1001.5, priority=1)
    one.did(1000.0)
    assert one.hear("r0", Grant(((1, 1),)), now=1001.0)[0].startswith("large")
    one.arrive("large again", 1001.0, deadline=1025.0, inferences=8)
    assert one.hear("r0", Grant(((2, 1),)), now=1009.0)[0].startswith("small")


def test_without_own_deadlines_requests_are_due_by_the_functions() -> None:
    """Due 5 s after arrival: at 1002 s 3 s are left for one inference, 4 s for four. The larger one goes first."""
    one = open_lobby(by_urgency(deadline_s=5.0), "r0")
    one.arrive("small", 1000.0, deadline=1300.0)
    one.arrive("large", 1001.0, deadline=1300.0, inferences=4)
    one.did(1001.0)
    assert one.hear("r0", Grant(((1, 1),)), now=1002.0)[0].startswith("large")


def test_a_free_slot_takes_the_most_urgent_that_waits() -> None:
    one = open_lobby(by_urgency(), "r0", limit=1)
    one.hear("r0", Grant(((1, 1),)), now=1000.0)
    one.arrive("runs", 1000.0, deadline=1300.0)
    one.arrive("patient", 1000.1, deadline=1300.0)
    one.arrive("hurried", 1000.2, deadline=1010.0)
    one.did(1000.2)
    one.room.answered(one.binds["runs"], True, 1000.3)
    assert one.did(1000.3)[0].startswith("hurried")


def test_a_change_of_the_order_keeps_those_that_wait() -> None:
    arrival = table(functions=[function([("r0", "cpu")])])
    one = open_lobby(arrival, "r0")
    one.arrive("small", 1000.0, deadline=1300.0)
    one.arrive("large", 1000.1, deadline=1300.0, inferences=8)
    one.did(1000.1)
    one.room.apply(by_urgency(number=2), 1000.2)
    one.arrive("hurried", 1000.3, deadline=1005.0)
    said = [one.hear("r0", Grant(((number, 1),)), now=1000.4)[0].split()[0] for number in range(1, 4)]
    assert said == ["hurried", "large", "small"]
    one.room.apply(by_urgency(number=3), 1000.5)
    assert one.arrive("next", 1000.6) == "waits"


@pytest.mark.parametrize(("before", "after"), [(300.0, 30.0), (30.0, 300.0)])
def test_a_change_of_the_timeout_keeps_the_order_of_those_that_wait(before: float, after: float) -> None:
    def routes(timeout_s: float, number: int) -> RouteTable:
        route = function([("r0", "cpu")], queue_order=QueueOrder.URGENCY)
        return table(number=number, functions=[replace(route, timeout_s=timeout_s)])

    one = open_lobby(routes(before, 1), "r0")
    one.arrive("before", 1000.0, deadline=1005.0)
    one.did(1000.0)
    one.room.apply(routes(after, 2), 1000.1)
    one.arrive("second", 1000.2, deadline=1009.0, inferences=1)
    one.arrive("third", 1000.2, deadline=1003.0, inferences=2)
    said = [one.hear("r0", Grant(((number, 1),)), now=1000.3)[0].split()[0] for number in range(1, 4)]
    assert said == ["third", "before", "second"]


# --- affinity ---------------------------------------------------------------------------------------------------------


def hashed() -> Lobby:
    route = function([(f"r{index}", "cpu") for index in range(4)], spread=Spread.HASH)
    return open_lobby(table(functions=[route]), "r0", "r1", "r2", "r3")


def test_equal_keys_meet_at_one_replica_while_it_has_a_free_slot() -> None:
    one = hashed()
    for index in range(4):
        one.hear(f"r{index}", Grant(tuple((n, 1) for n in range(1, 5))))
    where = set()
    for number in range(20):
        where.add(one.arrive(f"q{number}", key=b"one user").split()[2])
        one.answer(f"q{number}")
    assert len(where) == 1
    spread = {one.arrive(f"u{number}", key=b"user %d" % number).split()[2] for number in range(12)}
    assert len(spread) > 2


def test_who_waits_takes_the_first_slot_that_frees_whatever_its_key() -> None:
    one = hashed()
    one.arrive("a", key=b"one user")
    one.arrive("b", key=b"one user")
    assert one.hear("r2", Grant(((1, 1),)))[0].startswith("a -> r2")
    assert one.hear("r1", Grant(((1, 1),)))[0].startswith("b -> r1")


def test_without_a_key_the_freest_takes_it() -> None:
    one = hashed()
    one.hear("r1", Grant(((1, 1),)))
    one.hear("r3", Grant(((1, 1), (2, 1))))
    assert one.arrive("a") == "a -> r3 on 2"


@pytest.mark.parametrize("spread", [spread for spread in Spread if spread is not Spread.HASH])
def test_a_key_means_nothing_to_other_spreads(spread: Spread) -> None:
    route = function([("r0", "cpu"), ("r1", "cpu")], spread=spread)
    one = open_lobby(table(functions=[route]), "r0", "r1")
    one.hear("r0", Grant(((1, 1),)))
    one.hear(
        "r1",
        Grant(
            ((1, 1), (2, 1)),
        ),
    )
    assert {one.arrive(f"q{number}", key=b"same").split()[2] for number in range(3)} == {"r0", "r1"}


# --- ejection ---------------------------------------------------------------------------------------------------------


def test_an_ejected_replica_gets_no_work_before_its_time_is_over() -> None:
    one = pair()
    one.hear("r0", Grant(((1, 1), (2, 1))))
    one.hear("r1", Grant(((3, 1),)))
    assert one.room.ready_replicas(F) == 2
    one.room.eject("r0", 1.0, 11.0)
    assert one.did(1.0) == ["r0 < return 1 2"]
    assert one.room.ready_replicas(F) == 1
    assert one.arrive("a", 2.0) == "a -> r1 on 3"
    assert one.arrive("b", 2.0) == "waits"
    assert one.did(2.0) == ["r1 < want 1 1 0 0 0 0 1 0"], "r0 is not asked"
    assert one.hear("r0", Grant(((4, 1),)), now=3.0) == [], "nor used, though it grants"
    assert one.wake(10.9) == []
    assert one.room.next_wakeup() == 11.0
    assert one.wake(11.0)[0].startswith("b -> r0 on 4")
    assert one.room.ready_replicas(F) == 2


def test_an_ejected_replica_that_is_admitted_serves_at_once() -> None:
    one = pair()
    one.hear("r0", Grant(((1, 1),)))
    one.arrive("runs", 1.0)
    one.arrive("a", 1.0)
    assert len(one.did(1.0)) == 2
    one.room.eject("r0", 1.0, 1e9)
    assert one.did(1.0) == ["r0 < want 2 0"], "its want is withdrawn"
    assert one.answer("runs", now=1.5) == []
    one.room.readmit("r0", 2.0)
    assert one.did(2.0)[0].startswith("a -> r0 on 1")


def test_a_new_channel_does_not_end_an_ejection_and_unknown_ids_mean_nothing() -> None:
    one = pair()
    one.room.eject("r0", 1.0, 9.0)
    one.did(1.0)
    one.room.unlinked("r0", 2.0)
    one.ready("r0", 5, now=2.1)
    assert one.arrive("a", 3.0) == "waits"
    one.room.eject("unknown", 3.0, 9.0)
    one.room.readmit("unknown", 3.0)
    one.room.readmit("r1", 3.0)
    assert one.room.ready_replicas("nothing") == 0
    assert one.room.ready_replicas(F) == 1


def test_a_longer_ejection_replaces_a_shorter_one() -> None:
    one = pair()
    one.room.eject("r0", 1.0, 5.0)
    one.room.eject("r0", 2.0, 20.0)
    one.did(2.0)
    one.wake(5.0)
    assert one.room.ready_replicas(F) == 1
    one.wake(20.0)
    assert one.room.ready_replicas(F) == 2


def test_an_ejection_ends_a_reservation() -> None:
    one = open_lobby(table([("r0", "cpu"), ("r1", "cpu")], unit_inferences=True), "r0", "r1", limit=8)
    one.arrive("large", 1.0, inferences=8)
    one.did(1.0)
    one.hear("r0", Short(2), now=1.1)
    assert "r1 < want 2 1 0 0 100 100 8 1" in one.hear("r1", Short(5), now=1.1)
    one.room.eject("r1", 1.2, 99.0)
    said = one.did(1.2)
    assert "r1 < want 3 0" in said
    assert "r0 < want 3 1 0 0 200 200 8 1" in said


def test_when_all_are_ejected_waiting_asks_for_a_replica() -> None:
    one = open_lobby(table([("r0", "cpu")]), "r0")
    one.room.eject("r0", 1.0, 99.0)
    one.arrive("a", 2.0)
    assert one.did(2.0) == ["activate f-00001 for 1"]
    assert one.room._fleet.replicas["r0"].state is ReplicaState.READY
