"""Limits of one HTTP/2 connection. A breach is answered with ENHANCE_YOUR_CALM, except for surplus streams."""

from typing import Final

STREAMS: Final = 100
"""Maximum concurrent streams on one connection of a client."""
STREAM_WINDOW: Final = 1 << 16
"""Initial window of a stream: the memory of a connection without readers is at most the number of streams times this.
It equals a client's own window by default; a window grows only while its data is read."""
WIDER_WINDOWS: Final = ((1 << 17, 1 << 18), (1 << 19, 1 << 20))
"""Consumed bytes of a stream, and its window from then on. Our choice: large messages flow without pauses once they are
read."""
FRAME_BYTES: Final = 1 << 18
"""Maximum accepted frame: that of one read."""
BLOCK_BYTES: Final = 64 * 1024
"""Maximum size of HEADERS with its CONTINUATION."""
CONTROL_RATE: Final = 200.0
CONTROL_BURST: Final = 1000.0
"""Maximum frames without content (PING, SETTINGS, PRIORITY, CONTINUATION, empty DATA, unknown ones): a rate per second,
and a burst above it. Each head and each piece of a body allows one more: peers measure their bandwidth with PINGs."""
RESET_RATE: Final = 100.0
RESET_BURST: Final = 2.0 * STREAMS
"""Maximum resets that a client sends or causes. The burst is twice what it may cancel by closing all its open
streams."""
TRUSTED: Final = 1000.0
"""Factor on the limits of an upstream, or of a proxy of this deployment, which stands for many clients."""
WIDE_BYTES: Final = 32 << 20
"""Maximum bytes of all streams of a process beyond their initial windows: with this many in use, windows stay as they
are."""


class Windows:
    """The remaining part of WIDE_BYTES; shared by the engines of a process."""

    __slots__ = ("left",)

    def __init__(self, left: int = WIDE_BYTES) -> None:
        self.left = left

    def __repr__(self) -> str:
        return f"<Windows {self.left} bytes left>"


class Allowance:
    """A token bucket: a rate per second and a burst."""

    __slots__ = ("_at", "_burst", "_rate", "level")

    def __init__(self, rate: float, burst: float) -> None:
        self._rate = rate
        self._burst = self.level = burst
        self._at: float | None = None

    def take(self, now: float) -> bool:
        """Takes one; returns whether it was allowed."""
        since = 0.0 if self._at is None else now - self._at
        self._at = now
        self.level = min(self._burst, self.level + since * self._rate) - 1.0
        return self.level >= 0.0
