"""A queue of requests before replicas, in virtual time, under the real collector and decider.

Requests wait in one queue and go to the replica with most free slots, as in the waiting room. Samples carry exactly
what a gateway and the queue_proxies would count; every decision is obeyed, new replicas are ready after ``start_up_s``.
"""

import heapq
import itertools
import random
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tests.support.worlds.autoscaling import T0, demand, gateway_sample, replica_sample
from tidegate.autoscaler.decider import Decider
from tidegate.autoscaler.measure.collector import Collector
from tidegate.autoscaler.measure.observation import FleetGroup, Observation
from tidegate.function import Revision
from tidegate.histogram import Histogram
from tidegate.records.decision import Decision
from tidegate.records.gateway_sample import GroupTraffic

Service = Callable[[random.Random, int, int], float]
"""(chance, batch, requests in the replica, itself included) -> execution time in seconds."""


def fixed(seconds: float) -> Service:
    return lambda _chance, _batch, _occupancy_gain: seconds


def exponential(seconds: float) -> Service:
    return lambda chance, _batch, _occupancy_gain: chance.expovariate(1.0 / seconds)


def batched(first_s: float, each_s: float) -> Service:
    return lambda _chance, batch, _occupancy_gain: first_s + each_s * batch


@dataclass(frozen=True)
class Kind:
    service: Service
    slots: int = 1
    room: int = 20
    price: float | None = None
    start_up_s: float = 3.0


@dataclass
class Replica:
    name: str
    accelerator: str
    born: float
    ready_at: float
    in_flight: int = 0
    in_flight_inferences: int = 0
    at: float = 0.0
    """Up to when the integrals are counted."""
    requests: int = 0
    inferences: int = 0
    busy_s: float = 0.0
    request_s: float = 0.0
    inference_s: float = 0.0
    execution_s: float = 0.0
    execution: Histogram = field(default_factory=Histogram)
    is_draining: bool = False

    def advance(self, now: float) -> None:
        passed = now - self.at
        self.busy_s += passed if self.in_flight else 0.0
        self.request_s += passed * self.in_flight
        self.inference_s += passed * self.in_flight_inferences
        self.at = now


class QueueWorld:
    """One revision. ``rate`` and ``batch`` may be changed between seconds."""

    def __init__(
        self,
        revision: Revision,
        kinds: Mapping[str, Kind],
        *,
        rate: float = 0.0,
        batch: int = 1,
        seed: int = 1,
        ready: Mapping[str, int] | None = None,
        mu_ips: Mapping[str, float] | None = None,
    ) -> None:
        self.revision, self.kinds, self.rate, self.batch = revision, dict(kinds), rate, batch
        self.mu_ips = dict(mu_ips or {})
        self.chance = random.Random(seed)
        self.now = T0
        self.collector, self.decider = Collector(), Decider()
        self.collector.apply(revision.id, T0)
        self.decider.apply(revision, T0, fresh=not ready, ready=sum((ready or {}).values()))
        self.replicas: list[Replica] = []
        self.decisions: list[Decision] = []
        self.latencies: list[tuple[float, float]] = []
        """(arrived, latency) of every answer."""
        self.observation: Observation | None = None
        self.are_samples_lost = False
        self._queue: deque[tuple[float, int]] = deque()
        self._events: list[tuple[float, int, Replica, float, int, float]] = []
        self._number = self._second = 0
        self._counts = {"arrivals": 0, "arrivals_inferences": 0, "answered": 0, "within_sla": 0}
        self._waiting_s = self._waiting_inference_s = 0.0
        self._latency = Histogram()
        self._by_group: dict[str, Histogram] = {}
        self._next_arrival: float | None = None
        for accelerator, count in (ready or {}).items():
            for _ in range(count):
                self._start(accelerator, start_up_s=0.0)

    # --- the world

    def second(self) -> Decision:
        """One second of load, then samples and one decision, obeyed at once."""
        self.sample_only()
        self.observation = self.collector.observe(self.revision, self._fleet(), self.now)
        decision = self.decider.tick(self.now, self.observation)
        self.decisions.append(decision)
        self._obey(decision)
        return decision

    def sample_only(self) -> None:
        """One second of load and the samples of it."""
        end = self.now + 1.0
        while True:
            arrival = self._arrival()
            finish = self._events[0][0] if self._events else end
            moment = min(arrival, finish, end, self._next_ready())
            self._wait_until(moment)
            self.now = moment
            if moment >= end:
                break
            if moment == arrival:
                self._next_arrival = None
                self._queue.append((moment, self.batch))
                self._counts["arrivals"] += 1
                self._counts["arrivals_inferences"] += self.batch
            while self._events and self._events[0][0] <= moment:
                self._finish(*heapq.heappop(self._events))
            self._serve()
        self._second += 1
        if not self.are_samples_lost:
            self._sample()

    def run(self, seconds: int) -> list[int]:
        """Existing replicas after each second."""
        counts = []
        for _ in range(seconds):
            self.second()
            counts.append(len(self.alive()))
        return counts

    def alive(self, accelerator: str | None = None) -> list[Replica]:
        here = [each for each in self.replicas if not each.is_draining]
        return [each for each in here if accelerator in (None, each.accelerator)]

    def counts(self) -> dict[str, int]:
        return {name: len(self.alive(name)) for name in self.kinds}

    def late_share(self, since: float, slo_s: float) -> float:
        """Share of the answers to requests from ``since`` on that missed the target."""
        seen = [latency for arrived, latency in self.latencies if arrived >= since]
        return sum(1 for latency in seen if latency > slo_s) / max(1, len(seen))

    def _arrival(self) -> float:
        if self.rate <= 0.0:
            self._next_arrival = None
            return float("inf")
        if self._next_arrival is None:
            self._next_arrival = self.now + self.chance.expovariate(self.rate)
        return self._next_arrival

    def _next_ready(self) -> float:
        return min((each.ready_at for each in self.alive() if each.ready_at > self.now), default=float("inf"))

    def _wait_until(self, moment: float) -> None:
        self._waiting_s += (moment - self.now) * len(self._queue)
        self._waiting_inference_s += (moment - self.now) * sum(batch for _, batch in self._queue)

    def _serve(self) -> None:
        while self._queue:
            free = [
                each
                for each in self.replicas
                if each.ready_at <= self.now
                and not each.is_draining
                and each.in_flight < (self.kinds[each.accelerator].slots or 10**9)
            ]
            if not free:
                return
            chosen = min(free, key=lambda each: (each.in_flight, self.chance.random()))
            arrived, batch = self._queue.popleft()
            chosen.advance(self.now)
            chosen.in_flight += 1
            chosen.in_flight_inferences += batch
            took = self.kinds[chosen.accelerator].service(self.chance, batch, chosen.in_flight)
            self._number += 1
            heapq.heappush(self._events, (self.now + took, self._number, chosen, arrived, batch, took))

    def _finish(self, at: float, _number: int, replica: Replica, arrived: float, batch: int, took: float) -> None:
        replica.advance(at)
        replica.in_flight -= 1
        replica.in_flight_inferences -= batch
        replica.requests += 1
        replica.inferences += batch
        replica.execution_s += took
        replica.execution.record(took)
        latency = at - arrived
        self.latencies.append((arrived, latency))
        self._counts["answered"] += 1
        slo_s = self.revision.function.sla.latency_s
        self._counts["within_sla"] += slo_s is None or latency <= slo_s
        self._latency.record(latency)
        self._by_group.setdefault(replica.accelerator, Histogram()).record(latency)
        if replica.is_draining and not replica.in_flight:
            self.replicas.remove(replica)

    # --- what is reported, and what is done

    def _fleet(self) -> tuple[FleetGroup, ...]:
        groups = []
        for name, kind in self.kinds.items():
            alive = self.alive(name)
            ready = tuple(each.name for each in alive if each.ready_at <= self.now)
            draining = sum(1 for each in self.replicas if each.is_draining and each.accelerator == name)
            groups.append(
                FleetGroup(
                    accelerator=name,
                    ready=ready,
                    starting=len(alive) - len(ready),
                    draining=draining,
                    room=max(0, kind.room - len(alive) - draining),
                    price_per_hour=kind.price,
                    mu_ips=self.mu_ips.get(name),
                )
            )
        return tuple(groups)

    def _sample(self) -> None:
        waiting_inferences = sum(batch for _, batch in self._queue)
        report = demand(
            self.revision.id,
            **self._counts,
            waiting=len(self._queue),
            waiting_inferences=waiting_inferences,
            oldest_waiting_s=self.now - self._queue[0][0] if self._queue else 0.0,
            waiting_request_s=self._waiting_s,
            waiting_inference_s=self._waiting_inference_s,
            latency=self._latency.sparse(),
            groups=tuple(
                GroupTraffic(group=name, requests=seen.total, inferences=0, failures=0, latency=seen.sparse())
                for name, seen in self._by_group.items()
            ),
        )
        self.collector.expect(["g0"], [each.name for each in self.replicas])
        self.collector.gateway(gateway_sample(report, sequence=self._second, uptime_s=float(self._second)), self.now)
        for each in self.replicas:
            if each.ready_at > self.now:
                continue
            each.advance(self.now)
            self.collector.replica(
                replica_sample(
                    each.name,
                    group=each.accelerator,
                    sequence=self._second,
                    uptime_s=self.now - each.born,
                    limit=self.kinds[each.accelerator].slots,
                    in_flight=each.in_flight,
                    in_flight_inferences=each.in_flight_inferences,
                    requests=each.requests,
                    inferences=each.inferences,
                    busy_s=each.busy_s,
                    in_flight_request_s=each.request_s,
                    in_flight_inference_s=each.inference_s,
                    execution_s=each.execution_s,
                    execution=each.execution.sparse(),
                ),
                self.now,
            )

    def _start(self, accelerator: str, start_up_s: float) -> None:
        self._number += 1
        name = f"{self.revision.id}-{self._number:05d}"
        self.replicas.append(Replica(name, accelerator, self.now, self.now + start_up_s, at=self.now))

    def _obey(self, decision: Decision) -> None:
        for wanted in decision.groups or ():
            alive = self.alive(wanted.accelerator)
            for _ in range(wanted.replicas - len(alive)):
                self._start(wanted.accelerator, self.kinds[wanted.accelerator].start_up_s)
            for each in reversed(alive[max(0, wanted.replicas) :]):
                if each.in_flight:
                    each.is_draining = True
                else:
                    self.replicas.remove(each)


def flip_flops(counts: list[int]) -> int:
    """Counts how often a replica went that had come before, or came after one had gone."""
    steps = [later - earlier for earlier, later in itertools.pairwise(counts) if later != earlier]
    return sum(1 for earlier, later in itertools.pairwise(steps) if (earlier > 0) != (later > 0))
