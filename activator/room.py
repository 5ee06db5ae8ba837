"""WaitingRoom: one per gateway worker; holds every revision's queue, credits, choice of group and replica.

Pure: ``now`` (seconds, one clock for all calls) is an argument. After each call do what is in ``out``, in order
(take the list, leave an empty one; a ``Bind`` there is a request that waited). ``settle(now)`` must be called once
per loop turn in which any other method was called and ``unsettled`` is true: it tells wants. ``on_wakeup(now)``
when ``next_wakeup()`` is due.
"""

import random
from collections.abc import Hashable
from dataclasses import dataclass

from activator.commands import Bind, Command, Refuse
from tidegate.flow.messages import ProxyMessage
from tidegate.records import RouteTable


@dataclass(frozen=True, slots=True)
class RoomCounts:
    """Cumulative counters and present levels of one revision (``RevisionDemand`` has the meanings)."""

    arrivals: int
    arrivals_inferences: int
    refused: int
    expired: int
    cancelled: int
    waiting: int
    waiting_inferences: int
    oldest_waiting_s: float
    waiting_request_s: float
    waiting_inference_s: float


class WaitingRoom:
    """A gateway worker's waiting requests, of all revisions."""

    def __init__(self, *, rng: random.Random, worker_index: int = 0) -> None:
        self.out: list[Command] = []
        self.unsettled = False

    def apply(self, table: RouteTable, now: float) -> bool:
        """Works from this table on; False: older than the present one, ignored. Requests stay, credits of replicas
        that are gone vanish."""
        return True

    # --- requests ---

    def arrive(
        self,
        request: Hashable,
        revision: str,
        inferences: int,
        deadline: float,
        now: float,
        size: int = 0,
        priority: int = 0,
    ) -> Bind | Refuse | None:
        """A request of ``inferences`` >= 1 that holds ``size`` bytes of memory while it waits. Bind: forward it now;
        Refuse: fail it now; None: it waits, and a ``Bind`` or ``Refuse`` for it comes in ``out``."""
        return None

    def leave(self, request: Hashable, now: float, *, expired: bool = False) -> bool:
        """A waiting request went away (client gone, or the host saw its deadline first); False: it did not wait."""
        return False

    def counts(self, revision: str, now: float) -> "RoomCounts | None":
        """What the demand record needs; None: not in the table."""
        return None

    def answered(self, bind: Bind, keep: bool, now: float) -> None:
        """Its answer ended completely; ``keep``: the head said ``tidegate-credit: keep``."""

    def aborted(self, bind: Bind, now: float) -> None:
        """Its exchange ended otherwise: client gone, replica broke, deadline. The credit goes back by message."""

    def refused(self, bind: Bind, now: float) -> None:
        """The queue_proxy answered not-started: back to the old place; a new ``Bind`` or ``Refuse`` follows in ``out``."""

    def unsent(self, bind: Bind, now: float) -> None:
        """The replica could not be reached, nothing was sent: back to the old place, the replica rests for a while."""

    # --- channels ---

    def linked(self, replica: str, now: float) -> None:
        """The channel of a ``Link`` is open (101 received, Hello sent); messages follow."""

    def heard(self, replica: str, message: ProxyMessage, now: float) -> None:
        """A message arrived on its channel."""

    def unlinked(self, replica: str, now: float) -> None:
        """The channel broke: its credits are gone. The host reconnects until ``Unlink``."""

    # --- time ---

    def settle(self, now: float) -> None:
        """End of a loop turn: tells changed wants."""

    def next_wakeup(self) -> float | None:
        """When ``on_wakeup`` has something to do."""
        return None

    def on_wakeup(self, now: float) -> None:
        """Deadlines, longest waits, repeated activation, channels unused for 60 s."""
