"""The sample that a queue_proxy sends to the autoscaler: executions of one replica, and figures of its model server.

Counters are cumulative since the start of the queue_proxy. Repeats, losses and restarts are handled as for a gateway's
sample (``gateway_sample``): differences, ``sequence``, ``incarnation``, and ``uptime_s`` in place of a clock reading.
The sidecar imports this file and ``replica_state``, and no other records.
"""

from dataclasses import dataclass, field

from tidegate.records.replica_state import ColdStartPhases, ReplicaState

SparseHistogram = tuple[tuple[int, int], ...]
"""(bucket index, count) of ``tidegate.histogram``, only buckets with observations."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AppSample:
    """What the model server says of itself, by our names whatever engine it is. None: not known.

    Counters are cumulative since the queue_proxy's start and never run backwards, also when the server's own do.
    Levels are None while ``up`` is false; counters then stand still.
    """

    engine: str = ""
    """Whose names were recognised (``triton``, ``vllm``, ...); empty: nobody's."""
    up: bool = False
    """Its endpoint was read within the last 3 s."""
    age_s: float | None = None
    """Since it was last read."""
    fault: str | None = None
    """What went wrong the last time; None: nothing."""
    found: tuple[str, ...] = ()
    """Series that were found, as the server calls them."""
    missing: tuple[str, ...] = ()
    """Figures that the engine should tell and does not, each with the series that was looked for."""
    requests: float | None = None
    inferences: float | None = None
    executions: float | None = None
    """Runs of the model: inferences / executions is the mean batch that the server formed."""
    request_s: float | None = None
    """Sum over requests: from request to answer."""
    queue_s: float | None = None
    """Sum over requests: waited in the model server."""
    compute_s: float | None = None
    """Sum over requests: in the model, with what is before and after it."""
    pending: float | None = None
    """Requests that wait in the model server now."""
    running: float | None = None
    """Requests that it works on now, where batches are formed anew at each step."""
    gpu_utilization: float | None = None
    """Percent, mean over its devices; so are the following ones."""
    gpu_memory: float | None = None
    kv_cache: float | None = None
    max_batch: int | None = None
    """Most inferences of one run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaSample:
    """What one queue_proxy knows. Counters are cumulative since its start; execution only, waiting is the gateway's."""

    replica: str
    revision: str
    group: str
    incarnation: str
    sequence: int
    uptime_s: float
    state: ReplicaState
    limit: int
    """Slots, in the function's concurrency unit; 0: no limit."""
    in_flight: int
    in_flight_inferences: int
    queued: int
    """Requests without a channel that wait in the queue_proxy's own FIFO."""
    requests: int
    """Requests that ended, whatever the status, without those whose client or deadline was gone before an answer
    began: what is not answered says nothing of what a replica can do."""
    inferences: int
    failures: int
    """Requests that ended with 5xx or a broken model server."""
    cancelled: int
    busy_s: float
    """Time with at least one request in the model."""
    in_flight_request_s: float
    """Integral of requests in flight over time (F45)."""
    in_flight_inference_s: float
    execution_s: float
    """Sum of execution times (sent to the model -> answer ended)."""
    queue_s: float
    """Sum of times in the queue_proxy's FIFO."""
    execution: SparseHistogram = ()
    batch: SparseHistogram = ()
    """Inferences per request, recorded as if they were microseconds."""
    phases: ColdStartPhases = field(default_factory=ColdStartPhases)
    app: AppSample | None = None
    """None: the function declares no metrics endpoint, or its model server is not ready yet."""
    unanswered: int = 0
    """Requests that ended because their client or deadline was gone before an answer began."""
