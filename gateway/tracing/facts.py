"""What a worker knows of a traced request at its end, as it passes it on and as the process that exports spans reads it
(``spans.py`` makes them there). A worker makes tuples: an object with names costs it ten times as much. Pure."""

from binascii import unhexlify

import msgspec

from tidegate.gateway.counting.outcomes import Ending

Attempt = tuple[str, str, float, int]
"""One replica that a request was sent to: its id and group, when, and the span that the replica sees as its parent.
Times are seconds on the worker's clock."""
Answer = tuple[str, float, int, bytes | None]
"""The head of a replica's answer that was accepted: the replica's id, when, status, and its ``tidegate-timing``, the
time in queue_proxy and in the model server up to the head; None if it reported none."""
Cold = tuple[float, list[tuple[str, float]]]
"""When the replica that it waited for became ready, and the phases before with their seconds."""
Asked = tuple[bytes, bytes, bytes, bool, int, bytes, Ending | None, bool]
"""What only the request of a client has, not that of a stage: method, target, host, whether it is a gRPC call,
inferences, request id, the ending that the status does not show, whether the answer broke off."""
Traced = tuple[
    int,
    bytes,
    bytes,
    int,
    float,
    float,
    int,
    str | None,
    str | None,
    list[Attempt],
    list[Answer],
    Cold | None,
    Asked | None,
]
"""The values of ``Facts``, in their order."""


class AskedFacts(msgspec.Struct, array_like=True, frozen=True):
    """The values of ``Asked`` by name."""

    method: bytes
    target: bytes
    host: bytes
    is_rpc: bool
    inferences: int
    request_id: bytes
    ending: Ending | None
    is_truncated: bool


class Facts(msgspec.Struct, array_like=True, frozen=True):
    """A request that is over, or a stage of a pipeline."""

    spans: int
    """The number of its spans."""
    parent: bytes
    """A valid ``traceparent``. If that of its parent span is 0 it has none: it is the root."""
    trace_state: bytes
    span_id: int
    """0: no other span names it. Not 0: a pipeline's request."""
    received: float
    ended: float
    status: int
    """0 if no answer came."""
    function: str | None
    """None if the request named none."""
    revision: str | None
    """None if it was not counted."""
    attempts: list[Attempt]
    answers: list[Answer]
    cold: Cold | None
    asked: AskedFacts | None
    """None: it is a stage."""

    @property
    def trace_id(self) -> bytes:
        """16 bytes."""
        return unhexlify(self.parent[3:35])

    @property
    def parent_id(self) -> bytes:
        """8 bytes; empty: it is the root."""
        found = self.parent[36:52]
        return unhexlify(found) if found.strip(b"0") else b""

    @property
    def has_waited(self) -> bool:
        """It was in the waiting room, or could have been. A pipeline's request was not: its stages were."""
        return self.revision is not None and not self.span_id
