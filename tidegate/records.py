"""What crosses a process: samples up, route tables and activations down. Frozen records, JSON by ``tidegate.codec``.

Samples carry *cumulative* counters since the start of their process, so that a repeated or lost sample harms
nothing: the collector takes differences, drops repeats by ``sequence`` and treats a new ``incarnation`` as a reset.
No clock reading crosses a process; ``uptime_s`` is the sender's own monotonic time since its start, and its
difference between two samples is the interval they span.
"""

from dataclasses import dataclass, field
from enum import StrEnum

from tidegate.cold_rules import ColdRules as ColdRules
from tidegate.phases import ColdStartPhases as ColdStartPhases
from tidegate.sample import AppSample as AppSample
from tidegate.sample import ReplicaSample as ReplicaSample
from tidegate.sample import SparseHistogram as SparseHistogram
from tidegate.tenants import AccessRule, KeySet, Tenant, TenantSeen
from tidegate.tokens import GroupTokens as GroupTokens
from tidegate.tokens import TokensSeen as TokensSeen

# --- gateway -> autoscaler -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupTraffic:
    """Requests of one revision that one group answered, as the gateway saw them. Cumulative."""

    group: str
    requests: int
    inferences: int
    failures: int
    latency: SparseHistogram = ()
    """Head received -> last byte sent (streams: first byte), cold start included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RevisionDemand:
    """What one gateway worker knows of one revision. Counters are cumulative, waiting is the level now."""

    function: str
    revision: str
    arrivals: int
    """Requests that arrived, refused and expired ones included: this is lambda in requests."""
    arrivals_inferences: int
    refused: int
    expired: int
    cancelled: int
    answered: int
    failed: int
    """Answered with 5xx."""
    within_sla: int
    waiting: int
    waiting_inferences: int
    oldest_waiting_s: float
    waiting_request_s: float
    """Integral of waiting requests over time; with the queue_proxies' it is KPA's concurrency."""
    waiting_inference_s: float
    latency: SparseHistogram = ()
    sizes: SparseHistogram = ()
    """Arrivals by inferences per request, recorded as if they were microseconds. Cumulative."""
    groups: tuple[GroupTraffic, ...] = ()
    shadow: "ShadowSeen | None" = None
    """What copies of other revisions' requests showed, where this revision is a shadow."""
    streaming: int = 0
    """Event streams and tunnels that have begun, and go on: the level now."""
    tokens: TokensSeen | None = None
    """None: the function's answers tell nothing of tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShadowSeen:
    """Copies of requests that a shadow revision answered beside the revision that the client got its answer from.
    Cumulative."""

    requests: int = 0
    """Copies whose pair of answers was compared."""
    skipped: int = 0
    """Copies that were not sent or not compared: no free slot, a body too large to keep."""
    failed: int = 0
    """The shadow answered 5xx or broke where the other did not."""
    status_differs: int = 0
    """Another status; those that failed are not among them."""
    output_differs: int = 0
    """Same status, other body."""
    latency: SparseHistogram = ()
    """Of the shadow's answers: from the slot to the end (event streams: first byte). Copies that broke are left out."""
    served_latency: SparseHistogram = ()
    """Of the answers that the clients of the same requests got, in the same way: without their waiting."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ColdStartSeen:
    """The first answer that one replica gave through one gateway worker."""

    function: str
    revision: str
    replica: str
    phases: ColdStartPhases


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewaySample:
    worker: str
    incarnation: str
    sequence: int
    uptime_s: float
    table_epoch: int
    table_number: int
    connections: int
    demands: tuple[RevisionDemand, ...] = ()
    cold_starts: tuple[ColdStartSeen, ...] = ()
    """The last cold starts seen, newest last, at most 64; a reader drops the ones it knows by replica."""
    certificate_fault: str | None = None
    """Why the worker keeps an older certificate than the one in its files."""
    is_last: bool = False
    """The worker has retired and ends now."""
    tenants: tuple[TenantSeen, ...] = ()
    """Those that have called."""
    quotas_lost: bool = False
    """Quotas are this worker's even part of them: it does not reach the others."""
    unknown_keys: dict[str, int] = field(default_factory=dict)
    """Tokens signed with a key that a key set does not have, by the set's source. Cumulative."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Activation:
    """Pushed by a gateway the moment a request waits for a revision without a ready replica; repeated while it does."""

    function: str
    revision: str
    waiting: int
    waiting_inferences: int
    oldest_waiting_s: float


# --- control -> gateway --------------------------------------------------------------------------------------------


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


# --- autoscaler -> deploy, explain, replay --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """Why a decision is what it is: a known word (``panic_enter``, ``capped_by_max``) and the numbers behind it."""

    code: str
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDecision:
    accelerator: str
    replicas: int
    share: int = 100
    """Percent of a device per replica."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What the autoscaler wants for one revision at one moment. ``groups`` None: hold what is there."""

    function: str
    revision: str
    at: float
    """``now`` of the deciding process, Unix seconds."""
    policy: str
    ready: int
    desired: int | None
    """Replicas over all groups; None: hold."""
    groups: tuple[GroupDecision, ...] | None
    reasons: tuple[Reason, ...]
    observed: dict[str, float] = field(default_factory=dict)
    """The figures decided upon, by metric name (``stable_concurrency``, ``lambda_ips``, ...)."""
    weights: dict[str, float] = field(default_factory=dict)
    """Fraction of the revision's inferences by accelerator at that moment; empty: none is ready."""
    digest: str = ""
    """Of the observation decided upon, in hexadecimal; empty where it was not kept."""
    limits: tuple[str, ...] = ()
    """Codes of the reasons that are limits which bit: without them the policy's wish would be carried out."""
    is_dry_run: bool = False
    """True: logged and exported, never carried out."""
