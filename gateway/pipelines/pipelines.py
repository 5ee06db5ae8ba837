"""Requests of pipelines on one gateway worker: each runs through its stages, one after the other.

A stage is a request of its function: an exchange of its own, whose answer comes here instead of to a client. It arrives
in the waiting room under a revision of that function, with the age and the deadline of the whole request, so all that
holds for requests holds for stages: slots, order, retries, hedges, canaries. The client's own exchange waits meanwhile;
when it ends, its stage ends.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol
from urllib.parse import quote

from tidegate import metrics
from tidegate.activator.commands import Activate, Refuse
from tidegate.activator.room import WaitingRoom
from tidegate.activator.state.bind import Command
from tidegate.errors import (
    BAD_REQUEST,
    DEADLINE,
    DROPPED,
    NOT_SERVABLE,
    QUEUE_FULL,
    STAGE_FAILED,
    TOO_LARGE,
    ErrorKind,
    Executed,
)
from tidegate.flow.dropping import TIE
from tidegate.flow.fair_queue import TenantCharge
from tidegate.function import Protocol as Speaks
from tidegate.gateway.answers.errors import ErrorResponses
from tidegate.gateway.counting.counters import RevisionCounters
from tidegate.gateway.counting.outcomes import Ending
from tidegate.gateway.pipelines.bodies import StageBody, UnfitAnswerError, next_body, without_asked
from tidegate.gateway.pipelines.heads import JSON_LENGTH, field, kept_lines, stage_head, timing_of
from tidegate.gateway.routing.function import FunctionRouter
from tidegate.gateway.routing.match import Call, Target, stripped
from tidegate.gateway.routing.request_state import RequestState
from tidegate.gateway.tracing.trace import Tracer
from tidegate.histogram import Histogram
from tidegate.records.gateway_sample import Activation
from tidegate.records.pipeline import PipelineRoute, Stage
from tidegate.wire.http1.events import Piece
from tidegate.wire.http1.request_head import RequestHead

if TYPE_CHECKING:
    from tidegate.aio.proxy.detached import AnswerSink
    from tidegate.aio.proxy.exchange import Exchange, ProxyApp

GROUP: Final = "stages"
"""Stands for the group of replicas in the figures of a pipeline, which has none."""
WAKE_EVERY_S: Final = 1.0
"""Interval at which the start of a later stage is requested again."""
CROWDED: Final = "the bodies of waiting requests take all their memory (limits.waiting-body-bytes)"


class NextExchange(Protocol):
    """Makes the exchange of a stage (``tidegate.aio.proxy.detached.next_exchange``)."""

    def __call__(
        self, first: "Exchange", app: "ProxyApp", sink: "AnswerSink", head: RequestHead, body: bytes, now: float
    ) -> "Exchange": ...


class EnterStage(Protocol):
    """Lets a stage's request into the waiting room."""

    def __call__(self, ex: "Exchange", state: RequestState, router: FunctionRouter, live: "LiveRequest") -> None: ...


class StageFigures:
    """What one stage of a pipeline has done on this worker."""

    __slots__ = ("failures", "latency")

    def __init__(self) -> None:
        self.failures = 0
        self.latency = Histogram()


class LiveRequest:
    """One request on its way through the stages (an ``AnswerSink`` of ``tidegate.aio.proxy.detached``)."""

    __slots__ = (
        "_pipelines", "asked", "at", "block", "charge", "crowded", "drops_at", "exchange", "inner", "inner_state",
        "is_over", "pieces", "priority", "route", "size", "slot_s", "status", "timing", "too_large", "was_bound",
    )  # fmt: skip

    def __init__(
        self,
        pipelines: "Pipelines",
        exchange: "Exchange",
        route: PipelineRoute,
        priority: int,
        charge: TenantCharge | None,
        drops_at: float,
    ) -> None:
        self._pipelines = pipelines
        self.exchange = exchange
        """That of the client."""
        self.route = route
        self.priority = priority
        self.charge = charge
        self.drops_at = drops_at
        """When it is dropped if it waits then (``drop-after`` of the pipeline)."""
        self.at = 0
        """Index of the present stage."""
        self.asked: Mapping[str, Any] = {}
        """Keys of its V2 request that are for the last stage."""
        self.inner: Exchange | None = None
        """The exchange of the present stage."""
        self.inner_state: RequestState | None = None
        self.timing: list[bytes] = []
        self.was_bound = False
        """A replica of some stage has had it."""
        self.slot_s = 0.0
        """Time for which replicas have had it."""
        self.is_over = False
        self.begin_answer()

    def begin_answer(self) -> None:
        """The answer of a further stage is collected from now on."""
        self.status = 0
        self.block = b""
        self.pieces: list[bytes] = []
        self.size = 0
        self.too_large = self.crowded = False

    @property
    def stage(self) -> Stage:
        return self.route.stages[self.at]

    @property
    def entered(self) -> float:
        """When the whole request arrived."""
        return self.exchange.received

    @property
    def waits_until(self) -> float:
        """Until when it may wait in the room."""
        return min(self.exchange.deadline, self.drops_at)

    @property
    def has_run(self) -> bool:
        """An earlier stage has answered."""
        return self.at > 0

    @property
    def stage_name(self) -> str:
        """The function of the present stage."""
        return self.stage.function

    def leaves(self) -> None:
        """The client went away or the deadline passed: the present stage ends, wherever it waits or runs."""
        self._pipelines.leave(self)

    def ran(self, state: RequestState, now: float) -> None:
        """A stage has ended: notes for how long a replica had it, as that of the whole request."""
        if state.replica:
            self.was_bound = True
            self.slot_s += max(0.0, now - state.bound_at)
            whole: RequestState = self.exchange.context
            whole.bound_at = now - self.slot_s

    def refused(self, refusal: Refuse) -> Refuse:
        """Returns the room's refusal as the client reads it: what the room takes for a deadline may be drop-after."""
        if refusal.kind is not DEADLINE or self.drops_at >= self.exchange.deadline - TIE:
            return refusal
        limit_s = self.drops_at - self.entered
        message = f"waited until {limit_s:.3g} s after its arrival; the pipeline drops requests then (drop-after)"
        return Refuse(refusal.request, DROPPED, message, 1)

    # --- its stage's answer -----------------------------------------------------------------------------------------

    def carried(self, exchange: "Exchange") -> None:
        self.inner, self.inner_state = exchange, exchange.context

    def begins(self, status: int, block: bytes) -> None:
        self.status, self.block = status, block

    def body(self, data: Piece) -> None:
        if data:
            self._pipelines.collect(self, data)

    def ended(self) -> None:
        self._pipelines.stage_ended(self)

    def broke_off(self) -> None:
        self._pipelines.stage_broke(self)

    def __repr__(self) -> str:
        return f"<LiveRequest in stage {self.at + 1} of {len(self.route.stages)}>"


class Pipelines:
    """All requests of pipelines on one worker."""

    __slots__ = (
        "_app",
        "_clock",
        "_enter",
        "_errors",
        "_figures",
        "_next_exchange",
        "_room",
        "_routers",
        "_run",
        "_tracer",
        "_woken",
    )  # fmt: skip

    def __init__(
        self,
        room: WaitingRoom,
        errors: ErrorResponses,
        *,
        clock: Callable[[], float],
        run: Callable[[Command], None],
        next_exchange: NextExchange,
        tracer: Tracer | None,
    ) -> None:
        """``tracer``: None if nothing is traced."""
        self._room = room
        self._errors = errors
        self._clock = clock
        self._run = run
        self._next_exchange = next_exchange
        self._tracer = tracer
        self._routers: Mapping[str, FunctionRouter] = {}
        self._woken: dict[str, float] = {}
        self._figures: dict[tuple[str, str], StageFigures] = {}

    def serve(self, app: "ProxyApp", enter: EnterStage) -> None:
        """Sets the application that stages run through."""
        self._app = app
        self._enter = enter

    def apply(self, routers: Mapping[str, FunctionRouter]) -> None:
        """Takes over the functions of a route table."""
        self._routers = routers
        self._woken.clear()
        known = {
            (router.name, stage.function)
            for router in routers.values()
            for route in (router.pipelines or {}).values()
            for stage in route.stages
        }
        for pair in self._figures.keys() - known:
            del self._figures[pair]

    # --- a request enters -------------------------------------------------------------------------------------------

    def holds(self, ex: "Exchange", router: FunctionRouter, go_on: Callable[["Exchange"], None]) -> bool:
        """Returns True while the body of the request is not whole, or if it was answered; ``go_on`` follows when more
        of it is there."""
        limit = _limit(router)
        if max(ex.bytes_in, ex.head.content_length or 0) > limit:
            self._too_large(ex, limit)
            return True
        if ex.is_over_budget:
            ex.context.ending = Ending.REFUSED
            self._errors.fail(ex, QUEUE_FULL, CROWDED, extra=b"retry-after: 1\r\n")
            return True
        ex.proceed()
        ex.read_ahead(limit + 1)
        ex.on_body = go_on
        return True

    def begin(
        self,
        ex: "Exchange",
        state: RequestState,
        router: FunctionRouter,
        counters: RevisionCounters,
        priority: int,
        charge: TenantCharge | None,
    ) -> None:
        """Counts the arrival and sends the request, whose body is whole, to the first stage."""
        counters.arrived(ex.inferences)
        state.group = GROUP
        head, route = ex.head, (router.pipelines or {}).get(counters.revision)
        if route is None or not isinstance(head, RequestHead):
            what = "is called over HTTP: stages pass bodies on, not gRPC messages"
            self._errors.fail(ex, BAD_REQUEST, f"{router.name} is a pipeline and {what}")
        elif head.method != b"POST" or state.target.is_metadata or head.upgrade is not None:
            names = ", ".join(stage.function for stage in route.stages)
            self._errors.fail(ex, BAD_REQUEST, f"{router.name} is a pipeline and takes POST; its stages: {names}")
        elif ex.bytes_in > route.body_bytes:
            self._too_large(ex, route.body_bytes)
        else:
            drop_s = router.route.drop_after_s
            drops_at = ex.deadline if drop_s is None else ex.received + drop_s
            live = LiveRequest(self, ex, route, priority, charge, drops_at)
            state.pipeline = live
            given = head.get(JSON_LENGTH)
            json_bytes = None if given is None or not given.isdigit() else int(given)
            body, coding = StageBody(ex.body, json_bytes), head.get(b"content-encoding")
            ex.discard()
            first = self._routers.get(route.stages[0].function)
            if len(route.stages) > 1 and first is not None and _speaks_v2(first) and coding is None:
                body, live.asked = without_asked(body)
            self._wake(route, self._clock())
            self._send(live, head, body, head.get(b"content-type") or b"", coding)

    def _too_large(self, ex: "Exchange", limit: int) -> None:
        ex.context.ending = Ending.REFUSED
        self._errors.fail(ex, TOO_LARGE, f"its body is larger than {limit} bytes, the pipeline's limits.body-bytes")

    def _wake(self, route: PipelineRoute, now: float) -> None:
        """Requests the start of all later stages that sleep, so that they start at once, not one after another."""
        for stage in route.stages[1:]:
            router = self._routers.get(stage.function)
            for revision in () if router is None else router.route.revisions:
                if revision.percent <= 0.0 or revision.failure is not None:
                    continue
                if any(group.replicas for group in revision.groups):
                    self._room.open_channels(revision.id, now)
                elif now - self._woken.get(revision.id, -WAKE_EVERY_S) >= WAKE_EVERY_S:
                    self._woken[revision.id] = now
                    activation = Activation(
                        function=stage.function,
                        revision=revision.id,
                        waiting=1,
                        waiting_inferences=1,
                        oldest_waiting_s=0.0,
                    )
                    self._run(Activate(activation))

    def _send(
        self, live: LiveRequest, head: RequestHead, body: StageBody, content_type: bytes, coding: bytes | None
    ) -> None:
        """Sends the body to the present stage."""
        stage, ex, now = live.stage, live.exchange, self._clock()
        outer: RequestState = ex.context
        router = self._routers.get(stage.function)
        if router is None:
            self._fail(live, NOT_SERVABLE, f"its stage {stage.function} is not deployed", ending=Ending.REFUSED)
            return
        made = stage_head(
            head,
            target=_target(stage, router, head, outer.target.strip, is_first=live.at == 0),
            content_type=content_type,
            coding=coding,
            json_bytes=body.json_bytes,
            length=len(body.data),
            trusted=ex.trusted,
        )
        inner = self._next_exchange(ex, self._app, live, made, body.data, now)
        target = Target(Call.WORK, router, 0, outer.target.v2, stage.function)
        state = RequestState(target, outer.request_id, b"x-request-id: %b\r\n" % outer.request_id)
        state.pipeline = live
        state.is_uncounted = True
        if outer.trace is not None:
            made.take_trace()
            state.trace = outer.trace.of_stage()
        inner.context = state
        inner.deadline = ex.deadline
        live.begin_answer()
        live.inner, live.inner_state = inner, state
        self._enter(inner, state, router, live)
        if inner.waiting:
            inner.charge_budget(inner.budget)

    # --- a stage answers --------------------------------------------------------------------------------------------

    def collect(self, live: LiveRequest, data: Piece) -> None:
        """A piece of a stage's answer."""
        if live.is_over or live.too_large or live.crowded:
            return
        budget = live.exchange.budget
        live.size += len(data)
        budget.used += len(data)
        live.pieces.append(bytes(data))
        live.too_large = live.size > live.route.body_bytes
        live.crowded = budget.used > budget.limit
        if live.too_large or live.crowded:
            self._collected(live)

    def _collected(self, live: LiveRequest) -> bytes:
        """Takes what was collected out of the budget, and returns it."""
        live.exchange.budget.used -= live.size
        body = b"".join(live.pieces)
        live.size = 0
        live.pieces = []
        return body

    def stage_ended(self, live: LiveRequest) -> None:
        """The answer of the present stage is whole."""
        inner, state, ex = live.inner, live.inner_state, live.exchange
        if live.is_over or inner is None or state is None:
            return
        body = self._collected(live)
        self._note(live, inner, state)
        outer: RequestState = ex.context
        if live.crowded:
            self._fail(live, QUEUE_FULL, CROWDED, ending=Ending.REFUSED, extra=b"retry-after: 1\r\n")
        elif live.too_large:
            limit = f"{live.route.body_bytes} bytes, the pipeline's limits.body-bytes"
            self._fail(live, STAGE_FAILED, f"the answer of its stage {live.stage.function} is larger than {limit}")
        elif not 200 <= live.status < 300 or live.at + 1 == len(live.route.stages):
            self._answer(live, outer, state, body)
        else:
            self._advance(live, body)

    def _note(self, live: LiveRequest, inner: "Exchange", state: RequestState) -> None:
        """Notes the time of a stage, and whether it failed."""
        name = live.stage.function
        total_s = max(0.0, inner.ended - inner.received)
        live.timing.append(timing_of(name.encode(), live.block, total_s))
        live.ran(state, inner.ended)
        pipeline = live.exchange.context.target.router
        figures = self._figures.setdefault((pipeline.name, name), StageFigures())
        figures.latency.record(total_s)
        if live.status >= 500:
            figures.failures += 1
        self._trace(inner, state, name, live.status)

    def _trace(self, inner: "Exchange", state: RequestState, name: str, status: int) -> None:
        if state.trace is not None and self._tracer is not None:
            revision = None if state.counters is None else state.counters.revision
            self._tracer.stage_ended(inner, state.trace, name, revision, status)

    def _answer(self, live: LiveRequest, outer: RequestState, state: RequestState, body: bytes) -> None:
        """Gives the client the answer of the last stage, or of one that failed."""
        ex = live.exchange
        live.is_over = True
        live.inner = live.inner_state = None
        outer.is_answered = state.is_answered
        outer.ending = state.ending
        if outer.ending is None and not state.is_answered and live.status < 500:
            outer.ending = Ending.REFUSED
        lines = [kept_lines(live.block), self._timing(live, outer)]
        if not 200 <= live.status < 300:
            lines.append(b"tidegate-stage: %b\r\n" % live.stage.function.encode())
        kind = field(live.block, b"content-type") or b"application/octet-stream"
        ex.respond(live.status, body, content_type=kind, extra=b"".join(lines))

    def _advance(self, live: LiveRequest, answer: bytes) -> None:
        """Makes the next stage's request of the present one's answer, and sends it."""
        name, routers = live.stage.function, self._routers
        before, stage = routers.get(name), live.route.stages[live.at + 1]
        after, head = routers.get(stage.function), live.exchange.head
        assert isinstance(head, RequestHead)  # ``begin`` takes no other
        given = field(live.block, JSON_LENGTH)
        body = StageBody(answer, None if given is None or not given.isdigit() else int(given))
        if before is not None and after is not None and _speaks_v2(before) and _speaks_v2(after):
            is_last = live.at + 2 == len(live.route.stages)
            try:
                body = next_body(body, stage.inputs, live.asked if is_last else {})
            except UnfitAnswerError as error:
                self._fail(live, STAGE_FAILED, f"stage {stage.function} cannot follow {name}: {error}")
                return
        live.at += 1
        kind = field(live.block, b"content-type") or b""
        self._send(live, head, body, kind, field(live.block, b"content-encoding"))

    def stage_broke(self, live: LiveRequest) -> None:
        """The answer of the present stage will never be whole."""
        if live.is_over or live.inner is None or live.inner_state is None:
            return
        self._collected(live)
        live.status = 502
        self._note(live, live.inner, live.inner_state)
        message = f"a replica of its stage {live.stage.function} broke off amid its answer"
        self._fail(live, STAGE_FAILED, message, executed=Executed.UNKNOWN)

    def _fail(
        self,
        live: LiveRequest,
        kind: ErrorKind,
        message: str,
        *,
        ending: Ending | None = None,
        executed: Executed = Executed.FALSE,
        extra: bytes = b"",
    ) -> None:
        live.is_over = True
        live.inner = live.inner_state = None
        ex = live.exchange
        ex.context.ending = ending
        stage = b"tidegate-stage: %b\r\n" % live.stage.function.encode()
        if live.was_bound and executed is Executed.FALSE:
            executed = Executed.TRUE
        self._errors.fail(ex, kind, message, executed=executed, extra=extra + stage)

    def _timing(self, live: LiveRequest, outer: RequestState) -> bytes:
        return b"x-request-id: %b\r\nserver-timing: %b\r\n" % (outer.request_id, b", ".join(live.timing))

    # --- the client's exchange ends first ---------------------------------------------------------------------------

    def leave(self, live: LiveRequest) -> None:
        """Ends the present stage of a request whose client is not to be answered from here."""
        if live.is_over:
            return
        live.is_over = True
        self._collected(live)
        inner, state = live.inner, live.inner_state
        live.inner = live.inner_state = None
        if inner is not None:
            if state is not None:
                live.ran(state, self._clock())
            inner.client_gone()
            if state is not None:
                self._trace(inner, state, live.stage.function, 0)

    # --- reports ----------------------------------------------------------------------------------------------------

    def expose(self, into: metrics.Exposition, worker: str) -> None:
        """Adds the present values to a scrape."""
        for (pipeline, stage), figures in self._figures.items():
            labels = (worker, pipeline, stage)
            into.add_histogram(metrics.GATEWAY_STAGE_LATENCY, labels, figures.latency)
            into.add(metrics.GATEWAY_STAGE_FAILURES, labels, figures.failures)

    def __repr__(self) -> str:
        return f"<Pipelines {len(self._figures)} stages>"


def _limit(router: FunctionRouter) -> int:
    return max(route.body_bytes for route in (router.pipelines or {}).values())


def _speaks_v2(router: FunctionRouter) -> bool:
    return router.route.protocol == Speaks.V2


def _target(stage: Stage, router: FunctionRouter, head: RequestHead, strip: int, *, is_first: bool) -> bytes:
    """Returns the target of a stage's request."""
    if stage.path is not None:
        return stage.path.encode()
    if _speaks_v2(router):
        models = router.route.models or (router.name,)
        return b"/v2/models/%b/infer" % quote(models[0], safe="").encode()
    if is_first:
        return stripped(head.target, strip) if strip else head.target
    return b"/"
