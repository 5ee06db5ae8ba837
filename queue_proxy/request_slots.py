"""RequestSlots: how the requests of one replica get their slots and give them back.

A request of a gateway brings a credit. Any other takes a free slot, or waits in the replica's own queue, which is ten
times the limit long. A call whose client has gone holds its slot while the model server goes on with it.
"""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from tidegate.errors import DEADLINE, QUEUE_FULL, SHUTTING_DOWN, STALE_CREDIT, START_FAILED, ErrorKind
from tidegate.flow.slots import Credit, SlotLedger, Visit
from tidegate.flow.wants import read_want
from tidegate.queue_proxy.held_calls import HeldCall, HeldCalls
from tidegate.queue_proxy.request_state import RequestState
from tidegate.queue_proxy.settings import KNATIVE_QUEUE_PER_SLOT

if TYPE_CHECKING:
    from tidegate.aio.proxy.exchange import Exchange, HeldWork

SLOTS_FOR_QUEUE: Final = 100
"""Slots that bound the queue of a replica without a limit. Requests wait there only during its start."""


class SendOn(Protocol):
    """Sends a request that has got a slot to the model server."""

    def __call__(self, ex: "Exchange", request: RequestState, now: float) -> None: ...


class RequestSlots:
    """The requests of one replica on its slot ledger."""

    __slots__ = ("_carry_out", "_clock", "_ledger", "_queued", "_refuse", "_send", "held")

    def __init__(
        self,
        ledger: SlotLedger,
        *,
        clock: Callable[[], float],
        pump: Callable[[], None],
        send: SendOn,
        refuse: "Callable[[Exchange, ErrorKind, str], None]",
    ) -> None:
        """``pump`` carries out what the ledger decided; ``refuse`` answers a request that the model server has not
        seen."""
        self._ledger = ledger
        self._clock = clock
        self._carry_out = pump
        self._send = send
        self._refuse = refuse
        self._queued: dict[Visit, Exchange] = {}
        """Direct requests that wait for a slot."""
        self.held = HeldCalls()
        """Calls without a client that hold their slots."""

    @property
    def queued(self) -> int:
        return len(self._queued)

    # --- a request comes --------------------------------------------------------------------------------------------

    def start_credit(self, ex: "Exchange", request: RequestState, number: int, want: bytes, now: float) -> None:
        """Sends a gateway's request to the model server if its credit is outstanding."""
        if now >= ex.deadline:
            self._refuse_late(ex)
            return
        request.credit = self._ledger.start(number, ex.inferences, read_want(want), now)
        if request.credit is None:
            self._refuse(ex, STALE_CREDIT, "the credit is not outstanding")
        else:
            self._send(ex, request, now)
        self.pump()

    def enter(self, ex: "Exchange", request: RequestState, now: float) -> None:
        """Sends a request without a credit to the model server, or puts it into the replica's own queue."""
        if now >= ex.deadline:
            self._refuse_late(ex)
            return
        request.units = self._ledger.enter_at_once(ex.inferences)
        if request.units:
            self._send(ex, request, now)
            return
        visit = self._ledger.enter(ex, ex.inferences, now)
        if visit is None or visit.credit is None:
            self._wait(ex, request, visit, now)
        else:
            request.credit = visit.credit
            self._send(ex, request, now)
            self.pump()

    def _wait(self, ex: "Exchange", request: RequestState, visit: Visit | None, now: float) -> None:
        """Puts a request without a credit into the replica's own queue, which is bounded."""
        if visit is None:
            self._refuse(ex, SHUTTING_DOWN, "the replica takes no work")
        elif self._ledger.queued > KNATIVE_QUEUE_PER_SLOT * (self._ledger.limit or SLOTS_FOR_QUEUE):
            self._ledger.leave(visit, now)
            self._refuse(ex, QUEUE_FULL, "the replica's own queue is full")
        else:
            request.visit = visit
            self._queued[visit] = ex
        self.pump()

    def _refuse_late(self, ex: "Exchange") -> None:
        self._refuse(ex, DEADLINE, "its deadline passed before it reached the replica")

    # --- the ledger decides about a queued request ------------------------------------------------------------------

    def admitted(self, visit: Visit) -> None:
        """Continues a queued request that has got a slot."""
        ex = self._queued.pop(visit, None)
        credit = visit.credit
        if credit is None:
            return
        now = self._clock()
        if ex is None:
            self._return_credit(credit, now)
        elif now >= ex.deadline:
            ex.context.visit = None
            self._return_credit(credit, now)
            self._refuse(ex, DEADLINE, "its deadline passed while it waited at the replica")
        else:
            ex.context.credit = credit
            self._send(ex, ex.context, now)

    def rejected(self, visit: Visit) -> None:
        """Refuses a queued request that the replica will not run."""
        ex = self._queued.pop(visit, None)
        if ex is not None:
            ex.context.visit = None
            self._refuse(ex, SHUTTING_DOWN, "the replica has drained")

    def refuse_queued(self, message: str) -> None:
        """Refuses all queued requests: the model server is gone."""
        waiting, self._queued = self._queued, {}
        now = self._clock()
        for visit, ex in waiting.items():
            ex.context.visit = None
            self._ledger.leave(visit, now)
            self._refuse(ex, START_FAILED, message)
        self.pump()

    # --- a request ends ---------------------------------------------------------------------------------------------

    def leave_queue(self, ex: "Exchange") -> None:
        """Takes a request out of the queue, if it is in it."""
        visit = ex.context.visit
        if visit is not None and self._queued.pop(visit, None) is not None:
            ex.context.visit = None
            self._ledger.leave(visit, self._clock())
            self.pump()

    def hold(self, work: "HeldWork", request: RequestState, now: float) -> None:
        """Holds the slot of a request that has ended: the model server goes on computing, and no client waits."""
        call = work if isinstance(work, HeldCall) else HeldCall()
        work.on_end = partial(self.held.end, call)
        self.held.add(call, partial(self._hold_ended, request.units, request.credit), now)
        request.units, request.credit = 0, None

    def _hold_ended(self, units: int, credit: Credit | None) -> None:
        """Gives back the slot of an abandoned request that the model server has finished."""
        now = self._clock()
        if units:
            self._ledger.left(units, now)
        elif credit is not None:
            self._ledger.ended(credit, now, aborted=True)
        self.pump()

    def _return_credit(self, credit: Credit, now: float) -> None:
        self._ledger.ended(credit, now, aborted=True)
        self.pump()

    def pump(self) -> None:
        """Carries out what the ledger decided, and arms its timer."""
        ledger = self._ledger
        if ledger.out or ledger.next_wakeup() is not None:
            self._carry_out()

    def __repr__(self) -> str:
        return f"<RequestSlots {len(self._queued)} queued, {self.held.count} held>"
