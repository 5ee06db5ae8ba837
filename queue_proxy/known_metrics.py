"""The names of the figures that are read from model servers: one table, a row per figure and engine.

Names differ between versions, so a row lists all of them, newest first; the first that is present counts. Counters are
looked up with and without ``_total``. Words and units are those of ``tidegate.records.replica_sample.AppSample``.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Figure(StrEnum):
    """Fields of :class:`tidegate.records.replica_sample.AppSample`."""

    REQUESTS = "requests"
    INFERENCES = "inferences"
    EXECUTIONS = "executions"
    REQUEST_S = "request_s"
    QUEUE_S = "queue_s"
    COMPUTE_S = "compute_s"
    PENDING = "pending"
    RUNNING = "running"
    GPU_UTILIZATION = "gpu_utilization"
    GPU_MEMORY = "gpu_memory"
    KV_CACHE = "kv_cache"
    MAX_BATCH = "max_batch"


COUNTERS: Final = frozenset(tuple(Figure)[:6])
"""Figures that only grow. The others are levels."""
MEANS: Final = frozenset({Figure.GPU_UTILIZATION, Figure.GPU_MEMORY, Figure.KV_CACHE})
"""Levels that are averaged over their series (devices, engines). Other levels and counters are summed."""


@dataclass(frozen=True, slots=True)
class Row:
    engine: str
    figure: Figure
    names: tuple[str, ...]
    """Names of the series, newest first."""
    scale: float = 1.0
    """Factor from the server's unit to ours."""
    plus: tuple[str, ...] = ()
    """Further series that are added."""
    minus: str | None = None
    """A series that is subtracted: the series in ``names`` count it, the figure does not."""
    over: str | None = None
    """A series by which the figure is divided: the whole that it is a part of."""
    where: tuple[str, str] | None = None
    """A label and a text. A series counts only if the label contains the text."""
    optional: bool = False
    """Absent in some versions or on some machines. Its absence is no fault."""


def _triton(engine: str) -> tuple[Row, ...]:
    return (
        Row(engine, Figure.REQUESTS, ("nv_inference_request_success",)),
        Row(engine, Figure.INFERENCES, ("nv_inference_count",)),
        Row(engine, Figure.EXECUTIONS, ("nv_inference_exec_count",)),
        Row(engine, Figure.REQUEST_S, ("nv_inference_request_duration_us",), 1e-6),
        Row(engine, Figure.QUEUE_S, ("nv_inference_queue_duration_us",), 1e-6),
        Row(
            engine,
            Figure.COMPUTE_S,
            ("nv_inference_compute_infer_duration_us",),
            1e-6,
            plus=("nv_inference_compute_input_duration_us", "nv_inference_compute_output_duration_us"),
        ),
        Row(engine, Figure.PENDING, ("nv_inference_pending_request_count",), optional=True),  # since 2.45
    )


_VLLM, _TGI, _TORCH, _ML = "vllm", "tgi", "torchserve", "mlserver"

TABLE: Final[tuple[Row, ...]] = (
    *_triton("tidegate"),
    Row("tidegate", Figure.MAX_BATCH, ("tidegate_runtime_max_batch",)),
    *_triton("triton"),
    Row("triton", Figure.GPU_UTILIZATION, ("nv_gpu_utilization",), 100.0, optional=True),
    Row(
        "triton",
        Figure.GPU_MEMORY,
        ("nv_gpu_memory_used_bytes",),
        100.0,
        over="nv_gpu_memory_total_bytes",
        optional=True,
    ),
    Row(_VLLM, Figure.REQUESTS, ("vllm:request_success_total",)),
    Row(_VLLM, Figure.INFERENCES, ("vllm:request_success_total",)),
    Row(_VLLM, Figure.REQUEST_S, ("vllm:e2e_request_latency_seconds_sum",)),
    Row(_VLLM, Figure.QUEUE_S, ("vllm:request_queue_time_seconds_sum", "vllm:time_in_queue_requests_sum")),
    Row(_VLLM, Figure.COMPUTE_S, ("vllm:request_inference_time_seconds_sum",)),
    Row(_VLLM, Figure.PENDING, ("vllm:num_requests_waiting",)),
    Row(_VLLM, Figure.RUNNING, ("vllm:num_requests_running",)),
    Row(_VLLM, Figure.KV_CACHE, ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"), 100.0),
    Row(_TGI, Figure.REQUESTS, ("tgi_request_success",)),
    Row(_TGI, Figure.INFERENCES, ("tgi_request_success",)),
    Row(_TGI, Figure.REQUEST_S, ("tgi_request_duration_sum",)),
    Row(_TGI, Figure.QUEUE_S, ("tgi_request_queue_duration_sum",)),
    Row(_TGI, Figure.COMPUTE_S, ("tgi_request_inference_duration_sum",)),
    Row(_TGI, Figure.PENDING, ("tgi_queue_size",)),
    Row(_TGI, Figure.RUNNING, ("tgi_batch_current_size",)),
    Row(_TORCH, Figure.REQUESTS, ("ts_inference_requests_total",)),
    Row(_TORCH, Figure.INFERENCES, ("ts_inference_requests_total",)),
    Row(_TORCH, Figure.REQUEST_S, ("ts_inference_latency_microseconds",), 1e-6),
    Row(_TORCH, Figure.QUEUE_S, ("ts_queue_latency_microseconds",), 1e-6),
    Row(  # The latency includes the time in the queue.
        _TORCH, Figure.COMPUTE_S, ("ts_inference_latency_microseconds",), 1e-6, minus="ts_queue_latency_microseconds"
    ),
    Row(_TORCH, Figure.GPU_UTILIZATION, ("GPUUtilization",), optional=True),
    Row(_TORCH, Figure.GPU_MEMORY, ("GPUMemoryUtilization",), optional=True),
    Row(_ML, Figure.REQUESTS, ("model_infer_request_success",)),
    Row(_ML, Figure.INFERENCES, ("model_infer_request_success",)),
    Row(_ML, Figure.REQUEST_S, ("rest_server_requests_duration_seconds_sum",), where=("path", "infer"), optional=True),
    Row(_ML, Figure.PENDING, ("batch_request_queue",), optional=True),
)
"""One row per figure and engine. In vLLM, TGI, TorchServe and MLServer a request is one inference."""


def spellings(name: str, figure: Figure) -> tuple[str, ...]:
    """Returns a series' names in the two text formats."""
    if figure not in COUNTERS or name.endswith("_sum"):
        return (name,)
    bare = name.removesuffix("_total")
    return (name, bare if bare != name else f"{name}_total")


def used(row: Row) -> Iterator[str]:
    """Yields every name that a row may read."""
    whole = (row.minus, row.over)
    for name in (*row.names, *row.plus, *(each for each in whole if each is not None)):
        yield from spellings(name, row.figure)


ENGINES: Final[Mapping[str, tuple[Row, ...]]] = {
    engine: tuple(row for row in TABLE if row.engine == engine) for engine in dict.fromkeys(row.engine for row in TABLE)
}
WANTED: Final = frozenset(name.encode() for row in TABLE for name in used(row))
COUNTED: Final = frozenset(name for row in TABLE if row.figure in COUNTERS for name in used(row))
WHERE: Final[Mapping[str, tuple[str, str]]] = {
    name: row.where for row in TABLE if row.where is not None for name in used(row)
}
MODEL_LABELS: Final = ("model", "model_name")
