"""The chunked coding: strict, in any pieces."""

import pytest

from tidegate.wire.http1.chunked import LINE_BYTES, TRAILER_BYTES, ChunkDecoder, chunk, last_chunk
from tidegate.wire.http1.client import H1Client
from tidegate.wire.http1.events import Data
from tidegate.wire.http1.fields import Rejected


def feed_all(data: bytes, size: int) -> tuple[bytes, ChunkDecoder] | Rejected:
    """Feeds ``data`` in pieces of ``size`` bytes."""
    decoder = ChunkDecoder()
    body = b""
    for at in range(0, len(data), size):
        payload = decoder.feed(data[at : at + size])
        if type(payload) is Rejected:
            return payload
        assert isinstance(payload, bytes)
        body += payload
        if decoder.done:
            decoder.rest += data[at + size :]
            break
    return body, decoder


WHOLE = b"3\r\nabc\r\nA;x=y\r\n0123456789\r\n000\r\nX-T: 1\r\nHost: evil\r\n\r\nGET / HT"


@pytest.mark.parametrize("size", range(1, len(WHOLE) + 1))
def test_any_split_gives_the_same_payload_trailers_and_rest(size: int) -> None:
    result = feed_all(WHOLE, size)
    assert not isinstance(result, Rejected)
    body, decoder = result
    assert (body, decoder.done, decoder.rest) == (b"abc0123456789", True, b"GET / HT")
    assert decoder.trailers == b"X-T: 1\r\n", "routing fields have no place in trailers"


@pytest.mark.parametrize(
    "data",
    [
        b"g\r\n",
        b"0x3\r\nabc\r\n",
        b"+3\r\nabc\r\n",
        b"-3\r\n",
        b"1_0\r\n",
        b" 3\r\nabc\r\n",
        b"\r\nabc",
        b"10000000000000003\r\n",
        b"3\nabc\r\n",
        b"3\r\nabc\n0\r\n\r\n",
        b"3\r\nabcd\r\n",
        b"3\r\nabcXY0\r\n",
        b"3;\nabc\r\n",
        b"3;a\x01b\r\nabc\r\n",
        b"3;" + b"x" * 300 + b"\r\nabc\r\n",
        b"0\r\nbad line\r\n\r\n",
        b"0\r\nX-T: 1\n\r\n",
        b"0\r\n" + b"X-T: " + b"y" * 5000,
        b"0\r\n" + b"X-T: yyyyyyyyyyyyyyyyyyyyyyyyyyyyy\r\n" * 200 + b"\r\n",
    ],
)
@pytest.mark.parametrize("size", [1, 2, 3, 1 << 20])
def test_refused_however_it_is_split(data: bytes, size: int) -> None:
    assert isinstance(feed_all(data, size), Rejected)


@pytest.mark.parametrize(
    ("data", "is_chunk"),
    [
        (b"3\r\nabc\r\n", True),
        (b"0a\r\n0123456789\r\n", True),
        (b"3;x=y\r\nabc\r\n", False),
        (b"3\r\nabc\r\n3\r\nabc\r\n", False),
        (b"3\r\nabc\r", False),
        (b"5\r\nabc\r\n", False),
        (b"0\r\n\r\n", False),
        (b"0\r\n", False),
    ],
)
def test_a_piece_that_is_one_chunk_is_known(data: bytes, is_chunk: bool) -> None:
    """It may be forwarded as received; one with extensions, or a part of one, may not."""
    for before in (b"", b"2\r\nhe\r\n", b"2\r\nhe\r"):
        decoder = ChunkDecoder()
        decoder.feed(before)
        payload = decoder.feed(data if before[-1:] != b"\r" else b"\n" + data)
        assert decoder.is_chunk is (is_chunk and before[-1:] != b"\r")
        assert not is_chunk or payload == data[data.index(b"\n") + 1 : -2]
    client = H1Client()
    client.request(b"GET")
    client.receive(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    event = client.receive(data)
    assert type(event) is Data
    assert event.framed == (data if is_chunk else b"")


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"g\r\n", "malformed chunk size"),
        (b"3;" + b"x" * 300, "malformed chunk size"),
        (b"3;" + b"x" * 300 + b"\r\nabc\r\n", "chunk line too long"),
        (b"3\r\nabcXY", "chunk data without CRLF"),
        (b"0\r\nbad line\r\n\r\n", "malformed trailer"),
        (b"0\r\nbad line", "malformed trailer"),
        (b"0\r\nX-T: " + b"y" * 5000 + b"\r\n", "malformed trailer"),
    ],
)
def test_each_fault_is_a_400_with_its_reason(data: bytes, why: str) -> None:
    rejected = ChunkDecoder().feed(data)
    assert isinstance(rejected, Rejected)
    assert (rejected.status, rejected.why) == (400, why)


def test_a_chunk_line_has_at_most_256_bytes_and_trailers_4096() -> None:
    line = b"3;".ljust(LINE_BYTES - 2, b"x") + b"\r\n"
    trailers = b"X-T: ".ljust(TRAILER_BYTES - 2, b"y") + b"\r\n"
    assert (len(line), len(trailers)) == (256, 4096)
    whole = line + b"abc\r\n0\r\n" + trailers + b"\r\n"
    for size in (1, 255, 256, 4000, len(whole)):
        result = feed_all(whole, size)
        assert not isinstance(result, Rejected), size
        assert (result[0], result[1].trailers) == (b"abc", trailers)
    for longer in (whole.replace(b"3;", b"3;x"), whole.replace(b"X-T: ", b"X-T: y")):
        assert all(isinstance(feed_all(longer, size), Rejected) for size in (1, 255, 256, 4000, len(longer)))


def test_an_unfinished_body_is_not_done() -> None:
    result = feed_all(b"3\r\nabc\r\n", 100)
    assert not isinstance(result, Rejected)
    assert not result[1].done


def test_the_encoder_is_read_by_the_decoder() -> None:
    result = feed_all(chunk(b"hello") + chunk(b"x" * 1000) + last_chunk(b"X-T: 1\r\n"), 7)
    assert not isinstance(result, Rejected)
    body, decoder = result
    assert (body, decoder.trailers) == (b"hello" + b"x" * 1000, b"X-T: 1\r\n")
    assert last_chunk() == b"0\r\n\r\n"
