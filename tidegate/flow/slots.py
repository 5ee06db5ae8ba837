"""SlotLedger: a queue_proxy's half of the slots (guides: slots). Pure: ``now`` is an argument, commands come out.

After each call look at ``out``; it holds what has to be done, in order. (Steady state leaves it empty.)
"""

from collections.abc import Hashable
from dataclasses import dataclass

from tidegate.flow.messages import ProxyMessage, WorkerMessage
from tidegate.function import ConcurrencyUnit
from tidegate.records import ColdStartPhases
from tidegate.replica import ReplicaState


class Channel:
    """One worker's slot channel, as the ledger sees it."""

    __slots__ = ("open", "worker")

    def __init__(self, worker: str) -> None:
        self.worker = worker
        self.open = True


class Credit:
    """The right to run one request, outstanding; handle of a request that runs."""

    __slots__ = ("channel", "number", "units")

    def __init__(self, number: int, units: int, channel: Channel | None) -> None:
        self.number = number
        self.units = units
        self.channel = channel


class Visit:
    """A request without a channel: waits in the proxy's own FIFO until ``credit`` is set."""

    __slots__ = ("arrived", "credit", "request", "units")

    def __init__(self, request: Hashable, units: int, arrived: float) -> None:
        self.request = request
        self.units = units
        self.arrived = arrived
        self.credit: Credit | None = None


@dataclass(frozen=True, slots=True)
class Send:
    """Write the message to the channel."""

    channel: Channel
    message: ProxyMessage


@dataclass(frozen=True, slots=True)
class Admit:
    """Run the waiting request now: ``visit.credit`` is set."""

    visit: Visit


@dataclass(frozen=True, slots=True)
class StateIs:
    """The replica's state changed: tell control."""

    state: ReplicaState


Command = Send | Admit | StateIs


class SlotLedger:
    """The only authority over one replica's slots."""

    def __init__(
        self,
        *,
        incarnation: str,
        limit: int,
        unit: ConcurrencyUnit = ConcurrencyUnit.REQUESTS,
        fifo_bound: int = 100,
        state: ReplicaState = ReplicaState.STARTING,
    ) -> None:
        self.incarnation = incarnation
        self.limit = limit
        self.unit = unit
        self.state = state
        self.out: list[Command] = []
        """What has to be done since it was last emptied; the shell takes the list and leaves an empty one."""

    # --- channels ---

    def opened(self, worker: str, now: float) -> Channel:
        """A channel said hello: it is welcomed, told the state, and dealt slots that nobody asked for."""
        return Channel(worker)

    def closed(self, channel: Channel, now: float) -> None:
        """The channel is gone: idle credits are free at once, busy ones when their requests end."""

    def heard(self, channel: Channel, message: WorkerMessage, now: float) -> None:
        """A want or a return arrived."""

    # --- requests ---

    def start(self, number: int, units: int, want: bytes, now: float) -> Credit | None:
        """A request with ``tidegate-credit: number`` and ``tidegate-want: want`` (b"" if absent) arrived. None: that
        credit is not outstanding, answer 409 STALE_CREDIT with outcome not-started before the model sees it."""
        return None

    def enter(self, request: Hashable, units: int, now: float) -> Visit | None:
        """A request without a credit. ``visit.credit`` set: run it now; unset: it waits for an ``Admit``; None: full
        or drained, refuse it."""
        return None

    def leave(self, visit: Visit, now: float) -> None:
        """A request that still waits in the FIFO went away (cancelled or past its deadline)."""

    def keeps(self, credit: Credit, now: float) -> bool:
        """At the head of the answer: True for ``tidegate-credit: keep``, False for ``home``. Once per request."""
        return False

    def ended(self, credit: Credit, now: float, *, aborted: bool = False) -> None:
        """The request and its connections are over. ``aborted``: the answer did not end; the slot comes home anyway."""

    # --- replica ---

    def ready(self, now: float, phases: ColdStartPhases | None = None) -> None:
        """The model answers."""

    def drain(self, now: float) -> None:
        """No new credits, idle ones are recalled; ``StateIs(DRAINED)`` follows when all is home and nothing runs."""

    def revive(self, now: float) -> None:
        """Takes a drain back, also from drained."""

    def resize(self, limit: int, now: float) -> None:
        """Another limit; 0: none. Running work goes on, nothing starts above the new limit."""

    # --- time ---

    def next_wakeup(self) -> float | None:
        """When ``on_wakeup`` has something to do; None: not by time alone."""
        return None

    def on_wakeup(self, now: float) -> None:
        """Voids what was recalled or granted and not used for 100 ms."""
