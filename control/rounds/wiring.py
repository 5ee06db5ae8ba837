"""Builds the objects of the control loop and connects them; each gets the ones that it uses, and none gets the loop."""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tidegate.aio.loop.tasks import TaskOwner
from tidegate.autoscaler.live import LiveAutoscaler
from tidegate.clock import Clock
from tidegate.control.predictor.link import Predictor
from tidegate.control.predictor.predictions import Predictions
from tidegate.control.rounds.executor import Executor
from tidegate.control.rounds.publisher import Gateways, Publisher
from tidegate.control.rounds.replacement import Replacement
from tidegate.control.rounds.rollouts import Rollouts
from tidegate.control.rounds.round import Round
from tidegate.control.rounds.sampling import Reach, Sampling
from tidegate.control.rounds.weights import GroupWeights
from tidegate.control.rounds.world import World
from tidegate.control.state.notices import ChangeSignal, Faults
from tidegate.control.state.registry import Registry
from tidegate.control.watch.instruments import Instruments
from tidegate.control.watch.profiles import LearnedProfiles
from tidegate.control.workers.links import Link
from tidegate.deploy.backend import Backend
from tidegate.deploy.placement.interference import Interference
from tidegate.records.gateway_sample import GatewaySample
from tidegate.store.records import Store
from tidegate.traffic.size_routes import SizeRoutes
from tidegate.traffic.table import TableBuilder
from tidegate.traffic.weights import Weights


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionSettings:
    """The settings of the autoscaler. ``decisions`` and ``recordings``: folders for its logs; None: no log.
    ``wall``: Unix seconds; None: as the clock. ``max_replicas``: of all functions together; 0: no limit."""

    decisions: Path | None = None
    recordings: Path | None = None
    wall: Callable[[], float] | None = None
    max_replicas: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlLoop:
    """The connected objects of one control process; :meth:`close` ends their background work."""

    backend: Backend
    world: World
    autoscaler: LiveAutoscaler
    profiles: LearnedProfiles
    instruments: Instruments
    sizes: SizeRoutes
    weights: GroupWeights
    publisher: Publisher
    replacement: Replacement
    rollouts: Rollouts
    executor: Executor
    sampling: Sampling
    round: Round
    faults: Faults
    changes: ChangeSignal
    clock: Clock
    tasks: TaskOwner

    async def close(self) -> None:
        """Ends everything under way and writes down what was decided; replicas are not touched."""
        self.round.end()
        await self.tasks.close()
        await self.world.registry.save_all()
        await self.sampling.close()


class RoundContext:
    """The autoscaler's ``FleetContext``: the facts of the control loop that a decision depends on."""

    def __init__(self, world: World, weights: Weights, instruments: Instruments) -> None:
        self._world = world
        self._weights = weights
        self._instruments = instruments

    def weights(self, revision: str) -> Mapping[str, float]:
        return self._weights.published(revision)

    def is_carried_out(self, revision: str) -> bool:
        return self._world.is_carried_out(revision)

    def is_rolled_out(self, revision: str) -> bool:
        return self._world.is_rolled_out(revision)

    def is_taking_over(self, revision: str) -> bool:
        return self._world.is_promoted_early(revision)

    def retry_at(self, revision: str) -> float | None:
        failure = self._world.backend.failure(revision)
        return None if failure is None else failure.not_before

    def lost(self, revision: str) -> int:
        return self._world.lost(revision)

    def device_metrics(self, revision: str, accelerator: str) -> Mapping[str, float]:
        return self._instruments.device_metrics(revision, accelerator)


def build_loop(
    *,
    registry: Registry,
    backend: Backend,
    tables: TableBuilder,
    gateways: Gateways,
    instruments: Instruments,
    predictor: Predictor,
    faults: Faults,
    changes: ChangeSignal,
    clock: Clock,
    rng: random.Random,
    settings: DecisionSettings,
    store: Store | None = None,
    epoch: int = 0,
    interference: Interference | None = None,
    reach: Reach = Link,
    gateway_seen: Callable[[GatewaySample], None] = lambda sample: None,
) -> ControlLoop:
    """Builds a control loop over a backend. ``store``: keeps the learnt profiles; None: they are lost at the end.
    ``interference``: the table that placement reads. ``gateway_seen``: takes each sample of a gateway worker before the
    loop does."""
    tasks = TaskOwner("round", lambda name, error: faults.set(name, f"{type(error).__name__}: {error}"))
    world = World(registry, backend)
    published = Weights()

    def seen(sample: GatewaySample) -> None:
        gateway_seen(sample)
        sampling.gateway_seen(sample)

    autoscaler = LiveAutoscaler(
        clock,
        RoundContext(world, published, instruments),
        settings.decisions,
        settings.recordings,
        gateway_seen=seen,
        replica_seen=lambda sample: sampling.replica_seen(sample),
        wall=settings.wall,
        max_replicas=settings.max_replicas,
    )
    profiles = LearnedProfiles(
        autoscaler=autoscaler.core,
        backend=backend,
        predictions=Predictions(predictor, faults),
        clock=clock,
        store=store,
        epoch=epoch,
        interference=interference,
    )
    sizes = SizeRoutes(instruments.traffic, autoscaler.core)
    weights = GroupWeights(profiles.mu_ips, sizes, published)
    publisher = Publisher(
        world=world,
        weights=weights,
        tables=tables,
        gateways=gateways,
        scaled=autoscaler.core.scaled,
        changes=changes,
        clock=clock,
        tasks=tasks,
    )
    replacement = Replacement(world, publisher)
    rollouts = Rollouts(
        world=world,
        publisher=publisher,
        traffic=instruments.traffic,
        add_reason=autoscaler.core.add_reason,
        clock=clock,
        tasks=tasks,
    )
    executor = Executor(
        world=world,
        backend=backend,
        autoscaler=autoscaler,
        replacement=replacement,
        publisher=publisher,
        instruments=instruments,
        faults=faults,
        clock=clock,
        rng=rng,
        tasks=tasks,
    )
    sampling = Sampling(
        world=world,
        autoscaler=autoscaler,
        profiles=profiles,
        weights=weights,
        instruments=instruments,
        gateways=gateways,
        clock=clock,
        tasks=tasks,
        reach=reach,
    )
    world.listen(sampling)
    round_ = Round(
        world=world,
        sampling=sampling,
        rollouts=rollouts,
        executor=executor,
        publisher=publisher,
        instruments=instruments,
        clock=clock,
    )
    return ControlLoop(
        backend=backend,
        world=world,
        autoscaler=autoscaler,
        profiles=profiles,
        instruments=instruments,
        sizes=sizes,
        weights=weights,
        publisher=publisher,
        replacement=replacement,
        rollouts=rollouts,
        executor=executor,
        sampling=sampling,
        round=round_,
        faults=faults,
        changes=changes,
        clock=clock,
        tasks=tasks,
    )
