"""Decompression of request bodies, bounded."""

import zlib
from typing import Final

from tidegate.runtime.errors import RequestError

LIMIT: Final = "the limit of the model server, limits.body-bytes of the function's manifest (256Mi where it says none)"
"""What bounds a body, for the refusal of a larger one."""
_WINDOW_BITS = {"gzip": 31, "deflate": 15}
"""Parameters of zlib: 31 expects a gzip header, 15 a zlib one (RFC 9110 section 8.4.1)."""


def decompress(body: bytes, encoding: str | None, limit: int) -> bytes:
    """Returns the body without its content coding. Raises RequestError, also if it grows beyond ``limit`` bytes."""
    coding = (encoding or "identity").strip().lower()
    if coding == "identity":
        return body
    bits = _WINDOW_BITS.get(coding)
    if bits is None:
        raise RequestError(f"content-encoding '{coding[:40]}' is not offered: gzip, deflate, identity", 415)
    decoder = zlib.decompressobj(bits)
    try:
        plain = decoder.decompress(body, limit + 1)
    except zlib.error as error:
        raise RequestError(f"the body is not {coding}: {error}") from None
    if len(plain) > limit:
        raise RequestError(f"the body is larger than {limit} bytes when decompressed: {LIMIT}", 413)
    if not decoder.eof:
        raise RequestError(f"the {coding} body is cut short")
    return plain
