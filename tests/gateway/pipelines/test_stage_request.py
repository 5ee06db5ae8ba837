"""The request of a stage, and the answer to the client, from the answers so far."""

import json

import pytest

from tests.gateway.pipelines.test_live_request import answer, live_request
from tests.gateway.pipelines.test_pipelines import route
from tests.support.worlds.fake_exchange import request
from tidegate.gateway.pipelines import stage_request
from tidegate.gateway.pipelines.bodies import StageBody, UnfitAnswerError
from tidegate.gateway.pipelines.live_request import LiveRequest, StageAnswer
from tidegate.gateway.pipelines.stage_request import SpeaksV2, StageRequest, answer_facts_of, facts_of, target_of
from tidegate.gateway.routing.function import FunctionMemory, FunctionRouter
from tidegate.gateway.routing.match import Call, Target
from tidegate.gateway.routing.request_state import RequestState
from tidegate.records.pipeline import Comparison, Condition, Stage


def request_of(live: LiveRequest, at: int, speaks_v2: SpeaksV2) -> StageRequest | None:
    facts = facts_of(live, at, speaks_v2)
    return None if facts is None else stage_request.request_of(facts)


def v2(_: Stage) -> bool:
    return True


def plain(_: Stage) -> bool:
    return False


def outputs(name: str, value: int) -> bytes:
    return json.dumps(
        {"outputs": [{"name": name, "shape": [1], "datatype": "INT64", "data": [value]}]},
    ).encode()


def router(name: str, protocol: str = "v2") -> FunctionRouter:
    found = route(name, {"groups": ()}, protocol=protocol)
    return FunctionRouter(found, FunctionMemory(0.0))


def test_the_first_stage_gets_the_clients_body_as_it_is_described() -> None:
    live = live_request()
    live.body, live.first, live.asked = StageBody(b"whole"), StageBody(b"first"), {"outputs": []}
    assert request_of(live, 0, v2) == StageRequest(StageBody(b"first"), b"text/a", None)
    alone = live_request(Stage(function="a"))
    alone.body = alone.first = StageBody(b"whole")
    assert request_of(alone, 0, plain) == StageRequest(StageBody(b"whole"), b"text/a", None)


def test_an_answer_is_passed_on_as_it_is_unless_both_speak_v2() -> None:
    live = live_request()
    live.asked = {"outputs": [{"name": "z"}]}
    live.answers[0] = answer(outputs("y", 2), b"content-type: text/b\r\ncontent-encoding: gzip\r\n")
    for speaks in (plain, lambda stage: stage.function == "a", lambda stage: stage.function == "b"):
        assert request_of(live, 1, speaks) == StageRequest(StageBody(outputs("y", 2)), b"text/b", b"gzip")
    made = request_of(live, 1, v2)
    assert made is not None and (made.content_type, made.coding) == (b"application/json", None)
    sent = json.loads(made.body.data)
    assert [each["name"] for each in sent["inputs"]] == ["y"] and sent["outputs"] == [{"name": "z"}]


def test_a_stage_is_left_out_by_its_condition_and_behind_stages_that_were() -> None:
    condition = Condition(field="y", test=Comparison.IS, values=("2",))
    live = live_request(Stage(function="a"), Stage(function="b", when=condition), Stage(function="c"))
    live.answers[0] = answer(outputs("y", 3))
    assert request_of(live, 1, v2) is None
    live.skipped.add(1)
    assert request_of(live, 2, v2) is None
    live.answers[0] = answer(outputs("y", 2))
    assert request_of(live, 1, v2) is not None
    live.answers[0] = answer(b"no json")
    with pytest.raises(UnfitAnswerError):
        request_of(live, 1, v2)


def test_several_ends_become_one_answer_only_if_all_speak_v2() -> None:
    live = live_request(Stage(function="a"), Stage(function="b", after=("a",)), Stage(function="c", after=("a",)))
    live.exchange.context = RequestState(Target(Call.WORK, router("p"), 0, True, "p"), b"r", b"")
    live.answers = {0: None, 1: answer(outputs("y", 2)), 2: answer(outputs("z", 3))}
    joined = stage_request.answer_of(answer_facts_of(live, v2))
    assert isinstance(joined, StageAnswer)
    document = json.loads(joined.body.data)
    assert document["model_name"] == "p" and [each["name"] for each in document["outputs"]] == ["y", "z"]
    assert joined.status == 200 and joined.block == b"content-type: application/json\r\n"
    with pytest.raises(UnfitAnswerError, match="only answers of functions that speak v2"):
        stage_request.answer_of(answer_facts_of(live, lambda stage: stage.function == "b"))
    del live.answers[2]
    assert stage_request.answer_of(answer_facts_of(live, plain)) is live.answers[1]


def test_what_decides_where_a_request_is_made_is_the_text_that_is_read() -> None:
    """An answer that is passed as it is is not read, and binary tensors are not text."""
    live = live_request()
    read = len(outputs("y", 2))
    live.answers[0] = StageAnswer(200, b"", StageBody(outputs("y", 2) + bytes(1000), read))

    def text(speaks_v2: SpeaksV2, at: int = 1) -> int:
        facts = facts_of(live, at, speaks_v2)
        assert facts is not None
        return facts.text_bytes

    assert text(v2) == read and text(plain) == 0 and text(v2, 0) == 0
    live.exchange.context = RequestState(Target(Call.WORK, router("p"), 0, True, "p"), b"r", b"")
    assert answer_facts_of(live, v2).text_bytes == 0
    assert answer_facts_of(live, v2)._replace(is_rpc=True).text_bytes == read


@pytest.mark.parametrize(
    ("stage", "protocol", "strip", "is_first", "target"),
    [
        (Stage(function="a", path="/own"), "v2", 0, True, b"/own"),
        (Stage(function="a"), "v2", 0, False, b"/v2/models/a/infer"),
        (Stage(function="a"), "http", 0, True, b"/functions/p/x"),
        (Stage(function="a"), "http", 12, True, b"/x"),
        (Stage(function="a"), "http", 0, False, b"/"),
    ],
)
def test_a_stage_is_called_by_its_path_its_protocol_or_as_the_client_called(
    stage: Stage, protocol: str, strip: int, is_first: bool, target: bytes
) -> None:
    head = request("POST /functions/p/x HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n")
    assert target_of(stage, router("a", protocol), head, strip, is_first=is_first) == target


def test_the_answer_of_one_end_names_the_pipeline_as_its_model_if_it_is_v2() -> None:
    live = live_request(Stage(function="a"))
    live.exchange.context = RequestState(Target(Call.WORK, router("p"), 0, True, "p"), b"r", b"")
    lines = b"x-own: 1\r\ninference-header-content-length: 18\r\n"
    split = StageAnswer(200, lines, StageBody(b'{"model_name":"a"}abc', 18))
    live.answers = {0: split}
    found = stage_request.answer_of(answer_facts_of(live, v2))
    longer = StageBody(b'{"model_name":"pipeline"}abc', 25)
    renamed = stage_request.answer_of(answer_facts_of(live, v2)._replace(pipeline="pipeline"))
    assert found == StageAnswer(200, lines, StageBody(b'{"model_name":"p"}abc', 18))
    assert renamed == StageAnswer(200, b"x-own: 1\r\ninference-header-content-length: 25\r\n", longer)
    assert stage_request.answer_of(answer_facts_of(live, plain)) is split
    live.answers = {0: StageAnswer(200, b"content-encoding: gzip\r\n", split.body)}
    assert stage_request.answer_of(answer_facts_of(live, v2)) is live.answers[0]
    live.answers = {0: answer(b'{"outputs":[],"model_name":"a"}')}
    facts = answer_facts_of(live, v2)
    assert facts.text_bytes == 31, "it is read"
