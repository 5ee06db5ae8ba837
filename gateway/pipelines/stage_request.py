"""The request of a stage, and the answer to the client, made from the answers so far. Pure."""

from collections.abc import Callable, Mapping
from typing import NamedTuple
from urllib.parse import quote

from tidegate.function import Protocol
from tidegate.gateway.pipelines.bodies import StageBody, UnfitAnswerError, content_type_of, holds, next_body, tensors
from tidegate.gateway.pipelines.heads import JSON_LENGTH, field
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


def request_of(live: LiveRequest, at: int, speaks_v2: SpeaksV2) -> StageRequest | None:
    """Returns the request of a stage, all before which are settled; None if the stage is left out. Raises
    UnfitAnswerError."""
    graph, stage, head = live.graph, live.graph.stages[at], live.head
    before = {each: answer for each in graph.waits[at] if (answer := live.answers.get(each)) is not None}
    if graph.waits[at] and not before:
        return None
    if stage.when is not None:
        answers = {
            graph.stages[each].function: (answer.body, speaks_v2(graph.stages[each])) for each, answer in before.items()
        }
        if not holds(stage.when, answers):
            return None
    asked = live.asked if graph.is_last(at) else {}
    if not graph.waits[at] and not stage.inputs:
        body = live.body if graph.is_last(at) else live.first
        assert body is not None  # kept until all stages that begin with it have begun
        return StageRequest(body, head.get(b"content-type") or b"", head.get(b"content-encoding"))
    is_one = len(before) == 1 and not stage.inputs
    sources = [graph.stages[each] for each in before]
    if is_one and not (speaks_v2(stage) and all(map(speaks_v2, sources))):
        (answer,) = before.values()
        coding = field(answer.block, b"content-encoding")
        return StageRequest(answer.body, field(answer.block, b"content-type") or b"", coding)
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


def answer_of(live: LiveRequest, ends: Mapping[int, StageAnswer], speaks_v2: SpeaksV2) -> StageAnswer:
    """Returns the answer to the client, which is that of the only end or all of them joined. Raises
    UnfitAnswerError."""
    if len(ends) == 1:
        (answer,) = ends.values()
        return answer
    stages = live.graph.stages
    if not all(speaks_v2(stages[at]) for at in ends):
        raise UnfitAnswerError("only answers of functions that speak v2 become one")
    found = {stages[at].function: tensors(answer.body) for at, answer in ends.items()}
    body = next_body(found, (), {"model_name": live.pipeline}, key="outputs")
    lines = b"content-type: %b\r\n" % content_type_of(body)
    if body.json_bytes is not None:
        lines += b"%b: %d\r\n" % (JSON_LENGTH, body.json_bytes)
    return StageAnswer(200, lines, body)
