"""The catalogue of metrics and their exposition as Prometheus text, rendered from plain integers.

Every metric is one row here: name, kind, help, labels and, for histograms, the shared buckets. Counting happens
elsewhere, in slots of the objects that count. A scrape builds one :class:`Exposition`, adds the present values and
renders it, so that the request path pays one integer addition.

Bucket bounds are edges of ``tidegate.histogram``, so the cumulative counts are exact: nothing is interpolated. For
whole numbers (bytes, inferences) ``le`` is the largest number below the edge: the edge 18 appears as ``le="17"``.
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from itertools import accumulate

from tidegate.histogram import BUCKETS, Histogram, bucket_upper_micros

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


Exemplar = tuple[str, float, float]
"""Trace id (hexadecimal), observed value and its Unix time in seconds."""


class MetricKind(StrEnum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"
    SUMMARY = "summary"
    """Quantiles alone."""


@dataclass(frozen=True, slots=True)
class Buckets:
    """Shared bounds of a histogram: rising exclusive edges in whole steps, and the ``le`` text of each."""

    edges: tuple[int, ...]
    labels: tuple[str, ...]
    unit: float
    """Size of one step in the exposed unit: 1e-6 if the steps are microseconds and seconds are exposed."""


def seconds_buckets(*edges_us: int) -> Buckets:
    """Returns buckets over microseconds that are exposed in seconds."""
    return Buckets(edges_us, tuple(f"{edge / 1e6:.6f}".rstrip("0").rstrip(".") for edge in edges_us), 1e-6)


def whole_buckets(*edges: int) -> Buckets:
    """Returns buckets over whole numbers; ``le`` is the number before the edge."""
    return Buckets(edges, tuple(str(edge - 1) for edge in edges), 1.0)


DURATION = seconds_buckets(
    *(512, 1024, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152, 65536, 98304, 131072, 196608),
    *(262144, 393216, 524288, 786432, 1048576, 1572864, 2097152, 3145728, 4194304, 8388608, 16777216, 33554432),
    *(67108864, 134217728, 268435456),
)
"""About 0.5 ms to 4.5 minutes, two per octave in the range of latency targets (2 ms to 4 s)."""
SIZE = whole_buckets(*(1 << power for power in range(8, 31, 2)))
"""Bytes: 255 to 256 Mi - 1, four-fold steps."""
BATCH = whole_buckets(2, 3, 5, 9, 18, 36, 72, 144, 288, 576, 1152)
"""Inferences per request: 1, 2, 4, 8, 17, ... so that every power of two ends a bucket."""


def exact_buckets(*edges: int, unit: float = 1.0) -> Buckets:
    """Returns buckets of a :class:`StepHistogram`: each edge belongs to the bucket that it ends, as ``le`` states."""
    return Buckets(edges, tuple(f"{edge * unit:.6f}".rstrip("0").rstrip(".") for edge in edges), unit)


FILL = Buckets(
    tuple(range(128, 1025, 128)), ("0.125", "0.25", "0.375", "0.5", "0.625", "0.75", "0.875", "1"), 1.0 / 1024.0
)
"""Fill of batches, in eighths of the largest one; recorded in steps of 1/1024."""


@dataclass(frozen=True, slots=True)
class Metric:
    """One row of the catalogue."""

    name: str
    kind: MetricKind
    help: str
    labels: tuple[str, ...] = ()
    buckets: Buckets | None = None


class StepHistogram:
    """Counts in a metric's own buckets, for bounds that others prescribe: exact where ``tidegate.histogram`` has no
    edges."""

    __slots__ = ("counts", "edges", "sum", "unit")

    def __init__(self, metric: Metric) -> None:
        buckets = _buckets(metric)
        self.edges = buckets.edges
        self.unit = buckets.unit
        self.counts = [0] * (len(buckets.edges) + 1)
        self.sum = 0

    def record(self, steps: int) -> None:
        """Records one observation, in whole steps of the buckets' unit."""
        self.counts[bisect_left(self.edges, steps)] += 1
        self.sum += steps

    def record_s(self, seconds: float) -> None:
        """Records a duration in seconds, for buckets with steps of parts of a second."""
        self.record(round(seconds / self.unit))

    def __repr__(self) -> str:
        return f"<StepHistogram {sum(self.counts)} observations>"


LINES_A_PART = 100
"""Lines of a text that are put together without a turn of the loop in between."""

_C, _G, _H = MetricKind.COUNTER, MetricKind.GAUGE, MetricKind.HISTOGRAM
_REVISION = ("function", "revision")
_GROUP = ("function", "revision", "group")
_REPLICA = ("function", "revision", "group", "replica")

# --- gateway ------------------------------------------------------------------------------------------------------

HTTP_SERVER_DURATION = Metric(
    "http_server_request_duration_seconds",
    _H,
    "From the received head to the last byte sent, of every request of a function, however it ended.",
    (*_REVISION, "http_request_method", "http_response_status_code", "url_scheme", "error_type"),
    exact_buckets(
        *(5_000, 10_000, 25_000, 50_000, 75_000, 100_000, 250_000, 500_000, 750_000),
        *(1_000_000, 2_500_000, 5_000_000, 7_500_000, 10_000_000),
        unit=1e-6,
    ),
)
HTTP_SERVER_ACTIVE = Metric(
    "http_server_active_requests",
    _G,
    "Requests of a function that have not ended.",
    (*_REVISION, "http_request_method", "url_scheme"),
)
GATEWAY_JOBS_ACCEPTED = Metric(
    "tidegate_gateway_jobs_accepted_total", _C, "Requests that were answered 202 and became jobs.", ("worker",)
)
GATEWAY_JOBS_REFUSED = Metric(
    "tidegate_gateway_jobs_refused_total",
    _C,
    "Requests that preferred to be jobs and were refused for it, by error code.",
    ("worker", "code"),
)
GATEWAY_STAGE_LATENCY = Metric(
    "tidegate_gateway_stage_latency_seconds",
    _H,
    "From a request's arrival in a stage of a pipeline to the end of the stage's answer.",
    ("worker", "pipeline", "stage"),
    DURATION,
)
GATEWAY_STAGE_FAILURES = Metric(
    "tidegate_gateway_stage_failures_total",
    _C,
    "Requests of a pipeline that ended with a 5xx in this stage.",
    ("worker", "pipeline", "stage"),
)
GATEWAY_JOBS_ENDED = Metric(
    "tidegate_gateway_jobs_ended_total", _C, "Jobs that are over: done, failed or cancelled.", ("worker", "outcome")
)
GATEWAY_JOBS_LIVE = Metric("tidegate_gateway_jobs_live", _G, "Jobs of the worker that are not over.", ("worker",))
GATEWAY_JOBS_UNWRITTEN = Metric(
    "tidegate_gateway_jobs_unwritten", _G, "Jobs that are over and whose end could not be written yet.", ("worker",)
)
GATEWAY_JOBS_KEPT = Metric(
    "tidegate_gateway_jobs_kept", _G, "Jobs that the machine keeps, as this worker last saw them.", ("worker",)
)
GATEWAY_JOBS_KEPT_BYTES = Metric(
    "tidegate_gateway_jobs_kept_bytes", _G, "Bytes of the answers that the machine keeps, as above.", ("worker",)
)
GATEWAY_CONNECTIONS = Metric("tidegate_gateway_connections", _G, "Open client connections.", ("worker",))
GATEWAY_SHED_CONNECTIONS = Metric(
    "tidegate_gateway_shed_connections_total",
    _C,
    "Client connections that were closed at once, by the limit that they would have exceeded: connections or client.",
    ("worker", "limit"),
)
GATEWAY_TABLE_EPOCH = Metric("tidegate_gateway_route_table_epoch", _G, "Epoch of the applied route table.", ("worker",))
GATEWAY_TABLE_NUMBER = Metric(
    "tidegate_gateway_route_table_number", _G, "Number of the applied route table within its epoch.", ("worker",)
)
GATEWAY_UNMATCHED = Metric(
    "tidegate_gateway_unmatched_requests_total", _C, "Requests that named no deployed function.", ("worker",)
)
GATEWAY_ARRIVALS = Metric(
    "tidegate_gateway_requests_total", _C, "Requests that arrived, refused and expired ones included.", _REVISION
)
GATEWAY_ARRIVED_INFERENCES = Metric(
    "tidegate_gateway_inferences_total", _C, "Inferences in the requests that arrived.", _REVISION
)
GATEWAY_ENDED = Metric(
    "tidegate_gateway_ended_requests_total",
    _C,
    "Ended requests by outcome: answered, failed, refused, expired or cancelled.",
    (*_REVISION, "outcome"),
)
GATEWAY_DROPPED = Metric(
    "tidegate_gateway_dropped_requests_total",
    _C,
    "Refused requests that had waited for drop-after, a multiple of the latency target.",
    _REVISION,
)
GATEWAY_WITHIN_SLA = Metric(
    "tidegate_gateway_within_sla_requests_total",
    _C,
    "Answered requests within the SLA's targets for latency and time per output token.",
    _REVISION,
)
GATEWAY_WAITING = Metric("tidegate_gateway_waiting_requests", _G, "Requests in the waiting room.", _REVISION)
GATEWAY_WAITING_INFERENCES = Metric(
    "tidegate_gateway_waiting_inferences", _G, "Inferences in the waiting room.", _REVISION
)
GATEWAY_OLDEST_WAITING = Metric(
    "tidegate_gateway_oldest_waiting_seconds", _G, "Age of the oldest waiting request.", _REVISION
)
GATEWAY_LATENCY = Metric(
    "tidegate_gateway_latency_seconds",
    _H,
    "From the received head to the last byte sent (event streams: first byte), cold start included.",
    _REVISION,
    DURATION,
)
GATEWAY_GROUP_REQUESTS = Metric(
    "tidegate_gateway_group_requests_total", _C, "Requests answered by one group of replicas.", _GROUP
)
GATEWAY_GROUP_INFERENCES = Metric(
    "tidegate_gateway_group_inferences_total", _C, "Inferences answered by one group of replicas.", _GROUP
)
GATEWAY_GROUP_FAILURES = Metric(
    "tidegate_gateway_group_failures_total",
    _C,
    "Requests that one group answered with 5xx, or failed to answer.",
    _GROUP,
)
GATEWAY_RETRIES = Metric(
    "tidegate_gateway_retries_total", _C, "Requests retried although a replica may have run them.", _REVISION
)
GATEWAY_RETRIES_DENIED = Metric(
    "tidegate_gateway_denied_retries_total", _C, "Requests not retried because the retry budget was empty.", _REVISION
)
GATEWAY_HEDGES = Metric("tidegate_gateway_hedges_total", _C, "Second copies of late requests.", _REVISION)
GATEWAY_HEDGES_WON = Metric(
    "tidegate_gateway_won_hedges_total", _C, "Hedges that were answered before the first copy.", _REVISION
)
GATEWAY_SHADOW_REQUESTS = Metric(
    "tidegate_gateway_shadow_requests_total",
    _C,
    "Copies that a shadow answered, compared with the client's response.",
    _REVISION,
)
GATEWAY_SHADOW_SKIPPED = Metric(
    "tidegate_gateway_shadow_skipped_requests_total",
    _C,
    "Copies not sent or not compared: no free slot, too large.",
    _REVISION,
)
GATEWAY_SHADOW_FAILED = Metric(
    "tidegate_gateway_shadow_failed_requests_total",
    _C,
    "Copies that failed while the client's response did not.",
    _REVISION,
)
GATEWAY_SHADOW_STATUS_DIFFERS = Metric(
    "tidegate_gateway_shadow_status_differs_total",
    _C,
    "Copies answered with another status, failures apart.",
    _REVISION,
)
GATEWAY_SHADOW_OUTPUT_DIFFERS = Metric(
    "tidegate_gateway_shadow_output_differs_total",
    _C,
    "Copies answered with the same status and another body.",
    _REVISION,
)
GATEWAY_SHADOW_LATENCY = Metric(
    "tidegate_gateway_shadow_latency_seconds",
    _H,
    "From the slot to the end of a shadow's response.",
    _REVISION,
    DURATION,
)
GATEWAY_SHADOW_SERVED_LATENCY = Metric(
    "tidegate_gateway_shadow_served_latency_seconds",
    _H,
    "From the slot to the end of the clients' responses to the same requests.",
    _REVISION,
    DURATION,
)
GATEWAY_EJECTIONS = Metric(
    "tidegate_gateway_ejections_total", _C, "Ejections of replicas because of failures.", _REVISION
)
GATEWAY_EJECTED = Metric("tidegate_gateway_ejected_replicas", _G, "Replicas that are ejected now.", _REVISION)
GATEWAY_CIRCUIT_OPEN = Metric(
    "tidegate_gateway_circuit_open", _G, "1 while requests are refused because every replica fails.", _REVISION
)
GATEWAY_CIRCUIT_REFUSED = Metric(
    "tidegate_gateway_circuit_refused_requests_total", _C, "Requests refused because every replica failed.", _REVISION
)
GATEWAY_SWITCHED = Metric(
    "tidegate_gateway_switched_requests_total",
    _C,
    "Requests that another variant of the model served, counted there.",
    _REVISION,
)
GATEWAY_BODY_BYTES = Metric(
    "tidegate_gateway_waiting_body_bytes",
    _G,
    "Bytes of waiting requests' bodies in memory.",
    ("worker",),
)
GATEWAY_AWAITED_BODIES = Metric(
    "tidegate_gateway_awaited_bodies",
    _G,
    "Requests outside of the waiting room because their bodies have not come yet.",
    ("worker",),
)
GATEWAY_SLOW_BODIES = Metric(
    "tidegate_gateway_slow_bodies_total",
    _C,
    "Requests ended with 408 because their bodies came more slowly than limits.body-min-rate.",
    ("worker",),
)
GATEWAY_CROWDED_BODIES = Metric(
    "tidegate_gateway_crowded_bodies_total",
    _C,
    "Requests refused before their bodies had come because limits.waiting-body-bytes was reached.",
    ("worker",),
)
GATEWAY_LOG_DROPPED = Metric(
    "tidegate_gateway_access_log_dropped_lines_total", _C, "Lines of the access log that were dropped.", ("worker",)
)

GATEWAY_TRACE_SPANS = Metric(
    "tidegate_gateway_trace_spans_total",
    _C,
    "Spans of sampled requests: exported to the collector, or dropped because it was slow, away or refused them.",
    ("worker", "outcome"),
)

GATEWAY_PAYLOAD_EVENTS = Metric(
    "tidegate_gateway_payload_events_total",
    _C,
    "Events of sampled payloads: delivered to their sink, or dropped because it was slow, away or refused them.",
    ("worker", "outcome"),
)

# --- tokens ---------------------------------------------------------------------------------------------------------

GATEWAY_ARRIVED_TOKENS = Metric(
    "tidegate_gateway_arrived_tokens_total", _C, "Expected tokens of the requests that arrived.", _REVISION
)
GATEWAY_PROMPT_TOKENS = Metric(
    "tidegate_gateway_prompt_tokens_total", _C, "Prompt tokens processed by one group of replicas.", _GROUP
)
GATEWAY_COMPLETION_TOKENS = Metric(
    "tidegate_gateway_completion_tokens_total", _C, "Completion tokens generated by one group of replicas.", _GROUP
)
GATEWAY_CACHED_TOKENS = Metric(
    "tidegate_gateway_cached_prompt_tokens_total", _C, "Prompt tokens that model servers had in a cache.", _REVISION
)
GATEWAY_ESTIMATED_ANSWERS = Metric(
    "tidegate_gateway_estimated_answers_total",
    _C,
    "Responses without reported usage: their tokens are estimates.",
    _REVISION,
)
GATEWAY_FIRST_TOKEN = Metric(
    "tidegate_gateway_first_token_seconds",
    _H,
    "Streams: from the received head to the first event with output, cold start included.",
    _REVISION,
    DURATION,
)
GATEWAY_BETWEEN_TOKENS = Metric(
    "tidegate_gateway_between_tokens_seconds",
    _H,
    "Streams: from one event with output to the next.",
    _REVISION,
    DURATION,
)

GATEWAY_DENIED = Metric(
    "tidegate_gateway_denied_requests_total",
    _C,
    "Requests of unknown or unauthorised callers, by the code of the failure.",
    ("function", "code"),
)
GATEWAY_TENANT_REQUESTS = Metric(
    "tidegate_gateway_tenant_requests_total", _C, "Requests of a tenant that its quotas admitted.", ("tenant",)
)
GATEWAY_TENANT_INFERENCES = Metric(
    "tidegate_gateway_tenant_inferences_total", _C, "Inferences of a tenant's requests that a replica ran.", ("tenant",)
)
GATEWAY_TENANT_TOKENS = Metric(
    "tidegate_gateway_tenant_tokens_total", _C, "Tokens of a tenant's prompts and completions.", ("tenant",)
)
GATEWAY_TENANT_REFUSED = Metric(
    "tidegate_gateway_tenant_refused_requests_total",
    _C,
    "Requests of a tenant refused for a spent quota.",
    ("tenant", "quota"),
)
GATEWAY_QUOTAS_LOCAL = Metric(
    "tidegate_gateway_quotas_local",
    _G,
    "1 while a worker does not reach the shared quotas and grants its part of them.",
    ("worker",),
)
GATEWAY_ROOMS_LOCAL = Metric(
    "tidegate_gateway_rooms_local",
    _G,
    "1 while a worker goes by its part of the waiting rooms' bounds because it cannot reach the other gateways.",
    ("worker",),
)

# --- queue_proxy --------------------------------------------------------------------------------------------------

PROXY_STATE = Metric("tidegate_queue_proxy_state", _G, "1 for the state that the replica is in.", (*_REPLICA, "state"))
PROXY_LIMIT = Metric("tidegate_queue_proxy_limit", _G, "Slots of the replica; 0: no limit.", _REPLICA)
PROXY_REQUESTS = Metric(
    "tidegate_queue_proxy_requests_total", _C, "Ended requests by class of status.", (*_REPLICA, "code_class")
)
PROXY_CANCELLED = Metric(
    "tidegate_queue_proxy_cancelled_requests_total", _C, "Requests whose client disconnected.", _REPLICA
)
PROXY_FAILURES = Metric(
    "tidegate_queue_proxy_failures_total", _C, "Requests that ended with 5xx or a broken model server.", _REPLICA
)
PROXY_IN_FLIGHT = Metric("tidegate_queue_proxy_in_flight_requests", _G, "Requests in the model server now.", _REPLICA)
PROXY_IN_FLIGHT_INFERENCES = Metric(
    "tidegate_queue_proxy_in_flight_inferences", _G, "Inferences in the model server now.", _REPLICA
)
PROXY_HELD = Metric(
    "tidegate_queue_proxy_held_requests", _G, "Calls without a client that the model server goes on with.", _REPLICA
)
PROXY_AVERAGE_IN_FLIGHT = Metric(
    "tidegate_queue_proxy_average_in_flight_requests",
    _G,
    "Requests in flight, averaged over the last finished second.",
    _REPLICA,
)
PROXY_QUEUED = Metric(
    "tidegate_queue_proxy_queued_requests", _G, "Requests without a channel that wait for a slot.", _REPLICA
)
PROXY_INFERENCES = Metric(
    "tidegate_queue_proxy_inferences_total", _C, "Inferences in requests that were answered.", _REPLICA
)
PROXY_BUSY = Metric(
    "tidegate_queue_proxy_busy_seconds_total", _C, "Time with at least one request in the model server.", _REPLICA
)
PROXY_IN_FLIGHT_SECONDS = Metric(
    "tidegate_queue_proxy_in_flight_request_seconds_total", _C, "Integral of requests in flight over time.", _REPLICA
)
PROXY_EXECUTION = Metric(
    "tidegate_queue_proxy_execution_seconds",
    _H,
    "From sending to the model server to the end of its response.",
    _REPLICA,
    DURATION,
)
PROXY_QUEUE = Metric(
    "tidegate_queue_proxy_queue_seconds", _H, "Time in the replica's own queue before the model.", _REPLICA, DURATION
)
PROXY_REQUEST_BYTES = Metric("tidegate_queue_proxy_request_bytes", _H, "Content length of requests.", _REPLICA, SIZE)
PROXY_BATCH = Metric("tidegate_queue_proxy_batch_inferences", _H, "Inferences per request.", _REPLICA, BATCH)
PROXY_FILL = Metric(
    "tidegate_queue_proxy_batch_fill_ratio",
    _H,
    "Batch over the model server's maximum: of its executions if it reports them, else of requests.",
    _REPLICA,
    FILL,
)
PROXY_COLD_START = Metric(
    "tidegate_queue_proxy_cold_start_seconds", _G, "Phases of this replica's start.", (*_REPLICA, "phase")
)

# --- the model server's own metrics, by our names ---------------------------------------------------------------------

APP_UP = Metric("tidegate_app_metrics_up", _G, "1 while the model server's metrics are at most 3 s old.", _REPLICA)
APP_SERIES = Metric(
    "tidegate_app_metrics_series", _G, "Series that are scraped, by recognised engine.", (*_REPLICA, "engine")
)
APP_MISSING = Metric(
    "tidegate_app_metrics_missing_figures",
    _G,
    "Figures that the engine should expose and does not.",
    (*_REPLICA, "engine"),
)
APP_SCRAPES = Metric("tidegate_app_metrics_scrapes_total", _C, "Times that the metrics were asked for.", _REPLICA)
APP_FAILURES = Metric("tidegate_app_metrics_failures_total", _C, "Times that they could not be read.", _REPLICA)
APP_AGE = Metric("tidegate_app_metrics_age_seconds", _G, "Time since they were last read.", _REPLICA)
APP_REQUESTS = Metric("tidegate_app_requests_total", _C, "Requests that the model server answered well.", _REPLICA)
APP_INFERENCES = Metric("tidegate_app_inferences_total", _C, "Inferences that it performed.", _REPLICA)
APP_EXECUTIONS = Metric("tidegate_app_executions_total", _C, "Runs of its model; a batch counts one.", _REPLICA)
APP_REQUEST_SECONDS = Metric("tidegate_app_request_seconds_total", _C, "Time of its requests, summed.", _REPLICA)
APP_QUEUE_SECONDS = Metric("tidegate_app_queue_seconds_total", _C, "Time that they waited inside it, summed.", _REPLICA)
APP_COMPUTE_SECONDS = Metric("tidegate_app_compute_seconds_total", _C, "Sum of processing times.", _REPLICA)
APP_PENDING = Metric("tidegate_app_pending_requests", _G, "Requests that wait inside it now.", _REPLICA)
APP_RUNNING = Metric("tidegate_app_running_requests", _G, "Requests that it works on now.", _REPLICA)
APP_GPU_UTILIZATION = Metric("tidegate_app_gpu_utilization_ratio", _G, "Its GPUs' time with work, 0 to 1.", _REPLICA)
APP_GPU_MEMORY = Metric("tidegate_app_gpu_memory_ratio", _G, "Memory of its GPUs in use, 0 to 1.", _REPLICA)
APP_KV_CACHE = Metric("tidegate_app_kv_cache_ratio", _G, "Its key-value cache in use, 0 to 1.", _REPLICA)
APP_MAX_BATCH = Metric("tidegate_app_max_batch_inferences", _G, "Most inferences of one run.", _REPLICA)
APP_BATCH = Metric(
    "tidegate_app_batch_inferences",
    _H,
    "Inferences per run: for each run the mean between two scrapes.",
    _REPLICA,
    BATCH,
)

# --- control process ------------------------------------------------------------------------------------------------

CONTROL_EPOCH = Metric("tidegate_control_epoch", _G, "Number of this control process.")
CONTROL_FAULTS = Metric(
    "tidegate_control_faults", _G, "Things that do not work just now; `tidegate status` lists them."
)
CONTROL_UNREADABLE = Metric(
    "tidegate_control_unreadable_expositions", _G, "Processes whose metrics could not be read just now."
)
CONTROL_GATEWAY_RESTARTS = Metric(
    "tidegate_control_gateway_restarts_total", _C, "Starts of a gateway worker after it died.", ("worker",)
)
CONTROL_ROUND = Metric(
    "tidegate_control_round_seconds",
    _H,
    "One round of the control process: pull, decide, plan, act, publish.",
    (),
    exact_buckets(1000, 2500, 5000, 10000, 25000, 50000, 100000, 250000, 500000, 1000000, 2500000, unit=1e-6),
)
DECISION_AGE = Metric(
    "tidegate_decision_age_seconds",
    _H,
    "From the oldest sample that a decision went by to the decision.",
    (),
    exact_buckets(5000, 10000, 25000, 50000, 100000, 250000, 500000, 1000000, 2000000, 3000000, 5000000, unit=1e-6),
)
COLD_START = Metric(
    "tidegate_cold_start_seconds",
    _H,
    "Starts of replicas by phase: decide, schedule, pull, load, warm or first_response.",
    ("function", "phase"),
    exact_buckets(
        *(1000, 2500, 5000, 10000, 20000, 50000, 100000, 200000, 500000, 1000000, 2000000, 5000000),
        *(10000000, 30000000, 60000000, 120000000, 300000000),
        unit=1e-6,
    ),
)
REPLICAS = Metric("tidegate_replicas", _G, "Replicas by state.", ("function", "revision", "accelerator", "state"))
REPLICA_FAILURES = Metric(
    "tidegate_replica_failures_total",
    _C,
    "Replicas that broke, by cause.",
    ("function", "revision", "accelerator", "cause"),
)
REVOKED_STARTS = Metric(
    "tidegate_revoked_starts_total",
    _C,
    "Times that an accelerator kind was given up for a while because starts there came to nothing.",
    ("revision", "accelerator"),
)
PREDICTION_SAMPLES = Metric(
    "tidegate_prediction_samples_total",
    _C,
    "Seconds of served work that the predictor of service times was given, by its verdict.",
    ("verdict",),
)
DESIRED_REPLICAS = Metric("tidegate_desired_replicas", _G, "Replicas that the last decision wants.", _REVISION)
DRY_RUN = Metric(
    "tidegate_dry_run",
    _G,
    "1: tidegate_desired_replicas of this revision is a wish that is not carried out.",
    _REVISION,
)
SLA_LATENCY = Metric("tidegate_sla_latency_seconds", _G, "Latency target of the SLA, where it states one.", _REVISION)
SLA_OBJECTIVE = Metric(
    "tidegate_sla_objective_ratio",
    _G,
    "Fraction of requests that the SLA wants within its latency target, where it states one.",
    _REVISION,
)
LATENCY_QUANTILE = Metric(
    "tidegate_latency_quantile_seconds",
    MetricKind.SUMMARY,
    "Quantile of the latencies at the gateway in the last minute, as the console shows it: less than 1 % off.",
    ("function", "quantile"),
)
TRAFFIC_PERCENT = Metric("tidegate_traffic_percent", _G, "Share of a function's requests.", _REVISION)
ROLLOUT_REQUESTS = Metric("tidegate_rollout_window_requests", _G, "Requests that a canary's window has.", _REVISION)
ROLLOUT_BAD = Metric("tidegate_rollout_window_bad_requests", _G, "Those of them that went badly.", _REVISION)
GROUP_SERVICE_RATE = Metric(
    "tidegate_group_service_rate",
    _G,
    "Inferences per second of one replica of a group at its limit, as learnt (mu).",
    _GROUP,
)
GROUP_SERVICE_RATE_BOUND = Metric(
    "tidegate_group_service_rate_bound",
    _G,
    "Inferences per second that one replica of a group can do at least: the best seen below its limit.",
    _GROUP,
)
GROUP_TOKEN_SERVICE_RATE = Metric(
    "tidegate_group_token_service_rate",
    _G,
    "Tokens per second of one replica of a group, where its service rate is known.",
    _GROUP,
)
GROUP_DESIRED_REPLICAS = Metric(
    "tidegate_group_desired_replicas", _G, "Replicas of a group that the last decision wants.", _GROUP
)
GROUP_WEIGHT = Metric(
    "tidegate_group_weight", _G, "Fraction of the revision's inferences that a group is to get.", _GROUP
)
GROUP_LIMIT = Metric("tidegate_group_concurrency_limit", _G, "Slots of one replica of a group; 0: no limit.", _GROUP)
GROUP_EMULATED = Metric(
    "tidegate_group_emulated", _G, "1: the group's service times come from a profile; 0: they are a model's.", _GROUP
)
DEVICE_HEALTHY = Metric(
    "tidegate_device_healthy",
    _G,
    "1: replicas may be placed on the device; 0: it has failed (`tidegate status` reports how).",
    ("accelerator", "unit"),
)
UNIT_UTILIZATION = Metric(
    "tidegate_unit_utilization_ratio",
    _G,
    "Share of a unit's time in use, mean of a minute: of an NVIDIA device, or of the processor cores of a CPU unit.",
    ("accelerator", "unit"),
)
UNIT_POWER = Metric(
    "tidegate_unit_power_watts", _G, "Power of an NVIDIA device, mean of a minute.", ("accelerator", "unit")
)
PACKAGE_POWER = Metric(
    "tidegate_processor_package_power_watts",
    _G,
    "Power of a processor package of this machine, mean of a minute.",
    ("package",),
)
ACCELERATOR_VARIATION = Metric(
    "tidegate_accelerator_utilization_variation",
    _G,
    "Coefficient of variation of the utilisation over the units of an accelerator kind; 0 is even.",
    ("accelerator",),
)
DEVICE_FAILURES = Metric("tidegate_device_failures_total", _C, "Failures of NVIDIA devices.")
GROUP_PRICE = Metric(
    "tidegate_group_price_per_hour",
    _G,
    "Price of all replicas of a group now, per hour, in the currency of the accelerators' prices.",
    _GROUP,
)
ACCELERATOR_UNITS = Metric("tidegate_accelerator_units", _G, "Devices of an accelerator kind.", ("accelerator",))
ACCELERATOR_HELD = Metric(
    "tidegate_accelerator_held_units",
    _G,
    "Devices that replicas hold; a replica with a part of a device counts that part.",
    ("accelerator",),
)
ACCELERATOR_PRICE = Metric(
    "tidegate_accelerator_price_per_hour",
    _G,
    "Price of one device, in the currency of the accelerators' prices.",
    ("accelerator",),
)
COST_DEVICE_SECONDS = Metric(
    "tidegate_cost_device_seconds_total",
    _C,
    "Device time that replicas held, by their part of a device: busy, idle or starting.",
    ("function", "accelerator", "state"),
)
COST_PRICE = Metric(
    "tidegate_cost_price_total",
    _C,
    "Price of that device time, in the currency of the accelerators' prices.",
    ("function", "accelerator", "state"),
)
COST_REQUESTS = Metric(
    "tidegate_cost_requests_total",
    _C,
    "Requests that were answered below 500 in that device time.",
    ("function", "accelerator"),
)
COST_TENANT_SLOT_SECONDS = Metric(
    "tidegate_cost_tenant_slot_seconds_total",
    _C,
    "Time for which a tenant's requests held slots, summed; (none): requests without a tenant.",
    ("function", "tenant"),
)
COST_TENANT_REQUESTS = Metric(
    "tidegate_cost_tenant_requests_total", _C, "Requests of a tenant answered below 500.", ("function", "tenant")
)
COST_TENANT_TOKENS = Metric(
    "tidegate_cost_tenant_tokens_total", _C, "Tokens of a tenant's prompts and completions.", ("function", "tenant")
)
FUNCTION_GPU_UTILIZATION = Metric(
    "tidegate_function_gpu_utilization_ratio",
    _G,
    "Share of the last minute in which the GPUs that a function held had work.",
    ("function",),
)

PROCESS_UPTIME = Metric(
    "tidegate_process_uptime_seconds", _G, "Monotonic time since the process started.", ("process",)
)

CATALOGUE: tuple[Metric, ...] = tuple(value for value in list(globals().values()) if isinstance(value, Metric))
"""Every row above, in the order of this file."""


def escape_label(value: str) -> str:
    """Returns a label value as the text format requires it."""
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def escape_help(text: str) -> str:
    """Returns a help line as the text format requires it."""
    return text.replace("\\", r"\\").replace("\n", r"\n")


def number(value: float) -> str:
    """Returns an integer without a point, any other number as the shortest text that reads back the same."""
    if isinstance(value, int):
        return str(value)
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return repr(value)


class Exposition:
    """One scrape: values may be added in any order and are grouped by metric, in the order of first use."""

    __slots__ = ("_samples",)

    def __init__(self) -> None:
        self._samples: dict[Metric, list[str]] = {}

    def add(self, metric: Metric, labels: Sequence[str], value: float) -> None:
        """Adds one sample of a counter or gauge; ``labels`` are the values, in the row's order."""
        self._lines(metric).append(f"{metric.name}{_label_text(metric, labels)} {number(value)}\n")

    def add_histogram(
        self,
        metric: Metric,
        labels: Sequence[str],
        histogram: Histogram,
        exemplars: Mapping[str, Exemplar] | None = None,
    ) -> None:
        """Adds the buckets, sum and count of one histogram; ``exemplars`` by the ``le`` of their bucket."""
        below = cumulative(histogram, _buckets(metric).edges)
        self._add_buckets(metric, labels, below, histogram.total, histogram.sum_micros, exemplars or {})

    def add_steps(self, metric: Metric, labels: Sequence[str], histogram: StepHistogram) -> None:
        """Adds the buckets, sum and count of a histogram that counts in the metric's own buckets."""
        below = list(accumulate(histogram.counts))
        self._add_buckets(metric, labels, below[:-1], below[-1], histogram.sum, {})

    def _add_buckets(
        self,
        metric: Metric,
        labels: Sequence[str],
        below: Sequence[int],
        count: int,
        steps: int,
        exemplars: Mapping[str, Exemplar],
    ) -> None:
        buckets = _buckets(metric)
        lines = self._lines(metric)
        inner = _label_text(metric, labels)[:-1]
        prefix = f"{metric.name}_bucket{inner}," if inner else f"{metric.name}_bucket{{"
        for label, up_to in zip(buckets.labels, below, strict=True):
            lines.append(f'{prefix}le="{label}"}} {up_to}{_exemplar(exemplars, label)}\n')
        lines.append(f'{prefix}le="+Inf"}} {count}{_exemplar(exemplars, "+Inf")}\n')
        closing = f"{inner}}}" if inner else ""
        total = steps * buckets.unit if buckets.unit != 1.0 else steps
        lines.append(f"{metric.name}_sum{closing} {number(total)}\n")
        lines.append(f"{metric.name}_count{closing} {count}\n")

    def render(self) -> bytes:
        """Returns the whole text."""
        return b"".join(self.parts())

    def parts(self) -> Iterator[bytes]:
        """Yields the text metric by metric, those of many series in several parts; nothing is left afterwards."""
        for metric in tuple(self._samples):
            head = f"# HELP {metric.name} {escape_help(metric.help)}\n# TYPE {metric.name} {metric.kind.value}\n"
            lines = self._samples.pop(metric)
            while lines:  # To free a hundred thousand lines at once would take 10 ms.
                yield (head + "".join(lines[:LINES_A_PART])).encode()
                head = ""
                del lines[:LINES_A_PART]

    def _lines(self, metric: Metric) -> list[str]:
        lines = self._samples.get(metric)
        if lines is None:
            lines = self._samples[metric] = []
        return lines


def _exemplar(exemplars: Mapping[str, Exemplar], label: str) -> str:
    """Returns the exemplar of a bucket as OpenMetrics writes it; empty without one."""
    found = exemplars.get(label) if exemplars else None
    return "" if found is None else f' # {{trace_id="{found[0]}"}} {number(found[1])} {found[2]:.3f}'


def bucket_of(buckets: Buckets, value: float) -> str:
    """Returns the ``le`` of the bucket that an observation in the exposed unit falls into."""
    index = bisect_right(buckets.edges, int(value / buckets.unit))
    return buckets.labels[index] if index < len(buckets.labels) else "+Inf"


def _buckets(metric: Metric) -> Buckets:
    if metric.buckets is None:
        raise ValueError(f"{metric.name} has no buckets")
    return metric.buckets


def cumulative(histogram: Histogram, edges: Sequence[int]) -> list[int]:
    """Returns the observations below each edge (rising, in the histogram's whole steps), by whole buckets."""
    counts = histogram.counts
    first = running = 0
    found: list[int] = []
    for stop in _stops(tuple(edges)):
        running += sum(counts[first:stop])
        first = stop
        found.append(running)
    return found


@lru_cache(maxsize=64)
def _stops(edges: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the number of whole buckets below each edge."""
    found, index = [], 0
    for edge in edges:
        while index < BUCKETS and bucket_upper_micros(index) <= edge:
            index += 1
        found.append(index)
    return tuple(found)


def _label_text(metric: Metric, values: Sequence[str]) -> str:
    """Returns ``{name="value",...}``, or an empty text for a metric without labels."""
    if len(values) != len(metric.labels):
        raise ValueError(f"{metric.name} has the labels {metric.labels}, got {len(values)} values")
    return _pairs(metric.labels, tuple(values)) if values else ""


@lru_cache(maxsize=1024)
def _pairs(names: tuple[str, ...], values: tuple[str, ...]) -> str:
    """Returns the label pairs as text. Cached: many metrics of a scrape, and all scrapes, have the same labels."""
    return "{" + ",".join(f'{name}="{escape_label(value)}"' for name, value in zip(names, values, strict=True)) + "}"
