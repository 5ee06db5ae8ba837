"""An answer of one stage becomes the request of the next."""

import json

import pytest

from tidegate.gateway.pipelines.bodies import StageBody, UnfitAnswerError, next_body, without_asked


def v2(*outputs: object, **more: object) -> StageBody:
    return StageBody(json.dumps({"model_name": "m", "outputs": outputs, **more}).encode())


X = {"name": "x", "shape": [1], "datatype": "FP32", "data": [1.5]}
Y = {"name": "y", "shape": [2], "datatype": "INT64", "data": [1, 2]}


def test_all_outputs_become_inputs_of_their_names_and_the_id_stays() -> None:
    found = next_body(v2(X, Y, id="r1", model_version="3"), (), {})
    assert json.loads(found.data) == {"inputs": [X, Y], "id": "r1"} and found.json_bytes is None


def test_inputs_are_filled_by_the_outputs_that_are_named() -> None:
    found = next_body(v2(X, Y), (("image", "y"), ("mask", "y")), {"outputs": [{"name": "z"}]})
    wanted = {"inputs": [{**Y, "name": "image"}, {**Y, "name": "mask"}], "outputs": [{"name": "z"}]}
    assert json.loads(found.data) == wanted


def test_binary_tensors_keep_their_bytes_in_the_new_order() -> None:
    first = {"name": "a", "shape": [4], "datatype": "UINT8", "parameters": {"binary_data_size": 4}}
    second = {"name": "b", "shape": [2], "datatype": "UINT8", "parameters": {"binary_data_size": 2}}
    text = json.dumps({"outputs": [first, Y, second]}).encode()
    found = next_body(StageBody(text + b"AAAABB", len(text)), (("q", "b"), ("p", "a"), ("y", "y")), {})
    assert found.json_bytes is not None
    document = json.loads(found.data[: found.json_bytes])
    assert [each["name"] for each in document["inputs"]] == ["q", "p", "y"]
    assert found.data[found.json_bytes :] == b"BBAAAA"


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (StageBody(b"<html>"), "not JSON"),
        (StageBody(b"[]"), "no list of outputs"),
        (v2({"shape": [1]}), "no name"),
        (v2({"name": "a", "parameters": {"binary_data_size": -1}}), "no valid binary_data_size"),
        (v2({"name": "a", "parameters": {"binary_data_size": 3}}), "0 bytes of tensors, and its outputs state 3"),
        (v2(X), "no output 'y'; it has x"),
    ],
)
def test_an_answer_that_does_not_fit_says_why(answer: StageBody, why: str) -> None:
    with pytest.raises(UnfitAnswerError, match=why):
        next_body(answer, (("i", "y"),), {})


def test_what_the_client_asks_about_the_answer_is_for_the_last_stage() -> None:
    body = StageBody(
        json.dumps({"id": "1", "inputs": [X], "outputs": [{"name": "z"}], "parameters": {"p": 1}}).encode()
    )
    first, asked = without_asked(body)
    assert json.loads(first.data) == {"id": "1", "inputs": [X]}
    assert asked == {"outputs": [{"name": "z"}], "parameters": {"p": 1}}
    for same in (StageBody(b'{"inputs": []}'), StageBody(b'"outputs"'), StageBody(b'{"outputs"')):
        assert without_asked(same) == (same, {})
