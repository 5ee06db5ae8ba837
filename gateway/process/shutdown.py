"""Shutdown: the end of a gateway worker, by a drain or because a successor took its socket over."""

import asyncio
import contextlib
from time import monotonic

from tidegate.aio.loop.tasks import TaskOwner
from tidegate.aio.proxy.server import ProxyServer
from tidegate.gateway.core import GatewayCore
from tidegate.gateway.process.front_door import FrontDoor

GRACE_S = 300.0
"""Longest drain: the longest default timeout. The control process may end it sooner."""
SETTLE_S = 1.0
"""Time between the last accept of a worker that retires and the first check whether it is empty: connections may be in
their handshake or before their first request. Our choice."""
LAST_SAMPLE_S = 3.0
"""Time for the control process to fetch the last counters of a retired worker; it pulls them once a second."""


class Shutdown:
    """Lets one worker finish what it has, once; ``stopped`` is set then."""

    __slots__ = ("_core", "_ending", "_front_door", "_is_retired", "_is_signalled", "_sampled", "_tasks", "stopped")

    def __init__(self, core: GatewayCore, front_door: FrontDoor, tasks: TaskOwner) -> None:
        self._core = core
        self._front_door = front_door
        self._tasks = tasks
        self._ending: asyncio.Task[None] | None = None
        self._is_signalled = False
        self._sampled = asyncio.Event()
        self._is_retired = False
        """All that it had is answered; its next sample is the last one."""
        self.stopped = asyncio.Event()

    def signalled(self) -> None:
        """Handles a signal: the first one drains, also a worker that retires or drains already; the second one ends it
        at once."""
        if self._is_signalled:
            self.stopped.set()
        self._is_signalled = True
        self.drain()

    def drain(self) -> None:
        """Stops accepting; every accepted request is answered, then the process ends."""
        self._core.leave(is_draining=True)
        server = self._front_door.server
        if self._ending is None and server is not None:
            self._ending = self._tasks.spawn(self._finish(server), name="drain")

    async def _finish(self, server: ProxyServer) -> None:
        try:
            until = monotonic() + GRACE_S
            await server.drain(GRACE_S)
            await self._end_jobs(until)
        finally:
            self.stopped.set()

    def retire(self) -> None:
        """Leaves the socket to a successor that accepts on it now.

        This worker finishes its requests, streams and tunnels too, for as long as a stream may last, and gives a last
        sample. The deployment does not end: health stays good.
        """
        server = self._front_door.server
        if self._ending is None and server is not None:
            self._ending = self._tasks.spawn(self._hand_over(server), name="retire")

    async def _hand_over(self, server: ProxyServer) -> None:
        try:
            server.stop_accepting()
            server.draining = True
            self._core.leave(is_draining=False)
            await asyncio.sleep(SETTLE_S)
            until = monotonic() + server.limits.stream_total_s
            await server.drain(server.limits.stream_total_s)
            await self._end_jobs(until)
            self._is_retired = True
            self._sampled.clear()
            async with asyncio.timeout(LAST_SAMPLE_S):
                await self._sampled.wait()
        except TimeoutError:
            pass  # No sample was fetched: there is no control process just now.
        finally:
            self.stopped.set()

    def sampled(self) -> bool:
        """The control process gets the counters of now. Returns whether these are the last ones."""
        self._sampled.set()
        return self._is_retired

    async def _end_jobs(self, until: float) -> None:
        """Waits until the jobs of this worker are over, at most until then (seconds of ``time.monotonic``)."""
        is_over = asyncio.Event()
        self._core.jobs.on_empty = is_over.set
        if self._core.jobs.live:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(until - monotonic()):
                    await is_over.wait()

    def __repr__(self) -> str:
        return f"<Shutdown {'not begun' if self._ending is None else 'under way'}>"
