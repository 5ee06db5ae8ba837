"""The order in which requests of several tenants wait: priority class, then the tenant's account, then arrival.

Each tenant has an account in each priority class: what it was served, in tokens (or another cost of its requests)
divided by its weight. Among the tenants that wait in the best class the one with the lowest account goes next. A
request is charged when it is served, by its expected cost, and the account is corrected when the true cost is known. So
a request that leaves while it waits costs nothing, and one that was underrated is paid for by the next ones.

Start-time fair queueing (Goyal, Vin and Cheng, SIGCOMM 1996) with accounts in place of tags, as the virtual token
counter has them (Sheng and others, Fairness in Serving Large Language Models, OSDI 2024). Virtual time is the account
served last, before it was charged. A tenant that begins to wait is lifted to it: time without requests earns it
nothing. If no tenant waits and a slot is free, all accounts begin at zero again (:meth:`FairQueue.relax`).

Between two tenants that wait all the time, their service, divided by their weights, differs by at most the largest
request of each, divided likewise. This holds while costs are as expected; otherwise the difference also includes
running requests that were misjudged. Each operation takes logarithmic time in the number of waiting tenants.
"""

import heapq
from collections.abc import Callable, Iterator
from typing import Any, Final, Generic, Protocol, TypeVar, final

from tidegate.flow.ordered_queue import Item, OrderedQueue

MAX_STEP: Final = 10**12
"""Upper bound of a cost in a want: its numbers have at most 14 digits."""
IDLE_ACCOUNTS: Final = 1024
"""Above this many accounts those of tenants that do not wait are checked: accounts that virtual time has passed are
dropped. If too many are left, all idle ones are dropped, and their advance over others is forgiven."""


class TenantCharge:
    """Tenant and cost of a request. One of its own for each request."""

    __slots__ = ("_account", "_charged", "cost", "tenant", "weight")

    def __init__(self, tenant: str, weight: float, cost: float) -> None:
        """``weight`` > 0: the tenant's part among others; ``cost`` >= 0: expected, in tokens or inferences."""
        self.tenant = tenant
        self.weight = weight
        self.cost = cost
        self._account: _Line[Any] | None = None
        """The account that was charged for it."""
        self._charged = 0.0

    def __repr__(self) -> str:
        return f"<TenantCharge of {self.tenant!r}, weight {self.weight:g}, cost {self.cost:g}>"


class ClaimedItem(Item, Protocol):
    """An item that can wait in fair order. ``claim`` is set in the queue."""

    claim: TenantCharge | None


T = TypeVar("T", bound=ClaimedItem)


class _Line(Generic[T]):
    """A tenant's account in one priority class, and its waiting requests."""

    __slots__ = ("queue", "spent", "stamp", "weight")

    def __init__(self, spent: float, queue: OrderedQueue[T]) -> None:
        self.queue = queue
        self.spent = spent
        """Cost served over weight."""
        self.stamp = 0
        """Stamp of its entry in the heap that counts; the others are dead."""
        self.weight = 0.0
        """Weight counted among those of its class while a request waits."""


@final
class FairQueue(Generic[T]):
    """Items by class, account and key."""

    __slots__ = ("_classes", "_heap", "_lines", "_order", "_purge_at", "_stamp", "_times", "_weights", "length")

    def __init__(self, order: Callable[[], OrderedQueue[T]] = OrderedQueue) -> None:
        """``order`` makes the queue of one tenant in one class."""
        self._order = order
        self._lines: dict[tuple[int, str], _Line[T]] = {}
        """By priority class and tenant."""
        self._times: dict[int, float] = {}
        """Virtual time by priority class."""
        self._heap: list[tuple[int, float, float, int, int, _Line[T]]] = []
        """(class, spent, seconds and arrival number of the first in line, stamp, line)."""
        self.length = 0
        """The number of waiting items; ``len`` asks for it by a call."""
        self._classes: dict[int, int] = {}
        """Items by priority class."""
        self._weights: dict[int, float] = {}
        """Sum of the weights of the waiting tenants, by priority class."""
        self._stamp = 0
        self._purge_at = IDLE_ACCOUNTS

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[T]:
        """Yields all waiting items, in no order."""
        return (item for line in self._lines.values() for item in line.queue)

    def __repr__(self) -> str:
        return f"<FairQueue {self.length} waiting, {len(self._lines)} accounts>"

    def count(self, priority: int) -> int:
        """Returns the items of one priority class."""
        return self._classes.get(priority, 0)

    def push(self, item: T) -> None:
        """Adds an item that is in no queue."""
        line = self._line(item)
        priority = item.key[0]
        if not line.queue.length:
            line.spent = max(line.spent, self._times.get(priority, 0.0))
            assert item.claim is not None  # as of everything here
            line.weight = item.claim.weight
            self._weights[priority] = self._weights.get(priority, 0.0) + line.weight
        line.queue.push(item)
        self.length += 1
        self._classes[priority] = self._classes.get(priority, 0) + 1
        if line.queue.head() is item:
            self._place(line)

    def head(self) -> T | None:
        """Returns the item that goes first, without removing it."""
        heap = self._heap
        while heap:
            stamp, line = heap[0][4:]
            if stamp == line.stamp:
                return line.queue.head()
            heapq.heappop(heap)
        return None

    def remove(self, item: T) -> bool:
        """Removes an item wherever it stands; returns False if it was not waiting. No tenant is charged."""
        if not item.entry:
            return False
        line = self._line(item)
        was_first = line.queue.head() is item
        line.queue.remove(item)
        priority = item.key[0]
        self.length -= 1
        self._classes[priority] -= 1
        if not self._classes[priority]:
            self._weights[priority] = 0.0
        elif not line.queue.length:
            self._weights[priority] -= line.weight
        if was_first:
            self._place(line)
        return True

    def step(self, item: T) -> int:
        """Returns the advance of virtual time when the first in line is served: its cost over all weights that wait."""
        claim = item.claim
        assert claim is not None  # as of everything here
        weights = self._weights.get(item.key[0]) or claim.weight
        return min(MAX_STEP, max(1, round(claim.cost / weights)))

    def charge(self, item: T) -> None:
        """Charges the tenant of an item that was removed and is served, by the expected cost."""
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
        """Corrects the charge of a served request to its true cost; 0 if it was not served after all. Changes nothing
        if it was not charged."""
        line = claim._account
        if line is None:
            return
        due = cost / claim.weight
        line.spent += due - claim._charged
        claim._charged = due
        self._place(line)

    def relax(self) -> None:
        """Resets all accounts: a slot is free and no request waits. Does nothing if one waits."""
        if not self.length and self._lines:
            self._lines.clear()
            self._times.clear()
            self._heap.clear()

    def items(self) -> list[T]:
        """Returns all waiting items, by class and in the order of their arrival."""
        return sorted(self, key=lambda item: item.key)

    def _line(self, item: T) -> _Line[T]:
        claim = item.claim
        assert claim is not None  # as of everything here
        name = (item.key[0], claim.tenant)
        line = self._lines.get(name)
        if line is None:
            if len(self._lines) >= self._purge_at:
                self._purge()
            line = self._lines[name] = _Line(self._times.get(name[0], 0.0), self._order())
        return line

    def _place(self, line: _Line[T]) -> None:
        """Puts a line's entry into the heap again, after its account or first item has changed."""
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
        """Forgets accounts that would be lifted anyway; if too many are left, all without a waiting request."""
        times = self._times
        self._lines = {
            name: line for name, line in self._lines.items() if line.queue or line.spent > times.get(name[0], 0.0)
        }
        if len(self._lines) >= IDLE_ACCOUNTS:
            self._lines = {name: line for name, line in self._lines.items() if line.queue}
        self._purge_at = IDLE_ACCOUNTS + 2 * len(self._lines)
