"""Drives a client. In the open loop requests leave on schedule, whatever happened to the earlier ones; in the closed
loop each worker sets its next send time.

If the client has no room for another call, the schedule waits and requests leave late. That shows in the latency, which
counts from the due time (coordinated omission), and in the lag of each call. Timers of event loops have a resolution of
1 ms, so a request may leave up to that much late.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final, Protocol

from tidegate.loadgen.clients.call import Call, Request
from tidegate.loadgen.clients.client import LoadClient

BURST: Final = 32
"""Requests sent in a row, when that many are due, before answers are read."""
TIMER_S: Final = 0.001
"""Shortest delay that event-loop timers resolve."""
FAILED_PAUSE_S: Final = 0.05
"""Pause of a worker without an answer, so that a failing server is not flooded. It doubles with each refusal in a
row."""
MOST_PAUSE_S: Final = 5.0
"""Longest pause after a refusal, also where Retry-After asks for more."""


class LoadWorker(Protocol):
    """A worker of a closed loop."""

    def next(self, free_s: float) -> float | None:
        """Returns the next send time of a worker free since ``free_s``, in seconds after the beginning of the run; None
        after its last request."""


class LoadRun:
    """One load over one client. ``record`` is called with every call that has ended; :meth:`stop` ends the sending at
    once and leaves calls in flight unfinished."""

    def __init__(self, client: LoadClient, record: Callable[[Call], None]) -> None:
        self._client = client
        self._record = record
        self._clock = client.clock
        self.began = self._clock()
        self.sent = 0
        self.is_stopped = False
        self._wake: asyncio.Future[None] | None = None
        self._working = 0
        self._draw: Callable[[], Request] | None = None
        self._timers: dict[LoadWorker, asyncio.TimerHandle] = {}
        self._waits_for_ends = False
        self._refused: dict[LoadWorker, int] = {}
        """Refusals in a row, by worker."""
        client.done = self._done

    @property
    def on_their_way(self) -> Collection[Call]:
        """Calls without an answer, oldest first."""
        return self._client.calls.keys()

    @property
    def unfinished(self) -> int:
        """Number of calls without an answer."""
        return len(self._client.calls)

    async def open_loop(self, schedule: Iterable[tuple[float, Request]]) -> None:
        """Sends all of ``schedule``, (seconds after the beginning, request) in order of time, and waits for the
        answers."""
        self.began = full_at = self._clock()
        in_a_row = 0
        for at_s, request in schedule:
            due = self.began + at_s
            while not self.is_stopped:
                wait_s = due - self._clock()
                if wait_s > 0.0:
                    await self._pause(wait_s)
                elif self._client.is_full:
                    await self._pause(None)
                    full_at = self._clock()
                elif in_a_row >= BURST:
                    await asyncio.sleep(0)
                else:
                    break
                in_a_row = 0
            if self.is_stopped:
                return
            in_a_row += 1
            call = Call(request, due)
            call.is_held = due < full_at
            self._send(call)
        await self._drained()

    async def closed_loop(self, workers: Sequence[LoadWorker], draw: Callable[[], Request]) -> None:
        """Runs ``workers``, which send the requests of ``draw`` until each has sent its last, and waits for the
        answers."""
        self.began = self._clock()
        self._draw = draw
        self._working = len(workers)
        for worker in workers:
            self._plan(worker, 0.0)
        await self._drained()

    def stop(self) -> None:
        """Ends the run now; no more requests are sent."""
        self.is_stopped = True
        for handle in self._timers.values():
            handle.cancel()
        self._timers.clear()
        self._wake_up()

    async def _drained(self) -> None:
        while (self._working or self._client.calls) and not self.is_stopped:
            await self._pause(None)

    async def _pause(self, wait_s: float | None) -> None:
        """Waits until a call has ended, at most ``wait_s`` seconds if that is set."""
        loop = asyncio.get_running_loop()
        self._wake = loop.create_future()
        self._waits_for_ends = wait_s is None
        handle = None if wait_s is None else loop.call_later(wait_s, self._wake_up)
        try:
            await self._wake
        finally:
            self._wake = None
            if handle is not None:
                handle.cancel()

    def _wake_up(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    def _send(self, call: Call) -> None:
        self.sent += 1
        self._client.send(call)

    def _done(self, call: Call) -> None:
        self._record(call)
        if call.owner is not None:
            self._plan(call.owner, call.ended - self.began + self._pause_after(call))
        if self._waits_for_ends:
            self._wake_up()

    def _pause_after(self, call: Call) -> float:
        """Returns the seconds that a worker waits after a call: none after an answer that is no refusal."""
        if not call.is_refused:
            self._refused.pop(call.owner, None)
            return FAILED_PAUSE_S if call.code is None else 0.0
        count = self._refused.get(call.owner, 0)
        self._refused[call.owner] = count + 1
        return min(MOST_PAUSE_S, max(FAILED_PAUSE_S * 2.0 ** min(count, 10), call.retry_after_s or 0.0))

    def _plan(self, worker: LoadWorker, free_s: float) -> None:
        at_s = None if self.is_stopped else worker.next(free_s)
        if at_s is None:
            self._working -= 1
            if not self._working:
                self._wake_up()
            return
        self._begin(worker, self.began + at_s)

    def _begin(self, worker: LoadWorker, due: float) -> None:
        """Sends the worker's next request when it is due. Timers may fire early, by up to their resolution."""
        self._timers.pop(worker, None)
        wait_s = due - self._clock()
        if wait_s > 0.0:
            loop = asyncio.get_running_loop()
            self._timers[worker] = loop.call_later(max(wait_s, TIMER_S), self._begin, worker, due)
        elif self._draw is not None:
            self._send(Call(self._draw(), due, worker))
