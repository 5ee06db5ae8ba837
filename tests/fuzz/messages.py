"""Targets of gRPC: any bytes are a known message or none, and the values read from calls do not depend on the
reader."""

from typing import Any

from tests.support.http2.grpc_client import framed
from tidegate.gateway.routing.grpc_methods import peek, read_small
from tidegate.wire.grpc.first_message import peek_infer
from tidegate.wire.grpc.messages import (
    FILES,
    HEALTH_LIST_RESPONSE,
    MODEL_INFER_REQUEST,
    MODEL_READY_REQUEST,
    REFLECTION_FILES,
)
from tidegate.wire.grpc.protobuf import Message, ProtobufError

MESSAGES = [message for file in FILES for message in file.messages]


INFER: dict[str, Any] = {
    "model_name": "resnet",
    "id": "7",
    "parameters": {"p": {"int64_param": -1}},
    "inputs": [{"name": "x", "datatype": "FP32", "shape": [8, 2], "contents": {"fp32_contents": [1.5, -2.0]}}],
    "raw_input_contents": [bytes(9)],
}


def message_seeds(*, with_choice: bool) -> list[bytes]:
    """Messages as clients send them; ``with_choice``: behind the byte by which :func:`messages` chooses."""
    made: list[tuple[Message, dict[str, Any]]] = [
        (MODEL_INFER_REQUEST, INFER),
        (MODEL_READY_REQUEST, {"name": "m", "version": "1"}),
        (HEALTH_LIST_RESPONSE, {"statuses": {"": {"status": 1}}}),
        (REFLECTION_FILES[0].messages[0], {"file_containing_symbol": "a.B"}),
    ]
    return [
        (bytes((MESSAGES.index(message),)) if with_choice else b"") + message.encode(fields) for message, fields in made
    ]


def messages(data: bytes) -> None:
    """Decodes a message chosen by the first byte; a message that was read and written once stays the same."""
    message = MESSAGES[data[0] % len(MESSAGES)] if data else MESSAGES[0]
    try:
        found = message.decode(data[1:])
    except ProtobufError:
        return
    written = message.encode(found)
    assert message.encode(message.decode(written)) == written


def calls(data: bytes) -> None:
    """Reads the beginning of a call: as it is, flagged as compressed, and as one whole message."""
    for coding in (None, b"gzip", b"deflate"):
        peek(data, coding, is_whole=True)
        peek(data, coding, is_whole=False)
        read_small(data, coding, MODEL_READY_REQUEST, is_whole=True)
    try:
        MODEL_INFER_REQUEST.decode(data)
    except ProtobufError:
        return  # what is found in it decides nothing: its server refuses it
    body = framed(data)
    assert peek(body, None, is_whole=True) == peek_infer(body)
