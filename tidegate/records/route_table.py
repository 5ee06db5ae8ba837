"""The route table: the immutable, versioned snapshot that the control process pushes to every gateway worker.

Tables are ordered by (epoch, number); a gateway ignores an older one. A table lists replicas, ready or not: readiness
reaches the gateway over the replica's slot channel.
"""

from dataclasses import dataclass, field
from enum import StrEnum

from tidegate.records.cold_rules import ColdRules
from tidegate.records.payload_rules import PayloadRules
from tidegate.records.pipeline import PipelineRoute
from tidegate.records.tenants import AccessRule, KeySet, Tenant


class Spread(StrEnum):
    """Choice of a replica inside a group."""

    MOST_FREE = "most-free"
    FIRST_AVAILABLE = "first-available"
    ROUND_ROBIN = "round-robin"
    RANDOM = "random"
    POWER_OF_TWO = "power-of-two"
    HASH = "hash"
    """Equal keys (``FunctionRoute.hash_on``) go to one replica unless it is much fuller than the others."""


class QueueOrder(StrEnum):
    """Order among waiting requests of one priority."""

    ARRIVAL = "arrival"
    DEADLINE = "deadline"
    URGENCY = "urgency"
    """By the time left over the time needed (``tidegate.activator.state.urgency_queue``)."""


class Binding(StrEnum):
    """Moment at which a request's group is chosen."""

    LATE = "late"
    """When a slot frees."""
    EARLY = "early"
    """At arrival, by weight: the request waits for that group alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeaderMatch:
    """A header that a request must have."""

    name: str
    """In lower case."""
    value: str | None = None
    """The exact value. None if any value matches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteMatch:
    """One way to address a function in addition to its host, prefix and models; all given conditions must hold."""

    host: str | None = None
    path_prefix: str | None = None
    """A prefix of whole path segments; it is not stripped."""
    headers: tuple[HeaderMatch, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class OutlierRules:
    """Outlier ejection: a replica that fails while others do not gets no work for a while."""

    failures: int = 5
    """Consecutive failures; 0 disables ejection."""
    ejection_s: float = 10.0
    """Duration of the first ejection; doubled with each further one, at most ten times as long."""
    max_percent: int = 50
    """Maximum percent of a revision's ready replicas that is ejected at once; one replica always stays."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hedging:
    """A second copy of a late idempotent request, sent to another replica; the first response wins."""

    percentile: float | None = 95.0
    """Percentile of the function's recent latencies after which the copy is sent. None if ``after_s`` counts."""
    after_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaRoute:
    """An existing replica, ready or not: readiness comes by channel, never by table."""

    id: str
    address: str
    """``host:port`` or ``unix:/path`` of the queue_proxy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRoute:
    """All replicas of a revision on one accelerator kind, with the group's share of the traffic."""

    accelerator: str
    weight: float
    """Fraction of the revision's inferences, 0..1; 0 for no new work."""
    mu_ips: float | None = None
    """Service rate of the whole group. None if not yet learnt."""
    smallest: int = 1
    """Minimum inferences of a request for this group."""
    largest: int | None = None
    """Maximum inferences of a request for this group. None without a limit."""
    replicas: tuple[ReplicaRoute, ...] = ()
    asleep: tuple[str, ...] = ()
    """Those of ``replicas`` that sleep: they take no work until the control process wakes them. Ids."""


class FailureKind(StrEnum):
    """Kind of failure of a revision, as clients see it (``tidegate.errors``)."""

    START_FAILED = "start_failed"
    """Its server does not start: a retry alone does not help."""
    NOT_SERVABLE = "not_servable"
    """There is no capacity for it now: a retry later may help."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RevisionRoute:
    id: str
    percent: float
    """Percent of the function's requests, 0..100."""
    tags: tuple[str, ...] = ()
    """Names by which a client selects this revision whatever the percentages are."""
    shadow_percent: float = 0.0
    """Percent of the function's other requests that are copied to this revision; no client sees the responses."""
    unit_inferences: bool = False
    """True if slots count inferences instead of requests."""
    limited: bool = True
    """False with ``concurrency: 0``: no credits; weights alone decide."""
    groups: tuple[GroupRoute, ...] = ()
    failure: str | None = None
    """Reason why it cannot be served now; waiting requests get 503 with this text."""
    failure_kind: FailureKind = FailureKind.START_FAILED
    pipeline: PipelineRoute | None = None
    """Stages of a pipeline, which has no replicas of its own. None for a function."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelVariant:
    """What a function is among the variants of one model, each of which is a function of its own (OLTunes, 4.1)."""

    family: str | None = None
    """The name that all variants state. None if it is no variant."""
    accuracy: float | None = None
    """Accuracy of its model, in percent."""
    loss: float = 0.0
    """Points of accuracy that a request may lose by being served by another variant; 0: none serves it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionRoute:
    name: str
    models: tuple[str, ...]
    protocol: str
    timeout_s: float
    latency_s: float | None
    """The SLA's latency target, for the within-SLA counter."""
    queue_requests: int
    """Bound of the waiting room over all workers together."""
    queue_bytes: int
    max_wait_s: float
    batch_header: str
    bytes_per_item: float | None
    overhead_bytes: float
    max_batch: int
    idempotent: bool = False
    request_buffering: bool = True
    """True if a request gets a slot when its body is there; False: with its first bytes."""
    spread: Spread = Spread.MOST_FREE
    hash_on: str = "client"
    """Input of ``Spread.HASH``: ``client`` (its address), ``header:NAME``, ``cookie:NAME``, ``session`` (a header or
    field for sessions), ``prompt`` (its beginning), ``prefix`` (the part that replicas may have cached) or
    ``model``."""
    queue_order: QueueOrder = QueueOrder.ARRIVAL
    binding: Binding = Binding.LATE
    priority: int = 5
    """Priority of requests without one, 0 (first) to 9."""
    is_throughput_oriented: bool = False
    """True if requests that state no class wait behind all latency-critical ones."""
    task_deadline_s: float | None = None
    """Time after its arrival at which a request is due, with ``QueueOrder.URGENCY``. None if that is its deadline."""
    retry_percent: float = 20.0
    """Retry budget: retries and hedges together, in percent of the recent requests."""
    hedging: Hedging | None = None
    outlier: OutlierRules = OutlierRules()
    probe_path: str | None = None
    """Path that is probed on an ejected replica before it gets work again. None if an accepted connection suffices."""
    matches: tuple[RouteMatch, ...] = ()
    cold: ColdRules = field(default_factory=ColdRules)
    revisions: tuple[RevisionRoute, ...] = ()
    per_token_s: float | None = None
    """The SLA's time per output token of a stream, for the same counter as ``latency_s``."""
    access: AccessRule | None = None
    """Access rule. None if the function is public."""
    payload: PayloadRules | None = None
    """Which payloads are sampled. None if none is."""
    variant: ModelVariant | None = None
    """What it is among the variants of a model. None if it is none."""
    drop_after_s: float | None = None
    """Time in the waiting room after which a request is dropped. None if none is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteTable:
    """The versioned snapshot that gateways work from; ordered by (epoch, number), older ones are ignored."""

    epoch: int
    number: int
    workers: int
    """Number of gateway workers over which bounds are split."""
    domain: str = "localhost"
    default: str | None = None
    """Function of requests that name none. None if they get 404."""
    functions: tuple[FunctionRoute, ...] = ()
    tenants: tuple[Tenant, ...] = ()
    key_sets: tuple[KeySet, ...] = ()
    """Key sets that some function's rule names."""

    @property
    def version(self) -> tuple[int, int]:
        return (self.epoch, self.number)
