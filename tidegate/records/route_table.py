"""The route table: the immutable, versioned snapshot that the control process pushes to every gateway worker.

Tables are ordered by (epoch, number); a gateway ignores an older one. A table lists replicas, ready or not: readiness
reaches the gateway over the replica's slot channel.
"""

from dataclasses import dataclass, field
from enum import StrEnum

from tidegate.records.cold_rules import ColdRules
from tidegate.records.tenants import AccessRule, KeySet, Tenant


class Spread(StrEnum):
    """How a replica is chosen inside a group."""

    MOST_FREE = "most-free"
    FIRST_AVAILABLE = "first-available"
    ROUND_ROBIN = "round-robin"
    RANDOM = "random"
    POWER_OF_TWO = "power-of-two"
    HASH = "hash"
    """Equal keys (``FunctionRoute.hash_on``) go to one replica while it is not much fuller than the others."""


class QueueOrder(StrEnum):
    """Who goes first among waiting requests of one priority."""

    ARRIVAL = "arrival"
    DEADLINE = "deadline"


class Binding(StrEnum):
    """When a request's group is chosen."""

    LATE = "late"
    """When a slot frees."""
    EARLY = "early"
    """At arrival, by weight: it waits for that group alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeaderMatch:
    """A field that a request must carry."""

    name: str
    """In lower case."""
    value: str | None = None
    """Exactly this value; None: any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteMatch:
    """One way in which a request may name a function beside its host, prefix and models; all that is given must fit."""

    host: str | None = None
    path_prefix: str | None = None
    """Of whole path segments; not stripped."""
    headers: tuple[HeaderMatch, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class OutlierRules:
    """When a replica that fails where others do not gets no work for a while (outlier ejection)."""

    failures: int = 5
    """Failures in a row; 0: never ejected."""
    ejection_s: float = 10.0
    """First ejection; doubled with each further one, at most ten times as long."""
    max_percent: int = 50
    """Of a revision's ready replicas may be out at once; one always may not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hedging:
    """A second copy of an idempotent request, sent elsewhere when the first is late; the first answer counts."""

    percentile: float | None = 95.0
    """After this percentile of the function's recent latencies; None: after ``after_s``."""
    after_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaRoute:
    """A replica that exists, ready or not: readiness comes by channel, never by table."""

    id: str
    address: str
    """``host:port`` or ``unix:/path`` of the queue_proxy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRoute:
    """All replicas of a revision on one accelerator kind, with its share of the traffic."""

    accelerator: str
    weight: float
    """Fraction of the revision's inferences, 0..1; 0: no new work."""
    mu_ips: float | None = None
    """Service rate of the whole group; None: not yet learnt."""
    smallest: int = 1
    """Fewest inferences of a request that it may serve."""
    largest: int | None = None
    """Most inferences of a request that it may serve; None: any number."""
    replicas: tuple[ReplicaRoute, ...] = ()


class FailureKind(StrEnum):
    """Why a revision cannot be served, as clients are told (``tidegate.errors``)."""

    START_FAILED = "start_failed"
    """Its server does not start: a retry alone does not help."""
    NOT_SERVABLE = "not_servable"
    """Nowhere is room for it now: a retry later may help."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RevisionRoute:
    id: str
    percent: float
    """Share of the function's requests, 0..100."""
    tags: tuple[str, ...] = ()
    """Names by which a client asks for this revision whatever the percentages are."""
    shadow_percent: float = 0.0
    """Share of the function's other requests of which this revision gets a copy, whose answer no client sees."""
    unit_inferences: bool = False
    """Slots count inferences instead of requests."""
    limited: bool = True
    """False: ``concurrency: 0``, no credits; weights alone decide."""
    groups: tuple[GroupRoute, ...] = ()
    failure: str | None = None
    """Why it cannot be served now; waiting requests get 503 with this text."""
    failure_kind: FailureKind = FailureKind.START_FAILED


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
    spread: Spread = Spread.MOST_FREE
    hash_on: str = "client"
    """What ``Spread.HASH`` looks at: ``client`` (its address), ``header:NAME``, ``cookie:NAME``, ``session`` (a field
    of that purpose), ``prompt`` (how it begins), ``prefix`` (what replicas should remember of it) or ``model``."""
    queue_order: QueueOrder = QueueOrder.ARRIVAL
    binding: Binding = Binding.LATE
    priority: int = 5
    """Of requests that state none, 0 (first) to 9."""
    retry_percent: float = 20.0
    """Retry budget: retries and hedges together, in percent of the recent requests."""
    hedging: Hedging | None = None
    outlier: OutlierRules = OutlierRules()
    probe_path: str | None = None
    """Asked of an ejected replica before it gets work again; None: a connection must be accepted."""
    matches: tuple[RouteMatch, ...] = ()
    cold: ColdRules = field(default_factory=ColdRules)
    revisions: tuple[RevisionRoute, ...] = ()
    access: AccessRule | None = None
    """Who may call it; None: everybody."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteTable:
    """The versioned snapshot that gateways work from; ordered by (epoch, number), older ones are ignored."""

    epoch: int
    number: int
    workers: int
    """Gateway workers over which bounds are split."""
    domain: str = "localhost"
    default: str | None = None
    """Function for requests that name none; None: 404."""
    functions: tuple[FunctionRoute, ...] = ()
    tenants: tuple[Tenant, ...] = ()
    key_sets: tuple[KeySet, ...] = ()
    """Those that some function's rule names."""

    @property
    def version(self) -> tuple[int, int]:
        return (self.epoch, self.number)
