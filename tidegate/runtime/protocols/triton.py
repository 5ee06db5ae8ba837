"""Triton's extensions of V2 as documents: model configuration, statistics, model repository. Pure.

The documents are those of REST. gRPC has the same fields, apart from datatypes, which are numbers there
(``DATA_TYPES``).
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from tidegate.runtime.errors import RequestError
from tidegate.runtime.metrics import RuntimeCounters
from tidegate.runtime.protocols.v2 import VERSION, ModelSpec, TensorSpec

DATA_TYPES: Final = {
    "TYPE_BOOL": 1,
    "TYPE_UINT8": 2,
    "TYPE_UINT16": 3,
    "TYPE_UINT32": 4,
    "TYPE_UINT64": 5,
    "TYPE_INT8": 6,
    "TYPE_INT16": 7,
    "TYPE_INT32": 8,
    "TYPE_INT64": 9,
    "TYPE_FP16": 10,
    "TYPE_FP32": 11,
    "TYPE_FP64": 12,
    "TYPE_STRING": 13,
    "TYPE_BF16": 14,
}
"""Triton's names of datatypes, with their numbers in ``model_config.proto``."""
NO_UNLOAD: Final = (
    "this server does not unload its model: it serves one model for its whole life, and the autoscaler starts and "
    "stops replicas; 'tidegate delete NAME' ends the function"
)


def model_config(name: str, spec: ModelSpec, batch_delay_s: float) -> dict[str, Any]:
    """Returns the configuration of the model, with what it declares.

    As in Triton, ``dims`` leave out the first dimension where ``max_batch_size`` is above 0. It is 0 where requests
    share no batch, or where the first dimension of some tensor is fixed.
    """
    tensors = (*(spec.inputs or ()), *(spec.outputs or ()))
    batches = spec.max_batch > 1 and all(tensor.shape[:1] == (-1,) for tensor in tensors)
    found: dict[str, Any] = {
        "name": name,
        "platform": spec.platform,
        "max_batch_size": spec.max_batch if batches else 0,
        "input": [_tensor(tensor, batches) for tensor in spec.inputs or ()],
        "output": [_tensor(tensor, batches) for tensor in spec.outputs or ()],
    }
    if batches:
        found["dynamic_batching"] = {"max_queue_delay_microseconds": round(batch_delay_s * 1e6)}
    found["model_transaction_policy"] = {"decoupled": spec.streams}
    return found


def _tensor(tensor: TensorSpec, batches: bool) -> dict[str, Any]:
    kind = "TYPE_STRING" if tensor.datatype == "BYTES" else f"TYPE_{tensor.datatype}"
    return {"name": tensor.name, "data_type": kind, "dims": list(tensor.shape[1:] if batches else tensor.shape)}


def model_statistics(name: str, counters: RuntimeCounters, since_last_s: float | None, now_s: float) -> dict[str, Any]:
    """Returns the statistics of the model since the start of the server. Durations in them are nanoseconds.

    ``since_last_s``: seconds since the last answer, None before the first; ``now_s``: seconds since the epoch. Nothing
    is cached, so the counts of the cache are 0. Statistics by batch size are not kept.
    """
    ran = counters.measured
    failed = counters.rejected + counters.canceled + counters.backend + counters.other
    return {
        "name": name,
        "version": VERSION,
        "last_inference": 0 if since_last_s is None else round((now_s - since_last_s) * 1000),
        "inference_count": counters.inferences,
        "execution_count": counters.executions,
        "inference_stats": {
            "success": _duration(counters.success, counters.request_s),
            "fail": _duration(failed, counters.failed_s),
            "queue": _duration(ran, counters.queue_s),
            "compute_input": _duration(ran, counters.input_s),
            "compute_infer": _duration(ran, counters.infer_s),
            "compute_output": _duration(ran, counters.output_s),
            "cache_hit": _duration(0, 0.0),
            "cache_miss": _duration(0, 0.0),
        },
        "batch_stats": [],
    }


def _duration(count: int, seconds: float) -> dict[str, int]:
    return {"count": count, "ns": round(seconds * 1e9)}


def repository_index(names: Iterable[str], state: str, reason: str, wanted: Mapping[str, Any]) -> list[dict[str, str]]:
    """Returns one entry for each name of the model. ``wanted`` are the fields of the request: with ``ready`` only
    models that are ready count. Raises RequestError."""
    ready = wanted.get("ready", False)
    if not isinstance(ready, bool):
        raise RequestError("'ready' must be true or false")
    if ready and state != "READY":
        return []
    return [{"name": name, "version": VERSION, "state": state, "reason": reason} for name in names]


def check_load(name: str, state: str, parameters: object) -> None:
    """Answers a command to load a model that this server has: nothing is to be done if it is ready. Raises
    RequestError."""
    if parameters is not None and not isinstance(parameters, Mapping):
        raise RequestError("'parameters' must be a JSON object")
    if parameters:
        raise RequestError(
            f"this server serves '{name}' as it was deployed: a load takes no parameters, got "
            f"{', '.join(sorted(parameters))}; deploy another revision instead"
        )
    if state != "READY":
        raise RequestError(f"model '{name}' is {state.lower()}", 503)
