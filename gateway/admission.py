"""From a request whose function is known to the waiting room: bound at once, waiting, or refused.

    tag, deadline -> who calls -> size -> revision by weight -> priority -> quotas -> count -> room

Each step passes the request on or answers it. What a function does not have (rules of access, tokens, a key for its
replicas) costs its requests nothing (``FunctionRouter.is_plain``), and a request with no field of ours passes no step
that reads them (``RequestHead.plain``).
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from tidegate import headers
from tidegate.activator.commands import Bind
from tidegate.activator.room import WaitingRoom
from tidegate.errors import BAD_REQUEST, BATCH_TOO_LARGE, NOT_GRPC, NOT_SERVABLE
from tidegate.flow.fair_queue import TenantCharge
from tidegate.flow.outliers import Outliers
from tidegate.gateway.access.control import AccessControl, Denial
from tidegate.gateway.answers.cold_answers import ColdAnswers
from tidegate.gateway.answers.errors import Replies
from tidegate.gateway.answers.grpc import GrpcFrontend
from tidegate.gateway.counting.counters import Report, RevisionCounters
from tidegate.gateway.counting.tenant_accounts import Account
from tidegate.gateway.counting.tokens import TokenAccounting
from tidegate.gateway.routing.function import FunctionRouter
from tidegate.gateway.routing.request_state import RequestState
from tidegate.headers import TimeoutFieldError, request_timeout_s
from tidegate.histogram import INDEX, KNOWN, bucket_index

if TYPE_CHECKING:
    from tidegate.aio.proxy.exchange import Exchange

KEPT_BYTES: Final = 256 * 1024
"""Of a waiting request's body stay in memory at most."""


class Admission:
    """One per worker."""

    __slots__ = (
        "_calls",
        "_clock",
        "_cold_answers",
        "_flush",
        "_gate",
        "_open_circuits",
        "_outliers",
        "_replies",
        "_report",
        "_room",
        "_run",
        "_tokens",
    )

    def __init__(
        self,
        room: WaitingRoom,
        report: Report,
        replies: Replies,
        *,
        calls: GrpcFrontend,
        gate: AccessControl,
        tokens: TokenAccounting,
        outliers: Outliers,
        cold_answers: ColdAnswers,
        run: "Callable[[Exchange, Bind, float], None]",
        clock: Callable[[], float],
        flush: Callable[[], None],
    ) -> None:
        """``run`` sends a bound request off; ``flush`` carries out what the room has decided."""
        self._room = room
        self._report = report
        self._replies = replies
        self._calls = calls
        self._gate = gate
        self._tokens = tokens
        self._outliers = outliers
        self._open_circuits = outliers.open_circuits
        self._cold_answers = cold_answers
        self._run = run
        self._clock = clock
        self._flush = flush

    # --- what the request says --------------------------------------------------------------------------------------

    def read_head(self, ex: "Exchange", ticket: RequestState, front: FunctionRouter) -> FunctionRouter | None:
        """Tag and deadline, by fields of the request's own: the front that it means; None: one of them is nonsense,
        answered."""
        found = self.tagged(ex, ticket, front)
        return found if found is not None and self._set_deadline(ex, found) else None

    def tagged(self, ex: "Exchange", ticket: RequestState, front: FunctionRouter) -> FunctionRouter | None:
        """The front that the request means: of the tag in its field, if it has one; None: the function has no such
        tag, answered."""
        tag = ex.head.control(headers.TAG)
        if tag is None:
            return front
        found = front.tagged.get(tag)
        if found is None:
            self._replies.no_tag(ex, front, tag)
        else:
            ticket.target = ticket.target.of(found)
        return found

    def _set_deadline(self, ex: "Exchange", front: FunctionRouter) -> bool:
        """The request's own deadline, at most the function's timeout; False: the field was nonsense, answered."""
        ex.deadline = ex.received + front.timeout_s
        if not ex.head.mentions(b"-timeout"):
            return True
        try:
            own_s = request_timeout_s(ex.head)
        except TimeoutFieldError as error:
            self._replies.fail(ex, BAD_REQUEST, str(error))
            return False
        if own_s is not None and own_s < front.timeout_s:
            ex.set_deadline(ex.received + own_s)
        return True

    def _read_own_fields(self, ex: "Exchange", priority: int) -> int:
        """The priority that a request states, else ``priority``; -1: it states nonsense, answered.

        The client's own fields go no further: the replica gets the deadline that remains and the size that was found.
        """
        head = ex.head
        if (ex.is_rpc and self._calls.is_usual(ex)) or not head.mentions(b"\ntidegate-"):
            return priority
        given = head.get(headers.PRIORITY)
        if given is not None:
            if len(given) != 1 or not given.isdigit():
                message = "tidegate-priority must be a digit: 0 (goes first) to 9 (goes last)"
                self._replies.fail(ex, BAD_REQUEST, message)
                return -1
            priority = int(given)
        head.drop(headers.TIMEOUT_MS, headers.BATCH_SIZE, headers.PRIORITY, headers.TAG)
        return priority

    # --- the way into the room --------------------------------------------------------------------------------------

    def admit(self, ex: "Exchange", ticket: RequestState, front: FunctionRouter, now: float) -> None:
        """All steps from who calls to the room. Once more for a request whose quota was to be asked for."""
        head = ex.head
        body = ex.body
        is_plain = front.is_plain
        if not is_plain and not self._may_call(ex, ticket, front):
            return
        inferences = self._calls.inferences(ex, front) if ex.is_rpc else front.inferences(head, body)
        ex.inferences = inferences
        if not inferences:
            ex.inferences = 1
            message = f"its batch is larger than {front.max_batch}, {front.name}'s max-batch"
            self._replies.fail(ex, BATCH_TOO_LARGE, message)
            return
        counters = front.counters or self._counters(front)
        if counters is None:
            self._replies.fail(ex, NOT_SERVABLE, f"no revision of {front.name} takes traffic")
            return
        tenant = ticket.tenant
        priority = front.priority if tenant is None or tenant.priority is None else tenant.priority
        if not head.plain:
            priority = self._read_own_fields(ex, priority)
            if priority < 0:
                return
        ticket.counters = counters
        key = claim = None
        if not is_plain:
            if front.tokens is not None:
                self._tokens.admit(ex, ticket, front.tokens, front.route)
            tokens = ticket.tokens
            if tenant is not None:
                priority = max(priority, tenant.best)
                if ticket.held is None and not self._is_charged(ex, ticket, tenant):
                    return
                claim = TenantCharge(tenant.name, tenant.weight, inferences if tokens is None else tokens.expected)
            if tokens is not None:
                tokens.arrived()
            if front.hash_key is not None:
                key = front.hash_key(ex)
        counters.sizes[INDEX[inferences] if inferences < KNOWN else bucket_index(inferences)] += 1
        counters.arrivals_inferences += inferences
        front.budget.requests += 1
        if now >= ex.deadline:
            self._replies.expired(ex, ticket, "its deadline had passed on arrival")
            return
        if self._open_circuits and self._outliers.refuses(counters.revision, now):
            self._replies.circuit_open(ex, ticket, counters)
            return
        size = len(body) if ex.body_complete else max(len(body), min(head.content_length or 0, KEPT_BYTES))
        room = self._room
        found = room.arrive(  # by position: the straight way
            ex, counters.revision, inferences, ex.deadline, now, size, priority, key, front.is_tag, None, claim
        )
        if type(found) is Bind:
            self._run(ex, found, now)
            if room.out or room.unsettled:
                self._flush()
            return
        if found is not None:
            self._replies.refused(found)  # type: ignore[arg-type]  # mypy does not narrow on `type() is`
        elif not front.route.cold.is_silent:
            self._cold_answers.waits(ex, ticket, front, now)
        self._flush()

    def _may_call(self, ex: "Exchange", ticket: RequestState, front: FunctionRouter) -> bool:
        """Whether it goes on to a function that asks who calls, or speaks gRPC alone; else it is answered."""
        if front.access is not None and ticket.tenant is None and not self.enters(ex, ticket, front):
            return False
        if front.is_grpc and not ex.is_rpc:
            self._replies.fail(ex, NOT_GRPC, f"{front.name} speaks gRPC alone")
            return False
        return True

    def enters(self, ex: "Exchange", ticket: RequestState, front: FunctionRouter) -> bool:
        """Whether the caller may call; else he is told why not."""
        denial = self._gate.enters(ex.head, ticket, front)
        if denial is not None:
            self._replies.denied(ex, ticket, denial)
        return denial is None

    def _is_charged(self, ex: "Exchange", ticket: RequestState, account: Account) -> bool:
        """Whether the tenant's quotas let it through now. What they refuse is no demand that replicas are needed for:
        it is not counted as an arrival."""
        verdict = self._gate.charges(ex, ticket, account)
        if verdict is True:
            return True
        ticket.counters = None
        if isinstance(verdict, Denial):
            self._replies.denied(ex, ticket, verdict)
        return False

    def heard_of_quota(self, ex: "Exchange", denial: Denial | None) -> None:
        """A request that waited to hear of its quota goes on, or is denied."""
        ticket: RequestState = ex.context
        front = ticket.target.front
        if denial is not None:
            self._replies.denied(ex, ticket, denial)
        elif front is not None:
            self.admit(ex, ticket, front, self._clock())

    def _counters(self, front: FunctionRouter) -> RevisionCounters | None:
        """Those of the revision that a request goes to, by the revisions' percent; None: none takes traffic."""
        revision = front.revision()
        if revision is None:
            return None
        counters = self._report.revision(front.name, revision)
        if front.has_one_revision:
            front.counters = counters
        return counters

    def __repr__(self) -> str:
        return f"<Admission to {self._room!r}>"
