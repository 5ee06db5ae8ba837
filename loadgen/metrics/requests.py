"""Figures of one function's requests, added up as they end: times, violations, waits for starts, demand against
supply."""

from collections.abc import Iterable, Mapping
from typing import Final

from tidegate.loadgen.histogram import FineHistogram
from tidegate.loadgen.metrics.elasticity import Elasticity, ElasticityTally, workload_demand
from tidegate.records.replica_state import ConcurrencyUnit

SLOT_S: Final = 5.0
"""Slot over which violations are counted (HetSev, section 6.2)."""
DEMAND_S: Final = 15.0
"""Period over which the load's own demand is averaged: the thesis' sampling period."""
MAX_RUN_S: Final = 3600.0
"""Time beyond its timeout that a request may take before its slot and its demand are closed."""
PERCENTILES: Final = (50, 90, 95, 98, 99)


class _Demand:
    """Work that arrived in a period, in seconds of a slot, and the supply in that period."""

    __slots__ = ("supply_s", "work_s")

    def __init__(self) -> None:
        self.work_s = 0.0
        self.supply_s: dict[int, float] = {}
        """Seconds by number of ready replicas."""


class RequestTally:
    """Totals of one function. Memory grows with the function's timeout, not with the number of requests."""

    def __init__(
        self,
        *,
        limit_s: float | None,
        slots: int,
        counts: ConcurrencyUnit,
        timeout_s: float,
        ready: int,
        has_replicas: bool = True,
    ) -> None:
        """``limit_s``: the SLA's latency, None without one. ``slots``: of a replica, 0 without a limit; ``counts``: the
        unit of a slot. ``ready``: replicas at the beginning; ``has_replicas``: False for a pipeline."""
        self.has_replicas = has_replicas
        self.limit_s = limit_s
        self._slots = slots
        self._is_by_inference = counts is ConcurrencyUnit.INFERENCES
        self._open_s = timeout_s + MAX_RUN_S
        self.requests = self.inferences = self.broken = 0
        self.ends: dict[str, int] = {}
        """Requests by how they ended."""
        self.latency = FineHistogram()
        """Latency of answered requests; the next two are its parts."""
        self.queue = FineHistogram()
        self.execution = FineHistogram()
        self.started_for = FineHistogram()
        """Time until a replica was ready, of requests that waited through its start."""
        self.slots_over = 0
        self.slot_shares = self.worst_slot = 0.0
        """Sum and maximum, over finished slots, of the share of late or failed requests."""
        self._slot_counts: dict[int, list[int]] = {}
        """[requests, late or failed ones] by slot of arrival."""
        self._demands: dict[int, _Demand] = {}
        self._wanted = ElasticityTally()
        self._workload = ElasticityTally()
        self._since = (0.0, ready, ready)
        """(at, wanted, ready) in force since then."""

    def ended(self, arrived_s: float, inferences: int, sent_s: float, at_s: float, end: str, ready_s: float) -> None:
        """Adds one request; ``ready_s`` is the time at which its replica became ready."""
        self.requests += 1
        self.ends[end] = self.ends.get(end, 0) + 1
        is_broken = end != "answered"
        if not is_broken:
            latency_s, execution_s = at_s - arrived_s, at_s - sent_s
            self.inferences += inferences
            self.latency.record(latency_s)
            self.queue.record(sent_s - arrived_s)
            self.execution.record(execution_s)
            is_broken = self.limit_s is not None and latency_s > self.limit_s + 1e-9
            self._demand(arrived_s).work_s += execution_s * inferences if self._is_by_inference else execution_s
        if ready_s > arrived_s:
            self.started_for.record(ready_s - arrived_s)
        self.broken += is_broken
        slot = self._slot_counts.setdefault(int(arrived_s // SLOT_S), [0, 0])
        slot[0] += 1
        slot[1] += is_broken

    def second(self, at_s: float, wanted: int, ready: int) -> None:
        """Records the replicas wanted and ready from ``at_s`` on."""
        self._spend(at_s)
        self._since = (at_s, wanted, ready)
        while self._slot_counts and (first := next(iter(self._slot_counts))) < (at_s - self._open_s) / SLOT_S - 1:
            self._close_slot(self._slot_counts.pop(first))
        while self._demands and (oldest := next(iter(self._demands))) < (at_s - self._open_s) / DEMAND_S - 1:
            self._close_demand(self._demands.pop(oldest))

    def finish(self, at_s: float) -> None:
        """Ends the run: nothing more is added."""
        self._spend(at_s)
        self._since = (at_s, 0, 0)
        for slot in self._slot_counts.values():
            self._close_slot(slot)
        for demand in self._demands.values():
            self._close_demand(demand)
        self._slot_counts.clear()
        self._demands.clear()

    def _spend(self, until_s: float) -> None:
        at_s, wanted, ready = self._since
        span_s = until_s - at_s
        if span_s <= 0.0:
            return
        self._wanted.add(wanted, ready, span_s)
        supply = self._demand(at_s).supply_s
        supply[ready] = supply.get(ready, 0.0) + span_s

    def _demand(self, at_s: float) -> _Demand:
        period = int(at_s // DEMAND_S)
        found = self._demands.get(period)
        if found is None:
            found = self._demands[period] = _Demand()
        return found

    def _close_slot(self, slot: list[int]) -> None:
        share = slot[1] / slot[0]
        self.slots_over += 1
        self.slot_shares += share
        self.worst_slot = max(self.worst_slot, share)

    def _close_demand(self, demand: _Demand) -> None:
        span_s = sum(demand.supply_s.values())
        if self._slots and span_s:
            needed = workload_demand(demand.work_s / span_s, 1.0, self._slots)
            for ready, each_s in demand.supply_s.items():
                self._workload.add(needed, ready, each_s)

    def elasticities(self, duration_s: float) -> Mapping[str, Elasticity]:
        """Returns the elasticity against the autoscaler's desired count, and against the load's own demand; the latter
        only where replicas have a limit of slots. Call :meth:`finish` first."""
        found = {"wanted": self._wanted.over(duration_s)}
        return found | {"workload": self._workload.over(duration_s)} if self._slots else found


def figures_of(tallies: Iterable[RequestTally], duration_s: float) -> dict[str, float]:
    """Returns the figures of one function or of several together, each of them finished. Slots are counted per
    function; elasticity is the mean over the functions."""
    each = list(tallies)
    ends: dict[str, int] = {}
    for tally in each:
        for end, count in tally.ends.items():
            ends[end] = ends.get(end, 0) + count
    requests, answered = sum(tally.requests for tally in each), ends.pop("answered", 0)
    return {
        "requests": requests,
        "answered": answered,
        "inferences": sum(tally.inferences for tally in each),
        "failures": requests - answered,
        **{f"failures.{end}": count for end, count in sorted(ends.items())},
        **_times("latency", "", (tally.latency for tally in each)),
        **_times("queue", "queue_", (tally.queue for tally in each)),
        **_times("execution", "execution_", (tally.execution for tally in each)),
        **_violations([tally for tally in each if tally.limit_s is not None]),
        **_starts(each),
        **_elasticity([tally for tally in each if tally.has_replicas], duration_s),
    }


def _merged(histograms: Iterable[FineHistogram]) -> FineHistogram:
    whole = FineHistogram()
    for histogram in histograms:
        whole.add(histogram)
    return whole


def _times(what: str, prefix: str, histograms: Iterable[FineHistogram]) -> dict[str, float]:
    """Returns percentiles of the latency; of its parts the 99th only."""
    whole = _merged(histograms)
    if whole.mean is None:
        return {}
    asked = PERCENTILES if not prefix else (99,)
    found = {f"mean_{what}_s": whole.mean, f"max_{what}_s": whole.largest}
    for percent, value in zip(asked, whole.quantiles(tuple(each / 100.0 for each in asked)), strict=True):
        if value is not None:
            found[f"{prefix}p{percent}_s"] = value
    return found


def _violations(tallies: list[RequestTally]) -> dict[str, float]:
    """Returns shares (0..1) of the requests of the functions with a latency SLA."""
    requests, slots = sum(each.requests for each in tallies), sum(each.slots_over for each in tallies)
    if not requests:
        return {}
    return {
        "violations_share": sum(each.broken for each in tallies) / requests,
        "slot_violations_share": sum(each.slot_shares for each in tallies) / slots,
        "worst_slot_violations_share": max(each.worst_slot for each in tallies),
    }


def _starts(tallies: list[RequestTally]) -> dict[str, float]:
    waits = _merged(each.started_for for each in tallies)
    found: dict[str, float] = {"cold_start_requests": waits.total}
    if waits.mean is not None:
        found |= {"mean_cold_start_wait_s": waits.mean, "max_cold_start_wait_s": waits.largest}
    return found


def _elasticity(tallies: list[RequestTally], duration_s: float) -> dict[str, float]:
    found: dict[str, float] = {}
    if duration_s <= 0.0 or not tallies:
        return found
    kinds = [each.elasticities(duration_s) for each in tallies]
    for demand in ("wanted", "workload"):
        seen = [each[demand] for each in kinds if demand in each]
        if len(seen) < len(kinds):
            continue  # What cannot be said of one function cannot be said of all.
        for name in ("theta_under", "theta_over", "tau_under", "tau_over", "theta", "tau"):
            found[f"{demand}_{name}_percent"] = sum(getattr(each, name) for each in seen) / len(seen)
    return found
