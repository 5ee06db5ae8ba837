"""The order in which requests of several tenants wait: priority class, then the tenant's fair turn, then arrival.

Each tenant has an account in each priority class: what it was served, in tokens (or whatever its requests cost) divided
by its weight. Among the tenants that wait in the best class the one whose account is lowest goes next. A request is
charged when it is served, by what it is expected to cost, and its account is put right when the true cost is known. So
a request that leaves while it waits costs nothing, and one that was underrated is paid for by the next ones.

Start-time fair queueing (Goyal, Vin and Cheng, SIGCOMM 1996) with accounts in place of tags, as the virtual token
counter has them (Sheng and others, Fairness in Serving Large Language Models, OSDI 2024). Virtual time is what the
account served last stood at, before it was charged. A tenant that begins to wait is lifted to it: time in which it did
not ask for anything earns it nothing. Where nobody waits and a slot is free, nobody owes anybody: all accounts begin
anew (:meth:`FairQueue.relax`).

Between two tenants that wait all the time, what they are served differs, divided by their weights, by at most the
largest request of each, divided likewise; true while costs are as expected, and otherwise by what runs at the moment
and was misjudged. Each operation takes logarithmic time in those who wait.
"""

import heapq
from collections.abc import Iterator
from typing import Any, Final, Generic, Protocol, TypeVar

from tidegate.flow.ordered_queue import Item, OrderedQueue

MAX_STEP: Final = 10**12
"""What a want can tell: its numbers have at most 14 digits."""
IDLE_ACCOUNTS: Final = 1024
"""Above so many accounts those of tenants that do not wait are looked through: where virtual time has passed them they
are dropped; if too many are left, all of them are, and what they are ahead of others is forgiven."""


class TenantCharge:
    """Whose a request is, and what it costs. One of its own for each request."""

    __slots__ = ("_account", "_charged", "cost", "tenant", "weight")

    def __init__(self, tenant: str, weight: float, cost: float) -> None:
        """``weight`` > 0: the tenant's part among others; ``cost`` >= 0: expected, in tokens or inferences."""
        self.tenant = tenant
        self.weight = weight
        self.cost = cost
        self._account: _Line[Any] | None = None
        """That was charged for it."""
        self._charged = 0.0

    def __repr__(self) -> str:
        return f"<Claim of {self.tenant!r}, weight {self.weight:g}, cost {self.cost:g}>"


class ClaimedItem(Item, Protocol):
    """What can wait in turn. ``claim`` is set in the queue."""

    claim: TenantCharge | None


T = TypeVar("T", bound=ClaimedItem)


class _Line(Generic[T]):
    """A tenant's account in one priority class, and those who wait on it."""

    __slots__ = ("queue", "spent", "stamp", "weight")

    def __init__(self, spent: float) -> None:
        self.queue: OrderedQueue[T] = OrderedQueue()
        self.spent = spent
        """Cost served over weight."""
        self.stamp = 0
        """Of its entry in the heap that counts; the others are dead."""
        self.weight = 0.0
        """While somebody waits on it: counted among those of its class."""


class FairQueue(Generic[T]):
    """Items by class, fair turn and key."""

    __slots__ = ("_classes", "_heap", "_length", "_lines", "_purge_at", "_stamp", "_times", "_weights")

    def __init__(self) -> None:
        self._lines: dict[tuple[int, str], _Line[T]] = {}
        """By priority class and tenant."""
        self._times: dict[int, float] = {}
        """Virtual time by priority class."""
        self._heap: list[tuple[int, float, float, int, int, _Line[T]]] = []
        """(class, spent, seconds and arrival number of the first in line, stamp, line)."""
        self._length = 0
        self._classes: dict[int, int] = {}
        """Items by priority class."""
        self._weights: dict[int, float] = {}
        """Of the tenants that wait, together, by priority class."""
        self._stamp = 0
        self._purge_at = IDLE_ACCOUNTS

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[T]:
        """All waiting items, in no order."""
        return (item for line in self._lines.values() for item in line.queue)

    def __repr__(self) -> str:
        return f"<FairQueue {self._length} waiting, {len(self._lines)} accounts>"

    def count(self, priority: int) -> int:
        """Items of one priority class."""
        return self._classes.get(priority, 0)

    def push(self, item: T) -> None:
        """Adds an item that is in no queue."""
        line = self._line(item)
        priority = item.key[0]
        if not line.queue:
            line.spent = max(line.spent, self._times.get(priority, 0.0))
            assert item.claim is not None  # as of everything here
            line.weight = item.claim.weight
            self._weights[priority] = self._weights.get(priority, 0.0) + line.weight
        line.queue.push(item)
        self._length += 1
        self._classes[priority] = self._classes.get(priority, 0) + 1
        if line.queue.head() is item:
            self._place(line)

    def head(self) -> T | None:
        """The item that goes first, without removing it."""
        heap = self._heap
        while heap:
            stamp, line = heap[0][4:]
            if stamp == line.stamp:
                return line.queue.head()
            heapq.heappop(heap)
        return None

    def remove(self, item: T) -> bool:
        """Takes an item out wherever it stands; False when it was not waiting. Nobody is charged."""
        if not item.entry:
            return False
        line = self._line(item)
        was_first = line.queue.head() is item
        line.queue.remove(item)
        priority = item.key[0]
        self._length -= 1
        self._classes[priority] -= 1
        if not self._classes[priority]:
            self._weights[priority] = 0.0
        elif not line.queue:
            self._weights[priority] -= line.weight
        if was_first:
            self._place(line)
        return True

    def step(self, item: T) -> int:
        """By how much virtual time goes on when the first in line is served: its cost over all weights that wait."""
        claim = item.claim
        assert claim is not None  # as of everything here
        weights = self._weights.get(item.key[0]) or claim.weight
        return min(MAX_STEP, max(1, round(claim.cost / weights)))

    def charge(self, item: T) -> None:
        """An item that was removed is served: its tenant pays what it is expected to cost."""
        claim = item.claim
        assert claim is not None  # as of everything here
        line = self._line(item)
        priority = item.key[0]
        if line.spent > self._times.get(priority, 0.0):
            self._times[priority] = line.spent
        claim._account = line
        claim._charged = claim.cost / claim.weight
        line.spent += claim._charged
        self._place(line)

    def settle(self, claim: TenantCharge, cost: float) -> None:
        """What a served request did cost; 0: it was not served after all. Nothing changes if it was not charged."""
        line = claim._account
        if line is None:
            return
        due = cost / claim.weight
        line.spent += due - claim._charged
        claim._charged = due
        self._place(line)

    def relax(self) -> None:
        """A slot is free and nobody waits: all begin anew. Nothing where somebody waits."""
        if not self._length and self._lines:
            self._lines.clear()
            self._times.clear()
            self._heap.clear()

    def items(self) -> list[T]:
        """All waiting items, by class and in the order of their arrival."""
        return sorted(self, key=lambda item: item.key)

    def _line(self, item: T) -> _Line[T]:
        claim = item.claim
        assert claim is not None  # as of everything here
        name = (item.key[0], claim.tenant)
        line = self._lines.get(name)
        if line is None:
            if len(self._lines) >= self._purge_at:
                self._purge()
            line = self._lines[name] = _Line(self._times.get(name[0], 0.0))
        return line

    def _place(self, line: _Line[T]) -> None:
        """Its account or its first item is another: its entry in the heap is made anew."""
        self._stamp += 1
        line.stamp = self._stamp
        first = line.queue.head()
        if first is None:
            return
        heap = self._heap
        priority, since, number = first.key
        heapq.heappush(heap, (priority, line.spent, since, number, line.stamp, line))
        if len(heap) > 2 * len(self._lines) + 64:
            self._heap = [row for row in heap if row[4] == row[5].stamp]
            heapq.heapify(self._heap)

    def _purge(self) -> None:
        """Forgets accounts that would be lifted anyway; if too many are left, all whose tenants do not wait."""
        times = self._times
        self._lines = {
            name: line for name, line in self._lines.items() if line.queue or line.spent > times.get(name[0], 0.0)
        }
        if len(self._lines) >= IDLE_ACCOUNTS:
            self._lines = {name: line for name, line in self._lines.items() if line.queue}
        self._purge_at = IDLE_ACCOUNTS + 2 * len(self._lines)
