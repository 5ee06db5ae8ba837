"""Bind: a request in the waiting room, and the command to send it to the replica that it is bound to."""

from collections.abc import Hashable
from typing import TYPE_CHECKING

from tidegate.activator.commands import Activate, Crowd, Link, Refuse, Send, Unlink
from tidegate.flow.fair_queue import TenantCharge
from tidegate.flow.ordered_queue import Key
from tidegate.flow.wants import Want, encode_want

if TYPE_CHECKING:
    from tidegate.activator.state.replicas import Group, Replica
    from tidegate.activator.state.revisions import RevisionRoom


Affinity = bytes | list[int]
"""The key that ``Spread.HASH`` works with: a key of the request, or the hashes of its prompt's blocks
(:func:`tidegate.activator.prefixes.block_hashes`)."""


class Bind:
    """A request and the replica that runs it: send it there, with ``header`` among its fields.

    It is the handle of the request from then on, until ``WaitingRoom.answered``, ``aborted``, ``refused``, ``unsent``
    or ``broke_off`` is called with it. Inside the room it is the request's place in the queue.
    """

    __slots__ = (
        "affinity",
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
        claim: TenantCharge | None,
        is_pinned: bool,
    ) -> None:
        self.request = request
        self.revision = revision
        """Its names are ``.id`` and ``.function.name``."""
        self.inferences = inferences
        self.size = size
        self.deadline = deadline
        self.arrived = arrived
        """The value of ``now`` at its arrival."""
        self.priority = priority
        self.number = number
        """Number of its arrival, on this worker."""
        self.lane = revision.main
        """The lane in which it waits, or would wait."""
        self.entry = 0
        self.reserved: Replica | None = None
        """The replica that holds back for it."""
        self.affinity: Affinity | None = None
        """The key that it shares with requests that should go to the same replica."""
        self.claim = claim
        """Its tenant and its cost; None if it has no tenant, or if tenants do not share the room fairly."""
        self.avoid: str | None = None
        """A replica that must not take it."""
        self.may_return = False
        """The avoided replica may take it after all if no other serves."""
        self.is_pinned = is_pinned
        """It is for this revision and no other."""
        self.group: Group | None = None
        """The group that it waits for, with early binding."""
        self.key: Key
        """Its place among waiting requests; set when it first waits."""
        # Set while it is bound:
        self.replica: Replica
        """``.id``, ``.address``, ``.group.accelerator``."""
        self.credit: int
        """Number of its credit; 0 at a replica without a limit."""
        self.units: int
        self.want: Want | None
        """The want that is sent with it; None if there is nothing to send."""
        self.epoch: int
        """The epoch of the replica's channel that granted the credit."""

    @property
    def waits(self) -> bool:
        return bool(self.entry) or self.reserved is not None

    def header(self) -> bytes:
        """Returns ``tidegate-credit: N\\r\\ntidegate-want: ...\\r\\n``; empty without a limit."""
        if not self.credit:
            return b""
        if self.want is None:
            return b"tidegate-credit: %d\r\n" % self.credit
        return b"tidegate-credit: %d\r\ntidegate-want: %b\r\n" % (self.credit, encode_want(self.want))

    def __repr__(self) -> str:
        return f"<Bind {self.request!r} of {self.inferences} for {self.revision.id}{', waits' * self.waits}>"


Command = Bind | Refuse | Send | Link | Unlink | Activate | Crowd
