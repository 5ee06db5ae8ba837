"""Header names that Tidegate reads and writes, in one place (DESIGN.md section 6).

Client-facing names are documented; the internal ones are stripped at the gateway's front door and accepted by a
queue_proxy only together with the deployment's token.
"""

from typing import Final

# Client-facing.
TIMEOUT_MS: Final = b"tidegate-timeout-ms"
BATCH_SIZE: Final = b"tidegate-batch-size"
PRIORITY: Final = b"tidegate-priority"
TAG: Final = b"tidegate-tag"
"""Names the revision that a request is for, whatever the percentages are."""
REQUEST_ID: Final = b"x-request-id"
COLD_START_MS: Final = b"tidegate-cold-start-ms"
"""Answer: how long the request waited until a replica that was started for it was ready."""

# Internal, gateway -> queue_proxy.
TOKEN: Final = b"tidegate-token"
CREDIT: Final = b"tidegate-credit"
"""Request: number of the credit it runs on. Response: ``keep`` or ``home``."""
WANT: Final = b"tidegate-want"
"""The want that remains after this request (``tidegate.flow.wants``)."""

# Gateway -> model server.
SHADOW: Final = b"tidegate-shadow"
"""``true``: a copy of a request, whose answer no client sees."""

# Internal, queue_proxy -> gateway.
OUTCOME: Final = b"tidegate-outcome"
"""On failures: ``not-started``, ``started`` or ``answered``."""
STATUS: Final = b"tidegate-status"
"""Beside it, where the failure is told as a gRPC status: the HTTP status that it stands for."""
TIMING: Final = b"tidegate-timing"
"""``queue=MS,model=MS`` of the head of an answer."""

INTERNAL_PREFIX: Final = b"tidegate-"
KEPT_FROM_CLIENTS: Final = frozenset({TIMEOUT_MS, BATCH_SIZE, PRIORITY, TAG})
"""The only ``tidegate-`` names that a client may send."""

SLOT_CHANNEL_PATH: Final = b"/tidegate/slots"
SLOT_CHANNEL_PROTOCOL: Final = b"tidegate-slots"
