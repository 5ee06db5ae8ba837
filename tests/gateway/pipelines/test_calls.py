"""gRPC messages of pipelines: what becomes of a call's message, and what a V2 answer becomes."""

import gzip
import json
import struct
from typing import Any

import pytest

from tests.gateway.pipelines.test_bodies import DEEP
from tests.support.worlds.fake_grpc_call import INFER, call_head
from tidegate.gateway.pipelines.bodies import StageBody, UnfitAnswerError
from tidegate.gateway.pipelines.calls import UnfitCallError, body_of, code_of, error_of, head_of, message_of
from tidegate.wire.grpc.messages import MODEL_INFER_REQUEST, MODEL_INFER_RESPONSE
from tidegate.wire.http2 import grpc_fields

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


@pytest.mark.parametrize(
    ("body", "kind"),
    [(StageBody(b"{}"), b"application/json"), (StageBody(b"{}\1", 2), b"application/octet-stream")],
)
def test_the_head_over_http_describes_its_own_body(body: StageBody, kind: bytes) -> None:
    own = [("content-encoding", "gzip"), ("content-length", "30"), ("user-agent", "grpc"), ("grpc-encoding", "gzip")]
    head = head_of(call_head(INFER, fields=[*own, ("x-own", "1")]), "p", body)
    assert (head.get(b"content-type"), head.get(b"x-own")) == (kind, b"1")
    assert head.fields.count(b"content-type") == 1
    assert all(head.get(name.encode()) is None for name, _ in own)


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
        [{"name": "x", "datatype": ["FP32"], "shape": [1], "data": [1.0]}],
        [tensor(shape=[1 << 64], data=[1.0])],
        [tensor("x", "INT32", data=[1 << 31])],
        [tensor("x", "INT8", data=[-129])],
        [tensor("x", "UINT8", data=[-1])],
        [tensor("x", "UINT64", data=[1 << 64])],
        [tensor("x", "BOOL", data=["no"])],
        [tensor("x", "FP32", data=[1e300])],
        [tensor("x", "INT64", data=[1.5])],
        [tensor("x", "BYTES", data=[None])],
        [tensor("x", "BYTES", data=[1])],
        [tensor("x", "UINT8", data=[256]), tensor("y", "FP16", data=[1.0])],
        [tensor(data=[1.0]), tensor(data=[2.0])],
    ],
)
def test_an_answer_that_is_no_answer_is_unfit(outputs: Any) -> None:
    with pytest.raises(UnfitAnswerError):
        answered(outputs)


def test_an_answer_nested_too_deeply_is_unfit() -> None:
    with pytest.raises(UnfitAnswerError, match="not JSON"):
        message_of(StageBody(DEEP), "p")


def test_data_is_read_as_deeply_as_the_parser_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    data: list[Any] = [1, [2], 3]
    for _ in range(3000):
        data = [data]
    # Some Pythons' parsers go deeper than their functions may call each other.
    monkeypatch.setattr(json, "loads", lambda _: {"outputs": [tensor("x", "INT8", data=data)]})
    found = MODEL_INFER_RESPONSE.decode(message_of(StageBody(b""), "p"))
    assert list(found["outputs"][0]["contents"]["int_contents"]) == [1, 2, 3]


def test_the_ends_of_each_range_and_what_is_no_number_pass() -> None:
    outputs = [
        tensor("a", "INT32", data=[-(1 << 31), (1 << 31) - 1]),
        tensor("b", "UINT64", data=[0, (1 << 64) - 1]),
        tensor("c", "BOOL", data=[True, 0]),
        tensor("d", "FP32", data=[float("inf"), 1]),
    ]
    contents = [each["contents"] for each in answered(outputs)["outputs"]]
    assert [list(next(iter(each.values()))) for each in contents] == [each["data"] for each in outputs]


def test_parameters_pass_where_the_message_has_a_place_for_them() -> None:
    given = {"top": 5, "is_good": False, "score": 0.5, "kind": "a", "none": None, "list": [1], "huge": 1 << 63}
    output = tensor("x", "INT8", parameters={"binary_data_size": 2, **given})
    found = answered([output], b"\1\2", parameters=given)
    for entry in (found, found["outputs"][0]):
        choices = {key: value[value["parameter_choice"]] for key, value in entry["parameters"].items()}
        assert choices == {"top": 5, "is_good": False, "score": 0.5, "kind": "a"}


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (400, grpc_fields.INVALID_ARGUMENT),
        (401, grpc_fields.UNAUTHENTICATED),
        (404, grpc_fields.NOT_FOUND),
        (405, grpc_fields.INVALID_ARGUMENT),
        (408, grpc_fields.DEADLINE_EXCEEDED),
        (413, grpc_fields.RESOURCE_EXHAUSTED),
        (422, grpc_fields.INVALID_ARGUMENT),
        (429, grpc_fields.RESOURCE_EXHAUSTED),
        (499, grpc_fields.INVALID_ARGUMENT),
        (500, grpc_fields.INTERNAL),
        (503, grpc_fields.UNAVAILABLE),
        (504, grpc_fields.DEADLINE_EXCEEDED),
    ],
)
def test_the_status_of_a_call_follows_from_that_of_its_stage(status: int, code: int) -> None:
    assert code_of(status) == code


def test_errors_of_stages_are_texts() -> None:
    json_block, text_block = b"content-type: application/json\r\n", b"content-type: text/plain\r\n"
    assert error_of(400, json_block, b'{"error": "no x"}') == "no x"
    assert error_of(500, text_block, b"broken") == "broken"
    assert error_of(500, json_block, b'{"detail": 1}') == "a stage has answered 500"
    assert error_of(500, json_block, DEEP) == "a stage has answered 500"
    assert error_of(503, b"", b"") == "a stage has answered 503"
