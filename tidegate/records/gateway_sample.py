"""Samples that a gateway worker sends to the control process every second, and activations.

Samples and activations go up, route tables come down. Samples carry *cumulative* counters since the start of their
process, so that a repeated or lost sample does no harm: the collector takes differences, drops repeats by ``sequence``
and treats a new ``incarnation`` as a reset. No clock reading crosses a process: ``uptime_s`` is the sender's own
monotonic time since its start, and its difference between two samples is the interval that they span.
"""

from dataclasses import dataclass, field

from tidegate.records.replica_sample import SparseHistogram
from tidegate.records.replica_state import ColdStartPhases
from tidegate.records.tenants import TenantSeen, TenantUse

# --- gateway -> autoscaler -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupTraffic:
    """Requests of one revision that one group answered, as seen by the gateway. Cumulative."""

    group: str
    requests: int
    inferences: int
    failures: int
    latency: SparseHistogram = ()
    """From the received head to the last byte sent (streams: first byte), cold start included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupTokens:
    """Tokens of the requests that one group answered. Cumulative."""

    group: str
    inferences: int
    """Inferences of the counted requests."""
    prompt: int
    completion: int
    streams: int = 0
    """Streams with output."""
    first_s: float = 0.0
    """Sum over the streams: from sending to the replica to the first event with output."""
    between: int = 0
    """Tokens of the streams behind their first ones."""
    between_s: float = 0.0
    """Sum over the streams: from the first to the last event with output."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokensSeen:
    """Tokens of one revision. Cumulative."""

    arrived: int = 0
    """Expected tokens of the requests that arrived, refused and expired ones included: this is lambda in tokens."""
    prompt: int = 0
    completion: int = 0
    cached: int = 0
    """Tokens of prompts that the model server had in a cache."""
    answers: int = 0
    """Responses with counted tokens."""
    estimated: int = 0
    """Responses among them without reported usage: their figures are estimates."""
    first: SparseHistogram = ()
    """Streams: from the received head to the first event with output, cold start included."""
    between: SparseHistogram = ()
    """Streams: from one event with output to the next."""
    groups: tuple[GroupTokens, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RevisionDemand:
    """Demand for one revision at one gateway worker. Counters are cumulative, ``waiting`` is the present level."""

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
    recent: SparseHistogram = ()
    """The latencies of the requests answered since the last sample, in fine buckets, for percentiles that people read.
    They are not cumulative: what a lost sample had is missing from these percentiles and nowhere else."""
    sizes: SparseHistogram = ()
    """Arrivals by inferences per request, recorded as if they were microseconds. Cumulative."""
    groups: tuple[GroupTraffic, ...] = ()
    shadow: "ShadowSeen | None" = None
    """Results of copied requests, if this revision is a shadow."""
    streaming: int = 0
    """Event streams and tunnels in progress: the present level."""
    tokens: TokensSeen | None = None
    """None if the function's responses report no tokens."""
    metadata: int = 0
    """Metadata requests among the answered ones: they are no use of the function."""
    dropped: int = 0
    """Requests among the refused ones that had waited for ``drop-after``."""
    switched: int = 0
    """Requests for it that another variant of the model served: they are arrivals of that one."""
    missed: int = 0
    """Requests without an answer that missed the SLA for want of a free slot, or that ended later than its latency.
    Refused, expired and cancelled ones that no further replica would have helped are not among them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShadowSeen:
    """Copies of requests that a shadow revision answered, compared with the responses that the clients received.
    Cumulative."""

    requests: int = 0
    """Copies with a compared pair of responses."""
    skipped: int = 0
    """Copies that were not sent or not compared: no free slot, a body too large to keep."""
    failed: int = 0
    """The shadow answered 5xx or broke, and the serving revision did not."""
    status_differs: int = 0
    """Different status, without the failed copies."""
    output_differs: int = 0
    """Same status, different body."""
    latency: SparseHistogram = ()
    """Latency of the shadow's responses: from the slot to the end (event streams: first byte). Skipped copies are
    excluded."""
    served_latency: SparseHistogram = ()
    """Latency of the clients' responses to the same requests, measured in the same way: without the waiting time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ColdStartSeen:
    """The first response of one replica through one gateway worker."""

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
    """The last cold starts seen, newest last, at most 64; a reader drops the replicas that it knows."""
    certificate_fault: str | None = None
    """Reason why the worker keeps an older certificate than the one in its files."""
    jobs_fault: str | None = None
    """Why jobs cannot be kept; None if they can."""
    access_log_fault: str | None = None
    """Why lines of the access log cannot be written; None if they can."""
    payloads_fault: str | None = None
    """Why payload events do not reach their sink; None if they do."""
    is_last: bool = False
    """True if the worker has retired and ends now."""
    tenants: tuple[TenantSeen, ...] = ()
    """Tenants that have called."""
    uses: tuple[TenantUse, ...] = ()
    """What callers with a credential have used, by function and tenant."""
    quotas_lost: bool = False
    """True if the worker cannot reach the others and grants its even share of the quotas."""
    rooms_lost: bool = False
    """True if the worker goes by a part of the waiting rooms' bounds, because it cannot reach the other gateways."""
    unknown_keys: dict[str, int] = field(default_factory=dict)
    """Tokens signed with a key that is missing in its key set, by the set's source. Cumulative."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Activation:
    """Sent by a gateway as soon as a request waits for a revision without a ready replica; repeated while this
    holds. Also sent, at most once a second, while a *crowd* waits: more requests by far than ready replicas have
    slots."""

    function: str
    revision: str
    waiting: int
    waiting_inferences: int
    oldest_waiting_s: float
    is_crowd: bool = False


def difference(latest: TokensSeen, before: TokensSeen) -> TokensSeen:
    """Returns the increase between two reports of one worker, without the groups; a counter that ran backwards counts
    as 0."""
    figures = {name: max(0, getattr(latest, name) - getattr(before, name)) for name in _COUNTERS}
    return TokensSeen(**figures, first=_more(latest.first, before.first), between=_more(latest.between, before.between))


_COUNTERS = ("arrived", "prompt", "completion", "cached", "answers", "estimated")


def _more(latest: SparseHistogram, before: SparseHistogram) -> SparseHistogram:
    known = dict(before)
    return tuple((index, count - known.get(index, 0)) for index, count in latest if count > known.get(index, 0))
