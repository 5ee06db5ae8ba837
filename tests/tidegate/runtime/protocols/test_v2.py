"""Open Inference Protocol V2 bodies: every fault is named, every answer is what was asked for."""

import json
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.runtime.errors import RequestError
from tidegate.runtime.protocols import v2 as protocol
from tidegate.runtime.protocols.tensors import Tensor
from tidegate.runtime.protocols.v2 import InferRequest, ModelSpec, OutputRequest, TensorSpec

PAIR = ModelSpec(
    platform="test",
    inputs=(TensorSpec("a", "FP32", (-1, 2), ("n", None)), TensorSpec("b", "INT64", (-1,), ("n",))),
    outputs=(TensorSpec("y", "FP32", (-1,)), TensorSpec("z", "BYTES", (-1,))),
)


def body(**fields: Any) -> bytes:
    document = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [2], "data": [1, 2]}]}
    document.update(fields)
    return json.dumps(document).encode()


def entry(**fields: Any) -> dict[str, Any]:
    return {"name": "x", "datatype": "FP32", "shape": [2], "data": [1, 2]} | fields


def without(key: str) -> dict[str, Any]:
    return {name: value for name, value in entry().items() if name != key}


def refusal(raw: bytes, header_length: str | None = None) -> str:
    with pytest.raises(RequestError) as caught:
        protocol.parse_infer(raw, header_length)
    assert caught.value.status == 400
    return caught.value.message


def test_a_json_request() -> None:
    request = protocol.parse_infer(
        body(id="r1", parameters={"k": 1}, outputs=[{"name": "y"}, {"name": "z", "parameters": {"binary_data": True}}]),
        None,
    )
    assert [(t.name, t.datatype, t.shape, t.data) for t in request.inputs] == [
        ("x", "FP32", (2,), struct.pack("<2f", 1, 2))
    ]
    assert (request.id, request.parameters) == ("r1", {"k": 1})
    assert request.outputs == [OutputRequest("y", False), OutputRequest("z", True)]
    assert request.rows == 2


def test_a_binary_request_takes_its_tensors_from_behind_the_json() -> None:
    inputs = [
        {"name": "a", "datatype": "UINT8", "shape": [3], "parameters": {"binary_data_size": 3}},
        {"name": "b", "datatype": "INT8", "shape": [1], "data": [-1]},
        {"name": "c", "datatype": "BYTES", "shape": [1], "parameters": {"binary_data_size": 6}},
    ]
    head = body(inputs=inputs, parameters={"binary_data_output": True})
    request = protocol.parse_infer(head + b"abc" + b"\x02\x00\x00\x00hi", str(len(head)))
    assert [bytes(t.data) if not isinstance(t.data, list) else t.data for t in request.inputs] == [
        b"abc",
        b"\xff",
        [b"hi"],
    ]
    assert request.binary_default


def test_an_output_may_differ_from_the_default() -> None:
    outputs = [{"name": "y", "parameters": {"binary_data": False}}, {"name": "z"}]
    request = protocol.parse_infer(body(outputs=outputs, parameters={"binary_data_output": True}), None)
    assert request.outputs == [OutputRequest("y", False), OutputRequest("z", True)]


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        (b"", "the request is not JSON"),
        (b"\xff", "the request is not JSON"),
        (b"[" * 100_000, "the JSON is nested too deeply"),
        (b'{"a": ' + b"9" * 5000 + b"}", "the request is not JSON"),
        (b"[]", "the request must be a JSON object"),
        (b"{}", "'inputs' must be a list with at least one tensor"),
        (body(inputs=[]), "'inputs' must be a list with at least one tensor"),
        (body(inputs=[1]), "the input must be a JSON object"),
        (body(inputs=[without("name")]), "every input needs a 'name'"),
        (body(inputs=[entry(name="")]), "every input needs a 'name'"),
        (body(inputs=[without("datatype")]), "input 'x': 'datatype' must be one of BF16, BOOL"),
        (body(inputs=[entry(datatype="FLOAT")]), "'datatype' must be one of"),
        (body(inputs=[entry(datatype=[])]), "'datatype' must be one of"),
        (body(inputs=[without("shape")]), "'shape' must be a list of at most 32"),
        (body(inputs=[entry(shape=[-1])]), "'shape' must be a list of whole numbers, none negative"),
        (body(inputs=[entry(shape=[2.0])]), "'shape' must be a list of whole numbers"),
        (body(inputs=[entry(shape=[True])]), "'shape' must be a list of whole numbers"),
        (body(inputs=[entry(shape=[1 << 70])]), "'shape' must be a list of whole numbers"),
        (body(inputs=[entry(shape=[0, 1 << 40], data=[])]), "holds nothing, with dimensions that are too large"),
        (body(inputs=[entry(shape=[1 << 40])]), "takes 1099511627776 elements, got 2"),
        (body(inputs=[without("data")]), "has neither 'data' nor the parameter 'binary_data_size'"),
        (body(inputs=[entry(), entry()]), "'x' is given twice in 'inputs'"),
        (body(inputs=[entry(parameters=[])]), "the 'parameters' of input 'x' must be a JSON object"),
        (body(inputs=[entry(parameters={"k": []})]), "parameter 'k' of input 'x' must be a string"),
        (body(inputs=[entry(parameters={"binary_data_size": 8})]), "both 'data' and 'binary_data_size'"),
        (body(inputs=[entry(parameters={"shared_memory_region": "r"})]), "shared memory extension is not offered"),
        (body(id=5), "'id' must be a string"),
        (body(parameters=5), "the 'parameters' of request must be a JSON object"),
        (body(parameters={"binary_data_output": 1}), "'binary_data_output' of request must be true or false"),
        (body(outputs={}), "'outputs' must be a list"),
        (body(outputs=["y"]), "the output must be a JSON object"),
        (body(outputs=[{}]), "every output needs a 'name'"),
        (body(outputs=[{"name": "y"}, {"name": "y"}]), "'y' is given twice in 'outputs'"),
        (body(outputs=[{"name": "y", "parameters": {"binary_data": "yes"}}]), "must be true or false"),
        (body(outputs=[{"name": "y", "parameters": {"classification": 3}}]), "classification extension"),
        (b'{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": [NaN]}]}', "NaN is not JSON: send"),
        (b'{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": [-Infinity]}]}', "-Infinity is not"),
        (b'{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": [1e999]}]}', "out of the range"),
    ],
    ids=range(38),
)
def test_a_faulty_request_is_reported_why(raw: bytes, says: str) -> None:
    assert says in refusal(raw)


@pytest.mark.parametrize(
    ("size", "tail", "length", "says"),
    [
        (8, b"1234567", None, "binary_data_size is 8, but 0 bytes follow the JSON"),
        (8, b"1234567", "exact", "binary_data_size is 8, but 7 bytes follow the JSON"),
        (8, b"123456789", "exact", "1 bytes of binary data belong to no input"),
        (7, b"1234567", "exact", "FP32 [2] takes 8 bytes, got 7"),
        (-1, b"", "exact", "must be a whole number, not negative"),
        (True, b"", "exact", "must be a whole number, not negative"),
        (8, b"12345678", "99999", "Inference-Header-Content-Length is 99999, the body has"),
        (8, b"12345678", "-1", "Inference-Header-Content-Length is not a number"),
        (8, b"12345678", "\u00b2", "Inference-Header-Content-Length is not a number"),
        (8, b"12345678", "9" * 19, "Inference-Header-Content-Length is not a number"),
    ],
    ids=range(10),
)
def test_binary_sizes_must_add_up(size: int, tail: bytes, length: str | None, says: str) -> None:
    head = body(inputs=[without("data") | {"parameters": {"binary_data_size": size}}])
    raw = head + tail if length else head
    assert says in refusal(raw, str(len(head)) if length == "exact" else length)


def make(*inputs: Tensor, outputs: list[OutputRequest] | None = None) -> InferRequest:
    return InferRequest(list(inputs), outputs=outputs)


def tensor(name: str, datatype: str, *shape: int) -> Tensor:
    return Tensor(name, datatype, shape, b"")


@pytest.mark.parametrize(
    ("request_", "says"),
    [
        (make(tensor("a", "FP32", 1, 2), tensor("q", "INT64", 1)), "unknown input 'q': this model's inputs are a, b"),
        (make(tensor("a", "FP32", 1, 2)), "input 'b' is missing"),
        (make(tensor("a", "FP64", 1, 2), tensor("b", "INT64", 1)), "input 'a' must be FP32, got FP64"),
        (make(tensor("a", "FP32", 1, 3), tensor("b", "INT64", 1)), "must have the shape [-1, 2] (-1: any), got [1, 3]"),
        (make(tensor("a", "FP32", 2), tensor("b", "INT64", 1)), "must have the shape [-1, 2] (-1: any), got [2]"),
        (make(tensor("a", "FP32", 3, 2), tensor("b", "INT64", 2)), "dimension 'n' is 2 here and 3 in another input"),
        (
            make(tensor("a", "FP32", 1, 2), tensor("b", "INT64", 1), outputs=[OutputRequest("w", False)]),
            "unknown output 'w': this model's outputs are y, z",
        ),
    ],
)
def test_a_request_that_does_not_fit_the_model_is_reported_why(request_: InferRequest, says: str) -> None:
    with pytest.raises(RequestError) as caught:
        protocol.check_inputs(request_, PAIR)
    assert says in caught.value.message


def test_a_request_that_fits_passes() -> None:
    good = make(tensor("b", "INT64", 3), tensor("a", "FP32", 3, 2), outputs=[OutputRequest("z", True)])
    protocol.check_inputs(good, PAIR)


def test_a_model_may_bound_the_batch_of_one_request() -> None:
    small = ModelSpec("test", None, None, max_rows=2)
    protocol.check_inputs(make(tensor("a", "FP32", 2)), small)
    with pytest.raises(RequestError, match="a batch of 3 is larger than this model's largest, 2"):
        protocol.check_inputs(make(tensor("a", "FP32", 3)), small)


def test_answers_are_json_or_binary_as_asked() -> None:
    results = {
        "y": Tensor("y", "FP32", (2,), struct.pack("<2f", 1, 2)),
        "z": Tensor("z", "BYTES", (1,), [b"hi"]),
    }
    text, length = protocol.render_infer("m", InferRequest([], id="r1"), results)
    assert length is None
    assert json.loads(text) == {
        "model_name": "m",
        "model_version": "1",
        "id": "r1",
        "outputs": [
            {"name": "y", "datatype": "FP32", "shape": [2], "data": [1.0, 2.0]},
            {"name": "z", "datatype": "BYTES", "shape": [1], "data": ["hi"]},
        ],
    }
    wanted = [OutputRequest("z", True), OutputRequest("y", True)]
    text, length = protocol.render_infer("m", InferRequest([], outputs=wanted), results)
    assert length is not None
    assert json.loads(text[:length])["outputs"] == [
        {"name": "z", "datatype": "BYTES", "shape": [1], "parameters": {"binary_data_size": 6}},
        {"name": "y", "datatype": "FP32", "shape": [2], "parameters": {"binary_data_size": 8}},
    ]
    assert text[length:] == b"\x02\x00\x00\x00hi" + struct.pack("<2f", 1, 2)


def test_nulls_for_numbers_that_json_lacks_are_counted() -> None:
    results = {"y": Tensor("y", "FP32", (2,), struct.pack("<2f", 1, float("nan")))}
    text, _ = protocol.render_infer("m", InferRequest([]), results)
    (output,) = json.loads(text)["outputs"]
    assert output["data"] == [1.0, None]
    assert output["parameters"] == {"non_finite": 1}


def test_an_output_that_the_model_did_not_give_is_refused() -> None:
    with pytest.raises(RequestError, match="unknown output 'w': this model's outputs are none"):
        protocol.render_infer("m", InferRequest([], outputs=[OutputRequest("w", False)]), {})


def test_metadata() -> None:
    assert protocol.server_metadata("1.2") == {
        "name": "tidegate",
        "version": "1.2",
        "extensions": ["binary_tensor_data", "generate", "model_configuration", "model_repository", "statistics"],
    }
    assert protocol.model_metadata("m", PAIR) == {
        "name": "m",
        "versions": ["1"],
        "platform": "test",
        "inputs": [
            {"name": "a", "datatype": "FP32", "shape": [-1, 2]},
            {"name": "b", "datatype": "INT64", "shape": [-1]},
        ],
        "outputs": [
            {"name": "y", "datatype": "FP32", "shape": [-1]},
            {"name": "z", "datatype": "BYTES", "shape": [-1]},
        ],
    }


def test_what_keeps_a_model_busy() -> None:
    assert [protocol.concurrency_for(size) for size in (1, 2, 32, 1000)] == [1, 4, 64, 128]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda children: (
        st.lists(children, max_size=4)
        | st.dictionaries(
            st.sampled_from(["inputs", "outputs", "name", "datatype", "shape", "data", "parameters", "id"]),
            children,
            max_size=6,
        )
    ),
    max_leaves=20,
)


@given(
    st.one_of(json_values.map(lambda value: json.dumps(value).encode()), st.binary(max_size=200)), st.none() | st.text()
)
def test_garbage_is_refused_and_never_breaks_the_parser(raw: bytes, header_length: str | None) -> None:
    try:
        protocol.parse_infer(raw, header_length)
    except RequestError as error:
        assert error.message
