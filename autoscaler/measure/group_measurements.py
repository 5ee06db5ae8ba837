"""Measurements of one group of a revision: sums, windows and rates, and the means of its replicas."""

import math
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import msgspec

from tidegate.autoscaler.measure.model_servers import AppFigures
from tidegate.autoscaler.measure.rates import GroupRates
from tidegate.autoscaler.measure.sampling import UNEVEN, UNEVEN_RPS
from tidegate.autoscaler.measure.series import RecentHistogram, RecentWork


class Means(Protocol):
    """Means of ready replicas together, over their last interval."""

    @property
    def limit(self) -> int | None:
        """Slots of the replica with fewest; 0 for no limit, None if unknown."""
        ...

    @property
    def sampled(self) -> int:
        """Number of these replicas."""
        ...

    @property
    def concurrency(self) -> float: ...
    @property
    def concurrency_inferences(self) -> float: ...
    @property
    def rps(self) -> float: ...
    @property
    def ips(self) -> float: ...
    @property
    def busy(self) -> float:
        """Mean number of these replicas that had work."""
        ...


class GroupMeans(msgspec.Struct, frozen=True, gc=False):
    """See :class:`Means`."""

    limit: int | None = None
    sampled: int = 0
    concurrency: float = 0.0
    concurrency_inferences: float = 0.0
    rps: float = 0.0
    ips: float = 0.0
    busy: float = 0.0


NO_MEANS = GroupMeans()


class GroupFigures(NamedTuple):
    """Figures read from a group's windows, which reach back ten seconds to a minute, and from its rates. The names are
    those of the group's observation."""

    at: float
    mu_bound_ips: float | None = None
    is_mu_learnt: bool = False
    mu_expected_ips: float | None = None
    mean_batch: float | None = None
    execution_s: float | None = None
    queue_s: float | None = None
    min_execution_s: float | None = None
    tail_s: float | None = None
    latency_s: float | None = None
    answers: int = 0
    late: int = 0
    min_execution_occupancy: float | None = None


@dataclass(slots=True)
class GroupMeasurements:
    """The measurements of one group."""

    work: RecentWork = field(default_factory=RecentWork)
    latency: RecentHistogram = field(default_factory=RecentHistogram)
    execution: RecentHistogram = field(default_factory=lambda: RecentHistogram(4, 15.0))
    rates: GroupRates = field(default_factory=GroupRates)
    mean_batch: float | None = None
    """Inferences per request when the group was last observed at work."""
    sampled: tuple[float, float] | None = None
    """Time of the last sample of replicas, and their time in the model per inference."""
    figures: GroupFigures | None = None
    """Figures as last read, after the phase of the revision. None if they must be read again, as when a first rate has
    become known."""
    services: tuple[tuple[float, float], ...] | None = None
    """Those of ``rates``, beside what else is read each second; None if they must be read again."""
    app: AppFigures | None = None
    """Metrics of the group's model servers, if they are scraped."""

    def differs(self, oldest: float, means: Means) -> bool:
        """Returns whether the replicas sampled now differ much from those sampled before, in the time of an inference
        in the replica. Load changes do not count: they are no straggler."""
        before = self.sampled
        concurrency_inferences, rps, ips = means.concurrency_inferences, means.rps, means.ips
        if rps < UNEVEN_RPS or ips <= 0.0 or (before is not None and oldest <= before[0]):
            return False
        present_s = concurrency_inferences / ips
        self.sampled = (oldest, present_s)
        return before is not None and not before[1] / UNEVEN <= present_s <= before[1] * UNEVEN

    def read_services(self) -> tuple[tuple[float, float], ...]:
        self.services = self.rates.services()
        return self.services

    def read(self, now: float, q: float, slo_s: float) -> GroupFigures:
        mean_batch = execution_s = queue_s = mu_ips = min_execution_s = expected_ips = occupancy = None
        requests, inferences, executing_s, queueing_s = self.work.read(now)
        if requests >= 1:
            self.mean_batch = mean_batch = inferences / requests
            execution_s, queue_s = executing_s / requests, queueing_s / requests
        is_learnt = False
        known = self.rates.known(self.mean_batch)
        if known is not None:
            mu_ips, is_learnt, min_execution_s, expected_ips, occupancy = known
        latency = self.latency.reading(now, q, slo_s)
        tail_s = self.execution.reading(now, q, math.inf).quantile_s
        found = self.figures = GroupFigures(
            now,
            mu_ips,
            is_learnt,
            expected_ips,
            mean_batch,
            execution_s,
            queue_s,
            min_execution_s,
            tail_s,
            latency.quantile_s,
            latency.total,
            latency.late,
            occupancy,
        )
        return found
