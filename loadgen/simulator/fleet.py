"""The virtual fleet: the product's backend in virtual time, and its replicas.

Creation, drain, revive, failure and back-off are :class:`tidegate.deploy.fake.FakeBackend`, placement its ledger. This
file simulates each of its replicas, and executes plans.
"""

import random
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from math import inf
from typing import Any, TypeVar

from tidegate.autoscaler.fleet import cores_of
from tidegate.autoscaler.measure.observation import AcceleratorRoom
from tidegate.autoscaler.profiles.admission import known_figures
from tidegate.deploy.backend import BackendError, ReplicaStatus
from tidegate.deploy.environment import is_shipped
from tidegate.deploy.fake import FakeBackend
from tidegate.deploy.placement.ledger import Accelerator, AcceleratorKind, NoRoomError, part_of
from tidegate.deploy.plan import plan
from tidegate.errors import TidegateError
from tidegate.function import Cancel, Function
from tidegate.loadgen.simulator.devices import Devices
from tidegate.loadgen.simulator.gate import SimulatedGateway
from tidegate.loadgen.simulator.kernel import Kernel
from tidegate.loadgen.simulator.lease import Lease
from tidegate.loadgen.simulator.profiles import ColdStart
from tidegate.loadgen.simulator.replica import VirtualReplica
from tidegate.loadgen.simulator.result import Start
from tidegate.loadgen.simulator.scenario import Deployed, Scenario
from tidegate.queue_proxy.metrics import Identity
from tidegate.records.decision import Decision
from tidegate.records.replica_state import ColdStartPhases, ReplicaState

T = TypeVar("T")
_UNNAMED = ColdStart()
_GONE = (ReplicaState.STOPPED, ReplicaState.FAILED)


def goes_on(function: Function, accelerator: Accelerator) -> bool:
    """Returns whether the model server computes on after a deadline: the shipped server, whose calls in threads cannot
    be interrupted, and others that declare it."""
    is_auto = function.cancel is Cancel.AUTO
    return function.cancel is Cancel.HOLD or (is_auto and is_shipped(function, accelerator))


def done(coroutine: Coroutine[Any, Any, T]) -> T:
    """Returns the result of a coroutine that never waits, as those of the backend in virtual time; raises RuntimeError
    if it does wait."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]  # what the coroutine returned
    coroutine.close()
    raise RuntimeError("a backend in virtual time waited for something")


class Fleet:
    """All replicas of a simulation."""

    def __init__(
        self,
        scenario: Scenario,
        kernel: Kernel,
        devices: Devices,
        rng: random.Random,
        *,
        replicas: dict[str, VirtualReplica],
        changed: Callable[[ReplicaStatus], None],
        started: Callable[[Start], None],
        leased: Callable[[Lease], None],
    ) -> None:
        """``replicas``: the living ones by id, owned here and shared with the gateway. Callbacks: ``changed`` for each
        change of a replica, ``started`` for each that became ready, ``leased`` for each that is gone."""
        self._scenario = scenario
        self._kernel = kernel
        self._devices = devices
        self._rng = random.Random(rng.random())
        self._service_rng = random.Random(rng.random())
        self._replicas = replicas
        self._changed = changed
        self._started = started
        self._leased = leased
        self._resized_at: dict[str, float] = {}
        """Time at which a replica last got other cores."""
        self._deployed = {each.revision.id: each for each in scenario.functions}
        self.gate: SimulatedGateway
        """Set once, before the run begins."""
        accelerators = [kind.accelerator for kind in scenario.kinds]
        cores = range(sum(each.cores * each.count for each in accelerators))
        self.backend = FakeBackend(
            accelerators,
            kernel,
            random.Random(rng.random()),
            start_up_s=0.0,
            host_cores=tuple(cores),
            strategy=scenario.strategy,
        )
        self.backend.watch(self._on_message)
        self._armed = inf
        """Next wake-up of the backend."""
        self.cold_starts = 0
        """Replicas that became ready, without the initial ones."""

    # --- what exists ---

    def statuses(self) -> tuple[ReplicaStatus, ...]:
        return self.backend.replicas()

    def rooms(self) -> dict[str, list[AcceleratorRoom]]:
        """Returns the accelerators that each revision may use, cheapest first."""
        return {
            name: [self._room(deployed, kind, room.free) for kind, room in self.backend.room(deployed.revision).items()]
            for name, deployed in self._deployed.items()
        }

    def _room(self, deployed: Deployed, kind: str, free: int) -> AcceleratorRoom:
        accelerator = self._devices.kinds[kind].accelerator
        given = deployed.known.get(kind) or known_figures(deployed.revision.function, accelerator)
        return AcceleratorRoom(
            accelerator=kind,
            room=free,
            price_per_hour=accelerator.price_per_hour * part_of(deployed.revision.function, accelerator),
            mu_ips=given.mu_ips,
            one_s=given.one_s,
        )

    # --- what is done ---

    def begin(self) -> None:
        """Starts the initial replicas, which are ready at once."""
        for deployed in self._scenario.functions:
            for accelerator, count in deployed.ready.items():
                for number in range(count):
                    name = f"{deployed.revision.id}-{accelerator}-{number}"
                    self.backend.start_up_s = -self._start_up_s(accelerator)
                    done(self.backend.create(name, deployed.revision, accelerator, ColdStartPhases()))
        self.backend.on_wakeup(self._kernel.now())
        self.cold_starts = 0

    def _start_up_s(self, accelerator: str) -> float:
        return self._devices.kinds[accelerator].accelerator.start_up_s

    def carry_out(self, decision: Decision, in_flight: Mapping[str, int], now: float) -> float | None:
        """Executes a decision as creates, revives and removes. Returns the time at which to retry what could not be
        placed; None without a definite time."""
        deployed = self._deployed[decision.revision]
        steps = plan(
            decision,
            self.backend.replicas(),
            self.backend.room(deployed.revision),
            now=now,
            rng=self._rng,
            in_flight=in_flight,
            failure=self.backend.failure(decision.revision),
        )
        for create in steps.create:
            start = deployed.cold_starts.get(create.accelerator, _UNNAMED)
            self.backend.start_up_s = start.total_s
            phases = ColdStartPhases(decide_s=0.0, schedule_s=start.schedule_s)
            try:
                done(
                    self.backend.create(
                        create.replica, deployed.revision, create.accelerator, phases, share=create.share
                    )
                )
            except NoRoomError:
                continue  # Another function has taken the place meanwhile; the next second tries again.
        for revive in steps.revive:
            done(self.backend.revive(revive.replica))
        for remove in steps.remove:
            try:
                done(self.backend.remove(remove.replica))
            except BackendError:
                continue  # It has gone by itself.
        if decision.cores is not None and not decision.is_dry_run:
            for status in self.backend.replicas():
                is_ready = status.revision == decision.revision and status.state is ReplicaState.READY
                if is_ready and cores_of(status) != decision.cores:
                    self.resize(status.id, decision.cores)
        self.arm()
        return min((each.until for each in steps.unplaced if each.until is not None), default=None)

    def arm(self) -> None:
        """Schedules the backend's next wake-up."""
        when, now = self.backend.next_wakeup(), self._kernel.now()
        if when is not None and (when < self._armed or self._armed <= now):
            self._armed = when
            self._kernel.at(when, self._woken)

    def _woken(self, now: float, _: None) -> None:
        self._armed = inf
        self.backend.on_wakeup(now)
        self.arm()

    def resize(self, replica: str, cores: int) -> None:
        """Requests other cores for a replica; it has them ``resize_s`` later, if that is possible then."""
        self._kernel.at(self._kernel.now() + self._scenario.resize_s, self._resized, (replica, cores))

    def _resized(self, now: float, order: tuple[str, int]) -> None:
        name, cores = order
        body = self._replicas.get(name)
        if body is None:
            return
        try:
            status = done(self.backend.resize(name, threads=cores))
        except TidegateError:
            return
        self._lease(body, status, now)
        self._resized_at[name] = now
        body.resized(cores)

    def crash(self, revision: str) -> None:
        """Kills the replica that has been ready longest; does nothing if none is ready."""
        ready = [each for each in self.statuses() if each.revision == revision and each.state is ReplicaState.READY]
        if ready:
            self.backend.crash(min(ready, key=lambda each: (each.ready_at or 0.0, each.id)).id)

    def end(self, now: float) -> None:
        """Ends the run: leases of present replicas end now."""
        for status in self.backend.replicas():
            body = self._replicas.get(status.id)
            if body is not None:
                self._lease(body, status, now)

    # --- what the backend says ---

    def _on_message(self, status: ReplicaStatus) -> None:
        now = self._kernel.now()
        body = self._replicas.get(status.id)
        state = status.state
        if body is None and state is ReplicaState.STARTING:
            self._replicas[status.id] = self._body(status)
        elif body is not None and state is ReplicaState.READY:
            self._ready(body, status, now)
        elif body is not None and state is ReplicaState.DRAINING:
            body.ledger.drain(now)
            body.act(now)
        elif body is not None and state in _GONE:
            self._gone(body, status, now)
        self._changed(status)

    def _ready(self, body: VirtualReplica, status: ReplicaStatus, now: float) -> None:
        if body.ledger.state is ReplicaState.STARTING:
            # The backend lets it go when this is ended: when its ledger says that it is drained.
            self.backend.begin_work(status.id)
            self.cold_starts += 1
            start = self._deployed[status.revision].cold_starts.get(status.accelerator, _UNNAMED)
            body.phases = replace(status.phases, pull_s=start.pull_s, load_s=start.load_s, warm_s=start.warm_s)
            body.ledger.ready(now, body.phases)
            self._started(Start(status.id, status.function, status.accelerator, status.created_at, now))
        else:
            body.ledger.revive(now)
        body.act(now)

    def _gone(self, body: VirtualReplica, status: ReplicaStatus, now: float) -> None:
        del self._replicas[status.id]
        lost = body.breaks(now)
        self._lease(body, status, now)
        self.gate.lost(status.id, now)
        for bind in lost:
            self.gate.broke(body, bind, now)

    def _drained(self, replica: str) -> None:
        self.backend.end_work(replica)

    def _lease(self, body: VirtualReplica, status: ReplicaStatus, now: float) -> None:
        function = self._deployed[status.revision].revision.function
        kind = self._devices.kinds[status.accelerator].accelerator.kind
        self._leased(
            Lease(
                accelerator=status.accelerator,
                used_gb=function.gpu.memory_gb or (function.resources.memory_bytes or 0) / 1e9,
                start_s=self._resized_at.pop(status.id, status.created_at),
                end_s=now,
                function=function.name,
                unit=status.unit,
                share=status.share,
                cores=body.cores if kind is AcceleratorKind.CPU else 0,
            )
        )

    def _body(self, status: ReplicaStatus) -> VirtualReplica:
        deployed = self._deployed[status.revision]
        kind = self._devices.kinds[status.accelerator]
        identity = Identity(
            function=status.function,
            revision=status.revision,
            group=status.accelerator,
            replica=status.id,
            incarnation=status.id,
        )
        return VirtualReplica(
            identity,
            kernel=self._kernel,
            profile=deployed.profiles[status.accelerator],
            unit=self._devices.unit(status.accelerator, status.unit),
            sharing=kind.sharing,
            limit=deployed.limit_on(status.accelerator),
            counts=deployed.revision.function.concurrency_unit,
            cores=status.threads or kind.accelerator.cores or 1,
            share=status.share,
            hop_s=self._scenario.hop_s,
            goes_on=goes_on(deployed.revision.function, kind.accelerator),
            rng=self._service_rng,
            answered=self.gate.answered,
            expired=self.gate.expired,
            on_message=self.gate.on_message,
            drained=self._drained,
        )

    def __repr__(self) -> str:
        return f"<Fleet {len(self._replicas)} replicas>"
