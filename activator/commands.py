"""What the waiting room tells its host to do."""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidegate.errors import ErrorKind
from tidegate.flow.fair_queue import TenantCharge
from tidegate.flow.messages import WorkerMessage
from tidegate.flow.ordered_queue import Key
from tidegate.flow.wants import Want, encode_want
from tidegate.records.gateway_sample import Activation

if TYPE_CHECKING:
    from tidegate.activator.state.replicas import Group, Replica
    from tidegate.activator.state.revisions import RevisionRoom


Affinity = bytes | list[int]
"""What ``Spread.HASH`` goes by: a key, or the chain of a prompt's blocks
(:func:`tidegate.activator.prefixes.chain`)."""


class Bind:
    """A request and the replica that runs it: send it there, with ``header`` among its fields.

    Handle of the request from then on, until ``WaitingRoom.answered``, ``aborted``, ``refused``, ``unsent`` or
    ``broke_off`` is called with it. (Inside the room it is the request's place in the queue.)
    """

    __slots__ = (
        "arrived",
        "avoid",
        "claim",
        "credit",
        "deadline",
        "entry",
        "epoch",
        "group",
        "inferences",
        "is_pinned",
        "key",
        "lane",
        "may_return",
        "number",
        "prefers",
        "priority",
        "replica",
        "request",
        "reserved",
        "revision",
        "size",
        "units",
        "want",
    )

    def __init__(
        self,
        request: Hashable,
        revision: "RevisionRoom",
        inferences: int,
        size: int,
        deadline: float,
        arrived: float,
        priority: int,
        number: int,
    ) -> None:
        self.request = request
        self.revision = revision
        """``.id`` and ``.function.name`` are its names."""
        self.inferences = inferences
        self.size = size
        self.deadline = deadline
        self.arrived = arrived
        """``now`` of its arrival."""
        self.priority = priority
        self.number = number
        """Of its arrival, on this worker."""
        self.lane = revision.main
        """Where it waits, or would."""
        self.entry = 0
        self.reserved: Replica | None = None
        """The replica that holds back for it."""
        self.prefers: Affinity | None = None
        """What it has in common with requests that should go to the same replica."""
        self.claim: TenantCharge | None = None
        """Its tenant, and what it costs; None: it has none, or nothing is shared out between tenants."""
        self.avoid: str | None = None
        """A replica that must not take it."""
        self.may_return = False
        """That replica may take it after all where no other serves."""
        self.is_pinned = False
        """It is for this revision and no other."""
        self.group: Group | None = None
        """With early binding: the group that it waits for."""
        self.key: Key
        """Its place among those who wait; set when it first waits."""
        # Set while it is bound:
        self.replica: Replica
        """``.id``, ``.address``, ``.group.accelerator``."""
        self.credit: int
        """Number of its credit; 0 at a replica without a limit."""
        self.units: int
        self.want: Want | None
        """What remains to be told to the replica; None: nothing does."""
        self.epoch: int
        """Which channel of the replica granted the credit."""

    @property
    def waits(self) -> bool:
        return bool(self.entry) or self.reserved is not None

    @property
    def header(self) -> bytes:
        """``tidegate-credit: N\\r\\ntidegate-want: ...\\r\\n``; empty without a limit."""
        if not self.credit:
            return b""
        if self.want is None:
            return b"tidegate-credit: %d\r\n" % self.credit
        return b"tidegate-credit: %d\r\ntidegate-want: %b\r\n" % (self.credit, encode_want(self.want))

    def __repr__(self) -> str:
        return f"<Bind {self.request!r} of {self.inferences} for {self.revision.id}{', waits' * self.waits}>"


@dataclass(frozen=True, slots=True)
class Refuse:
    """Answer the request with this failure; the room has forgotten it."""

    request: Hashable
    kind: ErrorKind
    message: str
    retry_after_s: int | None = None
    """Whole seconds for Retry-After; None: no such field."""


@dataclass(slots=True)
class Send:
    """Write the message to the channel of this replica; drop it when the channel is not open. Mutable for speed, never
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
    """Push this to whoever listens on /activations, now."""

    activation: Activation


Command = Bind | Refuse | Send | Link | Unlink | Activate
