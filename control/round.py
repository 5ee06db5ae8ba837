"""One second of the world: samples, decisions, plans, backend, weights, route table.

The round runs once a second; an activation, a readiness change and a deploy are acted upon at once. Three rules keep
these from disturbing each other: a revision's plan is made and carried out by one task at a time; a decision that is
older than one already carried out is void; a plan is made from the backend's state at the moment it is carried out.
So any number of gateway workers that push at once cause one first start.

Every revision that something is left of is tracked in a role. *Serving* takes the traffic, a *candidate* takes over
the moment that one of its replicas is ready, a *retired* one drains to zero when no gateway can send it anything any
more: every worker has applied a table without it and reports nobody waiting for it.

A candidate that finds no room gets it from the serving revision: one replica's, where that has several. Where it has
one, or none, the candidate takes the traffic before it is ready, so that new requests wait for it and the old ones
are finished; should its start fail, the old revision serves again. That is tried once per candidate.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final, Protocol

from control.coldstarts import ColdStarts
from control.faults import Faults
from control.links import Link
from control.meter import TrafficMeter
from control.pulse import Pulse
from control.registry import Deployed, Registry, RevisionRecord
from control.tracking import Tracked
from control.views import Role
from tidegate.aio.tasks import TaskOwner
from tidegate.clock import Clock
from tidegate.errors import TidegateError
from tidegate.records import (
    Activation,
    ColdStartPhases,
    Decision,
    GatewaySample,
    Reason,
    ReplicaSample,
    RouteTable,
)
from tidegate.replica import ReplicaState

if TYPE_CHECKING:
    from autoscaler.live import Autoscaler
    from autoscaler.observation import AcceleratorRoom
    from deploy.backend import Backend, ReplicaStatus
    from deploy.plan import Create, Plan
    from traffic.table import ServedFunction, TableBuilder

PERIOD_S: Final = 1.0
STARVED_S: Final = 2.0
"""Room that is being given back is waited for so long before a candidate takes the only place."""

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
        autoscaler: "Autoscaler",
        tables: "TableBuilder",
        gateways: Gateways,
        cold_starts: ColdStarts,
        meter: TrafficMeter,
        faults: Faults,
        pulse: Pulse,
        clock: Clock,
        rng: random.Random,
        reach: Reach = Link,
        took: Callable[[float], object] = lambda _: None,
    ) -> None:
        # Imported here and not at the first activation, which would wait for it.
        from deploy.plan import plan
        from traffic.weights import ServiceRates, Weights

        self._make_plan = plan
        self.registry = registry
        self.backend = backend
        self.autoscaler = autoscaler
        self.gateways = gateways
        self.cold_starts = cold_starts
        self.meter = meter
        self.faults = faults
        self.pulse = pulse
        self.clock = clock
        self.samples: dict[str, ReplicaSample] = {}
        """The last one of each replica."""
        self._tables = tables
        self._rng = rng
        self._reach = reach
        self._took = took
        self._rates = ServiceRates()
        self._weights = Weights()
        self._tracked: dict[str, Tracked] = {}
        self._links: dict[str, Admin] = {}
        self._ahead: dict[str, int] = {}
        """Number of the candidate that took a function's traffic before it was ready, for want of room."""
        self._went_ahead: set[str] = set()
        """Revisions that were given that chance."""
        self._published: RouteTable | None = None
        self._publishing = asyncio.Lock()
        self._owner = TaskOwner("round", self._report)
        self._wake = asyncio.Event()
        self._unwatch: Callable[[], None] | None = None
        self.seconds = 0
        """Rounds so far."""

    # --- life ---

    def begin(self) -> RouteTable:
        """Takes up what is deployed and what runs; the first route table."""
        self._unwatch = self.backend.watch(self.changed)
        for status in self.backend.replicas():
            if (record := self.registry.revision(status.revision)) is not None and status.revision not in self._tracked:
                self._track(Tracked(record=record, role=Role.RETIRED), fresh=False)
        self.sync(restart=True)
        for status in self.backend.replicas():
            self._note(status)
        self._published = self._build()
        return self._published

    async def run(self) -> None:
        """A round every second, sooner when a replica broke; until cancelled."""
        due = self.clock.now()
        while True:
            await self.second()
            due = max(due + PERIOD_S, self.clock.now())
            self._wake.clear()
            try:
                async with asyncio.timeout(max(0.0, due - self.clock.now())):
                    await self._wake.wait()
            except TimeoutError:
                continue

    async def close(self) -> None:
        """Ends everything under way here; replicas are not touched."""
        if self._unwatch is not None:
            self._unwatch()
        await self._owner.close()
        for link in self._links.values():
            await link.close()
        self._links.clear()

    # --- the second ---

    async def second(self) -> None:
        """Pull, decide, plan, act, publish."""
        began = self.clock.now()
        self._tell_fleet()
        await self._tell_sources()
        await self.autoscaler.sample()
        self._tell_fleet()
        now = self.clock.now()
        decisions = [(self._tracked.get(each.revision), each) for each in self.autoscaler.decide(now)]
        known = [(tracked, decision) for tracked, decision in decisions if tracked is not None]
        # The serving ones last: they see whether a candidate has found its place.
        for is_serving in (False, True):
            acts = []
            for tracked, decision in known:
                if (tracked.role is Role.SERVING) is not is_serving:
                    continue
                found = self._settled(tracked, decision, now)
                if found is not None:
                    tracked.decision = found
                    phases = ColdStartPhases(decide_s=self.clock.now() - now)
                    acts.append(self._act(tracked, found, phases))
            await asyncio.gather(*acts)
        self._forget_gone()
        self.cold_starts.sweep(now)
        await self.publish()
        self.seconds += 1
        self._took(self.clock.now() - began)
        self.pulse.fire()

    def _settled(self, tracked: Tracked, decision: Decision, now: float) -> Decision | None:
        """The autoscaler's decision as the revision's role allows it; None: nothing is to be done."""
        if tracked.role is Role.RETIRED:
            return _farewell(tracked, now) if self._may_leave(tracked) else None
        if tracked.role is Role.SERVING and (starved := self._starved(tracked)) is not None:
            return self._make_room(tracked, starved, decision)
        return decision

    def activated(self, activation: Activation) -> None:
        """A gateway says that a request waits and nothing is ready: decided and started in this very turn."""
        seen = self.clock.now()
        tracked = self._tracked.get(activation.revision)
        if tracked is None:
            return
        self._tell_fleet()
        decision = self.autoscaler.activated(activation, seen)
        if decision is None or decision.desired is None:
            return
        tracked.decision = decision
        phases = ColdStartPhases(decide_s=self.clock.now() - seen)
        self._owner.spawn(self._act(tracked, decision, phases), name=f"activate {tracked.id}")

    async def _act(self, tracked: Tracked, decision: Decision, phases: ColdStartPhases) -> None:
        decided = self.clock.now()
        async with tracked.turn:
            if decision.at < tracked.acted_at:
                return
            tracked.acted_at = decision.at
            plan = self._plan(tracked, decision)
            tracked.plan = plan
            self._note_unplaced(tracked, plan)
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

    def _plan(self, tracked: Tracked, decision: Decision) -> "Plan":
        return self._make_plan(
            decision,
            self.backend.replicas(),
            self.backend.room(tracked.record.revision),
            now=self.clock.now(),
            rng=self._rng,
            in_flight={name: sample.in_flight for name, sample in self.samples.items()},
            failure=self.backend.failure(tracked.id),
        )

    async def _create(self, tracked: Tracked, step: "Create", phases: ColdStartPhases) -> None:
        now = self.clock.now()
        of_function = [each for each in self.backend.replicas() if each.function == tracked.function]
        self.cold_starts.started(
            function=tracked.function,
            revision=tracked.id,
            replica=step.replica,
            accelerator=step.accelerator,
            at=now,
            from_zero=not any(each.state is ReplicaState.READY for each in of_function),
        )
        try:
            status = await self.backend.create(
                step.replica, tracked.record.revision, step.accelerator, phases, share=step.share
            )
        except TidegateError as error:
            self.cold_starts.gone(step.replica)
            self.faults.set(f"start of {tracked.id}", str(error))
            return
        self.faults.clear(f"start of {tracked.id}")
        self.cold_starts.progressed(status.id, status.phases)

    # --- what happens meanwhile ---

    def changed(self, status: "ReplicaStatus") -> None:
        """The backend says that a replica changed."""
        self._note(status)
        if status.state is ReplicaState.FAILED:
            self._fall_back(status)
            self._wake.set()
        self._owner.spawn(self.publish(), name="publish")
        self.pulse.fire()

    def _note(self, status: "ReplicaStatus") -> None:
        self.cold_starts.progressed(status.id, status.phases)
        if status.state in _LEFT:
            self.cold_starts.gone(status.id)
            self.samples.pop(status.id, None)
        tracked = self._tracked.get(status.revision)
        if status.state is not ReplicaState.READY or tracked is None:
            return
        tracked.ready_at = max(tracked.ready_at, status.ready_at or self.clock.now())
        deployed = self.registry.get(tracked.function)
        if deployed is None:
            return
        number = tracked.record.number
        unproven = deployed.current.number == number and not deployed.proven
        if unproven or (deployed.candidate is not None and deployed.candidate.number == number):
            self._owner.spawn(self._promote(tracked), name=f"promote {tracked.id}")

    def _starved(self, serving: Tracked) -> Tracked | None:
        """The candidate that finds no room beside the serving revision."""
        others = (each for each in self.tracked(serving.function) if each.role is Role.CANDIDATE)
        return next((each for each in others if each.unplaced_since is not None), None)

    def _make_room(self, serving: Tracked, candidate: Tracked, decision: Decision) -> Decision:
        """The serving revision's decision, less the place that the candidate needs."""
        here = [each for each in self.backend.replicas() if each.revision == serving.id]
        present = sum(each.is_wanted for each in here)
        limit = present if present <= 1 or any(each.is_leaving for each in here) else present - 1
        starved_s = self.clock.now() - (candidate.unplaced_since or self.clock.now())
        if present <= 1 and starved_s >= STARVED_S and candidate.id not in self._went_ahead:
            self._went_ahead.add(candidate.id)
            self._ahead[serving.function] = candidate.record.number
            self.sync()
            self._owner.spawn(self.publish(), name="publish")
        if candidate.id in self._went_ahead:
            return decision
        return without_one(decision, limit, tuple(room.accelerator for room in self.rooms(candidate)))

    def _fall_back(self, status: "ReplicaStatus") -> None:
        """A candidate that was let ahead could not start: the old revision serves again."""
        deployed = self.registry.get(status.function)
        if deployed is None or deployed.candidate is None:
            return
        candidate = deployed.candidate
        if candidate.revision.id == status.revision and self._ahead.get(deployed.name) == candidate.number:
            del self._ahead[deployed.name]
            self.sync()

    async def _promote(self, tracked: Tracked) -> None:
        self.registry.promote(tracked.function, tracked.record.number)
        self._ahead.pop(tracked.function, None)
        self.sync()
        await asyncio.gather(self.publish(), self.registry.save(tracked.function))
        self.pulse.fire()

    def gateway_seen(self, sample: GatewaySample) -> None:
        """One pull of a worker."""
        self.meter.record(sample, self.clock.now())
        for seen in sample.cold_starts:
            self.cold_starts.answered(seen)

    def replica_seen(self, sample: ReplicaSample) -> None:
        """One pull of a queue_proxy."""
        before = self.samples.get(sample.replica)
        self.samples[sample.replica] = sample
        if before is None or before.incarnation != sample.incarnation:
            return
        accelerator = next((each.accelerator for each in self.backend.replicas() if each.id == sample.replica), None)
        if accelerator is not None:
            done, busy_s = sample.inferences - before.inferences, sample.busy_s - before.busy_s
            self._rates.measured(sample.revision, accelerator, done, busy_s)

    # --- what is deployed ---

    def sync(self, *, restart: bool = False) -> None:
        """Brings the tracked revisions in line with the registry. ``restart``: they were known before this process."""
        wanted: dict[str, Tracked] = {}
        for deployed in self.registry.all():
            for record, role in _roles(deployed, self._ahead.get(deployed.name)):
                tracked = self._tracked.get(record.revision.id) or Tracked(record=record, role=role)
                tracked.role, tracked.left_in = role, None
                wanted[tracked.id] = tracked
                proven = deployed.proven and role is Role.SERVING
                if tracked.id not in self._tracked:
                    self._track(tracked, fresh=not (restart and proven))
        for tracked in self._tracked.values():
            if tracked.id not in wanted and tracked.role is not Role.RETIRED:
                tracked.role, tracked.left_in = Role.RETIRED, None

    def soon(self) -> None:
        """Something was deployed or deleted: do not wait for the second."""
        self._wake.set()

    def tracked(self, function: str) -> tuple[Tracked, ...]:
        """All revisions of a function that something is left of, newest first."""
        found = (each for each in self._tracked.values() if each.function == function)
        return tuple(sorted(found, key=lambda each: -each.record.number))

    async def expositions(self) -> list[str]:
        """The Prometheus texts of the queue_proxies that answer."""
        texts = await asyncio.gather(*(link.get("/metrics") for link in self._links.values()), return_exceptions=True)
        return [text.decode() for text in texts if isinstance(text, bytes)]

    @property
    def table(self) -> RouteTable | None:
        return self._published

    def _track(self, tracked: Tracked, *, fresh: bool) -> None:
        ready = sum(
            each.state is ReplicaState.READY and each.revision == tracked.id for each in self.backend.replicas()
        )
        self.autoscaler.apply(tracked.record.revision, fresh=fresh, ready=ready)
        self._tracked[tracked.id] = tracked

    def _may_leave(self, tracked: Tracked) -> bool:
        """Whether no gateway can send a retired revision anything any more."""
        left_in = tracked.left_in
        if left_in is None or any(version < left_in for version in self.gateways.versions()):
            return False
        return self.meter.waiting(tracked.id) == 0

    def _forget_gone(self) -> None:
        there = {each.revision for each in self.backend.replicas()}
        for tracked in tuple(self._tracked.values()):
            if tracked.role is Role.RETIRED and tracked.id not in there and self._may_leave(tracked):
                del self._tracked[tracked.id]
                self._went_ahead.discard(tracked.id)
                self.autoscaler.forget(tracked.id)
                self._rates.forget(tracked.id)
                self._weights.forget(tracked.id)

    # --- telling the others ---

    def rooms(self, tracked: Tracked) -> "list[AcceleratorRoom]":
        """Accelerators that the revision may use, cheapest first."""
        from autoscaler.observation import AcceleratorRoom

        prices = {each.name: each.price_per_hour for each in self.backend.devices()}
        return [
            AcceleratorRoom(
                accelerator=name,
                room=room.free,
                price_per_hour=prices.get(name),
                mu_ips=self._rates.mu_ips(tracked.id, name),
            )
            for name, room in self.backend.room(tracked.record.revision).items()
        ]

    def _tell_fleet(self) -> None:
        rooms = {tracked.id: self.rooms(tracked) for tracked in self._tracked.values()}
        self.autoscaler.fleet(self.backend.replicas(), rooms)

    async def _tell_sources(self) -> None:
        there = {each.id: each for each in self.backend.replicas() if each.state in _SAMPLED}
        for name in self._links.keys() - there.keys():
            await self._links.pop(name).close()
        for name in there.keys() - self._links.keys():
            self._links[name] = self._reach(name, there[name].admin)
        replicas = {name: _sample_of(link) for name, link in self._links.items()}
        self.autoscaler.sources(self.gateways.sources(), replicas)

    async def publish(self) -> None:
        """Hands the newest route table to the gateways if it changed."""
        async with self._publishing:
            before = self._published
            table = self._build()
            self._published = table
            for tracked in self._tracked.values():
                if tracked.role is Role.RETIRED and tracked.left_in is None:
                    tracked.left_in = table.version
            if table is not before:
                await self.gateways.publish(table)

    def _build(self) -> RouteTable:
        return self._tables.build(self._served(), self.backend.replicas())

    def _served(self) -> "list[ServedFunction]":
        from traffic.table import RevisionShare, ServedFunction
        from traffic.weights import GroupCapacity

        now = self.clock.now()
        served = []
        for deployed in self.registry.all():
            shares = []
            function = deployed.current.function
            for tracked in sorted(self.tracked(deployed.name), key=lambda each: each.role is not Role.SERVING):
                if tracked.role is Role.SERVING:
                    function = tracked.record.function
                here = [each for each in self.backend.replicas() if each.revision == tracked.id]
                ready: dict[str, int] = {}
                for each in here:
                    ready[each.accelerator] = ready.get(each.accelerator, 0) + (each.state is ReplicaState.READY)
                mu = {name: self._rates.mu_ips(tracked.id, name) for name in sorted(ready)}
                capacities = [GroupCapacity(name, mu[name], ready[name]) for name in sorted(ready)]
                shares.append(
                    RevisionShare(
                        revision=tracked.record.revision,
                        percent=100.0 if tracked.role is Role.SERVING else 0.0,
                        weights=self._weights.update(tracked.id, capacities),
                        mu_ips={name: rate for name, rate in mu.items() if rate is not None},
                        failure=tracked.refusal(here, self.backend.failure(tracked.id), now),
                    )
                )
            served.append(ServedFunction(function=function, revisions=tuple(shares)))
        return served

    def _note_unplaced(self, tracked: Tracked, plan: "Plan") -> None:
        texts = [each.reason for each in plan.unplaced if each.until is None]
        texts += [f"{each.code}: {each.detail}" for each in plan.reasons if each.code in _NO_PLACE]
        if not texts:
            tracked.unplaced_since = tracked.unplaced = None
            return
        tracked.unplaced = "no accelerator has room for it: " + "; ".join(texts)
        if tracked.unplaced_since is None:
            tracked.unplaced_since = self.clock.now()

    def _report(self, name: str, error: BaseException) -> None:
        self.faults.set(name, f"{type(error).__name__}: {error}")

    def __repr__(self) -> str:
        return f"<Round {self.seconds} seconds, {len(self._tracked)} revisions>"


_NO_PLACE: Final = ("capped_by_capacity", "no_accelerator")


def _roles(deployed: Deployed, ahead: int | None) -> list[tuple[RevisionRecord, Role]]:
    """``ahead``: number of the candidate that takes the traffic already; None, or that of an older one: none does."""
    candidate = deployed.candidate
    if candidate is None:
        return [(deployed.current, Role.SERVING)]
    if candidate.number == ahead:
        return [(candidate, Role.SERVING)]
    return [(deployed.current, Role.SERVING), (candidate, Role.CANDIDATE)]


def without_one(decision: Decision, limit: int, accelerators: tuple[str, ...]) -> Decision:
    """At most ``limit`` replicas, taken from the groups on ``accelerators`` (of which one shall become free)."""
    if decision.groups is None or sum(group.replicas for group in decision.groups) <= limit:
        return decision
    surplus = sum(group.replicas for group in decision.groups) - limit
    groups = []
    for group in decision.groups:
        taken = min(surplus, group.replicas) if group.accelerator in accelerators else 0
        surplus -= taken
        groups.append(replace(group, replicas=group.replicas - taken))
    reason = Reason(code="makes_room", detail="a new revision needs a place to start in")
    total = sum(group.replicas for group in groups)
    return replace(decision, desired=total, groups=tuple(groups), reasons=(*decision.reasons, reason))


def _sample_of(link: Admin) -> Fetch:
    return lambda: link.get("/sample")


def _farewell(tracked: Tracked, now: float) -> Decision:
    """A retired revision is wanted by nobody."""
    return Decision(
        function=tracked.function,
        revision=tracked.id,
        at=now,
        policy=tracked.record.function.scaling.policy,
        ready=0,
        desired=0,
        groups=(),
        reasons=(Reason(code="retired", detail="another revision has taken over, or the function was deleted"),),
    )
