"""The three ways into the data plane as a test meets them: a relay in this process, a real queue_proxy, a real gateway.

A door is an address whose every request reaches one backend. Processes run on the loop that is asked for: plain
asyncio is what they take where uvloop cannot be imported, so a folder in front of the path makes it so.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from _pytest.mark.structures import ParameterSet

from tests.support.deadline import Patience
from tests.support.http.loopback import LOOPS, Relay, start_relay
from tests.support.live.live_edge import ROOT, Edge, Replica, edge, table
from tidegate.aio.loop.sockets import host_port
from tidegate.aio.proxy.server import Limits
from tidegate.records.route_table import RouteTable

KINDS = ("gateway", "queue_proxy", "relay")
SELDOM = (("gateway", "asyncio"), ("queue_proxy", "uvloop"))
"""Doors and loops of `.ci/run deep` alone. The same engine stands behind all doors, a gateway has a queue_proxy behind
it, and relays run on both loops: each door and each loop is met every day."""
LIMIT = "4"
"""Slots of a replica: what a case does not give back, the next ones miss."""
BEGUN_S = 10.0
ASKED_TIMES = 500
"""Ten seconds, for the last cancel to be heard on a machine that has other work."""


def ways(kinds: Sequence[str] = KINDS) -> list[ParameterSet]:
    """Returns parameters ``kind, loop``."""
    return [
        pytest.param(kind, loop, id=f"{kind}-{loop}", marks=[pytest.mark.deep] if (kind, loop) in SELDOM else [])
        for kind in kinds
        for loop in sorted(LOOPS)
    ]


@dataclass(slots=True)
class Door:
    """One way in: processes, or a relay."""

    kind: str
    address: tuple[str, int]
    world: Edge | None = None
    replica: Replica | None = None
    relay: Relay | None = None

    @property
    def pids(self) -> list[int]:
        """The processes on the way."""
        if self.world is None:
            return []
        return [worker.pid for worker in self.world.workers] + [one.proxy.pid for one in self.world.replicas]

    async def begun(self, count: int) -> None:
        """Waits until its process has begun, and not ended, so many requests."""
        assert self.world is not None and self.replica is not None
        patience = Patience(BEGUN_S)
        while (found := await self._begun(self.world, self.replica)) != count:
            assert not patience.is_over, f"{found} requests in the place of {count} after {patience}"
            await asyncio.sleep(0.005)

    async def _begun(self, world: Edge, replica: Replica) -> int:
        if self.kind == "gateway":
            return await world.begun()
        sample = await world.sample(replica.admin)
        return int(sample["in_flight"]) + int(sample["queued"])

    async def left_in_flight(self) -> int:
        """Requests that what stands next to the backend still works on, when it has had time to end them."""
        for _ in range(ASKED_TIMES):
            if not await self._in_flight():
                return 0
            await asyncio.sleep(0.02)
        return await self._in_flight()

    async def _in_flight(self) -> int:
        if self.relay is not None:
            return self.relay.app.running
        assert self.world is not None
        assert self.replica is not None
        return int((await self.world.sample(self.replica.admin))["in_flight"])


def use_loop(world: Edge, loop: str) -> None:
    """Makes the processes that ``world`` starts from now on run on ``loop``: ``uvloop`` or ``asyncio``."""
    if loop == "asyncio":
        folder = world.directory / "plain"
        folder.mkdir(exist_ok=True)
        (folder / "uvloop.py").write_text("raise ImportError('hidden by a test')\n")
        world.environment["PYTHONPATH"] = f"{folder}:{ROOT}"


def loop_of(pid: int) -> str:
    """The loop that a process of this package runs on, by what it has mapped."""
    return "uvloop" if "/uvloop/" in Path(f"/proc/{pid}/maps").read_text() else "asyncio"


def default_table(replica: Replica, number: int = 1, **settings: Any) -> RouteTable:
    """The function ``f`` for every host and path."""
    routes = table(number, replica, **settings)
    return RouteTable(
        epoch=routes.epoch, number=number, workers=routes.workers, default="f", functions=routes.functions
    )


@asynccontextmanager
async def door(
    kind: str,
    loop: str,
    upstream: str,
    limits: Mapping[str, Any] | None = None,
    *,
    slots: str = LIMIT,
    route: Mapping[str, Any] | None = None,
    receive_bytes: int = 0,
) -> AsyncIterator[Door]:
    """A door of ``kind`` before the backend at ``upstream``; it and its processes end with the block.

    ``limits`` by the names of ``tidegate.aio.proxy.server.Limits``, ``route``: settings of the function at the
    gateway, ``receive_bytes``: the kernel's buffer of each connection to a process, 0: the system's. A relay runs on
    the loop of the test, whatever ``loop`` says.
    """
    limits = dict(limits or {})
    if kind == "relay":
        relay = await start_relay(upstream, Limits(**limits | {"trusted_proxies": ()}), sweep_s=0.1)
        try:
            yield Door(kind, (relay.host, relay.port), relay=relay)
        finally:
            await relay.close()
        return
    async with edge() as world:
        use_loop(world, loop)
        world.receive_bytes = receive_bytes
        settings = {"TIDEGATE_UPSTREAM": upstream, "TIDEGATE_READINESS_PATH": ""}
        if kind == "queue_proxy":
            settings["TIDEGATE_LIMITS"] = json.dumps(limits)
        replica = world.start_replica(limit=slots, model=False, settings=settings)
        if kind == "queue_proxy":
            await world.replica_ready(replica)
            yield Door(kind, host_port(replica.address), world, replica)
            return
        world.limits = limits
        world.start_gateway()
        await asyncio.gather(world.gateway_ready(), world.replica_ready(replica))
        await world.put_table(default_table(replica, **(route or {})))
        yield Door(kind, ("127.0.0.1", world.port), world, replica)
