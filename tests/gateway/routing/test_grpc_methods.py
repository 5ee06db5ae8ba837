"""The first message of a call: names, batches, and messages that cannot be read."""

import gzip
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.http2.grpc_client import framed
from tidegate.gateway.routing.grpc_methods import (
    METHODS,
    SMALL_BYTES,
    MethodKind,
    Unreadable,
    inflated,
    peek,
    read_small,
)
from tidegate.wire.grpc import messages
from tidegate.wire.grpc.first_message import Infer

REQUEST = messages.MODEL_INFER_REQUEST.encode(
    {
        "model_name": "resnet",
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [7, 3, 224, 224]}],
        "raw_input_contents": [bytes(9000)],
    }
)
CODED = {b"gzip": gzip.compress(REQUEST, mtime=0), b"deflate": zlib.compress(REQUEST)}


def test_the_methods_that_are_more_than_work() -> None:
    inference = b"/inference.GRPCInferenceService/"
    assert METHODS[inference + b"ModelInfer"].kind is MethodKind.INFER
    assert METHODS[inference + b"ModelStreamInfer"].streams
    assert METHODS[b"/grpc.health.v1.Health/Watch"].streams
    assert METHODS[b"/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"].kind is MethodKind.REFLECTION
    assert b"/inference.GRPCInferenceService/Unknown" not in METHODS


@pytest.mark.parametrize("method", ["ModelConfig", "RepositoryModelLoad", "TraceSetting"])
def test_the_model_is_found_where_the_method_has_it(method: str) -> None:
    request = METHODS[f"/inference.GRPCInferenceService/{method}".encode()].request
    assert request is not None
    number = 1 if method == "ModelConfig" else 2
    message = bytes((number << 3 | 2, 6)) + b"resnet" + bytes(((3 - number) << 3 | 2, 1)) + b"x"
    assert read_small(framed(message), None, request, is_whole=True) == {"name": "resnet"}


@pytest.mark.parametrize("coding", [None, *CODED])
def test_model_and_batch_are_read_compressed_or_not(coding: bytes | None) -> None:
    body = framed(REQUEST) if coding is None else framed(CODED[coding], compressed=True)
    assert peek(body, coding, is_whole=True) == Infer(b"resnet", 7)


def test_of_a_name_that_comes_twice_the_last_counts_compressed_or_not() -> None:
    twice = b"\x0a\x03bad\x1a\x01i" + REQUEST
    assert peek(framed(twice), None, is_whole=True) == Infer(b"resnet", 7)
    assert peek(framed(gzip.compress(twice), compressed=True), b"gzip", is_whole=True) == Infer(b"resnet", 7)


@pytest.mark.parametrize("coding", [None, *CODED])
def test_pieces_are_waited_for_until_they_tell(coding: bytes | None) -> None:
    body = framed(REQUEST) if coding is None else framed(CODED[coding], compressed=True)
    peeked = [peek(body[:size], coding, is_whole=False) for size in range(len(body) + 1)]
    first = next(at for at, found in enumerate(peeked) if found is not None)
    assert first < 60 + 4096
    assert set(peeked[:first]) == {None}
    assert set(peeked[first:]) == {Infer(b"resnet", 7)}


@pytest.mark.parametrize(
    ("body", "coding"),
    [
        (b"", None),
        (framed(b"\xff\xff"), None),
        (framed(REQUEST, compressed=True), b"gzip"),
        (framed(CODED[b"gzip"], compressed=True), b"zstd"),
        (framed(CODED[b"gzip"], compressed=True), None),
        (b"\x07" + framed(REQUEST)[1:], b"gzip"),
    ],
)
def test_what_cannot_be_read_says_nothing_and_is_the_servers_to_refuse(body: bytes, coding: bytes | None) -> None:
    assert peek(body, coding, is_whole=True) == Infer(b"", 0)


def test_a_bomb_is_not_blown_up() -> None:
    bomb = gzip.compress(bytes(64 << 20))
    assert peek(framed(bomb, compressed=True), b"gzip", is_whole=True) == Infer(b"", 0)
    assert inflated(bomb, b"gzip") == Unreadable(413, f"a message is larger than {SMALL_BYTES} bytes when decompressed")


@pytest.mark.parametrize(
    ("body", "coding", "status", "why"),
    [
        (b"", None, 400, "without a message"),
        (b"\0\0\0\0\5abc", None, 400, "without a message"),
        (framed(b"\xff"), None, 400, "cannot be read"),
        (framed(b"x", compressed=True), b"gzip", 400, "cannot be decompressed"),
        (framed(b"x", compressed=True), None, 400, "neither gzip nor deflate"),
        (b"\0" + (SMALL_BYTES + 1).to_bytes(4, "big"), None, 413, "larger than"),
    ],
)
def test_a_small_message_that_is_none_is_refused_with_words(
    body: bytes, coding: bytes | None, status: int, why: str
) -> None:
    found = read_small(body, coding, messages.HEALTH_REQUEST, is_whole=True)
    assert isinstance(found, Unreadable)
    assert found.status == status
    assert why in found.why


def test_a_small_message_is_waited_for() -> None:
    body = framed(messages.HEALTH_REQUEST.encode({"service": "f"}))
    for size in range(len(body)):
        assert read_small(body[:size], None, messages.HEALTH_REQUEST, is_whole=False) is None
    assert read_small(body, None, messages.HEALTH_REQUEST, is_whole=False) == {"service": "f"}
    squeezed = framed(gzip.compress(body[5:]), compressed=True)
    assert read_small(squeezed, b"gzip", messages.HEALTH_REQUEST, is_whole=True) == {"service": "f"}


@given(st.binary(max_size=300), st.sampled_from([None, b"gzip", b"deflate"]), st.booleans())
def test_no_bytes_break_it(body: bytes, coding: bytes | None, is_whole: bool) -> None:
    peek(body, coding, is_whole=is_whole)
    read_small(body, coding, messages.MODEL_READY_REQUEST, is_whole=is_whole)
