"""Samples that a gateway worker sends to the control process every second, and activations.

Samples and activations go up, route tables come down. Samples carry *cumulative* counters since the start of their
process, so that a repeated or lost sample does no harm: the collector takes differences, drops repeats by ``sequence``
and treats a new ``incarnation`` as a reset. No clock reading crosses a process: ``uptime_s`` is the sender's own
monotonic time since its start, and its difference between two samples is the interval that they span.
"""

from dataclasses import dataclass, field

from tidegate.records.replica_sample import SparseHistogram
from tidegate.records.replica_state import ColdStartPhases
from tidegate.records.tenants import TenantSeen

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
class GroupTokens:
    """Tokens of the requests that one group answered. Cumulative."""

    group: str
    inferences: int
    """Of the requests whose tokens these are."""
    prompt: int
    completion: int
    streams: int = 0
    """Those with output."""
    first_s: float = 0.0
    """Sum over them: sent to the replica -> first event with output."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokensSeen:
    """Tokens of one revision. Cumulative."""

    arrived: int = 0
    """Expected of the requests that arrived, refused and expired ones included: this is lambda in tokens."""
    prompt: int = 0
    completion: int = 0
    cached: int = 0
    """Of the prompts, those that the model server had in a cache."""
    answers: int = 0
    """Answers whose tokens are counted."""
    estimated: int = 0
    """Those of them that reported no usage: their figures are ours."""
    first: SparseHistogram = ()
    """Streams: head received -> first event with output, cold start included."""
    between: SparseHistogram = ()
    """Streams: from one event with output to the next."""
    groups: tuple[GroupTokens, ...] = ()


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


def difference(told: TokensSeen, before: TokensSeen) -> TokensSeen:
    """What came between two reports of one worker, but for the groups; what ran backwards is nothing."""
    figures = {name: max(0, getattr(told, name) - getattr(before, name)) for name in _COUNTERS}
    return TokensSeen(**figures, first=_more(told.first, before.first), between=_more(told.between, before.between))


_COUNTERS = ("arrived", "prompt", "completion", "cached", "answers", "estimated")


def _more(told: SparseHistogram, before: SparseHistogram) -> SparseHistogram:
    known = dict(before)
    return tuple((index, count - known.get(index, 0)) for index, count in told if count > known.get(index, 0))
