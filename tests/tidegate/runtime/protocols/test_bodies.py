"""Compressed request bodies."""

import gzip
import zlib

import pytest

from tidegate.runtime.errors import RequestError
from tidegate.runtime.protocols.bodies import decompress


def test_what_tritonclient_compresses_is_read() -> None:
    assert decompress(gzip.compress(b"abc", mtime=0), "gzip", 10) == b"abc"
    assert decompress(zlib.compress(b"abc"), " Deflate ", 10) == b"abc"
    assert decompress(b"abc", None, 1) == b"abc"
    assert decompress(b"abc", "identity", 1) == b"abc"


@pytest.mark.parametrize(
    ("body", "coding", "status", "says"),
    [
        (b"abc", "br", 415, "content-encoding 'br' is not offered: gzip, deflate, identity"),
        (b"abc", "gzip", 400, "the body is not gzip"),
        (b"abc", "deflate", 400, "the body is not deflate"),
        (gzip.compress(b"abc", mtime=0)[:-9], "gzip", 400, "the gzip body is cut short"),
        (gzip.compress(bytes(11), mtime=0), "gzip", 413, "larger than 10 bytes when decompressed"),
        (gzip.compress(bytes(10_000_000), mtime=0), "gzip", 413, "larger than 10 bytes when decompressed"),
    ],
)
def test_what_cannot_be_read_is_reported(body: bytes, coding: str, status: int, says: str) -> None:
    with pytest.raises(RequestError, match=says) as caught:
        decompress(body, coding, 10)
    assert caught.value.status == status
