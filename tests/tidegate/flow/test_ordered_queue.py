"""The order of waiting: priority class, arrival; lazily removed."""

import random

from tidegate.flow.ordered_queue import Key, OrderedQueue


class Person:
    def __init__(self, priority: int, number: int) -> None:
        self.key: Key = (priority, float(number), number)
        self.entry = 0

    def __repr__(self) -> str:
        return f"<Person {self.key}>"


def drained(queue: OrderedQueue[Person]) -> list[Person]:
    people = []
    while (person := queue.pop()) is not None:
        people.append(person)
    return people


def test_class_then_arrival() -> None:
    urgent, early, late, last = Person(0, 9), Person(1, 1), Person(1, 2), Person(2, 0)
    queue: OrderedQueue[Person] = OrderedQueue()
    for person in (last, late, urgent, early):
        queue.push(person)
    assert queue.head() is urgent
    assert drained(queue) == [urgent, early, late, last]


def test_who_comes_back_stands_in_the_old_place() -> None:
    first, second = Person(0, 1), Person(0, 2)
    queue: OrderedQueue[Person] = OrderedQueue()
    queue.push(first)
    queue.push(second)
    assert queue.pop() is first
    queue.push(first)
    assert drained(queue) == [first, second]


def test_removed_and_back_is_there_once() -> None:
    # The heap still holds the dead entry with the same key when the person returns.
    first, second = Person(0, 1), Person(0, 2)
    queue: OrderedQueue[Person] = OrderedQueue()
    queue.push(first)
    queue.push(second)
    assert queue.remove(second)
    queue.push(second)
    assert len(queue) == 2
    assert queue.items() == [first, second]
    assert drained(queue) == [first, second]
    assert not queue.remove(second)


def test_who_goes_to_another_queue_is_dead_in_the_first() -> None:
    first, second, later = Person(0, 1), Person(0, 2), Person(0, 3)
    old: OrderedQueue[Person] = OrderedQueue()
    new: OrderedQueue[Person] = OrderedQueue()
    for person in (first, second):
        old.push(person)
    for person in (first, second):
        old.remove(person)
        new.push(person)  # in the places in which they stood there
    assert old.head() is None
    assert list(old) == []
    old.push(later)
    assert drained(old) == [later]
    assert drained(new) == [first, second]


def test_a_thousand_cancellations_leave_no_corpses() -> None:
    queue: OrderedQueue[Person] = OrderedQueue()
    people = [Person(0, number) for number in range(1000)]
    for person in people:
        queue.push(person)
    random.Random(1).shuffle(people)
    for person in people[10:]:
        assert queue.remove(person)
    assert len(queue) == 10
    assert len(queue._line) + len(queue._heap) < 100
    assert drained(queue) == sorted(people[:10], key=lambda person: person.key)


def test_the_order_outlives_the_removal_of_most() -> None:
    """All but the first come out of order, so that they are in the heap that a sweep thins out."""
    rng = random.Random(5)
    people = [Person(0, number) for number in range(400)]
    queue: OrderedQueue[Person] = OrderedQueue()
    queue.push(Person(9, 0))
    for person in rng.sample(people, len(people)):
        queue.push(person)
    gone = set(rng.sample(range(400), 300))
    for number in sorted(gone):
        assert queue.remove(people[number])
    left = drained(queue)
    assert [person.key[2] for person in left[:-1]] == [number for number in range(400) if number not in gone]


def test_few_dead_entries_stay_where_they_are_so_that_a_removal_costs_no_pass_over_all() -> None:
    queue: OrderedQueue[Person] = OrderedQueue()
    people = [Person(0, number) for number in range(1000)]
    for person in people:
        queue.push(person)
    for person in people[500:600]:
        assert queue.remove(person)
    assert (len(queue), len(queue._line) + len(queue._heap)) == (900, 1000)
