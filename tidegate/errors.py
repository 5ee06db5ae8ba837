"""Failures of a request: their kinds, the party that must act, and their JSON body (DESIGN.md section 6).

Every failure that a client sees has one shape::

    {"error": {"code": "queue_full", "message": "...", "function": "resnet", "request_id": "...",
               "executed": "false", "action": "retry after the time in Retry-After"}}

``executed`` states whether the model may have run the request: ``false``, ``true`` or ``unknown``.
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
    """One row of the table of failures: code, HTTP status, whether a retry helps, and what the caller can do."""

    code: str
    status: int
    retry_helps: bool
    action: str


BAD_REQUEST = ErrorKind("bad_request", 400, False, "correct the request")
UNAUTHENTICATED = ErrorKind("unauthenticated", 401, False, "send a valid API key or token")
NOT_ALLOWED = ErrorKind(
    "not_allowed", 403, False, "request access to the function from the operators of this deployment"
)
ORIGIN_NOT_ALLOWED = ErrorKind(
    "origin_not_allowed", 403, False, "add the page's origin to cors.origins of the settings"
)
NOT_FOUND = ErrorKind("function_not_found", 404, False, "address a deployed function by host, path or model")
MODEL_NOT_FOUND = ErrorKind("model_not_found", 404, False, "use a model that GET /v1/models lists")
TAG_NOT_FOUND = ErrorKind("tag_not_found", 404, False, "use one of the function's tags, or no tag")
JOB_NOT_FOUND = ErrorKind("job_not_found", 404, False, "use the id of a job that is kept, with the key that made it")
TOO_LARGE = ErrorKind("body_too_large", 413, False, "send a smaller request")
BATCH_TOO_LARGE = ErrorKind("batch_too_large", 413, False, "split the batch")
NOT_GRPC = ErrorKind("not_grpc", 415, False, "call the function over gRPC, with content-type application/grpc")
CODED_BODY = ErrorKind("coded_body", 415, False, "send the body without content-encoding")
QUEUE_FULL = ErrorKind("queue_full", 429, True, "retry after the time in Retry-After")
QUOTA_EXCEEDED = ErrorKind("quota_exceeded", 429, True, "retry after the time in Retry-After")
JOBS_FULL = ErrorKind("jobs_full", 429, True, "retry after the time in Retry-After, or delete finished jobs")
START_FAILED = ErrorKind("start_failed", 503, False, "see `tidegate status` and `tidegate logs`")
NOT_SERVABLE = ErrorKind("not_servable", 503, True, "retry later; see `tidegate status`")
WAITED_TOO_LONG = ErrorKind("waited_too_long", 503, True, "retry later; the function has too few replicas")
DROPPED = ErrorKind("dropped", 503, True, "retry after the time in Retry-After; the function has too few replicas")
DEADLINE = ErrorKind(
    "deadline_exceeded", 504, False, "allow more time: tidegate-timeout-ms, up to the function's timeout"
)
REPLICA_BROKE = ErrorKind("replica_failed", 502, False, "retry if a second run does no harm")
STAGE_FAILED = ErrorKind("stage_failed", 502, False, "correct the pipeline or its stage; tidegate-stage names it")
JOB_LOST = ErrorKind("job_lost", 502, False, "send the request again if a second run does no harm")
JOBS_UNAVAILABLE = ErrorKind(
    "jobs_unavailable", 503, True, "retry later, or send the request without `Prefer: respond-async`"
)
SHUTTING_DOWN = ErrorKind("shutting_down", 503, True, "retry; another process takes over")
STALE_CREDIT = ErrorKind("stale_credit", 409, True, "internal: the gateway retries")


@dataclass(frozen=True, slots=True)
class Failure:
    """A failure of one request."""

    kind: ErrorKind
    message: str
    function: str | None
    executed: Executed
    request_id: str | None

    def body(self) -> bytes:
        """Returns its JSON body."""
        return error_body(
            self.kind, self.message, function=self.function, request_id=self.request_id, executed=self.executed
        )


def error_body(
    kind: ErrorKind,
    message: str,
    *,
    function: str | None = None,
    request_id: str | None = None,
    executed: Executed = Executed.FALSE,
) -> bytes:
    """Returns the JSON body of a failure."""
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


def suggestion(meant: str) -> str:
    """Returns the end of the allowed values of a fault that suggests one: `` (did you mean `latency`?)``."""
    return f"{_SUGGESTION}`{meant}`?)"


_SUGGESTION = " (did you mean "


@dataclass(frozen=True, slots=True)
class Fault:
    """One error in a text that a person wrote: its place, the value as written, and the allowed values. A
    :func:`suggestion` at the end of the allowed values is printed before them, however long they are."""

    where: str
    """Path in the document, e.g. ``spec.readiness.start-timeout``."""
    value: str
    allowed: str
    line: int | None = None

    def __str__(self) -> str:
        place = self.where if self.line is None else f"line {self.line}: {self.where}"
        allowed, mark, meant = self.allowed.rpartition(_SUGGESTION)
        if not mark or not meant.endswith("`?)"):
            return f"{place}: got {self.value}; allowed: {self.allowed}"
        return f"{place}: got {self.value}; did you mean {meant.removesuffix(')')} allowed: {allowed}"


class TidegateError(Exception):
    """Base of errors that people read."""


class InvalidInputError(TidegateError):
    """The caller's input is invalid. Carries every fault found, not only the first. CLI exit code 2."""

    def __init__(self, source: str, faults: list[Fault]) -> None:
        self.source = source
        self.faults = tuple(faults)
        super().__init__(source + "\n" + "\n".join(f"  {fault}" for fault in self.faults))
