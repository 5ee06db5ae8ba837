"""How much the processes of a door grow while clients are slow or greedy: resident memory, read from the kernel.

A process that has just started takes its first pages and buffers by any load at all, so a scene begins when its door is
warmed up; growth counts from there to the worst moment.
"""

import asyncio
import socket
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any, Protocol, TypeVar

import pytest

from tests.support.deadline import Patience
from tests.support.http.doors import Door, door
from tests.support.http.loopback import run_on
from tests.support.http2.live import Address, H2Client, connect, rss_mb

KINDS = ("gateway", pytest.param("queue_proxy", marks=pytest.mark.deep))
"""Of doors; a gateway has a queue_proxy behind it, whose memory counts as well."""
SLOTS = "2000"
FLOODS = 50
"""Connections that flood at once."""
FLOOD_S = 1.0
SEND_BYTES, RECEIVE_BYTES = 1 << 16, 1 << 18
"""Of the kernel's buffers of a connection: one read of a process is at most the second, and whatever both still hold at
the end of a flood is read, too."""
SERVED_TRIES = 5


class Scene(ABC):
    """A door, its clients, and how much its processes have grown."""

    greeting = b""
    """What each connection begins with."""

    def __init__(self, way: Door) -> None:
        self.address: Address = way.address
        self._way = way
        self._clients: list[H2Client] = []
        self._before: dict[int, float] = {}
        self._most = 0.0

    def __repr__(self) -> str:
        return f"<Scene grown by {self._most:.0f} MB>"

    @abstractmethod
    async def warm_up(self) -> None:
        """Makes the door serve as much as its first pages and buffers take."""

    @abstractmethod
    async def is_served(self) -> bool:
        """Whether a valid request is answered."""

    async def connect(self) -> H2Client:
        """A connection that ends with the scene, if not before."""
        client = await connect(self.address)
        self._clients.append(client)
        return client

    async def leave(self) -> None:
        """Ends all connections."""
        for client in self._clients:
            client.transport.abort()
        self._clients.clear()
        await asyncio.sleep(0.02)

    async def settles(self) -> None:
        """All that was begun has been taken back, and the door serves."""
        assert await self._way.left_in_flight() == 0
        for _ in range(SERVED_TRIES):  # what the sockets of a flood still hold is read first
            if await self.is_served():
                return
        raise AssertionError("a valid request is not answered")

    def begin(self) -> None:
        self._before = {pid: rss_mb([pid]) for pid in self._way.pids}
        self._most = 0.0

    def grown(self) -> float:
        """MB, of the process that grew most, at the worst moment so far."""
        self._most = max(self._most, *(rss_mb([pid]) - before for pid, before in self._before.items()))
        return self._most

    async def watched(self, seconds: float) -> None:
        """Lets time pass by the clock and looks at the memory meanwhile."""
        end = asyncio.get_running_loop().time() + seconds
        while asyncio.get_running_loop().time() < end:
            await asyncio.sleep(0.02)
            self.grown()

    async def watched_until(self, enough: Callable[[], bool], limit_s: float) -> None:
        """The same until the condition holds, or the limit is over."""
        patience = Patience(limit_s)
        while not patience.is_over and not enough():
            await asyncio.sleep(0.02)
            self.grown()

    async def flooded(self, pieces: Callable[[], Iterator[bytes]]) -> None:
        """Clients send ``pieces`` as fast as the sockets take them and do not mind being cut off. Every other one does
        not read: the answers that it does not take must not pile up."""
        end = asyncio.get_running_loop().time() + FLOOD_S
        async with asyncio.TaskGroup() as group:
            floods = [group.create_task(self._flood(pieces, number % 2 == 0, end)) for number in range(FLOODS)]
            await self.watched(FLOOD_S)
        await self.watched(0.3)
        assert sum(task.result() for task in floods) >= FLOODS

    async def _flood(self, pieces: Callable[[], Iterator[bytes]], reads: bool, end: float) -> int:
        """One client that floods, on another connection whenever it is cut off; how many it had."""
        used = 0
        clock = asyncio.get_running_loop().time
        while clock() < end:
            client = await self.connect()
            client.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BYTES)
            used += 1
            if not reads:
                client.transport.pause_reading()
            client.write(self.greeting)
            for piece in pieces():
                client.write(piece)
                with suppress(TimeoutError):
                    await client.drain(max(0.0, end - clock()))
                await asyncio.sleep(0)
                if client.closed or clock() >= end:
                    break
            client.transport.abort()
        return used


class Backend(Protocol):
    """What stands behind the door."""

    async def start(self) -> str:
        """Listens; the address."""

    async def close(self) -> None: ...


AnyScene = TypeVar("AnyScene", bound=Scene)


def play(
    kind: str,
    backend: Backend,
    limits: Mapping[str, Any],
    make: Callable[[Door], AnyScene],
    scenario: Callable[[AnyScene], Awaitable[None]],
) -> None:
    """Runs the scenario at a warm door, which serves afterwards, too."""

    async def main() -> None:
        address = await backend.start()
        async with (
            asyncio.timeout(100),
            door(kind, "uvloop", address, limits, slots=SLOTS, receive_bytes=RECEIVE_BYTES) as way,
        ):
            found = make(way)
            try:
                await found.warm_up()
                await found.settles()
                found.begin()
                await scenario(found)
                print(kind, found)  # noqa: T201
                await found.settles()
            finally:
                await found.leave()
                await backend.close()

    run_on("uvloop", main())
