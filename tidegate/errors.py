"""What can go wrong with a request, who must act, and how it is told (DESIGN.md section 6).

One shape for every failure that a client sees::

    {"error": {"code": "queue_full", "message": "...", "function": "resnet", "request_id": "...",
               "executed": "false", "action": "retry after the time in Retry-After"}}

``executed`` says whether the model may have run the request: ``false``, ``true`` or ``unknown``.
"""

import json
from dataclasses import dataclass
from enum import StrEnum


class Executed(StrEnum):
    FALSE = "false"
    TRUE = "true"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class ErrorKind:
    """One row of the table of failures: its code, HTTP status, whether a retry helps, what the caller can do."""

    code: str
    status: int
    retry_helps: bool
    action: str


BAD_REQUEST = ErrorKind("bad_request", 400, False, "correct the request")
UNAUTHENTICATED = ErrorKind("unauthenticated", 401, False, "send a valid API key or token")
NOT_ALLOWED = ErrorKind("not_allowed", 403, False, "ask whoever runs this deployment for access to the function")
NOT_FOUND = ErrorKind("function_not_found", 404, False, "name a deployed function by host, path or model")
MODEL_NOT_FOUND = ErrorKind("model_not_found", 404, False, "name a model that GET /v1/models lists")
TAG_NOT_FOUND = ErrorKind("tag_not_found", 404, False, "name one of the function's tags, or none")
TOO_LARGE = ErrorKind("body_too_large", 413, False, "send a smaller request")
BATCH_TOO_LARGE = ErrorKind("batch_too_large", 413, False, "split the batch")
NOT_GRPC = ErrorKind("not_grpc", 415, False, "call it over gRPC, with content-type application/grpc")
QUEUE_FULL = ErrorKind("queue_full", 429, True, "retry after the time in Retry-After")
QUOTA_EXCEEDED = ErrorKind("quota_exceeded", 429, True, "retry after the time in Retry-After")
START_FAILED = ErrorKind("start_failed", 503, False, "see `tidegate status` and `tidegate logs`")
NOT_SERVABLE = ErrorKind("not_servable", 503, True, "retry later; see `tidegate status`")
WAITED_TOO_LONG = ErrorKind("waited_too_long", 503, True, "retry later; the function has too few replicas")
DEADLINE = ErrorKind("deadline_exceeded", 504, False, "allow more time with tidegate-timeout-ms")
REPLICA_BROKE = ErrorKind("replica_failed", 502, False, "retry if running it twice does no harm")
SHUTTING_DOWN = ErrorKind("shutting_down", 503, True, "retry; another process takes over")
STALE_CREDIT = ErrorKind("stale_credit", 409, True, "internal: the gateway sends it again")


def error_body(
    kind: ErrorKind,
    message: str,
    *,
    function: str | None = None,
    request_id: str | None = None,
    executed: Executed = Executed.FALSE,
) -> bytes:
    """The JSON body of a failure."""
    return json.dumps(
        {
            "error": {
                "code": kind.code,
                "message": message,
                "function": function,
                "request_id": request_id,
                "executed": executed.value,
                "action": kind.action,
            }
        }
    ).encode()


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing wrong with what a person wrote: where, the value as written, and what is allowed."""

    where: str
    """Path in the document, e.g. ``spec.readiness.start-timeout``."""
    value: str
    allowed: str
    line: int | None = None

    def __str__(self) -> str:
        place = self.where if self.line is None else f"line {self.line}: {self.where}"
        return f"{place}: got {self.value}; allowed: {self.allowed}"


class TidegateError(Exception):
    """Base of errors that a person is meant to read."""


class InvalidInputError(TidegateError):
    """The caller's input is wrong. Carries every fault found, not only the first. CLI exit code 2."""

    def __init__(self, source: str, faults: list[Fault]) -> None:
        self.source = source
        self.faults = tuple(faults)
        super().__init__(source + "\n" + "\n".join(f"  {fault}" for fault in self.faults))
