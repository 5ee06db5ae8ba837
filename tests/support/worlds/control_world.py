"""The control round over a fake backend and a fake front door, on a clock moved by hand."""

import asyncio
import json
import random
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.support.worlds.autoscaling import demand, gateway_sample, replica_sample
from tidegate.clock import ManualClock
from tidegate.control.api.commands.traffic import TrafficCommands
from tidegate.control.api.describe import views_of
from tidegate.control.metrics.own import OwnMetrics, Timings
from tidegate.control.predictor.link import PredictorHere
from tidegate.control.rounds.tracked import TrackedRevision
from tidegate.control.rounds.wiring import DecisionSettings, build_loop
from tidegate.control.state.notices import ChangeSignal, Faults
from tidegate.control.state.registry import Registry
from tidegate.control.views.deployment import GatewayView
from tidegate.control.views.functions import FunctionView
from tidegate.control.watch.cold_starts import ColdStarts
from tidegate.control.watch.gpus import Gpus
from tidegate.control.watch.instruments import Instruments
from tidegate.control.watch.traffic import TrafficMeter
from tidegate.control.workers.links import LinkError
from tidegate.deploy.backend import Backend, ReplicaStatus
from tidegate.deploy.fake import FakeBackend
from tidegate.deploy.placement.ledger import Accelerator, AcceleratorKind
from tidegate.function import Function, Scaling, Server, ServerKind
from tidegate.metrics import Exposition
from tidegate.records.codec import encode
from tidegate.records.gateway_sample import Activation, RevisionDemand
from tidegate.records.replica_state import ReplicaState
from tidegate.records.route_table import RevisionRoute, RouteTable
from tidegate.store.embedded import EmbeddedStore
from tidegate.traffic.table import TableBuilder

START = 1_000.0
CPU = Accelerator(name="cpu", kind=AcceleratorKind.CPU, count=3, memory_bytes=1 << 30, cores=1, price_per_hour=0.04)


def function(name: str = "echo", *, scaling: Scaling | None = None, **changes: Any) -> Function:
    return Function(
        name=name,
        server=Server(kind=ServerKind.MODEL, target="/m.onnx"),
        models=(name,),
        concurrency=1,
        scaling=scaling or Scaling(scale_to_zero_after_s=10.0),
        **changes,
    )


class FakeGateways:
    """One worker that reports what the test says; ``lags`` keeps it on its old route table."""

    def __init__(self) -> None:
        self.tables: list[RouteTable] = []
        self.demands: dict[str, RevisionDemand] = {}
        self.applied = (0, 0)
        self.lags = False
        self._sequence = 0

    def sources(self) -> Mapping[str, Callable[[], Awaitable[bytes]]]:
        return {"g0": self._sample}

    def versions(self) -> tuple[tuple[int, int], ...]:
        return (self.applied,)

    async def publish(self, table: RouteTable) -> None:
        self.tables.append(table)
        if not self.lags:
            self.applied = table.version

    async def _sample(self) -> bytes:
        self._sequence += 1
        sample = gateway_sample(*self.demands.values(), sequence=self._sequence, uptime_s=float(self._sequence))
        return encode(sample)


class FakeReplica:
    """A queue_proxy's admin endpoint: idle, in the state that the backend says."""

    def __init__(self, world: "ControlWorld", name: str) -> None:
        self._world = world
        self._name = name
        self._sequence = 0

    async def get(self, path: str) -> bytes:
        status = next((each for each in self._world.backend.replicas() if each.id == self._name), None)
        if status is None or path != "/sample":
            raise LinkError(f"{self._name} is away")
        self._sequence += 1
        sample = replica_sample(
            self._name,
            revision=status.revision,
            group=f"{status.revision}/{status.accelerator}",
            state=status.state,
            sequence=self._sequence,
            uptime_s=self._world.clock.now() - status.created_at,
            limit=status.limit or 1,
        )
        return encode(sample)

    async def post(self, path: str, body: bytes = b"") -> bytes:
        self._world.orders.append((self._name, path, json.loads(body)))
        return b"{}"

    async def close(self) -> None:
        return


class ControlWorld:
    """Everything of a deployment but processes and sockets."""

    def __init__(
        self,
        registry: Registry,
        folder: Path,
        backend: FakeBackend,
        clock: ManualClock,
        store: EmbeddedStore,
        max_replicas: int = 0,
        gpus: Gpus | None = None,
        seen_as: Callable[[FakeBackend], Backend] = lambda backend: backend,
    ) -> None:
        self.store = store
        self.clock = clock
        self.backend = backend
        self.gateways = FakeGateways()
        self.faults = Faults()
        self.orders: list[tuple[str, str, dict[str, int]]] = []
        """What was sent to replicas: replica, path, body."""
        self.meter = TrafficMeter()
        self.changes = ChangeSignal()
        self.folder = folder
        self.registry = registry
        self.ages: list[float] = []
        """Of the samples that decisions went by."""
        self.loop = build_loop(
            registry=registry,
            backend=seen_as(backend),
            tables=TableBuilder(epoch=1, workers=1),
            gateways=self.gateways,
            instruments=Instruments(
                traffic=self.meter,
                cold_starts=ColdStarts(folder / "cold-starts.jsonl", self.faults),
                gpus=gpus or Gpus(None),
                sample_age=self.ages.append,
            ),
            predictor=PredictorHere(),
            faults=self.faults,
            changes=self.changes,
            clock=clock,
            rng=random.Random(7),
            settings=DecisionSettings(decisions=folder, max_replicas=max_replicas),
            reach=lambda name, _: FakeReplica(self, name),
        )
        self.round = self.loop.round
        self.views = views_of(self.loop)

    def own_metrics(self, *gateways: GatewayView) -> OwnMetrics:
        """Returns the control process's own figures, over these gateway workers."""
        return OwnMetrics(self.loop, self.views, Timings(), epoch=4, gateways=lambda: gateways, faults=lambda: 0)

    def exposition(self) -> str:
        """Returns them as text."""
        found = Exposition()
        for _ in self.own_metrics().steps(found):
            pass
        return found.render().decode()

    def commands(self) -> TrafficCommands:
        """Returns the commands of operators over this world."""
        return TrafficCommands(
            world=self.loop.world,
            publisher=self.loop.publisher,
            rollouts=self.loop.rollouts,
            views=self.views,
            clock=self.clock,
            soon=self.round.soon,
        )

    async def deploy(self, wanted: Function) -> None:
        """As the API does it."""
        await self.registry.deploy(wanted, manifest="text", source="test.yaml", now=self.clock.now())
        self.loop.world.sync()
        await self.loop.publisher.publish()
        await self.second()

    async def delete(self, name: str) -> None:
        await self.registry.delete(name)
        self.loop.world.sync()
        await self.loop.publisher.publish()

    async def second(self) -> None:
        """One round now."""
        await self.round.second()
        await self.settle()

    async def settle(self) -> None:
        """Lets tasks that are ready run to their next wait."""
        for _ in range(20):
            await asyncio.sleep(0)

    async def advance(self, seconds: float) -> None:
        """Rounds at every second; what the backend does in between is seen when it happens."""
        end = self.clock.now() + seconds
        while self.clock.now() < end - 1e-9:
            target = min(end, self.clock.now() + 1.0)
            while (due := self.backend.next_wakeup()) is not None and due <= target:
                self.clock.advance(max(0.0, due - self.clock.now()))
                self.backend.on_wakeup(self.clock.now())
                await self.settle()
            self.clock.advance(target - self.clock.now())
            await self.second()

    def activate(self, revision: str, waiting: int = 1) -> None:
        """A gateway pushes; the request waits until :meth:`answered`."""
        known = self.gateways.demands.get(revision, demand(revision))
        arrivals = known.arrivals + waiting
        self.gateways.demands[revision] = replace(known, waiting=waiting, arrivals=arrivals)
        self.round.activated(
            Activation(
                function=revision.rsplit("-", 1)[0],
                revision=revision,
                waiting=waiting,
                waiting_inferences=waiting,
                oldest_waiting_s=0.0,
            )
        )

    def answered(self, revision: str) -> None:
        """No request waits any more."""
        self.gateways.demands[revision] = replace(self.gateways.demands[revision], waiting=0)

    def replicas(self, *states: ReplicaState) -> list[ReplicaStatus]:
        return [each for each in self.backend.replicas() if not states or each.state in states]

    def tracked(self, revision: str) -> TrackedRevision:
        return next(each for each in self.loop.world.tracked(revision.rsplit("-", 1)[0]) if each.id == revision)

    def shares(self) -> dict[str, float]:
        """Percent by revision in the newest route table."""
        table = self.loop.publisher.table
        assert table is not None
        return {revision.id: revision.percent for each in table.functions for revision in each.revisions}

    def route(self, revision: str) -> RevisionRoute:
        """A revision in the newest route table."""
        table = self.loop.publisher.table
        assert table is not None
        routes = (route for each in table.functions for route in each.revisions)
        return next(route for route in routes if route.id == revision)

    def refusal(self, revision: str) -> str | None:
        """What the newest route table tells those who wait for a revision."""
        return self.route(revision).failure

    def view(self, name: str = "echo") -> FunctionView:
        """A function as people are shown it."""
        deployed = self.registry.get(name)
        assert deployed is not None
        return self.views.function(deployed, "http://127.0.0.1:8080", "localhost")


def in_world(
    folder: Path,
    tell: Callable[[ControlWorld], Coroutine[Any, Any, None]],
    backend: FakeBackend | None = None,
    accelerator: Accelerator = CPU,
    others: tuple[Accelerator, ...] = (),
    max_replicas: int = 0,
    gpus: Gpus | None = None,
    seen_as: Callable[[FakeBackend], Backend] = lambda backend: backend,
) -> None:
    """Runs a story in a world whose store is in ``folder``; a second call with the same folder is a restart.
    ``seen_as`` wraps the backend for the control loop alone."""

    async def run() -> None:
        clock = ManualClock(START)
        store = await EmbeddedStore.open(folder / "state.db")
        try:
            registry = await Registry.load(store)
            backend_ = backend or FakeBackend([accelerator, *others], clock, random.Random(1))
            world = ControlWorld(registry, folder, backend_, clock, store, max_replicas, gpus, seen_as)
            world.gateways.tables.append(world.round.begin())
            world.gateways.applied = world.gateways.tables[-1].version
            await tell(world)
            await world.loop.close()
        finally:
            await store.close()

    asyncio.run(run())
