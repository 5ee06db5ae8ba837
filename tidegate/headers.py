"""Names of the headers that Tidegate reads and writes (DESIGN.md section 6), and the deadline of a request.

Client-facing names are documented. Internal names are stripped at the gateway's front door; a queue_proxy accepts them
only together with the deployment's token. A client states a deadline as ``tidegate-timeout-ms`` or ``grpc-timeout``.
Both are durations from now, never a time of day: no clock reading crosses a process.
"""

import re
from typing import Final, Protocol

# Client-facing.
TIMEOUT_MS: Final = b"tidegate-timeout-ms"
BATCH_SIZE: Final = b"tidegate-batch-size"
PRIORITY: Final = b"tidegate-priority"
TASK_CLASS: Final = b"tidegate-task-class"
"""``latency-critical`` or ``throughput-oriented``."""
TAG: Final = b"tidegate-tag"
"""Names the revision that a request is for, whatever the percentages are."""
REQUEST_ID: Final = b"x-request-id"
COLD_START_MS: Final = b"tidegate-cold-start-ms"
"""Response: time for which the request waited until a replica that was started for it was ready."""
VARIANT: Final = b"tidegate-variant"
"""Response: the function that served the request, if it was for another variant of the model."""

# Internal, gateway -> queue_proxy.
TOKEN: Final = b"tidegate-token"
CREDIT: Final = b"tidegate-credit"
"""Request: number of the credit that it uses. Response: ``keep`` or ``home``."""
WANT: Final = b"tidegate-want"
"""The want that remains after this request (``tidegate.flow.wants``)."""

# Gateway -> model server.
SHADOW: Final = b"tidegate-shadow"
"""``true`` on a copy of a request; no client sees its response."""

# Internal, queue_proxy -> gateway.
OUTCOME: Final = b"tidegate-outcome"
"""On failures: ``not-started``, ``started`` or ``answered``."""
STATUS: Final = b"tidegate-status"
"""With ``OUTCOME``, on a failure that is sent as a gRPC status: the corresponding HTTP status."""
TIMING: Final = b"tidegate-timing"
"""``queue=MS,model=MS`` in the head of a response."""

INTERNAL_PREFIX: Final = b"tidegate-"
KEPT_FROM_CLIENTS: Final = frozenset({TIMEOUT_MS, BATCH_SIZE, PRIORITY, TASK_CLASS, TAG})
"""The only ``tidegate-`` names that a client may send."""

SLOT_CHANNEL_PATH: Final = b"/tidegate/slots"
SLOT_CHANNEL_PROTOCOL: Final = b"tidegate-slots"

# --- deadlines --------------------------------------------------------------------------------------------------------

_MILLISECONDS: Final = re.compile(rb"[0-9]{1,12}")
_GRPC: Final = re.compile(rb"([0-9]{1,8})([HMSmun])")
"""gRPC over HTTP/2: at most eight digits and a unit."""
_GRPC_SECONDS: Final = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}


class RequestFields(Protocol):
    """The part of a request's head that is needed here."""

    def get(self, name: bytes, /) -> bytes | None:
        """Returns the value of the field with this lower-case name, or None."""
        ...


class TimeoutFieldError(ValueError):
    """The value of the field is invalid; the message states what is allowed."""


def read_timeout_s(milliseconds: bytes | None, grpc: bytes | None) -> float | None:
    """Returns the seconds that the two fields state; ``tidegate-timeout-ms`` wins. Returns None if neither is present.
    Raises TimeoutFieldError."""
    if milliseconds is not None:
        if not _MILLISECONDS.fullmatch(milliseconds):
            raise TimeoutFieldError("tidegate-timeout-ms must be a whole number of milliseconds, at most 12 digits")
        return int(milliseconds) / 1000
    if grpc is not None:
        found = _GRPC.fullmatch(grpc)
        if found is None:
            raise TimeoutFieldError("grpc-timeout must be at most 8 digits and one of H, M, S, m, u, n")
        return int(found[1]) * _GRPC_SECONDS[found[2]]
    return None


def request_timeout_s(head: RequestFields) -> float | None:
    """Returns the seconds that a request allows. Returns None if it states no timeout. Raises TimeoutFieldError."""
    ours = head.get(TIMEOUT_MS)
    return read_timeout_s(ours, head.get(b"grpc-timeout") if ours is None else None)
