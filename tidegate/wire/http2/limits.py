"""What one HTTP/2 connection may ask of us. A breach is answered with ENHANCE_YOUR_CALM, but for surplus streams."""

from typing import Final

STREAMS: Final = 100
"""Open at once on one connection of a client."""
STREAM_WINDOW: Final = 1 << 16
"""What a stream may hold here at first: as many as there may be with nobody who reads them, times this, is what they
take. So much is a client's own window by default: who reads no further does not make it wider."""
WIDER_WINDOWS: Final = ((1 << 17, 1 << 18), (1 << 19, 1 << 20))
"""Bytes that a stream has passed on, and its window from then on. Our choice: large messages flow without pauses once
somebody takes them."""
FRAME_BYTES: Final = 1 << 18
"""Largest frame that we take: that of one read."""
BLOCK_BYTES: Final = 64 * 1024
"""Of HEADERS with its CONTINUATION."""
CONTROL_RATE: Final = 200.0
CONTROL_BURST: Final = 1000.0
"""Frames that carry nothing (PING, SETTINGS, PRIORITY, CONTINUATION, empty DATA, unknown ones) per second, and above
that at once. Each head and each piece of a body allows one more: peers measure their bandwidth with PINGs."""
RESET_RATE: Final = 100.0
RESET_BURST: Final = 2.0 * STREAMS
"""Resets of a client, or that it makes us send: as many at once as it may cancel by closing all it has open, twice."""
TRUSTED: Final = 1000.0
"""So many times as much may come from an upstream, or from a proxy of ours that stands for many clients."""
WIDE_BYTES: Final = 32 << 20
"""What all streams of a process may have beyond their first windows: with so many in use, windows stay as they are."""


class Windows:
    """What is left of WIDE_BYTES; shared by the engines of a process."""

    __slots__ = ("left",)

    def __init__(self, left: int = WIDE_BYTES) -> None:
        self.left = left

    def __repr__(self) -> str:
        return f"<Windows {self.left} bytes left>"


class Allowance:
    """So many per second, and some at once."""

    __slots__ = ("_at", "_burst", "_rate", "level")

    def __init__(self, rate: float, burst: float) -> None:
        self._rate = rate
        self._burst = self.level = burst
        self._at: float | None = None

    def take(self, now: float) -> bool:
        """Whether one more is allowed."""
        since = 0.0 if self._at is None else now - self._at
        self._at = now
        self.level = min(self._burst, self.level + since * self._rate) - 1.0
        return self.level >= 0.0
