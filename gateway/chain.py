"""The path of one request through the gateway, top to bottom.

    match -> access -> body -> size -> quota -> room -> forward -> answer -> count

Each step is a method of :class:`Chain`, in this order. A step passes the request on to the next one or ends it with an
error. Steps that must wait (for a body, the quota pool, a slot) get their continuation at the call:

- **match** (``start``) finds the function (``routing/match.py``), by the body or the first gRPC message if the head
  does not name it; health calls are answered here;
- **access** (``_admit``) authenticates the caller (``access/control.py``);
- **body** (``body_gate.py``) waits until enough of the body is there, outside of the waiting room;
- **size** counts the inferences that the request carries. A request that prefers to be a job goes on without its
  client from here (``jobs/jobs.py``);
- **quota** reserves them from the tenant's quotas; a spent quota is a 429 (``AccessControl.reserve``);
- **room** (``_enter_room``) counts the arrival and takes a slot, waits for one, or is refused (``activator/room.py``);
- **forward** sends the request to the replica that it is bound to;
- **answer** (``answering``, ``upstream_failed``) passes the answer on, or recovers from a failed replica
  (``resilience/recovery.py``);
- **count** (``finished``) returns the slot and the reservations and counts the outcome.

A request without any of our fields, with a whole body, a free slot and a 200 passes ``start``, ``_admit``,
``_enter_room``, ``forward``, ``answering`` and ``finished``, and nothing else;
``benchmarks/micro/gateway_bench.py`` measures that way. Route tables, channels and timers are in ``core.py``. Sockets
are the host's (``live.py``).
"""

from typing import TYPE_CHECKING, Final

from tidegate import headers
from tidegate.activator.commands import Activate, Refuse
from tidegate.activator.state.bind import Affinity, Bind
from tidegate.aio.proxy.exchange import KEPT_BYTES, Exchange
from tidegate.errors import BATCH_TOO_LARGE, QUEUE_FULL, ErrorKind, Executed
from tidegate.flow.fair_queue import TenantCharge
from tidegate.gateway.access.control import Denial
from tidegate.gateway.answers.health import is_for_callers
from tidegate.gateway.body_gate import BodyGate
from tidegate.gateway.counting.counters import RevisionCounters
from tidegate.gateway.counting.outcomes import Ending
from tidegate.gateway.counting.tenant_accounts import Account
from tidegate.gateway.counting.tokens import Tokens
from tidegate.gateway.head_fields import is_request_id, state_with_new_id
from tidegate.gateway.resilience.resilience import cancel
from tidegate.gateway.routing.function import FunctionRouter
from tidegate.gateway.routing.match import Call, Matcher, stripped
from tidegate.gateway.routing.openai_body import read_model
from tidegate.gateway.routing.request_state import RequestState
from tidegate.gateway.wiring import Parts
from tidegate.histogram import INDEX, KNOWN, bucket_index
from tidegate.records.route_table import RouteTable
from tidegate.wire.message_heads import AnyResponseHead

if TYPE_CHECKING:
    from tidegate.wire.bodies.openai import CallRequest

_EVENT_STREAM: Final = b"text/event-stream"
_LONG_BYTES: Final = 64 * 1024
"""The end of a longer answer may pass here long after it has left the replica, because its client reads slowly."""
_NO_WAIT: Final = b"x-request-id: %b\r\nserver-timing: wait;dur=0.000, queue;dur=%b\r\n"


class Chain:
    """Handles the requests of one gateway worker (a ``tidegate.aio.proxy.exchange.ProxyApp``)."""

    __slots__ = (
        "_access_control", "_access_log", "_clock", "_cold_answers", "_cold_starts", "_errors", "_fields", "_grpc",
        "_health", "_jobs", "_matcher", "_open_circuits", "_outliers", "_pool_of", "_recovery", "_report",
        "_reschedule", "_resilience", "_rng", "_room", "_room_state", "_run_command", "_shadows", "_suspects", "_table",
        "_tokens", "_unanswered", "body_gate", "is_draining",
    )  # fmt: skip

    def __init__(self, parts: Parts) -> None:
        effects = parts.effects
        self._clock = effects.time.clock
        self._pool_of = effects.upstreams.pool_of
        self._run_command = effects.room.run
        self._reschedule = effects.room.reschedule
        self._room = parts.room
        self._room_state = parts.room.state
        self._report = parts.report
        self._rng = parts.rng
        self._access_log = parts.access_log
        self._cold_starts = parts.cold_starts
        self._unanswered = parts.cold_starts.unanswered
        self._cold_answers = parts.cold_answers
        self._health = parts.health
        self._grpc = parts.grpc
        self._errors = parts.errors
        self._fields = parts.fields
        self._access_control = parts.access_control
        self._tokens = parts.tokens
        self._resilience = parts.resilience
        self._outliers = parts.resilience.outliers
        self._suspects = self._outliers.suspects
        self._open_circuits = self._outliers.open_circuits
        self._shadows = parts.shadows
        self._recovery = parts.recovery
        self._jobs = parts.jobs
        self._table = RouteTable(epoch=0, number=0, workers=1)
        self._matcher = Matcher(self._table, {})
        self.body_gate = BodyGate(self._body_is_there, self._crowded)
        self.is_draining = False
        """The worker is about to end, and its health calls say so."""

    def apply(self, table: RouteTable, matcher: Matcher) -> None:
        """Works from this route table on."""
        self._table = table
        self._matcher = matcher

    # --- match ------------------------------------------------------------------------------------------------------

    def start(self, ex: "Exchange") -> None:
        """A request's head is there (``ProxyApp.start``): finds its function."""
        head = ex.head
        target = self._matcher.of_call(head) if ex.is_rpc else self._matcher.match(head)
        given = head.get(headers.REQUEST_ID)
        if given is not None and is_request_id(given):
            ex.context = state = RequestState(target, given, b"")
        else:
            ex.context = state = state_with_new_id(head, target, given, self._rng)
        if ex.is_rpc:
            if self._grpc.takes(ex, state, self._function_known):
                return
            target = state.target
        if not target.is_work and self._answers_itself(ex, state):
            return
        router = target.router
        if router is None:
            if target.named_in_body:
                read_model(ex, self._model_known, self._body_refused)
            else:
                self._not_found(ex, state)
            return
        if head.plain:
            ex.deadline = ex.received + router.timeout_s
        elif not (ex.is_rpc and self._grpc.sets_deadline(ex, router)):
            router = self._read_fields(ex, state, router)
            if router is None:
                return
        self._admit(ex, state, router, ex.received)

    def _answers_itself(self, ex: "Exchange", state: RequestState) -> bool:
        """Answers questions about health, models and metadata. Returns False if only a replica can answer."""
        if state.target.call is Call.JOB:
            self._jobs.answer(ex, state)
            return True
        router = state.target.router
        if router is not None:
            has_tag = ex.head.control(headers.TAG) is not None
            is_closed = router.access is not None and is_for_callers(state.target, has_tag=has_tag)
            if is_closed and not self._is_allowed(ex, state, router):
                return True
            if self._fields.tagged(ex, state, router) is None:
                return True
        found = self._health.answer(
            state.target, ex.head.path, self._table, self._clock(), is_draining=self.is_draining
        )
        self.flush()
        if found is None:
            return False
        status, body = found
        ex.respond(status, body, extra=b"x-request-id: %b\r\n" % state.request_id)
        return True

    def _read_fields(self, ex: "Exchange", state: RequestState, router: FunctionRouter) -> FunctionRouter | None:
        """Reads tag and deadline. Returns the router that the tag names; None if the request was answered.

        Which tags a function with an access rule has is for its callers alone.
        """
        is_closed = router.access is not None and ex.head.control(headers.TAG) is not None
        if is_closed and not self._is_allowed(ex, state, router):
            return None
        return self._fields.read(ex, state, router)

    def _not_found(self, ex: "Exchange", state: RequestState) -> None:
        """No function has the name in the request. A tag that a function with an access rule does not have is answered
        to others than its callers as one that it has."""
        target = state.target
        nearest = self._matcher.nearest(target.named)
        if nearest is not None and nearest.access is not None:
            state.target = target.of(nearest)
            if not self._is_allowed(ex, state, nearest):
                return
            state.target = target
        self._errors.not_found(ex, self._matcher)

    def _model_known(self, ex: "Exchange", model: str | None, asked: "CallRequest | None") -> None:
        """The body has named the model of the request (``read_model``)."""
        state: RequestState = ex.context
        state.asked = asked
        state.target = self._matcher.of_model(state.target, model)
        self._function_known(ex, state)

    def _function_known(self, ex: "Exchange", state: RequestState) -> None:
        """The body or the first message has named the function (``state.target``), or has named none."""
        router = state.target.router
        if router is None:
            self._not_found(ex, state)
            return
        if ex.head.plain:
            ex.deadline = ex.received + router.timeout_s
        else:
            router = self._read_fields(ex, state, router)
        if router is not None:
            self._admit(ex, state, router, self._clock())

    def _body_refused(self, ex: "Exchange", kind: ErrorKind, message: str) -> None:
        """A body that names the model cannot be read, or its rest is faulty: no replica gets the end of it."""
        state: RequestState = ex.context
        if state.target.router is not None:
            state.ending = Ending.CANCELLED
            if state.bind is None and self._room.withdraw(ex, self._clock()):
                self.flush()
        if ex.first_byte:
            ex.truncate()
        else:
            self._errors.fail(ex, kind, message, extra=b"retry-after: 1\r\n" if kind.retry_helps else b"")

    # --- access, body, size, quota ----------------------------------------------------------------------------------

    def _admit(self, ex: "Exchange", state: RequestState, router: FunctionRouter, now: float) -> None:
        """Passes a request of this function on to the waiting room if it may go there.

        Called again once enough of the body is there, once the quota pool has decided and once a job's record is kept:
        the route table may have changed meanwhile.
        """
        is_plain = router.is_plain
        if not is_plain and not self._is_allowed(ex, state, router):
            return
        if not ex.body_complete and self._awaits_body(ex, state, router):
            return
        inferences = (
            self._grpc.inferences(ex, router) if ex.is_rpc else router.inferences(ex.head, ex.body, ex.body_complete)
        )
        if inferences <= 0:
            self._errors.bad_size(ex, router, inferences)
            return
        ex.inferences = inferences
        counters = router.counters or self._counters(router)
        if counters is None:
            self._errors.no_traffic(ex, router)
            return
        tenant = state.tenant
        priority = router.priority if tenant is None or tenant.priority is None else tenant.priority
        if not ex.head.plain:
            stated = self._fields.priority(ex, priority)
            if stated is None:
                return
            priority = stated if tenant is None else max(priority, stated)
            if not ex.is_rpc and self._jobs.holds(ex, state, router, self._body_is_there):
                return
        state.counters = counters
        if is_plain:
            self._enter_room(ex, state, router, counters, priority, None, None, now)
            return
        if not ex.body_complete and router.access is not None:
            self._count_the_rest(ex, router)
        if router.tokens is not None:
            self._tokens.estimate(ex, state, router.tokens, router.route)
        charge = None
        if tenant is not None:
            if state.held is None and not self._has_quota(ex, state, tenant):
                return
            cost = inferences if state.tokens is None else state.tokens.expected
            charge = TenantCharge(tenant.name, tenant.weight, cost)
        if state.tokens is not None:
            state.tokens.arrived()
        key = None if router.hash_key is None else router.hash_key(ex)
        self._enter_room(ex, state, router, counters, priority, key, charge, now)

    def _awaits_body(self, ex: "Exchange", state: RequestState, router: FunctionRouter) -> bool:
        """Returns whether a request with an incomplete body waits for more of it: a job for all."""
        if not (ex.is_rpc or ex.head.plain) and self._jobs.holds(ex, state, router, self._body_is_there):
            return True
        return self.body_gate.holds(ex, router)

    def _body_is_there(self, ex: "Exchange") -> None:
        """A body that was waited for is there. The request goes on by the route table of now."""
        state: RequestState = ex.context
        router = state.target.router
        if router is None:
            return
        if ex.body_complete:
            self.body_gate.releases(ex)
        current = self._matcher.current(router)
        if current is not router:
            state.target, router = state.target.of(current), current
        self._admit(ex, state, router, self._clock())

    def _crowded(self, ex: "Exchange") -> None:
        """A body that is waited for is given up, because the bodies of all requests take too much memory."""
        state: RequestState = ex.context
        state.ending = Ending.REFUSED
        message = "the bodies of waiting requests take all their memory (limits.waiting-body-bytes)"
        self._errors.fail(ex, QUEUE_FULL, message, extra=b"retry-after: 1\r\n")

    def _count_the_rest(self, ex: "Exchange", router: FunctionRouter) -> None:
        """Counts the shapes in the rest of a body whose caller is charged, before its pieces go to a replica: a larger
        one is charged, one above ``max-batch`` ends the request."""
        if ex.is_rpc or ex.check is not None:
            return
        later = router.later_shapes(ex.head, ex.body)
        if later is None:
            return

        def check(ex: "Exchange", data: bytes, is_last: bool) -> None:
            found = later.feed(data)
            if found > router.max_batch:
                message = f"a shape in its body is larger than {router.max_batch}, {router.name}'s max-batch"
                self._body_refused(ex, BATCH_TOO_LARGE, message)
            elif found > ex.inferences:
                state: RequestState = ex.context
                if state.held is not None:
                    state.held = state.held.charging(found)

        ex.check = check

    def _is_allowed(self, ex: "Exchange", state: RequestState, router: FunctionRouter) -> bool:
        """Authenticates the caller and checks the protocol. Returns False if the request was answered with an error."""
        if router.access is not None and state.tenant is None:
            denial = self._access_control.check_caller(ex.head, state, router)
            if denial is not None:
                self._errors.denied(ex, state, denial)
                return False
        if router.is_grpc and not ex.is_rpc:
            self._errors.not_grpc(ex, router)
            return False
        return True

    def _counters(self, router: FunctionRouter) -> RevisionCounters | None:
        """Returns the counters of the revision that the request goes to, drawn by the revisions' percent."""
        revision = router.revision()
        if revision is None:
            return None
        counters = self._report.revision(router.name, revision)
        if router.has_one_revision:
            router.counters = counters
        return counters

    def _has_quota(self, ex: "Exchange", state: RequestState, tenant: Account) -> bool:
        """Reserves the tenant's quotas. Returns False if they are spent, or if the pool decides later.

        A request over quota does not count as an arrival: no replica is needed for it.
        """
        verdict = self._access_control.reserve(ex, state, tenant, self._quota_decided)
        if verdict is True:
            return True
        state.counters = None
        if isinstance(verdict, Denial):
            self._errors.denied(ex, state, verdict)
        return False

    def _quota_decided(self, ex: "Exchange", denial: Denial | None) -> None:
        """The quota pool has decided about a request that waited for it."""
        state: RequestState = ex.context
        router = state.target.router
        if denial is not None:
            self._errors.denied(ex, state, denial)
        elif router is not None:
            self._admit(ex, state, router, self._clock())

    # --- room -------------------------------------------------------------------------------------------------------

    def _enter_room(
        self,
        ex: "Exchange",
        state: RequestState,
        router: FunctionRouter,
        counters: RevisionCounters,
        priority: int,
        key: Affinity | None,
        charge: TenantCharge | None,
        now: float,
    ) -> None:
        """Counts the arrival; then the request takes a free slot, waits for one, or is refused."""
        inferences = ex.inferences
        counters.sizes[INDEX[inferences] if inferences < KNOWN else bucket_index(inferences)] += 1
        counters.arrivals_inferences += inferences
        router.budget.requests += 1
        if now >= ex.deadline:
            self._errors.expired(ex, state, "its deadline had passed on arrival")
            return
        if self._open_circuits and self._outliers.refuses(counters.revision, now):
            self._errors.circuit_open(ex, state, counters)
            return
        size = len(ex.body) if ex.body_complete else max(len(ex.body), min(ex.head.content_length or 0, KEPT_BYTES))
        room = self._room
        found = room.arrive(  # Positional arguments: this is the hot path.
            ex, counters.revision, inferences, ex.deadline, now, size, priority, key, router.is_tag, None, charge
        )
        if type(found) is Bind:
            self.forward(ex, found, now)
            if self._room_state.out or self._room_state.unsettled:
                self.flush()
            return
        if found is not None:
            self._errors.refused(found)  # type: ignore[arg-type]  # mypy does not narrow on `type() is`
        elif not router.route.cold.is_silent and not self._jobs.has(ex):
            self._cold_answers.waits(ex, state, router, now)
        self.flush()

    def flush(self) -> None:
        """Carries out what the waiting room has decided."""
        room = self._room
        while room.out:
            commands = room.out[:]
            room.out.clear()
            for command in commands:
                kind = type(command)
                if kind is Bind:
                    self.forward(command.request, command, self._clock())  # type: ignore[union-attr,arg-type]  # mypy does not narrow on `type() is`; requests here are exchanges
                elif kind is Refuse:
                    self._errors.refused(command)  # type: ignore[arg-type]  # as above
                else:
                    if kind is Activate:
                        self._cold_starts.activated(command.activation.revision)  # type: ignore[union-attr]  # as above
                    self._run_command(command)
        self._reschedule()

    # --- forward ----------------------------------------------------------------------------------------------------

    def forward(self, ex: "Exchange", bind: Bind, now: float) -> None:
        """Sends a request to the replica that it is bound to, unless its deadline has passed."""
        state: RequestState = ex.context
        state.bind, state.bound_at = bind, now  # ``RequestState.bound``, without the call: this is the hot path.
        router = state.target.router
        deadline = ex.deadline
        if router is None or now >= deadline:
            self._errors.expired(ex, state, "its deadline passed before a replica was free for it")
            return
        replica = bind.replica
        state.replica = replica.id
        state.group = replica.group.accelerator
        if now + router.timeout_s == deadline:
            lines = router.lines(ex.inferences)
        else:
            lines = router.lines_with(ex.inferences, deadline - now)
        strip = state.target.strip
        ex.forward(
            self._pool_of(replica.address),
            lines + bind.header + state.id_line,
            target=stripped(ex.head.target, strip) if strip else None,
            hold=True,
        )
        if router.is_followed:
            self._resilience.sent(ex, state, router, now)
            if router.has_shadows and state.hedge_of is None:
                self._shadows.bound(ex, state, router)

    # --- answer -----------------------------------------------------------------------------------------------------

    def answering(self, ex: "Exchange", head: AnyResponseHead) -> bytes | None:
        """A replica's answer begins (``ProxyApp.answering``): returns the header lines to add.

        Returns None to take the answer back: the replica did not run the request, and it waits again.
        """
        state: RequestState = ex.context
        bind = state.bind
        if bind is None:
            return b""
        status = head.status
        if status >= 400 and (outcome := head.control(headers.OUTCOME)) is not None:
            if outcome == b"not-started" or outcome == b"started":
                return self._not_served(ex, state, bind, status, is_started=outcome == b"started")
            if state.hedge_of is not None:
                return self._recovery.hedge_failed(ex, state)
        if state.exchange is not None or state.hedge_of is not None:
            self._recovery.settle_copies(ex, state, head)
        if state.tokens is not None:
            self._tokens.answering(ex, state.tokens, head)
        state.is_answered = True
        state.keeps_credit = head.control(headers.CREDIT) == b"keep"
        length = head.content_length
        if length is None:
            self._begin_unbounded(ex, state, head, bind)
        elif length > _LONG_BYTES and state.keeps_credit:
            self._room.keep_credit(bind)
        if state.target.is_metadata and status == 200 and (ex.is_rpc or ex.head.method == b"GET"):
            self._health.remember(state.target, ex.head.path, bind)
            if state.counters is not None:
                state.counters.metadata += 1
        if head.mentions(b"\nx-request-id:"):
            head.drop(headers.REQUEST_ID)
        timing = head.control(headers.TIMING)
        if timing is not None and state.bound_at == ex.received and not self._unanswered:
            return _NO_WAIT % (state.request_id, timing[6:].replace(b",model=", b", model;dur=", 1))
        lines = self._cold_starts.lines(bind.replica.id, ex.received, state.bound_at, timing, self._clock())
        return b"x-request-id: %b\r\n%b" % (state.request_id, lines)

    def _begin_unbounded(self, ex: "Exchange", state: RequestState, head: AnyResponseHead, bind: Bind) -> None:
        """An answer without a length begins: an event stream, a tunnel, a stream of messages, or chunks."""
        if ex.is_rpc:
            state.is_stream = self._grpc.streams(ex)
        else:
            state.is_stream = head.status == 101 or (head.get(b"content-type") or b"").startswith(_EVENT_STREAM)
        if state.is_stream and state.counters is not None:
            state.counters.streaming += 1
        if state.keeps_credit and (state.is_stream or not ex.is_rpc):
            self._room.keep_credit(bind)

    def _not_served(
        self, ex: "Exchange", state: RequestState, bind: Bind, status: int, *, is_started: bool
    ) -> bytes | None:
        """The queue_proxy reports that the answer is not its model's: retries the request if that is safe."""
        recover = self._recovery.broken if is_started else self._recovery.given_back
        lines = recover(ex, state, bind, status)
        if lines is None:
            self.flush()
        return lines

    def upstream_failed(self, ex: "Exchange", sent: bool, why: str) -> None:
        """The connection to the replica broke before an answer (``ProxyApp.upstream_failed``): retries if safe.

        If it breaks amid an answer the engine truncates that answer, and ``finished`` follows with ``ex.truncated``.
        """
        state: RequestState = ex.context
        bind = state.bind
        router = state.target.router
        if bind is not None and router is not None:
            self._recovery.broke_off(ex, state, bind, router, sent, why)
            self.flush()

    def expired(self, ex: "Exchange") -> None:
        """The deadline passed before an answer (``ProxyApp.expired``)."""
        state: RequestState = ex.context
        state.ending = Ending.EXPIRED
        if state.bind is None:
            message = "its deadline passed before a replica was free for it"
            if self._room.withdraw(ex, self._clock(), expired=True):
                self.flush()
            elif not ex.body_complete and state.counters is None:
                message = "its deadline passed before its body was there"
            self._errors.expired(ex, state, message)
        else:
            self._errors.expired(ex, state, "its deadline passed while a replica ran it", Executed.UNKNOWN)

    def abandoned(self, ex: "Exchange") -> None:
        """The client went away (``ProxyApp.abandoned``)."""
        state: RequestState = ex.context
        state.ending = Ending.CANCELLED
        if state.bind is None and self._room.withdraw(ex, self._clock()):
            self.flush()

    # --- count ------------------------------------------------------------------------------------------------------

    def finished(self, ex: "Exchange") -> None:
        """The end of a request, exactly once, however it ended (``ProxyApp.finished``).

        Returns its slot and its reservations, ends its copies and counts it.
        """
        state: RequestState = ex.context
        bind = state.ended()
        is_complete = state.is_answered and not ex.truncated and state.ending is None
        if bind is not None:
            if is_complete:
                self._room.answered(bind, state.keeps_credit, ex.ended)
                if self._suspects:
                    self._outliers.succeeded(bind.replica.id, ex.ended)
            else:
                self._recovery.cut_short(ex, state, bind, ex.ended)
        if state.exchange is not None:
            cancel(state.unfollow())
            self._shadows.ends(ex, state, is_complete)
        if state.tokens is not None:
            is_complete = self._end_tokens(ex, state, state.tokens, bind, is_complete)
        if state.held is not None:
            is_good = is_complete and ex.status < 500
            self._access_control.settle(ex, state, state.held, was_bound=bind is not None, is_answered=is_good)
        counters = state.counters
        if counters is not None:
            if state.is_stream:
                counters.streaming -= 1
            if is_complete and ex.status < 500:
                end = ex.ended
                if state.is_stream:  # A stream counts until its first output.
                    end = ex.first_byte if state.tokens is None else state.tokens.begun(ex.first_byte)
                router = state.target.router
                target_s = router.latency_s if router is not None else None
                is_slow = False
                if state.tokens is not None and router is not None and router.per_token_s is not None:
                    is_slow = state.tokens.per_token_s > router.per_token_s
                counters.ended_well(state.group, ex.inferences, end - ex.received, target_s, is_slow=is_slow)
            else:
                counters.ended(state.ending or Ending.FAILED, state.group, ex.inferences)
        elif ex.is_rpc:
            self._grpc.ended(ex)
        if self._access_log is not None and not state.is_uncounted:
            self._access_log.ended(ex, state, _ending(ex, state).value)
        if self._room_state.out or self._room_state.unsettled:
            self.flush()

    def _end_tokens(
        self, ex: "Exchange", state: RequestState, tokens: Tokens, bind: Bind | None, is_complete: bool
    ) -> bool:
        """Counts the tokens. Returns whether the answer was complete: a stream is, if it had ended by its protocol."""
        if tokens.is_done and state.ending is Ending.CANCELLED:
            state.ending, is_complete = None, True
        self._tokens.ended(ex, state, tokens, was_bound=bind is not None, ending=_ending(ex, state))
        if bind is not None:
            self._room.cost(bind, tokens.total or tokens.prompt_estimate)  # It took a slot, whatever it reported.
        return is_complete

    def __repr__(self) -> str:
        return f"<Chain table {self._table.version}, {self._room!r}>"


def _ending(ex: "Exchange", state: RequestState) -> Ending:
    if state.ending is not None:
        return state.ending
    return Ending.FAILED if ex.truncated or ex.status >= 500 else Ending.ANSWERED
