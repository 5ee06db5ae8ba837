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
    """Metrics of the model server itself, by Tidegate's names for every engine. None if a value is not known.

    Counters are cumulative since the queue_proxy's start and never run backwards, even if the server's own do. Levels
    are None while ``up`` is false; counters then stand still.
    """

    engine: str = ""
    """The recognised engine (``triton``, ``vllm``, ...); empty without one."""
    up: bool = False
    """True if its endpoint was read within the last 3 s."""
    age_s: float | None = None
    """Time since the endpoint was last read."""
    fault: str | None = None
    """Error of the last attempt. None without one."""
    found: tuple[str, ...] = ()
    """Series that were found, by the server's names."""
    missing: tuple[str, ...] = ()
    """Figures that the engine should expose and does not, each with the expected series."""
    requests: float | None = None
    inferences: float | None = None
    executions: float | None = None
    """Runs of the model: inferences / executions is the mean batch that the server formed."""
    request_s: float | None = None
    """Sum over requests: from request to response."""
    queue_s: float | None = None
    """Sum over requests: waiting time in the model server."""
    compute_s: float | None = None
    """Sum over requests: time in the model, with pre- and post-processing."""
    pending: float | None = None
    """Requests that wait in the model server now."""
    running: float | None = None
    """Requests in progress, for engines that form a new batch at each step."""
    gpu_utilization: float | None = None
    """Percent, mean over its devices; the same holds for the following levels."""
    gpu_memory: float | None = None
    kv_cache: float | None = None
    max_batch: int | None = None
    """Maximum inferences of one run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaSample:
    """The state of one queue_proxy. Counters are cumulative since its start, and cover execution only: waiting is
    counted by the gateway."""

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
    """Requests that ended, with any status. Excludes requests that lost their client or deadline before a response
    began: they carry no information on the capacity of a replica."""
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
    """Sum of execution times (from sending to the model to the end of the response)."""
    queue_s: float
    """Sum of times in the queue_proxy's FIFO."""
    execution: SparseHistogram = ()
    batch: SparseHistogram = ()
    """Inferences per request, recorded as if they were microseconds."""
    phases: ColdStartPhases = field(default_factory=ColdStartPhases)
    app: AppSample | None = None
    """None if the function declares no metrics endpoint, or if its model server is not ready yet."""
    unanswered: int = 0
    """Requests that ended because their client or deadline was gone before a response began."""
    boost: int = 1
    """Times ``limit`` that the replica works with at present: its model server has borrowed cores. No service rate is
    learnt from such a sample."""
    held: int = 0
    """Calls without a client that the model server goes on with. Each holds its slot."""
    held_s: float = 0.0
    """Time since the client of the oldest one was gone."""
