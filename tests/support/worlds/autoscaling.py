"""Builders for the autoscaler's and the traffic manager's tests: functions, samples, observations, a small world."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from msgspec import structs

from tidegate.autoscaler.decider import Decider
from tidegate.autoscaler.measure.collector import Collector
from tidegate.autoscaler.measure.observation import FleetGroup, GroupObservation, Observation
from tidegate.autoscaler.policies import registry
from tidegate.function import Function, Revision, Scaling, Server, ServerKind, Sla
from tidegate.records.decision import Decision
from tidegate.records.gateway_sample import Activation, GatewaySample, RevisionDemand
from tidegate.records.replica_sample import ReplicaSample
from tidegate.records.replica_state import ReplicaState

T0 = 1_700_000_000.0


def function(
    name: str = "resnet",
    *,
    concurrency: int | None = 1,
    scaling: Scaling | None = None,
    parameters: Mapping[str, str] | None = None,
    sla: Sla | None = None,
) -> Function:
    chosen = scaling or Scaling()
    if parameters is not None:
        chosen = replace(chosen, parameters=dict(parameters))
    return Function(
        name=name,
        server=Server(kind=ServerKind.MODEL, target="/models/x.onnx"),
        models=(name,),
        concurrency=concurrency,
        scaling=chosen,
        sla=sla or Sla(latency_s=0.2),
    )


def revision(number: int = 1, **options: Any) -> Revision:
    return Revision(function(**options), number)


def demand(revision_id: str = "resnet-00001", **values: Any) -> RevisionDemand:
    """Nothing happened, but for the values given."""
    base = RevisionDemand(
        function=revision_id.rsplit("-", 1)[0],
        revision=revision_id,
        arrivals=0,
        arrivals_inferences=0,
        refused=0,
        expired=0,
        cancelled=0,
        answered=0,
        failed=0,
        within_sla=0,
        waiting=0,
        waiting_inferences=0,
        oldest_waiting_s=0.0,
        waiting_request_s=0.0,
        waiting_inference_s=0.0,
    )
    return replace(base, **values)


def gateway_sample(
    *demands: RevisionDemand, worker: str = "g0", sequence: int = 1, uptime_s: float = 1.0, incarnation: str = "i1"
) -> GatewaySample:
    return GatewaySample(
        worker=worker,
        incarnation=incarnation,
        sequence=sequence,
        uptime_s=uptime_s,
        table_epoch=1,
        table_number=1,
        connections=0,
        demands=demands,
    )


def replica_sample(replica: str = "resnet-00001-aaaaa", **values: Any) -> ReplicaSample:
    base = ReplicaSample(
        replica=replica,
        revision=replica.rsplit("-", 1)[0],
        group="cpu",
        incarnation="i1",
        sequence=1,
        uptime_s=1.0,
        state=ReplicaState.READY,
        limit=1,
        in_flight=0,
        in_flight_inferences=0,
        queued=0,
        requests=0,
        inferences=0,
        failures=0,
        cancelled=0,
        busy_s=0.0,
        in_flight_request_s=0.0,
        in_flight_inference_s=0.0,
        execution_s=0.0,
        queue_s=0.0,
    )
    return replace(base, **values)


def group(accelerator: str = "cpu", **values: Any) -> GroupObservation:
    return GroupObservation(**{"accelerator": accelerator, "room": 10, **values})


def observation(*groups: GroupObservation, at: float = T0, **values: Any) -> Observation:
    base = Observation(
        function="resnet", revision="resnet-00001", at=at, complete=True, groups=groups or (group(),), age_s=0.0
    )
    return structs.replace(base, **values)


def activation(revision_id: str = "resnet-00001", waiting: int = 1) -> Activation:
    return Activation(
        function=revision_id.rsplit("-", 1)[0],
        revision=revision_id,
        waiting=waiting,
        waiting_inferences=waiting,
        oldest_waiting_s=0.005,
    )


def codes(decision: Decision) -> list[str]:
    return [reason.code for reason in decision.reasons]


@dataclass
class World:
    """One revision under the real collector and decider, in a world that obeys every decision.

    Replicas become ready ``start_up_s`` after their decision. Load is given as requests in the system; the ready
    replicas hold up to ``concurrency`` each, the gateway the rest.
    """

    revision: Revision
    start_up_s: float = 2.0
    room: int = 10
    load: float = 0.0
    arrivals: int = 0
    now: float = T0
    are_samples_lost: bool = False

    def __post_init__(self) -> None:
        self.collector, self.decider = Collector(by_size=registry.by_size()), Decider()
        self.collector.expect(["g0"], [])
        self.decider.apply(self.revision, self.now)
        self.collector.apply(self.revision.id, self.now)
        self.births: dict[str, float] = {}
        self.decisions: list[Decision] = []
        self._number = self._sequence = 0
        self._waiting_s = 0.0
        self._in_flight_s: dict[str, float] = {}

    @property
    def ready(self) -> list[str]:
        return [name for name, born in self.births.items() if self.now - born >= self.start_up_s]

    def fleet(self) -> tuple[FleetGroup, ...]:
        ready = self.ready
        left = self.room - len(self.births)
        return (FleetGroup(accelerator="cpu", ready=tuple(ready), starting=len(self.births) - len(ready), room=left),)

    def second(self) -> Decision:
        """One second of the world: load runs, samples arrive, one decision is made and obeyed."""
        self.now += 1.0
        if not self.are_samples_lost:
            self._sample()
        decision = self.decider.tick(self.now, self.collector.observe(self.revision, self.fleet(), self.now))
        self.obey(decision)
        return decision

    def run(self, seconds: int) -> list[int | None]:
        return [self.second().desired for _ in range(seconds)]

    def push(self, waiting: int = 1) -> Decision:
        """A gateway asks for activation, between two ticks."""
        self.collector.touch(self.revision.id, self.now)
        seen = self.collector.observe(self.revision, self.fleet(), self.now)
        decision = self.decider.activate(activation(self.revision.id, waiting), self.now, seen)
        self.obey(decision)
        return decision

    def obey(self, decision: Decision) -> None:
        self.decisions.append(decision)
        if decision.desired is None:
            return
        while len(self.births) > decision.desired:
            self.births.popitem()
        while len(self.births) < decision.desired:
            self._number += 1
            self.births[f"{self.revision.id}-{self._number:05d}"] = self.now

    def _sample(self) -> None:
        self._sequence += 1
        ready, limit = self.ready, self.revision.function.concurrency or 4
        in_flight = min(self.load, float(limit * len(ready)))
        waiting = self.load - in_flight
        self._waiting_s += waiting
        self.collector.gateway(
            gateway_sample(
                demand(
                    self.revision.id,
                    arrivals=self.arrivals,
                    arrivals_inferences=self.arrivals,
                    waiting=int(waiting),
                    waiting_inferences=int(waiting),
                    waiting_request_s=self._waiting_s,
                ),
                sequence=self._sequence,
                uptime_s=float(self._sequence),
            ),
            self.now,
        )
        for name in ready:
            self._in_flight_s[name] = self._in_flight_s.get(name, 0.0) + in_flight / len(ready)
            self.collector.replica(
                replica_sample(
                    name,
                    sequence=self._sequence,
                    uptime_s=float(self._sequence),
                    limit=limit,
                    in_flight=int(in_flight / len(ready)),
                    in_flight_request_s=self._in_flight_s[name],
                ),
                self.now,
            )
