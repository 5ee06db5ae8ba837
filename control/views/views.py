"""What the API tells: plain records, the same for the API's document, the SDK and the command line.

Durations are seconds that have passed or will pass (``_s``); ``at`` is Unix time. Nothing here is needed to decide
anything: a view is made from the round's state when somebody asks.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from tidegate.records.replica_state import ColdStartPhases
from tidegate.records.rollout import Phase, RolloutEvent, Strategy

if TYPE_CHECKING:
    from tidegate.traffic.judge import Tally


class FunctionState(StrEnum):
    """A function in one word."""

    ASLEEP = "asleep"
    """No replica, none wanted; the next request starts one."""
    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
    """Its replicas are on their way out; a request takes the last one back."""
    UNPLACED = "no-room"
    """No accelerator has a place for the serving revision and none is being made; requests are refused meanwhile."""
    FAILED = "failed"
    """The serving revision's last start failed and nothing is ready; requests get 503 until a start succeeds."""


class Role(StrEnum):
    """What a revision is to its function."""

    SERVING = "serving"
    CANDIDATE = "candidate"
    """To take over: when it is ready, or as its rollout goes on."""
    RETIRED = "retired"
    """Drains to zero."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasonView:
    code: str
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaView:
    id: str
    accelerator: str
    state: str
    age_s: float
    limit: int | None
    in_flight: int | None
    """None: no sample yet."""
    reason: str | None
    phases: ColdStartPhases
    pids: tuple[int, ...]
    emulated: bool
    adopted: bool


class RateSource(StrEnum):
    """What a group's service rate is."""

    LEARNT = "learnt"
    """Of full replicas, or where more company brings no more: what a replica can do."""
    BOUND = "bound"
    """The best that was seen below the limit: a replica can do at least this."""
    EARLIER = "earlier"
    """That of the revision before; this one has not shown its own yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupView:
    """All replicas of a revision on one accelerator kind: what was decided, what there is, what is known."""

    accelerator: str
    emulated: bool
    """Its replicas are real processes whose service times come from a profile."""
    wanted: int | None
    """Replicas by the last decision; None: hold what is there."""
    share: int
    """Percent of a device that each replica gets by the last decision."""
    ready: int
    starting: int
    leaving: int
    room: int | None
    """Further replicas that fit now; negative: so many more than the accelerator takes. None: not known."""
    price_per_hour: float
    """Of one replica."""
    weight: float
    """Fraction of the revision's inferences, 0..1."""
    mu_ips: float | None
    """Service rate of one replica, inferences per second, for batches as they last were; None: not known."""
    mu_source: RateSource | None
    mean_batch: float | None
    """Inferences per request."""
    ips: float
    """Served now, all replicas together."""
    tps: float | None = None
    """Tokens served now per second, prompts included; None: nobody counts them."""
    mu_tps: float | None = None
    """Tokens per second of one replica, as :attr:`mu_ips`."""
    busy: float
    """Part of the time in which a ready replica has work, 0..1."""
    execution_s: float | None
    """Mean execution time of a request."""
    tail_s: float | None
    """Execution time at the SLA's percentile."""
    limit: int | None
    """Slots of one replica; 0: no limit; None: nobody has told."""
    limit_reason: ReasonView | None
    """Why, where the limit is learnt (``concurrency: auto``)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureView:
    """Why a revision cannot be served now, and when it is tried again."""

    reason: str
    failures: int
    next_try_in_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RevisionView:
    id: str
    number: int
    role: Role
    percent: float
    """Share of the function's requests."""
    tags: tuple[str, ...] = ()
    shadow_percent: float = 0.0
    """Share of the function's requests of which it gets a copy."""
    size_routing: str = ""
    """How requests of several sizes are shared by its groups, and why."""
    policy: str
    desired: int | None
    """What the last decision wants; None: hold, or no decision yet."""
    is_dry_run: bool
    """The policy's wishes are logged and shown, not carried out."""
    is_carried_out: bool = True
    """Whether the last decision is: in a dry run few are."""
    ready: int
    starting: int
    leaving: int
    waiting: int
    reasons: tuple[ReasonView, ...]
    unplaced: tuple[str, ...]
    stuck: str | None
    """Why it has no place, where none is being made for it: waiting alone may not help."""
    failure: FailureView | None
    replicas: tuple[ReplicaView, ...]
    created_at: float
    source: str
    groups: tuple[GroupView, ...] = ()
    """Accelerators that it may use or has replicas on, cheapest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokensView:
    """Tokens of a function's answers over the window of its traffic, as reported or else estimated."""

    prompt: int
    completion: int
    cached: int
    """Of the prompts, those that model servers had in a cache."""
    answers: int
    estimated: int
    """Answers that reported no usage."""
    arrived_per_s: float
    """Expected of what arrived, mean of the last 5 s, as the other rates."""
    prompt_per_s: float
    completion_per_s: float
    first_p50_s: float | None
    """Streams: from the request to the first event with output."""
    first_tail_s: float | None
    """At the function's own percentile."""
    between_p50_s: float | None
    """Streams: from one event with output to the next."""
    between_tail_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficView:
    """What the gateways saw of a function over the last ``window_s`` seconds; ``waiting`` is the level now."""

    window_s: float
    requests: int = 0
    inferences: int = 0
    answered: int = 0
    failed: int = 0
    refused: int = 0
    expired: int = 0
    cancelled: int = 0
    within_sla: int = 0
    waiting: int = 0
    waiting_inferences: int = 0
    oldest_waiting_s: float = 0.0
    requests_per_s: float = 0.0
    """Mean of the last 5 s."""
    inferences_per_s: float = 0.0
    p50_s: float | None = None
    tail_s: float | None = None
    """Latency at the function's own percentile."""
    tokens: TokensView | None = None
    """None: its answers tell nothing of tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowView:
    """How one revision's requests went in a window; ``bad`` are all but the answers within the SLA."""

    requests: int
    bad: int
    failed: int
    refused: int
    expired: int
    late: int
    overdue: int

    @classmethod
    def of(cls, tally: "Tally") -> "WindowView":
        kinds = ("requests", "bad", "failed", "refused", "expired", "late", "overdue")
        return cls(**{kind: getattr(tally, kind) for kind in kinds})


@dataclass(frozen=True, slots=True, kw_only=True)
class ShadowView:
    """What copies of requests showed beside the answers that clients got; times are of the same requests."""

    requests: int
    skipped: int
    failed: int
    status_differs: int
    output_differs: int
    p50_s: float | None
    p98_s: float | None
    served_p50_s: float | None
    served_p98_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutView:
    """A rollout under way, or the last one."""

    function: str
    strategy: Strategy
    phase: Phase
    candidate: str
    base: str
    """Serves meanwhile, and again if the candidate is taken back."""
    percent: float
    """Of the requests that the candidate gets now."""
    steps: tuple[float, ...]
    step: int
    """The present one, counted from 1; 0: none."""
    window_s: float | None
    window_left_s: float | None
    duration_s: float | None
    shadow_percent: float
    verdict: str
    """What the last look at the figures says."""
    new: WindowView | None
    """Of the present window, or the last one."""
    old: WindowView | None
    shadow: ShadowView | None
    began_at: float
    events: tuple[RolloutEvent, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionView:
    name: str
    state: FunctionState
    revision: str
    """The serving one."""
    url: str | None
    """By host name; ``path_url`` needs none."""
    path_url: str | None
    """None: gRPC, whose calls have no path of their own."""
    models: tuple[str, ...]
    protocol: str
    latency_s: float | None
    percentile: float
    target_ips: float | None
    ready: int
    desired: int | None
    price_per_hour: float
    """Of the accelerators that its replicas hold now, in the currency of the accelerators file."""
    traffic: TrafficView
    revisions: tuple[RevisionView, ...]
    is_pinned: bool = False
    """The percents were set by hand; newer revisions wait until they are given some."""
    rollout: RolloutView | None = None
    """The one under way."""
    message: str | None = None
    """What is wrong, for people: how a start failed, with the server's own last lines. What is a candidate's trouble
    begins with its name (``candidate echo-00002: ...``)."""
    last_log: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayView:
    worker: str
    pid: int
    state: str
    restarts: int
    table: str | None
    """``epoch.number`` of the route table it works from."""
    connections: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplacedView:
    """A gateway worker and the one whose place it took; that one may still be finishing what it has."""

    worker: str
    pid: int
    old: str
    old_pid: int
    """0: it was down."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartView:
    """What a hot restart of the gateway workers did."""

    replaced: tuple[ReplacedView, ...]
    needs_up: tuple[str, ...]
    """Settings that have changed since the control process started and that only its own restart puts into force."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantView:
    """A tenant, and what it has used since the control process started."""

    name: str
    keys: int
    """How many API keys it has."""
    weight: float
    priority: int | None
    functions: tuple[str, ...]
    """Those that it may call; empty: every one."""
    quotas: dict[str, int]
    """Amounts by the names of the tenants' file."""
    requests: int
    inferences: int
    tokens: int
    refused: int
    """Requests that met a spent quota."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReloadView:
    """What a reload has put into force, and which gateway workers serve the certificate that is in the files now."""

    reloaded: tuple[str, ...]
    faults: dict[str, str]
    """Why the others keep the one they had, by worker."""
    in_force: tuple[str, ...] = ()
    """Settings and accelerators that are others from now on, a sentence each."""
    needs_restart: tuple[str, ...] = ()
    """Changed settings that fresh gateway workers put into force: ``tidegate restart``."""
    needs_up: tuple[str, ...] = ()
    """Changed settings that need another ``tidegate up``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceleratorView:
    name: str
    kind: str
    count: int
    in_use: int
    memory_bytes: int
    cores: int
    price_per_hour: float
    emulated: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DeploymentView:
    """The whole of it."""

    version: str
    pid: int
    epoch: int
    since_s: float
    state_directory: str
    api: str
    gateway: str
    table: str
    faults: tuple[str, ...]
    """What does not work just now: a full disk, a gateway worker that keeps dying."""
    gateways: tuple[GatewayView, ...]
    accelerators: tuple[AcceleratorView, ...]
    functions: tuple[FunctionView, ...]
    certificate: str | None = None
    """File with the front door's certificate; None without TLS."""
    store: str = ""
    """Where its records are, without a password."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharePart:
    """What one revision has of its function's traffic."""

    revision: str
    percent: float
    """Share of the requests now; of a candidate only while it is ready."""
    tags: tuple[str, ...]
    shadow_percent: float
    ready: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitView:
    """Who has which part of a function's traffic."""

    function: str
    is_pinned: bool
    """The percents were set by hand and stay until they are changed."""
    parts: tuple[SharePart, ...]
    kept: tuple[str, ...]
    """Revisions that could be given a part."""
    candidate: str | None
    """The one that is to take over."""
    is_returning: bool
    """The candidate is an earlier revision, after a rollback."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitRequest:
    """``split``: percent by revision (id, number or tag), with a sum of 100; empty: as it is. ``follow``: no split by
    hand any more, the newest revision takes over. ``tags``: revision by tag."""

    split: dict[str, float] = field(default_factory=dict)
    follow: bool = False
    tags: dict[str, str] = field(default_factory=dict)
    untag: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RollbackRequest:
    """``to``: id, number or tag of a kept revision; None: the one that served before."""

    to: str | None = None


class RolloutAction(StrEnum):
    BEGIN = "begin"
    PROMOTE = "promote"
    PAUSE = "pause"
    RESUME = "resume"
    ABORT = "abort"


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutRequest:
    """``begin`` takes a ``plan`` in the words of the annotations (``canary-steps``: ``1,5,25``) and the revision; None:
    the one under way, else the newest."""

    action: RolloutAction
    to: str | None = None
    plan: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeployRequest:
    """A manifest as text; ``base`` is the absolute folder that its relative paths start from."""

    manifest: str
    base: str
    source: str = "manifest"
    flags: dict[str, str] = field(default_factory=dict)
    """Annotations from outside the text, without prefix (``latency``): they win over what the text says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityKindView:
    """What one accelerator kind can do for a function."""

    accelerator: str
    emulated: bool
    source: str
    """``learnt``, ``earlier`` (of the revision before), ``profile`` or ``unknown``."""
    one_s: float | None
    """Time of one inference on an empty replica."""
    meets_latency: bool | None
    """None: there is no latency target, or the time is not known."""
    mu_ips: float | None
    """Inferences per second of one replica."""
    places: int
    """Replicas of the function that there can be, if nobody else were there."""
    free: int
    price_per_hour: float
    """Of one replica."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityView:
    """The SLA against what the accelerators can do, cheapest kind first."""

    latency_s: float | None
    target_ips: float | None
    kinds: tuple[CapacityKindView, ...]
    provided: dict[str, int]
    """Replicas by accelerator that carry ``target_ips``; empty: none is asked for, or no rate is known."""
    provided_ips: float | None
    """What they carry at the target utilisation."""
    price_per_hour: float | None
    """Of those replicas; without ``target_ips`` of one replica on the cheapest kind that meets the latency."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeployedView:
    name: str
    revision: str
    filled_in: dict[str, str] = field(default_factory=dict)
    """What the manifest left open and what it was taken for."""
    warnings: tuple[str, ...] = ()
    capacity: CapacityView | None = None
    """None: the function states no SLA."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeployView:
    functions: tuple[DeployedView, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultView:
    where: str
    value: str
    allowed: str
    line: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorDetail:
    code: str
    message: str
    faults: tuple[FaultView, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorView:
    error: ErrorDetail


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesLineView:
    """One metric over time: of a group, or (None) of the function as a whole."""

    metric: str
    group: str | None
    unit: str
    points: tuple[tuple[int, float | None], ...]
    """(Unix second at which the step begins, mean of the step); null: not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesView:
    function: str
    step_s: int
    """As asked, or wider where that is not kept so finely that far back."""
    lines: tuple[SeriesLineView, ...]
    refused: int
    """Values of all functions that found no room in the bounded memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ColdStartView:
    """One start of one replica."""

    function: str
    revision: str
    replica: str
    accelerator: str
    at: float
    from_zero: bool
    """Nothing of its revision was ready when it was started."""
    phases: ColdStartPhases
    total_s: float
    """Sum of the phases that were reached."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDecisionView:
    accelerator: str
    replicas: int
    share: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionView:
    at: float
    function: str
    revision: str
    policy: str
    ready: int
    desired: int | None
    groups: tuple[GroupDecisionView, ...] | None
    """None: hold."""
    reasons: tuple[ReasonView, ...]
    limits: tuple[str, ...]
    """Codes of the reasons that are limits which bit."""
    observed: dict[str, float]
    weights: dict[str, float]
    """In force at that moment, by accelerator; empty: none was ready."""
    digest: str
    """Of the observation decided upon."""
    is_dry_run: bool
    """Not carried out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainView:
    """The last decision of each revision, in words and in figures, and the ones before it that changed something."""

    function: str
    text: str
    decisions: tuple[DecisionView, ...]
