"""The generate extension: flat JSON in and out."""

import json
from typing import Any

import pytest

from tidegate.runtime.errors import RequestError
from tidegate.runtime.protocols.generate import parse, render
from tidegate.runtime.protocols.tensors import Tensor
from tidegate.runtime.protocols.v2 import InferRequest, ModelSpec, TensorSpec

ANY = ModelSpec("test", None, None)
DECLARED = ModelSpec("test", (TensorSpec("text_input", "BYTES", (1,)), TensorSpec("x", "FP32", (-1, 2))), None)


def read(document: Any, spec: ModelSpec = ANY) -> InferRequest:
    return parse(json.dumps(document).encode(), spec)


def test_without_declared_inputs_every_key_is_one() -> None:
    found = read({"id": "7", "a": "x", "b": [1, 2], "c": 1.5, "d": [[True], [False]], "parameters": {"n": 3}})
    assert [(each.name, each.datatype, each.shape) for each in found.inputs] == [
        ("a", "BYTES", (1,)),
        ("b", "INT64", (2,)),
        ("c", "FP64", (1,)),
        ("d", "BOOL", (2, 1)),
    ]
    assert (found.id, found.parameters) == ("7", {"n": 3})


def test_declared_inputs_have_their_datatype_and_rank_and_other_keys_are_parameters() -> None:
    found = read({"text_input": "x", "x": [1, 2], "max_tokens": 5}, DECLARED)
    assert [(each.name, each.datatype, each.shape) for each in found.inputs] == [
        ("text_input", "BYTES", (1,)),
        ("x", "FP32", (1, 2)),
    ]
    assert found.parameters == {"max_tokens": 5}


@pytest.mark.parametrize(
    ("document", "says"),
    [
        ([], "must be a JSON object"),
        ({"id": 1, "a": 1}, "'id' must be a string"),
        ({"parameters": [], "a": {}}, "must be a string, a number"),
        ({"parameters": [1], "a": 1}, "'parameters' must be a JSON object"),
        ({"a": [1, "x"]}, "must be a string, a number"),
        ({"a": [[1], [1, 2]]}, "differ in length"),
        ({"a": None}, "must be a string, a number"),
        ({}, "names no input; this model's inputs are any"),
    ],
)
def test_faults(document: Any, says: str) -> None:
    with pytest.raises(RequestError, match=says):
        read(document)


def test_a_request_without_a_declared_input() -> None:
    with pytest.raises(RequestError, match="inputs are text_input, x"):
        read({"y": 1}, DECLARED)


def test_an_answer_has_scalars_for_single_elements() -> None:
    outputs = {
        "text_output": Tensor("text_output", "BYTES", (1,), [b"hi"]),
        "y": Tensor("y", "INT64", (2,), b"\1" + b"\0" * 15),
    }
    assert json.loads(render("m", read({"a": 1, "id": "7"}), outputs)) == {
        "model_name": "m",
        "model_version": "1",
        "id": "7",
        "text_output": "hi",
        "y": [1, 0],
    }
