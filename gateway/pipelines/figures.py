"""Metrics and spans of the stages of pipelines on one gateway worker."""

from collections.abc import Collection
from typing import TYPE_CHECKING

from tidegate import metrics
from tidegate.gateway.pipelines.live_request import LiveStage
from tidegate.gateway.routing.request_state import RequestState
from tidegate.gateway.tracing.trace import Tracer
from tidegate.histogram import Histogram

if TYPE_CHECKING:
    from tidegate.aio.proxy.exchange import Exchange


class StageFigures:
    """Latencies and failures of one stage of a pipeline on this worker."""

    __slots__ = ("failures", "latency")

    def __init__(self) -> None:
        self.failures = 0
        self.latency = Histogram()


class PipelineFigures:
    """The figures of all stages, and their spans if anything is traced."""

    __slots__ = ("_found", "_tracer")

    def __init__(self, tracer: Tracer | None) -> None:
        self._tracer = tracer
        self._found: dict[tuple[str, str], StageFigures] = {}
        """By pipeline and stage."""

    def keep_only(self, known: Collection[tuple[str, str]]) -> None:
        """Drops the figures of all other stages."""
        for pair in self._found.keys() - known:
            del self._found[pair]

    def ended(self, stage: LiveStage, inner: "Exchange", state: RequestState, total_s: float) -> None:
        """A stage has answered or broken off."""
        figures = self._found.setdefault((stage.live.pipeline, stage.stage_name), StageFigures())
        figures.latency.record(total_s)
        if stage.status >= 500:
            figures.failures += 1
        self._trace(inner, state, stage.stage_name, stage.status)

    def withdrawn(self, stage: LiveStage, inner: "Exchange", state: RequestState) -> None:
        """A stage ended with its request, before it had answered: it has a span and counts nowhere."""
        self._trace(inner, state, stage.stage_name, 0)

    def _trace(self, inner: "Exchange", state: RequestState, name: str, status: int) -> None:
        if state.trace is not None and self._tracer is not None:
            revision = None if state.counters is None else state.counters.revision
            self._tracer.stage_ended(inner, state.trace, name, revision, status)

    def expose(self, into: metrics.Exposition, worker: str) -> None:
        """Adds the present values to a scrape."""
        for (pipeline, stage), figures in self._found.items():
            labels = (worker, pipeline, stage)
            into.add_histogram(metrics.GATEWAY_STAGE_LATENCY, labels, figures.latency)
            into.add(metrics.GATEWAY_STAGE_FAILURES, labels, figures.failures)

    def __repr__(self) -> str:
        return f"<PipelineFigures of {len(self._found)} stages>"
