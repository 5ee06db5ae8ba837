"""TokenBucket: a rate with a burst. ``rate`` tokens a second flow in, at most ``burst`` are kept.

Pure: ``now`` in seconds of one clock. Over any time ``t`` at most ``burst + rate * t`` tokens are taken.
"""

import math
from typing import Final

_DUST: Final = 1e-9
"""Sums of fractions that should be whole: ten times a tenth of a token is a token."""


class TokenBucket:
    __slots__ = ("_at", "_tokens", "burst", "rate")

    def __init__(self, rate: float, burst: float, now: float) -> None:
        """Begins full."""
        if not (rate >= 0 and burst > 0 and math.isfinite(rate + burst)):
            raise ValueError(f"a bucket has a rate of at least 0 and a burst above 0, got {rate} and {burst}")
        self.rate = rate
        self.burst = burst
        self._tokens = float(burst)
        self._at = now

    def take(self, amount: float, now: float) -> bool:
        """Takes ``amount`` if all of it is there."""
        self._fill(now)
        if amount > self._tokens + _DUST:
            return False
        self._tokens -= amount
        return True

    def settle(self, difference: float, now: float) -> None:
        """What was taken proves to be more (positive: may be owed) or less (given back, never above the burst)."""
        self._fill(now)
        self._tokens = min(self.burst, self._tokens - difference)

    def wait_s(self, amount: float, now: float) -> float:
        """How long until ``amount`` is there if nobody else takes; infinite: never."""
        self._fill(now)
        missing = amount - self._tokens
        if missing <= _DUST:
            return 0.0
        if amount > self.burst or self.rate == 0:
            return math.inf
        return missing / self.rate

    def _fill(self, now: float) -> None:
        if now > self._at:
            self._tokens = min(self.burst, self._tokens + (now - self._at) * self.rate)
            self._at = now

    def __repr__(self) -> str:
        return f"<TokenBucket {self._tokens:g}/{self.burst:g}, {self.rate:g}/s>"
