"""RetryBudget: bounds second copies, so that retries never become the load that keeps a function down.

When all replicas fail, clients' requests would each be sent twice: the failure doubles the load that perhaps caused it.
So second copies (retries of what was sent, hedges) are together at most a percentage of the recent requests, plus a
floor for functions with few requests, for which a percentage of nearly nothing would never allow one::

    copies in the last 10 s  <=  percent of the requests in the last 10 s  +  3 per second

Pure: ``now`` in seconds of one clock. The owner adds 1 to ``requests`` for each request and calls ``roll`` at least
once a second, so that a request costs one addition.
"""

from collections import deque
from typing import Final

WINDOW_S: Final = 10
FLOOR_PER_S: Final = 3
"""Our choice: a tenth of the requests of a small function with 30 requests a second."""


class RetryBudget:
    """The second copies of one function's requests through one worker."""

    __slots__ = ("_begun", "_copies", "_past", "_past_copies", "_past_requests", "requests")

    def __init__(self, now: float) -> None:
        self.requests = 0
        """Requests of the present second; the owner counts."""
        self._copies = 0
        self._begun = now
        """When the present second began."""
        self._past: deque[tuple[int, int]] = deque()
        """(requests, copies) of the seconds before, at most ``WINDOW_S - 1``."""
        self._past_requests = self._past_copies = 0

    def roll(self, now: float) -> None:
        """Ends the present second if it is over."""
        passed = int(now - self._begun)
        if passed < 1:
            return
        self._begun += passed
        for _ in range(min(passed, WINDOW_S)):
            self._past.append((self.requests, self._copies))
            self._past_requests += self.requests
            self._past_copies += self._copies
            self.requests = self._copies = 0
            if len(self._past) >= WINDOW_S:
                requests, copies = self._past.popleft()
                self._past_requests -= requests
                self._past_copies -= copies

    def allows(self, percent: float, now: float) -> bool:
        """Returns whether one more copy may be sent now; ``percent`` 0: never."""
        if percent <= 0:
            return False
        self.roll(now)
        allowed = (self._past_requests + self.requests) * percent / 100 + FLOOR_PER_S * WINDOW_S
        return self._past_copies + self._copies + 1 <= allowed

    def spend(self) -> None:
        """Notes that one copy is sent."""
        self._copies += 1

    def __repr__(self) -> str:
        requests, copies = self._past_requests + self.requests, self._past_copies + self._copies
        return f"<RetryBudget {copies} copies of {requests} requests in {WINDOW_S} s>"
