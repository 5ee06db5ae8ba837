"""ModelInfer's messages: every datatype in both kinds of contents, and every fault with REST's words."""

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.runtime.errors import RequestError
from tidegate.runtime.protocols import grpc_messages, tensors
from tidegate.runtime.protocols.tensors import Tensor
from tidegate.runtime.protocols.v2 import InferRequest
from tidegate.wire.grpc.messages import MODEL_INFER_REQUEST, MODEL_INFER_RESPONSE

SAMPLES: dict[str, list[Any]] = {
    "BOOL": [True, False],
    "UINT8": [0, 255],
    "UINT16": [0, 65535],
    "UINT32": [0, (1 << 32) - 1],
    "UINT64": [0, (1 << 64) - 1],
    "INT8": [-128, 127],
    "INT16": [-32768, 32767],
    "INT32": [-(1 << 31), (1 << 31) - 1],
    "INT64": [-(1 << 63), (1 << 63) - 1],
    "FP32": [1.5, -2.25],
    "FP64": [1e300, -2.25],
    "BYTES": [b"\xff\x00", b""],
}
RAW_ONLY = {"FP16": [1.5, -2.0], "BF16": [1.0, -2.0]}


def read(**fields: Any) -> InferRequest:
    """Through the wire, as a client's message comes."""
    return grpc_messages.read_infer(grpc_messages.fields_of(MODEL_INFER_REQUEST.encode(fields)))


def entry(**fields: Any) -> dict[str, Any]:
    return {"name": "x", "datatype": "FP32", "shape": [2], "contents": {"fp32_contents": [1, 2]}} | fields


def answer(request: InferRequest, *results: Tensor) -> dict[str, Any]:
    """The answer as its client reads it."""
    fields = grpc_messages.answer_infer("m", request, {tensor.name: tensor for tensor in results})
    return MODEL_INFER_RESPONSE.decode(MODEL_INFER_RESPONSE.encode(fields))


@pytest.mark.parametrize("datatype", SAMPLES)
def test_typed_contents_and_a_typed_answer(datatype: str) -> None:
    field = grpc_messages.CONTENTS_OF[datatype]
    request = read(inputs=[entry(datatype=datatype, contents={field: SAMPLES[datatype]})], id="7")
    (tensor,) = request.inputs
    assert tensors.to_flat(tensor) == SAMPLES[datatype]
    assert (request.id, request.rows, request.binary_default) == ("7", 2, False)
    response = answer(request, Tensor("y", datatype, (2,), tensor.data))
    assert "raw_output_contents" not in response
    (output,) = response["outputs"]
    assert (output["name"], output["datatype"], output["shape"]) == ("y", datatype, [2])
    assert [bytes(item) if datatype == "BYTES" else item for item in output["contents"][field]] == SAMPLES[datatype]


@pytest.mark.parametrize(("datatype", "values"), [*SAMPLES.items(), *RAW_ONLY.items()])
def test_raw_contents_and_a_raw_answer(datatype: str, values: list[Any]) -> None:
    given_data = tensors.to_binary(Tensor("x", datatype, (2,), tensors.pack(datatype, values)))
    request = read(inputs=[{"name": "x", "datatype": datatype, "shape": [2]}], raw_input_contents=[given_data])
    (tensor,) = request.inputs
    assert tensors.to_flat(tensor) == values
    response = answer(request, Tensor("y", datatype, (2,), tensor.data))
    assert [bytes(raw) for raw in response["raw_output_contents"]] == [bytes(given_data)]
    assert "contents" not in response["outputs"][0]


def test_an_answer_with_a_datatype_that_has_no_typed_contents_is_raw() -> None:
    request = read(inputs=[entry()])
    half = Tensor("h", "FP16", (1,), struct.pack("<e", 1.5))
    response = answer(request, Tensor("y", "FP32", (1,), struct.pack("<f", 2.5)), half)
    assert [bytes(raw) for raw in response["raw_output_contents"]] == [struct.pack("<f", 2.5), struct.pack("<e", 1.5)]


def test_outputs_come_as_they_were_asked_for() -> None:
    request = read(inputs=[entry()], outputs=[{"name": "z"}])
    y, z = (Tensor(name, "FP32", (1,), struct.pack("<f", 1)) for name in "yz")
    assert [output["name"] for output in answer(request, y, z)["outputs"]] == ["z"]
    with pytest.raises(RequestError, match="unknown output 'z': this model's outputs are y"):
        answer(request, y)


def test_parameters_are_read_whatever_their_kind() -> None:
    kinds = {
        "a": {"bool_param": True},
        "b": {"int64_param": -1},
        "c": {"string_param": "s"},
        "d": {"double_param": 0.5},
    }
    assert read(inputs=[entry()], parameters=kinds).parameters == {"a": True, "b": -1, "c": "s", "d": 0.5}


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({}, "'inputs' must be a list with at least one tensor"),
        ({"inputs": [entry(name="")]}, "every input needs a 'name'"),
        ({"inputs": [entry(datatype="FLOAT")]}, "'datatype' must be one of"),
        ({"inputs": [entry(shape=[-1])]}, "none negative"),
        ({"inputs": [entry(shape=[3])]}, "shape [3] takes 3 elements, got 2"),
        ({"inputs": [entry(contents={})]}, "shape [2] takes 2 elements, got 0"),
        ({"inputs": [entry(datatype="INT8", contents={"int_contents": [1, 128]})]}, "out of the range of INT8"),
        ({"inputs": [entry(datatype="UINT8", contents={"uint_contents": [1, 256]})]}, "out of the range of UINT8"),
        ({"inputs": [entry(contents={"int_contents": [1, 2]})]}, "FP32 contents belong into fp32_contents, not into"),
        ({"inputs": [entry(datatype="FP16", contents={})]}, "FP16 has no typed contents: send raw_input_contents"),
        ({"inputs": [entry()], "raw_input_contents": [bytes(8)]}, "both contents and raw_input_contents"),
        ({"inputs": [entry(), entry()], "raw_input_contents": [b""]}, "has 1 entries for 2 inputs"),
        ({"inputs": [entry(contents={})], "raw_input_contents": [b"123"]}, "FP32 [2] takes 8 bytes, got 3"),
        ({"inputs": [entry(), entry()]}, "'x' is given twice in 'inputs'"),
        ({"inputs": [entry()], "outputs": [{"name": ""}]}, "every output needs a 'name'"),
        ({"inputs": [entry()], "outputs": [{"name": "y"}, {"name": "y"}]}, "'y' is given twice in 'outputs'"),
        ({"inputs": [entry()], "parameters": {"k": {}}}, "parameter 'k' of request has no value"),
        (
            {"inputs": [entry(parameters={"shared_memory_region": {"string_param": "r"}})]},
            "input 'x': the shared memory extension is not offered",
        ),
        (
            {"inputs": [entry()], "outputs": [{"name": "y", "parameters": {"classification": {"int64_param": 3}}}]},
            "the classification extension is not offered",
        ),
    ],
)
def test_faults_are_named(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(RequestError) as caught:
        read(**fields)
    assert says in caught.value.message
    assert caught.value.status == 400


@given(st.binary(max_size=300))
def test_any_bytes_are_a_request_or_a_request_error(data: bytes) -> None:
    try:
        grpc_messages.read_infer(grpc_messages.fields_of(data))
    except RequestError as error:
        assert error.message
