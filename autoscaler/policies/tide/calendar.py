"""The changes of the last seven days, in bounded memory: one sample every five seconds, two bytes each.

A sample is the change of the level within one horizon, and the row (the state of the load) that it began in. What
repeats every day, or every half hour, is found again at the same distance in the past.
"""

from collections import Counter
from typing import Final

STEP_S: Final = 5
"""Seconds of one sample."""
DAYS: Final = 7
REACH: Final = 6
"""Samples that count before and after the same moment in the past: 30 s."""
SAMPLES: Final = DAYS * 86_400 // STEP_S + 2 * REACH
AROUND: Final = 2 * REACH + 1
HALF_HOURS: Final = 3 * 48
"""Half hours that are looked back at."""
HALF_HOUR_WEIGHT: Final = 0.25
NONE: Final = 0
"""Byte of a sample that is not known."""

_DAY, _HALF_HOUR = 86_400 // STEP_S, 1800 // STEP_S
LAGS: Final = (
    *((day * _DAY, 1.0) for day in range(1, DAYS + 1)),
    *((count * _HALF_HOUR, HALF_HOUR_WEIGHT) for count in range(1, HALF_HOURS + 1) if count % 48),
)
"""(samples back, weight) of the moments that count."""


class Calendar:
    """A ring of samples. A position is a moment in steps of ``STEP_S``."""

    __slots__ = ("_changes", "_first", "_rows", "position")

    def __init__(self) -> None:
        self._changes = bytearray()
        self._rows = bytearray()
        self._first = 0
        """Position of the first sample ever."""
        self.position = -1
        """Position of the newest sample; -1 without one."""

    def write(self, position: int, change: int, row: int) -> None:
        """Writes a sample; samples left out are unknown, one before the newest is dropped. ``change``, ``row``:
        1..255."""
        if position - self.position > SAMPLES:
            self._changes.clear()
            self._rows.clear()
            self.position = -1
        if self.position < 0:
            self._first = position
        elif position <= self.position:
            return
        else:
            self._put(self.position + 1, bytes(position - self.position - 1), bytes(position - self.position - 1))
        self._put(position, bytes((change,)), bytes((row,)))
        self.position = position

    def _put(self, position: int, changes: bytes, rows: bytes) -> None:
        place = (position - self._first) % SAMPLES
        head = SAMPLES - place
        self._changes[place : place + len(changes)] = changes[:head]
        self._rows[place : place + len(rows)] = rows[:head]
        if len(changes) > head:
            self._changes[: len(changes) - head] = changes[head:]
            self._rows[: len(rows) - head] = rows[head:]

    def around(self, now: int, row: int) -> tuple[dict[int, float], float]:
        """Returns ({change: weight}, number of moments) of what followed on states within one row of ``row``, at the
        moments that count, seen from position ``now``."""
        found: dict[int, float] = {}
        oldest, total = max(self._first, self.position - SAMPLES + 1), 0.0
        changes, rows = self._changes, self._rows
        for lag, weight in LAGS:
            first = now - lag - REACH
            if first < oldest or first + AROUND > self.position + 1:
                continue
            place = (first - self._first) % SAMPLES
            seen = zip(changes[place : place + AROUND], rows[place : place + AROUND], strict=True)
            for (change, began), count in Counter(seen).items():
                if change != NONE and -1 <= began - row <= 1:
                    found[change] = found.get(change, 0.0) + weight * count
                    total += weight * count
        return found, total / AROUND

    def __repr__(self) -> str:
        return f"<Calendar {len(self._changes)} samples up to {self.position}>"
