"""A random world under the real collector and decider: replicas come and go, samples are lost, repeated, broken.

    PYTHONHASHSEED=0 python -m tests.autoscaler.ticks SEEDS SECONDS > FILE

writes a line for each observation and decision, and what is remembered and learnt at the end: two versions of the
program that are to decide alike write the same bytes.
"""

import hashlib
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from tests.support.worlds.autoscaling import T0, activation, demand, gateway_sample, replica_sample
from tidegate.autoscaler.decider import Decider
from tidegate.autoscaler.measure.collector import Collector
from tidegate.autoscaler.measure.observation import FleetGroup, Observation
from tidegate.autoscaler.policies import registry
from tidegate.function import ConcurrencyUnit, Function, GpuNeeds, Revision, Scaling, Server, ServerKind, Sla
from tidegate.histogram import bucket_index
from tidegate.records.codec import encode
from tidegate.records.decision import Decision
from tidegate.records.gateway_sample import GatewaySample, GroupTokens, GroupTraffic, RevisionDemand, TokensSeen
from tidegate.records.replica_sample import AppSample, ReplicaSample

SHAPES = ("steady", "steps", "pulses", "night")


COUNTED_BY_WORKER = ("arrivals", "answered", "within", "waiting_s", "waiting_inference_s")
COUNTED = (
    "requests",
    "inferences",
    "failures",
    "busy_s",
    "in_flight_request_s",
    "in_flight_inference_s",
    "execution_s",
    "queue_s",
)


@dataclass
class _Replica:
    name: str
    group: str
    born: float
    speed: float
    incarnation: str = "i1"
    leaving_until: float | None = None
    since: float = 0.0
    sequence: int = 0
    totals: dict[str, float] = field(default_factory=lambda: dict.fromkeys(COUNTED, 0.0))
    execution: dict[int, int] = field(default_factory=dict)
    app: dict[str, float] = field(default_factory=lambda: dict.fromkeys(("requests", "compute_s", "queue_s"), 0.0))


class _Function:
    """One function, its load and its replicas."""

    def __init__(self, index: int, rng: random.Random, now: float) -> None:
        self.rng = rng
        policy = ("kpa", "smif", "tide", "hpa", "smif", "tide")[index % 6]
        parameters: dict[str, str] = {}
        if policy == "kpa" and rng.random() < 0.5:
            parameters = rng.choice(
                [{"zero-protocol": "knative"}, {"scale-down-delay": "20s"}, {"metric": "rps", "target": "5"}]
            )
        if policy == "hpa":
            parameters = {"metric": rng.choice(["busy", "slots", "gpu-utilization", "queue-s"]), "cooldown": "20s"}
        self.batches = rng.choice([[1], [1], [1, 4, 64], [8]])
        """Inferences of a request; one of them in each second."""
        self.batch = self.batches[0]
        has_target = policy in ("smif", "tide")
        sla = Sla(
            latency_s=None if not has_target and rng.random() < 0.5 else rng.choice([0.05, 0.2, 1.0]),
            percentile=rng.choice([90.0, 95.0, 98.0]),
            target_ips=rng.choice([None, None, 5.0]),
        )
        self.limit = rng.choice([1, 4, 4, 16])
        self.function = Function(
            name=f"f{index}",
            server=Server(kind=ServerKind.MODEL, target="/m.onnx"),
            models=(f"f{index}",),
            concurrency=rng.choice([None, self.limit, 0]),
            concurrency_unit=rng.choice([ConcurrencyUnit.REQUESTS, ConcurrencyUnit.INFERENCES]),
            scaling=Scaling(
                policy=policy,
                parameters=parameters,
                min_scale=rng.choice([0, 0, 1]),
                max_scale=rng.choice([0, 0, 9]),
                scale_to_zero_after_s=rng.choice([5.0, 30.0]),
                dry_run=rng.random() < 0.1,
            ),
            sla=sla,
            gpu=GpuNeeds(),
        )
        self.revision = Revision(self.function, 1)
        self.kinds = [f"kind{each}" for each in range(rng.randint(1, 5))]
        self.prices = {name: None if rng.random() < 0.1 else rng.choice([0.1, 0.5, 1.0, 2.0]) for name in self.kinds}
        self.speeds = {name: rng.uniform(0.5, 4.0) for name in self.kinds}
        self.service_s = rng.choice([0.01, 0.03, 0.1])
        self.peak = rng.choice([0.5, 5.0, 40.0, 150.0])
        self.shape = rng.choice(SHAPES)
        self.has_apps, self.has_tokens = rng.random() < 0.3, rng.random() < 0.3
        self.replicas: dict[str, _Replica] = {}
        self.number = 0
        self.waiting, self.oldest = 0.0, 0.0
        self.sizes: dict[str, dict[int, int]] = {}
        """Arrivals by worker and inferences of a request."""
        self.counts: dict[str, dict[str, float]] = {}
        self.latencies: dict[tuple[str, str | None], dict[int, int]] = {}
        self.by_group: dict[tuple[str, str], list[int]] = {}
        self.room = {name: rng.choice([1, 3, 12, 40]) for name in self.kinds}
        self.mu_ips: float | None = None
        self.metrics: dict[str, float] = {}
        self.seen: tuple[FleetGroup, ...] = ()

    def rate(self, second: int) -> float:
        """Requests of this second."""
        match self.shape:
            case "steps":
                level = (0.2, 1.0, 0.4, 1.6)[second // 40 % 4]
            case "pulses":
                level = 1.0 if second % 50 < 15 else 0.0
            case "night":
                level = 0.0 if 60 <= second % 200 < 160 else 0.8
            case _:
                level = 0.7
        return max(0.0, self.rng.gauss(level * self.peak, (level * self.peak) ** 0.5))

    def ready(self, now: float, name: str) -> list[_Replica]:
        return [
            each
            for each in self.replicas.values()
            if each.group == name and now - each.born >= 3.0 and each.leaving_until is None
        ]

    def second(self, now: float, second: int) -> None:
        """Requests come, replicas work."""
        rng = self.rng
        for each in list(self.replicas.values()):
            if each.leaving_until is not None and each.leaving_until <= now:
                del self.replicas[each.name]
        arrived, self.batch = round(self.rate(second)), rng.choice(self.batches)
        here = [each for name in self.kinds for each in self.ready(now, name)]
        present = self.waiting + arrived
        self.waiting = present
        for each in here:
            can = self.limit / (self.service_s * each.speed) if self.limit > 1 else 1.0 / (self.service_s * each.speed)
            done = min(self.waiting, round(can * rng.uniform(0.85, 1.0)), round(present / len(here) + 1))
            self.waiting -= done
            self._work(each, int(done), now)
        self.oldest = self.oldest + 1.0 if self.waiting and not here else (0.3 if self.waiting else 0.0)
        ended = present - self.waiting
        for worker in ("g0", "g1"):
            part = self.counts.setdefault(worker, dict.fromkeys(COUNTED_BY_WORKER, 0))
            came = arrived // 2 if worker == "g0" else arrived - arrived // 2
            part["arrivals"] += came
            sizes = self.sizes.setdefault(worker, {})
            sizes[self.batch] = sizes.get(self.batch, 0) + came
            share = int(ended // 2) if worker == "g0" else int(ended - ended // 2)
            part["answered"] += share
            late = min(share, int(share * rng.choice([0.0, 0.0, 0.02, 0.3])))
            part["within"] += share - late
            part["waiting_s"] += self.waiting / 2
            part["waiting_inference_s"] += self.batch * self.waiting / 2
            self._latency(worker, None, share, late)
            for name in self.kinds:
                if here and any(each.group == name for each in here):
                    self._latency(worker, name, share // len(self.kinds), late // len(self.kinds))
                    counts = self.by_group.setdefault((worker, name), [0, 0])
                    counts[0] += share // len(self.kinds)
                    counts[1] += self.batch * (share // len(self.kinds))

    def _latency(self, worker: str, name: str | None, done: int, late: int) -> None:
        found = self.latencies.setdefault((worker, name), {})
        for _ in range(min(done, 12)):
            bucket = self.rng.randint(150, 170) if late and self.rng.random() < 0.2 else self.rng.randint(90, 104)
            found[bucket] = found.get(bucket, 0) + max(1, done // 12)

    def _work(self, each: _Replica, done: int, now: float) -> None:
        rng, totals = self.rng, each.totals
        took = self.service_s * each.speed * (0.9 + 0.1 * self.batch) * rng.uniform(0.9, 1.1)
        request_s = done * took * (1.0 if self.limit == 1 else rng.uniform(0.9, 1.3))
        busy_s = min(1.0, request_s / max(1.0, self.limit * 0.9) if self.limit > 1 else request_s)
        totals["requests"] += done
        totals["inferences"] += done * self.batch
        totals["busy_s"] += busy_s
        totals["in_flight_request_s"] += request_s
        totals["in_flight_inference_s"] += request_s * self.batch
        totals["execution_s"] += request_s
        totals["queue_s"] += done * rng.choice([0.0, 0.001])
        for _ in range(min(done, 6)):
            bucket = rng.randint(80, 100)
            each.execution[bucket] = each.execution.get(bucket, 0) + 1
        each.app["requests"] += done
        each.app["compute_s"] += 0.8 * request_s
        each.app["queue_s"] += 0.1 * request_s

    def fleet(self, now: float, second: int, *, is_copied: bool) -> tuple[FleetGroup, ...]:
        """The very same one as a second ago where nothing changed, unless ``is_copied``."""
        found = self._fleet(now, second)
        if found != self.seen or is_copied:
            self.seen = found
        return self.seen

    def _fleet(self, now: float, second: int) -> tuple[FleetGroup, ...]:
        groups = []
        if second % 20 == 1:
            self.mu_ips = self.rng.choice([None, 25.0])
            self.metrics = {"gpu-utilization": self.rng.uniform(0.0, 100.0)} if self.rng.random() < 0.9 else {}
        for name in self.kinds:
            mine = [each for each in self.replicas.values() if each.group == name]
            ready = self.ready(now, name)
            leaving = sum(each.leaving_until is not None for each in mine)
            room = self.room[name] - len(mine)
            if self.rng.random() < 0.005:
                self.room[name] = self.rng.choice([0, 1, 5, 40])
            groups.append(
                FleetGroup(
                    accelerator=name,
                    ready=tuple(each.name for each in ready),
                    starting=len(mine) - len(ready) - leaving,
                    draining=leaving,
                    room=None if self.room[name] == 40 else room,
                    price_per_hour=self.prices[name],
                    mu_ips=self.mu_ips if name == "kind0" else None,
                    metrics=self.metrics,
                )
            )
        return tuple(groups)

    def obey(self, decision: Decision, now: float) -> None:
        if decision.groups is None or (decision.is_dry_run and decision.desired):
            return
        for group in decision.groups:
            mine = [
                each for each in self.replicas.values() if each.group == group.accelerator and not each.leaving_until
            ]
            for each in mine[group.replicas :]:
                each.leaving_until = now + 2.0
            for _ in range(group.replicas - len(mine)):
                self.number += 1
                name = f"{self.revision.id}-{self.number:05d}"
                speed = self.speeds[group.accelerator] * self.rng.choice([1.0, 1.0, 1.0, 3.0])
                self.replicas[name] = _Replica(name, group.accelerator, now, speed, since=now)

    def demand(self, worker: str) -> RevisionDemand:
        counted, sizes, name = self.counts[worker], self.sizes[worker], self.revision.id
        waiting = int(self.waiting // 2)
        tokens = None
        if self.has_tokens:
            counts = [
                GroupTokens(
                    group=group,
                    inferences=self.by_group[worker, group][1],
                    prompt=9 * self.by_group[worker, group][1],
                    completion=21 * self.by_group[worker, group][1],
                )
                for group in self.kinds
                if (worker, group) in self.by_group
            ]
            done = sum(each.inferences for each in counts)
            tokens = TokensSeen(arrived=30 * done, prompt=9 * done, completion=21 * done, groups=tuple(counts))
        return demand(
            name,
            arrivals=int(counted["arrivals"]),
            arrivals_inferences=sum(size * count for size, count in sizes.items()),
            answered=int(counted["answered"]),
            within_sla=int(counted["within"]),
            waiting=waiting,
            waiting_inferences=waiting * self.batch,
            oldest_waiting_s=self.oldest if waiting else 0.0,
            waiting_request_s=float(counted["waiting_s"]),
            waiting_inference_s=float(counted["waiting_inference_s"]),
            latency=tuple(sorted(self.latencies.get((worker, None), {}).items())),
            sizes=tuple(sorted((bucket_index(size), count) for size, count in sizes.items())),
            groups=tuple(
                GroupTraffic(
                    group=group,
                    requests=self.by_group[worker, group][0],
                    inferences=self.by_group[worker, group][1],
                    failures=0,
                    latency=tuple(sorted(self.latencies.get((worker, group), {}).items())),
                )
                for group in self.kinds
                if (worker, group) in self.by_group
            ),
            tokens=tokens,
        )

    def sample(self, each: _Replica, now: float) -> ReplicaSample:
        each.sequence += 1
        totals = each.totals
        app = None
        if self.has_apps:
            app = AppSample(
                engine="triton",
                up=self.rng.random() < 0.95,
                requests=each.app["requests"],
                compute_s=each.app["compute_s"],
                queue_s=each.app["queue_s"],
                running=self.rng.choice([None, 2.0]),
            )
        in_flight = self.rng.randint(0, self.limit)
        return replica_sample(
            each.name,
            revision=self.revision.id,
            group=each.group,
            incarnation=each.incarnation,
            sequence=each.sequence,
            uptime_s=now - each.since,
            limit=self.limit,
            in_flight=in_flight,
            in_flight_inferences=in_flight * self.batch,
            queued=self.rng.choice([0, 0, 0, 1]),
            requests=int(totals["requests"]),
            inferences=int(totals["inferences"]),
            failures=int(totals["failures"]),
            cancelled=0,
            busy_s=totals["busy_s"],
            in_flight_request_s=totals["in_flight_request_s"],
            in_flight_inference_s=totals["in_flight_inference_s"],
            execution_s=totals["execution_s"],
            queue_s=totals["queue_s"],
            execution=tuple(sorted(each.execution.items())),
            app=app,
        )

    def restart(self, each: _Replica, now: float) -> None:
        each.incarnation = f"i{self.rng.randint(2, 10**6)}"
        each.since, each.sequence = now - 0.2, 0
        each.totals = dict.fromkeys(COUNTED, 0.0)
        each.execution = {}
        each.app = dict.fromkeys(each.app, 0.0)


class Ticks:
    """``functions`` of them for any number of seconds; the same seed gives the same world."""

    def __init__(self, seed: int, functions: int = 8, *, is_copied: bool = False) -> None:
        self.is_copied = is_copied
        self.rng = random.Random(seed)
        self.now, self.seconds = T0 + self.rng.random(), 0
        self.collector, self.decider = Collector(by_size=registry.by_size()), Decider()
        self.functions = [_Function(index, self.rng, self.now) for index in range(functions)]
        self.sequence, self.incarnation, self.born = 0, "i1", self.now
        self.last: GatewaySample | None = None
        for each in self.functions:
            self.collector.apply(each.revision.id, self.now)
            self.decider.apply(each.revision, self.now, fresh=self.rng.random() < 0.5)

    def second(self) -> Iterator[tuple[Observation, Decision]]:
        """One second of the world."""
        rng, self.now, self.seconds = (
            self.rng,
            self.now + self.rng.choice([1.0, 1.0, 1.0, 0.97, 1.04]),
            self.seconds + 1,
        )
        for each in self.functions:
            each.second(self.now, self.seconds)
        names = [name for each in self.functions for name in each.replicas]
        self.collector.expect(["g0", "g1"], names)
        self._gateways()
        for function in self.functions:
            for replica in list(function.replicas.values()):
                self._replica(function, replica)
        for each in self.functions:
            now = self.now + rng.uniform(0.0, 0.2)
            least, most = rng.choice([0] * 9 + [2]), rng.choice([None] * 9 + [3])
            fleet = each.fleet(self.now, self.seconds, is_copied=self.is_copied)
            seen = self.collector.observe(each.revision, fleet, now, least=least, most=most)
            if seen.waiting and not seen.ready and rng.random() < 0.3:
                decision = self.decider.activate(activation(each.revision.id, seen.waiting), now, seen)
            else:
                decision = self.decider.tick(now, seen)
            self.collector.uneven(each.revision.id)
            each.obey(decision, self.now)
            yield seen, decision

    def _gateways(self) -> None:
        rng = self.rng
        self.sequence += 1
        if rng.random() < 0.01:
            self.sequence, self.incarnation, self.born = 1, f"i{rng.randint(2, 10**6)}", self.now - 0.3
            for function in self.functions:
                function.counts.clear()
                function.sizes.clear()
                function.latencies.clear()
                function.by_group.clear()
                function.second(self.now, self.seconds)
        for worker in ("g0", "g1"):
            chance = rng.random()
            if chance < 0.03 or self.seconds % 97 < 5:
                continue
            demands = [each.demand(worker) for each in self.functions]
            sample = gateway_sample(
                *demands,
                worker=worker,
                sequence=self.sequence,
                uptime_s=self.now - self.born + 0.01,
                incarnation=self.incarnation,
            )
            if chance < 0.05:
                broken = replace(demands[0], arrivals=rng.choice([-1, 10**40, 0]))
                sample = replace(sample, demands=(broken, *demands[1:]))
            if chance > 0.98 and self.last is not None:
                sample = self.last
            self.collector.gateway(sample, self.now)
            self.last = sample

    def _replica(self, function: _Function, each: _Replica) -> None:
        rng, chance = self.rng, self.rng.random()
        if self.now - each.born < 3.0 or chance < 0.03:
            return
        if chance < 0.035:
            function.restart(each, self.now)
        sample = function.sample(each, self.now)
        if 0.04 < chance < 0.05:
            sample = replace(sample, busy_s=rng.choice([-1.0, float("nan"), 0.0]))
        if 0.05 < chance < 0.055:
            sample = replace(sample, limit=rng.choice([0, 1, 7]))
        self.collector.replica(sample, self.now)
        if 0.06 < chance < 0.07:
            self.collector.replica(sample, self.now)


def lines(seed: int, seconds: int, *, functions: int = 8, is_copied: bool = False) -> Iterator[str]:
    """``is_copied``: the fleet is reported again in each second, also where nothing changed."""
    world = Ticks(seed, functions, is_copied=is_copied)
    for second in range(seconds):
        for seen, decision in world.second():
            yield f"{seed} {second} {decision} {hashlib.sha256(encode(seen)).hexdigest()}"
    for each in world.functions:
        remembered = hashlib.sha256(encode(world.decider.snapshot(each.revision.id))).hexdigest()
        yield f"{seed} {remembered} {world.collector.learnt(each.revision.id)}"
    yield f"{seed} {sorted(world.collector.faults.items())}"


if __name__ == "__main__":
    for number in range(int(sys.argv[1])):
        for line in lines(number, int(sys.argv[2])):
            sys.stdout.write(line + "\n")
