"""Virtual-time simulation of the slot rules: one replica with one slot, and four gateway workers.

Prints one JSON line per load: throughput relative to a single worker with the same load, the spread of shares between
the workers, how far arrival order was broken (in service times), and messages per request.

    python -m benchmarks.micro.slots_sim
"""

import heapq
import json
import random
from collections.abc import Callable, Hashable, Sequence
from dataclasses import asdict, dataclass

from tests.support.worlds.slot_world import Action, End, Flight, Job, Replica, Worker, World

SERVICE_S = 0.005
HOP_S = 0.0001
"""A message or a request over loopback, one way, with up to as much jitter again."""


@dataclass(frozen=True, slots=True)
class Outcome:
    load: str
    workers: int
    answered_per_s: float
    share_spread: float
    """(most - least) / mean of the answers per loaded worker."""
    overtaken_s: float
    """The most by which a request that was started first had arrived later."""
    overtaken_service_times: float
    messages_per_request: float
    refusals: int
    """Sendings that were refused for a stale credit."""
    longest_idle_s: float
    """Longest time in which requests waited and the model did nothing."""


class Timeline:
    """Posts arrive after a delay, in order per key."""

    def __init__(self, rng: random.Random) -> None:
        self.heap: list[tuple[float, int, Action]] = []
        self.last: dict[Hashable, float] = {}
        self.now = 1000.0
        self.is_held: Callable[[Hashable], bool] = lambda key: False
        """Whether what arrives under this key stays outside for now (its reader is stopped)."""
        self.held: list[tuple[Hashable, Action]] = []
        self._rng = rng
        self._serial = 0

    def __call__(self, key: Hashable, action: Action) -> None:
        when = self.now + HOP_S * (1 + self._rng.random())
        if isinstance(key, tuple) and key[0] in ("up", "worker") and "answer" not in key:
            when = max(when, self.last.get(key, 0.0))
            self.last[key] = when
        self.at(when, lambda: self._arrive(key, action))

    def _arrive(self, key: Hashable, action: Action) -> None:
        if self.is_held(key):
            self.held.append((key, action))
        else:
            action()

    def release(self) -> None:
        """The reader runs again: what arrived meanwhile is read at once, in order."""
        held, self.held = self.held, []
        for key, action in held:
            self._arrive(key, action)

    def at(self, when: float, action: Action) -> None:
        self._serial += 1
        heapq.heappush(self.heap, (when, self._serial, action))


class Simulation:
    """Closed-loop clients: each sends its next request when the last was answered."""

    def __init__(self, clients: Sequence[int], *, seed: int, service_s: Callable[[], float], limit: int = 1) -> None:
        self.rng = random.Random(seed)
        self.timeline = Timeline(self.rng)
        self.service_s = service_s
        self.world = World(self.timeline, workers=len(clients), limits=(limit,), serve=self._serve)
        self.replica = self.world.replicas["r0"]
        self.clients = clients
        self.idle_since: float | None = None
        self.longest_idle_s = 0.0
        self.ended: list[tuple[float, Job]] = []
        self.timeline.is_held = self._is_held

    def _is_held(self, key: Hashable) -> bool:
        return isinstance(key, tuple) and key[0] == "worker" and self.world.workers[key[1]].stopped

    def stop(self, worker: Worker) -> None:
        """SIGSTOP."""
        worker.stopped = True

    def resume(self, worker: Worker) -> None:
        """SIGCONT."""
        worker.stopped = False
        self.timeline.release()

    def _serve(self, world: World, replica: Replica, flight: Flight) -> None:
        self.timeline.at(world.now + self.service_s(), lambda: world.finish(replica, flight))

    def ready(self) -> None:
        """The model answers."""
        self.replica.ledger.ready(self.world.now)
        self.replica.act()

    def start(self, *, ready: bool = True) -> None:
        """All clients send their first request within 10 ms."""
        if ready:
            self.ready()
        for worker, count in zip(self.world.workers, self.clients, strict=True):
            for _ in range(count):
                self.timeline.at(self.world.now + self.rng.random() * 0.01, lambda worker=worker: self._send(worker))  # type: ignore[misc]  # mypy cannot infer a lambda with a default

    def _send(self, worker: Worker) -> None:
        if worker.stopped:
            self.timeline.at(self.world.now + 0.01, lambda: self._send(worker))
            return
        job = self.world.arrive(worker)
        job.ends = lambda end: self._ended(worker, job, end)  # type: ignore[method-assign]  # called back, not polled

    def _ended(self, worker: Worker, job: Job, end: End) -> None:
        assert job.end is None
        job.end = end
        self.ended.append((self.world.now, job))
        self.timeline.at(self.world.now + HOP_S, lambda: self._send(worker))

    def run(self, seconds: float) -> None:
        """Lets the time pass."""
        end = self.world.now + seconds
        while True:
            wakes = [self.replica.ledger.next_wakeup()]
            wakes += [worker.room.next_wakeup() for worker in self.world.workers if not worker.stopped]
            next_wake = min((wake for wake in wakes if wake is not None), default=end)
            next_post = self.timeline.heap[0][0] if self.timeline.heap else end
            now = min(end, max(self.world.now, min(next_wake, next_post)))
            self.world.now = self.timeline.now = now
            if now >= end:
                return
            if next_post <= next_wake:
                heapq.heappop(self.timeline.heap)[2]()
            else:
                self.world.wake()
            self._watch()

    def _watch(self) -> None:
        """Measures how long the model is idle although requests wait."""
        waiting = any(worker.room.waiting for worker in self.world.workers if not worker.stopped)
        if self.replica.model or not waiting:
            self.idle_since = None
        elif self.idle_since is None:
            self.idle_since = self.world.now
        else:
            self.longest_idle_s = max(self.longest_idle_s, self.world.now - self.idle_since)


def overtaken_s(jobs: Sequence[Job]) -> float:
    """The largest d such that a request was started before another one that had arrived d earlier, seconds."""
    started = sorted((job for job in jobs if job.started), key=lambda job: job.started[-1])
    worst = 0.0
    newest = 0.0
    for job in started:
        worst = max(worst, newest - job.arrived)
        newest = max(newest, job.arrived)
    return worst


def outcome(load: str, clients: Sequence[int], *, seed: int = 1, seconds: float = 4.0) -> Outcome:
    """One load in steady state: the first half second is not counted."""
    simulation = Simulation(clients, seed=seed, service_s=lambda: SERVICE_S)
    simulation.start()
    simulation.run(0.5)
    world = simulation.world
    began = world.now
    messages_before = simulation.replica.messages + sum(worker.messages for worker in world.workers)
    simulation.longest_idle_s = 0.0
    simulation.run(seconds)
    answered = [job for when, job in simulation.ended if when >= began and job.end is End.ANSWERED]
    shares = [
        sum(job.worker == worker.index for job in answered)
        for worker, count in zip(world.workers, clients, strict=True)
        if count
    ]
    messages = simulation.replica.messages + sum(worker.messages for worker in world.workers) - messages_before
    overtaken = overtaken_s(world.jobs)
    return Outcome(
        load=load,
        workers=len(clients),
        answered_per_s=len(answered) / seconds,
        share_spread=(max(shares) - min(shares)) * len(shares) / sum(shares),
        overtaken_s=overtaken,
        overtaken_service_times=overtaken / SERVICE_S,
        messages_per_request=messages / len(answered),
        refusals=world.refusals,
        longest_idle_s=simulation.longest_idle_s,
    )


def main() -> None:
    """Prints a line per load."""
    alone = outcome("one worker alone", [16])
    for load, clients in [
        ("one worker alone", [16]),
        ("all on one of four", [16, 0, 0, 0]),
        ("12 + 2 + 1 + 1", [12, 2, 1, 1]),
        ("equal on four", [4, 4, 4, 4]),
        ("equal on four, 100 each", [100, 100, 100, 100]),
    ]:
        result = outcome(load, clients)
        line = {"benchmark": "slots_sim", "relative": result.answered_per_s / alone.answered_per_s, **asdict(result)}
        print(json.dumps(line))


if __name__ == "__main__":
    main()
