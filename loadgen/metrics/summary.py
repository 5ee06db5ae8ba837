"""All figures of one simulated run, added up as it goes: what a page or a table says about it.

A sink of the simulator whose memory does not grow with the requests::

    summary = Summary(scenario)
    result = Simulation(scenario, summary).run()
    figures = summary.figures(result)

docs/inside/figures.md lists the figures.
"""

from collections.abc import Callable, Mapping, Sequence

from tidegate.loadgen.metrics.fleet import FleetTally
from tidegate.loadgen.metrics.power import IDLE_W, PowerSample
from tidegate.loadgen.metrics.requests import MAX_RUN_S, RequestTally, figures_of
from tidegate.loadgen.simulator.counters import Ended
from tidegate.loadgen.simulator.devices import Busy, Sharing
from tidegate.loadgen.simulator.lease import Lease
from tidegate.loadgen.simulator.result import FunctionSecond, SimulationResult, Start
from tidegate.loadgen.simulator.scenario import Scenario
from tidegate.loadgen.simulator.sources import revision_of
from tidegate.records.decision import Decision


class RunSummary:
    """A sink for one simulation that returns its figures."""

    def __init__(
        self, scenario: Scenario, *, idle_w: float = IDLE_W, power: Callable[[PowerSample], None] | None = None
    ) -> None:
        """``idle_w``: the draw of an idle device; ``power`` receives each power sample, one every two seconds."""
        stages = {stage.function for each in scenario.pipelines for stage in each.server.stages}
        # The requests of stages are not reported, so no demand is known of them.
        self._functions = {
            each.revision.function.name: RequestTally(
                limit_s=each.revision.function.sla.latency_s,
                slots=0 if each.revision.function.name in stages else each.limit,
                counts=each.revision.function.concurrency_unit,
                timeout_s=each.revision.function.timeout_s,
                ready=sum(each.ready.values()),
            )
            for each in scenario.functions
        }
        self._revisions = {
            each.revision.id: self._functions[each.revision.function.name] for each in scenario.functions
        }
        for pipeline in scenario.pipelines:
            tally = RequestTally(
                limit_s=pipeline.sla.latency_s,
                slots=0,
                counts=pipeline.concurrency_unit,
                timeout_s=pipeline.timeout_s,
                ready=0,
                has_replicas=False,
            )
            self._functions[pipeline.name] = self._revisions[revision_of(pipeline)] = tally
        self._stages = {each.name: [stage.function for stage in each.server.stages] for each in scenario.pipelines}
        self._fleet = FleetTally((kind.accelerator for kind in scenario.kinds), idle_w=idle_w, power=power)
        self._kept_s = MAX_RUN_S + max(
            *(each.revision.function.timeout_s for each in scenario.functions),
            *(each.timeout_s for each in scenario.pipelines),
            0.0,
        )
        self._ready_s: dict[str, float] = {}
        """Time at which each replica became ready; entries go once no request can have waited for them."""
        self._cold_starts = self._decisions = 0
        self._until_s = 0.0
        self._is_over = False
        self._replica_s = dict.fromkeys(self._functions, 0.0)
        self._prices = {kind.accelerator.name: kind.accelerator.price_per_hour / 3600.0 for kind in scenario.kinds}
        self._dollars = dict.fromkeys(self._functions, 0.0)
        self._has_costs = all(
            kind.sharing is Sharing.EXCLUSIVE and kind.accelerator.price_per_hour for kind in scenario.kinds
        )
        """Whether a function's cost is known: units have a price, and no other function on them."""

    # --- the sink ---

    def requests(self, ended: Sequence[Ended]) -> None:
        """See :class:`tidegate.loadgen.simulator.result.Sink`, here and below."""
        ready_s, revisions = self._ready_s, self._revisions
        for (_, revision, arrived_s, inferences, *_), sent_s, at_s, _, replica, end in ended:
            revisions[revision].ended(arrived_s, inferences, sent_s, at_s, end, ready_s.get(replica, 0.0))

    def busy(self, spans: Sequence[Busy]) -> None:
        self._fleet.busy(spans)

    def decision(self, decision: Decision) -> None:
        self._decisions += 1

    def start(self, start: Start) -> None:
        self._cold_starts += start.ready_s > 0.0
        self._ready_s[start.replica] = start.ready_s
        while (oldest := next(iter(self._ready_s))) and self._ready_s[oldest] < start.ready_s - self._kept_s:
            del self._ready_s[oldest]

    def lease(self, lease: Lease) -> None:
        self._until_s = max(self._until_s, lease.end_s)
        self._fleet.lease(lease)
        span_s = lease.end_s - lease.start_s
        self._replica_s[lease.function] += span_s
        self._dollars[lease.function] += span_s * self._prices[lease.accelerator]

    def second(self, second: FunctionSecond) -> None:
        self._until_s = second.at_s
        self._functions[second.function].second(second.at_s, second.wanted, second.ready)
        self._fleet.second(second.at_s)

    # --- figures ---

    def figures(self, result: SimulationResult | None = None) -> Mapping[str, float]:
        """Returns the figures of all functions together, when the run is over; each name ends in its unit. Unknown
        figures are absent: nothing happened, or the scenario lacks a price, a TDP or an SLA. ``result`` adds what only
        the simulation knows."""
        duration_s = self._finish(result)
        found = {
            "duration_s": duration_s,
            **figures_of(self._functions.values(), duration_s),
            "cold_starts": self._cold_starts,
            "decisions": self._decisions,
        }
        if result is not None:
            found["unended"] = result.unended
        return found | self._fleet.figures(int(found["inferences"]), duration_s)

    def of_function(self, name: str, result: SimulationResult | None = None) -> Mapping[str, float]:
        """Returns the figures of one function: its requests, its replicas' time, and their cost where units have a
        price and are not shared. A pipeline has the time and the cost of its stages.
        Raises KeyError for a function that was not deployed."""
        found = figures_of([self._functions[name]], self._finish(result))
        parts = self._stages.get(name, [name])
        found["replica_seconds"] = sum(self._replica_s[each] for each in parts)
        return found | {"cost_dollars": sum(self._dollars[each] for each in parts)} if self._has_costs else found

    def _finish(self, result: SimulationResult | None) -> float:
        duration_s = self._until_s if result is None else result.simulated_s
        if not self._is_over:
            self._is_over = True
            for tally in self._functions.values():
                tally.finish(duration_s)
        return duration_s

    def __repr__(self) -> str:
        return f"<Summary of {sum(each.requests for each in self._functions.values())} requests>"
