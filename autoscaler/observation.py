"""What the autoscaler knows of one revision at one moment. Frozen: a decision can be replayed from it.

An :class:`Observation` joins two sources: the measurements that the collector made of the samples, and the fleet that
the control round reports (which replicas exist, how many more an accelerator can take). ``None`` always means "not
known". Rates are per second, durations in seconds.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, make_dataclass
from typing import Any

from autoscaler.tokens import TokenRates


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


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetGroup:
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
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Device metrics of the ready replicas, as :attr:`GroupObservation.metrics`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupObservation:
    """One group: the replicas of the revision on one accelerator kind."""

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
    floor_s: float | None = None
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
    metrics: Mapping[str, float] = field(default_factory=dict)
    """What devices and model servers tell, mean over the ready replicas, by name (``autoscaler.apps``; utilisations in
    percent); a name that is absent is not known."""

    @property
    def existing(self) -> int:
        """Replicas that work or will: draining ones are on their way out."""
        return self.ready + self.starting

    @property
    def capacity(self) -> int | None:
        """Replicas that the group could have: existing ones, draining ones taken back, and the room (which is negative
        where the accelerator has become smaller); None: no limit."""
        return None if self.room is None else max(0, self.existing + self.draining + self.room)


_Draft: Any = make_dataclass("_Draft", [(each.name, Any) for each in fields(GroupObservation)], slots=True)


def group_observation(*values: Any) -> GroupObservation:
    """A :class:`GroupObservation` from all of its values in the order of its fields. Ten thousand are made in a
    second: the constructor of a frozen class sets each field with a call and takes 5 us, this 0.4 us. A twin that is
    not frozen is filled in and then becomes what it stands for."""
    draft = _Draft(*values)
    draft.__class__ = GroupObservation
    found: GroupObservation = draft
    return found


class _Counted:
    """Sums over the groups, beside the fields. They are read a dozen times in every decision: an unset slot calls
    ``__getattr__``, which sets all of them."""

    __slots__ = ("ceiling", "existing", "limit", "ready", "starting")
    groups: tuple[GroupObservation, ...]

    ready: int
    starting: int
    existing: int
    """Replicas that work or will: ready and starting ones."""
    limit: int | None
    """Slots of one replica, 0: no limit; the tightest where groups differ, None while nobody has told."""
    ceiling: int | None
    """Replicas that could exist at most; None: no limit known."""

    def __getattr__(self, name: str) -> Any:
        if name not in _Counted.__slots__:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        ready = starting = taken = 0
        is_open = False
        limits = []
        for group in self.groups:
            ready += group.ready
            starting += group.starting
            if group.room is None:
                is_open = True
            else:
                taken += group.draining + group.room
            if group.limit is not None:
                limits.append(group.limit)
        ceiling = None if is_open else ready + starting + taken
        sums = (ceiling, ready + starting, tightest(limits), ready, starting)
        for slot, value in zip(_Counted.__slots__, sums, strict=True):
            object.__setattr__(self, slot, value)
        return getattr(self, name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation(_Counted):
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
    most: int | None = None
    """Replicas that the limit over all functions leaves to this revision; None: there is none."""
    tokens: TokenRates | None = None
    """Rates in tokens; None: the function's answers tell nothing of them."""
