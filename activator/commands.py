"""What the waiting room tells its host to do."""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidegate.errors import ErrorKind
from tidegate.flow.messages import WorkerMessage
from tidegate.records import Activation

if TYPE_CHECKING:
    from activator.replicas import Replica


class Bind:
    """A request and the replica that runs it: send it there, with ``header`` among its fields.

    Handle of the request until one of ``WaitingRoom.answered/aborted/refused/unsent`` is called with it.
    """

    __slots__ = ("arrived", "credit", "deadline", "header", "inferences", "key", "replica", "request", "waiting")

    request: Hashable
    replica: "Replica"
    """``.id``, ``.address``, ``.group.accelerator``, ``.revision.id``"""
    credit: int
    """Number; 0 at a replica without a limit."""
    header: bytes
    """``tidegate-credit: N\\r\\ntidegate-want: ...\\r\\n``, or b"" without a limit."""
    arrived: float
    """``now`` of its arrival; the time waited is the difference to the ``now`` it was bound."""


@dataclass(frozen=True, slots=True)
class Refuse:
    """Answer the request with this failure; the room has forgotten it."""

    request: Hashable
    kind: ErrorKind
    message: str
    retry_after_s: int | None = None
    """Whole seconds for Retry-After; None: no such field."""


@dataclass(frozen=True, slots=True)
class Send:
    """Write the message to the channel of this replica; drop it when the channel is not open."""

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
    """Push this to whoever listens on /activations, now."""

    activation: Activation


Command = Bind | Refuse | Send | Link | Unlink | Activate
