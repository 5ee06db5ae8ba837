"""The path of one request through the gateway, top to bottom.

    match -> access -> body -> size -> quota -> room -> forward -> answer -> count

Each step is a method of :class:`Chain`, in this order. A step passes the request on to the next one or ends it with an
error. Steps that must wait (for a body, the quota pool, a slot) get their continuation at the call:

- **match** (``start``) finds the function (``routing/match.py``), by the body or the first gRPC message if the head
  does not name it; health calls are answered here (``direct_answers.py``);
- **access** (``_admit``) authenticates the caller (``answers/caller_check.py``);
- **body** (``body_gate.py``) waits until enough of the body is there, outside of the waiting room;
- **size** counts the inferences that the request carries. A request that prefers to be a job goes on without its
  client from here (``jobs/jobs.py``);
- **quota** reserves them from the tenant's quotas; a spent quota is a 429
  (``CallerCheck.has_quota``);
- **room** (``_enter_room``) counts the arrival and takes a slot, waits for one, or is refused (``activator/room.py``).
  A pipeline's request goes to ``pipelines/pipelines.py`` instead, and each of its stages comes to the room by
  ``pipelines/entry.py``;
- **forward** sends the request to the replica that it is bound to;
- **answer** (``answering``, ``upstream_failed``) passes the answer on, or recovers from a failed replica
  (``resilience/recovery.py``);
- **count** (``finished``) returns the slot and the reservations (``access/settlement.py``) and counts the outcome
  (``outcome_step.py``).

A request without any of our fields, with a whole body, a free slot and a 200 passes ``start``, ``_admit``,
``_enter_room``, ``forward``, ``answering`` and ``finished``, and nothing else;
``benchmarks/micro/gateway_bench.py`` measures that way. Route tables, channels and timers are in ``core.py``,
sockets in ``live.py`` and ``process/``.
"""

from typing import TYPE_CHECKING, Final

from tidegate import headers
from tidegate.activator.commands import Activate, Refuse, Unlink
from tidegate.activator.state.bind import Affinity, Bind
from tidegate.aio.proxy.exchange import KEPT_BYTES, Exchange
from tidegate.flow.fair_queue import TenantCharge
from tidegate.flow.wants import later_priority
from tidegate.gateway.access.control import Denial
from tidegate.gateway.access.later_charge import LaterCharge
from tidegate.gateway.answers.early_ends import EarlyEnds
from tidegate.gateway.body_gate import BodyGate
from tidegate.gateway.counting.counters import RevisionCounters
from tidegate.gateway.head_fields import is_request_id, state_with_new_id
from tidegate.gateway.outcome_step import begin_unbounded, count_end, trace_end
from tidegate.gateway.pipelines.entry import StageEntry
from tidegate.gateway.routing.function import FunctionRouter
from tidegate.gateway.routing.match import Matcher
from tidegate.gateway.routing.openai_body import read_model
from tidegate.gateway.routing.request_state import RequestState
from tidegate.gateway.wiring import Parts
from tidegate.histogram import INDEX, KNOWN, bucket_index
from tidegate.records.route_table import RouteTable
from tidegate.wire.http1.grammar import UNSAMPLED
from tidegate.wire.message_heads import AnyResponseHead

if TYPE_CHECKING:
    from tidegate.wire.bodies.openai import CallRequest

_LONG_BYTES: Final = 64 * 1024
"""The end of a longer answer may pass here long after it has left the replica, because its client reads slowly."""
_NO_WAIT: Final = b"x-request-id: %b\r\nserver-timing: wait;dur=0.000, queue;dur=%b\r\n"


class Chain:
    """Handles the requests of one gateway worker (a ``tidegate.aio.proxy.exchange.ProxyApp``)."""

    __slots__ = (
        "_access_log", "_callers", "_clock", "_cold_answers", "_cold_starts", "_direct", "_early_ends", "_errors",
        "_fields", "_grpc", "_health", "_jobs", "_later_charge", "_matcher", "_open_circuits", "_outliers",
        "_pipelines", "_pool_of", "_recovery", "_report", "_reschedule", "_rng", "_room", "_room_state", "_run_command",
        "_settlement", "_suspects", "_tokens", "_tracer", "_unanswered", "_variants", "body_gate",
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
        self._settlement = parts.settlement
        self._tokens = parts.tokens
        self._tracer = parts.tracer
        self._outliers = parts.resilience.outliers
        self._suspects = self._outliers.suspects
        self._open_circuits = self._outliers.open_circuits
        self._recovery = parts.recovery
        self._jobs = parts.jobs
        self._callers = parts.callers
        self._direct = parts.direct
        self._variants = parts.variants
        self._matcher = Matcher(RouteTable(epoch=0, number=0, workers=1), {})
        self._early_ends = EarlyEnds(parts.room, parts.errors, clock=self._clock, flush=self.flush)
        self._later_charge = LaterCharge(self._early_ends.body_refused)
        self.body_gate = BodyGate(parts.jobs, parts.pipelines, self._body_is_there, self._early_ends.crowded)
        self._pipelines = parts.pipelines
        entry = StageEntry(
            parts.room, parts.report, self._outliers, parts.errors, forward=self.forward, flush=self.flush
        )
        self._pipelines.serve(self, entry.enter)
        parts.health.states.serve(self._models_known)

    def apply(self, matcher: Matcher) -> None:
        """Works from this route table on."""
        self._matcher = matcher

    # --- match ------------------------------------------------------------------------------------------------------

    def start(self, ex: "Exchange") -> None:
        """A request's head is there (``ProxyApp.start``): finds its function."""
        head = ex.head
        is_rpc = ex.is_rpc
        target = self._matcher.of_call(head) if is_rpc else self._matcher.match(head)
        given = head.get(headers.REQUEST_ID)
        if given is not None and is_request_id(given) is not None:
            ex.context = state = RequestState(target, given, b"")
        else:
            ex.context = state = state_with_new_id(head, target, given, self._rng)
        tracer = self._tracer
        if tracer is not None and head.traced != UNSAMPLED and (target.is_work or is_rpc):
            state.trace = tracer.begin(head)
        if is_rpc:
            if self._grpc.takes(ex, state, self._function_known):
                return
            target = state.target
        if not target.is_work:
            is_answered = self._direct.answers(ex, state)
            self.flush()
            if is_answered:
                return
        router = target.router
        if router is None:
            if target.named_in_body:
                read_model(ex, self._model_known, self._early_ends.body_refused)
            else:
                self._direct.not_found(ex, state)
            return
        if head.plain:
            ex.deadline = ex.received + router.timeout_s
        elif not (is_rpc and self._grpc.sets_deadline(ex, router)):
            router = self._fields.read(ex, state, router)
            if router is None:
                return
        self._admit(ex, state, router, ex.received)

    def _models_known(self, ex: "Exchange") -> None:
        """A question about models has waited for the states of their replicas."""
        state: RequestState = ex.context
        router = state.target.router
        if router is not None:
            state.target = state.target.of(self._matcher.current(router))
        if not self._direct.answers(ex, state, has_waited=True):
            self._function_known(ex, state)
        self.flush()

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
            self._direct.not_found(ex, state)
            return
        router = self._fields.read(ex, state, router)
        if router is not None:
            self._admit(ex, state, router, self._clock())

    # --- access, body, size, quota ----------------------------------------------------------------------------------

    def _admit(self, ex: "Exchange", state: RequestState, router: FunctionRouter, now: float) -> None:
        """Passes a request of this function on to the waiting room if it may go there.

        Called again once enough of the body is there, once the quota pool has decided and once a job's record is kept:
        the route table may have changed meanwhile.
        """
        is_plain = router.is_plain
        if not is_plain and not self._callers.allows(ex, state, router):
            return
        if not ex.body_complete and self.body_gate.holds(ex, state, router):
            return
        inferences = (
            self._grpc.inferences(ex, router) if ex.is_rpc else router.inferences(ex.head, ex.body, ex.body_complete)
        )
        if inferences <= 0:
            self._errors.bad_size(ex, router, inferences)
            return
        ex.inferences = inferences
        counters = router.counters or router.draw_counters(self._report)
        if counters is None:
            self._errors.no_traffic(ex, router)
            return
        tenant = state.tenant
        priority = router.priority
        if tenant is not None and tenant.priority is not None:
            priority = tenant.priority + router.class_offset
        if not ex.head.plain:
            stated = self._fields.priority(ex, priority)
            if stated is None:
                return
            priority = stated if tenant is None else later_priority(priority, stated)
            if not ex.is_rpc and self._jobs.holds(ex, state, router, self._body_is_there):
                return
        state.counters = counters
        if is_plain:
            self._enter_room(ex, state, router, counters, priority, None, None, now)
            return
        if not ex.body_complete and router.access is not None:
            self._later_charge.watch(ex, router)
        if router.tokens is not None:
            self._tokens.estimate(ex, state, router.tokens, router.route)
        charge = None
        if tenant is not None:
            if state.held is None and not self._callers.has_quota(ex, state, tenant, self._quota_decided):
                return
            cost = inferences if state.tokens is None else state.tokens.expected
            charge = TenantCharge(tenant.name, tenant.weight, cost)
        if router.pipelines is not None:
            self._pipelines.begin(ex, state, router, counters, priority, charge)
            return
        if state.tokens is not None:
            state.tokens.arrived()
        if router.variants:
            router, counters = self._variants.choose(ex, state, router, counters, now)
        key = None if router.hash_key is None else router.hash_key(ex)
        self._enter_room(ex, state, router, counters, priority, key, charge, now)

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
        if counters.http is not None:
            counters.http.arrived(ex.head.method)
        router.budget.requests += 1
        if now >= ex.deadline:
            state.is_excused = True
            self._errors.expired(ex, state, "its deadline had passed on arrival")
            return
        if self._open_circuits and self._outliers.refuses(counters.revision, now):
            self._errors.circuit_open(ex, state, counters)
            return
        size = ex.bytes_in if ex.body_complete else max(ex.bytes_in, min(ex.head.content_length or 0, KEPT_BYTES))
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
                    elif kind is Unlink:
                        self._cold_starts.unlinked(command.replica)  # type: ignore[arg-type,union-attr]  # as above
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
        id_line = state.id_line
        if state.trace is not None:
            id_line = state.trace.forwarded(ex, id_line, replica.id, state.group, now)
        target = state.target
        ex.forward(
            self._pool_of(replica.address),
            lines + bind.header() + id_line,
            target.rewritten(ex.head.target) if target.rewrites else None,
            True,
        )
        if router.is_followed:
            self._recovery.follow(ex, state, router, now)

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
                lines = self._recovery.not_served(ex, state, bind, status, is_started=outcome == b"started")
                if lines is None:
                    self.flush()
                return lines
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
            begin_unbounded(ex, state, head, self._grpc)
            if state.keeps_credit and (state.is_stream or not ex.is_rpc):
                self._room.keep_credit(bind)
        elif length > _LONG_BYTES and state.keeps_credit:
            self._room.keep_credit(bind)
        if state.target.is_metadata and status == 200 and (ex.is_rpc or ex.head.method == b"GET"):
            self._health.remember(state, ex.head.path, bind)
        if head.names_id:
            head.drop(headers.REQUEST_ID)
        timing = head.control(headers.TIMING)
        trace = state.trace
        if trace is not None:
            trace.answered(bind.replica.id, status, timing, self._clock())
            if state.bound_at > ex.received:
                trace.waited_for(self._cold_starts.waited_for(bind.replica.id, ex.received))
        if state.target.variant_line:
            head_lines = self._cold_starts.lines(bind.replica.id, ex.received, state.bound_at, timing, self._clock())
            return b"x-request-id: %b\r\n%b%b" % (state.request_id, state.target.variant_line, head_lines)
        if timing is not None and state.bound_at == ex.received and not self._unanswered:
            return _NO_WAIT % (state.request_id, timing[6:].replace(b",model=", b", model;dur=", 1))
        lines = self._cold_starts.lines(bind.replica.id, ex.received, state.bound_at, timing, self._clock())
        return b"x-request-id: %b\r\n%b" % (state.request_id, lines)

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
        self._early_ends.expired(ex)

    def abandoned(self, ex: "Exchange") -> None:
        """The client went away (``ProxyApp.abandoned``)."""
        self._early_ends.abandoned(ex)

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
            self._recovery.unfollow(ex, state, is_complete)
        if state.tokens is not None or state.held is not None:
            is_complete = self._settlement.settle(ex, state, bind, is_complete=is_complete)
        counters = state.counters
        if counters is not None:
            count_end(ex, state, counters, is_complete, self._access_log)
        else:
            if ex.is_rpc:
                self._grpc.ended(ex)
            if self._access_log is not None and not state.is_uncounted:
                self._access_log.ended(ex, state)
        if state.trace is not None and self._tracer is not None and not state.is_uncounted:
            trace_end(ex, state, state.trace)
        if self._room_state.out or self._room_state.unsettled:
            self.flush()

    def __repr__(self) -> str:
        return f"<Chain {self._room!r}>"
