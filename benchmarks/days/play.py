"""One policy over days of a trace of the championship, in the world of one queue."""

import math
import random
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import cycle
from operator import attrgetter
from pathlib import Path

import numpy as np

from benchmarks.days.seen import Eyes
from benchmarks.days.world import Group, World
from tidegate.autoscaler.decider import Decider
from tidegate.autoscaler.policies import registry
from tidegate.autoscaler.profiles.admission import known_figures
from tidegate.function import Revision
from tidegate.loadgen.arrivals.arrival import Arrival
from tidegate.loadgen.bound import clairvoyant
from tidegate.loadgen.experiments.championship.fleets import FLEETS, QUANTILE, UNITS, VARIATION, FleetGroup
from tidegate.loadgen.experiments.championship.row import FIRST_S, STATIC, Entrant
from tidegate.loadgen.experiments.championship.static import cheapest
from tidegate.loadgen.experiments.championship.traces import DAY_S, HOUR_S, League, Lengths
from tidegate.records.decision import Decision
from tidegate.records.gateway_sample import Activation
from tidegate.traffic.shares import GroupShares
from tidegate.traffic.size_routes import SizeRoutes

DRAWN = 1 << 16
"""Factors of service times that are drawn; then they come again."""
REVIEW_S = 10
"""Seconds after which routing is reviewed though no replica became ready or went."""

Figures = dict[str, float | str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What a policy meets. Equal ones give equal requests and service times."""

    league: League
    lengths: Lengths
    file: Path | None
    groups: int
    """Number of groups of the fleet."""
    start_s: float
    seed: int

    @property
    def fleet(self) -> Sequence[FleetGroup]:
        return FLEETS[self.groups]

    def arrivals(self) -> Iterator[Arrival]:
        return self.league.arrivals(self.lengths, self.file, self.seed)

    def judged(self) -> Iterator[Arrival]:
        return (each for each in self.arrivals() if each.at_s >= self.lengths.learn_s)

    def seconds(self) -> Iterator[Mapping[int, Sequence[float]]]:
        """Yields the arrival times of each second by inferences."""
        times, sizes, until = _read(self.league, self.lengths, self.file, self.seed)
        low = 0
        for high in until:
            at_s = times[low:high]
            if sizes is None:
                yield {1: at_s} if at_s else {}
            else:
                found: dict[int, list[float]] = {}
                for each, size in zip(at_s, sizes[low:high], strict=True):
                    found.setdefault(size, []).append(each)
                yield found
            low = high

    def first(self) -> Mapping[str, int]:
        """Returns the fleet at the beginning, as in the championship."""
        best = min(self.fleet, key=lambda each: each.price_per_hour * each.times.seconds(1))
        work_s = 0.0
        for each in self.arrivals():
            if each.at_s >= FIRST_S:
                break
            work_s += best.times.seconds(each.inferences)
        load = work_s / FIRST_S
        return {best.name: math.ceil(load + 2.0 * math.sqrt(load))} if load else {}


def play(row: Row, entrant: Entrant, kept: Mapping[str, int] | None = None) -> Figures:
    """Returns what a policy makes of the judged part. ``kept``: a fleet that stays as it is, without a policy. Raises
    InvalidInputError for a policy that cannot run here."""
    return _Run(row, entrant, kept).figures()


@lru_cache(maxsize=8)
def static(row: Row) -> Figures:
    """Returns what the constant fleet of one group does that keeps the SLA for the least money, found with all requests
    known. It starts nothing: rows that differ in their start-up time have the same one. Raises LookupError if there is
    none."""
    found = cheapest(row.league.service, row.fleet, row.judged(), row.seed)
    if found is None:
        raise LookupError("no constant fleet of one group keeps the SLA")
    name, count = found
    while True:
        played = play(row, STATIC, {name: count})
        if float(played["late_percent"]) <= 100.0 * (1.0 - QUANTILE) or count >= UNITS:
            return {**played, "fleet": f"{count} {name}"}
        count += 1


def least_cost(row: Row) -> float:
    """Returns the clairvoyant bound without a late request, in dollars."""
    service, lengths = row.league.service, row.lengths
    found = clairvoyant.clairvoyant(
        ((each.at_s - lengths.learn_s, service.work(each)) for each in row.judged()),
        [
            clairvoyant.Group(
                name=each.name, times=service.bound_times(each), slots=1, price_per_hour=each.price_per_hour,
                start_s=row.start_s, max_replicas=UNITS,
            )
            for each in row.fleet
        ],
        latency_s=service.latency_s,
        quantile=1.0,
        duration_s=lengths.judged_s,
    )  # fmt: skip
    return found.b0


Requests = tuple[Sequence[float], bytes | None, Sequence[int]]
"""Arrival times; inferences of each, None if all have one; and how many come until the end of each second."""


@lru_cache(maxsize=1)
def _read(league: League, lengths: Lengths, file: Path | None, seed: int) -> Requests:
    """Keeps the requests of the last trace: policies, fleets and start-up times meet the same ones."""
    times, sizes = array("d"), bytearray()
    for each in league.arrivals(lengths, file, seed):
        times.append(each.at_s)
        sizes.append(each.inferences)
    until = np.searchsorted(np.frombuffer(times), np.arange(1, int(lengths.total_s) + 1)).tolist()
    return times, bytes(sizes) if max(sizes, default=1) > 1 else None, until


@lru_cache(maxsize=1)
def _factors(seed: int) -> Sequence[float]:
    """Returns service times over their means."""
    squared, rng = math.log1p(VARIATION**2), random.Random(seed)
    return [rng.lognormvariate(-0.5 * squared, math.sqrt(squared)) for _ in range(DRAWN)]


class _Run:
    """One run of one policy."""

    def __init__(self, row: Row, entrant: Entrant, kept: Mapping[str, int] | None) -> None:
        self._row = row
        service, learn_s = row.league.service, row.lengths.learn_s
        function = entrant.function(service)
        self._revision = revision = Revision(function, 1)
        groups = [Group(each.name, each.price_per_hour, each.times, learn_s) for each in row.fleet]
        self._world = World(groups, service.latency_s, cycle(_factors(row.seed)), learn_s)
        for group in groups:
            for _ in range((row.first() if kept is None else kept).get(group.name, 0)):
                group.start(0.0, 0.0)
        known = {each.name: known_figures(function, service.kind(each).accelerator) for each in row.fleet}
        is_by_size = function.scaling.policy in registry.by_size()
        self._eyes = eyes = Eyes(revision, self._world, known, is_by_size=is_by_size)
        self._decider: Decider | None = None
        if kept is None:
            there = sum([len(each.replicas) for each in groups])
            self._decider = Decider()
            self._decider.apply(revision, 0.0, fresh=not there, ready=there)
        self._shares = GroupShares(eyes.mu_ips, SizeRoutes(eyes, eyes))
        self._ready: tuple[int, ...] = ()
        self._at_limit = 0

    def figures(self) -> Figures:
        row, world, eyes, learn_s = self._row, self._world, self._eyes, self._row.lengths.learn_s
        decider = self._decider
        self._route(0.0)
        for second, came in enumerate(row.seconds(), 1):
            now, refused_s = float(second), world.refused_s
            if came and decider is not None and not any(map(attrgetter("replicas"), world.groups)):
                self._activate(decider, *min((times_s[0], size) for size, times_s in came.items()))
            for size, times_s in came.items():
                world.arrive(times_s, size)
            arrived = {size: len(times_s) for size, times_s in came.items()}
            arrived_s = sum(map(sum, came.values())) - (world.refused_s - refused_s)
            world.serve(now)
            seen = eyes.observe(now, arrived, arrived_s)
            if decider is not None:
                decision = decider.tick(now, seen)
                if now > learn_s:
                    self._at_limit += any(each.code == "effort_limit" for each in decision.reasons)
                self._carry_out(decision, now)
            self._route(now)
        world.end(row.lengths.total_s)
        judged_s = row.lengths.judged_s
        return {
            "requests": world.judged,
            "late_percent": round(100.0 * world.judged_late / max(1, world.judged), 3),
            "cost_dollars": round(sum(each.paid_s * each.price_per_hour for each in world.groups) / HOUR_S, 3),
            "mean_replicas": round(sum(each.paid_s for each in world.groups) / judged_s, 3),
            "starts_per_day": round(sum(each.starts for each in world.groups) * DAY_S / judged_s, 1),
            "at_limit_share": round(self._at_limit / judged_s, 3),
        }

    def _activate(self, decider: Decider, now: float, size: int) -> None:
        """A request finds no replica: its start is decided at once, not at the end of the second."""
        revision = self._revision
        activation = Activation(
            function=revision.function.name,
            revision=revision.id,
            waiting=1,
            waiting_inferences=size,
            oldest_waiting_s=0.0,
        )
        self._carry_out(decider.activate(activation, now, self._eyes.at_zero(now, size)), now)

    def _carry_out(self, decision: Decision, now: float) -> None:
        if decision.groups is None:
            return
        wanted = {each.accelerator: each.replicas for each in decision.groups}
        for group in self._world.groups:
            count, present = wanted.get(group.name, 0), len(group.replicas)
            for _ in range(count - present):
                group.start(now, self._row.start_s)
            for _ in range(present - count):
                group.stop(now)

    def _route(self, now: float) -> None:
        """Sets the weights of the groups, and their sizes, by the traffic manager's own rules; one group has none."""
        groups = self._world.groups
        if len(groups) < 2:
            return
        ready = tuple([each.ready(now) for each in groups])
        if ready == self._ready and int(now) % REVIEW_S:
            return
        self._ready = ready
        there = {each.name: count for each, count in zip(groups, ready, strict=True) if each.replicas}
        found = self._shares.of(self._revision.id, self._revision.function, there, now)
        self._world.route(found.weights, found.sizes)
