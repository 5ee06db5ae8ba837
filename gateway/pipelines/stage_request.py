"""The request of a stage, and the answer to the client, made from the answers so far. Pure."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple
from urllib.parse import quote

from tidegate.function import Protocol
from tidegate.gateway.pipelines.bodies import (
    StageBody,
    UnfitAnswerError,
    content_type_of,
    holds,
    is_named_at_its_start,
    next_body,
    tensors,
    text_bytes,
    with_model_name,
)
from tidegate.gateway.pipelines.calls import message_of
from tidegate.gateway.pipelines.heads import JSON_LENGTH, field, without
from tidegate.gateway.pipelines.live_request import LiveRequest, StageAnswer
from tidegate.gateway.routing.function import FunctionRouter
from tidegate.gateway.routing.match import stripped
from tidegate.records.pipeline import REQUEST, Stage
from tidegate.wire.http1.request_head import RequestHead

SpeaksV2 = Callable[[Stage], bool]
"""Returns whether the function of a stage speaks the Open Inference Protocol."""


class StageRequest(NamedTuple):
    """The body of a stage's request, and the fields of its head that describe it."""

    body: StageBody
    content_type: bytes
    coding: bytes | None
    """Its content-encoding."""


class Source(NamedTuple):
    """An answer that a stage's request may be made of."""

    stage: str
    """Its function."""
    answer: StageAnswer
    is_v2: bool


class StageFacts(NamedTuple):
    """What the request of a stage is made of: plain data, which another process can read."""

    stage: Stage
    is_v2: bool
    before: tuple[Source, ...]
    """The answers of the stages right before it that have run."""
    others: tuple[Source, ...]
    """Other answers that its inputs may name."""
    first: StageRequest | None
    """The client's request, as a stage gets it that begins with it; None if this one does not."""
    request: StageBody | None
    """The client's body, if the inputs may name it."""
    asked: Mapping[str, Any]
    skipped: frozenset[str]
    """Functions of the stages that were left out."""

    @property
    def is_joined(self) -> bool:
        """A V2 request is made for the stage; False: it gets an answer or a request as it is."""
        if self.first is not None:
            return False
        is_one = len(self.before) == 1 and not self.stage.inputs
        return not is_one or (self.is_v2 and self.before[0].is_v2)

    @property
    def text_bytes(self) -> int:
        """Bytes of JSON that are read to make it."""
        total = 0
        if self.is_joined:
            total += sum(text_bytes(each.answer.body) for each in self.before + self.others)
            total += text_bytes(self.request) if self.request is not None else 0
        elif self.stage.when is not None:
            total += sum(text_bytes(each.answer.body) for each in self.before)
        return total


def facts_of(live: LiveRequest, at: int, speaks_v2: SpeaksV2) -> StageFacts | None:
    """Returns the facts of a stage, all before which are settled; None if none of these has run."""
    graph, stage = live.graph, live.graph.stages[at]

    def sources(indices: Iterable[int]) -> tuple[Source, ...]:
        found = ((graph.stages[each], live.answers.get(each)) for each in indices)
        return tuple(Source(each.function, answer, speaks_v2(each)) for each, answer in found if answer is not None)

    before = sources(graph.waits[at])
    if graph.waits[at] and not before:
        return None
    first = None
    if not graph.waits[at] and not stage.inputs:
        body = live.body if graph.is_last(at) else live.first
        assert body is not None  # kept until all stages that begin with it have begun
        head = live.head
        first = StageRequest(body, head.get(b"content-type") or b"", head.get(b"content-encoding"))
    return StageFacts(
        stage=stage,
        is_v2=speaks_v2(stage),
        before=before,
        others=sources(sorted(graph.sources[at] - set(graph.waits[at]))),
        first=first,
        request=live.body if any(given.startswith(f"{REQUEST}.") for _, given in stage.inputs) else None,
        asked=live.asked if graph.is_last(at) else {},
        skipped=frozenset(graph.stages[each].function for each in live.skipped),
    )


def request_of(facts: StageFacts) -> StageRequest | None:
    """Returns the request of a stage; None if the stage is left out. Raises UnfitAnswerError."""
    stage = facts.stage
    if stage.when is not None and not holds(
        stage.when, {each.stage: (each.answer.body, each.is_v2) for each in facts.before}
    ):
        return None
    if facts.first is not None:
        return facts.first
    if not facts.is_joined:
        answer = facts.before[0].answer
        coding = field(answer.block, b"content-encoding")
        return StageRequest(answer.body, field(answer.block, b"content-type") or b"", coding)
    named = {each.stage: tensors(each.answer.body) for each in facts.before}
    others = {each.stage: tensors(each.answer.body) for each in facts.others}
    if facts.request is not None:
        others[REQUEST] = tensors(facts.request, "inputs")
    body = next_body(named, stage.inputs, facts.asked, others=others, skipped=facts.skipped)
    return StageRequest(body, content_type_of(body), None)


def target_of(stage: Stage, router: FunctionRouter, head: RequestHead, strip: int, *, is_first: bool) -> bytes:
    """Returns the target of a stage's request."""
    if stage.path is not None:
        return stage.path.encode()
    if router.route.protocol == Protocol.V2:
        models = router.route.models or (router.name,)
        return b"/v2/models/%b/infer" % quote(models[0], safe="").encode()
    if is_first:
        return stripped(head.target, strip) if strip else head.target
    return b"/"


class AnswerFacts(NamedTuple):
    """What the client's answer is made of: plain data."""

    pipeline: str
    ends: tuple[Source, ...]
    """The answers after which nothing ran."""
    is_rpc: bool

    @property
    def text_bytes(self) -> int:
        """Bytes of JSON that are read to make it."""
        if len(self.ends) == 1 and not self.is_rpc:
            (end,) = self.ends
            if not end.is_v2 or is_named_at_its_start(end.answer.body):
                return 0
        return sum(text_bytes(each.answer.body) for each in self.ends)


def answer_facts_of(live: LiveRequest, speaks_v2: SpeaksV2) -> AnswerFacts:
    """Returns the facts of the client's answer; no stage runs or will run."""
    stages = live.graph.stages
    ends = (Source(stages[at].function, answer, speaks_v2(stages[at])) for at, answer in live.ends().items())
    return AnswerFacts(live.pipeline, tuple(ends), live.exchange.is_rpc)


def answer_of(facts: AnswerFacts) -> StageAnswer | bytes:
    """Returns the answer to the client, which is that of the only end or all of them joined; of a gRPC call its
    message. Raises UnfitAnswerError."""
    answer = _joined_answer(facts)
    return message_of(answer.body, facts.pipeline) if facts.is_rpc else answer


def _joined_answer(facts: AnswerFacts) -> StageAnswer:
    if len(facts.ends) == 1:
        (end,) = facts.ends
        return _of_pipeline(end.answer, facts.pipeline) if end.is_v2 else end.answer
    if not all(each.is_v2 for each in facts.ends):
        raise UnfitAnswerError("only answers of functions that speak v2 become one")
    found = {each.stage: tensors(each.answer.body) for each in facts.ends}
    body = next_body(found, (), {"model_name": facts.pipeline}, key="outputs")
    return StageAnswer(200, b"content-type: %b\r\n" % content_type_of(body) + _length_line(body), body)


def _of_pipeline(answer: StageAnswer, pipeline: str) -> StageAnswer:
    """Returns the answer of a stage with the pipeline as its model."""
    block = answer.block
    body = answer.body if field(block, b"content-encoding") else with_model_name(answer.body, pipeline)
    if body is answer.body:
        return answer
    return StageAnswer(answer.status, without(block, JSON_LENGTH) + _length_line(body), body)


def _length_line(body: StageBody) -> bytes:
    return b"" if body.json_bytes is None else b"%b: %d\r\n" % (JSON_LENGTH, body.json_bytes)
