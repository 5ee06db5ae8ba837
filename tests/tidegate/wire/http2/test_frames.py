"""Frames by the numbers of RFC 9113, byte by byte."""

import pytest

from tidegate.wire.http2 import frames


def test_types_and_flags_are_those_of_the_rfc() -> None:
    assert (frames.DATA, frames.HEADERS, frames.PRIORITY, frames.RST_STREAM, frames.SETTINGS) == (0, 1, 2, 3, 4)
    assert (frames.PUSH_PROMISE, frames.PING, frames.GOAWAY, frames.WINDOW_UPDATE, frames.CONTINUATION) == (
        5,
        6,
        7,
        8,
        9,
    )
    flags = (frames.END_STREAM, frames.ACK, frames.END_HEADERS, frames.PADDED, frames.HAS_PRIORITY)
    assert flags == (0x1, 0x1, 0x4, 0x8, 0x20)


def test_errors_and_settings_are_those_of_the_rfc() -> None:
    errors = (
        frames.NO_ERROR, frames.PROTOCOL_ERROR, frames.INTERNAL_ERROR, frames.FLOW_CONTROL_ERROR,
        frames.SETTINGS_TIMEOUT, frames.STREAM_CLOSED, frames.FRAME_SIZE_ERROR, frames.REFUSED_STREAM, frames.CANCEL,
        frames.COMPRESSION_ERROR, frames.ENHANCE_YOUR_CALM,
    )  # fmt: skip
    assert errors == (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 11)
    settings = (
        frames.HEADER_TABLE_SIZE, frames.ENABLE_PUSH, frames.MAX_CONCURRENT_STREAMS, frames.INITIAL_WINDOW_SIZE,
        frames.MAX_FRAME_SIZE, frames.MAX_HEADER_LIST_SIZE,
    )  # fmt: skip
    assert settings == (1, 2, 3, 4, 5, 6)
    assert (frames.HEAD_BYTES, frames.MIN_FRAME_BYTES, frames.MAX_FRAME_BYTES) == (9, 16_384, 16_777_215)
    assert (frames.DEFAULT_WINDOW, frames.MAX_VALUE) == (65_535, 2_147_483_647)


def test_each_frame_is_written_as_the_rfc_draws_it() -> None:
    assert frames.settings() == bytes.fromhex("000000 04 00 00000000")
    assert frames.settings((3, 100), (4, 1 << 16)) == bytes.fromhex("00000c 04 00 00000000 0003 00000064 0004 00010000")
    assert frames.rst_stream(5, 8) == bytes.fromhex("000004 03 00 00000005 00000008")
    assert frames.window_update(5, 258) == bytes.fromhex("000004 08 00 00000005 00000102")
    assert frames.ping(b"12345678") == bytes.fromhex("000008 06 00 00000000") + b"12345678"
    assert frames.ping(b"12345678", 1) == bytes.fromhex("000008 06 01 00000000") + b"12345678"
    assert frames.goaway(7, 11, b"why") == bytes.fromhex("00000b 07 00 00000000 00000007 0000000b") + b"why"


@pytest.mark.parametrize("size", [0, 1, 9, 10, 11, 19, 20, 21, 30])
@pytest.mark.parametrize("flags", [0, 1])
def test_a_block_is_cut_to_what_the_peer_accepts(flags: int, size: int) -> None:
    block, found, at = bytes(range(size)), [], 0
    data = frames.headers(3, block, flags, 10)
    while at < len(data):
        length, kind = int.from_bytes(data[at : at + 3], "big"), data[at + 3]
        assert int.from_bytes(data[at + 5 : at + 9], "big") == 3
        found.append((kind, data[at + 4], data[at + 9 : at + 9 + length]))
        at += 9 + length
    assert b"".join(piece for _, _, piece in found) == block
    assert all(len(piece) == 10 for _, _, piece in found[:-1])
    assert [kind for kind, _, _ in found] == [1] + [9] * (len(found) - 1)
    assert [sent for _, sent, _ in found] == [
        (flags if number == 0 else 0) | (4 if number == len(found) - 1 else 0) for number in range(len(found))
    ]
    assert len(found) == max(1, -(-size // 10))
