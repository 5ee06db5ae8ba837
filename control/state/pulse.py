"""Something changed: for streams that tell a watcher the newest state, as often as is useful and no oftener."""

import asyncio


class ChangeSignal:
    """Counts changes. Whoever has seen ``beat`` changes waits for the next one, and misses none in between."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self.beat = 0
        self.has_ended = False

    def fire(self) -> None:
        self.beat += 1
        event, self._event = self._event, asyncio.Event()
        event.set()

    def end(self) -> None:
        """No change will follow: waiters return, and so does every later wait."""
        self.has_ended = True
        self.fire()

    async def after(self, beat: int) -> None:
        """Returns when more than ``beat`` changes have happened: at once if they have already."""
        if self.beat <= beat and not self.has_ended:
            await self._event.wait()

    def __repr__(self) -> str:
        return f"<Pulse {self.beat}{' ended' if self.has_ended else ''}>"
