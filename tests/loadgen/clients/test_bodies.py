"""Bodies are valid for the model that they are made for: shapes are the numbers of values that follow."""

import json
import struct
from typing import Any

import pytest

from tidegate.loadgen.clients.bodies import MAX_KEPT, Kept, chat, inputs_of, v2_body, v2_json, v2_message
from tidegate.wire.grpc.messages import MODEL_INFER_REQUEST


def test_the_first_dimension_is_the_number_of_inferences() -> None:
    for count in (1, 64):
        (tensor,) = json.loads(v2_body(count))["inputs"]
        assert tensor["shape"] == [count, 1]
        assert len(tensor["data"]) == count


METADATA = {
    "inputs": [
        {"name": "x", "datatype": "FP32", "shape": [-1, 2]},
        {"name": "ids", "datatype": "INT64", "shape": [-1, -1]},
        {"name": "text", "datatype": "BYTES", "shape": [-1]},
        {"name": "flag", "datatype": "BOOL", "shape": [-1, 1]},
    ]
}


def test_a_rest_request_fills_in_what_the_model_declares() -> None:
    tensors = json.loads(v2_json(inputs_of(METADATA), 3))["inputs"]
    assert [(each["name"], each["shape"], each["data"]) for each in tensors] == [
        ("x", [3, 2], [0.5] * 6),
        ("ids", [3, 1], [1] * 3),
        ("text", [3], ["load"] * 3),
        ("flag", [3, 1], [True] * 3),
    ]


def test_a_message_holds_the_same_as_raw_contents() -> None:
    message = MODEL_INFER_REQUEST.decode(v2_message("m", inputs_of(METADATA), 2))
    assert message["model_name"] == "m"
    assert [each["shape"] for each in message["inputs"]] == [[2, 2], [2, 1], [2], [2, 1]]
    assert [bytes(each) for each in message["raw_input_contents"]] == [
        struct.pack("<4f", *[0.5] * 4),
        struct.pack("<2q", 1, 1),
        b"\4\0\0\0load" * 2,
        b"\1\1",
    ]


@pytest.mark.parametrize(
    ("metadata", "why"),
    [
        ({}, "declares no inputs"),
        ({"inputs": []}, "declares no inputs"),
        ({"inputs": [{"name": "x", "datatype": "FP7", "shape": [1]}]}, "unknown datatype 'FP7'"),
    ],
)
def test_what_cannot_be_filled_in_is_reported(metadata: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        inputs_of(metadata)


def test_a_fixed_batch_takes_no_other() -> None:
    fixed = inputs_of({"inputs": [{"name": "x", "datatype": "FP32", "shape": [4, 2]}]})
    assert json.loads(v2_json(fixed, 4))["inputs"][0]["shape"] == [4, 2]
    with pytest.raises(ValueError, match="no batch of 3"):
        v2_json(fixed, 3)


def test_a_chat_asks_for_a_stream_with_its_usage() -> None:
    body = json.loads(chat("m", 5, 7))
    assert (body["model"], body["max_tokens"], body["stream"]) == ("m", 7, True)
    assert len(body["messages"][0]["content"].split()) == 5
    assert body["stream_options"] == {"include_usage": True}


def test_bodies_are_made_once_and_a_bounded_number_is_kept() -> None:
    made: list[int] = []

    def make(size: int) -> bytes:
        made.append(size)
        return b"%d" % size

    kept = Kept(make)
    for size in (*range(100), *range(100)):
        assert kept(size) == b"%d" % size
    assert made == [*range(100), *range(MAX_KEPT, 100)]
