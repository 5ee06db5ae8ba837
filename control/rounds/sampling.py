"""Sampling: calls workers and replicas for their samples, and passes these on to all that measure and learn.

Replicas are sampled over a link each, which stays open while the replica is ready or drains. The same links carry the
learnt concurrency limits back.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Protocol

from tidegate.aio.loop.tasks import TaskOwner
from tidegate.autoscaler.live import LiveAutoscaler
from tidegate.autoscaler.measure.observation import AcceleratorRoom
from tidegate.autoscaler.profiles.admission import UNKNOWN
from tidegate.clock import Clock
from tidegate.control.rounds.publisher import Gateways
from tidegate.control.rounds.recording import record
from tidegate.control.rounds.tracked import TrackedRevision
from tidegate.control.rounds.weights import GroupWeights
from tidegate.control.rounds.world import World
from tidegate.control.watch.instruments import Instruments
from tidegate.control.watch.profiles import LearnedProfiles
from tidegate.control.workers.links import Link
from tidegate.deploy.backend import ReplicaStatus
from tidegate.deploy.placement.ledger import Accelerator, Room, part_of
from tidegate.function import Function
from tidegate.records.gateway_sample import GatewaySample
from tidegate.records.replica_sample import ReplicaSample
from tidegate.records.replica_state import ReplicaState


class ReplicaLink(Protocol):
    """A link to a queue_proxy's admin endpoint."""

    async def get(self, path: str) -> bytes: ...

    async def post(self, path: str, body: bytes = b"") -> bytes: ...

    async def close(self) -> None: ...


Reach = Callable[[str, str], ReplicaLink]
"""(replica, address of its admin endpoint) -> a link to it."""


class Sampling:
    """Owns the links to the replicas. Samples come back through :meth:`gateway_seen` and :meth:`replica_seen`."""

    def __init__(
        self,
        *,
        world: World,
        autoscaler: LiveAutoscaler,
        profiles: LearnedProfiles,
        weights: GroupWeights,
        instruments: Instruments,
        gateways: Gateways,
        clock: Clock,
        tasks: TaskOwner,
        reach: Reach = Link,
    ) -> None:
        self._world = world
        self._live = autoscaler
        self._autoscaler = autoscaler.core
        self._profiles = profiles
        self._weights = weights
        self._instruments = instruments
        self._gateways = gateways
        self._clock = clock
        self._tasks = tasks
        self._reach = reach
        self._links: dict[str, ReplicaLink] = {}
        self._devices: tuple[Accelerator, ...] = ()
        self._rooms: dict[str, tuple[Mapping[str, Room], list[AcceleratorRoom]]] = {}
        """By revision: places as last seen, and what the autoscaler was given for them."""

    async def close(self) -> None:
        """Writes down what was learnt and closes the links."""
        await self._profiles.close()
        self._live.close()
        for link in self._links.values():
            await link.close()
        self._links.clear()

    # --- each second ---

    async def pull(self, began: float) -> None:
        """Reads devices, workers and replicas, and gives the autoscaler what it decides from."""
        await self._follow_replicas()
        backend, instruments = self._world.backend, self._instruments
        reading = instruments.gpus.measure(backend.replicas(), backend.devices(), began)
        self._tasks.spawn(reading, name="gpus")
        instruments.cpus.measure(backend.replicas(), began)
        if instruments.units is not None:
            devices = instruments.gpus.devices
            instruments.units.measure(backend.devices(), backend.replicas(), instruments.cpus.percent, devices, began)
        instruments.costs.observe(backend.replicas(), backend.devices(), self._world.registry, began)
        await self._live.sample()
        self._set_fleet()

    async def learn(self, now: float) -> None:
        """Adjusts the learnt limits from the samples of this second, and sends them to the replicas."""
        await self._profiles.review(now, self._instruments.traffic.all_waiting())
        self._send_limits(self._world.backend.replicas())

    async def record(self) -> None:
        """Writes this second into the time series."""
        measured = self._instruments
        await record(self._world, self._autoscaler, self._weights, measured.traffic, measured.history, self._clock)

    async def _follow_replicas(self) -> None:
        there = self._world.sample_replicas()
        for name in self._links.keys() - there.keys():
            await self._links.pop(name).close()
        for status in there.values():
            self._link_to(status)
        replicas = {name: _sample_of(link) for name, link in self._links.items()}
        self._live.sources(self._gateways.sources(), replicas)

    # --- the autoscaler's view of the fleet ---

    def _set_fleet(self) -> None:
        rooms = {
            tracked.id: self._rooms_of(tracked)
            for tracked in self._world.revisions
            if not tracked.record.function.is_pipeline
        }
        self._autoscaler.fleet.put(self._world.backend.replicas(), rooms)

    def set_fleet_of(self, tracked: TrackedRevision) -> None:
        """Updates one revision's fleet: an activation cannot wait until all others are counted."""
        self._autoscaler.fleet.put_one(tracked.id, self._world.replicas_of(tracked.id), self._rooms_of(tracked))

    def _rooms_of(self, tracked: TrackedRevision) -> list[AcceleratorRoom]:
        """Returns the accelerators that the revision may use, cheapest first; the same list until something changes."""
        devices, places = self._world.backend.devices(), self._world.places(tracked, self._clock.now())
        if devices != self._devices:
            self._devices, self._rooms = devices, {}
        known = self._rooms.get(tracked.id)
        if known is not None and known[0] == places:
            return known[1]
        function = tracked.record.revision.function
        prices = {each.name: each.price_per_hour * part_of(function, each) for each in devices}
        rooms = []
        for name, room in places.items():
            given = self._profiles.given(tracked.id, name) or UNKNOWN
            rooms.append(
                AcceleratorRoom(
                    accelerator=name,
                    room=room.free,
                    price_per_hour=prices.get(name),
                    mu_ips=given.mu_ips,
                    one_s=given.one_s,
                )
            )
        self._rooms[tracked.id] = places, rooms
        return rooms

    # --- samples ---

    def gateway_seen(self, sample: GatewaySample) -> None:
        """Takes a sample of a gateway worker."""
        self._instruments.traffic.record(sample, self._clock.now())
        self._instruments.costs.gateway_seen(sample)
        for seen in sample.cold_starts:
            self._instruments.cold_starts.answered(seen)

    def replica_seen(self, sample: ReplicaSample) -> None:
        """Takes a sample of a queue_proxy."""
        status = self._world.sampled.get(sample.replica)
        if status is None:
            return
        self._instruments.costs.replica_seen(sample, status, self._clock.now())
        before = self._world.samples.get(sample.replica)
        self._world.samples[sample.replica] = sample
        if before is not None and before.incarnation != sample.incarnation:
            before = None
        if sample.boost > 1:
            return  # Rates with borrowed cores are not those of the group.
        self._profiles.measured(before, sample, status.accelerator)
        if before is not None:
            self._weights.measured(before, sample, status.accelerator)

    async def expositions(self) -> dict[str, bytes | None]:
        """Returns the Prometheus text of each queue_proxy, those included that no round has sampled; None: it did not
        answer."""
        links = {each.id: self._link_to(each) for each in self._world.to_sample()}
        texts = await asyncio.gather(*(link.get("/metrics") for link in links.values()), return_exceptions=True)
        return {name: text if isinstance(text, bytes) else None for name, text in zip(links, texts, strict=True)}

    # --- replicas and revisions that come and go ---

    def send_limit(self, status: ReplicaStatus) -> None:
        """Sends a replica that has just become ready the learnt limit of its group, if that is another one."""
        self._send_limits((status,))

    def _send_limits(self, replicas: tuple[ReplicaStatus, ...]) -> None:
        ready = (each for each in replicas if each.state is ReplicaState.READY)
        for status, limit in self._profiles.orders(ready, self._world.samples):
            self._tasks.spawn(self._profiles.order(self._link_to(status), limit), name=f"limit {status.id}")

    def _link_to(self, status: ReplicaStatus) -> ReplicaLink:
        """Returns the link to a replica's queue_proxy, which it opens if there is none."""
        link = self._links.get(status.id)
        if link is None:
            link = self._links[status.id] = self._reach(status.id, status.admin)
        return link

    def deployed(self, functions: Iterable[Function]) -> None:
        self._autoscaler.pipelines(functions)

    def tracked(self, tracked: TrackedRevision, *, fresh: bool, ready: int) -> None:
        if tracked.record.function.is_pipeline:
            return  # It has no replicas: its stages are scaled.
        self._autoscaler.apply(tracked.record.revision, fresh=fresh, ready=ready)
        self._profiles.track(tracked.record.revision)

    def forgotten(self, revision: str) -> None:
        self._profiles.forget(revision)
        self._rooms.pop(revision, None)
        self._autoscaler.forget(revision)
        self._weights.forget(revision)
        self._instruments.traffic.forget_revision(revision)

    def deleted(self, function: str) -> None:
        self._profiles.drop(function)

    def __repr__(self) -> str:
        return f"<Sampling {len(self._links)} links>"


def _sample_of(link: ReplicaLink) -> Callable[[], Awaitable[bytes]]:
    return lambda: link.get("/sample")
