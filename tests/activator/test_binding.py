"""Which request takes a slot that is free, and how many units of it: what comes in -> what the room does."""

from tests.support.worlds.routes import function, table
from tests.support.worlds.waiting_room import Lobby, lobby
from tidegate.flow.messages import (
    Grant,
    Limit,
    Short,
)
from tidegate.records.route_table import RouteTable


def test_late_binding_in_arrival_order() -> None:
    one = lobby("r0")
    one.ready("r0")
    for name in "abc":
        assert one.arrive(name) == "waits"
    one.did()
    assert one.hear("r0", Grant(((1, 1), (2, 1)))) == ["a -> r0 on 2, want 2 2", "b -> r0 on 1, want 3 1"]
    assert one.answer("a") == ["c -> r0 on 2, want 4 0"]


def test_priority_class_goes_first() -> None:
    one = lobby("r0")
    one.ready("r0")
    one.arrive("patient", priority=1)
    one.arrive("urgent", priority=0)
    one.did()
    assert one.hear("r0", Grant(((1, 1),)))[0].startswith("urgent -> r0")


def test_nothing_overtakes_what_waits() -> None:
    # A credit comes in between two loop turns: the one who waits has it, not the one who arrives.
    one = lobby("r0")
    one.ready("r0")
    one.arrive("a")
    one.room.heard("r0", Grant(((1, 1),)), 0.0)
    assert one.arrive("b") == "waits"


def test_a_deadline_that_passed_unnoticed_is_not_bound_either() -> None:
    one = lobby("r0")
    one.ready("r0")
    one.arrive("a", 1.0, deadline=1.5)
    one.did(1.0)
    assert one.hear("r0", Grant(((1, 1),)), now=1.6) == ["refuse a: deadline_exceeded", "r0 < want 2 0"]


def test_a_request_that_is_too_old_when_a_slot_frees_is_dropped_and_the_next_one_gets_it() -> None:
    """Themis: an old request would only make those behind it late as well."""
    one = Lobby(table(functions=[function([("r0", "cpu")], drop_after_s=0.6)]))
    one.ready("r0")
    one.arrive("old", 1.0)
    one.arrive("young", 1.5)
    one.did(1.5)
    did = one.hear("r0", Grant(((1, 1),)), now=1.6)
    assert did[0] == "refuse old: dropped"
    assert did[1].startswith("young ->")


def test_in_inferences_the_smallest_credit_that_carries_the_request_is_used() -> None:
    one = lobby("r0", unit_inferences=True)
    one.ready("r0", limit=16)
    one.hear("r0", Grant(((1, 8), (2, 2), (3, 4))))
    assert one.arrive("a", inferences=3) == "a -> r0 on 3"
    assert one.arrive("b", inferences=6) == "b -> r0 on 1"
    assert one.arrive("c", inferences=9) == "waits"


def test_a_request_above_the_limit_takes_a_whole_replica() -> None:
    one = lobby("r0", unit_inferences=True)
    one.ready("r0", 1, limit=8, units=8)
    assert one.arrive("a", inferences=100) == "a -> r0 on 1"


def test_a_head_that_fits_nowhere_reserves_at_the_replica_with_most_free_and_the_others_go_on() -> None:
    one = lobby("r0", "r1", unit_inferences=True)
    one.ready("r0", limit=8)
    one.ready("r1", limit=8)
    one.arrive("large", 1.0, inferences=8)
    one.arrive("small", 1.0, inferences=1)
    assert one.did(1.0) == ["r0 < want 1 2 0 0 0 0 8 0", "r1 < want 1 2 0 0 0 0 8 0"]
    assert one.hear("r0", Short(2), now=1.1) == []
    said = one.hear("r1", Short(5), now=1.1)
    assert said == ["r0 < want 2 1 0 0 100 100 1 0", "r1 < want 2 2 0 0 100 100 8 1"]
    assert one.hear("r0", Grant(((1, 1),)), now=1.2)[0].startswith("small -> r0")
    assert one.arrive("another", 1.2, inferences=1) == "waits"
    assert "another -> r0 on 2" in one.hear("r0", Grant(((2, 1),)), now=1.2)[0]
    assert one.hear("r1", Grant(((3, 8),)), now=1.3)[0].startswith("large -> r1")


def test_a_replica_that_does_not_say_what_it_has_free_delays_a_reservation_by_100_ms() -> None:
    one = lobby("r0", "r1", unit_inferences=True)
    one.ready("r0", limit=8)
    one.ready("r1", limit=8)
    one.arrive("large", 1.0, inferences=8)
    one.did(1.0)
    assert one.hear("r0", Short(2), now=1.0) == []
    assert "r0 < want 2 1 0 0 100 100 8 1" in one.wake(1.1)


def test_a_reservation_ends_with_its_replica() -> None:
    one = lobby("r0", "r1", unit_inferences=True)
    one.ready("r0", limit=8)
    one.ready("r1", limit=8)
    one.arrive("large", 1.0, inferences=8)
    one.did(1.0)
    one.hear("r0", Short(2), now=1.1)
    one.hear("r1", Short(5), now=1.1)
    one.room.unlinked("r1", 1.2)
    assert "r0 < want 3 1 0 0 200 200 8 1" in one.did(1.2), "in its old place, for the one that is left"


def test_a_reservation_ends_with_the_weight_of_its_group() -> None:
    def routes(number: int, a: float) -> RouteTable:
        weights = {"a": a, "b": 1.0 - a}
        route = function([("ra", "a"), ("rb", "b")], weights=weights, unit_inferences=True)
        return table(number=number, functions=[route])

    one = Lobby(routes(1, 0.5))
    one.arrive("large", 1.0, inferences=8)
    one.ready("ra", limit=8, now=1.0)
    one.ready("rb", limit=8, now=1.0)
    one.hear("rb", Short(2), now=1.1)
    one.hear("ra", Short(5), now=1.1)
    one.room.apply(routes(2, 0.0), 1.2)
    said = one.did(1.2)
    assert "ra < want 4 0" in said
    assert "rb < want 3 1 0 0 200 200 8 1" in said, "the group that may still serve is asked to hold back"


def test_a_request_that_a_replica_holds_back_for_runs_when_its_limit_is_lifted() -> None:
    one = lobby("r0", "r1", unit_inferences=True)
    one.ready("r0", limit=8)
    one.ready("r1", limit=8)
    one.arrive("large", 1.0, inferences=8)
    one.did(1.0)
    one.hear("r0", Short(2), now=1.1)
    one.hear("r1", Short(5), now=1.1)
    assert one.hear("r1", Limit(0), now=1.2)[0] == "large -> r1 on 0"
