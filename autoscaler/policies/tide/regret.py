"""What was given up on a steady load and started again at the same level is held for longer each time.

Two sizes that cost nearly the same change places again and again: the level is a hair from the step between them, or
the price of a late request falls until the last replica goes, and rises until it is back. Each change pays a start. The
time for which a size is held after it was started again is multiplied with each time, so that a steady load has few
starts however long it lasts. A level that has moved by more than chance begins again. Nothing is held where shorter
windows contradict the longest one for more than chance explains: replicas come and go for the bursts of such a load.

Worked example: seven replicas do by a hair. The eighth goes, and comes back an hour later: it is held for five
minutes. It goes and comes back again: it is held for half an hour, then for eighteen hours.
"""

import math
from typing import Final

from tidegate.autoscaler.policies.tide.level import SIGMAS, Level

HOLD_S: Final = 300.0
"""Time for which a size is held that was started again once."""
LONGER: Final = 6.0
"""Factor from the first time to the second. The next factor is its square: five minutes, half an hour, eighteen hours.
A day has three such times at most."""

MEMORY_S: Final = 3 * 3600.0
"""Time constant of the part of the time in which a shorter window contradicts the longest one."""
STEADY: Final = 0.1
"""That part up to which a load is steady. Chance contradicts for eight minutes, some times a day: a twentieth of the
memory each."""


class Regret:
    """What is held since it was started again. Sizes in slots; times in seconds."""

    __slots__ = ("_at", "_before", "_contradicted", "_slots", "_until", "times")

    def __init__(self) -> None:
        self._at: tuple[float, float] | None = None
        """(level, window) at which a size was given up first."""
        self._before = self._slots = 0.0
        self._until = -math.inf
        self._contradicted = 0.0
        """Part of the time in which a shorter window contradicts the longest one."""
        self.times = 0
        """How often a size was started again since."""

    def held(self, level: Level, now: float) -> tuple[float, float]:
        """Returns (slots, how long they are held still), or zeros. Forgets all if the level is another one."""
        if self._at is None:
            return 0.0, 0.0
        then, window_s = self._at
        error = math.hypot(level.error(level.level, level.window_s), level.error(then, window_s))
        if abs(level.level - then) > SIGMAS * error or self._contradicted > STEADY:
            self._at, self._until, self.times = None, -math.inf, 0
        return (self._slots, self._until - now) if now < self._until else (0.0, 0.0)

    def update(self, level: Level, slots: float, least: float, now: float) -> None:
        """Adds the size that was chosen at ``now``. ``least``: difference from which on it is another one."""
        before, self._before = self._before, slots
        is_steady = level.is_steady
        self._contradicted += ((not is_steady) - self._contradicted) / MEMORY_S
        if not is_steady:
            return
        if slots < before - least:
            self._at = self._at or (level.level, level.window_s)
        elif slots > before + least and self._at is not None:
            self._slots, self._until = slots, now + HOLD_S * LONGER ** (self.times * (self.times + 1) / 2)
            self.times += 1

    def __repr__(self) -> str:
        return f"<Regret of {self.times} starts, {self._slots:.3g} slots>"
