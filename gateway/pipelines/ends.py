"""The end of a pipeline's request: an answer, an error, or a client that is not answered from here."""

from collections.abc import Callable

from tidegate.aio.proxy.kinds import as_call
from tidegate.errors import ErrorKind, Executed
from tidegate.gateway.answers.errors import ErrorResponses
from tidegate.gateway.counting.outcomes import Ending
from tidegate.gateway.pipelines.calls import code_of, error_of
from tidegate.gateway.pipelines.figures import PipelineFigures
from tidegate.gateway.pipelines.heads import field, kept_lines
from tidegate.gateway.pipelines.live_request import LiveRequest, StageAnswer
from tidegate.gateway.routing.request_state import RequestState


class PipelineEnds:
    """Ends requests of pipelines, each once. The stages that wait or run then end with the request."""

    __slots__ = ("_clock", "_errors", "_figures")

    def __init__(self, errors: ErrorResponses, figures: PipelineFigures, *, clock: Callable[[], float]) -> None:
        self._errors = errors
        self._figures = figures
        self._clock = clock

    def answer(self, live: LiveRequest, answer: StageAnswer) -> None:
        """Gives the client the answer of the last stage, or of one that failed; of a gRPC call that of one that
        failed."""
        ex, outer = live.exchange, live.exchange.context
        self._end(live)
        lines = [kept_lines(answer.block), self._timing(live, outer)]
        if live.failed:
            lines.append(b"tidegate-stage: %b\r\n" % live.failed.encode())
        if ex.is_rpc:
            text = error_of(answer.status, answer.block, answer.body.data)
            as_call(ex).end(code_of(answer.status), text, extra=b"".join(lines[1:]))
            return
        kind = field(answer.block, b"content-type") or b"application/octet-stream"
        ex.respond(answer.status, answer.body.data, content_type=kind, extra=b"".join(lines))

    def reply(self, live: LiveRequest, message: bytes) -> None:
        """Gives the client of a gRPC call the message that the last answer has become; times are in the trailers."""
        call, outer = as_call(live.exchange), live.exchange.context
        self._end(live)
        call.reply(message, self._timing(live, outer))

    def fail(
        self,
        live: LiveRequest,
        kind: ErrorKind,
        message: str,
        *,
        ending: Ending | None = None,
        executed: Executed = Executed.FALSE,
        extra: bytes = b"",
    ) -> None:
        """Gives the client an error that names the stage (``live.failed``)."""
        self._end(live)
        ex = live.exchange
        ex.context.ending = ending
        stage = b"tidegate-stage: %b\r\n" % live.failed.encode()
        if live.was_bound and executed is Executed.FALSE:
            executed = Executed.TRUE
        self._errors.fail(ex, kind, message, executed=executed, extra=extra + stage)

    def leave(self, live: LiveRequest) -> None:
        """Ends the stages of a request whose client is not to be answered from here."""
        if not live.is_over:
            self._end(live)

    def _timing(self, live: LiveRequest, outer: RequestState) -> bytes:
        now = self._clock()
        live.note(b"answer;dur=%.3f" % (1e3 * max(0.0, now - live.noted_until)), now)
        entries = b", ".join([*live.timing, b"total;dur=%.3f" % (1e3 * max(0.0, now - live.entered))])
        return b"x-request-id: %b\r\nserver-timing: %b\r\n" % (outer.request_id, entries)

    def _end(self, live: LiveRequest) -> None:
        """No further stage begins, those that wait or run end, and nothing is kept any more."""
        live.is_over = True
        live.drop_all()
        for at in list(live.running):
            stage = live.running[at]
            stage.collected()
            inner, state = stage.inner, stage.state
            stage.inner = stage.state = None
            if inner is None:
                continue
            if state is not None:
                live.ran(state, self._clock())
            inner.client_gone()
            if state is not None:
                self._figures.withdrawn(stage, inner, state)

    def __repr__(self) -> str:
        return "<PipelineEnds>"
