"""Requests of pipelines on one gateway worker: each runs through its stages, one after the other or beside each other.

A stage is a request of its function: an exchange of its own, whose answer comes here instead of to a client. It arrives
in the waiting room under a revision of that function, with the age and the deadline of the whole request, so all that
holds for requests holds for stages: slots, order, retries, hedges, canaries. The client's own exchange waits meanwhile;
when it ends, its stages end. A stage begins when all stages before it have answered or were left out.

What a stage is sent is made in ``stage_request.py``, of large bodies in another process (``conversions.py``); what a
request keeps for its stages is in ``live_request.py``, and ``ends.py`` ends it.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

from tidegate import metrics
from tidegate.activator.commands import Activate
from tidegate.activator.room import WaitingRoom
from tidegate.activator.state.bind import Command
from tidegate.aio.proxy.kinds import as_call
from tidegate.errors import BAD_REQUEST, NOT_SERVABLE, QUEUE_FULL, STAGE_FAILED, TOO_LARGE, Executed
from tidegate.flow.fair_queue import TenantCharge
from tidegate.function import Protocol as Speaks
from tidegate.gateway.answers.errors import ErrorResponses
from tidegate.gateway.answers.grpc_health import model_metadata
from tidegate.gateway.counting.counters import RevisionCounters
from tidegate.gateway.counting.outcomes import Ending
from tidegate.gateway.pipelines import calls
from tidegate.gateway.pipelines.bodies import OpenedBody, StageBody, has_asked, opened, text_bytes
from tidegate.gateway.pipelines.conversions import LARGE_BYTES, ConversionLostError, ConvertElsewhere, Unfit, converted
from tidegate.gateway.pipelines.ends import PipelineEnds
from tidegate.gateway.pipelines.figures import PipelineFigures
from tidegate.gateway.pipelines.graph import Graph
from tidegate.gateway.pipelines.heads import JSON_LENGTH, field, stage_head, timing_of
from tidegate.gateway.pipelines.live_request import LiveRequest, LiveStage, StageAnswer
from tidegate.gateway.pipelines.metadata import PipelineMetadata
from tidegate.gateway.pipelines.stage_request import (
    StageRequest,
    answer_facts_of,
    answer_of,
    facts_of,
    request_of,
    target_of,
)
from tidegate.gateway.routing.function import FunctionRouter
from tidegate.gateway.routing.match import Call, Target
from tidegate.gateway.routing.request_state import RequestState
from tidegate.gateway.tracing.trace import Tracer
from tidegate.records.gateway_sample import Activation
from tidegate.records.pipeline import Stage
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


class Pipelines:
    """All requests of pipelines on one worker."""

    __slots__ = (
        "_app",
        "_clock",
        "_convert_elsewhere",
        "_ends",
        "_enter",
        "_errors",
        "_figures",
        "_graphs",
        "_metadata",
        "_next_exchange",
        "_room",
        "_routers",
        "_run",
        "_woken",
    )  # fmt: skip

    def __init__(
        self,
        room: WaitingRoom,
        errors: ErrorResponses,
        *,
        metadata: PipelineMetadata,
        clock: Callable[[], float],
        run: Callable[[Command], None],
        next_exchange: NextExchange,
        convert_elsewhere: ConvertElsewhere,
        tracer: Tracer | None,
    ) -> None:
        """``tracer``: None if nothing is traced."""
        self._room = room
        self._errors = errors
        self._clock = clock
        self._run = run
        self._next_exchange = next_exchange
        self._convert_elsewhere = convert_elsewhere
        self._metadata = metadata
        self._routers: Mapping[str, FunctionRouter] = {}
        self._graphs: dict[str, Graph] = {}
        """By revision."""
        self._woken: dict[str, float] = {}
        self._figures = PipelineFigures(tracer)
        self._ends = PipelineEnds(errors, self._figures, clock=clock)

    def serve(self, app: "ProxyApp", enter: EnterStage) -> None:
        """Sets the application that stages run through."""
        self._app = app
        self._enter = enter

    def apply(self, routers: Mapping[str, FunctionRouter]) -> None:
        """Takes over the functions of a route table."""
        self._routers = routers
        self._metadata.apply(routers)
        self._woken.clear()
        self._graphs.clear()
        known = {
            (router.name, stage.function)
            for router in routers.values()
            for route in (router.pipelines or {}).values()
            for stage in route.stages
        }
        self._figures.keep_only(known)

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
        if ex.is_rpc and (self._is_metadata(ex, router) or self._is_refused(ex, router)):
            return True
        ex.proceed()
        if ex.is_rpc:
            as_call(ex).take_in()
        else:
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
        if ex.is_rpc and self._is_metadata(ex, router):
            return
        counters.arrived(ex.inferences, ex.head.method)
        state.group = GROUP
        route = (router.pipelines or {}).get(counters.revision)
        if route is None or self._is_refused(ex, router):
            return
        if ex.bytes_in > route.body_bytes:
            self._too_large(ex, route.body_bytes)
            return
        graph = self._graphs.get(counters.revision)
        if graph is None:
            graph = self._graphs[counters.revision] = Graph(route)
        drop_s = router.route.drop_after_s
        drops_at = ex.deadline if drop_s is None else ex.received + drop_s
        live = LiveRequest(self._ends.leave, ex, graph, priority, charge, drops_at)
        state.pipeline = live
        splits = len(graph.stages) > 1 and any(map(self._speaks_v2, graph.stages))
        if ex.is_rpc:
            call = as_call(ex)
            limits = (call.head.get(b"grpc-encoding"), route.body_bytes)
            found = (call.body, *limits, splits)
            self._convert(live, calls.typed_bytes(call.body), calls.opened, found, self._opened)
            return
        assert isinstance(ex.head, RequestHead)  # an exchange over HTTP has no other
        body = StageBody(ex.body, _json_bytes(ex.head.get(JSON_LENGTH)))
        splits = splits and ex.head.get(b"content-encoding") is None and has_asked(body)
        self._convert(live, text_bytes(body) if splits else 0, opened, (body, splits), self._opened)

    def _opened(self, live: LiveRequest, found: OpenedBody | Unfit) -> None:
        """The request's body is ready for the stages: sends it to the first ones."""
        ex, graph = live.exchange, live.graph
        head = ex.head
        if not isinstance(found, Exception) and ex.is_rpc:
            try:
                head = calls.head_of(as_call(ex).head, live.pipeline, found.body)
            except calls.UnfitCallError as error:
                found = error
        if isinstance(found, Exception):
            self._ends.leave(live)
            self._errors.fail(ex, NOT_SERVABLE if isinstance(found, ConversionLostError) else BAD_REQUEST, str(found))
            return
        if len(found.body.data) > graph.route.body_bytes:
            self._ends.leave(live)
            self._too_large(ex, graph.route.body_bytes)
            return
        assert isinstance(head, RequestHead)  # of a call it was made above
        live.head, live.body, live.first, live.asked = head, *found
        ex.discard()
        if graph.keeps_request:
            live.kept = len(found.body.data)
            ex.budget.used += live.kept
        now = self._clock()
        live.note(b"entry;dur=%.3f" % (1e3 * max(0.0, now - live.entered)), now)
        self._wake(graph, now)
        self._advance(live)

    def _is_metadata(self, ex: "Exchange", router: FunctionRouter) -> bool:
        """Answers a call for the metadata of the model."""
        if not ex.context.target.is_metadata:
            return False

        def reply(copy: bytes) -> None:
            answer = model_metadata(copy)
            if answer is not None and not ex.is_ended:
                as_call(ex).reply(answer)

        self._metadata.find(router, reply)
        return True

    def _is_refused(self, ex: "Exchange", router: FunctionRouter) -> bool:
        """Refuses what no pipeline can run."""
        head = ex.head
        if ex.is_rpc:
            refused, what = head.target != calls.INFER, "takes ModelInfer"
        else:
            is_metadata = ex.context.target.is_metadata
            refused, what = head.method != b"POST" or is_metadata or head.upgrade is not None, "takes POST"
        if refused:
            routes = (router.pipelines or {}).values()
            names = ", ".join(dict.fromkeys(stage.function for route in routes for stage in route.stages))
            self._errors.fail(ex, BAD_REQUEST, f"{router.name} is a pipeline and {what}; its stages: {names}")
        return refused

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

    def _convert(
        self,
        live: LiveRequest,
        size: int,
        function: Callable[..., Any],
        arguments: tuple[Any, ...],
        done: Callable[[LiveRequest, Any], None],
    ) -> None:
        """Runs a conversion that reads ``size`` bytes of text, at once or in another process; ``done`` gets the result
        or an :data:`Unfit`, unless the request has ended meanwhile."""
        if size <= LARGE_BYTES:
            done(live, converted(function, arguments))
            return

        def later(result: Any) -> None:
            if is_wanted():
                done(live, result)

        def is_wanted() -> bool:
            return not (live.is_over or live.exchange.is_ended)

        self._convert_elsewhere(function, arguments, later, is_wanted)

    def _advance(self, live: LiveRequest) -> None:
        """Begins every stage that can, and answers the client when none is left."""
        graph = live.graph
        for at, waits in enumerate(graph.waits):
            if live.is_over:
                return
            if live.has_begun(at) or live.is_settled(at) or not all(map(live.is_settled, waits)):
                continue
            facts = facts_of(live, at, self._speaks_v2)
            if facts is None:
                live.skipped.add(at)
            elif facts.text_bytes <= LARGE_BYTES:
                self._made(live, at, converted(request_of, (facts,)))
            else:
                live.making.add(at)
                self._convert(live, facts.text_bytes, request_of, (facts,), partial(self._made_elsewhere, at))
        if not (live.is_over or live.running or live.making):
            self._answer_whole(live)

    def _made_elsewhere(self, at: int, live: LiveRequest, made: StageRequest | Unfit | None) -> None:
        live.making.discard(at)
        self._made(live, at, made)
        if not live.is_over:
            self._advance(live)
        if not live.is_over:
            live.drop_used()

    def _made(self, live: LiveRequest, at: int, made: StageRequest | Unfit | None) -> None:
        """Sends its request to a stage, or leaves it out."""
        graph, waits = live.graph, live.graph.waits[at]
        if made is None:
            live.skipped.add(at)
        elif not isinstance(made, Exception):
            self._send(live, at, made)
        else:
            names = " and ".join(graph.stages[each].function for each in waits) or "the request"
            live.failed = names
            kind = STAGE_FAILED if waits else BAD_REQUEST
            if isinstance(made, ConversionLostError):
                kind = NOT_SERVABLE
            self._ends.fail(live, kind, f"stage {graph.stages[at].function} cannot follow {names}: {made}")

    def _send(self, live: LiveRequest, at: int, request: StageRequest) -> None:
        """Sends its request to a stage."""
        stage, ex, now = live.graph.stages[at], live.exchange, self._clock()
        outer: RequestState = ex.context
        head = live.head
        router = self._routers.get(stage.function)
        if router is None:
            live.failed = stage.function
            self._ends.fail(live, NOT_SERVABLE, f"its stage {stage.function} is not deployed", ending=Ending.REFUSED)
            return
        made = stage_head(
            head,
            target=target_of(stage, router, head, outer.target.strip, is_first=not live.graph.waits[at]),
            content_type=request.content_type,
            coding=request.coding,
            json_bytes=request.body.json_bytes,
            length=len(request.body.data),
            trusted=ex.trusted,
        )
        running = live.running[at] = LiveStage(self, live, at)
        inner = self._next_exchange(ex, self._app, running, made, request.body.data, now)
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

    def stage_ended(self, stage: LiveStage) -> None:
        """The answer of a stage is whole."""
        live, inner, state = stage.live, stage.inner, stage.state
        if live.is_over or inner is None or state is None:
            return
        data = stage.collected()
        self._note(stage, inner, state)
        del live.running[stage.at]
        name = stage.stage_name
        if stage.crowded:
            live.failed = name
            self._ends.fail(live, QUEUE_FULL, CROWDED, ending=Ending.REFUSED, extra=b"retry-after: 1\r\n")
            return
        if stage.too_large:
            live.failed = name
            limit = f"{live.graph.route.body_bytes} bytes, the pipeline's limits.body-bytes"
            self._ends.fail(live, STAGE_FAILED, f"the answer of its stage {name} is larger than {limit}")
            return
        body = StageBody(data, _json_bytes(field(stage.block, JSON_LENGTH)))
        answer = StageAnswer(stage.status, stage.block, body)
        outer: RequestState = live.exchange.context
        outer.is_answered, outer.ending = state.is_answered, state.ending
        if not 200 <= stage.status < 300:
            live.failed = name
            if outer.ending is None and not state.is_answered and stage.status < 500:
                outer.ending = Ending.REFUSED
            self._ends.answer(live, answer)
            return
        live.keep(stage.at, answer)
        self._advance(live)
        if not live.is_over:
            live.drop_used()

    def _note(self, stage: LiveStage, inner: "Exchange", state: RequestState) -> None:
        """Notes the time of a stage, and whether it failed."""
        live, total_s = stage.live, max(0.0, inner.ended - stage.began)
        live.note(timing_of(stage.stage_name.encode(), stage.block, total_s), inner.ended)
        live.ran(state, inner.ended)
        self._figures.ended(stage, inner, state, total_s)

    def _answer_whole(self, live: LiveRequest) -> None:
        """All stages have answered or were left out: the client gets the answers after which nothing ran."""
        facts = answer_facts_of(live, self._speaks_v2)
        self._convert(live, facts.text_bytes, answer_of, (facts,), self._answered)

    def _answered(self, live: LiveRequest, answer: StageAnswer | bytes | Unfit) -> None:
        """Gives the client the whole answer, or an error if there can be none."""
        if isinstance(answer, Exception):
            ends = live.ends()
            live.failed = " and ".join(live.graph.stages[at].function for at in ends)
            what = "cannot become one" if len(ends) > 1 else "cannot become a ModelInferResponse"
            kind = NOT_SERVABLE if isinstance(answer, ConversionLostError) else STAGE_FAILED
            self._ends.fail(live, kind, f"the answers of {live.failed} {what}: {answer}")
        elif isinstance(answer, bytes):
            self._ends.reply(live, answer)
        else:
            self._ends.answer(live, answer)

    def stage_broke(self, stage: LiveStage) -> None:
        """The answer of a stage will never be whole."""
        live = stage.live
        if live.is_over or stage.inner is None or stage.state is None:
            return
        stage.collected()
        stage.status = 502
        self._note(stage, stage.inner, stage.state)
        live.running.pop(stage.at, None)
        live.failed = stage.stage_name
        message = f"a replica of its stage {live.failed} broke off amid its answer"
        self._ends.fail(live, STAGE_FAILED, message, executed=Executed.UNKNOWN)

    # --- reports ----------------------------------------------------------------------------------------------------

    def expose(self, into: metrics.Exposition, worker: str) -> None:
        """Adds the present values to a scrape."""
        self._figures.expose(into, worker)

    def __repr__(self) -> str:
        return f"<Pipelines, {self._figures!r}>"


def _json_bytes(given: bytes | None) -> int | None:
    """Returns the stated length of a body's JSON; None if none is stated."""
    return None if given is None or not given.isdigit() else int(given)


def _limit(router: FunctionRouter) -> int:
    return max(route.body_bytes for route in (router.pipelines or {}).values())
