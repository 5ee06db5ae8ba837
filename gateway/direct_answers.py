"""DirectAnswers: requests that the gateway answers itself: health, models, metadata, jobs, and names of no function.

They take no slot and wake no function. What a function with an access rule would reveal is for its callers alone.
"""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from tidegate import headers
from tidegate.gateway.answers.caller_check import CallerCheck
from tidegate.gateway.answers.errors import ErrorResponses
from tidegate.gateway.answers.health import HealthResponder, asked_about, is_for_callers
from tidegate.gateway.head_fields import HeadFields
from tidegate.gateway.jobs.reader import JobReader
from tidegate.gateway.pipelines.metadata import PipelineMetadata
from tidegate.gateway.routing.match import Call, Matcher
from tidegate.gateway.routing.request_state import RequestState
from tidegate.records.route_table import RouteTable

if TYPE_CHECKING:
    from tidegate.aio.proxy.exchange import Exchange


class DirectAnswers:
    """Answers the questions that one worker gets."""

    __slots__ = (
        "_callers", "_clock", "_errors", "_fields", "_health", "_jobs", "_matcher", "_metadata", "_table",
        "is_draining",
    )  # fmt: skip

    def __init__(
        self,
        *,
        health: HealthResponder,
        metadata: PipelineMetadata,
        jobs: JobReader,
        callers: CallerCheck,
        fields: HeadFields,
        errors: ErrorResponses,
        clock: Callable[[], float],
    ) -> None:
        self._health = health
        self._metadata = metadata
        self._jobs = jobs
        self._callers = callers
        self._fields = fields
        self._errors = errors
        self._clock = clock
        self._table = RouteTable(epoch=0, number=0, workers=1)
        self._matcher = Matcher(self._table, {})
        self.is_draining = False
        """The worker is about to end, and its health calls say so."""

    def apply(self, table: RouteTable, matcher: Matcher) -> None:
        """Answers from this route table on."""
        self._table = table
        self._matcher = matcher

    def answers(self, ex: "Exchange", state: RequestState, *, has_waited: bool = False) -> bool:
        """Answers a question about health, models, metadata or a job. Returns False if only a replica can answer.

        One about models may wait for the states of their replicas (``HealthResponder.states``); ``has_waited``: it has.
        The waiting room may have opened channels for it: the caller flushes it.
        """
        if state.target.call is Call.JOB:
            self._jobs.answer(ex, state)
            return True
        router = state.target.router
        if router is not None:
            has_tag = ex.head.control(headers.TAG) is not None
            is_closed = router.access is not None and is_for_callers(state.target, has_tag=has_tag)
            if is_closed and not self._callers.allows(ex, state, router):
                return True
            if self._fields.tagged(ex, state, router) is None:
                return True
        if router is not None and router.pipelines is not None and state.target.is_metadata and state.target.model:
            self._metadata.find(router, partial(_respond, ex, state))
            return True
        if not has_waited:
            about = asked_about(state.target, self._table)
            if about and self._health.states.waits(ex, about, self._clock()):
                return True
        found = self._health.answer(state.target, ex.head.path, self._table, is_draining=self.is_draining)
        if found is None:
            return False
        status, body = found
        _respond(ex, state, body, status)
        return True

    def not_found(self, ex: "Exchange", state: RequestState) -> None:
        """No function has the name in the request. A tag that a function with an access rule does not have is answered
        to others than its callers as one that it has."""
        target = state.target
        nearest = self._matcher.nearest(target.named)
        if nearest is not None and nearest.access is not None:
            state.target = target.of(nearest)
            if not self._callers.allows(ex, state, nearest):
                return
            state.target = target
        self._errors.not_found(ex, self._matcher)

    def __repr__(self) -> str:
        return f"<DirectAnswers table {self._table.version}>"


def _respond(ex: "Exchange", state: RequestState, body: bytes, status: int = 200) -> None:
    if not ex.is_ended:
        ex.respond(status, body, extra=b"x-request-id: %b\r\n" % state.request_id)
