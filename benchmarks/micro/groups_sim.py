"""Virtual-time simulation of groups of unequal accelerators: the waiting room's choice against two common balancers.

Three groups, A10, L4 and H100, whose replicas do 20, 12 and 64 inferences per second (1 : 0.6 : 3.2), get Poisson
arrivals over one or several gateway workers. Tidegate is the real core: waiting rooms and slot ledgers over wires that
delay. The others bind each request at its arrival to a replica, where it stands in line: least-request to the one with
the fewest outstanding requests, power-of-two to the better of two random ones; each worker knows its own requests, as a
proxy does. Prints one JSON line per load: p99 and mean latency, and the utilisation of the groups, largest to smallest.

    python -m benchmarks.micro.groups_sim [--requests 20000]
"""

import argparse
import heapq
import json
import random
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum

from tests.support.worlds.routes import table
from tests.support.worlds.slot_world import Action, End, Flight, Job, Replica, Worker, World

RATES: Mapping[str, float] = {"a10": 20.0, "l4": 12.0, "h100": 64.0}
"""Inferences per second of one replica."""
HOP_S = 0.0001
"""A message or a request, one way, with up to as much jitter again."""
WARM = 0.1
"""Share of the requests at the beginning that is not counted."""

Sizes = tuple[tuple[int, int | None], ...]


class Service(StrEnum):
    FIXED = "fixed"
    EXPONENTIAL = "exponential"


@dataclass(frozen=True, slots=True)
class Load:
    """Arrivals, and the groups that serve them."""

    utilisation: float
    service: Service
    workers: int
    requests: int = 20_000
    limit: int = 1
    """Limit of each replica; 0: no limit, requests queue in it."""
    replicas: int = 1
    """Replicas of each group."""
    seed: int = 1
    large: float = 0.0
    """Share of the requests that have 64 inferences instead of 1."""
    classes: Mapping[str, tuple[int, int | None]] | None = None
    """Sizes that a group serves, by accelerator."""

    @property
    def mean_size(self) -> float:
        return 1.0 + 63.0 * self.large

    @property
    def arrivals_per_s(self) -> float:
        return self.utilisation * self.replicas * sum(RATES.values()) / self.mean_size


@dataclass(frozen=True, slots=True)
class Result:
    p99_s: float
    mean_s: float
    spread: float
    """Largest utilisation of a group over the smallest."""
    answered_ips: float
    """Inferences per second from the first arrival to the last answer."""
    per_group: tuple[float, ...] = ()


@dataclass(slots=True)
class Request:
    arrives: float
    worker: int
    inferences: int
    work: float
    """Seconds at one inference per second."""


def requests(load: Load) -> list[Request]:
    """The same for every balancer."""
    rng = random.Random(load.seed)
    now = 0.0
    found = []
    for _ in range(load.requests):
        now += rng.expovariate(load.arrivals_per_s)
        size = 64 if rng.random() < load.large else 1
        draw = 1.0 if load.service is Service.FIXED else rng.expovariate(1.0)
        found.append(Request(now, rng.randrange(load.workers), size, size * draw))
    return found


def result(
    load: Load, latencies: list[tuple[int, float]], busy_s: Mapping[str, float], seconds: float, ended_s: float
) -> Result:
    """``latencies``: (inferences, seconds) of the requests after the warm-up; the last arrival, the last answer."""
    ordered = sorted(seconds for _, seconds in latencies)
    use = [busy_s[kind] / load.replicas / seconds for kind in RATES]
    return Result(
        p99_s=ordered[int(0.99 * len(ordered))],
        mean_s=sum(ordered) / len(ordered),
        spread=max(use) / max(1e-9, min(use)),
        answered_ips=sum(request.inferences for request in requests(load)) / ended_s,
        per_group=tuple(round(one, 3) for one in use),
    )


# --- Tidegate -------------------------------------------------------------------------------------------------------


class Simulation:
    """The real core under virtual time."""

    def __init__(self, load: Load) -> None:
        self.load = load
        self._heap: list[tuple[float, int, Action]] = []
        self._last: dict[Hashable, float] = {}
        self._serial = 0
        self._rng = random.Random(load.seed + 1)
        kinds = [kind for kind in RATES for _ in range(load.replicas)]
        total = sum(RATES.values())
        routes = table(
            [(f"r{index}", kind) for index, kind in enumerate(kinds)],
            workers=load.workers,
            weights={kind: rate / total for kind, rate in RATES.items()},
            mu_ips={kind: rate * load.replicas for kind, rate in RATES.items()},
            sizes=load.classes,
            limited=load.limit > 0,
            queue_requests=10**9,
            max_wait_s=1e9,
        )
        self.world = World(
            self._post,
            workers=load.workers,
            limits=(load.limit,) * len(kinds),
            route_table=routes,
            serve=self._serve,
            is_checked=False,
        )
        self._kinds = dict(zip(self.world.replicas, kinds, strict=True))
        self._free_at = dict.fromkeys(self.world.replicas, 0.0)
        self.busy_s = dict.fromkeys(RATES, 0.0)
        self._answered_at = 0.0
        self._work: dict[Job, float] = {}
        self.latencies: list[tuple[int, float]] = []

    def _post(self, key: Hashable, action: Action) -> None:
        when = self.world.now + HOP_S * (1 + self._rng.random())
        if isinstance(key, tuple) and key[0] in ("up", "worker") and "answer" not in key:
            when = max(when, self._last.get(key, 0.0))
            self._last[key] = when
        self._at(when, action)

    def _at(self, when: float, action: Action) -> None:
        self._serial += 1
        heapq.heappush(self._heap, (when, self._serial, action))

    def _serve(self, world: World, replica: Replica, flight: Flight) -> None:
        """One request after the other with a limit of one or none; with more, each slot has its part of the rate."""
        kind = self._kinds[replica.id]
        seconds = self._work.pop(flight.job) / RATES[kind]
        self.busy_s[kind] += seconds
        if self.load.limit > 1:
            done = world.now + seconds * self.load.limit
        else:
            done = self._free_at[replica.id] = max(self._free_at[replica.id], world.now) + seconds
        self._at(done, lambda: world.finish(replica, flight))

    def _arrive(self, request: Request, worker: Worker, is_counted: bool) -> None:
        job = Job(0, request.inferences, worker.index, self.world.now)
        self._work[job] = request.work

        def ends(end: End) -> None:
            assert end is End.ANSWERED
            self._answered_at = self.world.now
            if is_counted:
                self.latencies.append((request.inferences, self.world.now - job.arrived))

        job.ends = ends  # type: ignore[method-assign]  # called back, not polled
        self.world.arrive_job(worker, job, timeout_s=1e9)

    def run(self) -> Result:
        """Everything arrives and is answered."""
        world = self.world
        for replica in world.replicas.values():
            replica.ledger.ready(world.now)
            replica.act()
        for worker in world.workers:
            world.arrive_job(worker, first := Job(0, 1, worker.index, world.now))
            world.cancel(worker, first)
        began = world.now + 1.0
        todo = requests(self.load)
        for number, request in enumerate(todo):
            arrives = began + request.arrives
            worker = world.workers[request.worker]
            is_counted = number >= WARM * len(todo)
            self._at(arrives, lambda r=request, w=worker, c=is_counted: self._arrive(r, w, c))  # type: ignore[misc]  # mypy cannot infer a lambda with defaults
        while self._heap:
            wakes = [replica.ledger.next_wakeup() for replica in world.replicas.values()]
            due = min((wake for wake in wakes if wake is not None), default=1e18)
            if due < self._heap[0][0]:
                world.now = max(world.now, due)
                world.wake()
            else:
                world.now, _, action = heapq.heappop(self._heap)
                action()
        return result(self.load, self.latencies, self.busy_s, todo[-1].arrives, self._answered_at - began)


# --- others ---------------------------------------------------------------------------------------------------------

Balancer = Callable[[Sequence[int], random.Random], int]
"""(own outstanding requests of each replica, rng) -> the replica that takes the next."""


def least_request(outstanding: Sequence[int], rng: random.Random) -> int:
    fewest = min(outstanding)
    return rng.choice([index for index, count in enumerate(outstanding) if count == fewest])


def power_of_two(outstanding: Sequence[int], rng: random.Random) -> int:
    one, other = rng.sample(range(len(outstanding)), 2)
    return one if outstanding[one] <= outstanding[other] else other


def balanced(load: Load, balancer: Balancer) -> Result:
    """Each request is bound at its arrival and stands in line at its replica; nothing takes time but the work."""
    rng = random.Random(load.seed + 2)
    kinds = [kind for kind in RATES for _ in range(load.replicas)]
    outstanding = [[0] * len(kinds) for _ in range(load.workers)]
    slots = [[0.0] * max(1, load.limit) for _ in kinds]
    """When each slot of a replica has done what stands in line."""
    ends: list[tuple[float, int, int]] = []
    busy_s = dict.fromkeys(RATES, 0.0)
    latencies = []
    todo = requests(load)
    for number, request in enumerate(todo):
        while ends and ends[0][0] <= request.arrives:
            _, worker, index = heapq.heappop(ends)
            outstanding[worker][index] -= 1
        index = balancer(outstanding[request.worker], rng)
        seconds = request.work / RATES[kinds[index]]
        busy_s[kinds[index]] += seconds
        done = max(request.arrives, heapq.heappop(slots[index])) + seconds * max(1, load.limit)
        heapq.heappush(slots[index], done)
        heapq.heappush(ends, (done, request.worker, index))
        outstanding[request.worker][index] += 1
        if number >= WARM * len(todo):
            latencies.append((request.inferences, done - request.arrives))
    return result(load, latencies, busy_s, todo[-1].arrives, max(max(ends) for ends in slots))


def main() -> None:
    """Prints a line per load and balancer."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--requests", type=int, default=20_000)
    arguments = parser.parse_args()
    for limit in (1, 0):
        for workers in (1, 4):
            for service in Service:
                for utilisation in (0.5, 0.7, 0.9):
                    load = Load(utilisation, service, workers, arguments.requests, limit, 2)
                    others = {"least-request": least_request, "power-of-two": power_of_two}
                    found = {"tidegate": Simulation(load).run()}
                    found |= {name: balanced(load, balancer) for name, balancer in others.items()}
                    for name, figures in found.items():
                        line = {"benchmark": "groups_sim", "balancer": name, **asdict(load), **asdict(figures)}
                        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
