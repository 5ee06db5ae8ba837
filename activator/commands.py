"""Commands of the waiting room to its host, besides ``Bind`` (``state/bind.py``)."""

from collections.abc import Hashable
from dataclasses import dataclass

from tidegate.errors import ErrorKind
from tidegate.flow.messages import WorkerMessage
from tidegate.records.gateway_sample import Activation


@dataclass(frozen=True, slots=True)
class Refuse:
    """Answer the request with this error; the room has forgotten the request."""

    request: Hashable
    kind: ErrorKind
    message: str
    retry_after_s: int | None = None
    """Whole seconds for ``Retry-After``; None if the response has no such field."""


@dataclass(slots=True)
class Send:
    """Write the message to the channel of this replica; drop it if the channel is not open. Mutable for speed, never
    changed after it was made."""

    replica: str
    message: WorkerMessage


@dataclass(frozen=True, slots=True)
class Link:
    """Open a channel to this replica and keep it open (reconnect) until ``Unlink``."""

    replica: str
    address: str


@dataclass(frozen=True, slots=True)
class Unlink:
    """Close the channel to this replica and stop reconnecting."""

    replica: str


@dataclass(frozen=True, slots=True)
class Activate:
    """Push this to the listeners of ``/activations``, now."""

    activation: Activation


@dataclass(frozen=True, slots=True)
class Crowd:
    """Push this likewise: far more requests wait than the ready replicas have slots."""

    activation: Activation
