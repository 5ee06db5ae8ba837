"""One row of the championship: one policy under one trace, and the bound that its cost is read against."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

from tidegate.autoscaler.replay.changes import changed
from tidegate.errors import TidegateError
from tidegate.function import Function, Revision, Server, ServerKind, Sla
from tidegate.loadgen.arrivals.arrival import Arrival
from tidegate.loadgen.bound.clairvoyant import Bound, Group, clairvoyant
from tidegate.loadgen.experiments.championship.fleets import FLEETS, QUANTILE, UNITS, FleetGroup, FleetService
from tidegate.loadgen.experiments.championship.static import cheapest
from tidegate.loadgen.experiments.championship.traces import DAY_S, LEAGUES, Lengths
from tidegate.loadgen.histogram import FineHistogram
from tidegate.loadgen.simulator.counters import Ended
from tidegate.loadgen.simulator.devices import Busy
from tidegate.loadgen.simulator.lease import Lease
from tidegate.loadgen.simulator.profiles import ColdStart
from tidegate.loadgen.simulator.result import FunctionSecond, Start
from tidegate.loadgen.simulator.scenario import Deployed, Scenario
from tidegate.loadgen.simulator.simulation import Simulation
from tidegate.records.decision import Decision

MEASURED: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType({"hpa": ("policy.metric=busy",)})
"""Settings of policies whose default metric the simulator does not measure: it has no readings of devices, but knows
the share of time in which a replica works."""
FIRST_S: Final = 60.0
"""The fleet at the beginning is sized by the load of this time."""
POINTS: Final = 240
"""Points of a curve over time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """What several policies are compared under."""

    trace: str
    groups: int
    start_up_s: float
    seed: int
    lengths: Lengths
    min_run_s: float = 0.0
    """Seconds from its start call that a replica is paid for at least."""
    file: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Entrant:
    """A policy with its settings, each ``KEY=VALUE`` as of ``tidegate simulate --set``."""

    policy: str
    settings: tuple[str, ...] = ()
    is_static: bool = False
    """No policy: a constant fleet, the cheapest that keeps the SLA, chosen with all requests known."""

    def function(self, service: FleetService) -> Function:
        """Returns the function under the policy. Raises InvalidInputError for settings that it does not have."""
        function = Function(
            name="f",
            server=Server(kind=ServerKind.MODEL, target="/model.onnx"),
            concurrency=service.slots,
            sla=Sla(latency_s=service.latency_s, percentile=100.0 * QUANTILE),
        )
        if self.is_static:
            return function
        return changed(function, self.policy, (*MEASURED.get(self.policy, ()), *self.settings))


STATIC: Final = Entrant(policy="static", is_static=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """What one policy made of a cell, in the judged part: by requests that arrived and money that was spent there."""

    requests: int
    late_share: float
    """Share of requests that were later than the SLA allows, or failed."""
    failed_share: float
    cost_dollars: float
    p50_s: float | None
    p99_s: float | None
    cold_starts: int
    """Replicas that were started and became ready."""
    cold_start_requests: int
    """Requests answered by a replica that was not ready when they came."""
    starts_per_day: float
    mean_replicas: float
    most_replicas: int
    ready: tuple[tuple[float, float], ...]
    """Ready replicas over time, (hours, mean)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """A task that could not be carried out, and why."""

    why: str


def play(cell: Cell, entrant: Entrant) -> Played | Failed:
    """Simulates a policy. A fault of the policy is a result too: other rows go on."""
    try:
        return _constant(cell) if entrant.is_static else _play(cell, entrant)
    except TidegateError as error:
        return Failed(why=str(error))
    except Exception as error:  # A row of hours is not to end the others.
        return Failed(why=f"{type(error).__name__}: {error}{_place(error)}")


def bound(cell: Cell) -> Bound | Failed:
    """Returns the least cost of the judged part, for a planner that knows it all and begins with any fleet."""
    league, lengths = LEAGUES[cell.trace], cell.lengths
    service = league.service
    try:
        return clairvoyant(
            (
                (each.at_s - lengths.learn_s, service.work(each))
                for each in league.arrivals(lengths, cell.file, cell.seed)
                if each.at_s >= lengths.learn_s
            ),
            [
                Group(
                    name=each.name,
                    times=service.bound_times(each),
                    slots=service.slots,
                    price_per_hour=each.price_per_hour,
                    start_s=cell.start_up_s,
                    max_replicas=UNITS,
                    min_run_s=cell.min_run_s,
                )
                for each in FLEETS[cell.groups]
            ],
            latency_s=service.latency_s,
            quantile=QUANTILE,
            duration_s=lengths.judged_s,
        )
    except TidegateError as error:
        return Failed(why=str(error))


def _constant(cell: Cell) -> Played | Failed:
    """Plays the static fleet. It is found with other service times than those of the simulation, so that a replica more
    may be needed there."""
    league, lengths = LEAGUES[cell.trace], cell.lengths
    judged = (each for each in league.arrivals(lengths, cell.file, cell.seed) if each.at_s >= lengths.learn_s)
    found = cheapest(league.service, FLEETS[cell.groups], judged, cell.seed)
    if found is None:
        return Failed(why="no constant fleet of one group keeps the SLA")
    name, count = found
    while True:
        played = _play(cell, STATIC, {name: count})
        if played.late_share <= 1.0 - QUANTILE or count >= UNITS:
            return played
        count += 1


def _play(cell: Cell, entrant: Entrant, kept: Mapping[str, int] | None = None) -> Played:
    """``kept``: a fleet that stays as it is."""
    league, lengths = LEAGUES[cell.trace], cell.lengths
    fleet, service = FLEETS[cell.groups], league.service
    start = ColdStart(load_s=cell.start_up_s)
    scenario = Scenario(
        kinds=tuple(service.kind(each) for each in fleet),
        functions=(
            Deployed(
                revision=Revision(entrant.function(service), 1),
                profiles={each.name: service.profile(each) for each in fleet},
                cold_starts={each.name: start for each in fleet},
                ready=kept or _ready(service, fleet, league.arrivals(lengths, cell.file, cell.seed)),
            ),
        ),
        arrivals=league.arrivals(lengths, cell.file, cell.seed),
        seed=cell.seed,
        keeps_scale=kept is not None,
    )
    prices = {each.name: each.price_per_hour / 3600.0 for each in fleet}
    tally = _Tally(lengths, service.latency_s, prices, cell.min_run_s)
    Simulation(scenario, tally).run(lengths.total_s)
    return tally.played()


def _ready(service: FleetService, fleet: Sequence[FleetGroup], arrivals: Iterable[Arrival]) -> Mapping[str, int]:
    """Returns the fleet at the beginning: that of best value, for the first minute's load and twice its deviation."""
    best = min(fleet, key=lambda each: each.price_per_hour * service.bound_times(each).seconds(1))
    work_s = 0.0
    for each in arrivals:
        if each.at_s >= FIRST_S:
            break
        work_s += service.work_s(each, best)
    load = work_s / FIRST_S
    return {best.name: math.ceil((load + 2.0 * math.sqrt(load)) / service.slots)} if load else {}


class _Tally:
    """A sink that adds up the judged part."""

    def __init__(self, lengths: Lengths, latency_s: float, prices: Mapping[str, float], min_run_s: float) -> None:
        """``prices`` in dollars a second, by accelerator."""
        self._from_s, self._until_s = lengths.learn_s, lengths.total_s
        self._latency_s = latency_s + 1e-9
        self._prices = prices
        self._min_run_s = min_run_s
        self._latency = FineHistogram()
        self._ready_at: dict[str, float] = {}
        self._requests = self._late = self._failed = self._starts = self._cold = self._most = 0
        self._dollars = self._replica_s = 0.0
        self._width_s = max(1.0, lengths.judged_s / POINTS)
        self._points: list[list[float]] = []

    def requests(self, ended: Sequence[Ended]) -> None:
        from_s, limit_s, record, ready_at = self._from_s, self._latency_s, self._latency.record, self._ready_at
        for request, _, at_s, _, replica, end in ended:
            arrived_s = request[2]
            if arrived_s < from_s:
                continue
            self._requests += 1
            if end == "answered":
                latency_s = at_s - arrived_s
                record(latency_s)
                self._late += latency_s > limit_s
                self._cold += ready_at[replica] > arrived_s
            else:
                self._failed += 1

    def busy(self, spans: Sequence[Busy]) -> None: ...

    def decision(self, decision: Decision) -> None: ...

    def start(self, start: Start) -> None:
        self._ready_at[start.replica] = start.ready_s
        self._starts += start.ready_s > 0.0 and start.asked_s >= self._from_s

    def lease(self, lease: Lease) -> None:
        began_s = max(lease.start_s, self._from_s)
        span_s = min(lease.end_s, self._until_s) - began_s
        if span_s > 0.0:
            # A minimum run time is paid whole, also by what is started just before the end.
            paid_s = span_s if lease.start_s <= 0.0 else max(span_s, lease.start_s + self._min_run_s - began_s)
            self._dollars += paid_s * self._prices[lease.accelerator]
            self._replica_s += span_s

    def second(self, second: FunctionSecond) -> None:
        if second.at_s <= self._from_s:
            return
        self._most = max(self._most, second.ready)
        index = int((second.at_s - 0.5 - self._from_s) / self._width_s)
        while len(self._points) <= index:
            self._points.append([0.0, 0.0])
        self._points[index][0] += second.ready
        self._points[index][1] += 1.0

    def played(self) -> Played:
        """Returns the figures; the few requests that are on their way at the end are in none."""
        span_s = self._until_s - self._from_s
        p50, p99 = self._latency.quantiles((0.5, 0.99))
        requests = max(1, self._requests)
        return Played(
            requests=self._requests,
            late_share=(self._late + self._failed) / requests,
            failed_share=self._failed / requests,
            cost_dollars=self._dollars,
            p50_s=p50,
            p99_s=p99,
            cold_starts=self._starts,
            cold_start_requests=self._cold,
            starts_per_day=self._starts * DAY_S / span_s,
            mean_replicas=self._replica_s / span_s,
            most_replicas=self._most,
            ready=tuple(
                (index * self._width_s / 3600.0, total / count)
                for index, (total, count) in enumerate(self._points)
                if count
            ),
        )


def _place(error: BaseException) -> str:
    """Returns the file and line where an exception was raised."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return "" if trace is None else f" ({Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno})"
