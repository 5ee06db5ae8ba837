"""What the autoscaler knows of one revision at one moment. Frozen: a decision can be replayed from it.

An :class:`Observation` joins two sources: the measurements that the collector made of the samples, and the fleet that
the control round reports (which replicas exist, how many more an accelerator can take). ``None`` always means "not
known". Rates are per second, durations in seconds.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import msgspec

from tidegate.autoscaler.measure.plausible import ROUNDING

UNLOADED = 1.1
"""Requests in a busy replica at a time, up to which they have it for themselves."""


def tightest(limits: Iterable[int]) -> int | None:
    """The smallest of some limits, where 0 stands for none at all; None: there are no limits to choose from."""
    return min(limits, key=lambda limit: limit or math.inf, default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceleratorRoom:
    """One accelerator kind that a revision may use, and how much of it is left."""

    accelerator: str
    room: int | None
    """Further replicas of this revision that fit now, beside the ones that exist; None: no limit known."""
    price_per_hour: float | None = None
    mu_ips: float | None = None
    """Service rate of one replica, learnt or from a profile."""


class FleetGroup(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What exists of one revision on one accelerator kind, as the control round sees it."""

    accelerator: str
    ready: tuple[str, ...] = ()
    """Ids of the ready replicas."""
    starting: int = 0
    draining: int = 0
    """Replicas on their way out; until they are gone they can be taken back."""
    room: int | None = None
    price_per_hour: float | None = None
    mu_ips: float | None = None
    metrics: Mapping[str, float] = msgspec.field(default_factory=dict)
    """Device metrics of the ready replicas, as :attr:`GroupObservation.metrics`."""


class GroupObservation(msgspec.Struct, frozen=True, gc=False):
    """One group: the replicas of the revision on one accelerator kind. Ten thousand are made in a second, so it is a
    struct: made in a quarter of the time of a frozen dataclass's, and nothing that the garbage collector looks at."""

    accelerator: str
    ready: int = 0
    starting: int = 0
    draining: int = 0
    room: int | None = None
    price_per_hour: float | None = None
    mu_ips: float | None = None
    """Service rate of one replica: learnt here at the concurrency limit, else as the fleet was told it."""
    is_mu_learnt: bool = False
    """Whether it was learnt at the limit; a told one may be a profile's."""
    mu_bound_ips: float | None = None
    """What one replica has yielded: below the limit that is a lower bound of its service rate."""
    mu_expected_ips: float | None = None
    """What one replica would yield at its limit if more company went on bringing as much as the last doubling of it
    has: an upper bound, as company brings less and less; None: too little company was seen, or no limit."""
    limit: int | None = None
    """Slots of one replica as its queue_proxy reports them; 0: no limit."""
    sampled: int = 0
    """Ready replicas that were heard of lately; the figures below are theirs, scaled up to all ready ones."""
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
    """Mean execution time at the lowest occupancy seen for the present batch size: what waiting in the model server
    does not inflate."""
    tail_s: float | None = None
    """The SLA's percentile of execution times."""
    latency_s: float | None = None
    """The SLA's percentile of end-to-end latency, over the latency window."""
    answers: int = 0
    """Answers that the percentile is of."""
    late: int = 0
    """Those that missed the SLA."""
    metrics: Mapping[str, float] = msgspec.field(default_factory=dict)
    """What devices and model servers tell, mean over the ready replicas, by name
    (``tidegate.autoscaler.measure.model_servers``; utilisations in percent); a name that is absent is not known."""

    @property
    def existing(self) -> int:
        """Replicas that work or will: draining ones are on their way out."""
        return self.ready + self.starting

    @property
    def occupancy(self) -> float:
        """Requests in a replica that has work."""
        return self.concurrency / self.busy if self.busy > 0.0 else 0.0

    @property
    def unloaded_s(self) -> float | None:
        """What a request takes at least that has a replica for itself; None: not known. The lowest occupancy seen may
        be a high one: then its requests may have queued inside the model server."""
        if self.min_execution_s is None:
            return None
        occupancy = self.occupancy
        return self.min_execution_s / occupancy if occupancy > UNLOADED else self.min_execution_s

    @property
    def capacity(self) -> int | None:
        """Replicas that the group could have: existing ones, draining ones taken back, and the room (which is negative
        where the accelerator has become smaller); None: no limit."""
        return None if self.room is None else max(0, self.existing + self.draining + self.room)


class _Counted:
    """Sums over the groups, beside the fields: counted once, read a dozen times in every decision."""

    __slots__ = ()

    ready: int
    starting: int
    existing: int
    """Replicas that work or will: ready and starting ones."""
    ceiling: int | None
    """Replicas that could exist at most; None: no limit known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupTokenRate:
    """Tokens per second of one group."""

    tps: float
    """Of the answers that ended, prompts included."""
    mu_tps: float | None
    """Of one replica, where its rate in inferences is known."""
    first_s: float | None = None
    """Streams: from a request's slot to its first output, as small as it lately was: what waiting inside the model
    server does not inflate. None: there were none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRates:
    """Tokens per second of one revision."""

    lambda_tps: float
    """Expected of what arrived, refused and expired requests included; mean of the rate window."""
    prompt_tps: float
    completion_tps: float
    """Of the answers that ended."""
    per_inference: float | None
    """Tokens of an inference, as the last answers had them; None: none has ended."""
    groups: Mapping[str, GroupTokenRate] = field(default_factory=dict)
    """By accelerator."""


class Observation(_Counted, msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """One revision at ``at`` (Unix seconds of the deciding process)."""

    function: str
    revision: str
    at: float
    complete: bool
    """False: a gateway or a whole group has not been heard of lately, so the figures are lower bounds."""
    age_s: float | None = None
    """Age of the oldest sample used; None: none was used."""
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
    """Whether it is kept ready though nobody asks for it: it is rolled out, or returns."""
    most: int | None = None
    """Replicas that the limit over all functions leaves to this revision; None: there is none."""
    tokens: TokenRates | None = None
    """Rates in tokens; None: the function's answers tell nothing of them."""

    def __post_init__(self) -> None:
        ready = starting = further = 0
        is_open = False
        for group in self.groups:
            ready += group.ready
            starting += group.starting
            if group.room is None:
                is_open = True
            else:
                further += group.draining + group.room
        existing = ready + starting
        ceiling = None if is_open else existing + further
        self.__dict__.update(ready=ready, starting=starting, existing=existing, ceiling=ceiling)

    @property
    def is_quiet(self) -> bool:
        """Nothing arrives, waits or is in flight, for certain."""
        there = (self.waiting, self.rps, self.concurrency)
        return self.complete and max(*there, *(group.concurrency for group in self.groups)) <= ROUNDING

    @property
    def limit(self) -> int | None:
        """Slots of one replica, 0: no limit; the tightest where groups differ, None while nobody has told."""
        return tightest([group.limit for group in self.groups if group.limit is not None])
