"""Decides which requests run together, and when. Pure: time is an argument, the result is a list of batches to start.

Theory of operation. Requests of one *signature* (same inputs, datatypes and shapes except the first dimension) wait in
one queue, in order of arrival. The queue with the oldest head goes first. A request without a signature runs alone.

- A full batch starts as soon as a runner is free.
- An idle model is never held back: a lone request starts at once.
- Requests gather while a batch runs. When it ends, its callers usually return within moments. Starting at once
  would split the callers into two alternating halves, each paying the model's fixed cost.
  Example: 8 callers, closed loop. The first goes alone, 7 gather; without a pause the batches stay 1, 7, 1, 7, ...;
  with a pause of a millisecond they are 8, 8, 8.
  A batch that follows another is therefore held until as many requests have gathered as the last batch answered plus
  those that were already waiting then, for at most ``patience`` seconds.
- ``patience`` is at most the configured delay. It halves when a hold brought no request and doubles when it brought
  some: under steady open traffic holds soon cost next to nothing. (Our choice, as is the factor.)

The requests of a failed batch run again one by one, so that a bad request fails alone.
"""

from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

T = TypeVar("T")

_MIN_PATIENCE = 1 / 64
"""Smallest patience as a share of the delay: small enough to cost nothing, large enough to find a chance again."""


@dataclass(slots=True, eq=False)
class BatchItem(Generic[T]):
    """One waiting request. ``rows`` is its length in the first dimension. Without a ``signature`` it runs alone."""

    value: T
    rows: int = 1
    signature: Hashable | None = None
    arrived: float = 0.0


@dataclass(slots=True, eq=False)
class Batch(Generic[T]):
    """Requests that run together, in order of arrival."""

    items: list[BatchItem[T]]
    signature: Hashable | None = None

    @property
    def rows(self) -> int:
        return sum(item.rows for item in self.items)

    def __repr__(self) -> str:
        return f"<Batch {len(self.items)} requests, {self.rows} rows>"


@dataclass(slots=True)
class _Hold:
    """A free runner that waits for callers of ``signature`` to return."""

    signature: Hashable
    wanted: int
    until: float
    before: int


@dataclass(slots=True)
class Batcher(Generic[T]):
    """Combines waiting requests. ``delay_s`` bounds how long a free runner is held back for more of them."""

    max_rows: int = 1
    delay_s: float = 0.0
    runners: int = 1
    _queues: dict[Hashable, deque[BatchItem[T]]] = field(default_factory=dict)
    _retries: deque[BatchItem[T]] = field(default_factory=deque)
    _running: int = 0
    _hold: _Hold | None = None
    _patience: float = field(init=False)

    def __post_init__(self) -> None:
        self._patience = self.delay_s

    @property
    def waiting(self) -> int:
        """Requests that are in no batch yet."""
        return len(self._retries) + sum(map(len, self._queues.values()))

    @property
    def running(self) -> int:
        return self._running

    def add(self, item: BatchItem[T], now: float) -> list[Batch[T]]:
        """Adds a request that has arrived. Returns the batches to start now."""
        item.arrived = now
        key = item.signature if item.signature is not None else item
        queue = self._queues.get(key)
        if queue is None:
            queue = self._queues[key] = deque()
        queue.append(item)
        return self._start(now)

    def finished(self, batch: Batch[T], now: float) -> list[Batch[T]]:
        """Records the end of a batch, whatever its outcome. Returns the batches to start now."""
        self._running -= 1
        if batch.signature is not None and self.delay_s > 0 and self.runners == 1:
            gathered = len(self._queues.get(batch.signature, ()))
            self._hold = _Hold(batch.signature, len(batch.items) + gathered, now + self._patience, gathered)
        return self._start(now)

    def failed(self, batch: Batch[T], now: float) -> list[Batch[T]]:
        """Records a failed batch of several requests: each runs again alone, before all others. Returns the batches to
        start now."""
        self._retries.extend(batch.items)
        self._running -= 1
        return self._start(now)

    def cancel(self, item: BatchItem[T]) -> bool:
        """Removes a waiting request. Returns False if it runs already or is unknown."""
        if item in self._retries:
            self._retries.remove(item)
            return True
        key = item.signature if item.signature is not None else item
        queue = self._queues.get(key)
        if queue is None or item not in queue:
            return False
        queue.remove(item)
        if not queue:
            del self._queues[key]
        return True

    def set_limits(self, max_rows: int, delay_s: float, now: float) -> list[Batch[T]]:
        """Forms batches of at most ``max_rows`` from now on, and holds a free runner for at most ``delay_s``. What runs
        is not touched. Returns the batches to start now."""
        self.max_rows, self.delay_s, self._patience = max_rows, delay_s, delay_s
        if self._hold is not None:
            self._hold.until = min(self._hold.until, now + delay_s)
        return self._start(now)

    def next_wakeup(self) -> float | None:
        """Returns the time at which ``on_wakeup`` is due. Returns None if another event comes first."""
        if self._hold is None or self._running >= self.runners or self._hold.signature not in self._queues:
            return None
        return self._hold.until

    def on_wakeup(self, now: float) -> list[Batch[T]]:
        """Returns the batches to start now."""
        return self._start(now)

    def _start(self, now: float) -> list[Batch[T]]:
        started: list[Batch[T]] = []
        while self._running < self.runners:
            batch = self._next(now)
            if batch is None:
                break
            self._running += 1
            started.append(batch)
        return started

    def _next(self, now: float) -> Batch[T] | None:
        if self._retries:
            return Batch([self._retries.popleft()])
        ready = [key for key, queue in self._queues.items() if not self._is_held(key, queue, now)]
        if not ready:
            return None
        key = min(ready, key=lambda key: self._queues[key][0].arrived)
        queue = self._queues[key]
        if self._hold is not None and self._hold.signature == key:
            self._adapt_patience(len(queue) > self._hold.before)
            self._hold = None
        items = [queue.popleft()]
        rows = items[0].rows
        while queue and rows + queue[0].rows <= self.max_rows:
            items.append(queue.popleft())
            rows += items[-1].rows
        if not queue:
            del self._queues[key]
        return Batch(items, items[0].signature)

    def _is_held(self, key: Hashable, queue: deque[BatchItem[T]], now: float) -> bool:
        hold = self._hold
        if hold is None or hold.signature != key or now >= hold.until or len(queue) >= hold.wanted:
            return False
        return sum(item.rows for item in queue) < self.max_rows

    def _adapt_patience(self, grew: bool) -> None:
        factor = 2.0 if grew else 0.5
        self._patience = min(self.delay_s, max(self.delay_s * _MIN_PATIENCE, self._patience * factor))

    def __repr__(self) -> str:
        return f"<Batcher {self._running}/{self.runners} running, {self.waiting} waiting, max {self.max_rows} rows>"
