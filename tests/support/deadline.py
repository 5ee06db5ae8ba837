"""How long tests wait for what must happen: a limit for a machine that has time for them.

Live tests share two processors with what they test, and with whatever else the machine does. Linux counts the time in
which somebody had to wait for a processor (pressure stall information, ``/proc/pressure/cpu``); those seconds do not
count here. So a limit stays as tight as it says where the machine is free, and holds where it is not.
"""

import asyncio
import re
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

MOST = 10.0
"""However busy the machine is, a limit is over after so many times its seconds."""
LOOK_S = 0.05
_PRESSURE = Path("/proc/pressure/cpu")
_TOTAL = re.compile(r"^some .*total=(\d+)", re.MULTILINE)


def starved_s() -> float:
    """Seconds since the machine started in which a process waited for a processor; 0.0 where they are not counted."""
    try:
        found = _TOTAL.search(_PRESSURE.read_text())
    except OSError:  # no Linux, or one that does not count
        return 0.0
    return 0.0 if found is None else int(found[1]) / 1e6


class Patience:
    """One limit in seconds, from now on."""

    def __init__(
        self, limit_s: float, *, clock: Callable[[], float] = time.monotonic, starved: Callable[[], float] = starved_s
    ) -> None:
        self.limit_s = limit_s
        self._clock, self._starved = clock, starved
        self._begun, self._starved_before = clock(), starved()

    @property
    def is_over(self) -> bool:
        passed = self._clock() - self._begun
        if passed <= self.limit_s:
            return False
        return passed > MOST * self.limit_s or passed - (self._starved() - self._starved_before) > self.limit_s

    @property
    def passed_s(self) -> float:
        """By the clock."""
        return self._clock() - self._begun

    def __str__(self) -> str:
        """For a test that gives up."""
        return f"{self.limit_s:g} s ({self.passed_s:.1f} s by the clock)"


@asynccontextmanager
async def within(limit_s: float) -> AsyncIterator[None]:
    """``asyncio.timeout`` by such a limit: raises TimeoutError when it is over."""
    deadline = Patience(limit_s)
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(None) as scope:

        def look() -> None:
            if deadline.is_over:
                scope.reschedule(loop.time())
            else:
                timers[:] = [loop.call_later(LOOK_S, look)]

        timers = [loop.call_later(LOOK_S, look)]
        try:
            yield
        finally:
            timers[0].cancel()
