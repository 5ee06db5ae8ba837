"""The facts of one revision at one moment. Frozen: a decision can be replayed from it.

An :class:`Observation` joins two sources: the measurements that the collector made of the samples, and the fleet that
the control round reports (which replicas exist, how many more an accelerator can take). ``None`` always means "not
known". Rates are per second, durations in seconds.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import msgspec

from tidegate.autoscaler.measure.plausible import ROUNDING
from tidegate.records.decision import GroupDecision, Reason

UNLOADED = 1.1
"""Requests in a busy replica at a time, up to which each has the replica for itself."""


def tightest(limits: Iterable[int]) -> int | None:
    """Returns the smallest limit, where 0 stands for no limit; None if there are no limits to choose from."""
    return min(limits, key=lambda limit: limit or math.inf, default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceleratorRoom:
    """One accelerator kind that a revision may use, and its remaining capacity."""

    accelerator: str
    room: int | None
    """Further replicas of this revision that fit now, beside the existing ones; None if no limit is known."""
    price_per_hour: float | None = None
    mu_ips: float | None = None
    """Service rate of one replica as given, until one is learnt: of the revision before, or a profile's."""
    one_s: float | None = None
    """Time of one inference on an empty replica, given likewise."""


class FleetGroup(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The replicas of one revision on one accelerator kind, as the control round sees them."""

    accelerator: str
    ready: tuple[str, ...] = ()
    """Ids of the ready replicas."""
    starting: int = 0
    draining: int = 0
    """Replicas on their way out; until they are gone they can be taken back."""
    room: int | None = None
    price_per_hour: float | None = None
    mu_ips: float | None = None
    one_s: float | None = None
    metrics: Mapping[str, float] = msgspec.field(default_factory=dict)
    """Device metrics of the ready replicas, as :attr:`GroupObservation.metrics`."""
    cores: int = 0
    """Fewest cores of a ready replica; 0: none is ready, or cores do not count here."""


class GroupObservation(msgspec.Struct, frozen=True, gc=False):
    """One group: the replicas of the revision on one accelerator kind. Ten thousand are made in a second, so it is a
    struct: it is made in a quarter of the time of a frozen dataclass, and the garbage collector does not track it."""

    accelerator: str
    ready: int = 0
    starting: int = 0
    draining: int = 0
    room: int | None = None
    price_per_hour: float | None = None
    mu_ips: float | None = None
    """Service rate of one replica: learnt here at the concurrency limit, else as given with the fleet."""
    is_mu_learnt: bool = False
    """True if the rate was learnt at the limit; a given one may be a profile's."""
    mu_bound_ips: float | None = None
    """Yield of one replica so far: below the limit it is a lower bound of the service rate."""
    mu_expected_ips: float | None = None
    """Expected yield of one replica at its limit, if higher occupancy went on bringing as much as its last doubling
    has. An upper bound, as occupancy brings less and less. None if too few occupancies were seen, or there is no
    limit."""
    limit: int | None = None
    """Slots of one replica as its queue_proxy reports them; 0: no limit."""
    sampled: int = 0
    """Ready replicas with a fresh sample; the figures below are theirs, scaled up to all ready ones."""
    concurrency: float = 0.0
    """Mean requests in flight over the last interval."""
    concurrency_inferences: float = 0.0
    rps: float = 0.0
    """Requests that ended, per second."""
    ips: float = 0.0
    busy: float = 0.0
    """Mean number of replicas that had work, 0..ready."""
    mean_batch: float | None = None
    execution_s: float | None = None
    """Mean execution time of a request."""
    queue_s: float | None = None
    """Mean time of a request in the queue_proxy's own queue."""
    min_execution_s: float | None = msgspec.field(default=None, name="floor_s")
    """Mean execution time at the lowest occupancy seen for the present batch size: not inflated by waiting in the model
    server. Recorded as ``floor_s``."""
    tail_s: float | None = None
    """The SLA's percentile of execution times."""
    latency_s: float | None = None
    """The SLA's percentile of end-to-end latency, over the latency window."""
    answers: int = 0
    """Number of answers behind the percentile."""
    late: int = 0
    """Number of those answers that missed the SLA."""
    metrics: Mapping[str, float] = msgspec.field(default_factory=dict)
    """Metrics of devices and model servers, mean over the ready replicas, by name
    (``tidegate.autoscaler.measure.model_servers``; utilisations in percent); an absent name is unknown."""
    min_execution_occupancy: float | None = None
    """Requests in a busy replica at a time when ``min_execution_s`` was measured. None if unknown: then the present
    occupancy counts."""
    one_s: float | None = None
    """Time of one inference on an empty replica as given with the fleet."""
    services: tuple[tuple[float, float], ...] | msgspec.UnsetType = msgspec.UNSET
    """(inferences of a request, seconds that a whole replica at its limit needs for it), as far as it was learnt; in
    rising order. Unset for policies that do not read them (``PolicyRow.is_by_size``)."""

    cores: int | msgspec.UnsetType = msgspec.UNSET
    """Fewest cores of a ready replica, 0 if none is known. Unset for policies that do not order cores
    (``PolicyRow.scales_cores``)."""

    @property
    def existing(self) -> int:
        """Replicas that work or will; draining ones do not count."""
        return self.ready + self.starting

    @property
    def occupancy(self) -> float:
        """Requests in a replica that has work."""
        return self.concurrency / self.busy if self.busy > 0.0 else 0.0

    @property
    def unloaded_s(self) -> float | None:
        """Least time of a request that has a replica for itself: as given until it is measured, None if unknown. The
        lowest occupancy seen may be a high one: then its requests may have queued inside the model server."""
        if self.min_execution_s is None:
            return self.one_s
        occupancy = self.min_execution_occupancy
        if occupancy is None:
            occupancy = self.occupancy
        return self.min_execution_s / occupancy if occupancy > UNLOADED else self.min_execution_s

    @property
    def capacity(self) -> int | None:
        """Replicas that the group could have: existing ones, draining ones taken back, and the room (which is negative
        where the accelerator has become smaller); None: no limit."""
        return None if self.room is None else max(0, self.existing + self.draining + self.room)


class GivenUp(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A replica that a revision gives up for another function, which finds no free place."""

    accelerator: str
    function: str
    """The function that gets the place."""
    revision: str
    why: str
    """What asks for it, and why this revision gives way, for people."""


class StageOrder(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The decision about one stage of a pipeline, made over all of its stages at once. The fields are those of a
    recommendation."""

    pipeline: str
    desired: int | None
    groups: tuple[GroupDecision, ...] | None = None
    reasons: tuple[Reason, ...] = ()
    cores: int | msgspec.UnsetType = msgspec.UNSET
    observed: Mapping[str, float] = msgspec.field(default_factory=dict)


class _Counted:
    """Sums over the groups, beside the fields: computed once, read a dozen times in every decision."""

    __slots__ = ()

    ready: int
    starting: int
    existing: int
    """Ready and starting replicas."""
    ceiling: int | None
    """Maximum of replicas that could exist; None if no limit is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupTokenRate:
    """Tokens per second of one group."""

    tps: float
    """Tokens per second of the answers that ended, prompts included."""
    mu_tps: float | None
    """Tokens per second of one replica; None if its rate in inferences is unknown."""
    first_s: float | None = None
    """For streams: the smallest recent time from a request's slot to its first output, not inflated by waiting inside
    the model server. None if there were no streams."""
    pace: tuple[tuple[float, float], ...] | msgspec.UnsetType = msgspec.UNSET
    """(requests in a replica at a time, seconds per output token of a stream), in rising order. Unset unless the SLA
    has a time per output token."""
    between: float | msgspec.UnsetType = msgspec.UNSET
    """Output tokens of a stream behind its first; with ``pace``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRates:
    """Tokens per second of one revision."""

    lambda_tps: float
    """Expected tokens of what arrived, refused and expired requests included; mean of the rate window."""
    prompt_tps: float
    completion_tps: float
    """Tokens per second of the answers that ended."""
    per_inference: float | None
    """Tokens of an inference in the last answers; None if no answer has ended."""
    groups: Mapping[str, GroupTokenRate] = field(default_factory=dict)
    """By accelerator."""


class ArrivalCounts(msgspec.Struct, frozen=True, gc=False):
    """What has arrived and what was late since a revision is measured. Cumulative."""

    sizes: tuple[tuple[float, float], ...]
    """(inferences of a request, requests that arrived), in rising order."""
    late: float
    """Requests that missed the SLA: late answers, and those without an answer that count as late."""


class Observation(_Counted, msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """One revision at ``at`` (Unix seconds of the deciding process)."""

    function: str
    revision: str
    at: float
    complete: bool
    """False: a gateway or a whole group is stale, so the figures are lower bounds."""
    age_s: float | None = None
    """Age of the oldest sample used; None if none was used."""
    groups: tuple[GroupObservation, ...] = ()
    waiting: int = 0
    waiting_inferences: int = 0
    oldest_waiting_s: float = 0.0
    concurrency: float = 0.0
    """Mean requests waiting plus in flight over the last interval: KPA's concurrency."""
    concurrency_inferences: float = 0.0
    rps: float = 0.0
    """Arrivals over the last interval, refused and expired ones included."""
    lambda_ips: float = 0.0
    """Arrivals in inferences per second, mean of the rate window."""
    latency_s: float | None = None
    """The SLA's percentile of end-to-end latency, over the latency window."""
    within_sla: float | None = None
    """Fraction of the answers of the latency window inside the SLA."""
    idle_s: float = 0.0
    """Time since the last sign of work: an arrival, something waiting or in flight, or the revision's start."""
    least: int = 0
    """Replicas that a window of time asks for now."""
    is_rolled_out: bool = False
    """True if the revision is kept ready without requests: it is rolled out, or returns."""
    lost: int | msgspec.UnsetType = msgspec.UNSET
    """Replicas that broke after they had been ready, as far as nothing has taken their places yet. Unset stands for
    none, so that an observation without such a replica is recorded as it always was."""
    most: int | None = None
    """Replicas that the limit over all functions leaves to this revision; None if there is no such limit."""
    tokens: TokenRates | None = None
    """Rates in tokens; None if the function's answers carry no token counts."""
    gives_up: GivenUp | msgspec.UnsetType = msgspec.UNSET
    """The replica to give up for another function. Absent from recordings unless there is one."""
    counts: ArrivalCounts | msgspec.UnsetType = msgspec.UNSET
    """Unset for policies that do not read them (``PolicyRow.is_by_size``)."""
    order: StageOrder | msgspec.UnsetType = msgspec.UNSET
    """Absent unless the function is a stage of a pipeline whose policy decides over all stages at once."""

    def __post_init__(self) -> None:
        ready = starting = further = 0
        is_open = False
        for group in self.groups:
            ready += group.ready
            starting += group.starting
            room = group.room
            if room is None:
                is_open = True
            else:
                further += group.draining + room
        existing = ready + starting
        ceiling = None if is_open else existing + further
        self.__dict__.update(ready=ready, starting=starting, existing=existing, ceiling=ceiling)

    @property
    def is_quiet(self) -> bool:
        """True if certainly nothing arrives, waits or is in flight."""
        there = (self.waiting, self.rps, self.concurrency)
        return self.complete and max(*there, *(group.concurrency for group in self.groups)) <= ROUNDING

    @property
    def limit(self) -> int | None:
        """Slots of one replica, 0: no limit; the tightest where groups differ. None while no limit was reported."""
        return tightest([group.limit for group in self.groups if group.limit is not None])
