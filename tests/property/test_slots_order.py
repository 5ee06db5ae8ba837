"""Order and bounds over all workers, with the real slot ledger: who gets the slot that frees, how many may wait."""

import random
from math import ceil

import pytest

from tests.support.worlds.routes import function, table
from tests.support.worlds.slot_world import End, Flight, Job, Mailboxes, Replica, World
from tidegate.errors import QUEUE_FULL
from tidegate.records.route_table import QueueOrder, RouteTable

LIMIT_OF_NEW = 4


class Served:
    """A world whose model answers on command, in the order in which requests reached it."""

    def __init__(self, *, workers: int, limit: int = 1, routes: RouteTable | None = None, ready: bool = True) -> None:
        self.mail = Mailboxes()
        self.running: list[tuple[Replica, Flight]] = []
        self.order: list[Job] = []
        self.world = World(self.mail, workers=workers, limits=(limit,), route_table=routes, serve=self._serve)
        self.replica = self.world.replicas["r0"]
        if ready:
            self.is_ready()

    def _serve(self, world: World, replica: Replica, flight: Flight) -> None:
        self.order.append(flight.job)
        self.running.append((replica, flight))

    def is_ready(self) -> None:
        self.replica.ledger.ready(self.world.now)
        self.replica.act()
        self.mail.deliver_all()

    def arrive(self, worker: int, priority: int = 5, timeout_s: float = 60.0, inferences: int = 1) -> Job:
        job = self.world.arrive(self.world.workers[worker], inferences, timeout_s, priority)
        self.mail.deliver_all()
        self.world.now += 0.001
        return job

    def answer(self) -> None:
        """The oldest at the model ends, and everything that follows arrives."""
        self.world.post_finish(*self.running.pop(0))
        self.mail.deliver_all()

    def answer_all(self) -> list[Job]:
        """Answers until nothing runs; the order in which requests reached the model."""
        while self.running:
            self.answer()
            self.world.now += 0.001
        return self.order


def test_the_slot_that_frees_goes_to_the_higher_priority_on_another_worker() -> None:
    """One slot, two workers: the class of the head decides, not who arrived first, nor whose request held the slot."""
    one = Served(workers=2)
    first = one.arrive(0)
    low = one.arrive(0, priority=9)
    middle = one.arrive(1, priority=5)
    high = one.arrive(1, priority=0)
    assert one.answer_all() == [first, high, middle, low]


@pytest.mark.parametrize("limit", [1, 2, 3])
@pytest.mark.parametrize("seed", range(10))
def test_classes_are_served_in_order_and_arrival_decides_within_each(seed: int, limit: int) -> None:
    rng = random.Random(seed)
    one = Served(workers=4, limit=limit)
    filling = [one.arrive(rng.randrange(4), priority=0) for _ in range(limit)]
    priorities = {one.arrive(rng.randrange(4), priority): priority for priority in rng.choices(range(10), k=60)}
    order = one.answer_all()
    assert set(order[:limit]) == set(filling)
    # Ages travel in whole milliseconds, and slots that free together are asked for together.
    places = {job: place for place, job in enumerate(sorted(priorities, key=lambda job: (priorities[job], job.number)))}
    late = [abs(place - places[job]) for place, job in enumerate(order[limit:])]
    assert max(late) <= 2 * limit
    if limit == 1:
        assert [priorities[job] for job in order[limit:]] == sorted(priorities.values())


def test_the_order_of_deadlines_holds_over_all_workers() -> None:
    routes = table(workers=2, functions=[function([("r0", "cpu")], queue_order=QueueOrder.DEADLINE)])
    one = Served(workers=2, routes=routes)
    first = one.arrive(0)
    patient, hurried, between = one.arrive(0), one.arrive(1, timeout_s=10.0), one.arrive(0, timeout_s=30.0)
    lower = one.arrive(1, priority=6, timeout_s=5.0)
    assert one.answer_all() == [first, hurried, between, patient, lower]


def test_by_urgency_each_worker_serves_its_most_urgent_and_they_agree_by_when_it_is_due() -> None:
    routes = table(workers=2, functions=[function([("r0", "cpu")], queue_order=QueueOrder.URGENCY)])
    one = Served(workers=2, routes=routes)
    first = one.arrive(0)
    patient, large = one.arrive(0, timeout_s=20.0), one.arrive(0, timeout_s=60.0, inferences=8)
    hurried, lower = one.arrive(1, timeout_s=10.0), one.arrive(1, priority=15, timeout_s=1.0)
    assert one.answer_all() == [first, hurried, large, patient, lower]


def test_a_request_past_its_deadline_is_removed_and_never_promoted() -> None:
    """By arrival a short deadline is no way to the front: it only ends the waiting."""
    one = Served(workers=2)
    first, patient, hurried = one.arrive(0), one.arrive(0), one.arrive(1, timeout_s=0.5)
    one.world.advance(0.6)
    one.mail.deliver_all()
    assert (hurried.end, hurried.refusal) == (End.REFUSED, "deadline_exceeded")
    assert one.answer_all() == [first, patient]


@pytest.mark.parametrize("workers", [1, 4])
def test_a_thousand_waiting_requests_on_one_new_replica(workers: int) -> None:
    """They waited for it asleep: its limit is never exceeded, counted at the model, and their order is kept."""
    one = Served(workers=workers, limit=LIMIT_OF_NEW, ready=False)
    jobs = [one.arrive(number % workers) for number in range(1000)]
    assert not one.order
    one.is_ready()
    order = one.answer_all()
    assert one.replica.peak == LIMIT_OF_NEW
    assert all(job.end is End.ANSWERED and len(job.started) == 1 for job in jobs)
    assert one.world.refusals == one.world.voids == 0
    late = max(abs(place - job.number) for place, job in enumerate(order))
    if workers == 1:
        assert order == jobs
    assert late <= 2 * LIMIT_OF_NEW, "two service times of all slots"


@pytest.mark.parametrize("workers", [1, 2, 3, 7])
@pytest.mark.parametrize(("requests", "size"), [(20, 1 << 30), (10_000, 1999)])
def test_all_workers_together_exceed_a_bound_by_less_than_their_number(workers: int, requests: int, size: int) -> None:
    """The bound is split, rounded up: by count, and by bytes (each request here holds 100)."""
    routes = table(workers=workers, functions=[function([], queue_requests=requests, queue_bytes=size)])
    one = Served(workers=workers, routes=routes, ready=False)
    jobs = [one.arrive(number % workers) for number in range(100)]
    waiting = [job for job in jobs if job.end is None]
    assert all(job.refusal == QUEUE_FULL.code for job in jobs if job.end is not None)
    if requests == 20:
        assert 20 <= len(waiting) <= 20 + workers - 1
        assert len(waiting) == workers * ceil(20 / workers)
    else:
        assert 100 * len(waiting) <= size + workers - 1
        assert len(waiting) == workers * (ceil(size / workers) // 100)
