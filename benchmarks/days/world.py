"""The world of one queue: replicas of one slot, in groups, behind one line."""

from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush, heapreplace
from math import inf

from tidegate.activator.choice import DEFICIT_LIMIT, largest_deficit, update_deficits
from tidegate.loadgen.simulator.profiles import Line
from tidegate.traffic.size_cuts import SizeClass

ROOM = 1000
"""Requests that wait at most (``tidegate.function.QueueBounds``); others are refused."""

Replica = tuple[float, float, float]
"""(free from, ready from, asked for)."""
Ended = tuple[float, float, float, int]
"""An answer: (when, seconds of its execution, of its whole latency, inferences)."""


@dataclass(slots=True, eq=False)
class Group:
    """Replicas of one slot on one kind of accelerator. Times in seconds since the beginning."""

    name: str
    price_per_hour: float
    times: Line
    """Mean service times."""
    judged_from_s: float
    replicas: list[Replica] = field(default_factory=list)
    """As a heap."""
    paid_s: float = 0.0
    share: float = 0.0
    """Its weight among the groups, and the inferences by which it is behind it."""
    deficit: float = 0.0
    smallest: int = 1
    largest: int | None = None
    """Inferences of the requests that it serves."""
    ends: defaultdict[int, list[Ended]] = field(default_factory=lambda: defaultdict(list))
    """Answers by the second that they fall in."""
    begun: int = 0
    """Requests that began since the last reading, and the sum of those times."""
    begun_s: float = 0.0

    starts: int = 0
    """Replicas of the judged part that were started and not given up before they were ready."""

    def start(self, now: float, start_s: float) -> None:
        heappush(self.replicas, (now + start_s, now + start_s, now))
        self.starts += now > self.judged_from_s

    def stop(self, now: float) -> None:
        """Stops the youngest one that starts; if none does, the one that is free first, when it has ended its work."""
        starting = [each for each in self.replicas if each[1] > now]
        if starting:
            gone = max(starting, key=lambda each: each[1])
            self.replicas.remove(gone)
            heapify(self.replicas)
            self.pay(gone[2], now)
            self.starts -= gone[2] > self.judged_from_s
        else:
            free_s, _, asked_s = heappop(self.replicas)
            self.pay(asked_s, max(now, free_s))

    def pay(self, asked_s: float, until_s: float) -> None:
        self.paid_s += max(0.0, until_s - max(asked_s, self.judged_from_s))

    def ready(self, now: float) -> int:
        return sum([each[1] <= now for each in self.replicas])

    def serves(self, size: int) -> bool:
        return self.share > 0.0 and self.smallest <= size and (self.largest is None or size <= self.largest)


@dataclass(slots=True, eq=False)
class World:
    """The groups and what waits for them."""

    groups: Sequence[Group]
    latency_s: float
    factors: Iterator[float]
    """Service times over their means."""
    judged_from_s: float
    lines: dict[int, deque[float]] = field(default_factory=dict)
    """Arrival times of what waits, by inferences: where one group is alone it serves them as one line."""
    waiting: int = 0
    refused: int = 0
    """Requests that were refused, and the sum of the times at which they came."""
    refused_s: float = 0.0
    judged: int = 0
    """Requests of the judged part that have begun or were refused, and those of them that were late or refused."""
    judged_late: int = 0
    begun_s: float = 0.0
    """Sum of the times at which requests began since the last reading, and their number."""
    begun: int = 0

    def arrive(self, times_s: Sequence[float], size: int) -> None:
        """Lets requests of one size wait. Those that the room has no place for are refused."""
        line = self.lines.get(size)
        if line is None:
            line = self.lines[size] = deque()
        if self.waiting + len(times_s) <= ROOM:
            line.extend(times_s)
            self.waiting += len(times_s)
            return
        for at_s in times_s:
            if self.waiting >= ROOM:
                self.serve(at_s)
            if self.waiting >= ROOM:
                self._refuse(at_s)
            else:
                line.append(at_s)
                self.waiting += 1

    def _refuse(self, at_s: float) -> None:
        self.refused_s += at_s
        if at_s >= self.judged_from_s:
            self.judged += 1
            self.judged_late += 1
        self.refused += 1

    def serve(self, until_s: float) -> None:
        """Begins what can begin before ``until_s``."""
        if len(self.groups) == 1 and len(self.lines) == 1:
            self._serve_one_line(until_s)
        else:
            self._serve_lines(until_s)

    def _serve_one_line(self, until_s: float) -> None:
        (group,) = self.groups
        ((size, line),) = self.lines.items()
        replicas, ends, factors, latency_s = group.replicas, group.ends, self.factors, self.latency_s
        judged_from_s, mean_s, begun, sum_s = self.judged_from_s, group.times.seconds(size), 0, 0.0
        while line and replicas:
            arrived_s = line[0]
            free_s, ready_s, asked_s = replicas[0]
            began_s = free_s if free_s > arrived_s else arrived_s
            if began_s >= until_s:
                break
            line.popleft()
            took_s = mean_s * next(factors)
            ended_s = began_s + took_s
            heapreplace(replicas, (ended_s, ready_s, asked_s))
            passed_s = ended_s - arrived_s
            ends[int(ended_s)].append((ended_s, took_s, passed_s, size))
            begun += 1
            sum_s += began_s
            if arrived_s >= judged_from_s:
                self.judged += 1
                self.judged_late += passed_s > latency_s
        self._count(group, begun, sum_s)

    def _serve_lines(self, until_s: float) -> None:
        able = {size: self._able(size) for size in self.lines}
        while self.waiting:
            began_s = arrived_s = inf
            chosen = 0
            for size, line in self.lines.items():
                if not line:
                    continue
                free_s, first_s = inf, line[0]
                for group in able[size]:
                    if group.replicas[0][0] < free_s:
                        free_s = group.replicas[0][0]
                at_s = free_s if free_s > first_s else first_s
                if at_s < began_s or (at_s == began_s and first_s < arrived_s):
                    began_s, arrived_s, chosen = at_s, first_s, size
            if began_s >= until_s:
                break
            self.lines[chosen].popleft()
            group = self._taker(able[chosen], began_s, chosen)
            took_s = group.times.seconds(chosen) * next(self.factors)
            ended_s = began_s + took_s
            _, ready_s, asked_s = group.replicas[0]
            heapreplace(group.replicas, (ended_s, ready_s, asked_s))
            passed_s = ended_s - arrived_s
            group.ends[int(ended_s)].append((ended_s, took_s, passed_s, chosen))
            self._count(group, 1, began_s)
            if arrived_s >= self.judged_from_s:
                self.judged += 1
                self.judged_late += passed_s > self.latency_s

    def _able(self, size: int) -> list[Group]:
        """Returns the groups with replicas that serve requests of this size; all while the weights know of none."""
        there = [each for each in self.groups if each.replicas]
        return there if len(there) < 2 else [each for each in there if each.serves(size)] or there

    def _taker(self, able: Sequence[Group], now: float, size: int) -> Group:
        """Returns the group with a free replica that takes the request: the one furthest below its share, as in the
        waiting room."""
        if len(able) == 1:
            return able[0]
        free = [each for each in able if each.replicas[0][0] <= now]
        total = sum([each.share for each in able])
        if not total:
            return free[0]
        taker = free[0] if len(free) == 1 else largest_deficit(free, total, size)
        update_deficits(able, taker, total, size, DEFICIT_LIMIT * max(self.lines))
        return taker

    def _count(self, group: Group, begun: int, sum_s: float) -> None:
        self.waiting -= begun
        self.begun += begun
        self.begun_s += sum_s
        group.begun += begun
        group.begun_s += sum_s

    def route(self, weights: Mapping[str, float], sizes: Mapping[str, SizeClass]) -> None:
        """Takes over the shares of the groups, and the sizes that they serve."""
        for each in self.groups:
            each.share = weights.get(each.name, 0.0)
            each.smallest, each.largest = sizes.get(each.name, (1, None))

    def oldest_s(self, now: float) -> float:
        """Returns how long the oldest request waits; 0 if none does."""
        return now - min([line[0] for line in self.lines.values() if line], default=now)

    def end(self, now: float) -> None:
        """Pays what is there."""
        for group in self.groups:
            for _, _, asked_s in group.replicas:
                group.pay(asked_s, now)
