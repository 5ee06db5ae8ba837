"""Calls without a client that the model server goes on with. Each holds its slot until the server has ended it.

How the end is known depends on the server (``cancel`` in the manifest): the shipped one is *asked* how many such calls
it runs; of one that computes on regardless the connection is *held* until it has answered.

A server is unresponsive if such a call goes on for ``unresponsive-after`` and no request has ended in that time. While
others end, the server works, and a long call costs one slot.
"""

from collections.abc import Callable


class HeldCall:
    """One call. The upstream side calls ``on_end`` if it sees the end by itself."""

    __slots__ = ("at", "on_end", "release")

    def __init__(self) -> None:
        self.at = 0.0
        """When its client was gone."""
        self.release: Callable[[], None] = _nothing
        """Gives its slot back."""
        self.on_end: Callable[[], None] | None = None


def _nothing() -> None:
    """Does nothing."""


class HeldCalls:
    """The held calls of one replica, oldest first. Times in seconds on one monotonic clock."""

    __slots__ = ("_calls", "_ended", "_progress_at")

    def __init__(self) -> None:
        self._calls: list[HeldCall] = []
        self._ended = -1
        self._progress_at = 0.0

    @property
    def count(self) -> int:
        return len(self._calls)

    def calls(self) -> tuple[HeldCall, ...]:
        """Returns the present calls, oldest first."""
        return tuple(self._calls)

    def oldest_s(self, now: float) -> float:
        """Returns the time since the oldest one's client was gone; 0 without calls."""
        return max(0.0, now - self._calls[0].at) if self._calls else 0.0

    def add(self, call: HeldCall, release: Callable[[], None], now: float) -> None:
        """Holds a slot from now on. ``release`` gives it back."""
        if not self._calls:
            self._progress_at = now
        call.at, call.release = now, release
        self._calls.append(call)

    def end(self, call: HeldCall) -> None:
        """Releases the slot of a call that has ended; without effect if it is released."""
        if call in self._calls:
            self._calls.remove(call)
            call.release()

    def reported(self, running: int, asked: tuple[HeldCall, ...]) -> None:
        """Takes the server's number of such calls. ``asked``: those that were held when it was asked; the surplus of
        them has ended. Which ones is not known: the newest are kept, since the rest cost most."""
        for call in asked[: max(0, len(asked) - running)]:
            self.end(call)

    def is_unresponsive(self, ended: int, now: float, after_s: float | None) -> bool:
        """Takes the number of requests that have ended by themselves so far. Returns whether the oldest call goes on,
        and nothing has ended, for ``after_s`` seconds; never for None."""
        if ended != self._ended:
            self._ended, self._progress_at = ended, now
        if after_s is None or not self._calls:
            return False
        return now - max(self._calls[0].at, self._progress_at) >= after_s

    def __repr__(self) -> str:
        return f"<HeldCalls {len(self._calls)}>"
