"""HTTP/2 frames (RFC 9113 sections 4, 6 and 7): their numbers, and functions that write them."""

import struct
from typing import Final

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)

END_STREAM: Final = 0x1
ACK: Final = 0x1
END_HEADERS: Final = 0x4
PADDED: Final = 0x8
HAS_PRIORITY: Final = 0x20

NO_ERROR: Final = 0x0
PROTOCOL_ERROR: Final = 0x1
INTERNAL_ERROR: Final = 0x2
FLOW_CONTROL_ERROR: Final = 0x3
SETTINGS_TIMEOUT: Final = 0x4
STREAM_CLOSED: Final = 0x5
FRAME_SIZE_ERROR: Final = 0x6
REFUSED_STREAM: Final = 0x7
CANCEL: Final = 0x8
COMPRESSION_ERROR: Final = 0x9
ENHANCE_YOUR_CALM: Final = 0xB

HEADER_TABLE_SIZE: Final = 0x1
ENABLE_PUSH: Final = 0x2
MAX_CONCURRENT_STREAMS: Final = 0x3
INITIAL_WINDOW_SIZE: Final = 0x4
MAX_FRAME_SIZE: Final = 0x5
MAX_HEADER_LIST_SIZE: Final = 0x6

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEAD_BYTES: Final = 9
"""Size of a frame's head."""
MIN_FRAME_BYTES: Final = 16384
MAX_FRAME_BYTES: Final = (1 << 24) - 1
DEFAULT_WINDOW: Final = 65535
MAX_VALUE: Final = (1 << 31) - 1
"""Largest window and stream id."""

_head = struct.Struct(">IBI")
_word = struct.Struct(">I")
_setting = struct.Struct(">HI")
frame_head = _head.pack
"""(length << 8 | type, flags, stream id) -> the nine bytes before a payload."""
read_head = _head.unpack_from
"""Unpacks such a head at a position; the id's highest bit is reserved and must be masked."""
read_word = _word.unpack_from
read_settings = _setting.iter_unpack


def settings(*values: tuple[int, int]) -> bytes:
    """Returns a SETTINGS frame."""
    return frame_head(6 * len(values) << 8 | SETTINGS, 0, 0) + b"".join(_setting.pack(*value) for value in values)


def rst_stream(number: int, code: int) -> bytes:
    """Returns a RST_STREAM frame."""
    return frame_head(4 << 8 | RST_STREAM, 0, number) + _word.pack(code)


def window_update(number: int, increment: int) -> bytes:
    """Returns a WINDOW_UPDATE frame."""
    return frame_head(4 << 8 | WINDOW_UPDATE, 0, number) + _word.pack(increment)


def ping(payload: bytes, flags: int = 0) -> bytes:
    """Returns a PING frame of eight bytes."""
    return frame_head(8 << 8 | PING, flags, 0) + payload


def goaway(last: int, code: int, why: bytes) -> bytes:
    """Returns a GOAWAY frame."""
    return frame_head(8 + len(why) << 8 | GOAWAY, 0, 0) + _word.pack(last) + _word.pack(code) + why


def headers(number: int, block: bytes, flags: int, limit: int) -> bytes:
    """Returns HEADERS, followed by CONTINUATION if the peer does not accept a frame of this size."""
    if len(block) <= limit:
        return frame_head(len(block) << 8 | HEADERS, flags | END_HEADERS, number) + block
    frames = [frame_head(limit << 8 | HEADERS, flags, number), block[:limit]]
    for at in range(limit, len(block), limit):
        piece = block[at : at + limit]
        last = END_HEADERS if at + limit >= len(block) else 0
        frames += (frame_head(len(piece) << 8 | CONTINUATION, last, number), piece)
    return b"".join(frames)
