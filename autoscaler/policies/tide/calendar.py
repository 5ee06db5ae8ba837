"""The changes of the last seven days, in bounded memory: one sample every five seconds, two bytes each.

A sample is the change of the level within one horizon, and the row (the state of the load) that it began in. What
repeats every day, or every half hour, is found again at the same distance in the past.
"""

from typing import Final

import numpy as np

from tidegate.autoscaler.policies.tide.queueing import Vector

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
CHANGES: Final = 256

_DAY, _HALF_HOUR = 86_400 // STEP_S, 1800 // STEP_S
LAGS: Final = (
    *((day * _DAY, 1.0) for day in range(1, DAYS + 1)),
    *((count * _HALF_HOUR, HALF_HOUR_WEIGHT) for count in range(1, HALF_HOURS + 1) if count % 48),
)
"""(samples back, weight) of the moments that count."""
_BACK: Final = np.array([back for back, _ in LAGS])
_WEIGHTS: Final = np.array([weight for _, weight in LAGS])


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

    def around(self, now: int, row: int) -> tuple[Vector, float]:
        """Returns (weight of each change, number of moments) of what followed on states within one row of ``row``, at
        the moments that count, seen from position ``now``."""
        first, oldest = now - REACH - _BACK, max(self._first, self.position - SAMPLES + 1)
        is_kept = (first >= oldest) & (first + AROUND <= self.position + 1)
        if not is_kept.any():
            return np.zeros(CHANGES), 0.0
        places = ((first[is_kept, None] + np.arange(AROUND) - self._first) % SAMPLES).ravel()
        changes, rows = np.frombuffer(self._changes, np.uint8)[places], np.frombuffer(self._rows, np.uint8)[places]
        is_like = (changes != NONE) & (np.abs(rows.astype(np.intp) - row) <= 1)
        weights = np.repeat(_WEIGHTS[is_kept], AROUND)[is_like]
        found = np.asarray(np.bincount(changes[is_like], weights, CHANGES), np.float64)
        return found, float(weights.sum()) / AROUND

    def __repr__(self) -> str:
        return f"<Calendar {len(self._changes)} samples up to {self.position}>"
