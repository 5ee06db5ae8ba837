"""Recovery of requests that their replica gave back or broke off, or that lost a race against a hedge.

::

    the replica ...                        and the request ...           then
    answers not-started                    can be sent again             it returns to its place in the waiting room
    breaks before anything was sent        can be sent again             it returns to its place in the waiting room
    breaks off, or answers started         is safe to repeat, budget     it is sent once more, to another replica
    breaks off, or answers started         has a hedge that runs         the hedge decides
    breaks off amid its answer             -                             the client's connection is cut: cut_short
    anything else                                                        the client gets an error

Of two copies the first that is answered counts (:meth:`Recovery.settle_copies`). Shadows and samples of payloads follow
the copy that counts.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from tidegate.activator.room import WaitingRoom
from tidegate.activator.state.bind import Bind
from tidegate.errors import DEADLINE, REPLICA_BROKE, STALE_CREDIT, Executed
from tidegate.gateway.answers.errors import ErrorResponses
from tidegate.gateway.payloads.sampler import Payloads
from tidegate.gateway.resilience.resilience import Resilience, cancel
from tidegate.gateway.resilience.shadow import Shadows
from tidegate.gateway.routing.function import FunctionRouter
from tidegate.gateway.routing.request_state import RequestState
from tidegate.wire.message_heads import AnyResponseHead

if TYPE_CHECKING:
    from tidegate.aio.proxy.exchange import Exchange


class Recovery:
    """Retries and copies of one worker. The caller flushes the waiting room afterwards."""

    __slots__ = ("_clock", "_errors", "_payloads", "_resilience", "_room", "_shadows", "_swap_clients")

    def __init__(
        self,
        room: WaitingRoom,
        resilience: Resilience,
        shadows: Shadows,
        payloads: Payloads,
        errors: ErrorResponses,
        *,
        clock: Callable[[], float],
        swap_clients: "Callable[[Exchange, Exchange], None]",
    ) -> None:
        """``swap_clients``: gives the client of the first exchange to the second one."""
        self._room = room
        self._resilience = resilience
        self._shadows = shadows
        self._payloads = payloads
        self._errors = errors
        self._clock = clock
        self._swap_clients = swap_clients

    # --- the replica reports that it did not run it, or could not finish ---------------------------------------------

    def not_served(
        self, ex: "Exchange", state: RequestState, bind: Bind, status: int, *, is_started: bool
    ) -> bytes | None:
        """The queue_proxy reports that the answer is not its model's: the request is sent again if that is safe."""
        recover = self.broken if is_started else self.given_back
        return recover(ex, state, bind, status)

    def given_back(self, ex: "Exchange", state: RequestState, bind: Bind, status: int) -> bytes | None:
        """The replica did not start the request: back to its place, unless its time is over or its body is gone.

        Returns None if the answer is taken back (as ``ProxyApp.answering``); else the client has got an error.
        """
        now = self._clock()
        router = state.target.router
        if status == REPLICA_BROKE.status and router is not None:
            self._resilience.failed(bind, state.bound_at, router.route.outlier, now)
        if state.hedge_of is not None:
            return self.hedge_failed(ex, state)
        if status == DEADLINE.status:
            self._errors.expired(ex, state, "its deadline passed before the model ran it")
            return b""
        if not ex.replayable:
            self._errors.fail(ex, REPLICA_BROKE, "the replica gave it back, and its body is too large to send again")
            return b""
        state.unbind()
        if status == STALE_CREDIT.status:
            self._room.refused(bind, now)
        else:
            self._room.unsent(bind, now)
        return None

    def broken(self, ex: "Exchange", state: RequestState, bind: Bind, status: int) -> bytes | None:
        """The replica had started the request and could not finish it: sent once more if that is safe, else an error.

        Returns as ``given_back``.
        """
        router = state.target.router
        if status == DEADLINE.status or router is None:
            self._errors.expired(ex, state, "its deadline passed while the model ran it", Executed.UNKNOWN)
            return b""
        now = self._clock()
        self._resilience.failed(bind, state.bound_at, router.route.outlier, now)
        ran_before = state.replica_failed(may_have_run=True)
        if state.hedge_of is not None:
            return self.hedge_failed(ex, state)
        if state.hedge is not None:
            state.strand()
            self._room.aborted(bind, now)
        elif now < ex.deadline and self._may_run_again(ex, state, router, ran_before, now):
            state.unbind()
            self._room.broke_off(bind, now)
        else:
            self._errors.fail(ex, REPLICA_BROKE, "the model server broke off while it ran")
            return b""
        return None

    # --- the connection to a replica breaks ---------------------------------------------------------------------------

    def broke_off(
        self, ex: "Exchange", state: RequestState, bind: Bind, router: FunctionRouter, sent: bool, why: str
    ) -> None:
        """The connection to the replica broke before an answer; ``sent``: some of the request had gone out."""
        room = self._room
        now = self._clock()
        self._resilience.failed(bind, state.bound_at, router.route.outlier, now)
        ran_before = state.replica_failed(may_have_run=sent)
        if state.hedge is not None:
            state.strand()
            room.aborted(bind, now)
        elif state.hedge_of is not None:
            state.unbind()
            room.aborted(bind, now)
            self.hedge_failed(ex, state)
        elif now >= ex.deadline or not (
            self._may_run_again(ex, state, router, ran_before, now) if sent else ex.replayable
        ):
            self._errors.fail(ex, REPLICA_BROKE, f"replica {bind.replica.id} broke off: {why}")
        elif sent:
            state.unbind()
            room.broke_off(bind, now)
        else:
            state.unbind()
            room.unsent(bind, now)

    def cut_short(self, ex: "Exchange", state: RequestState, bind: Bind, now: float) -> None:
        """An exchange ended while a replica had it, without a complete answer: the slot goes back to the replica."""
        self._room.aborted(bind, now)
        router = state.target.router
        if ex.truncated and state.ending is None and router is not None:
            self._resilience.failed(bind, state.bound_at, router.route.outlier, now)

    def _may_run_again(
        self, ex: "Exchange", state: RequestState, router: FunctionRouter, ran_before: bool, now: float
    ) -> bool:
        """Returns whether a request that failed on a replica is sent once more: if that is safe and in the budget.

        Replicas that gave it back without running it do not count.
        """
        if ran_before or not ex.may_repeat(router.idempotent):
            return False
        return self._resilience.may_send_again(router, state.counters, now)

    # --- copies -----------------------------------------------------------------------------------------------------

    def follow(self, ex: "Exchange", state: RequestState, router: FunctionRouter, now: float) -> None:
        """A request of a function that is followed (``is_followed``) went to a replica: it may get a hedge, a shadow
        and a sample of its payload."""
        if state.hedge_of is not None:
            return
        if router.lateness is not None:
            self._resilience.sent(ex, state, router, now)
        if router.has_shadows:
            self._shadows.bound(ex, state, router)
        rules = router.payload
        if rules is not None and self._payloads.draw() * 100.0 < rules.percent:
            self._payloads.bound(ex, state, rules)

    def settle_copies(self, ex: "Exchange", state: RequestState, head: AnyResponseHead) -> None:
        """The client's answer is there: the other one of two copies ends, and a shadow gets its copy."""
        router = state.target.router
        if router is None:
            return
        now = self._clock()
        primary = self._resilience.answered(ex, state, router, now)
        if primary is not None:
            self._shadows.moved(primary.context, state, ex)
            self._payloads.moved(primary.context, state, ex)
            self._swap_clients(primary, ex)
        self._shadows.begins(ex, state, head, now)
        self._payloads.begins(ex, state, head)

    def hedge_failed(self, ex: "Exchange", state: RequestState) -> bytes:
        """A hedge ends without an answer. Its primary goes on, or fails if it waited for the hedge alone."""
        primary, state.hedge_of = state.hedge_of, None
        ex.respond(REPLICA_BROKE.status)
        if primary is not None:
            before: RequestState = primary.context
            if before.hedge_lost():
                self._errors.fail(primary, REPLICA_BROKE, "two replicas broke off while they ran it")
        return b""

    def unfollow(self, ex: "Exchange", state: RequestState, is_complete: bool) -> None:
        """A followed request has ended: aborts its hedge, and ends its shadow and its sample."""
        cancel(state.unfollow())
        self._shadows.ends(ex, state, is_complete)
        if self._payloads.has_open and state.target.router is not None:
            self._payloads.ends(ex, state, state.target.router)

    def __repr__(self) -> str:
        return f"<Recovery by {self._resilience!r}>"
