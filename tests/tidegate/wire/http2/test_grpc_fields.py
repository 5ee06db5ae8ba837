"""gRPC as fields of HTTP/2: paths, content types, deadlines, statuses and their messages."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.headers import read_timeout_s
from tidegate.wire.http2 import grpc_fields
from tidegate.wire.http2.block_memory import RESPONSE, Blocks
from tidegate.wire.http2.header_blocks import Reader


@pytest.mark.parametrize(
    ("path", "parts"),
    [
        (b"/a.B/C", (b"a.B", b"C")),
        (b"/a.B/C/d", None),
        (b"/a.B", None),
        (b"//C", None),
        (b"/a/", None),
        (b"*", None),
    ],
)
def test_path(path: bytes, parts: tuple[bytes, bytes] | None) -> None:
    assert grpc_fields.split_path(path) == parts


def test_content_type() -> None:
    for yes in (b"application/grpc", b"application/grpc+proto", b"Application/gRPC;a=b"):
        assert grpc_fields.is_grpc(yes)
    for no in (None, b"application/json", b"application/grpc-web", b"application/grp"):
        assert not grpc_fields.is_grpc(no)


@pytest.mark.parametrize(("ms", "field"), [(0, b"0m"), (-3, b"0m"), (1500, b"1500m"), (10**12, b"99999999m")])
def test_timeout(ms: int, field: bytes) -> None:
    block = Reader(Blocks(RESPONSE)).read(grpc_fields.timeout(ms), is_trailer=True)
    assert block.get(b"grpc-timeout") == field
    assert read_timeout_s(None, field) is not None


@given(st.text())
def test_messages_are_printable_ascii_and_come_back(text: str) -> None:
    coded = grpc_fields.encode_message(text)
    assert all(0x20 <= byte <= 0x7E for byte in coded)
    assert grpc_fields.decode_message(coded) == text


def test_a_message_as_the_protocol_shows_it() -> None:
    assert grpc_fields.encode_message("caf\u00e9 100% \n\r end") == b"caf%C3%A9 100%25 %0A%0D end"
    assert grpc_fields.decode_message(b"%zz %41%") == "%zz A%"


@pytest.mark.parametrize("letter", ["x", "%", "\u00e9", "\u6f22", "\U0001f600", "\n"])
@pytest.mark.parametrize("before", ["", "a", "ab", "a\u00e9", "abcd"])
def test_a_long_message_is_cut_between_two_characters(letter: str, before: str) -> None:
    """Clients of gRPC accept 8 KB of metadata for sure, and report another status if there is more."""
    coded = grpc_fields.encode_message(before + letter * 9000)
    assert 4080 <= len(coded) <= 4096
    decoded = grpc_fields.decode_message(coded)
    assert decoded == before + letter * (len(decoded) - len(before) - 3) + "..."


def test_a_message_that_is_no_text_is_reported_as_far_as_it_is() -> None:
    assert grpc_fields.encode_message("no file \udce9") == b"no file ?"


def test_an_answer_that_is_only_a_status() -> None:
    block = Reader(Blocks(RESPONSE)).read(
        grpc_fields.trailers_only(grpc_fields.RESOURCE_EXHAUSTED, "queue full: 10 wait")
    )
    assert (block.fault, block.status, block.grpc_status) == ("", 200, 8)
    assert block.get(b"content-type") == b"application/grpc"
    assert block.get(b"grpc-message") == b"queue full: 10 wait"
    block = Reader(Blocks(RESPONSE)).read(grpc_fields.trailers(grpc_fields.UNAVAILABLE, ""), is_trailer=True)
    assert (block.grpc_status, block.get(b"grpc-message")) == (14, None)


def test_a_message_with_spaces_at_its_ends_is_a_field_of_http2() -> None:
    for text in ("no key: ", "  both  ", " ", "\tcafé "):
        block = Reader(Blocks(RESPONSE)).read(grpc_fields.trailers_only(5, text))
        decoded = block.get(b"grpc-message")
        assert decoded is not None and decoded == decoded.strip()
        assert grpc_fields.decode_message(decoded) == text


@pytest.mark.parametrize(
    ("http", "grpc"),
    [(200, 0), (299, 0), (300, 13), (400, 3), (401, 16), (403, 7), (404, 12), (409, 10), (413, 8), (418, 13), (429, 8),
     (500, 13), (502, 14), (503, 14), (504, 4)],
)  # fmt: skip
def test_the_status_of_each_answer(http: int, grpc: int) -> None:
    """The numbers of https://grpc.io/docs/guides/status-codes/."""
    assert grpc_fields.status_of(http) == grpc


def test_the_statuses_are_numbered_as_grpc_numbers_them() -> None:
    numbers = (
        grpc_fields.OK,
        grpc_fields.CANCELLED,
        grpc_fields.UNKNOWN,
        grpc_fields.INVALID_ARGUMENT,
        grpc_fields.DEADLINE_EXCEEDED,
        grpc_fields.NOT_FOUND,
        grpc_fields.PERMISSION_DENIED,
        grpc_fields.RESOURCE_EXHAUSTED,
        grpc_fields.FAILED_PRECONDITION,
        grpc_fields.ABORTED,
        grpc_fields.UNIMPLEMENTED,
        grpc_fields.INTERNAL,
        grpc_fields.UNAVAILABLE,
        grpc_fields.UNAUTHENTICATED,
    )
    assert numbers == (0, 1, 2, 3, 4, 5, 7, 8, 9, 10, 12, 13, 14, 16)


@pytest.mark.parametrize(
    ("status", "http"),
    [(0, 200), (1, 408), (2, 500), (3, 400), (4, 504), (5, 404), (6, 409), (7, 403), (8, 429), (9, 400), (10, 409),
     (11, 400), (12, 404), (13, 500), (14, 503), (15, 500), (16, 401), (17, 500), (99, 500)],
)  # fmt: skip
def test_a_grpc_status_is_counted_as_an_http_status(status: int, http: int) -> None:
    assert grpc_fields.http_status(status) == http
    assert grpc_fields.ended_status(200, status) == http
    assert grpc_fields.ended_status(503, status) == (http if status else 503)


@pytest.mark.parametrize(("http", "counted"), [(200, 500), (302, 500), (399, 500), (400, 400), (503, 503)])
def test_a_missing_status_is_unknown_unless_http_reports_a_failure(http: int, counted: int) -> None:
    assert grpc_fields.ended_status(http, None) == counted
    assert grpc_fields.ended_status(http, 0) == http


def test_a_message_of_4096_bytes_is_sent_whole() -> None:
    assert grpc_fields.encode_message("a" * 4096) == b"a" * 4096
    assert grpc_fields.encode_message("a" * 4097) == b"a" * 4093 + b"..."
    assert grpc_fields.timeout(99_999_999)[-9:] == b"99999999m"
    assert grpc_fields.timeout(100_000_000)[-9:] == b"99999999m"
    assert grpc_fields.timeout(1)[-2:] == b"1m"
