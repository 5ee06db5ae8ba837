"""The simulation: virtual hardware under the product's own code, one event after the other.

Each second does what a round of the control process does: samples, decisions, plans, weights, route table. An
activation is decided upon when it arrives. What decides is the live :class:`tidegate.autoscaler.autoscaler.Autoscaler`
itself, on the simulation's clock; only sampling and the log are the simulation's own.
"""

import random
from collections.abc import Callable, Iterable, Mapping
from math import inf

from tidegate.activator.variants import FamilyMember, stand_ins
from tidegate.autoscaler.autoscaler import Autoscaler, StandaloneContext
from tidegate.autoscaler.measure.sampling import ALL_UP_TO, to_sample
from tidegate.deploy.backend import ReplicaStatus
from tidegate.function import Function
from tidegate.loadgen.simulator.counters import Ended, Request
from tidegate.loadgen.simulator.devices import Devices
from tidegate.loadgen.simulator.fleet import Fleet
from tidegate.loadgen.simulator.gate import WORKER, SimulatedGateway
from tidegate.loadgen.simulator.kernel import Kernel
from tidegate.loadgen.simulator.limits import SimulatedLimits
from tidegate.loadgen.simulator.replica import VirtualReplica
from tidegate.loadgen.simulator.result import FunctionSecond, SimulationResult, Sink
from tidegate.loadgen.simulator.scenario import BrokenStarts, Crash, Scenario
from tidegate.loadgen.simulator.shares import RecentSizes, SimulatedShares
from tidegate.loadgen.simulator.sources import ClosedLoop, OpenLoop, SimulatedPipelines, is_stage, revision_of
from tidegate.records.decision import Decision, Reason
from tidegate.records.gateway_sample import Activation
from tidegate.records.replica_state import ReplicaState
from tidegate.records.route_table import RouteTable
from tidegate.traffic.shares import GroupShares
from tidegate.traffic.size_routes import SizeRoutes
from tidegate.traffic.table import TableBuilder
from tidegate.traffic.weights import Weights

PERIOD_S = 1.0
_SAMPLED = (ReplicaState.READY, ReplicaState.DRAINING)


class _Log:
    """A decision log that writes to the sink."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink

    def write(self, decision: Decision) -> None:
        self._sink.decision(decision)

    def read(self, function: str, n: int) -> list[Decision]:
        return []


class _Context(StandaloneContext):
    """The published weights and lost replicas; neither rollouts nor devices."""

    def __init__(self, weights: Weights, lost: Callable[[str], int]) -> None:
        self._weights = weights
        self._lost = lost

    def lost(self, revision: str) -> int:
        return self._lost(revision)

    def weights(self, revision: str) -> Mapping[str, float]:
        return self._weights.published(revision)


class Simulation:
    """One run of one scenario; call :meth:`run` once."""

    def __init__(self, scenario: Scenario, sink: Sink) -> None:
        self._scenario = scenario
        self._sink = sink
        self.kernel = kernel = Kernel()
        rng = random.Random(scenario.seed)
        self._devices = Devices(kernel, scenario.kinds)
        self._replicas: dict[str, VirtualReplica] = {}
        functions = [each.revision for each in scenario.functions]
        self._revisions = {each.function.name: each.id for each in functions}
        weights = Weights()
        self.autoscaler = Autoscaler(kernel, _Context(weights, self._lost), _Log(sink))
        self._sizes = RecentSizes()
        sizes = SizeRoutes(self._sizes, self.autoscaler)
        self._shares = SimulatedShares(GroupShares(self.autoscaler.mu_ips, sizes, weights))
        self._limits = SimulatedLimits(scenario.functions, self.autoscaler.scaled)
        self._tables = TableBuilder(epoch=1, workers=1)
        self._published: RouteTable | None = None
        self._is_publishing = False
        self._ends_by_itself = False
        self._due = PERIOD_S
        """End of the present second."""
        self._ticks = 0
        self._wanted = dict.fromkeys(self._revisions.values(), 0)
        self.fleet = Fleet(
            scenario,
            kernel,
            self._devices,
            rng,
            replicas=self._replicas,
            changed=self._changed,
            started=sink.start,
            leased=sink.lease,
        )
        self._gate = self.fleet.gate = SimulatedGateway(
            kernel=kernel,
            rng=random.Random(rng.random()),
            message_s=scenario.message_s,
            turn_s=scenario.turn_s,
            timeouts={each.revision.id: each.timeout_s for each in scenario.functions},
            latencies={each.id: each.function.sla.latency_s for each in functions},
            idempotent=frozenset(each.id for each in functions if each.function.idempotent),
            variants=_variants([each.function for each in functions], self._revisions),
            replicas=self._replicas,
            activate=self._activate,
            caller=self._caller_ended,
        )
        targets = self._revisions | {each.name: revision_of(each) for each in scenario.pipelines}
        arrive = self._arrive if scenario.pipelines else self._gate.arrive
        self._open_loop = OpenLoop(scenario.arrivals, targets, functions[0].id, arrive)
        self._closed_loop = ClosedLoop(kernel, scenario.callers, targets, arrive)
        self._pipelines = SimulatedPipelines(
            scenario.pipelines, self._revisions, self._gate.arrive_stage, self._closed_loop.ended
        )

    def run(self, duration_s: float | None = None) -> SimulationResult:
        """Simulates ``duration_s`` seconds. None: until all requests have been sent and have ended, which callers
        without an end never reach. Raises ValueError for arrivals that fall in time or name an unknown function."""
        if duration_s is None and any(each.requests is None for each in self._scenario.callers):
            raise ValueError("callers without an end need a duration")
        self._ends_by_itself = duration_s is None
        self._begin()
        self.kernel.run(inf if duration_s is None else duration_s, self._open_loop)
        now = self.kernel.now()
        self._tell_sink(now)
        self.fleet.end(now)
        return SimulationResult(
            simulated_s=now,
            requests=self._open_loop.sent + self._closed_loop.sent,
            unended=self._gate.open + self._pipelines.open,
            cold_starts=self.fleet.cold_starts,
            switched=self._switched(),
        )

    def _switched(self) -> dict[tuple[str, str], int]:
        names = {revision: name for name, revision in self._revisions.items()}
        return {(names[own], names[other]): count for (own, other), count in self._gate.switched.items()}

    def _begin(self) -> None:
        self.autoscaler.pipelines(self._scenario.pipelines)
        for deployed in self._scenario.functions:
            ready = sum(deployed.ready.values())
            self._wanted[deployed.revision.id] = ready
            self.autoscaler.apply(deployed.revision, fresh=not ready, ready=ready)
        self.fleet.begin()
        self._publish(0.0, None)
        self._open_loop.begin()
        self._closed_loop.begin()
        for failure in self._scenario.failures:
            self.kernel.at(failure.at_s, self._fails, failure)
        self.kernel.at(self._due, self._second)

    # --- the second ---

    def _second(self, now: float, _: None) -> None:
        self._due = now + PERIOD_S
        self._round(now, None)
        self._tell_second(now)
        if self._ends_by_itself and self._open_loop.is_over and not self._closed_loop.open and not self._gate.open:
            self.kernel.stop()
        self.kernel.at(self._due, self._second)

    def _round(self, now: float, _: None) -> None:
        """Runs once a second, and when a replica broke or a back-off is over."""
        self._ticks += 1
        self._tell_sink(now)
        self._sample(now)
        if not self._scenario.keeps_scale:
            self._tell_fleet()
            for decision in self.autoscaler.decide(now):
                self._carry_out(decision, now)
        if self._limits:
            self._learn_limits(now)
        self._publish(now, None)

    def _tell_sink(self, now: float) -> None:
        ended = self._gate.take_ended()
        if self._scenario.pipelines:
            # Their stages are requests for the functions' counters alone: callers see the whole.
            ended = [each for each in ended if not is_stage(each)] + self._pipelines.take_ended()
        if ended:
            self._sink.requests(ended)
        spans = self._devices.take_busy(now)
        if spans:
            self._sink.busy(spans)

    def _sample(self, now: float) -> None:
        collector = self.autoscaler.collector
        groups: dict[tuple[str, str], list[str]] = {}
        there = []
        for status in self.fleet.statuses():
            if status.state in _SAMPLED:
                there.append(status.id)
            if status.state is ReplicaState.READY:
                groups.setdefault((status.revision, status.accelerator), []).append(status.id)
        left_out: set[str] = set()
        for ready in groups.values():
            if len(ready) > ALL_UP_TO:
                left_out |= set(ready) - to_sample(ready, self._ticks)
        collector.expect((WORKER,), there)
        gateway = self._gate.sample(now)
        collector.gateway(gateway, now)
        self._sizes.record(gateway, now)
        samples = [self._replicas[name].sample(now) for name in there if name not in left_out]
        for sample in samples:
            collector.replica(sample, now)
        self._shares.measured(samples, there)
        self._limits.measured(samples, there)

    def _learn_limits(self, now: float) -> None:
        counts = {name: self._gate.room.counts(name, now) for name in self._revisions.values()}
        for move in self._limits.turn(now, {name: each.waiting for name, each in counts.items() if each is not None}):
            why = Reason(code=move.reason.code, detail=f"{move.accelerator}: {move.reason.detail}")
            self.autoscaler.add_reason(move.revision, why)
        for status in self.fleet.statuses():
            self._tell_limit(status)

    def _tell_limit(self, status: ReplicaStatus) -> None:
        """Sends its group's limit to a ready replica that works with another one."""
        limit = self._limits.of(status.revision, status.accelerator)
        if limit is not None and status.state is ReplicaState.READY:
            self.kernel.at(self.kernel.now() + self._scenario.message_s, self._limited, (status.id, limit))

    def _limited(self, now: float, order: tuple[str, int]) -> None:
        name, limit = order
        replica = self._replicas.get(name)
        if replica is not None and replica.ledger.limit != limit:
            replica.ledger.resize(limit, now)
            replica.act(now)

    def _tell_fleet(self) -> None:
        self.autoscaler.fleet.put(self.fleet.statuses(), self.fleet.rooms())

    def _carry_out(self, decision: Decision, now: float) -> None:
        if decision.desired is not None:
            self._wanted[decision.revision] = decision.desired
        again_at = self.fleet.carry_out(decision, self._shares.in_flight(), now)
        if again_at is not None and again_at < self._due:
            self.kernel.at(again_at, self._round)

    def _tell_second(self, now: float) -> None:
        counts: dict[str, dict[ReplicaState, int]] = {}
        for status in self.fleet.statuses():
            states = counts.setdefault(status.revision, {})
            states[status.state] = states.get(status.state, 0) + 1
        for function, revision in self._revisions.items():
            states = counts.get(revision, {})
            room = self._gate.room.counts(revision, now)
            self._sink.second(
                FunctionSecond(
                    at_s=now,
                    function=function,
                    wanted=self._wanted[revision],
                    ready=states.get(ReplicaState.READY, 0),
                    starting=states.get(ReplicaState.STARTING, 0),
                    draining=states.get(ReplicaState.DRAINING, 0),
                    waiting=0 if room is None else room.waiting,
                )
            )
        for pipeline in self._scenario.pipelines:
            # Its replicas and what waits are its stages'.
            self._sink.second(FunctionSecond(now, pipeline.name, wanted=0, ready=0, starting=0, draining=0, waiting=0))

    # --- what happens between ---

    def _activate(self, activation: Activation) -> None:
        self.kernel.at(self.kernel.now() + self._scenario.message_s, self._activated, activation)

    def _activated(self, now: float, activation: Activation) -> None:
        if self._scenario.keeps_scale:
            return
        self._tell_fleet()
        decision = self.autoscaler.activated(activation, now)
        if decision is not None and decision.desired is not None:
            self._carry_out(decision, now)
        if self.autoscaler.claims_place(activation.revision, now):
            self.kernel.at(now, self._round)

    def _fails(self, now: float, failure: Crash | BrokenStarts) -> None:
        revision = self._revisions[failure.function]
        if isinstance(failure, Crash):
            self.fleet.crash(revision)
        else:
            self.fleet.backend.break_starts(revision, "its start was broken by the scenario", failure.times)

    def _lost(self, revision: str) -> int:
        """Returns the replicas that broke after they had been ready and have not been replaced."""
        return sum(each.is_lost for each in self.fleet.statuses() if each.revision == revision)

    def _arrive(self, request: Request, now: float) -> None:
        if self._pipelines.has(request):
            self._pipelines.begin(request, now)
        else:
            self._gate.arrive(request, now)

    def _caller_ended(self, ended: Ended) -> None:
        if is_stage(ended):
            self._pipelines.ended(ended)
        else:
            self._closed_loop.ended(ended[0], ended[2])

    # --- the route table ---

    def _changed(self, status: ReplicaStatus) -> None:
        """Handles a changed replica: a new table at the end of this moment, and a round if it broke."""
        is_awaited = status.state is ReplicaState.STOPPED and self.autoscaler.awaits_place
        if status.state is ReplicaState.FAILED or is_awaited:
            self.kernel.at(self.kernel.now(), self._round)
        if self._limits:
            self._tell_limit(status)
        if not self._is_publishing:
            self._is_publishing = True
            self.kernel.at(self.kernel.now(), self._publish)

    def _publish(self, now: float, _: None) -> None:
        self._is_publishing = False
        served = self._shares.served(self._scenario.functions, self.fleet.statuses(), self.fleet.backend.failure, now)
        table = self._tables.build(served, self.fleet.statuses())
        if table is not self._published:
            first, self._published = self._published is None, table
            self.kernel.at(now if first else now + self._scenario.message_s, self._apply, table)

    def _apply(self, now: float, table: RouteTable) -> None:
        self._gate.apply(table, now)

    def __repr__(self) -> str:
        return f"<Simulation at {self.kernel.now():g} s, {self._gate.open} requests open>"


def _variants(functions: Iterable[Function], revisions: Mapping[str, str]) -> dict[str, tuple[str, tuple[str, ...]]]:
    """Returns by revision the function, and the revisions of the variants that may serve its requests."""
    members = [
        FamilyMember(each.name, each.variant, (each.protocol, each.access))
        for each in functions
        if each.variant.family is not None
    ]
    found = stand_ins(members)
    return {revisions[name]: (name, tuple(revisions[other] for other in others)) for name, others in found.items()}
