"""What is packed is counted as if it were not, in bounded time and memory."""

import gzip
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz.bytes_plan import cut
from tests.tidegate.wire.bodies.test_tokens import BODY, LINES
from tidegate.wire.bodies.tokens import BodyReader, StreamReader
from tidegate.wire.bodies.tokens_coded import MOST_BYTES, CodedReader


@settings(deadline=None)
@given(st.lists(st.sampled_from(LINES), max_size=12), st.binary(max_size=6), st.booleans())
def test_a_packed_stream_counts_as_the_plain_one(lines: list[bytes], cuts: bytes, is_gzip: bool) -> None:
    plain, packed = StreamReader(), CodedReader(StreamReader())
    pack = zlib.compressobj(wbits=31 if is_gzip else 15)
    wire = b""
    for line in [*lines, b"data: [DONE]"]:
        plain.feed(line + b"\n\n")
        wire += pack.compress(line + b"\n\n") + pack.flush(zlib.Z_SYNC_FLUSH)
    found = sum(packed.feed(piece) for piece in cut(wire + pack.flush(), cuts))
    assert (found, packed.outputs, packed.is_done) == (plain.outputs, plain.outputs, plain.is_done)
    assert repr(packed.usage()) == repr(plain.usage())


@pytest.mark.parametrize("cuts", [b"", b"\x01", b"\x64"])
def test_the_usage_of_a_packed_body(cuts: bytes) -> None:
    reader = CodedReader(BodyReader())
    for piece in cut(gzip.compress(BODY), cuts):
        reader.feed(piece)
    usage = reader.usage()
    assert usage is not None
    assert (usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens) == (12, 34, 5)


def test_an_event_is_seen_as_soon_as_it_is_there() -> None:
    pack, reader = zlib.compressobj(wbits=31), CodedReader(StreamReader())
    for _ in range(3):
        assert reader.feed(pack.compress(LINES[0] + b"\n\n") + pack.flush(zlib.Z_SYNC_FLUSH)) == 1


def test_what_cannot_be_unpacked_tells_nothing() -> None:
    for wire in (b"plain text", gzip.compress(BODY)[:10] + b"\xff" * 100, b"\x1f"):
        reader = CodedReader(BodyReader())
        assert reader.feed(wire) == reader.feed(gzip.compress(BODY)) == 0
        assert reader.usage() is None


def test_a_bomb_is_read_no_further() -> None:
    class Weighing(BodyReader):
        weight = 0

        def feed(self, data: bytes) -> int:
            Weighing.weight += len(data)
            return 0

    reader = CodedReader(Weighing())
    reader.feed(gzip.compress(b"\0" * (64 << 20)))
    assert Weighing.weight <= 2 * MOST_BYTES
    seen = Weighing.weight
    reader.feed(gzip.compress(BODY))
    assert Weighing.weight == seen
