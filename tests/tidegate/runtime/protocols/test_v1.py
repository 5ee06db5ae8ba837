"""KServe's V1: instances in, predictions out."""

import json
import struct
from typing import Any

import pytest

from tidegate.runtime.errors import RequestError
from tidegate.runtime.protocols.tensors import Tensor, to_flat
from tidegate.runtime.protocols.v1 import parse, render
from tidegate.runtime.protocols.v2 import InferRequest, ModelSpec, TensorSpec

ONE = ModelSpec("test", (TensorSpec("x", "FP32", (-1, 2)),), None)
TWO = ModelSpec("test", (TensorSpec("x", "FP32", (-1, 2)), TensorSpec("text", "BYTES", (-1,))), None)
ANY = ModelSpec("test", None, None)


def read(instances: Any, spec: ModelSpec) -> InferRequest:
    return parse(json.dumps({"instances": instances, "signature_name": "x"}).encode(), spec)


def shown(found: InferRequest) -> list[tuple[str, str, tuple[int, ...], list[Any]]]:
    return [(each.name, each.datatype, each.shape, to_flat(each)) for each in found.inputs]


@pytest.mark.parametrize("instances", [[[1, 2], [3, 4]], [{"x": [1, 2]}, {"x": [3, 4]}]])
def test_the_rows_of_an_only_input_need_no_name(instances: list[Any]) -> None:
    found = read(instances, ONE)
    assert shown(found) == [("x", "FP32", (2, 2), [1.0, 2.0, 3.0, 4.0])]
    assert found.rows == 2


def test_scalars_are_rows_too() -> None:
    spec = ModelSpec("test", (TensorSpec("text", "BYTES", (-1,)),), None)
    assert shown(read(["a", "é"], spec)) == [("text", "BYTES", (2,), [b"a", "é".encode()])]


def test_several_inputs_are_objects() -> None:
    found = read([{"text": "a", "x": [1, 2]}, {"x": [3, 4], "text": "b"}], TWO)
    assert shown(found) == [("x", "FP32", (2, 2), [1, 2, 3, 4]), ("text", "BYTES", (2,), [b"a", b"b"])]


def test_a_model_that_takes_any_inputs_gets_their_datatype_from_the_values() -> None:
    assert shown(read([{"a": 1, "b": "x"}], ANY)) == [("a", "INT64", (1,), [1]), ("b", "BYTES", (1,), [b"x"])]
    assert shown(read([[1.5], [2]], ANY)) == [("instances", "FP64", (2, 1), [1.5, 2.0])]


@pytest.mark.parametrize(
    ("document", "spec", "says"),
    [
        ([], ONE, "must be a JSON object"),
        ({}, ONE, "'instances' must be a list with at least one instance$"),
        ({"inputs": [[1, 2]]}, ONE, "at least one instance, not 'inputs'$"),
        ({"instances": []}, ONE, "at least one instance"),
        ({"instances": {"x": 1}}, ONE, "at least one instance"),
        ({"instances": [{"x": [1, 2]}, [1, 2]]}, ONE, r"instances\[1\] is no object"),
        ({"instances": [{"x": [1, 2]}, {}]}, ONE, r"instances\[1\]: input 'x' is missing"),
        ({"instances": [{"x": [1, 2], "z": 1}]}, ONE, r"instances\[0\]: unknown input 'z': this model's inputs are x"),
        ({"instances": [[1, 2], [1]]}, ONE, "differ in length"),
        ({"instances": [[1, "a"]]}, ONE, "'a' is not a FP32 value"),
        ({"instances": [[1, {}]]}, ONE, "is not a FP32 value"),
        ({"instances": [[1, 2]]}, TWO, "must be an object with this model's inputs: x, text"),
        ({"instances": [{}]}, ANY, "names no input"),
        ({"instances": [None]}, ANY, "must be a string"),
    ],
)
def test_faults(document: Any, spec: ModelSpec, says: str) -> None:
    with pytest.raises(RequestError, match=says) as caught:
        parse(json.dumps(document).encode(), spec)
    assert caught.value.status == 400


def floats(name: str, shape: tuple[int, ...], *values: float) -> Tensor:
    return Tensor(name, "FP32", shape, struct.pack(f"<{len(values)}f", *values))


def test_predictions_have_a_row_for_each_instance() -> None:
    request = read([[1, 2], [3, 4]], ONE)
    one = {"y": floats("y", (2, 2), 1, 2, 3, float("nan"))}
    assert json.loads(render(request, one)) == {"predictions": [[1, 2], [3, None]]}
    assert json.loads(render(request, {"y": floats("y", (2,), 1, 2)})) == {"predictions": [1, 2]}
    both = one | {"label": Tensor("label", "BYTES", (2,), [b"a", b"b"])}
    assert json.loads(render(request, both)) == {
        "predictions": [{"y": [1, 2], "label": "a"}, {"y": [3, None], "label": "b"}]
    }


@pytest.mark.parametrize("shape", [(), (1, 3), (3,)])
def test_an_output_that_is_no_row_for_each_instance_is_the_models_fault(shape: tuple[int, ...]) -> None:
    request = read([[1, 2], [3, 4]], ONE)
    with pytest.raises(RequestError, match="not one row for each of 2 instances") as caught:
        render(request, {"y": floats("y", shape, *([1.0] * (3 if shape else 1)))})
    assert caught.value.status == 500
