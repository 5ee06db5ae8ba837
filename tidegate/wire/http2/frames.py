"""HTTP/2 frames (RFC 9113 sections 4, 6 and 7): their numbers, functions that write them, and checks of what a peer
has written that need nothing but the frame."""

import struct
from collections.abc import Iterator
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


_SETTINGS_BYTES: Final = 6 * 64
_CONNECTION_FRAMES: Final = {PING: "PING", SETTINGS: "SETTINGS", GOAWAY: "GOAWAY"}


class ConnectionFault(Exception):
    """The connection is lost: error code and reason."""

    def __init__(self, code: int, why: str) -> None:
        super().__init__(why)
        self.code = code


def check_control(kind: int, number: int, flags: int, payload: bytes) -> None:
    """Raises ConnectionFault for a frame that may not stand on its stream, has a wrong size, or may not come."""
    size, name = len(payload), _CONNECTION_FRAMES.get(kind)
    if name is not None and number:
        raise ConnectionFault(PROTOCOL_ERROR, f"{name} on a stream")
    if kind == SETTINGS:
        if size % 6 or (flags & ACK and payload):
            raise ConnectionFault(FRAME_SIZE_ERROR, "SETTINGS of a wrong size")
        if size > _SETTINGS_BYTES:
            raise ConnectionFault(ENHANCE_YOUR_CALM, "too many settings")
    elif kind == PING:
        if size != 8:
            raise ConnectionFault(FRAME_SIZE_ERROR, "PING of a wrong size")
    elif kind == GOAWAY:
        if size < 8:
            raise ConnectionFault(FRAME_SIZE_ERROR, "GOAWAY too short")
    elif kind == RST_STREAM:
        if size != 4:
            raise ConnectionFault(FRAME_SIZE_ERROR, "RST_STREAM of a wrong size")
    elif kind == PRIORITY:
        if not number:
            raise ConnectionFault(PROTOCOL_ERROR, "PRIORITY on stream 0")
    elif kind == PUSH_PROMISE:
        raise ConnectionFault(PROTOCOL_ERROR, "PUSH_PROMISE")


def read_settings(payload: bytes, max_push: int) -> Iterator[tuple[int, int]]:
    """Yields the settings in a payload; ``max_push`` bounds ENABLE_PUSH. Raises ConnectionFault for a value out of
    range."""
    for name, value in _setting.iter_unpack(payload):
        if name == ENABLE_PUSH and value > max_push:
            raise ConnectionFault(PROTOCOL_ERROR, "ENABLE_PUSH out of range")
        if name == INITIAL_WINDOW_SIZE and value > MAX_VALUE:
            raise ConnectionFault(FLOW_CONTROL_ERROR, "INITIAL_WINDOW_SIZE out of range")
        if name == MAX_FRAME_SIZE and not MIN_FRAME_BYTES <= value <= MAX_FRAME_BYTES:
            raise ConnectionFault(PROTOCOL_ERROR, "MAX_FRAME_SIZE out of range")
        yield name, value


def unpadded(data: bytes, start: int, end: int) -> tuple[int, int]:
    """Returns the start and end of a padded payload. Raises ConnectionFault if the padding does not fit."""
    if start == end:
        raise ConnectionFault(FRAME_SIZE_ERROR, "no room for the padding's length")
    padding = data[start]
    if padding >= end - start:
        raise ConnectionFault(PROTOCOL_ERROR, "padding longer than the frame")
    return start + 1, end - padding


def block_in_headers(number: int, flags: int, data: bytes, start: int, end: int) -> tuple[int, int]:
    """Returns where the header block of a HEADERS frame begins and ends. Raises ConnectionFault."""
    if not number:
        raise ConnectionFault(PROTOCOL_ERROR, "HEADERS on stream 0")
    if flags & PADDED:
        start, end = unpadded(data, start, end)
    if flags & HAS_PRIORITY:
        start += 5
    if start > end:
        raise ConnectionFault(FRAME_SIZE_ERROR, "HEADERS too short")
    return start, end


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
