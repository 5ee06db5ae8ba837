"""Views of a function: its revisions, groups and replicas, its traffic, rollouts, decisions and cold starts.

Views are the records that the API sends; its document, the SDK and the command line use the same ones. Durations in
seconds end in ``_s`` and have passed or will pass; ``at`` is Unix time. A view is made from the control loop's state
when it is requested; no decision depends on it.
"""

from dataclasses import dataclass, field
from enum import StrEnum

from tidegate.records.decision import Decision, Reason
from tidegate.records.replica_state import ColdStartPhases
from tidegate.records.roles import Role
from tidegate.records.rollout import Phase, RolloutEvent, Strategy


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
    limit_reason: Reason | None
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
    reasons: tuple[Reason, ...]
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
class ExplainView:
    """The last decision of each revision, in words and in figures, and the ones before it that changed something."""

    function: str
    text: str
    decisions: tuple[Decision, ...]
