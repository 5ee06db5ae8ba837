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


PROTOCOL, FLOW, SIZE, CALM = 1, 3, 6, 11


@pytest.mark.parametrize(
    ("kind", "flags", "right", "wrong", "code"),
    [
        (frames.SETTINGS, 0, [0, 6, 12, 72, 6 * 64], [1, 5, 7, 13], SIZE),
        (frames.SETTINGS, 0, [6 * 64], [6 * 65, 6 * 1000], CALM),
        (frames.SETTINGS, frames.ACK, [0], [1, 6], SIZE),
        (frames.SETTINGS, 0xFE, [0, 6], [1], SIZE),
        (frames.PING, 0, [8], [0, 7, 9, 16], SIZE),
        (frames.PING, frames.ACK, [8], [7, 9], SIZE),
        (frames.GOAWAY, 0, [8, 9, 1000], [0, 7], SIZE),
        (frames.RST_STREAM, 0, [4], [0, 3, 5, 8], SIZE),
    ],
)
def test_a_control_frame_has_its_size(kind: int, flags: int, right: list[int], wrong: list[int], code: int) -> None:
    number = 1 if kind == frames.RST_STREAM else 0
    for size in right:
        frames.check_control(kind, number, flags, bytes(size))
    for size in wrong:
        with pytest.raises(frames.ConnectionFault) as found:
            frames.check_control(kind, number, flags, bytes(size))
        assert found.value.code == code


@pytest.mark.parametrize(("number", "is_legal"), [(0, False), (1, True), (2, True), (3, True)])
def test_a_control_frame_stands_on_its_stream(number: int, is_legal: bool) -> None:
    sizes = {frames.PING: 8, frames.SETTINGS: 6, frames.GOAWAY: 8, frames.PRIORITY: 5}
    for kind, size in sizes.items():
        if is_legal == (kind == frames.PRIORITY):
            frames.check_control(kind, number, 0, bytes(size))
        else:
            with pytest.raises(frames.ConnectionFault) as found:
                frames.check_control(kind, number, 0, bytes(size))
            assert found.value.code == PROTOCOL
    with pytest.raises(frames.ConnectionFault) as found:
        frames.check_control(frames.PUSH_PROMISE, number, 4, bytes(8))
    assert found.value.code == PROTOCOL
    frames.check_control(0x42, number, 0xFF, bytes(100))


@pytest.mark.parametrize(
    ("name", "right", "wrong", "code"),
    [
        (frames.HEADER_TABLE_SIZE, [0, 1, 2**32 - 1], [], None),
        (frames.ENABLE_PUSH, [0, 1], [2, 3, 2**32 - 1], PROTOCOL),
        (frames.MAX_CONCURRENT_STREAMS, [0, 1, 2**32 - 1], [], None),
        (frames.INITIAL_WINDOW_SIZE, [0, 2**31 - 1], [2**31, 2**32 - 1], FLOW),
        (frames.MAX_FRAME_SIZE, [2**14, 2**14 + 1, 2**24 - 1], [0, 2**14 - 1, 2**24, 2**32 - 1], PROTOCOL),
        (frames.MAX_HEADER_LIST_SIZE, [0, 2**32 - 1], [], None),
        (7, [0, 2, 2**32 - 1], [], None),
    ],
)
def test_a_setting_has_its_range(name: int, right: list[int], wrong: list[int], code: int | None) -> None:
    for value in right:
        assert list(frames.read_settings(frames.settings((3, 9), (name, value))[9:], 1)) == [(3, 9), (name, value)]
    for value in wrong:
        with pytest.raises(frames.ConnectionFault) as found:
            list(frames.read_settings(frames.settings((name, value))[9:], 1))
        assert found.value.code == code


def test_an_upstream_may_not_push() -> None:
    assert list(frames.read_settings(frames.settings((2, 0))[9:], 0)) == [(2, 0)]
    with pytest.raises(frames.ConnectionFault):
        list(frames.read_settings(frames.settings((2, 1))[9:], 0))


@pytest.mark.parametrize(
    ("payload", "left"),
    [
        *((b"", SIZE), (b"\0", b""), (b"\1", PROTOCOL), (b"\1a", b""), (b"\2a", PROTOCOL), (b"\0ab", b"ab")),
        *((b"\1ab", b"a"), (b"\2ab", b""), (b"\3ab", PROTOCOL), (b"\xff" + bytes(254), PROTOCOL)),
        *((b"\xff" + bytes(255), b""), (b"\xff" + bytes(256), b"\0")),
    ],
)
@pytest.mark.parametrize("start", [0, 1, 7])
def test_padding_fits_into_its_frame(start: int, payload: bytes, left: bytes | int) -> None:
    data = b"\5" * start + payload + b"next"
    if isinstance(left, bytes):
        first, end = frames.unpadded(data, start, start + len(payload))
        assert data[first:end] == left and end - first == len(left)
    else:
        with pytest.raises(frames.ConnectionFault) as found:
            frames.unpadded(data, start, start + len(payload))
        assert found.value.code == left


@pytest.mark.parametrize(
    ("number", "flags", "payload", "left"),
    [
        (0, 0, b"block", PROTOCOL),
        (1, 0, b"", b""),
        (1, 0xD7, b"block", b"block"),
        (1, 0x20, b"1234", SIZE),
        (1, 0x20, b"12345", b""),
        (1, 0x20, b"123456", b"6"),
        (1, 0x08, b"\1ab", b"a"),
        (1, 0x28, b"\x01" + b"123456p", b"6"),
        (1, 0x28, b"\x02" + b"123456p", b""),
        (1, 0x28, b"\x03" + b"123456p", SIZE),
        (1, 0x28, b"\0\0\0\0", SIZE),
    ],
)
def test_where_the_block_of_a_head_begins_and_ends(number: int, flags: int, payload: bytes, left: bytes | int) -> None:
    data = b"before" + payload + b"next"
    if isinstance(left, bytes):
        start, end = frames.block_in_headers(number, flags, data, 6, 6 + len(payload))
        assert data[start:end] == left and end - start == len(left)
    else:
        with pytest.raises(frames.ConnectionFault) as found:
            frames.block_in_headers(number, flags, data, 6, 6 + len(payload))
        assert found.value.code == left
