"""gRPC messages of pipelines: what becomes of a call's message, and what a V2 answer becomes."""

import gzip
import json
import struct
from typing import Any

import pytest

from tidegate.gateway.pipelines.bodies import StageBody, UnfitAnswerError
from tidegate.gateway.pipelines.calls import UnfitCallError, body_of, error_of, message_of
from tidegate.wire.grpc.messages import MODEL_INFER_REQUEST, MODEL_INFER_RESPONSE

MOST = 1 << 16


def framed(message: bytes, *, is_compressed: bool = False) -> bytes:
    return bytes([is_compressed]) + len(message).to_bytes(4, "big") + message


def call(**fields: Any) -> bytes:
    return MODEL_INFER_REQUEST.encode({"model_name": "p", **fields})


def tensor(name: str = "x", datatype: str = "FP32", **more: Any) -> dict[str, Any]:
    return {"name": name, "datatype": datatype, "shape": [1, 2], **more}


def read(body: StageBody) -> tuple[Any, bytes]:
    end = len(body.data) if body.json_bytes is None else body.json_bytes
    return json.loads(body.data[:end]), body.data[end:]


def test_raw_contents_are_binary_tensors_and_ask_for_the_same() -> None:
    raw = struct.pack("<2f", 1.0, 2.0)
    message = call(
        id="mine",
        parameters={"top": {"parameter_choice": "int64_param", "int64_param": 5}},
        inputs=[tensor(), tensor("y", "INT8")],
        outputs=[{"name": "z"}],
        raw_input_contents=[raw, b"\1\2"],
    )
    document, binary = read(body_of(framed(message), None, MOST))
    assert binary == raw + b"\1\2"
    assert document == {
        "id": "mine",
        "inputs": [tensor(parameters={"binary_data_size": 8}), tensor("y", "INT8", parameters={"binary_data_size": 2})],
        "parameters": {"top": 5, "binary_data_output": True},
        "outputs": [{"name": "z", "parameters": {"binary_data": True}}],
    }
    squeezed = framed(gzip.compress(message), is_compressed=True)
    assert body_of(squeezed, b"gzip", MOST) == body_of(framed(message), None, MOST)


def test_typed_contents_are_json() -> None:
    inputs = [
        tensor(contents={"fp32_contents": [1.5, -2.0]}),
        tensor("flags", "BOOL", contents={"bool_contents": [True, False]}),
        tensor("words", "BYTES", contents={"bytes_contents": ["é".encode(), b""]}),
        tensor("none", "FP64"),
    ]
    document, binary = read(body_of(framed(call(inputs=inputs)), None, MOST))
    assert [each["data"] for each in document["inputs"]] == [[1.5, -2.0], [True, False], ["é", ""], []]
    assert not binary and document.keys() == {"inputs"}


@pytest.mark.parametrize(
    ("body", "coding", "why"),
    [
        (b"", None, "one whole message"),
        (framed(b"x")[:-1], None, "one whole message"),
        (framed(call()) * 2, None, "one whole message"),
        (framed(b"\xff\xff\xff"), None, "no ModelInferRequest"),
        (framed(b"x", is_compressed=True), b"br", "neither gzip nor deflate"),
        (framed(b"x", is_compressed=True), b"gzip", "cannot be decompressed"),
        (framed(gzip.compress(bytes(MOST + 1)), is_compressed=True), b"gzip", "larger than"),
        (framed(call(inputs=[tensor()], raw_input_contents=[b"", b""])), None, "2 entries for 1 inputs"),
        (framed(call(inputs=[tensor("w", "BYTES", contents={"bytes_contents": [b"\xff"]})])), None, "send raw_input"),
        (framed(call(inputs=[tensor(contents={"fp32_contents": [float("nan")]})])), None, "send raw_input"),
    ],
)
def test_what_is_no_request_says_why(body: bytes, coding: bytes | None, why: str) -> None:
    with pytest.raises(UnfitCallError, match=why):
        body_of(body, coding, MOST)


def answered(outputs: Any, binary: bytes = b"", **more: Any) -> dict[str, Any]:
    text = json.dumps({"outputs": outputs, **more}).encode()
    message = message_of(StageBody(text + binary, len(text) if binary else None), "p")
    found: dict[str, Any] = MODEL_INFER_RESPONSE.decode(message)
    return found


def test_json_becomes_typed_contents_and_binary_data_raw_ones() -> None:
    outputs = [tensor(data=[[1.5, 2.5]]), tensor("w", "BYTES", data=["a", "b"])]
    found = answered(outputs, id="mine")
    assert (found["model_name"], found["id"]) == ("p", "mine")
    assert list(found["outputs"][0]["contents"]["fp32_contents"]) == [1.5, 2.5]
    assert [bytes(each) for each in found["outputs"][1]["contents"]["bytes_contents"]] == [b"a", b"b"]
    mixed = [*outputs, tensor("z", "INT8", parameters={"binary_data_size": 2})]
    raw = [bytes(each) for each in answered(mixed, b"\1\2")["raw_output_contents"]]
    assert raw == [struct.pack("<2f", 1.5, 2.5), b"\1\0\0\0a\1\0\0\0b", b"\1\2"]
    assert [bytes(each) for each in answered([tensor("h", "FP16", data=[1.0, 2.0])])["raw_output_contents"]] == [
        struct.pack("<2e", 1.0, 2.0)
    ]


@pytest.mark.parametrize(
    "outputs",
    [
        [tensor(data=["a", "b"])],
        [tensor(shape="1")],
        [{"name": "x", "datatype": "FP32"}],
        [tensor("x", "FP99", data=[1, 2])],
        [tensor(data=[10**400, 1])],
        [tensor(parameters=[1])],
        [tensor()],
    ],
)
def test_an_answer_that_is_no_answer_is_unfit(outputs: Any) -> None:
    with pytest.raises(UnfitAnswerError):
        answered(outputs)


def test_errors_of_stages_are_texts() -> None:
    json_block, text_block = b"content-type: application/json\r\n", b"content-type: text/plain\r\n"
    assert error_of(400, json_block, b'{"error": "no x"}') == "no x"
    assert error_of(500, text_block, b"broken") == "broken"
    assert error_of(500, json_block, b'{"detail": 1}') == "a stage has answered 500"
    assert error_of(503, b"", b"") == "a stage has answered 503"
