"""One speaker, any number of listeners: the lines of an endless NDJSON stream."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator

KEPT_LINES = 256
"""A listener that does not read loses the oldest lines: every stream here repeats its level or its last state."""


class Broadcast:
    """Delivers lines to all present listeners."""

    __slots__ = ("_listeners",)

    def __init__(self) -> None:
        self._listeners: set[_Subscriber] = set()

    def publish(self, line: bytes) -> None:
        """Hands one line (with its line end) to every listener; never blocks."""
        for listener in self._listeners:
            listener.lines.append(line)
            listener.arrived.set()

    async def listen(self, first: bytes = b"") -> AsyncGenerator[bytes, None]:
        """``first`` at once if not empty, then every line published from now on, until closed."""
        listener = _Subscriber()
        self._listeners.add(listener)
        try:
            if first:
                yield first
            while True:
                await listener.arrived.wait()
                listener.arrived.clear()
                while listener.lines:
                    yield listener.lines.popleft()
        finally:
            self._listeners.discard(listener)

    def __len__(self) -> int:
        return len(self._listeners)

    def __repr__(self) -> str:
        return f"<Broadcast to {len(self._listeners)}>"


class _Subscriber:
    __slots__ = ("arrived", "lines")

    def __init__(self) -> None:
        self.lines: deque[bytes] = deque(maxlen=KEPT_LINES)
        self.arrived = asyncio.Event()
