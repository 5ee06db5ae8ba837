"""Tenants in fair order: the service of each by weight, those that come back, those that leave, and the bounds."""

import random
from collections import Counter
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.flow.fair_queue import IDLE_ACCOUNTS, FairQueue, TenantCharge
from tidegate.flow.ordered_queue import Key


class Person:
    """One request; arrives in the order of its number."""

    def __init__(self, number: int, tenant: str, cost: float = 1.0, weight: float = 1.0, priority: int = 5) -> None:
        self.key: Key = (priority, float(number), number)
        self.entry = 0
        self.claim: TenantCharge | None = TenantCharge(tenant, weight, cost)

    @property
    def own(self) -> TenantCharge:
        assert self.claim is not None
        return self.claim

    def __repr__(self) -> str:
        return f"<Person {self.key} {self.claim}>"


def serve(queue: FairQueue[Person]) -> Person | None:
    person = queue.head()
    if person is not None:
        assert queue.remove(person)
        queue.charge(person)
    return person


def names(people: Iterable[Person | None]) -> str:
    return "".join(person.own.tenant for person in people if person is not None)


def queue_of(*people: Person) -> FairQueue[Person]:
    queue: FairQueue[Person] = FairQueue()
    for person in people:
        queue.push(person)
    return queue


def test_equal_costs_take_turns_though_one_came_in_crowds() -> None:
    queue = queue_of(*(Person(number, "a") for number in range(6)), *(Person(number, "b") for number in range(6, 9)))
    assert names(serve(queue) for _ in range(9)) == "abababaaa"
    assert serve(queue) is None and len(queue) == 0


def test_ten_small_ones_go_for_one_large() -> None:
    queue = queue_of(
        *(Person(number, "a", 1000.0) for number in range(4)), *(Person(number, "b", 100.0) for number in range(4, 44))
    )
    served = names(serve(queue) for _ in range(33))
    assert served == "ab" + "b" * 9 + "ab" + "b" * 9 + "ab" + "b" * 9


def test_weights_divide_what_is_served() -> None:
    queue = queue_of(
        *(Person(number, "a", weight=3.0) for number in range(60)),
        *(Person(number, "b", weight=1.0) for number in range(60, 120)),
    )
    served = Counter(names(serve(queue) for _ in range(40)))
    assert served == {"a": 30, "b": 10}


def test_a_better_class_goes_first_whatever_its_tenant_has_had() -> None:
    queue = queue_of(*(Person(number, "a") for number in range(4)), Person(4, "b"))
    serve(queue), serve(queue)
    queue.push(Person(5, "a", priority=0))
    queue.push(Person(6, "b", priority=9))
    assert queue.count(0) == 1 and queue.count(5) == 3 and queue.count(9) == 1
    assert [serve(queue).key[2] for _ in range(5)] == [5, 1, 2, 3, 6]  # type: ignore[union-attr]  # five are there


def test_time_in_which_nothing_was_asked_for_earns_nothing() -> None:
    queue = queue_of(*(Person(number, "a") for number in range(200)))
    for _ in range(100):
        serve(queue)
    for number in range(200, 210):
        queue.push(Person(number, "b"))
    assert names(serve(queue) for _ in range(6)) == "bababa", "first, and then in turn"


def test_nor_does_it_for_one_that_had_asked_before() -> None:
    queue = queue_of(*(Person(number, "a") for number in range(200)), Person(200, "b"))
    for _ in range(100):
        serve(queue)
    for number in range(201, 210):
        queue.push(Person(number, "b"))
    assert names(serve(queue) for _ in range(6)) == "bababa"


def test_virtual_time_goes_on_by_the_weights_that_wait() -> None:
    heavy, light = Person(0, "a", 600.0, weight=2.0), Person(1, "b", 600.0)
    queue = queue_of(heavy, light)
    assert (queue.step(heavy), queue.step(light)) == (200, 200)
    queue.remove(light)
    assert queue.step(heavy) == 300
    queue.push(light)
    queue.remove(heavy)
    assert queue.step(light) == 600
    queue.remove(light)
    assert queue.step(light) == 600, "alone, it would be its own"


def test_who_leaves_while_it_waits_has_cost_nothing() -> None:
    crowd = [Person(number, "a", 50.0) for number in range(20)]
    queue = queue_of(*crowd, *(Person(number, "b", 50.0) for number in range(20, 24)))
    for person in crowd[2:]:
        assert queue.remove(person) and not queue.remove(person)
    assert names(serve(queue) for _ in range(6)) == "ababbb"


def test_what_was_underrated_is_paid_for_by_the_next() -> None:
    queue = queue_of(*(Person(number, "ab"[number % 2], 10.0) for number in range(40)))
    first = serve(queue)
    assert first is not None and first.own.tenant == "a"
    queue.settle(first.own, 45.0)
    assert names(serve(queue) for _ in range(6)) == "bbbbba"
    queue.settle(first.own, 45.0)
    assert names(serve(queue) for _ in range(3)) == "bab", "reported twice, counted once"


def test_a_request_that_came_back_unserved_stands_in_its_old_place_and_has_cost_nothing() -> None:
    queue = queue_of(*(Person(number, "ab"[number % 2]) for number in range(6)))
    first = serve(queue)
    assert first is not None
    queue.settle(first.own, 0.0)
    queue.push(first)
    assert queue.head() is first
    assert names(serve(queue) for _ in range(6)) == "ababab"


def test_a_free_slot_ends_all_debts() -> None:
    queue = queue_of(*(Person(number, "a") for number in range(5)))
    running = [serve(queue) for _ in range(5)]
    queue.relax()
    for number in range(5, 11):
        queue.push(Person(number, "ab"[number // 8]))
    queue.relax()
    assert len(queue) == 6, "nothing while somebody waits"
    assert running[0] is not None
    queue.settle(running[0].own, 1e9)
    assert names(serve(queue) for _ in range(6)) == "ababab", "what ran before counts no more"


def test_accounts_of_those_who_do_not_wait_are_bounded() -> None:
    queue = queue_of(*(Person(number, "stays") for number in range(10)))
    for number in range(10, 20_000):
        person = Person(number, f"t{number}", cost=number)
        queue.push(person)
        queue.remove(person)
        queue.charge(person)
        assert len(queue._lines) <= 2 * IDLE_ACCOUNTS + 8
    assert len(queue._heap) < 5000
    assert names(serve(queue) for _ in range(10)) == "stays" * 10


def test_cancellations_leave_no_corpses() -> None:
    people = [Person(number, f"t{number % 7}") for number in range(2000)]
    queue = queue_of(*people)
    random.Random(1).shuffle(people)
    for person in people[10:]:
        assert queue.remove(person)
    assert len(queue) == 10 and len(list(queue)) == 10
    assert len(queue._heap) < 200
    assert queue.items() == sorted(people[:10], key=lambda person: person.key)


# --- what always holds ----------------------------------------------------------------------------------------------

WEIGHTS = {"a": 1.0, "b": 1.0, "c": 2.5, "d": 0.3}
COSTS = st.floats(min_value=1.0, max_value=1000.0, allow_nan=False)


@given(st.randoms(use_true_random=False), st.integers(min_value=1, max_value=200))
def test_whatever_happens_none_is_lost_and_none_is_served_twice(rng: random.Random, steps: int) -> None:
    """Work conservation too: while somebody waits, somebody is at the head; and the head is of the best class."""
    queue: FairQueue[Person] = FairQueue()
    waiting: list[Person] = []
    served: list[Person] = []
    for number in range(steps):
        kind = rng.choice(("push", "push", "push", "serve", "serve", "leave", "settle", "relax"))
        if kind == "push":
            tenant = rng.choice("abcd")
            person = Person(number, tenant, rng.uniform(1, 1000), WEIGHTS[tenant], rng.choice((0, 5, 9)))
            queue.push(person)
            waiting.append(person)
        elif kind == "leave" and waiting:
            assert queue.remove(waiting.pop(rng.randrange(len(waiting))))
        elif kind == "settle" and served:
            queue.settle(rng.choice(served).own, rng.uniform(0, 1000))
        elif kind == "relax":
            queue.relax()
        elif kind == "serve":
            found = serve(queue)
            assert (found is None) == (not waiting)
            if found is not None:
                assert found.key[0] == min(person.key[0] for person in waiting)
                of_tenant = [one for one in waiting if one.own.tenant == found.own.tenant]
                assert found is min(of_tenant, key=lambda one: one.key), "in order within a tenant"
                waiting.remove(found)
                served.append(found)
        assert len(queue) == len(waiting)
        assert sorted(person.key for person in queue) == sorted(person.key for person in waiting)
        for priority in (0, 5, 9):
            assert queue.count(priority) == sum(person.key[0] == priority for person in waiting)


@given(
    st.lists(st.tuples(st.sampled_from("abcd"), COSTS), min_size=1, max_size=150),
    st.randoms(use_true_random=False),
)
def test_two_that_wait_all_the_time_differ_by_no_more_than_their_largest_requests(
    extra: list[tuple[str, float]], rng: random.Random
) -> None:
    """Tenants c and d come and go; a and c's heavier neighbour b always wait."""
    queue: FairQueue[Person] = FairQueue()
    number = 0

    def push(tenant: str, cost: float) -> None:
        nonlocal number
        number += 1
        queue.push(Person(number, tenant, cost, WEIGHTS[tenant]))

    had = dict.fromkeys("abcd", 0.0)
    largest = dict.fromkeys("abcd", 0.0)
    for tenant in "ab":
        for _ in range(3):
            push(tenant, rng.uniform(1.0, 1000.0))
    for tenant, cost in extra:
        push(tenant, cost)
        found = serve(queue)
        assert found is not None
        of = found.own.tenant
        had[of] += found.own.cost / WEIGHTS[of]
        for person in (*queue, found):
            largest[person.own.tenant] = max(largest[person.own.tenant], person.own.cost / WEIGHTS[person.own.tenant])
        if of in "ab":
            push(of, rng.uniform(1.0, 1000.0))
            largest[of] = max(largest[of], max(person.own.cost for person in queue if person.own.tenant == of))
        assert abs(had["a"] - had["b"]) <= largest["a"] + largest["b"] + 1e-6


@pytest.mark.parametrize("seed", range(5))
def test_none_starves_among_many_that_come_and_go(seed: int) -> None:
    """With n tenants, one that waits is served before the others have had more than a largest request and its own."""
    rng = random.Random(seed)
    queue: FairQueue[Person] = FairQueue()
    patient = Person(0, "patient", 1000.0)
    for number in range(1, 100):
        queue.push(Person(number, f"t{number % 20}", rng.uniform(1.0, 1000.0)))
    for _ in range(50):
        serve(queue)
    queue.push(patient)
    before: Counter[str] = Counter()
    number = 100
    while (found := serve(queue)) is not patient:
        assert found is not None
        before[found.own.tenant] += int(found.own.cost)
        number += 1
        queue.push(Person(number, f"t{number % 20}", rng.uniform(1.0, 1000.0)))
    assert all(cost <= 2000 for cost in before.values())


def test_the_same_story_has_the_same_end() -> None:
    def story() -> list[int]:
        rng = random.Random(7)
        queue: FairQueue[Person] = FairQueue()
        served = []
        for number in range(500):
            queue.push(Person(number, rng.choice("abcd"), rng.uniform(1, 9), 1.0, rng.choice((0, 5))))
            if rng.random() < 0.7 and (found := serve(queue)) is not None:
                served.append(found.key[2])
        return served

    assert story() == story()


@pytest.mark.parametrize(("cost", "order"), [(10.0, "bab"), (40.0, "bba"), (60.0, "bbba"), (0.0, "baa")])
def test_the_true_cost_is_shared_by_the_weight_as_the_first_one_was(cost: float, order: str) -> None:
    """Tenant ``a`` has weight 2, so that 40 count as two requests of ``b``, which cost 10 each."""
    queue = queue_of(*(Person(number, "ab"[number % 2], 10.0, 2.0 - number % 2) for number in range(40)))
    first = serve(queue)
    assert first is not None and first.own.tenant == "a"
    queue.settle(first.own, cost)
    assert names(serve(queue) for _ in range(len(order))) == order
