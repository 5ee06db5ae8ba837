"""The records of a slot ledger: channels, credits, visits; its commands; and the order in which channels get and give
idle credits."""

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heapreplace

from tidegate.flow.messages import ProxyMessage
from tidegate.flow.wants import Want
from tidegate.records.replica_state import ReplicaState

IDLE, BUSY, GONE = 0, 1, 2
"""States of a credit: int constants, because every request uses them."""

Place = tuple[int, int, float]
"""(priority class, account of its worker, time of arrival) of a waiting head; lower goes first."""


class Channel:
    """One worker's slot channel, as the ledger sees it."""

    __slots__ = (
        "head_at",
        "idle",
        "need",
        "open",
        "sequence",
        "short_sent",
        "silent",
        "spent",
        "tail_at",
        "typical",
        "want",
        "wants_since",
        "worker",
    )

    def __init__(self, worker: str) -> None:
        self.worker = worker
        self.open = True
        self.silent = False
        """It let a recall or a grant lapse: nothing is dealt to it until its next message."""
        self.want = Want(0, 0)
        self.need = 1
        """Units that its head is charged."""
        self.sequence = 0
        self.head_at = 0.0
        """When the head arrived, on the ledger's clock."""
        self.tail_at = 0.0
        self.wants_since = 0.0
        """When its want rose from zero: its requests may come a moment after it."""
        self.short_sent = False
        self.idle: dict[int, Credit] = {}
        self.spent = 0
        """Cost of what it was granted while others waited, from its workers' wants: the channel with less goes
        first."""
        self.typical = 1
        """Units of the last request: the size of credits that are dealt unasked."""

    def __repr__(self) -> str:
        return f"<Channel {self.worker} wants {self.want.amount}, {len(self.idle)} idle{', silent' * self.silent}>"

    @property
    def lacks(self) -> int:
        """Waiting requests without a credit on its way."""
        return self.want.amount - len(self.idle) if self.need == 1 else self.want.amount - self.serving

    @property
    def serving(self) -> int:
        """Idle credits that carry a request like its head."""
        return sum(credit.units >= self.need for credit in self.idle.values())

    def spare(self, claims: int) -> "list[Credit]":
        """Returns the idle credits that may be recalled beyond this number of claims, those first that do not carry its
        head."""
        kept = [credit for credit in self.idle.values() if credit.recalled_at is None]
        kept.sort(key=lambda credit: credit.units >= self.need)
        return kept[: max(0, len(kept) - claims)]

    def place(self) -> Place:
        """Returns the key of the first request that lacks a credit.

        Credits on their way are for the requests before it, so its arrival is interpolated between head and tail.
        """
        want = self.want
        arrived = self.head_at
        if self.idle and want.amount > 1:
            arrived += (self.tail_at - arrived) * (want.amount - self.lacks) / (want.amount - 1)
        return (want.priority, self.spent, arrived)


class Credit:
    """An outstanding right to run one request; handle of the request while it runs."""

    __slots__ = ("channel", "kept", "number", "recalled_at", "returned", "since", "state", "units")

    def __init__(self, number: int, units: int, channel: Channel | None, now: float) -> None:
        self.number = number
        self.units = units
        self.channel = channel
        self.state = IDLE
        self.since = now
        """Time since which it is idle."""
        self.recalled_at: float | None = None
        self.kept = False
        """True if the head of the running request's answer said ``keep``."""
        self.returned = False
        """True if the worker gave it back while the request ran here."""

    def __repr__(self) -> str:
        holder = "visit" if self.channel is None else self.channel.worker
        return f"<Credit {self.number} of {self.units} at {holder}, {('idle', 'busy', 'gone')[self.state]}>"


class Visit:
    """A request without a channel; it waits in the proxy's own FIFO while ``credit`` is None."""

    __slots__ = ("arrived", "credit", "request", "units")

    def __init__(self, request: Hashable, units: int, arrived: float) -> None:
        self.request = request
        self.units = units
        self.arrived = arrived
        self.credit: Credit | None = None


@dataclass(slots=True)
class Send:
    """Command: write the message to the channel. Mutable for speed, never changed after it was made."""

    channel: Channel
    message: ProxyMessage


@dataclass(frozen=True, slots=True)
class Admit:
    """Command: run this request, which waited, now; ``visit.credit`` is set."""

    visit: Visit


@dataclass(frozen=True, slots=True)
class Reject:
    """Command: refuse this request, which waited; the replica will not run it."""

    visit: Visit


@dataclass(frozen=True, slots=True)
class StateIs:
    """Command: report the replica's new state to control."""

    state: ReplicaState


Command = Send | Admit | Reject | StateIs


def to_recall(channels: Sequence[Channel], units: int, is_shrinking: bool) -> Iterator[tuple[Channel, list[Credit]]]:
    """Yields idle credits of this many units, from the channels first that hold most beyond their wants.

    What a channel holds for its own waiting requests stays, as their use is under way; unless the replica
    ``is_shrinking``: it drains, or has more credits out than its limit.
    """
    if units <= 0:
        return
    for channel in sorted(channels, key=lambda one: one.want.amount - len(one.idle)):
        chosen = []
        for credit in channel.spare(0 if is_shrinking else min(channel.want.amount, channel.serving)):
            if units <= 0:
                break
            units -= credit.units
            chosen.append(credit)
        if chosen:
            yield channel, chosen


def to_deal(channels: Sequence[Channel], free: int, limit: int) -> Iterator[tuple[Channel, int]]:
    """Yields who gets the next credit unasked, and its units, until ``free`` units are spent: the channel that holds
    fewest, in the order given among equals."""
    by_idle = [(len(channel.idle), order, channel) for order, channel in enumerate(channels)]
    heapify(by_idle)
    while by_idle and free > 0:
        held, order, channel = by_idle[0]
        units = min(channel.typical, limit)
        if units > free:
            heappop(by_idle)
            continue
        free -= units
        yield channel, units
        heapreplace(by_idle, (held + 1, order, channel))
