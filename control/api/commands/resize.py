"""The command of operators about what runs: cores and batches of the ready replicas of a function.

All faults of a command are reported together. What is ordered holds for the serving revision until the next deploy,
also for replicas that become ready later; each replica that cannot follow says why.
"""

import asyncio
from typing import Final

from tidegate.clock import Clock
from tidegate.control.api.errors import RefusedError, UnknownFunctionError
from tidegate.control.rounds.executor import Executor
from tidegate.control.rounds.growth import ReplicaSize
from tidegate.control.rounds.tracked import TrackedRevision
from tidegate.control.rounds.world import World
from tidegate.control.views.functions import ResizedView, ResizeView
from tidegate.control.views.requests import ResizeRequest
from tidegate.deploy.backend import ReplicaStatus
from tidegate.errors import Fault, InvalidInputError
from tidegate.function import Batching
from tidegate.records.replica_state import ReplicaState
from tidegate.schema.units import UnreadableError, duration

MOST_CORES: Final = 1024
LONGEST_DELAY_S: Final = 60.0


class ResizeCommands:
    """Checks and carries out the command."""

    def __init__(self, *, world: World, executor: Executor, clock: Clock) -> None:
        self._world = world
        self._executor = executor
        self._clock = clock

    async def resize(self, name: str, request: ResizeRequest) -> ResizeView:
        """Raises UnknownFunctionError, InvalidInputError with all faults, and RefusedError if nothing is ready or no
        replica can follow."""
        deployed = self._world.registry.get(name)
        if deployed is None:
            raise UnknownFunctionError(name, tuple(each.name for each in self._world.registry.all()))
        if stages := deployed.current.function.server.stages:
            names = ", ".join(each.function for each in stages)
            raise RefusedError(f"{name} is a pipeline, without replicas of its own; resize one of its stages: {names}")
        tracked = self._world.find(deployed.current.revision.id)
        before = ReplicaSize() if tracked is None or tracked.size is None else tracked.size
        size = self._read(request, deployed.current.function.batching, before)
        ready = [] if tracked is None else _ready(self._world, tracked)
        if tracked is None or not ready:
            raise RefusedError(f"{name} has no ready replica: deploy it with other figures, or send it a request first")
        replicas = await asyncio.gather(*(self._one(tracked, each, size, request.reset) for each in ready))
        if all(each.refused is not None for each in replicas):
            raise RefusedError("; ".join(dict.fromkeys(str(each.refused) for each in replicas)))
        tracked.size = None if request.reset else size
        return ResizeView(function=name, revision=tracked.id, replicas=tuple(replicas))

    async def _one(
        self, tracked: TrackedRevision, replica: ReplicaStatus, size: ReplicaSize, reset: bool
    ) -> ResizedView:
        began, configured = self._clock.now(), tracked.record.function.batching
        wanted = self._configured(replica, configured) if reset else size
        refused = await self._executor.resize(replica, wanted)
        took_s = self._clock.now() - began
        after = next((each for each in self._world.replicas_of(tracked.id) if each.id == replica.id), replica)
        batching = after.batching or configured
        return ResizedView(
            replica=replica.id,
            cores=len(after.cores),
            max_batch=batching.max_size,
            batch_delay_s=batching.delay_s,
            took_s=took_s,
            refused=refused,
        )

    def _configured(self, replica: ReplicaStatus, batching: Batching) -> ReplicaSize:
        """Returns the size that the replica had when it was started, as far as an order has changed it."""
        unit = next((each.cores for each in self._world.backend.devices() if each.name == replica.accelerator), 0)
        return ReplicaSize(
            cores=unit if replica.cores and unit else None, batching=None if replica.batching is None else batching
        )

    def _read(self, request: ResizeRequest, configured: Batching, before: ReplicaSize) -> ReplicaSize:
        faults, delay_s = [], None
        given = (request.cores, request.max_batch, request.batch_delay)
        if request.reset == any(each is not None for each in given):
            value = "nothing" if not request.reset else "reset with another figure"
            faults.append(Fault("resize", value, "cores, max_batch, batch_delay or several of them; or reset alone"))
        if request.cores is not None and not 1 <= request.cores <= MOST_CORES:
            faults.append(Fault("cores", str(request.cores), f"a whole number, 1 to {MOST_CORES}"))
        most = configured.max_size
        if request.max_batch is not None and not 1 <= request.max_batch <= most:
            allowed = f"1 to {most}, the function's batching.max" if most > 1 else "1: the function's batching.max is 1"
            faults.append(Fault("max_batch", str(request.max_batch), allowed))
        if request.batch_delay is not None:
            try:
                delay_s = duration(request.batch_delay)
            except UnreadableError:
                delay_s = -1.0
            if not 0.0 <= delay_s <= LONGEST_DELAY_S:
                faults.append(Fault("batch_delay", request.batch_delay, "a duration, 0s to 60s (units us, ms, s)"))
        if faults:
            raise InvalidInputError("resize", faults)
        if request.max_batch is None and delay_s is None:
            batching = before.batching
        else:
            now = before.batching or configured
            batching = Batching(
                max_size=now.max_size if request.max_batch is None else request.max_batch,
                delay_s=now.delay_s if delay_s is None else delay_s,
            )
        return ReplicaSize(cores=before.cores if request.cores is None else request.cores, batching=batching)

    def __repr__(self) -> str:
        return f"<ResizeCommands of {self._world!r}>"


def _ready(world: World, tracked: TrackedRevision) -> list[ReplicaStatus]:
    return [each for each in world.replicas_of(tracked.id) if each.state is ReplicaState.READY]
