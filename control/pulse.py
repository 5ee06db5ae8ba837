"""Something changed: for streams that tell a watcher the newest state, as often as is useful and no oftener."""

import asyncio


class Pulse:
    """Fired at every change; each waiter is woken once and reads the newest state itself."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self._ended = False

    @property
    def has_ended(self) -> bool:
        return self._ended

    def fire(self) -> None:
        event, self._event = self._event, asyncio.Event()
        event.set()

    def end(self) -> None:
        """No change will follow: waiters return, and so does every later wait."""
        self._ended = True
        self.fire()

    async def wait(self) -> None:
        if not self._ended:
            await self._event.wait()

    def __repr__(self) -> str:
        return f"<Pulse{' ended' if self._ended else ''}>"
