"""Both roles of the HTTP/2 engine: conversations with each other, windows, limits, states."""

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.http2.proxy import Proxy
from tidegate.wire.http2 import frames as wire
from tidegate.wire.http2.block_memory import REQUEST, RESPONSE, Blocks
from tidegate.wire.http2.engine import Engine
from tidegate.wire.http2.events import BODY, CLOSING, FAILED, HEAD, PONG, RESET, SENT, SETTINGS, TRAILERS, Event
from tidegate.wire.http2.frames import MAX_VALUE
from tidegate.wire.http2.grpc_fields import RESOURCE_EXHAUSTED
from tidegate.wire.http2.header_blocks import Reader
from tidegate.wire.http2.hpack import literal
from tidegate.wire.http2.limits import (
    CONTROL_BURST,
    FRAME_BYTES,
    RESET_BURST,
    STREAM_WINDOW,
    STREAMS,
    WIDER_WINDOWS,
    Windows,
)
from tidegate.wire.http2.roles import H2Client, H2Server
from tidegate.wire.http2.streams import BODY_DUE, HEAD_DUE, Stream

PAGE = Path(__file__).resolve().parents[4] / "docs" / "inside" / "data-plane.md"
CALL = b"".join(
    literal(name, value)
    for name, value in (
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", b"/a.B/C"),
        (b":authority", b"a.example"),
        (b"te", b"trailers"),
        (b"content-type", b"application/grpc"),
    )
)
REST = CALL.replace(literal(b"content-type", b"application/grpc"), b"")
ANSWER = literal(b":status", b"200") + literal(b"content-type", b"application/grpc")
TRAILER = literal(b"grpc-status", b"0")
ACK = wire.frame_head(wire.SETTINGS, wire.ACK, 0)
Said = tuple[int, int, object, bool]


def frame(kind: int, flags: int, number: int, payload: bytes = b"") -> bytes:
    return wire.frame_head(len(payload) << 8 | kind, flags, number) + payload


def head(number: int, block: bytes = CALL, flags: int = 0) -> bytes:
    return frame(wire.HEADERS, flags | wire.END_HEADERS, number, block)


def said(events: list[Event]) -> list[Said]:
    """Returns events without parts that may be shared or split: stream numbers, and blocks in their forwarded form."""
    return [
        (kind, stream.number, value.outgoing if kind in (HEAD, TRAILERS) else value, flag)
        for kind, stream, value, flag in events
    ]


class Pair:
    """A client's engine and a server's, connected."""

    def __init__(self) -> None:
        self.client, self.server = H2Client(Blocks(RESPONSE)), H2Server(Blocks(REQUEST))
        self.now = 0.0
        self.exchange()

    def exchange(self) -> tuple[list[Said], list[Said]]:
        """Carries bytes until both are silent; returns the events of client and server."""
        events: tuple[list[Said], list[Said]] = ([], [])
        while True:
            to_server, to_client = self.client.take(), self.server.take()
            if not to_server and not to_client:
                return events
            events[1].extend(said(self.server.receive(to_server, self.now)))
            events[0].extend(said(self.client.receive(to_client, self.now)))


def ready_server(*settings_: tuple[int, int]) -> H2Server:
    server = H2Server(Blocks(REQUEST))
    assert said(server.receive(wire.PREFACE + wire.settings(*settings_), 0.0)) == [(SETTINGS, 0, 0, False)]
    server.take()
    return server


def ready_client(*settings_: tuple[int, int]) -> H2Client:
    client = H2Client(Blocks(RESPONSE))
    client.receive(wire.settings(*settings_), 0.0)
    client.take()
    return client


def frames(data: bytes) -> list[tuple[int, int, int, bytes]]:
    found, at = [], 0
    while at < len(data):
        size, flags, number = wire.read_head(data, at)
        end = at + 9 + (size >> 8)
        found.append((size & 255, flags, number, data[at + 9 : end]))
        at = end
    return found


# --- conversations ----------------------------------------------------------------------------------------------------


def test_a_call_and_its_answer() -> None:
    pair = Pair()
    stream = pair.client.request(CALL, False, "ours")
    assert pair.client.data(stream, b"ask", True) == 3
    assert pair.exchange()[1] == [(HEAD, 1, CALL, False), (BODY, 1, b"ask", True)]
    theirs = pair.server.streams[1]
    pair.server.head(theirs, ANSWER, False)
    assert pair.server.data(theirs, b"tell", False) == 4
    pair.server.trailers(theirs, TRAILER)
    assert pair.exchange()[0] == [(HEAD, 1, ANSWER, False), (BODY, 1, b"tell", False), (TRAILERS, 1, TRAILER, True)]
    assert stream.owner == "ours"
    assert (pair.client.streams, pair.server.streams) == ({}, {})


def test_an_answer_that_is_one_block() -> None:
    pair = Pair()
    pair.client.request(CALL, True, None)
    pair.exchange()
    pair.server.head(pair.server.streams[1], ANSWER + TRAILER, True)
    assert pair.exchange()[0] == [(HEAD, 1, ANSWER + TRAILER, True)]
    assert (pair.client.streams, pair.server.streams) == ({}, {})


def test_interim_heads() -> None:
    pair = Pair()
    pair.client.request(CALL, False, None)
    pair.exchange()
    early = literal(b":status", b"103")
    for _ in range(2):
        pair.server.interim(pair.server.streams[1], early)
    pair.server.head(pair.server.streams[1], ANSWER, False)
    pair.server.interim(pair.server.streams[1], early)
    assert pair.exchange()[0] == [(HEAD, 1, early, False), (HEAD, 1, early, False), (HEAD, 1, ANSWER, False)]


def test_an_answer_that_overtakes_its_request_ends_both() -> None:
    pair = Pair()
    stream = pair.client.request(CALL, False, None)
    pair.exchange()
    pair.server.head(pair.server.streams[1], ANSWER + TRAILER, True)
    assert pair.exchange()[0] == [(HEAD, 1, ANSWER + TRAILER, True)]
    assert pair.client.data(stream, b"late", True) == 0
    assert (pair.client.streams, pair.server.streams) == ({}, {})
    assert pair.exchange() == ([], []), "what is on its way on a stream that was reset is read over"


def test_reset_passes_with_its_code_and_once() -> None:
    pair = Pair()
    stream = pair.client.request(CALL, False, None)
    pair.client.reset(stream, wire.CANCEL)
    pair.client.reset(stream, wire.CANCEL)
    assert pair.exchange()[1] == [(HEAD, 1, CALL, False), (RESET, 1, wire.CANCEL, False)]
    stream = pair.client.request(CALL, False, None)
    pair.exchange()
    pair.server.reset(pair.server.streams[3], 0xBEEF)
    assert pair.exchange()[0] == [(RESET, 3, 0xBEEF, False)]


def test_goaway_refuses_what_came_too_late() -> None:
    pair = Pair()
    pair.client.request(CALL, True, None)
    pair.exchange()
    pair.server.goaway()
    pair.client.request(CALL, True, None)
    to_client, to_server = pair.exchange()
    assert to_client == [(RESET, 3, wire.REFUSED_STREAM, False), (CLOSING, 0, wire.NO_ERROR, False)]
    assert to_server == []
    assert not pair.client.has_room()
    pair.server.head(pair.server.streams[1], ANSWER, True)
    assert pair.exchange()[0] == [(HEAD, 1, ANSWER, True)], "what was accepted is served"


def test_goaway_in_two_steps_loses_nothing() -> None:
    pair = Pair()
    pair.server.prepare_goaway()
    pair.client.request(CALL, True, None)
    to_client, to_server = pair.exchange()
    assert (to_client, to_server) == ([(CLOSING, 0, wire.NO_ERROR, False)], [(HEAD, 1, CALL, True)])


def test_ping() -> None:
    pair = Pair()
    pair.client.ping(b"12345678")
    assert pair.exchange() == ([(PONG, 0, b"12345678", False)], [])


def test_a_client_keeps_the_upstream_s_limit_of_streams() -> None:
    client = ready_client((wire.MAX_CONCURRENT_STREAMS, 1))
    stream = client.request(CALL, True, None)
    assert not client.has_room()
    with pytest.raises(RuntimeError):
        client.request(CALL, True, None)
    client.reset(stream, wire.CANCEL)
    assert client.has_room()


def test_blocks_are_cut_at_the_peer_s_frame_size_and_joined_again() -> None:
    pair = Pair()
    large = CALL + literal(b"x-large", b"x" * 15000) * 1
    pair.server._frame_bytes = pair.client._frame_bytes = 1000
    pair.client.request(large, True, None)
    assert pair.exchange()[1] == [(HEAD, 1, large, True)]


def test_the_first_block_says_that_no_table_is_used() -> None:
    client = ready_client()
    client.request(CALL, True, None)
    client.request(CALL, True, None)
    assert [payload[:1] for _, _, _, payload in frames(client.take())] == [b"\x20", CALL[:1]]
    client.receive(wire.settings((wire.HEADER_TABLE_SIZE, 100)), 0.0)
    client.take()
    client.request(CALL, True, None)
    assert frames(client.take())[0][3] == b"\x20" + CALL


def test_an_answer_to_head_has_a_length_and_no_body() -> None:
    client = ready_client()
    client.request(CALL, True, None, is_head=True)
    block = literal(b":status", b"200") + literal(b"content-length", b"5")
    assert said(client.receive(head(1, block, wire.END_STREAM), 0.0)) == [(HEAD, 1, block, True)]
    client.request(CALL, True, None)
    assert said(client.receive(head(3, block, wire.END_STREAM), 0.0)) == [(RESET, 3, wire.PROTOCOL_ERROR, True)]
    same = literal(b":status", b"304") + literal(b"content-length", b"5")
    stream = client.request(CALL, True, None)
    assert said(client.receive(head(5, same, wire.END_STREAM), 0.0)) == [(HEAD, 5, same, True)]
    assert stream.number not in client.streams
    client.request(CALL, True, None)
    got = client.receive(head(7, block) + frame(wire.DATA, 0, 7, b"abc") + frame(wire.DATA, 0, 7, b"def"), 0.0)
    assert said(got)[1:] == [(BODY, 7, b"abc", False), (RESET, 7, wire.PROTOCOL_ERROR, True)]


def test_less_than_was_announced_is_a_fault_before_the_end_is_passed_on() -> None:
    block = CALL + literal(b"content-length", b"5")
    server = ready_server()
    assert server.receive(head(1, block, wire.END_STREAM), 0.0) == []
    got = server.receive(head(3, block) + frame(wire.DATA, wire.END_STREAM, 3, b"abcd"), 0.0)
    assert said(got)[1:] == [(RESET, 3, wire.PROTOCOL_ERROR, True)]
    got = server.receive(head(5, block) + frame(wire.DATA, 0, 5, b"abcd") + head(5, TRAILER, wire.END_STREAM), 0.0)
    assert said(got)[1:] == [(BODY, 5, b"abcd", False), (RESET, 5, wire.PROTOCOL_ERROR, True)]
    assert [kind for kind, *_ in frames(server.take())] == [wire.RST_STREAM] * 3


def test_an_answer_ends_a_stream_although_its_request_waits() -> None:
    client = ready_client((wire.INITIAL_WINDOW_SIZE, 2))
    stream = client.request(CALL, False, None)
    assert client.data(stream, b"abcd", True) == 2
    client.take()
    client.receive(head(1, ANSWER, wire.END_STREAM), 0.0)
    assert frames(client.take()) == [(wire.RST_STREAM, 0, 1, bytes(4))]


def test_a_table_is_not_allowed_once_the_peer_has_acknowledged_our_settings() -> None:
    update = b"\x3f\xe1\x1f"
    server = ready_server()
    assert server.receive(head(1, update + CALL), 0.0)[0][0] == HEAD
    server.receive(ACK, 0.0)
    assert failure(server, head(3, update + CALL)) == wire.COMPRESSION_ERROR


def test_a_stream_whose_answer_waited_long_for_credit_lingers_from_when_it_has_gone() -> None:
    server, client = H2Server(Blocks(REQUEST)), H2Client(Blocks(RESPONSE))
    asked = client.request(CALL, False, None)
    stream = next(each[1] for each in server.receive(client.take(), 0.0) if each[0] == HEAD)
    stream.lingers = True
    server.head(stream, ANSWER, False)
    server.data(stream, b"x" * 70_000, True)
    client.receive(server.take(), 0.0)
    assert stream.waiting
    assert server.stalled(100.0, 300.0, 375.0) == []
    client.passed(asked, 70_000)
    server.receive(client.take(), 140.0)
    client.receive(server.take(), 140.0)
    assert not stream.waiting
    assert server.lingering(140.0, 30.0) == []
    assert server.lingering(171.0, 30.0) == [stream]


@pytest.mark.parametrize("lingers", [False, True])
def test_a_request_that_is_answered_early_is_reset_at_once_or_read_over_for_its_time(lingers: bool) -> None:
    server = ready_server()
    (_, stream, _, _), *_ = server.receive(head(1, flags=wire.END_HEADERS), 0.0)
    stream.lingers = lingers
    server.head(stream, ANSWER, True)
    answer, *resets = frames(server.take())
    assert answer[1] & wire.END_STREAM
    assert [each[0] for each in resets] == ([] if lingers else [wire.RST_STREAM])
    server.receive(frame(wire.DATA, 0, 1, b"x" * 1000), 0.1)
    assert server.take() == b"", "no credit for what is not read"
    assert server.lingering(0.2, 5.0) == []
    assert server.lingering(6.0, 5.0) == ([stream] if lingers else [])


def test_pieces_are_cut_at_the_peer_s_frame_size() -> None:
    client = ready_client((wire.INITIAL_WINDOW_SIZE, 1 << 20))
    stream = client.request(CALL, False, None)
    client.take()
    assert client.data(stream, b"x" * 40_000, False) == 40_000
    assert [len(payload) for *_, payload in frames(client.take())] == [16384, 16384, 7232]


@pytest.mark.parametrize(("request_head", "code"), [(CALL, RESOURCE_EXHAUSTED), (REST, None)])
def test_a_header_list_that_is_too_large_is_answered(request_head: bytes, code: int | None) -> None:
    server = ready_server()
    fields = b"".join(literal(b"x-%d" % number, b"y" * 100) for number in range(200))
    assert server.receive(head(1, request_head + fields), 0.0) == []
    answer, reset = frames(server.take())
    assert answer[:3] == (wire.HEADERS, wire.END_HEADERS | wire.END_STREAM, 1)
    found = Reader(Blocks(RESPONSE)).read(answer[3])
    assert (found.status, found.grpc_status) == (431 if code is None else 200, code)
    assert reset[0] == wire.RST_STREAM


def test_nothing_is_sent_on_a_stream_that_both_sides_have_ended() -> None:
    """RFC 9113 section 5.1: the response to a list that is too large closes the stream of a request without a body."""
    server = ready_server()
    server.receive(wire.headers(1, CALL + literal(b"x-large", b"y" * 17_000), wire.END_STREAM, 1 << 18), 0.0)
    (answer,) = frames(server.take())
    assert answer[:3] == (wire.HEADERS, wire.END_HEADERS | wire.END_STREAM, 1)
    server.receive(wire.rst_stream(1, wire.CANCEL), 0.0)
    assert server.take() == b""


@given(st.data())
@settings(max_examples=50)
def test_any_split_means_the_same(data: st.DataObject) -> None:
    """Except for the split of bodies, which are forwarded as they come."""
    sent = (
        wire.PREFACE
        + wire.settings((wire.INITIAL_WINDOW_SIZE, 10))
        + head(1, CALL + literal(b"x-a", b"1"))
        + frame(wire.DATA, wire.PADDED, 1, b"\x03hello\0\0\0")
        + frame(wire.HEADERS, wire.HAS_PRIORITY, 3, b"\0\0\0\0\1" + CALL[:20])
        + frame(wire.CONTINUATION, 0, 3, CALL[20:30])
        + frame(wire.CONTINUATION, wire.END_HEADERS, 3, CALL[30:])
        + frame(wire.PING, 0, 0, b"12345678")
        + frame(wire.DATA, 0, 3, b"d" * 300)
        + frame(0x42, 0, 0, b"unknown")
        + frame(wire.DATA, wire.END_STREAM, 1, b"end")
        + frame(wire.RST_STREAM, 0, 3, b"\0\0\0\x08")
        + frame(wire.GOAWAY, 0, 0, bytes(8))
    )
    cuts = sorted(data.draw(st.lists(st.integers(0, len(sent)), max_size=40)))
    whole, cut = H2Server(Blocks(REQUEST)), H2Server(Blocks(REQUEST))
    expected = _joined(said(whole.receive(sent, 0.0)))
    events: list[Said] = []
    for start, end in zip([0, *cuts], [*cuts, len(sent)], strict=True):
        events += said(cut.receive(sent[start:end], 0.0))
    assert _joined(events) == expected
    assert len(expected) == 8
    assert cut.take() == whole.take()
    assert not cut.is_head_due


def _joined(events: list[Said]) -> list[Said]:
    joined: list[Said] = []
    for kind, number, value, flag in events:
        last = joined[-1] if joined else (0, 0, 0, False)
        if kind == BODY == last[0] and number == last[1]:
            joined[-1] = (kind, number, bytes(last[2]) + bytes(value), flag)  # type: ignore[call-overload]
        else:
            joined.append((kind, number, value, flag))
    return joined


BLOCKS = st.one_of(
    st.sampled_from((CALL, ANSWER, TRAILER, b"\x20" + CALL, CALL[:10], b"", b"\x40\x01a\x01b", b"\xbe", b"\x88")),
    st.binary(max_size=12),
)
FRAMES = st.one_of(
    st.builds(
        frame,
        st.sampled_from((wire.DATA, wire.HEADERS, wire.CONTINUATION)),
        st.sampled_from((0, 1, 4, 5, 5, 5, 8, 13, 32, 37)),
        st.sampled_from((0, 1, 1, 3, 3, 5, 2, 9)),
        BLOCKS,
    ),
    st.builds(
        frame,
        st.integers(2, 10),
        st.sampled_from((0, 0, 1, 8)),
        st.sampled_from((0, 0, 1, 3, 5)),
        st.one_of(st.integers(0, 1 << 32).map(lambda n: n.to_bytes(5, "big")[1:]), st.binary(max_size=12)),
    ),
    st.builds(
        lambda name, value: wire.settings((name, value)),
        st.integers(1, 6),
        st.sampled_from((0, 1, 99, 16384, MAX_VALUE)),
    ),
    st.builds(wire.window_update, st.sampled_from((0, 1, 3)), st.integers(1, 100_000)),
)
COMMANDS = st.tuples(st.integers(0, 5), st.integers(0, 40_000))


@given(st.lists(st.one_of(FRAMES, COMMANDS), max_size=40), st.booleans(), st.integers(1, 50))
@settings(deadline=None)
def test_anything_may_come(script: list[bytes | tuple[int, int]], is_server: bool, cut: int) -> None:
    """Nothing raises, whatever both sides do; ended streams are removed; events are of reported streams, in order, and
    none comes after an end."""
    server, client = ready_server(), ready_client()
    engine: Engine = server if is_server else client
    streams = [] if is_server else [client.request(CALL, False, None) for _ in range(3)]
    over: set[int] = set()
    for step in script:
        events: list[Event] = []
        if isinstance(step, bytes):
            for at in range(0, len(step), cut):
                events += engine.receive(step[at : at + cut], 0.0)
        elif streams:
            what, size = step
            stream = streams[size % len(streams)]
            if what == 0 and is_server:
                server.head(stream, ANSWER, size % 2 == 0)
            elif what == 1:
                engine.data(stream, b"x" * size, size % 3 == 0)
            elif what == 2:
                engine.trailers(stream, TRAILER)
            elif what == 3:
                engine.reset(stream, wire.CANCEL)
            elif what == 4:
                engine.passed(stream, size)
            else:
                engine.pause() if size % 2 else events.extend(engine.resume())
        for kind, stream, _, flag in events:
            if kind == HEAD and is_server:
                streams.append(stream)
            if kind in (HEAD, BODY, TRAILERS, RESET):
                assert stream in streams
                assert stream.number not in over or kind == RESET
                if kind == RESET or (flag and kind != HEAD):
                    over.add(stream.number)
        for stream in engine.streams.values():
            assert stream.state != 3 or stream.waiting or stream.tail is not None
            assert stream in streams
        assert engine._blocked.keys() <= engine.streams.keys()
        frames(engine.take())


# --- windows ----------------------------------------------------------------------------------------------------------


def test_what_has_no_credit_waits_and_its_end_with_it() -> None:
    server = ready_server((wire.INITIAL_WINDOW_SIZE, 4))
    server.receive(head(1, flags=wire.END_STREAM), 0.0)
    stream = server.streams[1]
    server.head(stream, ANSWER, False)
    server.take()
    assert server.data(stream, b"abcdef", False) == 4
    assert server.data(stream, b"gh", False) == 0
    server.trailers(stream, TRAILER)
    assert (stream.waiting, frames(server.take())) == (4, [(wire.DATA, 0, 1, b"abcd")])
    assert said(server.receive(wire.window_update(1, 3), 0.0)) == [(SENT, 1, 3, False)]
    assert said(server.receive(wire.window_update(1, 9), 0.0)) == [(SENT, 1, 1, True)]
    assert [kind for kind, _, _, _ in frames(server.take())] == [wire.DATA, wire.DATA, wire.HEADERS]
    assert server.streams == {}


def test_the_initial_window_frees_and_shrinks_streams() -> None:
    server = ready_server((wire.INITIAL_WINDOW_SIZE, 3))
    server.receive(head(1, flags=wire.END_STREAM), 0.0)
    stream = server.streams[1]
    server.head(stream, ANSWER, False)
    assert server.data(stream, b"abcdef", True) == 3
    server.receive(wire.settings((wire.INITIAL_WINDOW_SIZE, 1)), 0.0)
    assert stream.window == -2
    assert said(server.receive(wire.window_update(1, 2), 0.0)) == []
    assert said(server.receive(wire.settings((wire.INITIAL_WINDOW_SIZE, 3)), 0.0)) == [
        (SENT, 1, 2, False),
        (SETTINGS, 0, 0, False),
    ]
    assert said(server.receive(wire.settings((wire.INITIAL_WINDOW_SIZE, 100)), 0.0))[0] == (SENT, 1, 1, True)


def test_an_end_needs_no_credit() -> None:
    server = ready_server((wire.INITIAL_WINDOW_SIZE, 3))
    server.receive(head(1, flags=wire.END_STREAM), 0.0)
    stream = server.streams[1]
    server.head(stream, ANSWER, False)
    assert server.data(stream, b"abc", False) == 3
    server.receive(wire.settings((wire.INITIAL_WINDOW_SIZE, 0)), 0.0)
    server.take()
    assert server.data(stream, b"", True) == 0
    assert frames(server.take()) == [(wire.DATA, wire.END_STREAM, 1, b"")]


def test_credit_is_returned_for_what_was_passed_on() -> None:
    server = ready_server()
    server.receive(head(1), 0.0)
    stream = server.streams[1]
    piece = b"x" * 16384
    for _ in range(STREAM_WINDOW // len(piece)):
        server.receive(frame(wire.DATA, 0, 1, piece), 0.0)
    assert (stream.allowance, server.take()) == (0, b"")
    server.passed(stream, 1000)
    assert server.take() == b"", "not for every little"
    server.passed(stream, STREAM_WINDOW - 1000)
    assert server.take() == wire.window_update(1, STREAM_WINDOW)
    server.receive(frame(wire.DATA, 0, 1, piece), 0.0)
    assert stream.allowance == STREAM_WINDOW - len(piece)


def test_the_window_of_a_stream_that_somebody_reads_grows_in_two_steps() -> None:
    server = ready_server()
    server.receive(head(1), 0.0)
    stream = server.streams[1]
    granted = [stream.granted]
    received = 0
    while received < 4 << 20:
        size = min(16384, stream.allowance)
        assert size > 0
        server.receive(frame(wire.DATA, 0, 1, b"x" * size), 0.0)
        server.passed(stream, size)
        received += size
        if stream.granted != granted[-1]:
            granted.append(stream.granted)
        assert stream.allowance + stream.owed == stream.granted, "all that has come was passed on"
    assert granted == [STREAM_WINDOW, *(window for _, window in WIDER_WINDOWS)]


def test_the_window_of_a_stream_that_none_reads_stays_as_it_is() -> None:
    server = ready_server()
    server.receive(head(1), 0.0)
    stream = server.streams[1]
    server.receive(frame(wire.DATA, 0, 1, b"x" * 16384) * (STREAM_WINDOW // 16384), 0.0)
    server.passed(stream, STREAM_WINDOW)  # As much as goes into a client's own window of the usual size.
    assert (stream.granted, stream.allowance) == (STREAM_WINDOW, STREAM_WINDOW)


def test_credit_for_the_connection_that_helps_none_costs_nothing() -> None:
    """A peer with streams blocked by their own windows could make the engine look at all of them, for 13 bytes."""
    server = ready_server((wire.INITIAL_WINDOW_SIZE, 0))
    for number in range(1, 2 * STREAMS, 2):
        server.receive(head(number, flags=wire.END_STREAM), 0.0)
        server.head(server.streams[number], ANSWER, False)
        server.data(server.streams[number], b"waits", True)
    with pytest.MonkeyPatch.context() as patch:
        looked_at: list[Stream] = []
        patch.setattr(H2Server, "_drain", lambda self, stream, **_: looked_at.append(stream))
        assert server.receive(wire.window_update(0, 1) * 1000, 0.0) == []
        assert looked_at == []
    said_of = said(server.receive(wire.window_update(3, 5), 0.0))
    assert said_of == [(SENT, 3, 5, True)]


def test_wide_windows_have_a_budget_and_come_home_with_their_streams() -> None:
    windows = Windows(300_000)
    server = H2Server(Blocks(REQUEST), windows)
    server.receive(wire.PREFACE + wire.settings(), 0.0)
    piece = frame(wire.DATA, 0, 1, b"x" * 16384)
    for number in (1, 3):
        server.receive(head(number), 0.0)
        for _ in range(12):
            server.receive(piece[:5] + number.to_bytes(4, "big") + piece[9:], 0.0)
            server.passed(server.streams[number], 16384)
    wide = WIDER_WINDOWS[0][1]
    assert [stream.granted for stream in server.streams.values()] == [wide, STREAM_WINDOW], "none is left for a second"
    assert windows.left == 300_000 - (wide - STREAM_WINDOW)
    server.reset(server.streams[1], wire.CANCEL)
    assert windows.left == 300_000
    server.end()
    assert (server.streams, windows.left) == ({}, 300_000)


def test_an_end_that_comes_behind_all_of_the_length_is_waited_for() -> None:
    server = ready_server()
    server.receive(head(1, CALL + literal(b"content-length", b"3")) + frame(wire.DATA, 0, 1, b"abc"), 0.0)
    stream = server.streams[1]
    server.head(stream, ANSWER, True)
    assert [kind for kind, *_ in frames(server.take())] == [wire.HEADERS], "no reset"
    assert server.lingering(1.0, 5.0) == []
    assert server.lingering(7.0, 5.0) == [stream]
    server.receive(frame(wire.DATA, wire.END_STREAM, 1), 0.0)
    assert server.streams == {}
    assert server.lingering(20.0, 5.0) == []


def test_the_connection_s_window_is_kept_open() -> None:
    server = ready_server()
    server.receive(head(1), 0.0)
    server._taken = (1 << 30) - 3
    server.receive(frame(wire.DATA, 0, 1, b"ab"), 0.0)
    assert server.take() == b""
    server.receive(frame(wire.DATA, 0, 1, b"c"), 0.0)
    assert server.take() == wire.window_update(0, 1 << 30)


def test_more_than_the_window_is_a_fault_of_the_stream() -> None:
    server = ready_server()
    server.receive(head(1), 0.0)
    for _ in range(STREAM_WINDOW // 16384):
        assert len(server.receive(frame(wire.DATA, 0, 1, b"x" * 16384), 0.0)) == 1
    assert said(server.receive(frame(wire.DATA, 0, 1, b"x"), 0.0)) == [(RESET, 1, wire.FLOW_CONTROL_ERROR, True)]
    assert server.receive(frame(wire.DATA, 0, 1, b"x" * 16384), 0.0) == [], "what is on its way is read over"


def test_padding_is_credited_at_once() -> None:
    server = ready_server()
    server.receive(head(1), 0.0)
    stream = server.streams[1]
    server.receive(frame(wire.DATA, wire.PADDED, 1, b"\x05a" + bytes(5)), 0.0)
    assert (stream.owed, stream.allowance) == (6, STREAM_WINDOW - 7)
    server.receive(frame(wire.DATA, wire.PADDED, 1, b"\x02a longer piece" + bytes(2)), 0.0)
    assert (stream.owed, stream.allowance) == (9, STREAM_WINDOW - 7 - 17)


def test_flags_without_a_meaning_change_nothing() -> None:
    server = ready_server()
    begin = frame(wire.HEADERS, 0x90 | wire.HAS_PRIORITY, 1, b"\0\0\0\0\1" + CALL[:20])
    assert server.receive(begin, 0.0) == []
    events = server.receive(frame(wire.CONTINUATION, 0xF0 | wire.END_HEADERS, 1, CALL[20:]), 0.0)
    assert said(events) == [(HEAD, 1, CALL, False)]


def test_streams_share_the_connection_s_window_in_turns() -> None:
    server = ready_server((wire.INITIAL_WINDOW_SIZE, 1 << 20))
    server.receive(head(1, flags=wire.END_STREAM) + head(3, flags=wire.END_STREAM), 0.0)
    streams = [server.streams[1], server.streams[3]]
    for stream in streams:
        server.head(stream, ANSWER, False)
        server.data(stream, b"x" * 200_000, True)
    assert [stream.waiting for stream in streams] == [200_000 - 65535, 200_000]
    for _ in range(2):
        server.receive(wire.window_update(0, 16384), 0.0)
    assert [stream.waiting for stream in streams] == [200_000 - 65535 - 16384, 200_000 - 16384]


def test_a_full_transport_lets_bodies_wait() -> None:
    server = ready_server()
    server.receive(head(1, flags=wire.END_STREAM), 0.0)
    stream = server.streams[1]
    server.head(stream, ANSWER, False)
    server.pause()
    assert server.data(stream, b"abc", False) == 0
    assert server.receive(wire.window_update(1, 10), 0.0) == []
    assert said(server.resume()) == [(SENT, 1, 3, True)]
    assert server.data(stream, b"abc", False) == 3


def test_a_stall_is_seen_by_the_sweeper_and_forgotten_with_progress() -> None:
    server = ready_server((wire.INITIAL_WINDOW_SIZE, 0))
    server.receive(head(1, flags=wire.END_STREAM), 0.0)
    stream = server.streams[1]
    server.head(stream, ANSWER, False)
    assert server.stalled(100.0, 30.0) == []
    server.data(stream, b"abcdef", True)
    assert server.stalled(100.0, 30.0) == []
    assert server.stalled(129.0, 30.0) == []
    server.receive(wire.window_update(1, 1), 0.0)
    assert server.stalled(131.0, 30.0) == []
    assert server.stalled(162.0, 30.0) == [stream]
    server.reset(stream, wire.CANCEL)
    assert server.stalled(200.0, 30.0) == []


def test_what_is_left_of_an_answer_that_has_ended_has_a_time_in_all() -> None:
    """A client that takes it byte by byte does not keep it for good; while a response goes on there is no such time."""
    server = ready_server((wire.INITIAL_WINDOW_SIZE, 0))
    for number in (1, 3, 5):
        server.receive(head(number, flags=wire.END_STREAM), 0.0)
    ended, trailed, running = (server.streams[number] for number in (1, 3, 5))
    for stream in (ended, trailed, running):
        server.head(stream, ANSWER, False)
        server.data(stream, b"abcdef", stream is ended)
    server.trailers(trailed, TRAILER)
    for now in (100.0, 120.0, 140.0, 160.0):
        assert server.stalled(now, 30.0, 60.0) == []
        server.receive(b"".join(wire.window_update(number, 1) for number in (1, 3, 5)), now)
    assert server.stalled(161.0, 30.0, 60.0) == [ended, trailed]
    assert server.stalled(161.0, 30.0) == []


OPS = st.lists(
    st.one_of(
        st.tuples(st.just("up"), st.integers(0, 3), st.integers(0, 40_000)),
        st.tuples(st.just("down"), st.integers(0, 3), st.integers(0, 40_000)),
        st.tuples(st.just("grow"), st.integers(0, 4), st.integers(1, 30_000)),
        st.tuples(st.just("window"), st.just(0), st.integers(0, 70_000)),
        st.tuples(st.just("full"), st.booleans(), st.just(0)),
    ),
    max_size=30,
)


@given(OPS)
@settings(max_examples=60)
def test_no_byte_is_lost_or_doubled_under_any_windows(ops: list[tuple[str, int, int]]) -> None:
    """Four calls both ways through a proxy; the peers change their windows arbitrarily, and open them in the end."""
    proxy = Proxy()
    client, server = H2Client(Blocks(RESPONSE)), H2Server(Blocks(REQUEST))
    for engine in (client, server):
        engine._out.pop()  # The windows of the connections stay small until the next WINDOW_UPDATE.
    ours = [client.request(CALL, False, None) for _ in range(4)]
    asked, answered = [b""] * 4, [b""] * 4
    got_up, got_down = [b""] * 4, [b""] * 4
    done_up, done_down = [False] * 4, [False] * 4

    def note(events: list[Event], got: list[bytes], done: list[bool]) -> None:
        for kind, stream, value, flag in events:
            assert kind not in (FAILED, RESET), said(events)
            index = stream.number // 2
            if kind == BODY:
                got[index] += value
            if kind in (BODY, TRAILERS) and flag:
                done[index] = True

    def carry() -> None:
        while True:
            up, down = client.take(), server.take()
            if up or proxy.server._out:
                to_client, to_upstream = proxy.from_client(up)
                note(client.receive(to_client, 0.0), got_down, done_down)
                note(server.receive(to_upstream, 0.0), got_up, done_up)
            to_client, to_upstream = proxy.from_upstream(down)
            note(client.receive(to_client, 0.0), got_down, done_down)
            note(server.receive(to_upstream, 0.0), got_up, done_up)
            if not (up or down or to_client or to_upstream):
                return

    carry()
    theirs = [server.streams[number] for number in (1, 3, 5, 7)]
    for stream in theirs:
        server.head(stream, ANSWER, False)
    for stream in (*ours, *theirs):
        stream.allowance = 1 << 40  # What the ends grant is written by hand below, past their own count.
    for op, which, size in ops:
        if op == "up":
            piece = bytes((len(asked[which]) + i) % 251 for i in range(size))
            asked[which] += piece
            client.data(ours[which], piece, False)
        elif op == "down":
            piece = bytes((len(answered[which]) + i) % 241 for i in range(size))
            answered[which] += piece
            server.data(theirs[which], piece, False)
        elif op == "grow":
            number = 2 * which - 1 if which else 0
            client._out.append(wire.window_update(number, size))
            server._out.append(wire.window_update(number, size))
        elif op == "window":
            for engine in (client, server):
                engine._out.append(wire.settings((wire.INITIAL_WINDOW_SIZE, size)))
        elif which:
            proxy.server.pause()
        else:
            proxy.answers([])
            proxy.requests(proxy.client.resume())
            for kind, stream, value, _ in proxy.server.resume():
                assert kind == SENT
                proxy.client.passed(stream.owner, value)
        carry()
    for kind, stream, value, _ in proxy.server.resume():
        assert kind == SENT
        proxy.client.passed(stream.owner, value)
    for engine in (client, server):
        engine._out.append(wire.settings((wire.INITIAL_WINDOW_SIZE, 1 << 24)) + wire.window_update(0, 1 << 24))
    carry()
    for index in range(4):
        client.data(ours[index], b"", True)
        carry()
        server.trailers(theirs[index], TRAILER)
        carry()
    assert (got_up, got_down) == (asked, answered)
    assert (done_up, done_down) == ([True] * 4, [True] * 4)
    assert not any((proxy.server.streams, proxy.client.streams, client.streams, server.streams))


# --- limits -----------------------------------------------------------------------------------------------------------


def failure(server: Engine, data: bytes, now: float = 0.0) -> int | None:
    """Returns the code of the GOAWAY that ``data`` leads to."""
    events = server.receive(data, now)
    codes = [value for kind, _, value, _ in events if kind == FAILED]
    if codes:
        assert server.receive(b"anything", now) == []
        assert wire.read_word(frames(server.take())[-1][3], 4)[0] == codes[0]
    return codes[0] if codes else None


FLOODS: dict[str, Callable[[int], bytes]] = {
    "ping": lambda n: frame(wire.PING, 0, 0, b"12345678"),
    "pong": lambda n: frame(wire.PING, wire.ACK, 0, b"12345678"),
    "settings": lambda n: wire.settings(),
    "acks": lambda n: ACK,
    "priority": lambda n: frame(wire.PRIORITY, 0, 1, bytes(5)),
    "empty data": lambda n: frame(wire.DATA, 0, 1),
    "padding": lambda n: frame(wire.DATA, wire.PADDED, 1, b"\x09" + bytes(9)),
    "unknown": lambda n: frame(0x99, 0, 0, b"x"),
    "goaway": lambda n: frame(wire.GOAWAY, 0, 0, bytes(8)),
}


@pytest.mark.parametrize("name", FLOODS)
def test_frames_that_carry_nothing_have_a_rate(name: str) -> None:
    server = ready_server()
    server.receive(head(1), 0.0)
    made = FLOODS[name]
    now = 0.0
    for number in range(int(CONTROL_BURST) + 2000):  # 100 per second for ever: below the rate
        now += 0.01
        assert failure(server, made(number), now) is None
    assert failure(server, b"".join(made(number) for number in range(int(CONTROL_BURST) + 10)), now) == 0xB


def test_continuation_has_a_limit_of_bytes_and_of_frames() -> None:
    begin = frame(wire.HEADERS, 0, 1, CALL[:9])
    assert failure(ready_server(), begin + frame(wire.CONTINUATION, 0, 1, b"x" * 16384) * 4) == 0xB
    assert failure(ready_server(), begin + frame(wire.CONTINUATION, 0, 1) * 1001) == 0xB
    assert failure(ready_server(), frame(wire.HEADERS, wire.END_HEADERS, 1, b"x" * 70_000)) == 0xB


def test_a_proxy_of_ours_may_reset_for_all_of_its_clients() -> None:
    server = ready_server()
    server.trust_peer()
    for number in range(1, 20 * int(RESET_BURST), 2):
        server.receive(head(number) + frame(wire.RST_STREAM, 0, number, b"\0\0\0\x08"), 0.0)
    assert not server.is_over


def test_what_still_comes_on_calls_that_we_cancelled_is_no_flood() -> None:
    client = ready_client()
    for _ in range(100):
        stream = client.request(CALL, True, None)
        client.reset(stream, wire.CANCEL)
        client.receive(head(stream.number, ANSWER) + frame(wire.DATA, 0, stream.number, b"x" * 100) * 64, 0.0)
    assert not client.is_over


def test_data_earns_pings() -> None:
    """Peers that measure their bandwidth send a PING for the data that they receive."""
    server = ready_server()
    server.receive(head(1), 0.0)
    turn = frame(wire.DATA, 0, 1, b"x") + frame(wire.PING, 0, 0, b"12345678")
    for _ in range(5):
        assert failure(server, turn * 1000) is None


def test_rapid_reset() -> None:
    server = ready_server()
    numbers = range(1, 10_001, 2)
    opened = 0
    for number in numbers:
        events = server.receive(head(number) + wire.rst_stream(number, wire.CANCEL), 0.0)
        opened += events[0][0] == HEAD
        if server.is_over:
            break
    assert opened == RESET_BURST + 1
    server = ready_server()
    for count, number in enumerate(numbers):
        assert failure(server, head(number) + wire.rst_stream(number, wire.CANCEL), count * 0.01) is None


@pytest.mark.parametrize(
    "provoke",
    [
        lambda number: head(number) + wire.window_update(number, 0),
        lambda number: head(number) + head(number),
        lambda number: head(number, b"\0\x01A\x01b"),
        lambda number: head(number) + frame(wire.PRIORITY, 0, number, b"1234"),
    ],
    ids=["window", "trailers", "malformed", "priority"],
)
def test_resets_that_are_provoked_count(provoke: Callable[[int], bytes]) -> None:
    server = ready_server()
    data = b"".join(provoke(number) for number in range(1, 2 * int(RESET_BURST) + 3, 2))
    assert failure(server, data) == 0xB


def test_surplus_streams_are_refused_and_their_data_read_over() -> None:
    server = ready_server()
    heads = b"".join(head(number) for number in range(1, 2 * STREAMS + 1, 2))
    assert len(server.receive(heads, 0.0)) == STREAMS
    late = 2 * STREAMS + 1
    assert server.receive(head(late) + frame(wire.DATA, 0, late, b"x") + head(late, TRAILER, 1), 0.0) == []
    assert frames(server.take()) == [(wire.RST_STREAM, 0, late, b"\0\0\0\x07")]


def test_resets_of_an_upstream_do_not_end_its_connection() -> None:
    client = ready_client()
    for _ in range(1000):
        number = client.request(CALL, True, None).number
        assert len(client.receive(wire.rst_stream(number, 2), 0.0)) == 1


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (frame(wire.DATA, 0, 1), wire.PROTOCOL_ERROR),
        (head(1), wire.PROTOCOL_ERROR),
        (head(2), wire.PROTOCOL_ERROR),
        (frame(wire.PUSH_PROMISE, wire.END_HEADERS, 1, b"\0\0\0\2" + CALL), wire.PROTOCOL_ERROR),
        (wire.settings((wire.ENABLE_PUSH, 1)), wire.PROTOCOL_ERROR),
        (wire.rst_stream(1, 0), wire.PROTOCOL_ERROR),
    ],
    ids=["data", "head", "even", "push", "enable push", "reset"],
)
def test_what_an_upstream_may_not_send(data: bytes, code: int) -> None:
    assert failure(ready_client(), data) == code


def test_the_head_s_time_limit_runs_while_something_is_owed() -> None:
    server = H2Server(Blocks(REQUEST))
    due = [server.is_head_due]
    for data in (
        *(wire.PREFACE[:5], wire.PREFACE[5:], wire.settings(), head(1)[:-1], head(1)[-1:]),
        *(frame(wire.HEADERS, 0, 3, CALL), frame(wire.CONTINUATION, wire.END_HEADERS, 3)),
        *(frame(wire.DATA, 0, 1, b"abc")[:-1],),
    ):
        server.receive(data, 0.0)
        due.append(server.is_head_due)
    assert due == [True, True, True, False, True, False, True, False, False]


# --- states -----------------------------------------------------------------------------------------------------------

STATES = ("OPEN", "HALF_CLOSED_LOCAL", "HALF_CLOSED_REMOTE", "CLOSED")


def _client_in(state: str) -> tuple[H2Client, Stream]:
    client = ready_client()
    stream = client.request(CALL, False, None)
    if state == "HALF_CLOSED_LOCAL":
        client.data(stream, b"", True)
    elif state == "CLOSED":
        client.reset(stream, wire.CANCEL)
    client.receive(head(1, ANSWER), 0.0) if state != "CLOSED" else None
    return client, stream


def _server_in(state: str) -> tuple[H2Server, Stream]:
    server = ready_server()
    server.receive(head(1), 0.0)
    stream = server.streams[1]
    server.head(stream, ANSWER, False)
    if state == "HALF_CLOSED_REMOTE":
        server.receive(frame(wire.DATA, wire.END_STREAM, 1), 0.0)
    elif state == "CLOSED":
        server.reset(stream, wire.CANCEL)
    return server, stream


INPUTS: dict[str, Callable[[Engine, Stream], object]] = {
    "DATA comes": lambda engine, stream: engine.receive(frame(wire.DATA, 0, 1, b"x"), 0.0),
    "DATA comes, the last": lambda engine, stream: engine.receive(frame(wire.DATA, wire.END_STREAM, 1, b"x"), 0.0),
    "trailers come": lambda engine, stream: engine.receive(head(1, TRAILER, wire.END_STREAM), 0.0),
    "WINDOW_UPDATE comes": lambda engine, stream: engine.receive(wire.window_update(1, 1), 0.0),
    "RST_STREAM comes": lambda engine, stream: engine.receive(wire.rst_stream(1, wire.CANCEL), 0.0),
    "we send DATA": lambda engine, stream: engine.data(stream, b"x", False),
    "we send DATA, the last": lambda engine, stream: engine.data(stream, b"x", True),
    "we send trailers": lambda engine, stream: engine.trailers(stream, TRAILER),
    "we reset": lambda engine, stream: engine.reset(stream, wire.CANCEL),
}


def _cell(engine: Engine, stream: Stream, name: str) -> str:
    engine.take()
    before = stream.state
    result = INPUTS[name](engine, stream)
    events: list[Event] = result if isinstance(result, list) else []
    sent = {kind: payload for kind, _, _, payload in frames(engine.take())}
    words = []
    if stream.state != before:
        words.append(STATES[stream.state])
    words += [{BODY: "reported", TRAILERS: "reported", RESET: "reported"}[kind] for kind, *_ in events]
    if name.startswith("we ") and sent.keys() - {wire.RST_STREAM}:
        words.append("sent")
    if wire.RST_STREAM in sent:
        code = wire.read_word(sent[wire.RST_STREAM])[0]
        words.append(f"RST {('NO_ERROR', '', '', '', '', 'STREAM_CLOSED', '', '', 'CANCEL')[code]}")
    return ", ".join(words) or "-"


def _table(role: str) -> dict[tuple[str, str], str]:
    text = PAGE.read_text(encoding="utf-8").partition(f"<!-- h2 {role} -->")[2].partition("<!-- end -->")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.strip().splitlines()]
    return {(row[0], state): cell for row in rows[2:] for state, cell in zip(rows[0][1:], row[1:], strict=True)}


@pytest.mark.parametrize("role", ["server", "client"])
def test_every_input_in_every_state_is_as_the_page_says(role: str) -> None:
    make: Callable[[str], tuple[Engine, Stream]] = _server_in if role == "server" else _client_in
    there = ("OPEN", "HALF_CLOSED_REMOTE" if role == "server" else "HALF_CLOSED_LOCAL", "CLOSED")
    found = {}
    for state in there:
        for name in INPUTS:
            engine, stream = make(state)
            assert STATES[stream.state] == state
            found[name, state] = _cell(engine, stream, name)
    text = "\n".join(
        ["| event | " + " | ".join(there) + " |", "|---|" + "---|" * len(there)]
        + ["| " + " | ".join([name, *(found[name, state] for state in there)]) + " |" for name in INPUTS]
    )
    assert _table(role) == found, f"\n{text}"


@pytest.mark.parametrize("unknown", [0x2, 0x4, 0x10, 0x20, 0x40, 0x80, 0xF6])
def test_flags_that_data_does_not_have_are_ignored(unknown: int) -> None:
    for cut in (None, 12):
        server = ready_server()
        server.receive(head(1), 0.0)
        sent = frame(wire.DATA, unknown, 1, b"a body") + frame(wire.DATA, unknown | wire.END_STREAM, 1, b"its end")
        events = said(server.receive(sent[:cut], 0.0)) + ([] if cut is None else said(server.receive(sent[cut:], 0.0)))
        bodies = [value for kind, _, value, _ in events if kind == BODY]
        assert b"".join(piece for piece in bodies if isinstance(piece, bytes)) == b"a bodyits end"
        assert [ends for _, _, _, ends in events] == [False] * (len(events) - 1) + [True]


@pytest.mark.parametrize("unknown", [0x2, 0x10, 0x40, 0x80, 0xD2])
def test_flags_that_a_head_does_not_have_are_ignored(unknown: int) -> None:
    for ends in (False, True):
        flags = unknown | (wire.END_STREAM if ends else 0)
        assert said(ready_server().receive(head(1, CALL, flags), 0.0)) == [(HEAD, 1, CALL, ends)]
        rest = frame(wire.HEADERS, flags, 1, CALL[:20]) + frame(
            wire.CONTINUATION, unknown | wire.END_HEADERS, 1, CALL[20:]
        )
        assert said(ready_server().receive(rest, 0.0)) == [(HEAD, 1, CALL, ends)]


def pings(engine: H2Server | H2Client) -> int:
    """Returns how many PINGs are allowed at one moment: the next one is a failure."""
    for count in range(int(CONTROL_BURST) + 100):
        if failure(engine, frame(wire.PING, 0, 0, bytes(8)), 0.0) is not None:
            return count
    raise AssertionError("there is no limit")


@pytest.mark.parametrize(
    ("carrying", "more"),
    [
        (b"", 0),
        (head(3), 1),
        (head(3) + head(5), 2),
        (frame(wire.DATA, 0, 1, b"x"), 1),
        (frame(wire.DATA, wire.PADDED, 1, b"\1x\0"), 1),
        (frame(wire.DATA, 0, 1, b"x") + frame(wire.DATA, 0, 1, b"y") + head(3), 3),
        (head(1, TRAILER, wire.END_STREAM), 0),
    ],
    ids=["nothing", "a head", "two heads", "a piece", "a padded piece", "two pieces and a head", "trailers"],
)
def test_each_head_and_each_piece_allows_one_more_frame_without_content(carrying: bytes, more: int) -> None:
    server = ready_server()
    server.receive(head(1), 0.0)
    spent = 0
    while server._control.level >= 1.0:
        assert failure(server, frame(wire.PING, 0, 0, bytes(8)), 0.0) is None
        spent += 1
    assert spent >= int(CONTROL_BURST) - 2
    assert failure(server, carrying, 0.0) is None
    assert pings(server) == more


def test_an_answer_allows_its_client_one_more_frame_without_content() -> None:
    client = ready_client()
    assert client.request(CALL, True, "ours") is not None
    client._control.take(0.0)
    client._control.level = 0.0  # An upstream's limit is a million.
    client.receive(head(1, ANSWER), 0.0)
    assert pings(client) == 1


def test_a_thousand_streams_that_were_reset_are_remembered() -> None:
    """HEADERS on them may be on their way; on an older one they are a fault of the peer."""
    server = ready_server()
    for number in range(1, 2 * 1025 + 1, 2):
        server.receive(head(number) + wire.rst_stream(number, wire.CANCEL), float(number))
        assert number not in server.streams
    assert failure(server, head(3), 9999.0) is None
    assert failure(server, head(1), 9999.0) == wire.STREAM_CLOSED


# --- one below a limit, at it, and one above --------------------------------------------------------------------------


@pytest.mark.parametrize("flags", range(256))
def test_each_flag_of_a_head_and_of_data_has_its_meaning_whatever_stands_beside_it(flags: int) -> None:
    server = ready_server()
    block = bytes(4) + b"\1" + CALL if flags & wire.HAS_PRIORITY else CALL
    payload = b"\2" + block + b"\0\0" if flags & wire.PADDED else block
    sent = frame(wire.HEADERS, flags, 1, payload)
    if not flags & wire.END_HEADERS:
        assert server.receive(sent, 0.0) == []
        sent = frame(wire.CONTINUATION, wire.END_HEADERS, 1)
    ends = bool(flags & wire.END_STREAM)
    assert said(server.receive(sent, 0.0)) == [(HEAD, 1, CALL, ends)]
    server.receive(head(3), 0.0)
    piece = b"\2piece\0\0" if flags & wire.PADDED else b"piece"
    assert said(server.receive(frame(wire.DATA, flags, 3, piece), 0.0)) == [(BODY, 3, b"piece", ends)]
    server.receive(head(5), 0.0)
    sent = frame(wire.DATA, flags, 5, piece)
    assert _joined(said(server.receive(sent[:11], 0.0)) + said(server.receive(sent[11:], 0.0))) == [
        (BODY, 5, b"piece", ends)
    ]


@pytest.mark.parametrize(
    ("size", "credit"),
    [(STREAM_WINDOW // 2 - 1, 0), (STREAM_WINDOW // 2, STREAM_WINDOW // 2), (STREAM_WINDOW, STREAM_WINDOW)],
)
def test_half_a_window_is_credited_to_a_body_that_goes_on_and_to_no_other(size: int, credit: int) -> None:
    server = ready_server()
    server.receive(head(1) + head(3) + head(5), 0.0)
    server.receive(frame(wire.DATA, wire.END_STREAM, 3, b"x"), 0.0)
    goes_on, ended, gone = (server.streams[number] for number in (1, 3, 5))
    server.reset(gone, wire.CANCEL)
    server.take()
    for stream in (goes_on, ended, gone, server.connection):
        server.passed(stream, size)
    assert server.take() == (wire.window_update(1, credit) if credit else b"")
    assert goes_on.owed == size - credit
    client = ready_client()
    unanswered = client.request(CALL, True, None)
    client.take()
    client.passed(unanswered, STREAM_WINDOW)
    assert client.take() == b"", "its body has not begun"


def test_padding_that_is_read_over_is_credited_to_no_stream() -> None:
    server = ready_server()
    server.receive(head(1), 0.0)
    server.reset(server.streams[1], wire.CANCEL)
    server.take()
    assert server.receive(frame(wire.DATA, wire.PADDED, 1, b"\2piece\0\0"), 0.0) == []
    assert server.take() == b""


def test_the_connection_is_credited_with_all_that_came_and_counts_again_from_nothing() -> None:
    for last in (frame(wire.DATA, 0, 1, b"abc"), frame(wire.DATA, wire.PADDED, 1, b"\1a\0")):
        server = ready_server()
        server.receive(head(1), 0.0)
        for _ in range(2):
            server._taken += (1 << 30) - 4
            assert server.receive(frame(wire.DATA, 0, 1, b"x"), 0.0) and server.take() == b""
            server.receive(last, 0.0)
            assert server.take() == wire.window_update(0, 1 << 30)
            assert server._taken == 0


@pytest.mark.parametrize(
    ("number", "code"),
    [(0, 1), (1, wire.STREAM_CLOSED), (2, 1), (3, wire.STREAM_CLOSED), (4, 1), (6, 1), (7, None), (8, 1), (9, None)],
)
def test_a_head_is_of_an_odd_stream_that_is_not_closed(number: int, code: int | None) -> None:
    server = ready_server()
    server.receive(head(5), 0.0)
    assert failure(server, head(number)) == code


@pytest.mark.parametrize("number", range(9))
def test_a_number_is_idle_if_it_is_even_or_above_the_last(number: int) -> None:
    is_idle = number in (2, 4, 6, 7, 8)
    fault = wire.PROTOCOL_ERROR if is_idle else None
    for sent in (frame(wire.DATA, 0, number, b"x"), wire.rst_stream(number, 0), wire.window_update(number, 1)):
        server, client = ready_server(), ready_client()
        server.receive(head(5), 0.0)
        for _ in range(3):
            client.request(CALL, False, None)
        client.receive(head(5, ANSWER), 0.0)
        client.reset(client.streams[1], wire.CANCEL)
        zero = wire.PROTOCOL_ERROR if number == 0 and sent[3] != wire.WINDOW_UPDATE else fault
        assert failure(server, sent) == zero
        assert failure(client, sent) == zero


@pytest.mark.parametrize(("size", "code"), [(FRAME_BYTES, None), (FRAME_BYTES + 1, wire.FRAME_SIZE_ERROR)])
def test_a_frame_has_the_announced_size_at_most(size: int, code: int | None) -> None:
    for kind in (wire.DATA, wire.HEADERS, 0x42):
        server = ready_server()
        server.receive(head(1), 0.0)
        assert failure(server, wire.frame_head(size << 8 | kind, 0, 1)) == code


def large_block(size: int) -> bytes:
    """Returns the block of a call of this size."""
    return CALL + literal(b"x-large", b"v" * (size - len(CALL) - len(literal(b"x-large", b"v" * 60_000)) + 60_000))


@pytest.mark.parametrize("more", [0, 1])
def test_a_block_has_64_kb_at_most_in_how_many_frames_it_ever_comes(more: int) -> None:
    block = large_block(65_536 + more)
    assert len(block) == 65_536 + more
    whole = head(1, block)
    padded = frame(wire.HEADERS, wire.PADDED | wire.END_HEADERS, 1, b"\1" + block + b"\0")
    parts = frame(wire.HEADERS, 0, 1, block[:40_000]) + frame(wire.CONTINUATION, wire.END_HEADERS, 1, block[40_000:])
    for sent in (whole, padded, parts):
        server = ready_server()
        assert failure(server, sent) == (wire.ENHANCE_YOUR_CALM if more else None)
        if not more:
            assert [kind for kind, *_ in frames(server.take())] == [wire.HEADERS, wire.RST_STREAM], "it is answered"


@pytest.mark.parametrize("reserved", [0, 1 << 31])
def test_windows_reach_2_31_less_1(reserved: int) -> None:
    room = wire.MAX_VALUE - wire.DEFAULT_WINDOW
    for more, code in ((room - 1, None), (room, None), (room + 1, wire.FLOW_CONTROL_ERROR), (0, wire.PROTOCOL_ERROR)):
        server = ready_server()
        server.receive(head(1, flags=wire.END_STREAM), 0.0)
        found = said(server.receive(wire.window_update(1, more | reserved), 0.0))
        assert found == ([] if code is None else [(RESET, 1, code, True)])
        assert failure(server, wire.window_update(0, more | reserved)) == code
    server = ready_server()
    server.receive(head(1, flags=wire.END_STREAM) + wire.window_update(1, room), 0.0)
    assert failure(server, wire.settings((wire.INITIAL_WINDOW_SIZE, wire.DEFAULT_WINDOW))) is None
    assert failure(server, wire.settings((wire.INITIAL_WINDOW_SIZE, wire.DEFAULT_WINDOW + 1))) == 3
    for size in (0, 3, 5):
        assert failure(ready_server(), frame(wire.WINDOW_UPDATE, 0, 0, bytes(size))) == wire.FRAME_SIZE_ERROR


@pytest.mark.parametrize("change", [-100, -1, 0, 1, 100])
def test_a_new_initial_window_changes_those_of_all_streams_by_as_much(change: int) -> None:
    server = ready_server((wire.INITIAL_WINDOW_SIZE, 1000))
    server.receive(head(1, flags=wire.END_STREAM) + head(3, flags=wire.END_STREAM) + wire.window_update(3, 7), 0.0)
    server.receive(wire.settings((wire.INITIAL_WINDOW_SIZE, 1000 + change)) + head(5), 0.0)
    assert [server.streams[number].window for number in (1, 3, 5)] == [1000 + change, 1007 + change, 1000 + change]
    for number, room in ((1, 1000 + change), (3, 1007 + change)):
        stream = server.streams[number]
        server.head(stream, ANSWER, False)
        assert server.data(stream, b"x" * 2000, False) == room
        assert (stream.window, stream.waiting) == (0, 2000 - room)


@pytest.mark.parametrize("data_bytes", [0, 2, 3, 4])
@pytest.mark.parametrize("how", ["whole", "in two", "padded", "an empty end", "trailers"])
def test_a_body_has_its_announced_length(how: str, data_bytes: int) -> None:
    server = ready_server()
    server.receive(head(1, CALL + literal(b"content-length", b"3")), 0.0)
    body = b"x" * data_bytes
    if how == "padded":
        sent = frame(wire.DATA, wire.PADDED | wire.END_STREAM, 1, b"\2" + body + b"\0\0")
    elif how == "an empty end":
        sent = frame(wire.DATA, 0, 1, body) + frame(wire.DATA, wire.END_STREAM, 1)
    elif how == "trailers":
        sent = frame(wire.DATA, 0, 1, body) + head(1, TRAILER, wire.END_STREAM)
    else:
        sent = frame(wire.DATA, wire.END_STREAM, 1, body)
    cut = 10 if how == "in two" else len(sent)
    events = said(server.receive(sent[:cut], 0.0)) + said(server.receive(sent[cut:], 0.0))
    ends = [(kind, value) for kind, _, value, flag in events if flag]
    if data_bytes != 3:
        assert ends == [(RESET, wire.PROTOCOL_ERROR)]
    else:
        assert len(ends) == 1 and ends[0][0] in (BODY, TRAILERS)
        assert _joined(events)[0][:3] == (BODY, 1, body)


@pytest.mark.parametrize(
    ("status", "bodiless"), [(200, False), (203, False), (204, True), (205, False), (303, False), (304, True)]
)
def test_answers_of_two_statuses_have_no_body(status: int, bodiless: bool) -> None:
    client = ready_client()
    client.request(CALL, True, None)
    got = client.receive(head(1, literal(b":status", b"%d" % status)) + frame(wire.DATA, 0, 1, b"x"), 0.0)
    assert got[1][0] == (RESET if bodiless else BODY)


@pytest.mark.parametrize(("status", "is_interim"), [(100, True), (199, True), (200, False), (599, False)])
def test_an_interim_head_ends_nothing(status: int, is_interim: bool) -> None:
    client = ready_client()
    client.request(CALL, True, None)
    block = literal(b":status", b"%d" % status)
    got = client.receive(head(1, block, wire.END_STREAM), 0.0)
    assert [kind for kind, *_ in got] == [RESET if is_interim else HEAD]
    stream = client.request(CALL, True, None)
    assert [kind for kind, *_ in client.receive(head(3, block), 0.0)] == [HEAD]
    assert stream.receiving == (HEAD_DUE if is_interim else BODY_DUE)
    assert stream.left == -1


@pytest.mark.parametrize(
    ("block", "flags", "code"),
    [
        (TRAILER, wire.END_STREAM, None),
        (TRAILER, 0, wire.PROTOCOL_ERROR),
        (CALL, wire.END_STREAM, wire.PROTOCOL_ERROR),
        (literal(b"x-large", b"v" * 17_000), wire.END_STREAM, wire.ENHANCE_YOUR_CALM),
    ],
    ids=["an end", "no end", "pseudo-headers", "too large"],
)
def test_trailers_end_a_stream_or_reset_it(block: bytes, flags: int, code: int | None) -> None:
    server = ready_server()
    server.receive(head(1), 0.0)
    ((kind, _, value, flag),) = server.receive(head(1, block, flags), 0.0)
    assert (kind, flag, None if code is None else value) == (TRAILERS if code is None else RESET, True, code)
    server = ready_server()
    server.receive(head(1, flags=wire.END_STREAM), 0.0)
    assert said(server.receive(head(1, block, flags), 0.0)) == [(RESET, 1, wire.STREAM_CLOSED, True)]


def test_the_last_number_of_a_connection_is_2_31_less_1() -> None:
    client = ready_client()
    client._last = MAX_VALUE - 4
    assert client.request(CALL, True, None).number == MAX_VALUE - 2
    assert client.has_room()
    assert client.request(CALL, True, None).number == MAX_VALUE
    assert not client.has_room()


@pytest.mark.parametrize("limit", [0, 1, 2, 3])
def test_as_many_requests_are_in_flight_as_the_upstream_allows(limit: int) -> None:
    client = ready_client((wire.MAX_CONCURRENT_STREAMS, limit))
    for count in range(limit):
        assert client.has_room()
        assert client.request(CALL, True, None).number == 2 * count + 1
    assert not client.has_room()


@pytest.mark.parametrize(("last", "refused"), [(0, [1, 3, 5]), (1, [3, 5]), (2, [3, 5]), (3, [5]), (5, []), (7, [])])
@pytest.mark.parametrize("reserved", [0, 1 << 31])
def test_an_upstream_that_goes_away_refuses_what_is_above_its_last(
    last: int, refused: list[int], reserved: int
) -> None:
    client = ready_client()
    for _ in range(3):
        client.request(CALL, True, None)
    payload = (last | reserved).to_bytes(4, "big") + (2).to_bytes(4, "big") + b"why"
    assert said(client.receive(frame(wire.GOAWAY, 0, 0, payload), 0.0)) == [
        *((RESET, number, wire.REFUSED_STREAM, False) for number in refused),
        (CLOSING, 0, 2, False),
    ]
    assert (client.is_closing, client.has_room()) == (True, False)


def test_a_server_that_goes_away_names_its_last_stream_and_reads_over_later_ones() -> None:
    server = ready_server()
    server.receive(head(1) + head(7), 0.0)
    server.goaway(2, b"why")
    assert server.take() == wire.goaway(7, 2, b"why")
    server._control.level = 10.0
    assert server.receive(head(9) + frame(wire.DATA, 0, 9, b"x"), 0.0) == []
    assert (sorted(server.streams), server._control.level) == ([1, 7], 9.0)
    server.goaway()
    assert server.take() == wire.goaway(7, 0, b"")
    assert failure(server, frame(wire.DATA, 0, 11, b"x")) == wire.PROTOCOL_ERROR


@pytest.mark.parametrize(("later", "is_over"), [(29.0, False), (30.0, False), (30.5, True)])
def test_a_time_is_over_when_it_has_passed(later: float, is_over: bool) -> None:
    server = ready_server((wire.INITIAL_WINDOW_SIZE, 0))
    server.receive(head(1, flags=wire.END_STREAM) + head(3), 0.0)
    waits, lingers = server.streams[1], server.streams[3]
    lingers.lingers = True
    server.head(waits, ANSWER, False)
    server.data(waits, b"abc", True)
    server.head(lingers, ANSWER, True)
    for limits in ((30.0, 1000.0), (1000.0, 30.0)):
        waits.since = waits.ended = lingers.since = 0.0
        assert server.stalled(100.0, *limits) == server.lingering(100.0, 30.0) == []
        assert server.stalled(100.0 + later, *limits) == ([waits] if is_over else [])
        assert server.lingering(100.0 + later, 30.0) == ([lingers] if is_over else [])


def test_nothing_of_a_body_is_sent_beyond_any_of_three_bounds() -> None:
    for stream_window, connection, frame_bytes in ((10, 99, 99), (99, 10, 99), (99, 99, 10)):
        for size in (9, 10, 11):
            server = ready_server()
            server.receive(head(1, flags=wire.END_STREAM), 0.0)
            stream = server.streams[1]
            server.head(stream, ANSWER, False)
            server.take()
            stream.window, server._window, server._frame_bytes = stream_window, connection, frame_bytes
            sent = server.data(stream, b"x" * size, False)
            assert sent == (size if frame_bytes == 10 else min(size, 10))
            pieces = [10, 1] if size == 11 and frame_bytes == 10 else [min(size, 10)]
            assert [len(payload) for *_, payload in frames(server.take())] == pieces
            assert (stream.window, server._window) == (stream_window - sent, connection - sent)
            assert server.is_out_of_credit == (connection == sent)


@pytest.mark.parametrize("size", [9, 10, 11])
def test_a_block_of_a_frame_is_sent_in_one(size: int) -> None:
    client = ready_client()
    client.request(CALL, True, None)
    client.take()
    client._frame_bytes = 10
    client.request(b"x" * size, True, None)
    kinds = [(kind, flags) for kind, flags, _, _ in frames(client.take())]
    one, two = [(1, 5)], [(1, 1), (9, 4)]
    assert kinds == (one if size <= 10 else two)


def test_a_proxy_of_ours_and_an_upstream_have_a_thousand_times_the_rates() -> None:
    server, client = ready_server(), ready_client()
    server.trust_peer()
    for allowance, rate, burst in (
        (server._control, 200_000.0, 1_000_000.0),
        (client._control, 200_000.0, 1_000_000.0),
        (server._resets, 100_000.0, 200_000.0),
    ):
        allowance.take(10.0)
        allowance.level = 0.0
        assert allowance.take(11.0)
        assert allowance.level == rate - 1.0
        allowance.take(1e9)
        assert allowance.level == burst - 1.0


def test_data_before_an_answer_or_behind_an_end_resets_the_stream() -> None:
    client = ready_client()
    client.request(CALL, True, None)
    assert said(client.receive(frame(wire.DATA, 0, 1, b"x"), 0.0)) == [(RESET, 1, wire.PROTOCOL_ERROR, True)]
    server = ready_server()
    server.receive(head(1, flags=wire.END_STREAM), 0.0)
    assert said(server.receive(frame(wire.DATA, 0, 1, b"x"), 0.0)) == [(RESET, 1, wire.STREAM_CLOSED, True)]


@pytest.mark.parametrize(
    ("first", "code"),
    [
        (wire.settings(), None),
        (wire.settings((wire.MAX_CONCURRENT_STREAMS, 5)), None),
        (ACK, wire.PROTOCOL_ERROR),
        (wire.ping(bytes(8)), wire.PROTOCOL_ERROR),
        (wire.window_update(0, 1), wire.PROTOCOL_ERROR),
        (head(1), wire.PROTOCOL_ERROR),
    ],
)
def test_the_first_frame_of_a_peer_is_its_settings(first: bytes, code: int | None) -> None:
    assert failure(H2Server(Blocks(REQUEST)), wire.PREFACE + first) == code
    client = H2Client(Blocks(RESPONSE))
    client.take()
    assert failure(client, first) == code
    assert failure(H2Server(Blocks(REQUEST)), first) == wire.PROTOCOL_ERROR


@pytest.mark.parametrize(
    ("second", "code"),
    [
        (frame(wire.CONTINUATION, wire.END_HEADERS, 1), None),
        (frame(wire.CONTINUATION, 0, 1), None),
        (frame(wire.CONTINUATION, wire.END_HEADERS, 3), wire.PROTOCOL_ERROR),
        (head(1), wire.PROTOCOL_ERROR),
        (wire.ping(bytes(8)), wire.PROTOCOL_ERROR),
        (frame(wire.DATA, 0, 1, b"x"), wire.PROTOCOL_ERROR),
    ],
)
def test_behind_a_head_without_its_end_comes_its_continuation(second: bytes, code: int | None) -> None:
    server = ready_server()
    assert failure(server, frame(wire.HEADERS, 0, 1, CALL) + second) == code
    assert (1 in server.streams) == (code is None and second[4] == wire.END_HEADERS)
    assert failure(ready_server(), frame(wire.CONTINUATION, wire.END_HEADERS, 1)) == wire.PROTOCOL_ERROR


@pytest.mark.parametrize(("size", "code"), [(0, 6), (4, 6), (5, None), (6, 6)])
def test_a_priority_of_a_wrong_size_resets_its_stream_or_ends_all(size: int, code: int | None) -> None:
    sent = frame(wire.PRIORITY, 0, 1, bytes(size))
    assert failure(ready_server(), sent) == code
    server = ready_server()
    server.receive(head(1), 0.0)
    assert said(server.receive(sent, 0.0)) == ([] if code is None else [(RESET, 1, code, True)])


@pytest.mark.parametrize("number", [1, 3, 0x7FFFFFFF])
def test_the_reserved_bit_of_a_number_means_nothing(number: int) -> None:
    server = ready_server()
    sent = head(number) + frame(wire.DATA, 0, number, b"x")
    for at in (0, len(head(number))):
        sent = sent[: at + 5] + bytes((sent[at + 5] | 0x80,)) + sent[at + 6 :]
    assert said(server.receive(sent, 0.0)) == [(HEAD, number, CALL, False), (BODY, number, b"x", False)]
