"""A full room is shared by weight: which requests are displaced, which are not, and what the counters show in the
end."""

import random
from collections import Counter

import pytest

from tests.support.worlds.routes import table
from tests.support.worlds.waiting_room import F, Lobby
from tidegate.flow.fair_queue import TenantCharge


def crowded(requests: int = 10, size: int = 1 << 30) -> Lobby:
    """One replica without a slot, and a room for so many requests and bytes."""
    one = Lobby(table([("r1", "cpu")], queue_requests=requests, queue_bytes=size))
    one.arrive("first")
    one.room.withdraw("first", 0.0)
    one.ready("r1", limit=1)
    return one


def waiting(one: Lobby) -> Counter[str]:
    """Requests that wait, by the first letter of their names."""
    return Counter(str(request)[0] for request in one.room._waiting)


def come(one: Lobby, name: str, *, weight: float = 1.0, size: int = 0, priority: int = 5, now: float = 0.0) -> str:
    """A request of the tenant that its first letter names."""
    return one.arrive(name, now, claim=TenantCharge(name[0], weight, 1.0), size=size, priority=priority)


def test_who_is_alone_may_fill_the_room() -> None:
    one = crowded()
    assert {come(one, f"a{number}") for number in range(10)} == {"waits"}
    assert come(one, "a10") == "refuse a10: queue_full"


def test_another_gets_its_part_from_the_youngest_of_the_one_with_most() -> None:
    one = crowded()
    for number in range(10):
        come(one, f"a{number}")
    one.did()
    refused = []
    for number in range(7):
        outcome = come(one, f"b{number}")
        refused += [line for line in one.did() if line.startswith("refuse")]
        assert outcome == ("waits" if number < 5 else f"refuse b{number}: queue_full")
    assert refused == [f"refuse a{number}: queue_full" for number in (9, 8, 7, 6, 5)]
    assert waiting(one) == {"a": 5, "b": 5}
    assert come(one, "a11") == "refuse a11: queue_full"
    counts = one.room.counts(F, 0.0)
    assert counts is not None and counts.refused == 8 and counts.waiting == 10


def test_parts_follow_weights() -> None:
    one = crowded(requests=40)
    for number in range(60):
        come(one, f"a{number}", weight=1.0)
    for number in range(60):
        come(one, f"b{number}", weight=3.0)
    assert waiting(one) == {"a": 10, "b": 30}


def test_bytes_count_like_requests_whichever_are_more() -> None:
    one = crowded(requests=100, size=1000)
    for number in range(10):
        come(one, f"a{number}", size=100)
    assert come(one, "b0", size=300) == "waits"
    assert waiting(one) == {"a": 7, "b": 1}
    assert come(one, "b1", size=300) == "refuse b1: queue_full", "it would fill 600 of 1000, the other fills 700"
    assert come(one, "b2", size=150) == "waits"


def test_the_lowest_class_gives_way_first() -> None:
    one = crowded(requests=4)
    for number, priority in enumerate((9, 0, 9, 0)):
        come(one, f"a{number}", priority=priority)
    one.did()
    come(one, "b0")
    come(one, "b1")
    assert [line for line in one.did() if "refuse" in line] == ["refuse a2: queue_full", "refuse a0: queue_full"]


def test_requests_without_a_tenant_neither_push_nor_are_pushed_out() -> None:
    one = crowded(requests=4)
    for number in range(4):
        assert one.arrive(f"x{number}") == "waits"
    assert come(one, "a0") == "refuse a0: queue_full"
    one.room.withdraw("x0", 0.0)
    assert come(one, "a1") == "waits"
    assert one.arrive("x5") == "refuse x5: queue_full"


def test_what_left_in_whatever_way_counts_no_more() -> None:
    one = crowded(requests=4)
    for number in range(4):
        one.arrive(f"a{number}", claim=TenantCharge("a", 1.0, 1.0), deadline=5.0 + number)
    one.room.withdraw("a3", 0.0)
    one.wake(5.5)
    function = one.room._fleet.functions["f"]
    assert function.tenants.usages["a"].requests == 2
    one.wake(60.0)
    assert not function.tenants.usages
    assert function.waiting == 0


def test_who_once_had_most_gives_way_no_more() -> None:
    one = crowded(requests=10)
    for name in (*(f"a{number}" for number in range(6)), *(f"b{number}" for number in range(4))):
        come(one, name)
    for number in range(5):
        one.room.withdraw(f"a{number}", 0.0)
        come(one, f"c{number}")
    assert come(one, "d0") == "waits"
    assert waiting(one) == {"a": 1, "b": 4, "c": 4, "d": 1}


def test_a_class_that_none_waits_in_any_more_gives_none_away() -> None:
    one = crowded(requests=3)
    for number, priority in enumerate((5, 9, 5)):
        come(one, f"a{number}", priority=priority)
    one.room.withdraw("a1", 0.0)
    come(one, "a3")
    assert come(one, "b0") == "waits"
    assert waiting(one) == {"a": 2, "b": 1}


def test_bounds_that_a_table_changes_hold_for_later_requests() -> None:
    one = crowded(requests=10)
    for number in range(8):
        come(one, f"a{number}")
    assert one.room.apply(table([("r1", "cpu")], number=2, queue_requests=6), 0.0)
    assert come(one, "b0") == "waits"
    assert waiting(one) == {"a": 5, "b": 1}


@pytest.mark.parametrize("seed", range(4))
def test_under_any_overload_parts_end_up_equal_and_none_small_is_refused(seed: int) -> None:
    rng = random.Random(seed)
    one = crowded(requests=60)
    weights = {"a": 1.0, "b": 1.0, "c": 2.0, "d": 0.5}
    for number in range(600):
        tenant = rng.choice("aaaaaabbcd")
        come(one, f"{tenant}{number}", weight=weights[tenant])
        if rng.random() < 0.1 and one.room._waiting:
            one.room.withdraw(rng.choice(list(one.room._waiting)), 0.0)
        if number > 150 and number % 10 == 0:
            assert come(one, f"z{number}") == "waits", "it never has more than one there"
            one.room.withdraw(f"z{number}", 0.0)
        tenants = one.room._fleet.functions["f"].tenants
        assert len(tenants._heap) <= 4 * len(tenants.usages) + 65
        assert {tenant: held.requests for tenant, held in tenants.usages.items()} == waiting(one)
    loads = [count / weights[tenant] for tenant, count in waiting(one).items() if tenant in "ab"]
    assert max(loads) - min(loads) <= 8.0
