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
from tidegate.records.route_table import ModelVariant


class FunctionState(StrEnum):
    """The state of a function in one word."""

    ASLEEP = "asleep"
    """No replica exists and none is wanted; the next request starts one."""
    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
    """Its replicas drain; a request revives the last one."""
    UNPLACED = "no-room"
    """No accelerator has a place for the serving revision, and none is being made. Requests are refused meanwhile."""
    FAILED = "failed"
    """The serving revision's last start failed and no replica is ready. Requests get 503 until a start succeeds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaView:
    id: str
    accelerator: str
    state: str
    age_s: float
    limit: int | None
    in_flight: int | None
    """None before the first sample."""
    held: int = 0
    """Slots that calls without a client hold, because the model server goes on with them."""
    held_s: float = 0.0
    """Time since the client of the oldest one was gone."""
    reason: str | None
    phases: ColdStartPhases
    pids: tuple[int, ...]
    emulated: bool
    adopted: bool
    cores: int = 0
    """Cores of its model server, borrowed ones included; 0: it is not bound to any."""
    max_batch: int | None = None
    """Largest batch that it was last ordered to form. None: as its function says."""
    unit: int = 0
    """Index of its unit of the accelerator."""
    more_units: tuple[int, ...] = ()
    """Further units that it holds (``gpu-count``)."""
    share: int = 100
    """Percent of the unit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResizedView:
    """One replica after a resize."""

    replica: str
    cores: int
    """Cores of its model server; 0: it is not bound to any."""
    max_batch: int
    batch_delay_s: float
    took_s: float
    """Time that the change took."""
    refused: str | None = None
    """Why it was not carried out; None if it was."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResizeView:
    function: str
    revision: str
    replicas: tuple[ResizedView, ...]


class RateSource(StrEnum):
    """The source of a group's service rate."""

    LEARNT = "learnt"
    """Measured on full replicas, or where a higher occupancy brings no more: the rate that a replica can do."""
    BOUND = "bound"
    """The best rate seen below the limit: a lower bound."""
    EARLIER = "earlier"
    """The rate of the revision before; this one has not shown its own yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BesideView:
    """A model that shares devices with the replicas of a group."""

    model: str
    increase: float
    """Part by which an execution takes longer while it is at work: 0.18 is 18 %."""
    requests: float
    """Requests from which that was learnt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupView:
    """All replicas of a revision on one accelerator: the decision, the present replicas, and the measurements."""

    accelerator: str
    emulated: bool
    """True if its replicas are real processes whose service times come from a profile."""
    wanted: int | None
    """Replicas by the last decision; None: hold the present ones."""
    share: int
    """Percent of a device that each replica gets by the last decision."""
    ready: int
    starting: int
    leaving: int
    room: int | None
    """Further replicas that fit now. A negative number counts the replicas beyond the accelerator's places. None: not
    known."""
    price_per_hour: float
    """Price of one replica."""
    weight: float
    """Fraction of the revision's inferences, 0..1."""
    mu_ips: float | None
    """Service rate of one replica, inferences per second, at the last batch sizes; None: not known."""
    mu_source: RateSource | None
    mean_batch: float | None
    """Inferences per request."""
    ips: float
    """Present rate of all replicas together."""
    idle_states: str | None = None
    """The states of replicas that are not needed, with what they take and hold; None before the first start."""
    tps: float | None = None
    """Present rate in tokens per second, prompts included; None if tokens are not counted."""
    mu_tps: float | None = None
    """Tokens per second of one replica, as :attr:`mu_ips`."""
    busy: float
    """Part of the time in which a ready replica has work, 0..1."""
    execution_s: float | None
    """Mean execution time of a request."""
    tail_s: float | None
    """Execution time at the SLA's percentile."""
    limit: int | None
    """Slots of one replica; 0: no limit; None: not reported yet."""
    limit_reason: Reason | None
    """Reason of a learnt limit (``concurrency: auto``)."""
    stored: str | None = None
    """The form of the model that its replicas run (``t4/int8/b16``); None without a model repository."""
    beside: tuple[BesideView, ...] = ()
    """How much other models on the same device slow its replicas, as far as it was learnt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureView:
    """The reason why a revision cannot be served now, and the time until the next attempt."""

    reason: str
    failures: int
    next_try_in_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CrashView:
    """Crashes of replicas that had been ready, within the last hour, and the last one of them."""

    count: int
    age_s: float
    """Time since the last one."""
    replica: str
    cause: str
    """``killed``, ``exited``, ``memory``, ``unresponsive``, ``liveness`` or ``gone``."""
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleView:
    """Why a revision without work has replicas."""

    idle_s: float
    """Time since its last work, or since it was ready."""
    zero_in_s: float | None
    """Time until it goes to zero if no request comes. None: something keeps it, or its policy has steps of its own."""
    kept_by: str
    """Code of the limit that keeps replicas (``raised_to_min``, ``initial_scale``, ...); empty if none does."""
    is_unused: bool
    """True if the function has had no request since its first deploy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RevisionView:
    id: str
    number: int
    role: Role
    percent: float
    """Share of the function's requests."""
    tags: tuple[str, ...] = ()
    shadow_percent: float = 0.0
    """Share of the function's requests that are copied to it."""
    size_routing: str = ""
    """How its groups share requests by size, and why."""
    policy: str
    desired: int | None
    """Replicas by the last decision; None: hold, or no decision yet."""
    is_dry_run: bool
    """True if the policy's decisions are logged and shown, not carried out."""
    is_carried_out: bool = True
    """True if the last decision is carried out; few are in a dry run."""
    ready: int
    starting: int
    leaving: int
    waiting: int
    reasons: tuple[Reason, ...]
    unplaced: tuple[str, ...]
    stuck: str | None
    """Why it has no place although none is being made for it: waiting alone may not help."""
    failure: FailureView | None
    crash: CrashView | None = None
    """None if no replica that had been ready has crashed within the last hour."""
    replicas: tuple[ReplicaView, ...]
    created_at: float
    source: str
    zero_after_s: float = 60.0
    """Its ``scale-to-zero-after``."""
    sleeping: int = 0
    """Replicas that sleep: their memory is held, their places are free."""
    idle: IdleView | None = None
    """None if it has work, or no replica is ready."""
    asleep_s: float | None = None
    """Time since its last replica ended; None if it has one, or if that was before the control process started."""
    groups: tuple[GroupView, ...] = ()
    """Accelerators that it may use or has replicas on, cheapest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokensView:
    """Tokens of a function's answers over the window of its traffic, as reported or else estimated."""

    prompt: int
    completion: int
    cached: int
    """Prompt tokens that model servers had in a cache."""
    answers: int
    estimated: int
    """Answers without reported usage."""
    arrived_per_s: float
    """Expected tokens of the arrived requests; mean of the last 5 s, as the other rates."""
    prompt_per_s: float
    completion_per_s: float
    first_p50_s: float | None
    """Streams: time from the request to the first event with output."""
    first_tail_s: float | None
    """The same at the function's own percentile."""
    between_p50_s: float | None
    """Streams: time from one event with output to the next."""
    between_tail_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficView:
    """A function's traffic at the gateways over the last ``window_s`` seconds; ``waiting`` is the present level."""

    window_s: float
    requests: int = 0
    inferences: int = 0
    answered: int = 0
    failed: int = 0
    refused: int = 0
    expired: int = 0
    cancelled: int = 0
    within_sla: int = 0
    dropped: int = 0
    """Requests among the refused ones that had waited for ``drop-after``."""
    switched: int = 0
    """Requests for it that another variant of the model served; not among ``requests``."""
    ended_in_all: int = 0
    """Requests that are over, of the whole life of this control process."""
    waiting: int = 0
    waiting_inferences: int = 0
    oldest_waiting_s: float = 0.0
    requests_per_s: float = 0.0
    """Mean of the last 5 s."""
    inferences_per_s: float = 0.0
    """This too. The percentiles below are of the window, each less than 1 % off."""
    p50_s: float | None = None
    tail_s: float | None = None
    """Latency at the function's own percentile."""
    p95_s: float | None = None
    p99_s: float | None = None
    sizes: tuple[tuple[int, int], ...] = ()
    """(largest number of inferences per request, requests) of each size class with requests, smallest first."""
    tokens: TokensView | None = None
    """None if its answers report no tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowView:
    """The outcome of one revision's requests in a window; ``bad`` counts all except answers within the SLA."""

    requests: int
    bad: int
    failed: int
    refused: int
    expired: int
    late: int
    overdue: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ShadowView:
    """Results of copied requests beside the answers that clients got; both times are of the same requests."""

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
    """The revision that serves meanwhile, and again if the candidate is taken back."""
    percent: float
    """Share of the requests that the candidate has now."""
    steps: tuple[float, ...]
    step: int
    """The present step, counted from 1; 0: none."""
    window_s: float | None
    window_left_s: float | None
    duration_s: float | None
    shadow_percent: float
    verdict: str
    """The result of the last review of the figures."""
    new: WindowView | None
    """Figures of the candidate in the present window, or the last one."""
    old: WindowView | None
    shadow: ShadowView | None
    began_at: float
    events: tuple[RolloutEvent, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StageBudgetView:
    """The part of a pipeline's latency target that one stage has."""

    stage: str
    budget_s: float
    percentile: float
    """Part of its requests that the stage is to answer within it, in percent."""
    service_s: float | None
    """Time of a request that has a replica for itself; None if none was measured."""
    requests_per_s: float
    replicas: int | None
    """Fewest replicas that are expected to keep it; None if that is not known, or none do."""
    is_own: bool
    """True if it is the function's own ``latency``."""
    is_even: bool
    """True while the target is divided evenly, since a stage has not been measured yet."""
    is_feasible: bool
    """False: the stages alone take longer than the whole target."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionView:
    name: str
    state: FunctionState
    revision: str
    """The serving revision."""
    url: str | None
    """URL by host name; ``path_url`` needs no host name."""
    path_url: str | None
    """None for gRPC: its paths belong to the calls."""
    models: tuple[str, ...]
    protocol: str
    latency_s: float | None
    percentile: float
    target_ips: float | None
    ready: int
    """Of all revisions: during a rollout also the candidate's, and those of the one before until they have drained."""
    desired: int | None
    """Replicas that are wanted of all revisions but those that are being replaced. None: hold the present ones."""
    price_per_hour: float
    """Price of the accelerators that its replicas hold now, in the currency of the accelerators file."""
    traffic: TrafficView
    revisions: tuple[RevisionView, ...]
    is_pinned: bool = False
    """True if the percents were set by hand; newer revisions get no traffic until they are given some."""
    rollout: RolloutView | None = None
    """The rollout under way."""
    variant: ModelVariant | None = None
    """What it is among the variants of a model. None if it is none."""
    message: str | None = None
    """The present problem in words: how a start failed, with the server's own last lines. The problem of a candidate
    begins with its name (``candidate echo-00002: ...``)."""
    per_token_s: float | None = None
    """The SLA's time per output token of streams; ``latency_s`` is then for the first one."""
    last_log: tuple[str, ...] = ()
    is_pipeline: bool = False
    """Other functions serve its requests, one after the other; it has no replicas of its own."""
    stages: tuple[str, ...] = ()
    """The functions of its stages, if it is a pipeline."""
    budgets: tuple[StageBudgetView, ...] = ()
    """How its latency target is divided among its stages."""
    attained: str | None = None
    """Whether it keeps its latency target, in words; None for a function, and without one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharePart:
    """The part of a function's traffic that one revision has."""

    revision: str
    percent: float
    """Present share of the requests; a candidate has one only while it is ready."""
    tags: tuple[str, ...]
    shadow_percent: float
    ready: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitView:
    """The parts of a function's traffic by revision."""

    function: str
    is_pinned: bool
    """True if the percents were set by hand; they stay until they are changed."""
    parts: tuple[SharePart, ...]
    kept: tuple[str, ...]
    """Revisions that may be given a part."""
    candidate: str | None
    """The revision that takes over."""
    is_returning: bool
    """True if the candidate is an earlier revision, after a rollback."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityKindView:
    """The capacity of one accelerator for a function."""

    accelerator: str
    emulated: bool
    source: str
    """``learnt``, ``earlier`` (of the revision before), ``profile``, ``predicted`` or ``unknown``."""
    one_s: float | None
    """Time of one inference on an empty replica."""
    meets_latency: bool | None
    """None if there is no latency target, or the time is not known."""
    mu_ips: float | None
    """Inferences per second of one replica."""
    places: int
    """Replicas of the function that fit on an accelerator without other replicas."""
    free: int
    price_per_hour: float
    """Price of one replica."""
    error: float | None = None
    """Relative error to expect of a predicted time; None for others."""
    basis: str | None = None
    """What a predicted time follows from, in words."""
    first_s: float | None = None
    """Time to the first token on an empty replica, which the latency is for where answers are streams; None for
    others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlaCostView:
    latency_s: float
    """Of streams of tokens: to the first token."""
    requests_per_s: float
    """The load that it is for: the mean of the last day."""
    accelerator: str | None
    """None if none is known to meet the latency."""
    replicas: int
    price_per_hour: float
    per_token_s: float | None = None
    """The time per output token that it is for, where answers are streams and the SLA has one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityView:
    """The SLA beside the capacity of the accelerators, cheapest first."""

    latency_s: float | None
    target_ips: float | None
    kinds: tuple[CapacityKindView, ...]
    provided: dict[str, int]
    """Replicas by accelerator that carry ``target_ips``; empty if there is no target, or no rate is known."""
    provided_ips: float | None
    """Their rate at the target utilisation."""
    price_per_hour: float | None
    """Price of these replicas; without ``target_ips`` the price of one replica on the cheapest accelerator that meets
    the latency."""
    sla_costs: tuple[SlaCostView, ...] = ()
    """What the latency, half and twice of it cost at the load so far; empty before there was one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeployedView:
    name: str
    revision: str
    filled_in: dict[str, str] = field(default_factory=dict)
    """The values used for what the manifest leaves open."""
    warnings: tuple[str, ...] = ()
    capacity: CapacityView | None = None
    """None if the function states no SLA."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeployView:
    functions: tuple[DeployedView, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesLineView:
    """One metric over time: of a group, or of the whole function (group None)."""

    metric: str
    group: str | None
    unit: str
    points: tuple[tuple[int, float | None], ...]
    """(Unix second at which the step begins, mean of the step); null: not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesView:
    function: str
    step_s: int
    """As requested, or wider if values that far back are kept less finely."""
    lines: tuple[SeriesLineView, ...]
    refused: int
    """Number of values, of all functions, that the bounded memory had no room for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ColdStartView:
    """One start of one replica."""

    function: str
    revision: str
    replica: str
    accelerator: str
    at: float
    from_zero: bool
    """True if no replica of its revision was ready when it was started."""
    phases: ColdStartPhases
    total_s: float
    """Sum of the phases reached."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainView:
    """The last decision of each revision, in words and in figures, and the earlier ones that changed something."""

    function: str
    text: str
    decisions: tuple[Decision, ...]
    summary: tuple[str, ...] = ()
    """The same in plain sentences: what runs and how busy it is, why, and what would change it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgottenView:
    """What the policy of a function had learnt until now."""

    function: str
    learnt: tuple[str, ...]
    """In words; empty if there was nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestView:
    """A revision as it was deployed."""

    function: str
    revision: str
    manifest: str
    """A manifest that deploys the same function again: flags included, paths absolute, defaults left out."""
    source: str
    """The file that it was deployed from, as it was named then."""
    copy: str | None
    """Name of the copy of its file, with the digest of its content; None if the file itself is read."""
    created_at: float
    modules: str | None = None
    """Name of the bundle of the modules that its class imports from beside it; None if there are none."""
