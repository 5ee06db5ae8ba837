"""Shapes in the rest of a body whose caller is charged: found however the body is cut and however they are written."""

import gzip
import json
import zlib
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.wire.bodies.charged import LaterShapes, charged_batch, largest_shape, unpacked
from tidegate.wire.http1.request_head import HeadRules, RequestHead, parse_request

WRITTEN = [
    b'{"shape":[16,3]}',
    b'{ "shape" :\n [\t16 ]}',
    b'{"sh\\u0061pe":[16]}',
    b'{"\\u0073\\u0068\\u0061\\u0070\\u0065" : [16 , 4]}',
    b'{"shape":[1.6e1]}',
    b'{"shape":[160e-1]}',
    b'{"shape":[1]},{"shape":[16]},{"shape":[2]}',
]


@pytest.mark.parametrize("text", WRITTEN)
def test_a_shape_is_found_as_any_writer_writes_it(text: bytes) -> None:
    assert largest_shape(text) == 16


@pytest.mark.parametrize("text", [b"", b"[16]", b'"shapes":[16]', b'"shape":16', b'"shape":[]', b'"shape":[1-6]'])
def test_other_things_are_no_shapes(text: bytes) -> None:
    assert largest_shape(text) == 0


def test_a_number_beyond_all_bounds_counts_as_very_many() -> None:
    assert largest_shape(b'"shape":[1e999]') == 10**18


@given(st.sampled_from(WRITTEN), st.lists(st.integers(0, 60), max_size=6), st.integers(0, 9))
def test_however_the_body_is_cut_its_shapes_are_found(text: bytes, cuts: list[int], first: int) -> None:
    body = json.dumps({"pad": "x"}).encode() + text + b"   "
    places = sorted({first, *(min(cut, len(body)) for cut in cuts), len(body)} - {0} | {first})
    later = LaterShapes(body[: places[0]])
    found = [later.feed(body[start:end]) for start, end in pairwise(places)]
    assert max(found) == 16


@pytest.mark.parametrize("text", [*WRITTEN, b'{"shape"  :  [  16  ,3]}', b'{"shape":[-1],"shape":[16]}'])
def test_a_shape_is_found_wherever_the_body_is_cut(text: bytes) -> None:
    for at in range(len(text)):
        later = LaterShapes(text[:at])
        assert max(later.feed(text[at : at + 3]), later.feed(text[at + 3 :]), largest_shape(text[:at])) == 16


@pytest.mark.parametrize(("size", "found"), [(64 * 1024, 16), (64 * 1024 + 1, 0)])
def test_a_shape_in_pieces_begins_and_ends_within_64_kb(size: int, found: int) -> None:
    begun = b'"shape":[' + b"0" * (size - 11) + b"16"
    assert len(begun) == size
    assert LaterShapes(b"pad" + begun).feed(b"]") == found


def test_what_follows_the_json_hides_nothing_however_long_the_begun_part_was() -> None:
    for length in (0, 1, 2):
        assert LaterShapes(b"{}", length).feed(b'"shape":[64]}}}}') == 0
    assert LaterShapes(b"{}", 15).feed(b'"shape":[64]}}}}') == 64


def test_only_the_json_before_binary_tensors_counts() -> None:
    text = b'{"inputs":[{"shape":[16]}]}'
    later = LaterShapes(b"{", len(text))
    assert later.feed(text[1:] + b'"shape":[64]') == 16
    assert later.feed(b'"shape":[64]') == 0
    assert LaterShapes(text + b"tensor", len(text)).feed(b'"shape":[64]') == 0
    assert LaterShapes(b'{"shape":[16', 12).feed(b"]") == 0, "the JSON is over, though it is not whole"
    assert LaterShapes(b'{"shape":[16', 13).feed(b"],") == 16


def test_white_space_between_pieces_is_not_kept() -> None:
    later = LaterShapes(b'{"shape":')
    for _ in range(100):
        assert later.feed(b" " * 10_000) == 0
    assert len(repr(later)) < 100
    assert later.feed(b"[16]") == 16


@pytest.mark.parametrize(
    ("coding", "body"),
    [
        (b"", b"text"),
        (b"Identity", b"text"),
        (b"gzip", gzip.compress(b"text", mtime=0)),
        (b" X-GZIP ", gzip.compress(b"text", mtime=0)),
        (b"deflate", zlib.compress(b"text")),
    ],
)
def test_a_coded_body_is_unpacked(coding: bytes, body: bytes) -> None:
    assert unpacked(body, coding) == b"text"


@pytest.mark.parametrize(
    ("coding", "body"),
    [
        (b"br", b"text"),
        (b"gzip, deflate", gzip.compress(b"text", mtime=0)),
        (b"gzip", b"text"),
        (b"gzip", gzip.compress(b"text", mtime=0)[:-1]),
        (b"gzip", gzip.compress(b"text", mtime=0) * 2),
    ],
)
def test_a_body_that_cannot_be_unpacked_whole_is_not_read(coding: bytes, body: bytes) -> None:
    assert unpacked(body, coding) is None


def test_a_body_is_unpacked_up_to_4_mb() -> None:
    most = bytes(4 << 20)
    assert unpacked(gzip.compress(most), b"gzip") == most
    assert unpacked(gzip.compress(most + b"x"), b"gzip") is None


def charged(body: bytes, *lines: str, is_whole: bool = True) -> int:
    text = "\r\n".join(("POST / HTTP/1.1", "Host: a", *lines, "", ""))
    head = parse_request(text.encode(), 0, HeadRules())
    assert type(head) is RequestHead
    return charged_batch(head, body, b"x-batch", is_whole=is_whole)


HIDDEN = b'{"parameters":{"shape":[64]},"inputs":[{"shape":[16]}]}'


def test_the_larger_of_header_and_shape_is_charged() -> None:
    assert charged(HIDDEN) == 16
    assert (charged(HIDDEN, "X-Batch: 15"), charged(HIDDEN, "X-Batch: 17")) == (16, 17)
    assert (charged(b""), charged(b"", "X-Batch: 3")) == (0, 3)
    assert (charged(HIDDEN[:-1]), charged(HIDDEN[:-1], "X-Batch: 65")) == (64, 65)
    for nothing in (b"{}", b'{"inputs":[]}', b'{"inputs":[{"shape":[]}]}', b'{"inputs":[{}]}'):
        assert (charged(nothing), charged(nothing, "X-Batch: 3")) == (0, 3)
    assert charged(b'{"inputs":[{"shape":[8]},{"shape":[9]}]}') == 8
    assert charged(b'{"inputs":[{"shape":[1e300]}]}') == 10**18


def test_the_json_before_binary_tensors_is_read_once_it_is_whole() -> None:
    length = f"Inference-Header-Content-Length: {len(HIDDEN)}"
    assert charged(HIDDEN, is_whole=False) == 64, "a part: any shape may be the one that counts"
    assert charged(HIDDEN, length, is_whole=False) == 16
    assert charged(HIDDEN + b'"shape":[99]', length, is_whole=False) == 16
    assert charged(HIDDEN + b'"shape":[99]', length) == 16
    assert charged(HIDDEN[:-1], length, is_whole=False) == 64


@pytest.mark.parametrize("length", ["0", "1", "x", "-5"])
def test_a_stated_length_that_cuts_the_json_hides_no_shape(length: str) -> None:
    """A server that does not heed the field runs the whole batch."""
    assert charged(b'{"inputs":[{"shape":[16]}]}', f"Inference-Header-Content-Length: {length}") == 16
