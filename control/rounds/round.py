"""One second of the world: samples, decisions, plans, backend, weights, route table.

The round runs once a second; an activation, a readiness change and a deploy are acted upon at once. Three rules keep
these from disturbing each other: a revision's plan is made and carried out by one task at a time; a decision that is
older than one already carried out is void; a plan is made from the backend's state at the moment it is carried out.
So any number of gateway workers that push at once cause one first start.

Every revision that something is left of is tracked in a role. *Serving* takes the traffic, alone or with others, a
*candidate* takes over the moment that one of its replicas is ready, or as its rollout goes on
(``tidegate.control.rounds.rollouts``), a *retired* one drains to zero when no gateway can send it anything any more:
every worker has applied a table without it and reports nobody waiting for it.

A candidate that finds no room gets it from the serving revision (``tidegate.control.rounds.replacement``).
"""

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final, Protocol

from tidegate.aio.loop.tasks import TaskOwner
from tidegate.clock import Clock
from tidegate.control.rounds.fleet_context import RoundContext
from tidegate.control.rounds.profiles import LearnedProfiles
from tidegate.control.rounds.recording import record
from tidegate.control.rounds.replacement import Succession
from tidegate.control.rounds.replicas import ReplicaIndex
from tidegate.control.rounds.roles import parts_of
from tidegate.control.rounds.rollouts import Rollouts
from tidegate.control.rounds.sizes import SizeRoutes
from tidegate.control.rounds.tracked import TrackedRevision, farewell
from tidegate.control.rounds.weights import Shares
from tidegate.control.state.faults import Faults
from tidegate.control.state.pulse import ChangeSignal
from tidegate.control.state.registry import Registry
from tidegate.control.views.views import Role
from tidegate.control.watch.cold_starts import ColdStarts
from tidegate.control.watch.cpus import Cpus
from tidegate.control.watch.gpus import Gpus
from tidegate.control.watch.traffic import TrafficMeter
from tidegate.control.workers.links import Link
from tidegate.errors import TidegateError
from tidegate.records.decision import Decision
from tidegate.records.gateway_sample import Activation, GatewaySample
from tidegate.records.replica_sample import ReplicaSample
from tidegate.records.replica_state import ColdStartPhases, ReplicaState
from tidegate.records.route_table import RouteTable

if TYPE_CHECKING:
    from tidegate.autoscaler.autoscaler import Autoscaler, FleetContext
    from tidegate.autoscaler.live import LiveAutoscaler
    from tidegate.autoscaler.measure.observation import AcceleratorRoom
    from tidegate.deploy.backend import Backend, ReplicaStatus
    from tidegate.deploy.placement.ledger import Room
    from tidegate.deploy.plan import Create, Plan
    from tidegate.traffic.table import TableBuilder

PERIOD_S: Final = 1.0

Fetch = Callable[[], Awaitable[bytes]]

_SAMPLED: Final = (ReplicaState.READY, ReplicaState.DRAINING)
_LEFT: Final = (ReplicaState.STOPPED, ReplicaState.FAILED)


class Gateways(Protocol):
    """The front door as the round needs it."""

    def sources(self) -> Mapping[str, Fetch]:
        """``GET /sample`` of every worker that can be reached, by name."""
        ...

    def versions(self) -> Iterable[tuple[int, int]]:
        """The route tables that the workers last said to work from."""
        ...

    async def publish(self, table: RouteTable) -> None: ...


class Admin(Protocol):
    """A queue_proxy's admin endpoint."""

    async def get(self, path: str) -> bytes: ...

    async def post(self, path: str, body: bytes = b"") -> bytes: ...

    async def close(self) -> None: ...


Reach = Callable[[str, str], Admin]
"""(replica, address of its admin endpoint) -> a line to it."""


class Round:
    """Ties the components together; holds no policy of its own."""

    def __init__(
        self,
        *,
        registry: Registry,
        backend: "Backend",
        autoscaler: "Callable[[FleetContext], LiveAutoscaler]",
        tables: "TableBuilder",
        gateways: Gateways,
        cold_starts: ColdStarts,
        meter: TrafficMeter,
        faults: Faults,
        pulse: ChangeSignal,
        clock: Clock,
        rng: random.Random,
        reach: Reach = Link,
        took: Callable[[float], object] = lambda _: None,
        aged: Callable[[float], object] = lambda _: None,
        learning: "Callable[[Autoscaler], LearnedProfiles] | None" = None,
        gpus: Gpus | None = None,
        cpus: Cpus | None = None,
    ) -> None:
        # Imported here and not at the first activation, which would wait for it.
        from tidegate.autoscaler.measure.history import History
        from tidegate.deploy.plan import plan
        from tidegate.deploy.revocation import Revocations

        self._make_plan = plan
        self.revocations = Revocations()
        self.registry = registry
        self.backend = backend
        self.live_autoscaler = autoscaler(RoundContext(self))
        self.autoscaler = self.live_autoscaler.core
        self.gateways = gateways
        self.cold_starts = cold_starts
        self.meter = meter
        self.faults = faults
        self.pulse = pulse
        self.clock = clock
        self.samples: dict[str, ReplicaSample] = {}
        """The last one of each replica."""
        self._sampled: dict[str, ReplicaStatus] = {}
        self._tables = tables
        self._rng = rng
        self._reach = reach
        self._took, self._aged = took, aged
        self.learning = (
            LearnedProfiles(autoscaler=self.autoscaler, backend=backend, clock=clock)
            if learning is None
            else learning(self.autoscaler)
        )
        self.sizes = SizeRoutes(meter, self.autoscaler)
        self._shares = Shares(self.learning.mu_ips, self.sizes)
        self.weights = self._shares.weights
        self.gpus = gpus or Gpus(None)
        self.cpus = cpus or Cpus(lambda pid: None)
        self.history = History()
        """What every function and group did lately."""
        self._tracked: dict[str, TrackedRevision] = {}
        self._of_function: dict[str, dict[str, TrackedRevision]] = {}
        self._census = ReplicaIndex()
        self._links: dict[str, Admin] = {}
        self.succession = Succession(self)
        self.rollouts = Rollouts(self)
        self._published: RouteTable | None = None
        self._publishing = asyncio.Lock()
        self._asked = self._told = 0
        """How often somebody wanted the table published, and how many of those the last table was built for."""
        self._owner = TaskOwner("round", self._report)
        self._wake = asyncio.Event()
        self._unwatch: Callable[[], None] | None = None
        self.seconds = 0
        """Rounds so far."""

    # --- life ---

    def begin(self) -> RouteTable:
        """Takes up what is deployed and what runs; the first route table."""
        self._unwatch = self.backend.watch(self.changed)
        self._census.count(self.backend.replicas())
        for status in self.backend.replicas():
            if (record := self.registry.revision(status.revision)) is not None and status.revision not in self._tracked:
                self._track(TrackedRevision(record=record, role=Role.RETIRED), fresh=False)
        self.sync(restart=True)
        for status in self.backend.replicas():
            self._note(status)
        self._published = self._build()
        return self._published

    async def run(self) -> None:
        """A round every second, sooner when a replica broke or may be tried again; until cancelled."""
        due = self.clock.now()
        while True:
            self._wake.clear()
            await self.second()
            now = self.clock.now()
            if due <= now:
                due = max(due + PERIOD_S, now)
            try:
                async with asyncio.timeout(max(0.0, self.next_wakeup(due) - now)):
                    await self._wake.wait()
            except TimeoutError:
                continue

    def next_wakeup(self, due: float) -> float:
        """When a round has something to do: ``due``, or before it the end of a back-off."""
        now = self.clock.now()
        plans = (tracked.plan for tracked in self._tracked.values() if tracked.plan is not None)
        ends = (each.until for plan in plans for each in plan.unplaced if each.until is not None)
        return min((end for end in ends if now < end < due), default=due)

    async def close(self) -> None:
        """Ends everything under way here; replicas are not touched."""
        if self._unwatch is not None:
            self._unwatch()
        await self._owner.close()
        await self.learning.close()
        self.live_autoscaler.close()
        for link in self._links.values():
            await link.close()
        self._links.clear()

    # --- the second ---

    async def second(self) -> None:
        """Pull, decide, plan, act, publish."""
        began = self.clock.now()
        self._census.count(self.backend.replicas())
        self.succession.review(began)
        await self._revoke(began)
        await self._tell_sources()
        reading = self.gpus.turn(self.backend.replicas(), self.backend.devices(), began)
        self._owner.spawn(reading, name="gpus")
        self.cpus.turn(self.backend.replicas(), began)
        await self.live_autoscaler.sample()
        self._tell_fleet()
        now = self.clock.now()
        self.rollouts.review(now)
        decisions = [(self._tracked.get(each.revision), each) for each in await self.live_autoscaler.decided(now)]
        known = [(tracked, decision) for tracked, decision in decisions if tracked is not None]
        for _, decision in known:
            if (age_s := decision.observed.get("age_s")) is not None:
                self._aged(age_s)
        for turn in _TURNS:
            acts = []
            for tracked, decision in known:
                if self.succession.turn(tracked) != turn:
                    continue
                found = self._settled(tracked, decision, now)
                if found is not None:
                    self.autoscaler.settled(decision, found)
                    tracked.decision = found
                    phases = ColdStartPhases(decide_s=self.clock.now() - now)
                    acts.append(self._act(tracked, found, phases))
            await asyncio.gather(*acts)
        await self.learning.turn(now, self.meter.all_waiting())
        self._tell_limits()
        self._forget_gone()
        self.cold_starts.sweep(now)
        await self.publish()
        await record(self, self.history)
        self.seconds += 1
        self._took(self.clock.now() - began)
        self.pulse.fire()

    def _settled(self, tracked: TrackedRevision, decision: Decision, now: float) -> Decision | None:
        """The autoscaler's decision as the revision's role allows it; None: nothing is to be done."""
        if tracked.role is Role.RETIRED:
            return farewell(tracked, now) if self._may_leave(tracked) else None
        if tracked.role is Role.CANDIDATE:
            return decision
        if (starved := self.succession.starved(tracked)) is not None:
            return self.succession.make_room(tracked, starved, decision)
        return decision

    def activated(self, activation: Activation) -> None:
        """A gateway says that a request waits and nothing is ready: decided and started in this very turn."""
        seen = self.clock.now()
        tracked = self._tracked.get(activation.revision)
        if tracked is None:
            return
        self._tell_fleet(only=tracked)
        decision = self.autoscaler.activated(activation, seen)
        if decision is None or decision.desired is None:
            return
        tracked.decision = decision
        phases = ColdStartPhases(decide_s=self.clock.now() - seen)
        self._owner.spawn(self._act(tracked, decision, phases), name=f"activate {tracked.id}")

    async def _act(self, tracked: TrackedRevision, decision: Decision, phases: ColdStartPhases) -> None:
        decided = self.clock.now()
        async with tracked.turn:
            if decision.at < tracked.acted_at:
                return
            tracked.acted_at = decision.at
            plan = self._plan(tracked, decision)
            tracked.plan = plan
            self._note_unplaced(tracked, plan, decision)
            for create in plan.create:
                waited = self.clock.now() - decided
                await self._create(tracked, create, replace(phases, schedule_s=waited))
            for revive in plan.revive:
                await self.backend.revive(revive.replica)
            for remove in plan.remove:
                try:
                    await self.backend.remove(remove.replica)
                except TidegateError:
                    continue  # it has gone by itself
        if not plan.is_empty:
            await self.publish()

    def _plan(self, tracked: TrackedRevision, decision: Decision) -> "Plan":
        here = self._census.of(tracked.id)
        samples = ((each.id, self.samples.get(each.id)) for each in here)
        return self._make_plan(
            decision,
            here,
            self.room(tracked),
            now=self.clock.now(),
            rng=self._rng,
            in_flight={name: sample.in_flight for name, sample in samples if sample is not None},
            failure=self.backend.failure(tracked.id),
        )

    async def _create(self, tracked: TrackedRevision, step: "Create", phases: ColdStartPhases) -> None:
        now = self.clock.now()
        self.cold_starts.started(
            function=tracked.function,
            revision=tracked.id,
            replica=step.replica,
            accelerator=step.accelerator,
            at=now,
            from_zero=not any(self.is_ready(each) for each in self._of_function.get(tracked.function, ())),
        )
        try:
            status = await self.backend.create(
                step.replica, tracked.record.revision, step.accelerator, phases, share=step.share
            )
        except TidegateError as error:
            self.cold_starts.gone(step.replica)
            self.faults.set(f"start of {tracked.id}", str(error))
            self.revocations.failed(tracked.id, step.accelerator, now, str(error))
            return
        self.faults.clear(f"start of {tracked.id}")
        self.cold_starts.progressed(status.id, status.phases)

    # --- what happens meanwhile ---

    def changed(self, status: "ReplicaStatus") -> None:
        """The backend says that a replica changed."""
        self._census.note(status)
        self._note(status)
        deployed = self.registry.get(status.function)
        if deployed is not None and deployed.rolling is not None:
            self.sync(only=deployed.name)  # a candidate has traffic only while it is ready
        if status.state is ReplicaState.FAILED:
            if status.ready_at is None and status.revision in self._tracked:
                why = status.reason or "it broke before it was ready"
                self.revocations.failed(status.revision, status.accelerator, self.clock.now(), why.splitlines()[0])
            self.succession.fall_back(status)
            self._wake.set()
        self.publish_soon()
        self.pulse.fire()

    def _note(self, status: "ReplicaStatus") -> None:
        self.cold_starts.progressed(status.id, status.phases)
        if status.state in _LEFT:
            self.cold_starts.gone(status.id)
            self.samples.pop(status.id, None)
            self._sampled.pop(status.id, None)
        tracked = self._tracked.get(status.revision)
        if status.state is not ReplicaState.READY or tracked is None:
            return
        self._tell_limits(status)
        tracked.ready_at = max(tracked.ready_at, status.ready_at or self.clock.now())
        if self._is_awaited(tracked):
            self._owner.spawn(self.promote(tracked), name=f"promote {tracked.id}")

    def _is_awaited(self, tracked: TrackedRevision) -> bool:
        """Whether the revision is to serve as soon as a replica of it is ready."""
        deployed, number = self.registry.get(tracked.function), tracked.record.number
        if deployed is None:
            return False
        if deployed.current.number == number:
            return not deployed.proven
        return deployed.is_direct and deployed.candidate is not None and deployed.candidate.number == number

    async def promote(self, tracked: TrackedRevision) -> None:
        if not self._is_awaited(tracked):
            return  # another of its replicas was ready before
        self.registry.promote(tracked.function, tracked.record.number)
        self.succession.end(tracked.function)
        self.sync(only=tracked.function)
        await asyncio.gather(self.publish(), self.registry.save(tracked.function))
        self.pulse.fire()

    def gateway_seen(self, sample: GatewaySample) -> None:
        """One pull of a worker."""
        self.meter.record(sample, self.clock.now())
        for seen in sample.cold_starts:
            self.cold_starts.answered(seen)

    def replica_seen(self, sample: ReplicaSample) -> None:
        """One pull of a queue_proxy."""
        status = self._sampled.get(sample.replica)
        if status is None:
            return
        before = self.samples.get(sample.replica)
        self.samples[sample.replica] = sample
        if before is not None and before.incarnation != sample.incarnation:
            before = None
        self.learning.measured(before, sample, status.accelerator)
        if before is not None:
            self._shares.measured(before, sample, status.accelerator)

    # --- what is deployed ---

    def sync(self, *, restart: bool = False, only: str | None = None) -> None:
        """Brings the tracked revisions in line with the registry. ``restart``: they were known before this process.
        ``only``: those of one function."""
        wanted = set()
        for deployed in self.registry.all() if only is None else filter(None, (self.registry.get(only),)):
            for part in parts_of(deployed, self.succession.ahead(deployed.name), self.is_ready):
                id_ = part.record.revision.id
                tracked = self._tracked.get(id_)
                if tracked is None:
                    tracked = TrackedRevision(record=part.record, role=part.role)
                    tracked.take(part)
                    proven = deployed.proven and part.role is Role.SERVING
                    sleeps = part.role is Role.SERVING and not part.percent
                    self._track(tracked, fresh=not (sleeps or (restart and proven)))
                tracked.take(part)
                wanted.add(id_)
        for tracked in (self._tracked if only is None else self._of_function.get(only, {})).values():
            if tracked.id not in wanted:
                tracked.retire()

    def replicas_of(self, revision: str) -> "Sequence[ReplicaStatus]":
        """In order of creation."""
        return self._census.of(revision)

    def is_ready(self, revision: str) -> bool:
        """Whether a replica of the revision is ready."""
        return self._census.ready(revision) > 0

    # --- what is known ---

    def save_soon(self, function: str) -> None:
        self._owner.spawn(self.registry.save(function), name=f"save {function}")

    def soon(self) -> None:
        """Something was deployed or deleted: do not wait for the second."""
        self._wake.set()

    def tracked(self, function: str) -> tuple[TrackedRevision, ...]:
        """All revisions of a function that something is left of, newest first."""
        found = self._of_function.get(function, {}).values()
        return tuple(sorted(found, key=lambda each: -each.record.number))

    def find(self, revision: str) -> TrackedRevision | None:
        """What is known of a revision while anything of it is left."""
        return self._tracked.get(revision)

    async def expositions(self) -> list[str]:
        """The Prometheus texts of the queue_proxies that answer."""
        texts = await asyncio.gather(*(link.get("/metrics") for link in self._links.values()), return_exceptions=True)
        return [text.decode() for text in texts if isinstance(text, bytes)]

    @property
    def table(self) -> RouteTable | None:
        return self._published

    def _track(self, tracked: TrackedRevision, *, fresh: bool) -> None:
        self.autoscaler.apply(tracked.record.revision, fresh=fresh, ready=self._census.ready(tracked.id))
        self.learning.track(tracked.record.revision)
        self._tracked[tracked.id] = self._of_function.setdefault(tracked.function, {})[tracked.id] = tracked

    def _may_leave(self, tracked: TrackedRevision) -> bool:
        """Whether no gateway can send a retired revision anything any more."""
        left_in = tracked.left_in
        if left_in is None or any(version < left_in for version in self.gateways.versions()):
            return False
        return self.meter.waiting(tracked.id) == 0

    def _forget_gone(self) -> None:
        for tracked in tuple(self._tracked.values()):
            if tracked.role is Role.RETIRED and not self._census.of(tracked.id) and self._may_leave(tracked):
                del self._tracked[tracked.id], self._of_function[tracked.function][tracked.id]
                if not self._of_function[tracked.function]:
                    del self._of_function[tracked.function]
                self.succession.forget(tracked.id)
                self.learning.forget(tracked.id)
                self.revocations.forget(tracked.id)
                self.autoscaler.forget(tracked.id)
                self._shares.forget(tracked.id)
                self.meter.forget_revision(tracked.id)
        for name in self.registry.deleted():
            if name not in self._of_function:
                self.learning.drop(name)
                self._owner.spawn(self.registry.forget(name), name=f"forget {name}")

    # --- telling the others ---

    def room(self, tracked: TrackedRevision) -> "dict[str, Room]":
        """Free places for a revision, less those that are held for other functions."""
        here = self._census.of(tracked.id)
        return self.revocations.without_barred(tracked.id, here, self.succession.room(tracked), self.clock.now())

    async def _revoke(self, now: float) -> None:
        """Takes starts back that come to nothing; the decisions of this second find another kind."""
        from tidegate.autoscaler.decisions.reasons import reason

        for tracked in tuple(self._tracked.values()):
            here = self._census.of(tracked.id)
            room = self.succession.room(tracked) if self.revocations.needs_review(tracked.id, here) else {}
            if not room:
                continue
            timeout_s = tracked.record.revision.function.readiness.start_timeout_s
            for found in self.revocations.review(tracked.id, here, room, timeout_s, now):
                self.autoscaler.add_reason(tracked.id, reason("start_revoked", found.why))
                for replica in found.replicas:
                    with contextlib.suppress(TidegateError):  # it has gone by itself
                        await self.backend.remove(replica)

    def rooms(self, tracked: TrackedRevision) -> "list[AcceleratorRoom]":
        """Accelerators that the revision may use, cheapest first."""
        from tidegate.autoscaler.measure.observation import AcceleratorRoom

        prices = {each.name: each.price_per_hour for each in self.backend.devices()}
        return [
            AcceleratorRoom(
                accelerator=name,
                room=room.free,
                price_per_hour=prices.get(name),
                mu_ips=self.learning.prior_ips(tracked.id, name),
            )
            for name, room in self.room(tracked).items()
        ]

    def _tell_fleet(self, only: TrackedRevision | None = None) -> None:
        """``only``: an activation cannot wait for all others to be counted anew."""
        if only is not None:
            self.autoscaler.fleet_of(only.id, self._census.of(only.id), self.rooms(only))
            return
        rooms = {tracked.id: self.rooms(tracked) for tracked in self._tracked.values()}
        self.autoscaler.fleet(self.backend.replicas(), rooms)

    async def _tell_sources(self) -> None:
        self._sampled = there = {each.id: each for each in self.backend.replicas() if each.state in _SAMPLED}
        for name in self._links.keys() - there.keys():
            await self._links.pop(name).close()
        for name in there.keys() - self._links.keys():
            self._links[name] = self._reach(name, there[name].admin)
        replicas = {name: _sample_of(link) for name, link in self._links.items()}
        self.live_autoscaler.sources(self.gateways.sources(), replicas)

    def _tell_limits(self, only: "ReplicaStatus | None" = None) -> None:
        """Replicas that work with another concurrency limit than their group has learnt are told it. ``only``: one that
        has just become ready."""
        those = self.backend.replicas() if only is None else (only,)
        ready = (each for each in those if each.state is ReplicaState.READY)
        for status, limit in self.learning.orders(ready, self.samples):
            if status.id not in self._links:
                self._links[status.id] = self._reach(status.id, status.admin)
            self._owner.spawn(self.learning.order(self._links[status.id], limit), name=f"limit {status.id}")

    def publish_soon(self) -> None:
        self._owner.spawn(self.publish(), name="publish")

    async def publish(self) -> None:
        """Hands the newest route table to the gateways if it changed. Of many who ask at once the first of those who
        wait builds it for all."""
        self._asked += 1
        asked = self._asked
        async with self._publishing:
            if self._told >= asked:
                return
            await asyncio.sleep(0)  # others of this moment ask too
            asked, before = self._asked, self._published
            table = self._build()
            self._published = table
            for tracked in self._tracked.values():
                if tracked.role is Role.RETIRED and tracked.left_in is None:
                    tracked.left_in = table.version
            if table is not before:
                await self.gateways.publish(table)
            self._told = asked

    def _build(self) -> RouteTable:
        replicas = self.backend.replicas()
        served = self._shares.served(
            self.registry.all(), self._tracked.values(), replicas, self.backend.failure, self.clock.now()
        )
        return self._tables.build(served, replicas)

    def _note_unplaced(self, tracked: TrackedRevision, plan: "Plan", decision: Decision) -> None:
        lacks = any(each.until is None for each in plan.unplaced)
        has_place = self.succession.has_place(tracked)
        # What a dry run wishes beyond what it has is not looked for.
        is_content = decision.is_dry_run and has_place
        bit = {each.code: each.detail for each in plan.reasons}
        # Who has or gets a replica and may not have more under the limit over all functions lacks no place.
        is_over = _NO_SHARE in bit and not has_place and (decision.is_dry_run or not decision.desired)
        is_full = lacks or (not is_content and not bit.keys().isdisjoint(_NO_PLACE))
        if not (is_full or is_over):
            tracked.unplaced_since = tracked.unplaced = None
            return
        if is_full:
            what = "more of it" if has_place else "it"
            free = self.room(tracked)
            words = ", ".join(f"{name} has {_words(room)}" for name, room in free.items())
            tracked.unplaced = f"no accelerator has room for {what}: {words or 'none that it may use is here'}"
        else:
            tracked.unplaced = f"scaling.max-replicas, of all functions together, leaves no place: {bit[_NO_SHARE]}"
        if tracked.unplaced_since is None:
            tracked.unplaced_since = self.clock.now()

    def _report(self, name: str, error: BaseException) -> None:
        self.faults.set(name, f"{type(error).__name__}: {error}")

    def __repr__(self) -> str:
        return f"<Round {self.seconds} seconds, {len(self._tracked)} revisions>"


_TURNS: Final = (0, 1, 2)
_NO_PLACE: Final = ("capped_by_capacity", "no_accelerator")
_NO_SHARE: Final = "capped_by_total"


def _words(room: "Room") -> str:
    free = f"{max(0, room.free)} of {room.total} places free"
    return free if room.why is None else f"{free} ({room.why})"


def _sample_of(link: Admin) -> Fetch:
    return lambda: link.get("/sample")
