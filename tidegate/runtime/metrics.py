"""Counters of the model server under Triton's names, so that Triton's dashboards can read them.

Durations are microseconds, cumulative. As in Triton, each request of a batch counts the whole duration of the batch's
parts, so that duration / success is what one request experienced.
"""

from dataclasses import dataclass
from enum import StrEnum

from tidegate.metrics import CONTENT_TYPE, Exposition, Metric, MetricKind
from tidegate.runtime.protocols.v2 import VERSION

__all__ = ["CONTENT_TYPE", "FailureReason", "RuntimeCounters"]


class FailureReason(StrEnum):
    """Reason of a failed request, in Triton's words."""

    REJECTED = "REJECTED"
    """The server did not accept it: it was loading or stopping."""
    CANCELED = "CANCELED"
    """Its client left."""
    BACKEND = "BACKEND"
    """The model failed."""
    OTHER = "OTHER"
    """The request was invalid."""


_LABELS = ("model", "version")
_C, _G = MetricKind.COUNTER, MetricKind.GAUGE
_SUCCESS = Metric("nv_inference_request_success", _C, "Requests answered with a result.", _LABELS)
_FAILURE = Metric("nv_inference_request_failure", _C, "Requests that failed, by reason.", (*_LABELS, "reason"))
_COUNT = Metric("nv_inference_count", _C, "Inferences performed; a batch of n counts n.", _LABELS)
_EXEC = Metric("nv_inference_exec_count", _C, "Runs of the model; a batch counts one.", _LABELS)
_MAX_BATCH = Metric("tidegate_runtime_max_batch", _G, "Most inferences of one run of the model.", _LABELS)
_PENDING = Metric("nv_inference_pending_request_count", _G, "Requests that wait for a run of the model.", _LABELS)
_REQUEST = Metric("nv_inference_request_duration_us", _C, "Time from request to answer.", _LABELS)
_QUEUE = Metric("nv_inference_queue_duration_us", _C, "Time that requests waited for a run.", _LABELS)
_INPUT = Metric("nv_inference_compute_input_duration_us", _C, "Time to prepare inputs.", _LABELS)
_INFER = Metric("nv_inference_compute_infer_duration_us", _C, "Time that the model ran.", _LABELS)
_OUTPUT = Metric("nv_inference_compute_output_duration_us", _C, "Time to take outputs apart.", _LABELS)


@dataclass(slots=True)
class RuntimeCounters:
    """Counters of one model. Durations in seconds."""

    success: int = 0
    rejected: int = 0
    canceled: int = 0
    backend: int = 0
    other: int = 0
    inferences: int = 0
    executions: int = 0
    last_answer: float | None = None
    """Time of the last request answered with a result, on the monotonic clock."""
    request_s: float = 0.0
    failed_s: float = 0.0
    """Time from request to failure."""
    measured: int = 0
    """Requests that the next four durations are of: those whose run had a result."""
    queue_s: float = 0.0
    input_s: float = 0.0
    infer_s: float = 0.0
    output_s: float = 0.0

    def fail(self, reason: FailureReason) -> None:
        """Counts one failed request."""
        match reason:
            case FailureReason.REJECTED:
                self.rejected += 1
            case FailureReason.CANCELED:
                self.canceled += 1
            case FailureReason.BACKEND:
                self.backend += 1
            case FailureReason.OTHER:
                self.other += 1

    def render(self, model: str, pending: int, max_batch: int | None = None) -> bytes:
        """Returns Prometheus text. ``pending`` requests wait now; ``max_batch`` is None until it is known."""
        text = Exposition()
        labels = (model, VERSION)
        text.add(_SUCCESS, labels, self.success)
        failures = (self.rejected, self.canceled, self.backend, self.other)
        for reason, count in zip(FailureReason, failures, strict=True):
            text.add(_FAILURE, (*labels, reason.value), count)
        text.add(_COUNT, labels, self.inferences)
        text.add(_EXEC, labels, self.executions)
        text.add(_PENDING, labels, pending)
        durations = (self.request_s, self.queue_s, self.input_s, self.infer_s, self.output_s)
        for metric, seconds in zip((_REQUEST, _QUEUE, _INPUT, _INFER, _OUTPUT), durations, strict=True):
            text.add(metric, labels, round(seconds * 1e6))
        if max_batch is not None:
            text.add(_MAX_BATCH, labels, max_batch)
        return text.render()
