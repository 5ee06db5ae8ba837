"""Publishes the route table to the gateway workers, and reports changes to watchers."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import replace
from typing import Protocol

from tidegate.aio.loop.tasks import TaskOwner
from tidegate.clock import Clock
from tidegate.control.rounds.tracked import TrackedRevision
from tidegate.control.rounds.weights import GroupWeights
from tidegate.control.rounds.world import World
from tidegate.control.state.notices import ChangeSignal
from tidegate.function import Function
from tidegate.records.roles import Role
from tidegate.records.route_table import RouteTable
from tidegate.traffic.table import TableBuilder

Fetch = Callable[[], Awaitable[bytes]]


class Gateways(Protocol):
    """The gateway workers."""

    def sources(self) -> Mapping[str, Fetch]:
        """Returns a ``GET /sample`` call for each worker that can be reached, by name."""
        ...

    def versions(self) -> Iterable[tuple[int, int]]:
        """Returns the version of the route table that each worker last reported to work from."""
        ...

    async def publish(self, table: RouteTable) -> None: ...


class Publisher:
    """Builds a route table from the world on request, and sends it if it changed."""

    def __init__(
        self,
        *,
        world: World,
        weights: GroupWeights,
        tables: TableBuilder,
        gateways: Gateways,
        scaled: Callable[[Function], Function],
        changes: ChangeSignal,
        clock: Clock,
        tasks: TaskOwner,
    ) -> None:
        """``scaled``: returns a function with the SLA that it is scaled by; a pipeline's stage has a budget."""
        self._world = world
        self._weights = weights
        self._tables = tables
        self._gateways = gateways
        self._scaled = scaled
        self._changes = changes
        self._clock = clock
        self._tasks = tasks
        self._published: RouteTable | None = None
        self._publishing = asyncio.Lock()
        self._requested = self._served = 0
        """The number of calls to :meth:`publish`, and how many of them the last table was built for."""

    @property
    def table(self) -> RouteTable | None:
        """The newest route table."""
        return self._published

    def first(self) -> RouteTable:
        """Builds the table that the workers start with."""
        self._published = self._build()
        return self._published

    def publish_soon(self) -> None:
        self._tasks.spawn(self.publish(), name="publish")

    async def publish(self) -> None:
        """Sends the newest route table to the workers if it changed. Of several calls that wait, the first builds the
        table for all."""
        self._requested += 1
        requested = self._requested
        async with self._publishing:
            if self._served >= requested:
                return
            await asyncio.sleep(0)  # further calls of this moment are served too
            requested, before = self._requested, self._published
            table = self._build()
            self._published = table
            for tracked in self._world.revisions:
                if tracked.role is Role.RETIRED and tracked.left_in is None:
                    tracked.left_in = table.version
            if table is not before:
                await self._gateways.publish(table)
            self._served = requested

    def announce(self) -> None:
        """Sends the newest views to watchers."""
        self._changes.fire()

    @property
    def is_in_force(self) -> bool:
        """Whether each worker works from the newest table."""
        published = (0, 0) if self._published is None else self._published.version
        return all(version >= published for version in self._gateways.versions())

    def is_left(self, tracked: TrackedRevision) -> bool:
        """Returns whether each worker works from a table that gives a retired revision no new requests."""
        left_in = tracked.left_in
        return left_in is not None and all(version >= left_in for version in self._gateways.versions())

    def _build(self) -> RouteTable:
        world, replicas = self._world, self._world.backend.replicas()
        served = self._weights.served(
            world.registry.all(), world.revisions, replicas, world.backend.failure, self._clock.now()
        )
        found = []
        for each in served:
            function = self._scaled(each.function)
            found.append(each if function is each.function else replace(each, function=function))
        return self._tables.build(found, replicas)

    def __repr__(self) -> str:
        return (
            f"<Publisher {self._published!r}>" if self._published is None else f"<Publisher {self._published.version}>"
        )
