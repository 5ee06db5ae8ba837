"""The order of urgency: priority class, time left over time needed, size, arrival; as time goes on."""

import random
from math import inf

import pytest

from tidegate.activator.state.urgency_queue import UrgencyClock, UrgencyQueue
from tidegate.autoscaler.oltunes.queues import order
from tidegate.autoscaler.oltunes.task import QueuedTask
from tidegate.flow.fair_queue import FairQueue, TenantCharge
from tidegate.flow.ordered_queue import Key

HORIZON_S = 300.0


class Job:
    def __init__(self, number: int, inferences: int, due: float, priority: int = 5, tenant: str = "") -> None:
        self.key: Key = (priority, due - HORIZON_S, number)
        self.entry = 0
        self.inferences = inferences
        self.due = due
        self.claim: TenantCharge | None = TenantCharge(tenant, 1.0, inferences)

    def __repr__(self) -> str:
        return f"<Job {self.key[2]} of {self.inferences}, due {self.due:g}>"


def empty(now: float = 0.0) -> tuple[UrgencyClock, UrgencyQueue[Job]]:
    clock = UrgencyClock()
    clock.now, clock.horizon_s = now, HORIZON_S
    return clock, UrgencyQueue(clock)


def drained(queue: UrgencyQueue[Job]) -> list[int]:
    numbers = []
    while (job := queue.pop()) is not None:
        numbers.append(job.key[2])
    return numbers


def test_the_least_time_left_for_its_size_goes_first() -> None:
    _, queue = empty()
    for job in (Job(1, 1, 4.0), Job(2, 1, 2.0), Job(3, 8, 9.0)):
        queue.push(job)
    assert drained(queue) == [3, 2, 1], "9/8, 2/1, 4/1"


def test_of_equally_urgent_ones_the_shortest_goes_first_then_the_earliest() -> None:
    _, queue = empty()
    for job in (Job(1, 4, 8.0), Job(2, 2, 4.0), Job(3, 2, 4.0), Job(4, 1, 2.0)):
        queue.push(job)
    assert drained(queue) == [4, 2, 3, 1]


def test_waiting_changes_which_one_is_more_urgent() -> None:
    """Large: 20 s for 8 is 2.5 s each; small: 10 s for 1. After 9 s: 11/8 against 1/1."""
    clock, queue = empty()
    large, small = Job(1, 8, 20.0), Job(2, 1, 10.0)
    queue.push(large)
    queue.push(small)
    assert queue.head() is large
    clock.now = 9.0
    assert queue.head() is small
    clock.now = 30.0
    assert queue.head() is small, "both are late: -20/1 before -10/8"


def test_a_better_class_goes_before_any_urgency() -> None:
    _, queue = empty()
    for job in (Job(1, 64, 1.0, priority=15), Job(2, 1, 1e6, priority=9)):
        queue.push(job)
    assert (queue.count(15), queue.count(9), queue.count(5)) == (1, 1, 0)
    assert drained(queue) == [2, 1]


def test_it_goes_as_the_papers_queues_do_for_sizes_that_are_powers_of_two() -> None:
    rng = random.Random(3)
    for _ in range(50):
        clock, queue = empty(rng.uniform(0.0, 50.0))
        jobs = [
            Job(number, 2 ** rng.randrange(8), rng.choice([10.0, 20.0, 40.0, rng.uniform(0.0, 60.0)]))
            for number in range(30)
        ]
        for job in jobs:
            queue.push(job)
        tasks = [
            QueuedTask(
                id=f"{job.key[2]:02}",
                class_weight=1.0,
                deadline_s=job.due - clock.now,
                average_latency_s=job.inferences,
            )
            for job in jobs
        ]
        expected = [int(task.id) for task in order(tasks).latency_critical]
        assert [job.key[2] for job in queue.items()] == expected
        assert drained(queue) == expected


def test_removed_and_back_is_there_once_and_the_counts_are_right() -> None:
    rng = random.Random(4)
    _, queue = empty()
    jobs = [Job(number, rng.randrange(1, 100), rng.uniform(0.0, 99.0), rng.randrange(3)) for number in range(200)]
    waiting: set[Job] = set()
    for _ in range(2000):
        job = rng.choice(jobs)
        if job in waiting:
            assert queue.remove(job)
            waiting.remove(job)
        else:
            assert not queue.remove(job)
            queue.push(job)
            waiting.add(job)
        assert len(queue) == len(waiting) == sum(queue.count(each) for each in range(3))
        best = min((job.key[0] for job in waiting), default=inf)
        head = queue.head()
        assert (head is None) == (not waiting) and (head is None or head.key[0] == best)
    assert set(queue) == waiting == set(queue.items())


@pytest.mark.parametrize("now", [0.0, 9.0])
def test_tenants_take_turns_and_urgency_orders_within_each(now: float) -> None:
    clock, line = empty(now)
    queue: FairQueue[Job] = FairQueue(line.like)
    for job in (Job(1, 8, 20.0, tenant="a"), Job(2, 1, 10.0, tenant="a"), Job(3, 1, 30.0, tenant="b")):
        queue.push(job)
    served = []
    while (head := queue.head()) is not None:
        queue.remove(head)
        queue.charge(head)
        served.append(head.key[2])
    assert served == ([1, 3, 2] if now == 0.0 else [2, 3, 1]), clock
