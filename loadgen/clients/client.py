"""The base of every load client: calls in flight, their time limit, and the callback at their end."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Final

from tidegate.loadgen.clients.call import TIMEOUT, Call

SWEEP_S: Final = 0.05
"""Calls end at most this long after their time limit: one timer serves all of them."""


class LoadClient(ABC):
    """Sends calls without waiting for them. ``done``, set by the runner, is called with each call that has ended, never
    from inside :meth:`send`.

    ``most`` bounds the calls in flight; ``clock`` returns steady seconds.
    """

    def __init__(self, *, most: int, timeout_s: float, clock: Callable[[], float]) -> None:
        self.done: Callable[[Call], None] = lambda call: None
        self.calls: dict[Call, None] = {}
        """Calls in flight, oldest first."""
        self.clock = clock
        self._most = most
        self._timeout_s = timeout_s
        self._sweeping: asyncio.TimerHandle | None = None
        self.is_closed = False

    @property
    def is_full(self) -> bool:
        """Whether no call may be sent until another one has ended."""
        return len(self.calls) >= self._most

    def send(self, call: Call) -> None:
        """Sends a call. Must not be called while the client is full."""
        call.sent = self.clock()
        self.calls[call] = None
        self._watch()
        self._send(call)

    def finish(self, call: Call, error: str | None = None, at: float | None = None) -> None:
        """Ends a call, exactly once, ``at`` the time of the read that ended it (None: now). ``error`` is the failure
        kind of a call without an answer."""
        if call not in self.calls:
            return
        call.ended = self.clock() if at is None else at
        if error is not None:
            call.code, call.is_good, call.error = None, False, error
        del self.calls[call]
        self.done(call)

    async def close(self) -> None:
        """Closes every connection; calls in flight end without a callback."""
        self.is_closed = True
        if self._sweeping is not None:
            self._sweeping.cancel()
        for call in self.calls:
            call.ended = self.clock()
        self.calls.clear()
        await self._close()

    @abstractmethod
    def _send(self, call: Call) -> None:
        """Begins to send a call."""

    @abstractmethod
    def _give_up(self, call: Call) -> None:
        """Frees what a finished call holds."""

    @abstractmethod
    async def _close(self) -> None:
        """Closes every connection."""

    def _watch(self) -> None:
        if self._sweeping is None:
            self._sweeping = asyncio.get_running_loop().call_later(SWEEP_S, self._sweep)

    def _sweep(self) -> None:
        self._sweeping = None
        limit = self.clock() - self._timeout_s
        late = []
        for call in self.calls:  # Sent in this order.
            if call.sent > limit:
                break
            late.append(call)
        for call in late:
            self._give_up(call)
            self.finish(call, TIMEOUT)
        if self.calls:
            self._watch()

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {len(self.calls)} of at most {self._most} calls on their way>"
