"""Requests of pipelines on one gateway worker: each runs through its stages, one after the other or beside each other.

A stage is a request of its function: an exchange of its own, whose answer comes here instead of to a client. It arrives
in the waiting room under a revision of that function, with the age and the deadline of the whole request, so all that
holds for requests holds for stages: slots, order, retries, hedges, canaries. The client's own exchange waits meanwhile;
when it ends, its stages end. A stage begins when all stages before it have answered or were left out.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, Protocol
from urllib.parse import quote

from tidegate import metrics
from tidegate.activator.commands import Activate
from tidegate.activator.room import WaitingRoom
from tidegate.activator.state.bind import Command
from tidegate.errors import (
    BAD_REQUEST,
    NOT_SERVABLE,
    QUEUE_FULL,
    STAGE_FAILED,
    TOO_LARGE,
    ErrorKind,
    Executed,
)
from tidegate.flow.fair_queue import TenantCharge
from tidegate.function import Protocol as Speaks
from tidegate.gateway.answers.errors import ErrorResponses
from tidegate.gateway.counting.counters import RevisionCounters
from tidegate.gateway.counting.outcomes import Ending
from tidegate.gateway.pipelines.bodies import StageBody, UnfitAnswerError, holds, next_body, tensors, without_asked
from tidegate.gateway.pipelines.graph import Graph
from tidegate.gateway.pipelines.heads import JSON_LENGTH, field, kept_lines, stage_head, timing_of
from tidegate.gateway.pipelines.live_request import LiveRequest, LiveStage, StageAnswer
from tidegate.gateway.routing.function import FunctionRouter
from tidegate.gateway.routing.match import Call, Target, stripped
from tidegate.gateway.routing.request_state import RequestState
from tidegate.gateway.tracing.trace import Tracer
from tidegate.histogram import Histogram
from tidegate.records.gateway_sample import Activation
from tidegate.records.pipeline import REQUEST, Stage
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


class Pipelines:
    """All requests of pipelines on one worker."""

    __slots__ = (
        "_app",
        "_clock",
        "_enter",
        "_errors",
        "_figures",
        "_graphs",
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
        self._graphs: dict[str, Graph] = {}
        """By revision."""
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
        self._graphs.clear()
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
            graph = self._graphs.get(counters.revision)
            if graph is None:
                graph = self._graphs[counters.revision] = Graph(route)
            live = LiveRequest(self, ex, graph, priority, charge, drops_at)
            state.pipeline = live
            given = head.get(JSON_LENGTH)
            json_bytes = None if given is None or not given.isdigit() else int(given)
            live.body = live.first = StageBody(ex.body, json_bytes)
            ex.discard()
            is_plain = head.get(b"content-encoding") is None
            if len(graph.stages) > 1 and is_plain and any(map(self._speaks_v2, graph.stages)):
                live.first, live.asked = without_asked(live.body)
            if graph.keeps_request:
                live.kept = ex.bytes_in
                ex.budget.used += live.kept
            now = self._clock()
            live.timing.append(b"entry;dur=%.3f" % (1e3 * max(0.0, now - live.entered)))
            self._wake(graph, now)
            self._advance(live)

    def _speaks_v2(self, stage: Stage) -> bool:
        router = self._routers.get(stage.function)
        return router is not None and router.route.protocol == Speaks.V2

    def _too_large(self, ex: "Exchange", limit: int) -> None:
        ex.context.ending = Ending.REFUSED
        self._errors.fail(ex, TOO_LARGE, f"its body is larger than {limit} bytes, the pipeline's limits.body-bytes")

    def _wake(self, graph: Graph, now: float) -> None:
        """Requests the start of all later stages that sleep, so that they start at once, not one after another. Those
        that only some requests run start with the first of these."""
        for stage, waits, is_sure in zip(graph.stages, graph.waits, graph.are_sure, strict=True):
            if not waits or not is_sure:
                continue
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

    # --- from stage to stage ----------------------------------------------------------------------------------------

    def _advance(self, live: LiveRequest) -> None:
        """Begins every stage that can, and answers the client when none is left."""
        graph = live.graph
        for at, waits in enumerate(graph.waits):
            if live.is_over:
                return
            if at in live.running or live.is_settled(at) or not all(map(live.is_settled, waits)):
                continue
            try:
                made = self._request_of(live, at)
            except UnfitAnswerError as error:
                names = " and ".join(graph.stages[each].function for each in waits) or "the request"
                live.failed = names
                message = f"stage {graph.stages[at].function} cannot follow {names}: {error}"
                self._fail(live, STAGE_FAILED if waits else BAD_REQUEST, message)
                return
            if made is None:
                live.skipped.add(at)
            else:
                self._send(live, at, *made)
        if not (live.is_over or live.running):
            self._answer_whole(live)

    def _request_of(self, live: LiveRequest, at: int) -> tuple[StageBody, bytes, bytes | None] | None:
        """Returns (body, its type, its content-encoding) of a stage's request; None if the stage is left out. Raises
        UnfitAnswerError."""
        graph, stage, head = live.graph, live.graph.stages[at], live.exchange.head
        assert isinstance(head, RequestHead)  # ``begin`` takes no other
        before = {each: answer for each in graph.waits[at] if (answer := live.answers.get(each)) is not None}
        if graph.waits[at] and not before:
            return None
        if stage.when is not None:
            answers = {
                graph.stages[each].function: (answer.body, self._speaks_v2(graph.stages[each]))
                for each, answer in before.items()
            }
            if not holds(stage.when, answers):
                return None
        asked = live.asked if graph.is_last(at) else {}
        if not graph.waits[at] and not stage.inputs:
            body = live.body if graph.is_last(at) else live.first
            assert body is not None  # kept until all stages that begin with it have begun
            return body, head.get(b"content-type") or b"", head.get(b"content-encoding")
        is_one = len(before) == 1 and not stage.inputs
        sources = [graph.stages[each] for each in before]
        if is_one and not (self._speaks_v2(stage) and all(map(self._speaks_v2, sources))):
            (answer,) = before.values()
            coding = field(answer.block, b"content-encoding")
            return answer.body, field(answer.block, b"content-type") or b"", coding
        named = {graph.stages[each].function: tensors(answer.body) for each, answer in before.items()}
        others = {
            graph.stages[each].function: tensors(answer.body)
            for each in graph.sources[at] - before.keys()
            if (answer := live.answers.get(each)) is not None
        }
        if any(given.startswith(f"{REQUEST}.") for _, given in stage.inputs) and live.body is not None:
            others[REQUEST] = tensors(live.body, "inputs")
        skipped = {graph.stages[each].function for each in live.skipped}
        body = next_body(named, stage.inputs, asked, others=others, skipped=skipped)
        return body, b"application/json" if body.json_bytes is None else b"application/octet-stream", None

    def _send(self, live: LiveRequest, at: int, body: StageBody, content_type: bytes, coding: bytes | None) -> None:
        """Sends the body to a stage."""
        stage, ex, now = live.graph.stages[at], live.exchange, self._clock()
        outer: RequestState = ex.context
        head = ex.head
        assert isinstance(head, RequestHead)  # ``begin`` takes no other
        router = self._routers.get(stage.function)
        if router is None:
            live.failed = stage.function
            self._fail(live, NOT_SERVABLE, f"its stage {stage.function} is not deployed", ending=Ending.REFUSED)
            return
        made = stage_head(
            head,
            target=_target(stage, router, head, outer.target.strip, is_first=not live.graph.waits[at]),
            content_type=content_type,
            coding=coding,
            json_bytes=body.json_bytes,
            length=len(body.data),
            trusted=ex.trusted,
        )
        running = live.running[at] = LiveStage(self, live, at)
        inner = self._next_exchange(ex, self._app, running, made, body.data, now)
        target = Target(Call.WORK, router, 0, outer.target.v2, stage.function)
        state = RequestState(target, outer.request_id, b"x-request-id: %b\r\n" % outer.request_id)
        state.pipeline = running
        state.is_uncounted = True
        if outer.trace is not None:
            made.take_trace()
            state.trace = outer.trace.of_stage()
        inner.context = state
        inner.deadline = ex.deadline
        running.inner, running.state = inner, state
        self._enter(inner, state, router, live)
        if inner.waiting:
            inner.charge_budget(inner.budget)

    # --- a stage answers --------------------------------------------------------------------------------------------

    def collect(self, stage: LiveStage, data: Piece) -> None:
        """A piece of a stage's answer."""
        live = stage.live
        if live.is_over or stage.too_large or stage.crowded:
            return
        budget = live.exchange.budget
        stage.size += len(data)
        budget.used += len(data)
        stage.pieces.append(bytes(data))
        stage.too_large = stage.size > live.graph.route.body_bytes
        stage.crowded = budget.used > budget.limit
        if stage.too_large or stage.crowded:
            self._collected(stage)

    def _collected(self, stage: LiveStage) -> bytes:
        """Takes what was collected out of the budget, and returns it."""
        stage.live.exchange.budget.used -= stage.size
        body = b"".join(stage.pieces)
        stage.size = 0
        stage.pieces = []
        return body

    def stage_ended(self, stage: LiveStage) -> None:
        """The answer of a stage is whole."""
        live, inner, state = stage.live, stage.inner, stage.state
        if live.is_over or inner is None or state is None:
            return
        data = self._collected(stage)
        self._note(stage, inner, state)
        del live.running[stage.at]
        name = stage.stage_name
        if stage.crowded:
            live.failed = name
            self._fail(live, QUEUE_FULL, CROWDED, ending=Ending.REFUSED, extra=b"retry-after: 1\r\n")
            return
        if stage.too_large:
            live.failed = name
            limit = f"{live.graph.route.body_bytes} bytes, the pipeline's limits.body-bytes"
            self._fail(live, STAGE_FAILED, f"the answer of its stage {name} is larger than {limit}")
            return
        given = field(stage.block, JSON_LENGTH)
        body = StageBody(data, None if given is None or not given.isdigit() else int(given))
        answer = StageAnswer(stage.status, stage.block, body)
        outer: RequestState = live.exchange.context
        outer.is_answered, outer.ending = state.is_answered, state.ending
        if not 200 <= stage.status < 300:
            live.failed = name
            if outer.ending is None and not state.is_answered and stage.status < 500:
                outer.ending = Ending.REFUSED
            self._answer(live, answer)
            return
        live.answers[stage.at] = answer
        live.kept += len(data)
        live.exchange.budget.used += len(data)
        self._advance(live)
        if not live.is_over:
            self._drop_used(live)

    def _drop_used(self, live: LiveRequest) -> None:
        """Drops the answers that no further stage needs. The last stages' are for the client."""
        graph = live.graph
        if not graph.keeps_request and all(
            waits or at in live.running or live.is_settled(at) for at, waits in enumerate(graph.waits)
        ):
            live.body = live.first = None
        for at, answer in live.answers.items():
            if answer is None or graph.is_last(at):
                continue
            begun = (user in live.running or live.is_settled(user) for user in graph.users[at])
            ran = (user in live.running or user in live.answers for user in graph.follows[at])
            if all(begun) and any(ran):
                live.answers[at] = None
                size = len(answer.body.data)
                live.kept -= size
                live.exchange.budget.used -= size

    def _note(self, stage: LiveStage, inner: "Exchange", state: RequestState) -> None:
        """Notes the time of a stage, and whether it failed."""
        live, name = stage.live, stage.stage_name
        total_s = max(0.0, inner.ended - inner.received)
        live.timing.append(timing_of(name.encode(), stage.block, total_s))
        live.ran(state, inner.ended)
        figures = self._figures.setdefault((self._name(live), name), StageFigures())
        figures.latency.record(total_s)
        if stage.status >= 500:
            figures.failures += 1
        self._trace(inner, state, name, stage.status)

    @staticmethod
    def _name(live: LiveRequest) -> str:
        name: str = live.exchange.context.target.router.name
        return name

    def _trace(self, inner: "Exchange", state: RequestState, name: str, status: int) -> None:
        if state.trace is not None and self._tracer is not None:
            revision = None if state.counters is None else state.counters.revision
            self._tracer.stage_ended(inner, state.trace, name, revision, status)

    def _answer_whole(self, live: LiveRequest) -> None:
        """All stages have answered or were left out: the client gets the answers after which nothing ran."""
        graph = live.graph
        ends = {
            at: answer
            for at, answer in live.answers.items()
            if answer is not None and not any(each in live.answers for each in graph.follows[at])
        }
        if len(ends) == 1:
            (answer,) = ends.values()
            self._answer(live, answer)
            return
        names = [graph.stages[at].function for at in ends]
        try:
            if not all(self._speaks_v2(graph.stages[at]) for at in ends):
                raise UnfitAnswerError("only answers of functions that speak v2 become one")
            found = {graph.stages[at].function: tensors(answer.body) for at, answer in ends.items()}
            body = next_body(found, (), {"model_name": self._name(live)}, key="outputs")
        except UnfitAnswerError as error:
            live.failed = " and ".join(names)
            self._fail(live, STAGE_FAILED, f"the answers of {live.failed} cannot become one: {error}")
            return
        lines = b"content-type: application/json\r\n"
        if body.json_bytes is not None:
            lines = b"content-type: application/octet-stream\r\n%b: %d\r\n" % (JSON_LENGTH, body.json_bytes)
        self._answer(live, StageAnswer(200, lines, body))

    def _answer(self, live: LiveRequest, answer: StageAnswer) -> None:
        """Gives the client the answer of the last stage, or of one that failed."""
        ex, outer = live.exchange, live.exchange.context
        self._end(live)
        lines = [kept_lines(answer.block), self._timing(live, outer)]
        if live.failed:
            lines.append(b"tidegate-stage: %b\r\n" % live.failed.encode())
        kind = field(answer.block, b"content-type") or b"application/octet-stream"
        ex.respond(answer.status, answer.body.data, content_type=kind, extra=b"".join(lines))

    def stage_broke(self, stage: LiveStage) -> None:
        """The answer of a stage will never be whole."""
        live = stage.live
        if live.is_over or stage.inner is None or stage.state is None:
            return
        self._collected(stage)
        stage.status = 502
        self._note(stage, stage.inner, stage.state)
        live.running.pop(stage.at, None)
        live.failed = stage.stage_name
        message = f"a replica of its stage {live.failed} broke off amid its answer"
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
        self._end(live)
        ex = live.exchange
        ex.context.ending = ending
        stage = b"tidegate-stage: %b\r\n" % live.failed.encode()
        if live.was_bound and executed is Executed.FALSE:
            executed = Executed.TRUE
        self._errors.fail(ex, kind, message, executed=executed, extra=extra + stage)

    def _timing(self, live: LiveRequest, outer: RequestState) -> bytes:
        whole_ms = 1e3 * max(0.0, self._clock() - live.entered)
        entries = b", ".join([*live.timing, b"total;dur=%.3f" % whole_ms])
        return b"x-request-id: %b\r\nserver-timing: %b\r\n" % (outer.request_id, entries)

    # --- the request ends -------------------------------------------------------------------------------------------

    def leave(self, live: LiveRequest) -> None:
        """Ends the stages of a request whose client is not to be answered from here."""
        if not live.is_over:
            self._end(live)

    def _end(self, live: LiveRequest) -> None:
        """No further stage begins, those that wait or run end, and nothing is kept any more."""
        live.is_over = True
        budget = live.exchange.budget
        budget.used -= live.kept
        live.kept = 0
        live.body = live.first = None
        for at in list(live.running):
            stage = live.running[at]
            self._collected(stage)
            inner, state = stage.inner, stage.state
            stage.inner = stage.state = None
            if inner is None:
                continue
            if state is not None:
                live.ran(state, self._clock())
            inner.client_gone()
            if state is not None:
                self._trace(inner, state, stage.stage_name, 0)

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


def _target(stage: Stage, router: FunctionRouter, head: RequestHead, strip: int, *, is_first: bool) -> bytes:
    """Returns the target of a stage's request."""
    if stage.path is not None:
        return stage.path.encode()
    if router.route.protocol == Speaks.V2:
        models = router.route.models or (router.name,)
        return b"/v2/models/%b/infer" % quote(models[0], safe="").encode()
    if is_first:
        return stripped(head.target, strip) if strip else head.target
    return b"/"
