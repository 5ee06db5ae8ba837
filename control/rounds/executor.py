"""Executor: turns decisions into plans, and carries these out on the backend.

One plan per revision is made and carried out at a time. A decision that is older than one already carried out is void.
A plan is made from the backend's state at the moment at which it is carried out. So any number of gateway workers that
report waiting requests at once cause one first start.
"""

import asyncio
import contextlib
import random
from collections.abc import Collection, Coroutine, Sequence
from dataclasses import replace
from typing import Any, Final

from tidegate.aio.loop.tasks import TaskOwner
from tidegate.autoscaler.decisions.places import Holder
from tidegate.autoscaler.decisions.reasons import reason
from tidegate.autoscaler.live import LiveAutoscaler
from tidegate.clock import Clock
from tidegate.control.rounds.growth import Growth, ReplicaSize, Resize, unsized
from tidegate.control.rounds.publisher import Publisher
from tidegate.control.rounds.replacement import PLANNING_ORDER, Replacement
from tidegate.control.rounds.tracked import TrackedRevision, retirement
from tidegate.control.rounds.world import World
from tidegate.control.state.notices import Faults
from tidegate.control.watch.instruments import Instruments
from tidegate.deploy.backend import Backend, ReplicaStatus, SleepRefusedError
from tidegate.deploy.idle import IdleStates, stakes_of
from tidegate.deploy.placement.ledger import Room
from tidegate.deploy.plan import Create, Plan, plan
from tidegate.errors import TidegateError
from tidegate.records.decision import Decision
from tidegate.records.gateway_sample import Activation
from tidegate.records.replica_state import ColdStartPhases, ReplicaState
from tidegate.records.roles import Role

_NO_PLACE: Final = ("capped_by_capacity", "no_accelerator")
_NO_SHARE: Final = "capped_by_total"
_ABOUT_PLACES: Final = frozenset((*_NO_PLACE, _NO_SHARE))
_SHOWN_HOLDERS: Final = 5
"""Functions that a message about missing places names; the others are counted."""


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
        self._growth = Growth()
        self.idle = IdleStates()
        """Measured starts and wakes, and the choice between sleep and end."""
        self._busy: dict[str, asyncio.Lock] = {}
        """By revision: held while a plan of it is carried out."""

    # --- each second ---

    async def prepare(self, now: float) -> None:
        """Reviews the place handovers, and takes back starts that do not succeed, so that the decisions of this second
        find another accelerator kind."""
        self._replacement.review(now)
        self.idle.observe(self._backend.replicas())
        await self._end_sleepers(now)
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

    async def _end_sleepers(self, now: float) -> None:
        """Ends the sleeping replicas whose memory has cost what a start does, and those of revisions that do not
        serve."""
        kinds = {each.name: each for each in self._backend.devices()}
        for each in self._backend.replicas():
            if each.state is not ReplicaState.ASLEEP:
                continue
            tracked, why = self._world.find(each.revision), f"{each.id}: its revision does not serve"
            if tracked is not None and tracked.role is Role.SERVING and each.accelerator in kinds:
                stakes = stakes_of(
                    tracked.record.revision.function, self._autoscaler.decider.late_price_s(each.revision)
                )
                found = self.idle.ends(each, kinds[each.accelerator], stakes, now)
                if found is None:
                    continue
                why = found
            with contextlib.suppress(TidegateError):  # it has gone by itself
                await self._backend.remove(each.id)
            self._autoscaler.add_reason(each.revision, reason("sleep_over", why))

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
                    acts += self._growths(tracked, found, now)
                    if self._is_in_place(tracked, found):
                        continue
                    phases = ColdStartPhases(decide_s=self._clock.now() - now)
                    acts.append(self._act(tracked, found, phases))
            await asyncio.gather(*acts)

    def _growths(self, tracked: TrackedRevision, decision: Decision, now: float) -> list[Coroutine[Any, Any, None]]:
        """Returns the changes of cores that meet a burst before new replicas do, or end after it."""
        here = self._world.replicas_of(tracked.id)
        size = tracked.size
        if size is None and decision.cores is not None and not decision.is_dry_run:
            size = ReplicaSize(cores=decision.cores)
        if size is not None:
            late = [each for each in unsized(size, here) if not self._growth.is_refused(each.id, now)]
            if late or size.cores is not None:
                return [self._follow(size, each, now) for each in late]
        if not any(each.cores for each in here):
            return []
        waiting = self._instruments.traffic.waiting(tracked.id)
        orders = self._growth.orders(decision, here, waiting, self._world.samples, now)
        return [self._resize(tracked, order, now) for order in orders]

    async def _follow(self, size: ReplicaSize, replica: ReplicaStatus, now: float) -> None:
        """Gives a replica that became ready after the order the size that was ordered."""
        if await self.resize(replica, size) is not None:
            self._growth.refused(replica.id, now)

    async def resize(self, replica: ReplicaStatus, size: ReplicaSize) -> str | None:
        """Changes cores and batches of a ready replica. Returns why it was refused; None if it has both now."""
        try:
            if size.cores is not None and len(replica.cores) != size.cores:
                await self._backend.resize(replica.id, threads=size.cores)
            if size.batching is not None:
                await self._backend.configure(replica.id, size.batching)
        except TidegateError as error:
            return str(error)
        return None

    async def _resize(self, tracked: TrackedRevision, order: Resize, now: float) -> None:
        try:
            await self._backend.resize(order.replica, threads=order.cores)
        except TidegateError:  # It cannot use them, none is idle, or it has gone by itself.
            self._growth.refused(order.replica, now)
            return
        code = "cores_borrowed" if order.is_more else "cores_returned"
        self._autoscaler.add_reason(tracked.id, reason(code, f"{order.replica} has {order.cores} cores"))

    def clean_up(self, now: float) -> None:
        """Forgets retired revisions without replicas, deleted functions and cold starts that were never answered."""
        for tracked in tuple(self._world.revisions):
            is_retired = tracked.role is Role.RETIRED
            if is_retired and not self._world.replicas_of(tracked.id) and self._may_leave(tracked):
                self._busy.pop(tracked.id, None)
                self._instruments.failures.forget(tracked.id)
                self._world.forget(tracked)
                self.idle.forget(tracked.id)
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

    def activated(self, tracked: TrackedRevision, activation: Activation) -> bool:
        """Decides and starts at once for a revision for which requests wait while none of its replicas is ready.
        Returns whether another function is to give up an idle replica for it: a round is due."""
        seen = self._clock.now()
        decision = self._autoscaler.activated(activation, seen)
        if decision is None or decision.desired is None:
            return False
        tracked.decision = decision
        phases = ColdStartPhases(decide_s=self._clock.now() - seen)
        self._tasks.spawn(self._act(tracked, decision, phases), name=f"activate {tracked.id}")
        return self._autoscaler.claims_place(tracked.id, seen)

    def may_grow(self, tracked: TrackedRevision) -> bool:
        """Returns whether a round could meet a burst of this revision by cores. Where its policy sizes replicas, or a
        person does, none does."""
        is_sized = tracked.size is not None or (tracked.decision is not None and tracked.decision.cores is not None)
        return not is_sized and self._growth.may_grow(self._world.replicas_of(tracked.id), self._clock.now())

    @property
    def awaits_place(self) -> bool:
        """True if a revision without a replica waits for a place that is being freed."""
        return self._autoscaler.awaits_place

    def replica_failed(self, status: ReplicaStatus) -> None:
        """Takes the failure of a replica."""
        crash = self._instruments.failures.record(status, self._clock.now())
        if crash is not None:
            self._autoscaler.add_reason(status.revision, reason("replica_broke", f"{crash.replica}: {crash.reason}"))
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
            tracked.acted_at, tracked.in_place = decision.at, None
            here = self._world.replicas_of(tracked.id)
            steps = self._plan(tracked, decision)
            tracked.plan = steps
            self._note_room(tracked, steps, decision)
            if steps.is_empty and not steps.unplaced and tracked.unplaced is None:
                tracked.in_place = here, decision.groups
            for create in steps.create:
                waited = self._clock.now() - decided
                await self._create(tracked, create, replace(phases, schedule_s=waited))
            asleep = {each.id for each in here if each.state is ReplicaState.ASLEEP}
            for revive in steps.revive:
                if await self._backend.revive(revive.replica) and revive.replica in asleep:
                    self._autoscaler.add_reason(tracked.id, reason("woken", revive.replica))
            for remove in steps.remove:
                with contextlib.suppress(TidegateError):  # it has gone by itself
                    await self._let_go(tracked, remove.replica, here)
        if not steps.is_empty:
            await self._publisher.publish()

    async def _let_go(self, tracked: TrackedRevision, replica: str, here: Sequence[ReplicaStatus]) -> None:
        """Lets a surplus replica fall asleep where that pays, else removes it."""
        status = next((each for each in here if each.id == replica), None)
        kind = next((each for each in self._backend.devices() if status and each.name == status.accelerator), None)
        if status is not None and kind is not None and tracked.role is Role.SERVING:
            late_s = self._autoscaler.decider.late_price_s(tracked.id)
            why = self.idle.sleeps(status, kind, stakes_of(tracked.record.revision.function, late_s))
            if why is not None:
                try:
                    await self._backend.sleep(replica)
                except SleepRefusedError as error:  # It ends, as without.
                    self.idle.refused(status, str(error))
                else:
                    self._autoscaler.add_reason(tracked.id, reason("put_to_sleep", why))
                    return
        await self._backend.remove(replica)

    def _is_in_place(self, tracked: TrackedRevision, decision: Decision) -> bool:
        """Returns whether the last plan had nothing to do and nothing that a plan depends on is another one since. Of
        most revisions nothing changes in a second."""
        if tracked.in_place is None or decision.is_dry_run or decision.at < tracked.acted_at:
            return False
        if tracked.in_place != (self._world.replicas_of(tracked.id), decision.groups):
            return False
        if any(each.code in _ABOUT_PLACES for each in decision.reasons):
            return False
        tracked.acted_at = decision.at
        return True

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

    def _note_room(self, tracked: TrackedRevision, steps: Plan, decision: Decision) -> None:
        """Notes whether the revision has a place for what the decision wants, and why not."""
        why, now = self._lacking(tracked, steps, decision), self._clock.now()
        if why is None:
            tracked.lacks_room(None, now)
        elif not self._world.has_place(tracked.id) and (coming := self._autoscaler.coming(tracked.id)) is not None:
            tracked.lacks_room(f"a place is being freed for it: {coming}", now, is_coming=True)
        else:
            holders = self._autoscaler.holders(tracked.id)
            public = why + _held_by(holders, self._world.protected())
            tracked.lacks_room(why + _held_by(holders, ()), now, public=public)

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


def _held_by(holders: Sequence[Holder], hidden: Collection[str]) -> str:
    """Returns ``; held by a (busy, until ...)``. Functions in ``hidden`` are counted, not named."""
    shown = [f"{each.function} with {each.replicas} ({each.why})" for each in holders if each.function not in hidden][
        :_SHOWN_HOLDERS
    ]
    left = len(holders) - len(shown)
    others = [f"{left} {'other function' if left == 1 else 'other functions'}"] if left else []
    return f"; held by {', '.join(shown + others)}" if holders else ""


def _words(room: Room) -> str:
    free = f"{max(0, room.free)} of {room.total} places free"
    return free if room.why is None else f"{free} ({room.why})"
