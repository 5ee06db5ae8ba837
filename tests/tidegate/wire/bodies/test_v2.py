"""Inferences in a request: header, shape, length class, 1."""

import pytest

from tidegate.wire.bodies.v2 import BatchSizer, batch_size, estimated_batch, positive, shape_batch, stated_batch
from tidegate.wire.http1.request_head import HeadRules, RequestHead, parse_any_request, parse_request


def head(*lines: str) -> RequestHead:
    text = "\r\n".join(("POST / HTTP/1.1", "Host: a", *lines, "", ""))
    parsed = parse_request(text.encode(), 0, HeadRules())
    assert type(parsed) is RequestHead
    return parsed


BODY = b'{"id":"7","inputs":[{"name":"x", "shape" : [ 8, 3], "data":[1]},{"shape":[2,3]}]}'


@pytest.mark.parametrize(
    ("value", "expected"),
    [("4", 4), ("004", 4), ("4000", 1024), ("9" * 5000, 1024), ("0", 8), ("-4", 8), ("4.0", 8), ("x", 8), ("", 8)],
)
def test_the_header_comes_first_and_a_malformed_one_is_passed_over(value: str, expected: int) -> None:
    assert batch_size(head(f"Tidegate-Batch-Size: {value}"), BODY) == expected


def test_another_header_may_be_named() -> None:
    assert batch_size(head("X-Batch: 5"), BODY, header=b"x-batch") == 5


def test_the_first_shape_of_a_v2_body() -> None:
    assert batch_size(head(), BODY) == 8
    assert batch_size(head(), BODY, max_batch=4) == 4


def test_a_shape_beyond_the_first_4_kb_is_not_looked_for() -> None:
    assert shape_batch(b" " * 4096 + BODY) == 0


@pytest.mark.parametrize(("end", "found"), [(4096, 8), (4097, 0)])
def test_a_shape_may_end_with_the_first_4_kb(end: int, found: int) -> None:
    shape = b'"shape":[8]'
    body = b" " * (end - len(shape)) + shape + b" " * 100
    assert shape_batch(body) == shape_batch(body, b"5000") == found
    assert BatchSizer().of(plain_head(), body) == max(1, found)


@pytest.mark.parametrize(("length", "found"), [(b"11", 8), (b"10", 0), (b"x", 0)])
def test_a_shape_may_end_with_the_json(length: bytes, found: int) -> None:
    assert shape_batch(b'"shape":[8]', length) == found


@pytest.mark.parametrize(("digits", "found"), [(b"9" * 9, 999_999_999), (b"9" * 10, 0)])
def test_a_dimension_has_nine_digits_at_most(digits: bytes, found: int) -> None:
    assert shape_batch(b'"shape":[%b]' % digits) == found


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b"0", 0), (b"000", 0), (b"1", 1), (b"0" * 40 + b"7", 7), (b"9" * 18, 10**18 - 1), (b"1" + b"0" * 18, 10**18),
        (b"9" * 19, 10**18), (b"", 0), (b"-1", 0), (b"1.0", 0), ("\u0661".encode(), 0),
    ],
)  # fmt: skip
def test_digits_as_a_number(value: bytes, expected: int) -> None:
    assert positive(value) == expected


def test_binary_tensors_behind_the_json_are_not_searched() -> None:
    body = b'{"inputs":[]}' + b'"shape":[9]'
    assert batch_size(head("Inference-Header-Content-Length: 13"), body) == 1
    assert batch_size(head(), body) == 9


@pytest.mark.parametrize("body", [b'"shape":["n"]', b'"shape":[0]', b'"shape":[-1]', b'"shape":[1.5]', b'"shape":[]'])
def test_shapes_that_tell_nothing(body: bytes) -> None:
    assert batch_size(head(), body) == 1


@pytest.mark.parametrize(("length", "expected"), [(1000, 10), (1049, 10), (1050, 11), (0, 1), (10**9, 1024)])
def test_the_length_class_rounds_halves_up(length: int, expected: int) -> None:
    assert batch_size(head(f"Content-Length: {length}"), b"", bytes_per_item=100.0) == expected


def test_the_overhead_is_subtracted() -> None:
    assert batch_size(head("Content-Length: 1100"), b"", bytes_per_item=100.0, overhead_bytes=100.0) == 10
    assert BatchSizer(bytes_per_item=100.0, overhead_bytes=100.0).of(head("Content-Length: 1100"), b"") == 10


def test_without_a_rule_or_a_length_a_request_is_one_inference() -> None:
    assert batch_size(head("Content-Length: 1100"), b"") == 1
    assert batch_size(head(), b"", bytes_per_item=100.0) == 1
    for nothing in (0.0, -100.0):
        assert batch_size(head("Content-Length: 1100"), b"", bytes_per_item=nothing) == 1
    assert batch_size(head("Content-Length: 1100"), b"", bytes_per_item=1.0) == 1024
    assert BatchSizer(bytes_per_item=1.0).of(head("Content-Length: 1100"), b"") == 1024
    assert batch_size(head("Content-Length: 3"), b"", bytes_per_item=0.5) == 6


@pytest.mark.parametrize(("length", "expected"), [(0, 1), (149, 1), (150, 2), (749, 7), (750, 8), (2000, 8)])
def test_an_estimate_is_from_one_to_the_limit(length: int, expected: int) -> None:
    assert estimated_batch(length, 100.0, 0.0, 8) == expected


def test_what_the_request_states_is_its_header_or_its_shape() -> None:
    assert stated_batch(head("Tidegate-Batch-Size: 4"), BODY) == 4
    assert stated_batch(head("Tidegate-Batch-Size: 0"), BODY) == stated_batch(head(), BODY) == 8
    assert stated_batch(head("Tidegate-Batch-Size: 4"), b"") == 4
    assert stated_batch(head(), b"") == 0
    assert stated_batch(head("X-Batch: 3"), BODY, b"x-batch") == 3


def plain_head(line: str = "") -> RequestHead:
    text = f"POST /v2/models/m/infer HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n{line}\r\n"
    found = parse_any_request(text.encode(), 0, HeadRules())
    assert type(found) is RequestHead
    assert found.plain
    return found


@pytest.mark.parametrize(
    ("body", "by_length", "expected"),
    [
        (BODY, 8, 8),
        (b'"shape":[16]', 16, 16),
        (b'"shape":[17]', 16, 16),
        (b'"shape":[0]', 10, 1),
        (b" " * 4096 + BODY, 10, 1),
        (b"", 10, 1),
    ],
)
def test_a_plain_head_leaves_the_body_or_its_length(body: bytes, by_length: int, expected: int) -> None:
    assert BatchSizer(bytes_per_item=100.0, max_batch=16).of(plain_head(), body) == by_length
    assert BatchSizer(max_batch=16).of(plain_head(), body) == expected


def test_a_plain_head_may_have_a_header_that_was_named() -> None:
    assert BatchSizer(b"x-batch").of(plain_head("X-Batch: 5\r\n"), BODY) == 5
    assert BatchSizer(b"x-batch").of(plain_head(), BODY) == 8
