"""Gateways on machines of their own, a common pool that fails, and exchanges that are late or lost, in virtual time."""

import heapq
import random
from collections.abc import Callable, Coroutine, Generator, Sequence
from functools import partial
from typing import Any, Final, Protocol, TypeVar

from tidegate.clock import ManualClock
from tidegate.flow.quota import Pool, QuotaAnswer, QuotaReport, QuotaTotal
from tidegate.store.fallback_counters import FallbackPool
from tidegate.store.records import StoreFaultError

T = TypeVar("T")

CALL_S: Final = 0.25
"""A call that is lost fails after this time."""
LATE_S: Final = 0.1
"""Longest way of a call or of its answer."""


class Worker(Protocol):
    """The gateway's side of the exchanges."""

    def next_at(self) -> float: ...

    def take(self, now: float) -> Sequence[QuotaReport]: ...

    def answered(self, answer: QuotaAnswer, now: float) -> None: ...


class _Way:
    """Suspends a call until the world lets it go on."""

    def __await__(self) -> Generator[None, None, None]:
        yield


class Common:
    """The common pool as one machine reaches it."""

    def __init__(self, pool: Pool, clock: ManualClock, called: Callable[[], None]) -> None:
        self.pool = pool
        self._clock = clock
        self._called = called
        self.is_lost = False
        """True once nothing comes back."""
        self.runs_lost = False
        """True if calls arrive although their answers are lost."""

    def lose(self) -> None:
        self.is_lost = True

    def find(self) -> None:
        self.is_lost = self.runs_lost = False

    async def exchange(self, member: str, reports: Sequence[QuotaReport]) -> QuotaAnswer:
        return await self._call(lambda: self.pool.exchange(member, reports, self._clock.now()))

    async def totals(self, since: float) -> tuple[Sequence[QuotaTotal], None]:
        return await self._call(lambda: self.pool.totals(since)), None

    async def _call(self, run: Callable[[], T]) -> T:
        await _Way()
        found = run() if self.runs_lost or not self.is_lost else None
        self._called()
        await _Way()
        if self.is_lost or found is None:
            raise StoreFaultError("gone")
        return found

    async def close(self) -> None:
        return


class Machine:
    """A gateway with one worker."""

    def __init__(self, name: str, worker: Worker, common: Common, clock: ManualClock) -> None:
        self.name = name
        self.worker = worker
        self.common = common
        self.pool = FallbackPool(self.common, clock)
        self.is_flying = False


class OutageWorld:
    """Runs exchanges of all machines as they fall due, and what a test schedules."""

    def __init__(self, workers: Sequence[Worker], rng: random.Random, called: Callable[[], None]) -> None:
        """``called``: after each call of the pool."""
        self.clock = ManualClock(60_000.0)
        self.pool = Pool()
        self.rng = rng
        self.machines = [
            Machine(f"g{number}", worker, Common(self.pool, self.clock, called), self.clock)
            for number, worker in enumerate(workers)
        ]
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = self._losses = 0

    @property
    def now(self) -> float:
        return self.clock.now()

    def forget(self) -> None:
        """Replaces the pool by an empty one."""
        self.pool = Pool()
        for machine in self.machines:
            machine.common.pool = self.pool

    def lose(self) -> None:
        """Takes the pool away from all machines."""
        self._losses += 1
        for machine in self.machines:
            machine.common.lose()

    def find(self, after_s: Sequence[float]) -> None:
        """Lets each machine reach the pool again after a time of its own, unless it is lost again by then."""
        for machine, each in zip(self.machines, after_s, strict=True):
            self.at(self.now + each, partial(self._find, machine.common, self._losses))

    def _find(self, common: Common, losses: int) -> None:
        if losses == self._losses:
            common.find()

    def at(self, when: float, action: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._events, (when, self._count, action))

    def run(self, seconds: float) -> None:
        end = self.now + seconds
        while True:
            due = min(
                (max(each.worker.next_at(), self.now) for each in self.machines if not each.is_flying), default=end
            )
            if self._events and self._events[0][0] <= min(due, end):
                when, _, action = heapq.heappop(self._events)
                self.clock.advance(max(0.0, when - self.now))
                action()
            elif due < end:
                self.clock.advance(max(0.0, due - self.now))
                self._start(next(each for each in self.machines if not each.is_flying and each.worker.next_at() <= due))
            else:
                self.clock.advance(end - self.now)
                return

    def _start(self, machine: Machine) -> None:
        machine.is_flying = True
        call = machine.pool.exchange(machine.name, machine.worker.take(self.now))
        self._go_on(machine, call)

    def _go_on(self, machine: Machine, call: Coroutine[Any, Any, QuotaAnswer]) -> None:
        try:
            call.send(None)
        except StopIteration as end:
            machine.is_flying = False
            machine.worker.answered(end.value, self.now)
            return
        way_s = CALL_S / 2 if machine.common.is_lost else self.rng.uniform(0.0, LATE_S)
        self.at(self.now + way_s, lambda: self._go_on(machine, call))
