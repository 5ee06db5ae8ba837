"""What a queue_proxy tells the autoscaler. A file of its own: the sidecar loads this and none of the other records."""

from dataclasses import dataclass, field

from tidegate.phases import ColdStartPhases
from tidegate.replica import ReplicaState

SparseHistogram = tuple[tuple[int, int], ...]
"""(bucket index, count) of ``tidegate.histogram``, only buckets with observations."""


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
    """Requests that ended, whatever the status."""
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
