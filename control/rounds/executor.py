"""Executor: turns decisions into plans, and carries these out on the backend.

One plan per revision is made and carried out at a time. A decision that is older than one already carried out is void.
A plan is made from the backend's state at the moment at which it is carried out. So any number of gateway workers that
report waiting requests at once cause one first start.
"""

import asyncio
import contextlib
import random
from dataclasses import replace
from typing import Final

from tidegate.aio.loop.tasks import TaskOwner
from tidegate.autoscaler.decisions.reasons import reason
from tidegate.autoscaler.live import LiveAutoscaler
from tidegate.clock import Clock
from tidegate.control.rounds.publisher import Publisher
from tidegate.control.rounds.replacement import PLANNING_ORDER, Replacement
from tidegate.control.rounds.tracked import TrackedRevision, retirement
from tidegate.control.rounds.world import World
from tidegate.control.state.notices import Faults
from tidegate.control.watch.instruments import Instruments
from tidegate.deploy.backend import Backend, ReplicaStatus
from tidegate.deploy.placement.ledger import Room
from tidegate.deploy.plan import Create, Plan, plan
from tidegate.errors import TidegateError
from tidegate.records.decision import Decision
from tidegate.records.gateway_sample import Activation
from tidegate.records.replica_state import ColdStartPhases
from tidegate.records.roles import Role

_NO_PLACE: Final = ("capped_by_capacity", "no_accelerator")
_NO_SHARE: Final = "capped_by_total"


class Executor:
    """Carries decisions out; holds no policy of its own."""

    def __init__(
        self,
        *,
        world: World,
        backend: Backend,
        autoscaler: LiveAutoscaler,
        replacement: Replacement,
        publisher: Publisher,
        instruments: Instruments,
        faults: Faults,
        clock: Clock,
        rng: random.Random,
        tasks: TaskOwner,
    ) -> None:
        self._world = world
        self._backend = backend
        self._live = autoscaler
        self._autoscaler = autoscaler.core
        self._replacement = replacement
        self._publisher = publisher
        self._instruments = instruments
        self._faults = faults
        self._clock = clock
        self._rng = rng
        self._tasks = tasks
        self._busy: dict[str, asyncio.Lock] = {}
        """By revision: held while a plan of it is carried out."""

    # --- each second ---

    async def prepare(self, now: float) -> None:
        """Reviews the place handovers, and takes back starts that do not succeed, so that the decisions of this second
        find another accelerator kind."""
        self._replacement.review(now)
        for tracked in tuple(self._world.revisions):
            here = self._world.replicas_of(tracked.id)
            is_concerned = self._world.revocations.needs_review(tracked.id, here)
            room = self._world.free_places(tracked, self._clock.now()) if is_concerned else {}
            if not room:
                continue
            timeout_s = tracked.record.revision.function.readiness.start_timeout_s
            for found in self._world.revocations.review(tracked.id, here, room, timeout_s, now):
                self._autoscaler.add_reason(tracked.id, reason("start_revoked", found.why))
                for replica in found.replicas:
                    with contextlib.suppress(TidegateError):  # it has gone by itself
                        await self._backend.remove(replica)

    async def decide(self, now: float) -> None:
        """Carries out the autoscaler's decisions, in the planning order of their revisions."""
        decisions = [(self._world.find(each.revision), each) for each in await self._live.decided(now)]
        known = [(tracked, decision) for tracked, decision in decisions if tracked is not None]
        for _, decision in known:
            if (age_s := decision.observed.get("age_s")) is not None:
                self._instruments.sample_age(age_s)
        for order in PLANNING_ORDER:
            acts = []
            for tracked, decision in known:
                if self._replacement.planning_order(tracked) != order:
                    continue
                found = self._settled(tracked, decision, now)
                if found is not None:
                    self._autoscaler.settled(decision, found)
                    tracked.decision = found
                    phases = ColdStartPhases(decide_s=self._clock.now() - now)
                    acts.append(self._act(tracked, found, phases))
            await asyncio.gather(*acts)

    def clean_up(self, now: float) -> None:
        """Forgets retired revisions without replicas, deleted functions and cold starts that were never answered."""
        for tracked in tuple(self._world.revisions):
            is_retired = tracked.role is Role.RETIRED
            if is_retired and not self._world.replicas_of(tracked.id) and self._may_leave(tracked):
                self._busy.pop(tracked.id, None)
                self._world.forget(tracked)
        for name in self._world.deleted():
            self._tasks.spawn(self._world.registry.forget(name), name=f"forget {name}")
        self._instruments.cold_starts.sweep(now)

    def _settled(self, tracked: TrackedRevision, decision: Decision, now: float) -> Decision | None:
        """Returns the autoscaler's decision as the revision's role allows it; None if nothing is to be done."""
        if tracked.role is Role.RETIRED:
            return retirement(tracked, now) if self._may_leave(tracked) else None
        if tracked.role is Role.CANDIDATE:
            return decision
        if (starved := self._replacement.starved(tracked)) is not None:
            return self._replacement.make_room(tracked, starved, decision, self._clock.now())
        return decision

    def _may_leave(self, tracked: TrackedRevision) -> bool:
        """Returns whether no gateway worker can send a retired revision a request."""
        return self._publisher.is_left(tracked) and self._instruments.traffic.waiting(tracked.id) == 0

    # --- at once ---

    def activated(self, tracked: TrackedRevision, activation: Activation) -> None:
        """Decides and starts at once for a revision for which requests wait while none of its replicas is ready."""
        seen = self._clock.now()
        decision = self._autoscaler.activated(activation, seen)
        if decision is None or decision.desired is None:
            return
        tracked.decision = decision
        phases = ColdStartPhases(decide_s=self._clock.now() - seen)
        self._tasks.spawn(self._act(tracked, decision, phases), name=f"activate {tracked.id}")

    def replica_failed(self, status: ReplicaStatus) -> None:
        """Takes the failure of a replica."""
        if status.ready_at is None and self._world.find(status.revision) is not None:
            why = status.reason or "it broke before it was ready"
            self._world.revocations.failed(status.revision, status.accelerator, self._clock.now(), why.splitlines()[0])
        self._replacement.start_failed(status, self._clock.now())

    # --- one plan ---

    async def _act(self, tracked: TrackedRevision, decision: Decision, phases: ColdStartPhases) -> None:
        decided = self._clock.now()
        async with self._busy.setdefault(tracked.id, asyncio.Lock()):
            if decision.at < tracked.acted_at:
                return
            tracked.acted_at = decision.at
            steps = self._plan(tracked, decision)
            tracked.plan = steps
            tracked.lacks_room(self._lacking(tracked, steps, decision), self._clock.now())
            for create in steps.create:
                waited = self._clock.now() - decided
                await self._create(tracked, create, replace(phases, schedule_s=waited))
            for revive in steps.revive:
                await self._backend.revive(revive.replica)
            for remove in steps.remove:
                try:
                    await self._backend.remove(remove.replica)
                except TidegateError:
                    continue  # it has gone by itself
        if not steps.is_empty:
            await self._publisher.publish()

    def _plan(self, tracked: TrackedRevision, decision: Decision) -> Plan:
        here, now = self._world.replicas_of(tracked.id), self._clock.now()
        samples = ((each.id, self._world.samples.get(each.id)) for each in here)
        return plan(
            decision,
            here,
            self._world.places(tracked, now),
            now=now,
            rng=self._rng,
            in_flight={name: sample.in_flight for name, sample in samples if sample is not None},
            failure=self._backend.failure(tracked.id),
        )

    async def _create(self, tracked: TrackedRevision, step: Create, phases: ColdStartPhases) -> None:
        now = self._clock.now()
        cold_starts, fault = self._instruments.cold_starts, f"start of {tracked.id}"
        cold_starts.started(
            function=tracked.function,
            revision=tracked.id,
            replica=step.replica,
            accelerator=step.accelerator,
            at=now,
            from_zero=not any(self._world.is_ready(each.id) for each in self._world.tracked(tracked.function)),
        )
        try:
            status = await self._backend.create(
                step.replica, tracked.record.revision, step.accelerator, phases, share=step.share
            )
        except TidegateError as error:
            cold_starts.gone(step.replica)
            self._faults.set(fault, str(error))
            self._world.revocations.failed(tracked.id, step.accelerator, now, str(error))
            return
        self._faults.clear(fault)
        cold_starts.progressed(status.id, status.phases)

    def _lacking(self, tracked: TrackedRevision, steps: Plan, decision: Decision) -> str | None:
        """Returns why the revision has no place for what the decision wants; None if it has."""
        lacks = any(each.until is None for each in steps.unplaced)
        has_place = self._world.has_place(tracked.id)
        # The wish of a dry run beyond its present replicas needs no place.
        is_content = decision.is_dry_run and has_place
        limited = {each.code: each.detail for each in steps.reasons}
        # A revision that has or gets a replica, and no more under the limit over all functions, lacks no place.
        is_over = _NO_SHARE in limited and not has_place and (decision.is_dry_run or not decision.desired)
        if lacks or (not is_content and not limited.keys().isdisjoint(_NO_PLACE)):
            what = "more of it" if has_place else "it"
            free = self._world.places(tracked, self._clock.now())
            words = ", ".join(f"{name} has {_words(room)}" for name, room in free.items())
            return f"no accelerator has room for {what}: {words or 'none that it may use is here'}"
        if is_over:
            return f"scaling.max-replicas, of all functions together, leaves no place: {limited[_NO_SHARE]}"
        return None

    def __repr__(self) -> str:
        return f"<Executor of {self._world!r}>"


def _words(room: Room) -> str:
    free = f"{max(0, room.free)} of {room.total} places free"
    return free if room.why is None else f"{free} ({room.why})"
