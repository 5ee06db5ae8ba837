"""RoomCalls: the leases through which one gateway worker shares the bounds of waiting rooms with the others."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from time import monotonic
from typing import Final

from tidegate.aio.loop.tasks import TaskOwner
from tidegate.flow.quota import BATCH, QuotaAnswer, QuotaReport
from tidegate.flow.rooms.leases import RoomLeases
from tidegate.gateway.access.quota_pool import ROOMS_PATH, SocketPool
from tidegate.store.counters import SharedPool
from tidegate.store.records import StoreError

Over = Callable[[Sequence[str]], None]
"""Called with the functions of which more waits here than this worker has a part for."""


class RoomCalls:
    """Keeps the leases: exchanges figures with the pool while requests wait."""

    __slots__ = ("_member", "_pool", "_wake", "leases")

    def __init__(self, tasks: TaskOwner, *, address: str, member: str, members: int, over: Over) -> None:
        """``address``: unix socket of the machine's pool; ``member``: a name that no other process has or had."""
        self._pool: SharedPool = SocketPool(address, ROOMS_PATH)
        self._member = member
        self._wake = asyncio.Event()
        self.leases: Final = RoomLeases(members=members, wake=self._wake.set)
        tasks.spawn(self._run(over), name="rooms")

    async def _run(self, over: Over) -> None:
        while True:
            await self._sleep()
            reports = self.leases.take(monotonic())
            try:
                answer = await self._exchange(reports)
            except StoreError:
                found = self.leases.failed(monotonic())
            else:
                found = self.leases.answer(answer)
            if found:
                over(found)

    async def _exchange(self, reports: Sequence[QuotaReport]) -> QuotaAnswer:
        """Exchanges all figures, in as many calls as they need."""
        answer = await self._pool.exchange(self._member, reports[:BATCH])
        for start in range(BATCH, len(reports), BATCH):
            more = await self._pool.exchange(self._member, reports[start : start + BATCH])
            answer = replace(more, grants=answer.grants + more.grants, is_part=answer.is_part or more.is_part)
        return answer

    async def _sleep(self) -> None:
        while (delay := self.leases.next_at() - monotonic()) > 0:
            self._wake.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(delay):
                    await self._wake.wait()

    async def close(self) -> None:
        """Gives back what is leased."""
        reports = self.leases.leave()
        if reports:
            with suppress(StoreError):
                await self._exchange(reports)

    def __repr__(self) -> str:
        return f"<RoomCalls of {self._member}: {self.leases!r}>"
