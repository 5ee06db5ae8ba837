"""What becomes of a request whose replica gave it back, broke off, or lost a race against a second copy.

A request that nobody ran returns to its old place in the waiting room. One that a replica had begun is sent once more
where that does no harm and the budget allows it; else its client is told, in its own shape. Of two copies the first
that is answered counts.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from tidegate.activator.commands import Bind
from tidegate.activator.room import WaitingRoom
from tidegate.errors import DEADLINE, REPLICA_BROKE, STALE_CREDIT, Executed
from tidegate.gateway.answers.errors import Replies
from tidegate.gateway.resilience.resilience import Resilience
from tidegate.gateway.resilience.shadow import Shadows
from tidegate.gateway.routing.function import FunctionRouter
from tidegate.gateway.routing.request_state import RequestState
from tidegate.wire.message_heads import AnyResponseHead

if TYPE_CHECKING:
    from tidegate.aio.proxy.exchange import Exchange


class Recovery:
    """One per worker. What it tells the room to do is the chain's to carry out."""

    __slots__ = ("_clock", "_hand_over", "_replies", "_resilience", "_room", "_shadows")

    def __init__(
        self,
        room: WaitingRoom,
        resilience: Resilience,
        shadows: Shadows,
        replies: Replies,
        *,
        clock: Callable[[], float],
        hand_over: "Callable[[Exchange, Exchange], None]",
    ) -> None:
        """``hand_over``: the client of the first exchange gets the answer of the second one."""
        self._room = room
        self._resilience = resilience
        self._shadows = shadows
        self._replies = replies
        self._clock = clock
        self._hand_over = hand_over

    # --- a replica says that it did not, or could not ---------------------------------------------------------------

    def given_back(self, ex: "Exchange", ticket: RequestState, bind: Bind, status: int) -> bytes | None:
        """The replica did not start it: back to its old place, unless its time is over or its body is gone.

        As ``ProxyApp.answering``: None: this answer is not the client's; else it has been answered.
        """
        now = self._clock()
        front = ticket.target.front
        if status == REPLICA_BROKE.status and front is not None:
            self._resilience.failed(bind, ticket.bound_at, front.route.outlier, now)
        if ticket.first is not None:
            return self.copy_failed(ex, ticket)
        if status == DEADLINE.status:
            self._replies.expired(ex, ticket, "its deadline passed before the model ran it")
            return b""
        if not ex.replayable:
            self._replies.fail(ex, REPLICA_BROKE, "the replica gave it back, and its body is too large to send again")
            return b""
        ticket.bind = None
        if status == STALE_CREDIT.status:
            self._room.refused(bind, now)
        else:
            self._room.unsent(bind, now)
        return None

    def broken(self, ex: "Exchange", ticket: RequestState, bind: Bind, status: int) -> bytes | None:
        """The replica had started it and could not finish: once more where that does no harm, else the client is told
        by us. Returns as ``given_back``."""
        front = ticket.target.front
        if status == DEADLINE.status or front is None:
            self._replies.expired(ex, ticket, "its deadline passed while the model ran it", Executed.UNKNOWN)
            return b""
        now = self._clock()
        self._resilience.failed(bind, ticket.bound_at, front.route.outlier, now)
        ran_before, ticket.is_exposed = ticket.is_exposed, True
        if ticket.first is not None:
            return self.copy_failed(ex, ticket)
        if ticket.copy is not None:
            ticket.bind, ticket.is_stranded = None, True
            self._room.aborted(bind, now)
        elif now < ex.deadline and self._may_run_again(ex, ticket, front, ran_before, now):
            ticket.bind = None
            self._room.broke_off(bind, now)
        else:
            self._replies.fail(ex, REPLICA_BROKE, "the model server broke off while it ran")
            return b""
        return None

    # --- a connection to a replica fails ----------------------------------------------------------------------------

    def broke_off(
        self, ex: "Exchange", ticket: RequestState, bind: Bind, front: FunctionRouter, sent: bool, why: str
    ) -> None:
        """The connection to the replica broke before an answer; ``sent``: some of the request had gone out."""
        room = self._room
        now = self._clock()
        ticket.bind = None
        self._resilience.failed(bind, ticket.bound_at, front.route.outlier, now)
        ran_before, ticket.is_exposed = ticket.is_exposed, ticket.is_exposed or sent
        if ticket.first is not None or ticket.copy is not None:
            room.aborted(bind, now)
            if ticket.copy is not None:
                ticket.is_stranded = True
            else:
                self.copy_failed(ex, ticket)
        elif now < ex.deadline and (self._may_run_again(ex, ticket, front, ran_before, now) if sent else ex.replayable):
            if sent:
                room.broke_off(bind, now)
            else:
                room.unsent(bind, now)
        else:
            ticket.bind = bind
            self._replies.fail(ex, REPLICA_BROKE, f"replica {bind.replica.id} broke off: {why}")

    def cut_short(self, ex: "Exchange", ticket: RequestState, bind: Bind, now: float) -> None:
        """An exchange ended with a replica that has not answered it completely."""
        self._room.aborted(bind, now)
        front = ticket.target.front
        if ex.truncated and ticket.ending is None and front is not None:
            self._resilience.failed(bind, ticket.bound_at, front.route.outlier, now)

    def _may_run_again(
        self, ex: "Exchange", ticket: RequestState, front: FunctionRouter, ran_before: bool, now: float
    ) -> bool:
        """Whether a request that a replica had when it failed is sent once more: if that does no harm and the budget
        allows it. Replicas that gave it back before, untouched, do not count."""
        if ran_before or not ex.may_repeat(front.idempotent):
            return False
        return self._resilience.may_send_again(front, ticket.counters, now)

    # --- two copies -------------------------------------------------------------------------------------------------

    def settle_copies(self, ex: "Exchange", ticket: RequestState, head: AnyResponseHead) -> None:
        """The client's answer is there: of two copies the other one ends, a shadow gets its own."""
        front = ticket.target.front
        if front is None:
            return
        now = self._clock()
        first = self._resilience.answered(ex, ticket, front, now)
        if first is not None:
            before: RequestState = first.context
            ticket.tokens, before.tokens = before.tokens, None
            ticket.held, before.held = before.held, None
            self._shadows.moved(before, ticket, ex)
            self._hand_over(first, ex)
        self._shadows.begins(ex, ticket, head, now)

    def copy_failed(self, ex: "Exchange", ticket: RequestState) -> bytes:
        """A second copy ends without an answer; the first one goes on, or fails if it waited for this one alone."""
        first, ticket.first = ticket.first, None
        ex.respond(REPLICA_BROKE.status)
        if first is not None:
            before: RequestState = first.context
            before.copy = None
            if before.is_stranded:
                self._replies.fail(first, REPLICA_BROKE, "two replicas broke off while they ran it")
        return b""

    def __repr__(self) -> str:
        return f"<Recovery by {self._resilience!r}>"
