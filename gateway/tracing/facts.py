"""What a worker knows of a traced request at its end. The process that exports spans makes them of it (``spans.py``):
that costs a worker as much as the request itself. Pure."""

import random
from binascii import hexlify

import msgspec


class Attempt(msgspec.Struct, array_like=True):
    """One replica that a request was sent to. Times are seconds on the worker's clock."""

    replica: str
    group: str
    at: float
    span_id: bytes
    """What the replica sees as its parent."""
    answered_at: float | None = None
    """When the head of its answer was accepted; None if it was not."""
    status: int = 0
    timing: bytes | None = None
    """Its ``tidegate-timing``: the time in queue_proxy and in the model server up to the head; None if it reported
    none."""


class Asked(msgspec.Struct, array_like=True, frozen=True):
    """What only the request of a client has, not that of a stage."""

    method: bytes
    target: bytes
    host: bytes
    is_rpc: bool
    inferences: int
    request_id: bytes
    ending: str


class Traced(msgspec.Struct, array_like=True, frozen=True):
    """A request that is over, or a stage of a pipeline.

    ``trace_id`` (32), ``span_id`` and ``parent_id`` (16, or empty: a root) are hexadecimal digits."""

    trace_id: bytes
    span_id: bytes
    parent_id: bytes
    trace_state: str
    received: float
    ended: float
    status: int
    """0 if no answer came."""
    function: str | None
    """None if the request named none."""
    revision: str | None
    """None if it was not counted."""
    has_waited: bool
    """It was in the waiting room, or could have been. A pipeline's request was not: its stages were."""
    attempts: list[Attempt]
    cold: tuple[float, list[tuple[str, float]]] | None
    """When the replica that it waited for became ready, and the phases before with their seconds."""
    asked: Asked | None
    """None: it is a stage."""

    @property
    def spans(self) -> int:
        """The number of its spans."""
        waits = 1 + (0 if self.cold is None else len(self.cold[1])) if self.has_waited else 0
        return 1 + waits + sum(1 if each.answered_at is None or each.timing is None else 3 for each in self.attempts)


def new_span_id(rng: random.Random) -> bytes:
    """Returns 16 hexadecimal digits that are not all 0."""
    return hexlify((rng.getrandbits(64) or 1).to_bytes(8, "big"))
