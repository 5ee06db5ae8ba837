"""One second of the control loop: samples, decisions, plans, backend, weights, route table.

The round runs once a second. An activation, a readiness change and a deploy take effect at once. The steps of a round
are in :meth:`Round.second`; ``tidegate.control.rounds.executor`` has the rules that keep them from disturbing each
other.

Each revision with a role or a replica is tracked (``tidegate.control.rounds.world``). A *serving* one takes traffic,
alone or with others. A *candidate* takes over at the moment at which one of its replicas is ready, or as its rollout
goes on (``tidegate.control.rounds.rollouts``); one that finds no room gets it from the serving revision
(``tidegate.control.rounds.replacement``). A *retired* one drains to zero once no gateway worker can send it a request:
each has applied a table without it, and reports no request waiting for it.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from tidegate.clock import Clock
from tidegate.control.rounds.executor import Executor
from tidegate.control.rounds.publisher import Publisher
from tidegate.control.rounds.rollouts import Rollouts
from tidegate.control.rounds.sampling import Sampling
from tidegate.control.rounds.world import World
from tidegate.control.watch.instruments import Instruments
from tidegate.deploy.backend import ReplicaStatus
from tidegate.records.gateway_sample import Activation
from tidegate.records.replica_state import ReplicaState
from tidegate.records.route_table import RouteTable

PERIOD_S: Final = 1.0

_GONE: Final = (ReplicaState.STOPPED, ReplicaState.FAILED)


class Round:
    """Runs the steps of each second, and takes the changes in between."""

    def __init__(
        self,
        *,
        world: World,
        sampling: Sampling,
        rollouts: Rollouts,
        executor: Executor,
        publisher: Publisher,
        instruments: Instruments,
        clock: Clock,
    ) -> None:
        self._world = world
        self._sampling = sampling
        self._rollouts = rollouts
        self._executor = executor
        self._publisher = publisher
        self._instruments = instruments
        self._clock = clock
        self._wake = asyncio.Event()
        self._hastened_at = float("-inf")
        self._unwatch: Callable[[], None] | None = None
        self.seconds = 0
        """Number of rounds so far."""

    # --- life ---

    def begin(self) -> RouteTable:
        """Takes up what is deployed and what runs; returns the first route table."""
        self._unwatch = self._world.backend.watch(self.replica_changed)
        self._world.adopt()
        for status in self._world.backend.replicas():
            self._note(status)
        return self._publisher.first()

    async def run(self) -> None:
        """Runs a round every second until cancelled; sooner when a replica broke or may be tried again."""
        due = self._clock.now()
        while True:
            self._wake.clear()
            await self.second()
            now = self._clock.now()
            if due <= now:
                due = max(due + PERIOD_S, now)
            try:
                async with asyncio.timeout(max(0.0, self.next_wakeup(due) - now)):
                    await self._wake.wait()
            except TimeoutError:
                continue

    def next_wakeup(self, due: float) -> float:
        """Returns the time of the next round: ``due``, or the end of a back-off before it."""
        now = self._clock.now()
        plans = (tracked.plan for tracked in self._world.revisions if tracked.plan is not None)
        ends = (each.until for plan in plans for each in plan.unplaced if each.until is not None)
        return min((end for end in ends if now < end < due), default=due)

    def soon(self) -> None:
        """Runs the next round at once: something was deployed or deleted."""
        self._wake.set()

    def end(self) -> None:
        """Takes no further changes from the backend."""
        if self._unwatch is not None:
            self._unwatch()

    # --- the second ---

    async def second(self) -> None:
        """Samples, decides, acts and publishes."""
        began = self._clock.now()
        self._world.refresh()
        await self._executor.prepare(began)
        await self._sampling.pull(began)
        now = self._clock.now()
        self._rollouts.review(now)
        await self._executor.decide(now)
        await self._sampling.learn(now)
        self._executor.clean_up(now)
        await self._publisher.publish()
        await self._sampling.record()
        self.seconds += 1
        self._instruments.round_took(self._clock.now() - began)
        self._publisher.announce()

    # --- changes in between ---

    def activated(self, activation: Activation) -> None:
        """Takes a gateway worker's report that a request waits and no replica is ready, or that a crowd waits: then the
        next round comes at once, at most one a second more."""
        tracked = self._world.find(activation.revision)
        if tracked is not None and activation.is_crowd:
            now = self._clock.now()
            if now - self._hastened_at >= PERIOD_S and self._executor.may_grow(tracked):
                self._hastened_at = now
                self._wake.set()
        elif tracked is not None:
            self._sampling.set_fleet_of(tracked)
            if self._executor.activated(tracked, activation):
                self._wake.set()

    def replica_changed(self, status: ReplicaStatus) -> None:
        """Takes the backend's report of a replica's change."""
        is_entered = self._world.note(status)
        self._note(status)
        self._rollouts.replica_changed(status)
        if status.state is ReplicaState.FAILED:
            if is_entered:  # Later changes of a failed replica are the end of its processes.
                self._executor.replica_failed(status)
            self._wake.set()
        elif status.state in (ReplicaState.STOPPED, ReplicaState.ASLEEP) and self._executor.awaits_place:
            self._wake.set()
        self._publisher.publish_soon()
        self._publisher.announce()

    def _note(self, status: ReplicaStatus) -> None:
        self._instruments.cold_starts.progressed(status.id, status.phases)
        if status.state in _GONE:
            self._instruments.cold_starts.gone(status.id)
            self._world.drop_samples(status.id)
        tracked = self._world.find(status.revision)
        if status.state in _GONE and tracked is not None:
            tracked.gone_at = self._clock.now()
        if status.state is not ReplicaState.READY or tracked is None:
            return
        self._sampling.send_limit(status)
        tracked.ready_at = max(tracked.ready_at, status.ready_at or self._clock.now())
        if self._world.is_awaited(tracked):
            self._rollouts.promote_soon(tracked)

    def __repr__(self) -> str:
        return f"<Round {self.seconds} seconds, {self._world!r}>"
