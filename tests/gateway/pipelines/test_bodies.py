"""An answer of one stage becomes the request of the next."""

import json
import struct
from typing import Any

import pytest

from tidegate.gateway.pipelines.bodies import (
    StageBody,
    UnfitAnswerError,
    holds,
    is_named_at_its_start,
    next_body,
    tensors,
    with_model_name,
    without_asked,
)
from tidegate.records.pipeline import Comparison, Condition


def v2(*outputs: object, **more: object) -> StageBody:
    return StageBody(json.dumps({"model_name": "m", "outputs": outputs, **more}).encode())


def after(answer: StageBody, inputs: tuple[tuple[str, str], ...], asked: dict[str, Any]) -> StageBody:
    return next_body({"a": tensors(answer)}, inputs, asked)


X = {"name": "x", "shape": [1], "datatype": "FP32", "data": [1.5]}
Y = {"name": "y", "shape": [2], "datatype": "INT64", "data": [1, 2]}
DEEP = b'{"outputs":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
"""JSON that is nested more deeply than the parser goes."""


def test_all_outputs_become_inputs_of_their_names_and_the_id_stays() -> None:
    found = after(v2(X, Y, id="r1", model_version="3"), (), {})
    assert json.loads(found.data) == {"inputs": [X, Y], "id": "r1"} and found.json_bytes is None


def test_inputs_are_filled_by_the_outputs_that_are_named() -> None:
    found = after(v2(X, Y), (("image", "y"), ("mask", "y")), {"outputs": [{"name": "z"}]})
    wanted = {"inputs": [{**Y, "name": "image"}, {**Y, "name": "mask"}], "outputs": [{"name": "z"}]}
    assert json.loads(found.data) == wanted


def test_binary_tensors_keep_their_bytes_in_the_new_order() -> None:
    first = {"name": "a", "shape": [4], "datatype": "UINT8", "parameters": {"binary_data_size": 4}}
    second = {"name": "b", "shape": [2], "datatype": "UINT8", "parameters": {"binary_data_size": 2}}
    text = json.dumps({"outputs": [first, Y, second]}).encode()
    found = after(StageBody(text + b"AAAABB", len(text)), (("q", "b"), ("p", "a"), ("y", "y")), {})
    assert found.json_bytes is not None
    document = json.loads(found.data[: found.json_bytes])
    assert [each["name"] for each in document["inputs"]] == ["q", "p", "y"]
    assert found.data[found.json_bytes :] == b"BBAAAA"


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (StageBody(b"<html>"), "not JSON"),
        (StageBody(DEEP), "not JSON"),
        (StageBody(b"[]"), "no list of outputs"),
        (v2(X, X), "two outputs of the name 'x'"),
        (v2({"shape": [1]}), "no name"),
        (v2({"name": "a", "parameters": {"binary_data_size": -1}}), "no valid binary_data_size"),
        (v2({"name": "a", "parameters": {"binary_data_size": 3}}), "0 bytes of tensors, and its outputs state 3"),
        (v2(X), "no output 'y'; it has x"),
    ],
)
def test_an_answer_that_does_not_fit_says_why(answer: StageBody, why: str) -> None:
    with pytest.raises(UnfitAnswerError, match=why):
        after(answer, (("i", "y"),), {})


def test_what_the_client_asks_about_the_answer_is_for_the_last_stage() -> None:
    body = StageBody(
        json.dumps({"id": "1", "inputs": [X], "outputs": [{"name": "z"}], "parameters": {"p": 1}}).encode()
    )
    first, asked = without_asked(body)
    assert json.loads(first.data) == {"id": "1", "inputs": [X]}
    assert asked == {"outputs": [{"name": "z"}], "parameters": {"p": 1}}
    for same in (StageBody(b'{"inputs": []}'), StageBody(b'"outputs"'), StageBody(b'{"outputs"'), StageBody(DEEP)):
        assert without_asked(same) == (same, {})


def test_what_json_cannot_be_written_of_is_unfit() -> None:
    nested: list[Any] = []
    for _ in range(100_000):
        nested = [nested]
    with pytest.raises(UnfitAnswerError, match="nested too deeply"):
        after(v2(X), (), {"parameters": nested})


# --- answers that join ----------------------------------------------------------------------------------------------


def test_answers_join_by_the_names_of_their_outputs() -> None:
    found = next_body({"a": tensors(v2(X, id="r")), "b": tensors(v2(Y))}, (), {})
    assert json.loads(found.data) == {"inputs": [X, Y], "id": "r"}


def test_an_output_of_two_answers_must_be_named_by_its_stage() -> None:
    both = {"a": tensors(v2(X)), "b": tensors(v2({**X, "data": [2.5]}))}
    for inputs in ((), (("i", "x"),)):
        with pytest.raises(UnfitAnswerError, match="'x' is in the answers of a and b"):
            next_body(both, inputs, {})
    found = json.loads(next_body(both, (("i", "b.x"), ("j", "a.x")), {}).data)
    assert [(each["name"], each["data"]) for each in found["inputs"]] == [("i", [2.5]), ("j", [1.5])]


def test_inputs_of_stages_that_were_left_out_are_left_out_and_others_come_from_the_request() -> None:
    request = tensors(StageBody(json.dumps({"inputs": [Y]}).encode()), "inputs")
    inputs = (("i", "a.x"), ("j", "b.x"), ("k", "request.y"))
    found = next_body({"a": tensors(v2(X))}, inputs, {}, others={"request": request}, skipped={"b"})
    assert [each["name"] for each in json.loads(found.data)["inputs"]] == ["i", "k"]


def test_binary_and_json_answers_join_in_one_binary_request() -> None:
    text = json.dumps(
        {"outputs": [{"name": "b", "shape": [2], "datatype": "UINT8", "parameters": {"binary_data_size": 2}}]}
    )
    split = tensors(StageBody(text.encode() + b"BB", len(text)))
    found = next_body({"a": tensors(v2(X)), "s": split}, (), {})
    assert found.json_bytes is not None and found.data[found.json_bytes :] == b"BB"


def test_answers_become_one_answer() -> None:
    found = next_body({"a": tensors(v2(X)), "b": tensors(v2(Y))}, (), {"model_name": "p"}, key="outputs")
    assert json.loads(found.data) == {"outputs": [X, Y], "model_name": "p"}


# --- conditions -----------------------------------------------------------------------------------------------------


def output(datatype: str, data: object) -> StageBody:
    return v2({"name": "x", "shape": [1], "datatype": datatype, "data": data})


def binary(datatype: str, data: bytes) -> StageBody:
    tensor = {"name": "x", "shape": [1], "datatype": datatype, "parameters": {"binary_data_size": len(data)}}
    text = json.dumps({"outputs": [tensor]}).encode()
    return StageBody(text + data, len(text))


@pytest.mark.parametrize(
    ("test", "values", "body", "is_true"),
    [
        ("is", ("latin", "both"), output("BYTES", [["latin"]]), True),
        ("is", ("latin",), output("BYTES", ["kanji"]), False),
        ("not", ("latin",), output("BYTES", ["kanji"]), True),
        ("is", ("1",), output("INT64", [1]), True),
        ("is", ("1.0",), output("FP32", [1]), True),
        ("is", ("true",), output("BOOL", [True]), True),
        ("is", ("1",), output("BOOL", [True]), False),
        ("above", ("2.5",), output("INT64", [3]), True),
        ("above", ("3",), output("INT64", [3]), False),
        ("below", ("3",), output("FP32", [[2.5, 9]]), True),
        ("is", ("latin",), binary("BYTES", struct.pack("<I", 5) + b"latin"), True),
        ("above", ("0.5",), binary("FP32", struct.pack("<f", 0.75)), True),
        ("is", ("7",), binary("INT64", struct.pack("<qq", 7, 8)), True),
    ],
)
def test_a_condition_compares_the_first_value_of_an_output(
    test: str, values: tuple[str, ...], body: StageBody, is_true: bool
) -> None:
    condition = Condition(field="x", test=Comparison(test), values=values)
    assert holds(condition, {"a": (body, True)}) is is_true


def test_a_condition_reads_a_path_of_other_answers() -> None:
    body = StageBody(json.dumps({"page": {"lines": [{"script": "latin"}]}}).encode())
    found = Condition(field="page.lines.0.script", test=Comparison.IS, values=("latin",))
    assert holds(found, {"a": (StageBody(b"no JSON"), False), "b": (body, False)})


@pytest.mark.parametrize(
    ("body", "is_v2", "why"),
    [
        (output("FP32", []), True, "no value 'x'"),
        (v2(Y), True, "no value 'x'"),
        (binary("FP32", b"1"), True, "no value 'x'"),
        (StageBody(b'{"x": [1]}'), False, "no value 'x'"),
        (StageBody(DEEP), False, "no value 'x'"),
        (StageBody(DEEP), True, "not JSON"),
        (output("BYTES", ["many"]), True, "'x' in its answer is no number"),
    ],
)
def test_a_condition_without_its_value_says_so(body: StageBody, is_v2: bool, why: str) -> None:
    with pytest.raises(UnfitAnswerError, match=why):
        holds(Condition(field="x", test=Comparison.ABOVE, values=("1",)), {"a": (body, is_v2)})


def test_an_answer_gets_the_pipelines_name_and_nothing_else_changes() -> None:
    rest = b', "outputs": [], "parameters": {"model_name": "m"}}'
    for start in (b'{"model_name": "m"', b' {"id":"a\\"b", "model_name" : "m\\""', b'{"id": null,"model_name":"m"'):
        body = StageBody(start + rest)
        assert is_named_at_its_start(body)
        found = with_model_name(body, "p")
        assert found.json_bytes is None and found.data.endswith(rest)
        assert json.loads(found.data) == {**json.loads(body.data), "model_name": "p"}
    split = with_model_name(StageBody(b'{"model_name":"mm"}abc', 19), "p")
    assert split == StageBody(b'{"model_name":"p"}abc', 18)


def test_a_name_behind_other_keys_is_found_by_reading_all() -> None:
    body = StageBody(b'{"outputs":[],"model_name":"m"}xyz', 31)
    assert not is_named_at_its_start(body)
    assert with_model_name(body, "p") == StageBody(b'{"outputs":[],"model_name":"p"}xyz', 31)


@pytest.mark.parametrize(
    "data",
    [b"", b"text", b'{"outputs": []}', b'["model_name"]', b'{"a": {"model_name": "m"}}', b'{"a" "model_name":', DEEP],
)
def test_any_other_answer_stays_as_it_is(data: bytes) -> None:
    body = StageBody(data)
    assert with_model_name(body, "p") is body
