"""Conversations about large bodies of pipelines: another process converts them, and the request waits for it."""

import json
from typing import Any

import pytest

from tests.gateway.pipelines.test_graphs import World, outputs, stages
from tests.gateway.pipelines.test_pipelines import KEPT, ask, ended, opened
from tests.support.worlds.fake_grpc_call import INFER, call
from tests.support.worlds.gateway_chain import Door
from tidegate.gateway.pipelines.conversions import LARGE_BYTES, ConversionLostError
from tidegate.records.pipeline import Comparison, Condition, Stage
from tidegate.wire.grpc.messages import MODEL_INFER_REQUEST, MODEL_INFER_RESPONSE
from tidegate.wire.http2 import grpc_fields

COUNT = LARGE_BYTES // 4
"""Values whose text is larger than what is converted at once."""
LIMIT = 1 << 20


def tensor(name: str, count: int = COUNT) -> dict[str, Any]:
    return {"name": name, "shape": [1, count], "datatype": "FP32", "data": [1.25] * count}


def answer(count: int = COUNT, name: str = "y") -> bytes:
    return json.dumps({"outputs": [tensor(name, count)]}).encode()


def given() -> bytes:
    """A large request that says nothing about its answer, so that nothing is taken out of it."""
    return json.dumps({"inputs": [tensor("x")]}).encode()


def large_door(**settings: Any) -> Door:
    return opened(body_bytes=LIMIT, **settings)


def test_each_conversion_of_a_large_body_waits_for_the_other_process() -> None:
    door = large_door()
    client = ask(door, body=json.dumps({"inputs": [tensor("x")], "outputs": [{"name": "y"}]}).encode())
    assert len(door.conversions) == 1 and not door.stages, "what it asks of the last stage is taken out of it"
    door.now = 100.5
    door.convert()
    (first,) = door.stages
    assert "outputs" not in json.loads(first.body)
    first.gets_answer(101.0, 200, KEPT, body=answer())
    assert len(door.conversions) == 1 and len(door.stages) == 1
    door.now = 101.5
    door.convert()
    second = door.stages[1]
    sent = json.loads(second.body)
    assert sent["inputs"] == [tensor("x")] and sent["outputs"] == [{"name": "y"}]
    door.now = 102.0
    second.gets_answer(102.0, 200, KEPT, body=answer())
    assert client.log[-1] == "answer 200" and client.answer == answer(), "passed on as it is"
    assert not door.conversions
    (line,) = (each for each in client.extra.split(b"\r\n") if each.startswith(b"server-timing: "))
    entries = (each.split(b";dur=") for each in line.removeprefix(b"server-timing: ").split(b", "))
    found = {name.decode(): float(ms) for name, ms in entries}
    assert [found[name] for name in ("entry", "a", "b", "answer", "total")] == pytest.approx([500, 500, 1000, 0, 2000])
    assert client.budget.used == 0


def test_a_small_body_is_converted_at_once() -> None:
    door = large_door()
    client = ask(door, body=json.dumps({"inputs": [tensor("x", 9)], "outputs": []}).encode())
    door.stages[0].gets_answer(100.1, 200, KEPT, body=answer(9))
    door.stages[1].gets_answer(100.2, 200, KEPT, body=answer(9))
    assert client.log[-1] == "answer 200" and not door.conversions


@pytest.mark.parametrize("kind", ["fp32_contents", "int64_contents"])
def test_typed_contents_of_a_call_are_read_and_written_by_the_other_process(kind: str) -> None:
    door = large_door()
    is_float = kind == "fp32_contents"
    datatype, value = ("FP32", 1.25) if is_float else ("INT64", -3)
    given = {"name": "x", "datatype": datatype, "shape": [1, COUNT], "contents": {kind: [value] * COUNT}}
    client = call(door, INFER, MODEL_INFER_REQUEST.encode({"model_name": "p", "inputs": [given]}))
    assert len(door.conversions) == 1 and not door.stages
    door.convert()
    named = {"name": "y", "datatype": datatype, "shape": [1, COUNT], "data": [value] * COUNT}
    door.stages[0].gets_answer(100.1, 200, KEPT, body=json.dumps({"outputs": [named]}).encode())
    door.convert()
    door.stages[1].gets_answer(100.2, 200, KEPT, body=json.dumps({"outputs": [named]}).encode())
    assert not client.messages and len(door.conversions) == 1
    door.convert()
    (message,) = client.messages
    (output,) = MODEL_INFER_RESPONSE.decode(message)["outputs"]
    assert list(output["contents"][kind]) == [value] * COUNT and client.code == grpc_fields.OK


def test_raw_contents_of_a_call_are_cut_at_once_however_large() -> None:
    door = large_door()
    entry = {"name": "x", "datatype": "UINT8", "shape": [1, 10 * LARGE_BYTES]}
    message = {"model_name": "p", "inputs": [entry], "raw_input_contents": [bytes(10 * LARGE_BYTES)]}
    call(door, INFER, MODEL_INFER_REQUEST.encode(message))
    assert door.stages and not door.conversions


@pytest.mark.parametrize("leaves", [True, False])
def test_a_request_that_ends_meanwhile_goes_on_nowhere(leaves: bool) -> None:
    door = large_door()
    client = ask(door, body=given())
    client.log.clear()
    door.stages[0].gets_answer(100.1, 200, KEPT, body=answer())
    if leaves:
        client.client_leaves(100.2)
    else:
        client.expires(client.deadline)
        assert client.log[-1] == "answer 504" and "in stage b" in client.error["error"]
    door.convert()
    assert len(door.stages) == 1 and client.budget.used == 0
    counts = door.core.room.counts("b-00001", door.now)
    assert counts is not None and counts.waiting == 0


def test_a_client_that_leaves_before_its_request_is_opened_starts_no_stage() -> None:
    door = large_door()
    client = ask(door, body=json.dumps({"inputs": [tensor("x")], "outputs": []}).encode())
    assert door.wanted[-1]()
    client.client_leaves(100.2)
    assert not door.wanted[-1](), "the other process leaves it out"
    door.convert()
    assert not door.stages and ended(door, "p")[2:] == (0, 0)


def test_stages_beside_each_other_are_made_one_by_one_and_each_once() -> None:
    world = World(stages(inputs=(("l", "latin.text"), ("k", "kanji.text"))), body_bytes=LIMIT)
    door = world.door
    world.answers("detect", outputs(("script", "both"), ("text", "x" * LARGE_BYTES)))
    assert world.names == ["detect"] and len(door.conversions) == 2, "both conditions read its answer"
    door.convert()
    assert world.names == ["detect", "latin"] and len(door.conversions) == 1
    world.answers("latin", outputs(("text", "rome")))
    assert world.names == ["detect", "latin"] and len(door.conversions) == 1
    door.convert()
    world.answers("kanji", outputs(("text", "nihon")))
    assert world.inputs("page") == {"l": "rome", "k": "nihon"} and not door.conversions
    world.answers("page", outputs(("text", "both")))
    assert world.client.log[-1] == "answer 200" and world.client.budget.used == 0


def test_a_condition_on_a_large_answer_leaves_its_stage_out_and_the_rest_goes_on() -> None:
    condition = Condition(field="y", test=Comparison.IS, values=("2",))
    door = large_door(stages=(Stage(function="a"), Stage(function="b", when=condition)))
    client = ask(door, body=given())
    door.stages[0].gets_answer(100.1, 200, KEPT, body=answer())
    assert not client.log[-1].startswith("answer")
    door.convert()
    assert client.log[-1] == "answer 200" and client.answer == answer() and len(door.stages) == 1


def test_what_cannot_be_converted_is_answered_as_with_small_bodies() -> None:
    door = large_door()
    client = ask(door, body=given())
    wrong = b'{"outputs": [{"name": "z", "data": [%b]}]}' % b",".join([b"1"] * LARGE_BYTES)
    door.stages[0].gets_answer(100.1, 200, KEPT, body=wrong)
    door.convert()
    assert client.log[-1] == "answer 502" and "no output 'y'; it has z" in client.error["error"]


def test_a_process_that_is_lost_is_a_503_that_may_be_repeated() -> None:
    door = large_door()
    opening = ask(door, body=json.dumps({"inputs": [tensor("x")], "outputs": []}).encode())
    lost(door)
    assert opening.log[-1] == "answer 503" and opening.error["executed"] == "false"
    between = ask(door, body=given())
    door.stages[0].gets_answer(100.1, 200, KEPT, body=answer())
    lost(door)
    assert between.log[-1] == "answer 503" and between.error["executed"] == "true"
    assert "has ended: killed" in between.error["error"] and between.budget.used == 0


def lost(door: Door) -> None:
    _, done = door.conversions.pop()
    done(ConversionLostError("the process that converts large bodies has ended: killed"))
