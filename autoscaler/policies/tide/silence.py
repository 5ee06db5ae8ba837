"""How often requests come after a silence: what the level, a mean over minutes, does not show of a function that is
seldom used.

For each length of the present silence, in quarters of a factor e, the seconds spent there and the requests that came
one horizon later are counted, with a half-life of three days. Their ratio is the rate at which requests would be late
without a replica. A length that was seldom seen counts with one request more, in as long a time as the silence has
lasted, or as one takes on average: after an hour of silence no request is expected within seconds.

Worked example: bursts of 20 requests that come every 10 minutes, and a start that takes 30 s. After a silence of one
minute nothing has come in all the time that was spent there; after nine minutes 20 requests come in one minute.
"""

import math
from collections import deque
from typing import Final

ROWS_PER_E: Final = 4.0
HALF_LIFE_S: Final = 3 * 86_400.0
HEAVIEST: Final = 1e6
"""Weight of a sample from which on all are scaled back."""


class Silence:
    """The silences of one function, updated once a second."""

    __slots__ = ("_arrivals", "_past", "_rows", "_seconds", "_weight", "seconds")

    def __init__(self) -> None:
        self.seconds = 0
        """Since the last request, or since the beginning."""
        self._rows: dict[int, tuple[float, float]] = {}
        """Weights of the seconds spent in a row, and of the requests one horizon later."""
        self._seconds = self._arrivals = 0.0
        """The same of all rows."""
        self._past: deque[int] = deque()
        """Rows of the last seconds, newest last."""
        self._weight = 1.0
        """Weight of a sample now: it grows instead of letting all others fall."""

    @property
    def row(self) -> int:
        """The row of the present silence."""
        return 1 + int(ROWS_PER_E * math.log(self.seconds)) if self.seconds else 0

    @property
    def rate(self) -> float:
        """Requests per second to expect one horizon from now."""
        if self._arrivals <= 0.0:
            return 0.0
        seconds, arrivals = self._rows.get(self.row, (0.0, 0.0))
        one_s = max(self._seconds / self._arrivals, float(self.seconds))
        return (arrivals / self._weight + 1.0) / (seconds / self._weight + one_s)

    def update(self, arrivals: float, horizon_s: float) -> None:
        """Adds a second with so many requests. ``horizon_s``: time until a replica that is started now helps."""
        steps, past = max(1, round(horizon_s)), self._past
        while len(past) > steps:
            past.popleft()
        if len(past) == steps:
            row, weight = past.popleft(), self._weight
            seconds, came = self._rows.get(row, (0.0, 0.0))
            self._rows[row] = seconds + weight, came + weight * arrivals
            self._seconds += weight
            self._arrivals += weight * arrivals
            self._weight = weight * 2.0 ** (1.0 / HALF_LIFE_S)
            if self._weight > HEAVIEST:
                self._scale_back()
        self.seconds = 0 if arrivals > 0.0 else self.seconds + 1
        past.append(self.row)

    def skip(self, seconds: int) -> None:
        """Passes over seconds in which nothing was seen."""
        self.seconds += seconds
        self._past.clear()

    def _scale_back(self) -> None:
        weight, self._weight = self._weight, 1.0
        self._rows = {row: (seconds / weight, came / weight) for row, (seconds, came) in self._rows.items()}
        self._seconds, self._arrivals = self._seconds / weight, self._arrivals / weight

    def __repr__(self) -> str:
        return f"<Silence of {self.seconds} s, {self.rate:.3g} requests/s expected>"
