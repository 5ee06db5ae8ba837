"""A client's HTTP/2 connection without sockets: how it begins, what it may not do, how it ends."""

from collections.abc import Callable, Iterator
from time import monotonic
from typing import Any

import pytest

from tests.support.worlds.h2_world import ANSWER, CALL, MESSAGE, Upstream, World, block, status
from tidegate.aio.loop.read_turns import FULL_READ_BYTES
from tidegate.aio.proxy.http2_connection import UNREAD_BYTES, H2Conn
from tidegate.aio.proxy.server import Limits
from tidegate.aio.upstream.http2 import IDLE_S, STUCK, H2Upstream
from tidegate.wire.http2 import frames
from tidegate.wire.http2.events import FAILED, HEAD, RESET
from tidegate.wire.http2.frames import PREFACE
from tidegate.wire.http2.limits import RESET_BURST
from tidegate.wire.http2.streams import CLOSED, Stream


@pytest.fixture
def made() -> Iterator[Callable[..., World]]:
    worlds: list[World] = []

    def make(*arguments: Any, **named: Any) -> World:
        worlds.append(World(*arguments, **named))
        return worlds[-1]

    yield make
    for world in worlds:
        world.close()


@pytest.fixture
def world(made: Callable[..., World]) -> World:
    return made()


def connection(world: World) -> H2Conn:
    assert isinstance(world.protocol, H2Conn)
    return world.protocol


# --- how it begins ----------------------------------------------------------------------------------------------------


def test_the_preface_decides_wherever_it_is_split(made: Callable[..., World]) -> None:
    whole = made(begin=False).client.take()
    for at in range(1, len(PREFACE) + 3):
        world = made(begin=False)
        world.client.take()
        world.feed(whole[:at])
        assert isinstance(world.protocol, H2Conn) == (at >= len(PREFACE))
        world.feed(whole[at:])
        world.go()
        world.call()
        world.answer()
        assert world.app.log[-1] == "finished 200"
        assert world.server.connections == 1


@pytest.mark.parametrize("first", range(1, len(PREFACE) + 2))
def test_the_preface_may_come_in_three_pieces_with_time_between(made: Callable[..., World], first: int) -> None:
    """Cut here and at every later place: whichever piece completes it brings the connection over."""
    for second in range(first + 1, len(PREFACE) + 3):
        world = made(Limits(head_timeout_s=2.0), begin=False)
        whole = world.client.take()
        for piece in (whole[:first], whole[first:second], whole[second:]):
            world.services.tick(monotonic() + 0.5)
            assert not world.wire.is_closed
            world.feed(piece)
        world.call()
        world.answer()
        assert world.app.log[-1] == "finished 200"


def test_the_preface_may_come_byte_by_byte(made: Callable[..., World]) -> None:
    world = made(begin=False)
    for byte in world.client.take():
        world.feed(bytes([byte]))
    world.call()
    world.answer()
    assert world.app.log[-1] == "finished 200"


def test_who_sends_a_preface_while_we_drain_is_reported_the_end_in_its_own_protocol(made: Callable[..., World]) -> None:
    """Its first bytes came before the drain: it is no idle connection."""
    world = made(Limits(head_timeout_s=2.0, idle_timeout_s=75.0), begin=False)
    whole = world.client.take()
    world.feed(whole[:7])
    world.server.draining = True
    world.services.tick(monotonic() + 0.1)
    assert not world.wire.is_closed
    world.feed(whole[7:])
    world.pass_time(0.1)
    assert world.goodbyes[-1] == frames.NO_ERROR
    assert world.wire.is_closed


@pytest.mark.parametrize("cut", range(1, 6))
def test_a_request_that_begins_like_the_preface_is_one_of_http1(made: Callable[..., World], cut: int) -> None:
    world = made(begin=False)
    world.app.pool = None
    request = b"PRIVATE / HTTP/1.1\r\nHost: a\r\n\r\n"
    world.feed(request[:cut])
    assert world.app.log == []
    world.feed(request[cut:])
    assert world.app.log == ["start"]
    world.protocol.connection_lost(None)


def test_half_a_preface_has_the_time_of_a_head(made: Callable[..., World]) -> None:
    world = made(Limits(head_timeout_s=2.0), begin=False)
    world.client.take()
    world.feed(PREFACE[:7])
    world.pass_time(1.0)
    assert not world.wire.sent
    world.services.tick(world.services.now + 5.0)
    assert world.wire.sent.startswith(b"HTTP/1.1 408 ")


def test_something_else_than_settings_first_ends_it(made: Callable[..., World]) -> None:
    world = made(begin=False)
    world.feed(PREFACE + frames.ping(b"12345678"))
    sent = world.wire.take()
    assert sent[-(8 + frames.HEAD_BYTES + len(b"the first frame is not SETTINGS")) :].endswith(b"is not SETTINGS")
    assert world.wire.is_closed


# --- limits -----------------------------------------------------------------------------------------------------------


def test_a_connection_without_calls_is_closed_after_its_time(made: Callable[..., World]) -> None:
    world = made(Limits(idle_timeout_s=75.0))
    world.call()
    world.pass_time(74.0)
    assert not world.wire.is_closed, "it has a call"
    world.answer()
    world.pass_time(100.0)
    world.pass_time(200.0)
    assert world.goodbyes == [frames.NO_ERROR]
    assert world.wire.is_closed


def test_an_unfinished_head_has_its_time(made: Callable[..., World]) -> None:
    world = made(Limits(head_timeout_s=2.0))
    world.feed(frames.frame_head(3 << 8 | frames.HEADERS, 0, 1) + b"\x83\x86\x84")
    world.pass_time(1.0)
    assert not world.wire.is_closed
    world.pass_time(4.0)
    assert world.goodbyes == [frames.PROTOCOL_ERROR]
    assert world.wire.is_closed


def test_who_does_not_read_is_cut_off(made: Callable[..., World]) -> None:
    world = made(Limits(stream_idle_timeout_s=30.0, response_timeout_s=1000.0))
    world.passes = False
    stream = world.call()
    theirs = world.upstream.calls[0]
    world.upstream.engine.head(theirs, block(*ANSWER), False)
    world.upstream.engine.data(theirs, b"x" * 200_000, False)
    world.go()
    world.pass_time(1.0)
    assert world.heard(stream)[-1][0] == HEAD
    world.pass_time(40.0)
    assert world.heard(stream)[-1] == (RESET, frames.CANCEL)
    assert world.upstream.ended(theirs)[1:] == [(RESET, frames.CANCEL)]
    assert world.app.log[-1] == "finished 499"


@pytest.mark.parametrize("has_ended", [True, False])
def test_who_takes_an_answer_byte_by_byte_has_a_time_for_it_once_it_has_ended(
    made: Callable[..., World], has_ended: bool
) -> None:
    """As long as on HTTP/1: an idle connection's time, and that of a stream without progress."""
    world = made(Limits(idle_timeout_s=75.0, stream_idle_timeout_s=300.0, response_timeout_s=1e6))
    world.passes = False
    stream = world.call()
    theirs = world.upstream.calls[0]
    world.upstream.engine.head(theirs, block(*ANSWER), False)
    world.upstream.engine.data(theirs, b"x" * 100_000, False)
    if has_ended:
        world.upstream.engine.trailers(theirs, status(0))
    world.go()
    assert (world.app.log[-1] == "finished 200") == has_ended
    for seconds in (1.0, 200.0, 370.0, 380.0):
        assert world.heard(stream)[-1][0] == HEAD
        stream.allowance += 1
        world.feed(frames.window_update(stream.number, 1))
        world.pass_time(seconds)
    assert (world.heard(stream)[-1] == (RESET, frames.CANCEL)) == has_ended


def test_a_client_that_leaves_its_answers_unread_is_not_read_from(world: World) -> None:
    ours = connection(world)
    ours.pause_writing()
    world.wire.unsent = UNREAD_BYTES + 1
    world.feed(frames.ping(b"12345678"))
    ours.flush()
    assert not world.wire.is_read
    world.wire.unsent = 0
    ours.resume_writing()
    assert world.wire.is_read


def test_who_sends_as_fast_as_we_read_lets_others_have_their_turn(world: World) -> None:
    """A read full of small frames takes milliseconds."""
    world.call()
    world.answer()
    updates = frames.window_update(1, 1) * (FULL_READ_BYTES // 13 + 1)
    world.feed(updates)
    assert not world.wire.reads()
    world._turn()
    assert world.wire.reads()
    world.feed(updates)
    world.wire.unsent = UNREAD_BYTES + 1
    connection(world).engine.pause()
    world.feed(frames.ping(b"12345678"))
    world._turn()
    world._turn()
    assert not world.wire.reads(), "it leaves its answers unread"
    connection(world).resume_writing()
    assert world.wire.reads()


def test_a_full_transport_keeps_bodies_back(world: World) -> None:
    stream = world.call()
    ours = connection(world)
    ours.pause_writing()
    theirs = world.upstream.calls[0]
    world.upstream.engine.head(theirs, block(*ANSWER), False)
    world.upstream.engine.data(theirs, MESSAGE, False)
    world.upstream.engine.trailers(theirs, status(0))
    world.go()
    assert world.answers == {}
    ours.resume_writing()
    world.go()
    assert world.answers == {1: MESSAGE}
    assert world.outcome(stream) == (0, "")


def test_an_upload_that_is_answered_early_is_not_reset_at_once(world: World) -> None:
    """curl takes a reset behind a whole answer for a failure, and would not show the 413."""
    fields = ((b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/"), (b":authority", b"a.example"))
    world.client.request(block(*fields, (b"content-length", b"%d" % (1 << 42))), False, None)
    world.feed(world.client.take())
    assert [each.lingers for each in connection(world).engine.streams.values()] == [True]


def test_a_fault_of_the_connection_ends_its_calls(world: World) -> None:
    world.call()
    world.feed(frames.frame_head(4 << 8 | frames.WINDOW_UPDATE, 0, 0) + bytes(4))
    world.go()
    assert world.goodbyes == [frames.PROTOCOL_ERROR]
    assert world.wire.is_closed
    assert world.upstream.ended(world.upstream.calls[0])[1:] == [(RESET, frames.CANCEL)]
    assert world.app.log[-1] == "finished 499"


def test_an_error_of_ours_ends_the_connection_and_is_reported(world: World) -> None:
    def broken(ex: Any) -> None:
        raise ZeroDivisionError

    world.app.running += 1
    world.app.start = broken  # type: ignore[method-assign]  # an application with a fault
    world.client.request(block(*CALL), True, None)
    world.feed(world.client.take())
    assert [type(error) for error in world.errors] == [ZeroDivisionError]
    assert world.wire.is_aborted
    world.errors.clear()


def test_a_gateway_that_has_proven_itself_may_cancel_for_all_of_its_clients(world: World) -> None:
    world.call()
    (stream,) = connection(world).engine.streams.values()
    stream.owner.mark_as_gateway()
    for _ in range(2 * int(RESET_BURST)):
        cancelled = world.client.request(block(*CALL), False, None)
        world.client.reset(cancelled, frames.CANCEL)
        world.go()
    assert world.goodbyes == []


@pytest.mark.parametrize(("proxies", "goodbyes"), [(("127.0.0.0/8",), []), ((), [frames.ENHANCE_YOUR_CALM])])
def test_a_load_balancer_that_is_trusted_may_cancel_for_all_of_its_clients(
    made: Callable[..., World], proxies: tuple[str, ...], goodbyes: list[int]
) -> None:
    world = made(Limits(trusted_proxies=proxies))
    for _ in range(2 * int(RESET_BURST)):
        if not world.goodbyes:
            cancelled = world.client.request(block(*CALL), False, None)
            world.client.reset(cancelled, frames.CANCEL)
            world.go()
    assert world.goodbyes == goodbyes


# --- the end ----------------------------------------------------------------------------------------------------------


def test_a_drain_says_goodbye_in_two_steps_and_waits_for_calls(world: World) -> None:
    running = world.call()
    world.server.draining = True
    world.server._close_idle()
    world.go()
    assert world.goodbyes == [frames.NO_ERROR, frames.NO_ERROR], "the second when our PING was answered"
    assert not world.wire.is_closed
    world.answer()
    assert world.outcome(running) == (0, "")
    assert world.wire.is_closed


def test_a_call_on_its_way_during_the_first_step_is_served(world: World) -> None:
    late = world.client.request(block(*CALL), False, None)
    world.client.data(late, MESSAGE, True)
    world.server.draining = True
    world.server._close_idle()
    world.go()
    world.answer()
    assert world.outcome(late) == (0, "")
    assert world.wire.is_closed


def test_a_client_that_does_not_answer_the_ping_is_reported_anyway(made: Callable[..., World]) -> None:
    world = made()
    ours = connection(world)
    closing = []
    for now in (10.0, 10.5, 11.5):
        ours.close_if_idle(now)
        closing.append(ours.engine.is_closing)
    assert closing == [False, False, True]
    world.go()


def test_an_abort_ends_everything(world: World) -> None:
    world.call()
    world.server.abort()
    world.go()
    assert world.wire.is_aborted
    assert world.app.log[-1] == "finished 499"


# --- towards the upstream ---------------------------------------------------------------------------------------------


def test_calls_share_one_connection_up_to_its_limit(made: Callable[..., World]) -> None:
    world = made()
    world.settings = ((frames.MAX_CONCURRENT_STREAMS, 2),)
    streams = [world.call() for _ in range(5)]
    assert [len(upstream.calls) for upstream in world.upstreams] == [2, 2, 1]
    for upstream in world.upstreams:
        for call in upstream.calls:
            upstream.engine.head(call, block(*ANSWER), False)
            upstream.engine.trailers(call, status(0))
    world.go()
    assert [world.outcome(stream) for stream in streams] == [(0, "")] * 5
    again = [world.call() for _ in range(2)]
    assert [len(upstream.calls) for upstream in world.upstreams] == [4, 2, 1], "the oldest first"
    for call in world.upstreams[0].calls[2:]:
        world.upstreams[0].engine.head(call, block((b":status", b"200"), (b"grpc-status", b"0")), True)
    world.go()
    assert [world.outcome(stream) for stream in again] == [(0, "")] * 2


def test_a_saturated_connection_gets_a_second_one_beside_it(world: World) -> None:
    world.call()
    assert world.upstream.ours is not None
    world.upstream.ours.pause_writing()
    world.call()
    assert len(world.upstreams) == 2
    third = world.call()
    assert len(world.upstreams[1].calls) == 1
    world.answer(world.upstreams[1].calls[0])
    assert world.outcome(third) == (0, "")


def test_a_connection_that_an_upstream_keeps_without_credit_gets_no_more_calls(world: World) -> None:
    world.settings = ((frames.INITIAL_WINDOW_SIZE, 1 << 20),)
    world.call()
    first = world.upstream
    assert first.ours is not None
    first.ours.engine._window = 0
    first.passes = False
    world.call()
    assert len(first.calls) == 2, "no credit for a moment is usual"
    for _ in range(5):
        world.pass_time(0.0)
    alive = world.call()
    assert len(world.upstreams) == 2
    world.answer()
    assert world.outcome(alive) == (0, "")


def without_credit(world: World) -> tuple[Stream, Upstream]:
    """A call on a connection that its upstream has kept without credit for a second, and from now on no other one can
    be made."""
    running = world.call()
    first = world.upstream
    assert first.ours is not None
    first.ours.engine._window = 0
    first.passes = False
    for _ in range(STUCK):
        world.pass_time(0.0)
    world.refuses = True
    return running, first


def test_calls_that_wait_are_not_put_behind_others_without_credit(made: Callable[..., World]) -> None:
    world = made()
    world.settings = ((frames.MAX_CONCURRENT_STREAMS, 2),)
    beside = world.call()
    running, first = without_credit(world)
    waits = world.call()
    world.pass_time(0.0)
    assert len(world.calls.waiting) == 1, "another connection is tried again and again"
    world.answer(first.calls[0])
    assert world.outcome(beside) == (0, ""), "there is room on the first one"
    assert (len(first.calls), len(world.calls.waiting)) == (2, 1)
    world.refuses = False
    world.pass_time(0.0)
    assert len(world.upstreams) == 2
    world.answer()
    assert world.outcome(waits) == (0, "")
    assert world.heard(running) == []


def test_those_who_wait_are_served_where_there_is_credit_again(world: World) -> None:
    running, first = without_credit(world)
    waits = world.call()
    assert len(world.calls.waiting) == 1
    assert first.ours is not None
    first.ours.data_received(frames.window_update(0, 1 << 20))
    world.pass_time(0.0)
    assert (len(world.upstreams), len(first.calls)) == (1, 2)
    for call in first.calls:
        world.answer(call)
    assert [world.outcome(stream) for stream in (running, waits)] == [(0, "")] * 2


def test_a_connection_without_credit_ends_with_its_last_call(world: World) -> None:
    """No call would ever be made there; 32 such connections would be all that there may be."""
    running, first = without_credit(world)
    world.client.reset(running, frames.CANCEL)
    world.go()
    assert world.pool.connections == 1
    world.pass_time(0.0)
    assert first.wire.is_closed
    assert world.pool.connections_now() == ()


def test_calls_that_left_do_not_pile_up_while_they_wait(world: World) -> None:
    without_credit(world)
    for _ in range(20):
        world.client.reset(world.call(), frames.CANCEL)
        world.go()
        world.pass_time(0.0)
    assert not world.calls.waiting


def test_calls_wait_for_the_first_settings(made: Callable[..., World]) -> None:
    world = made()
    streams = [world.client.request(block(*CALL), True, None) for _ in range(3)]
    world.feed(world.client.take())
    assert len(world.calls.waiting) == 3
    world.go()
    assert (len(world.upstreams), len(world.upstream.calls), len(world.calls.waiting)) == (1, 3, 0)
    assert all(world.heard(stream) == [] for stream in streams)


def connecting(world: World) -> tuple[Stream, H2Upstream]:
    """A call, and the new connection that it waits for: the upstream has said nothing yet."""
    stream = world.client.request(block(*CALL), True, None)
    world.feed(world.client.take())
    world._turn()
    world._turn()
    assert world.upstream.ours is not None
    return stream, world.upstream.ours


@pytest.mark.parametrize(
    "said", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"<!DOCTYPE HTML>\n<html>", b"\x15\x03\x01\0\x02\x02F"]
)
def test_an_upstream_that_speaks_something_else(made: Callable[..., World], said: bytes) -> None:
    world = made()
    stream, ours = connecting(world)
    ours.data_received(said)
    world.go()
    assert world.outcome(stream) == (12, "the upstream speaks no HTTP/2 on this port")
    assert world.app.log == ["start", "finished 502"], "once: another attempt would end as this one"


def test_an_idle_upstream_connection_is_closed(world: World) -> None:
    world.call()
    world.answer()
    assert world.pool.connections == 1
    world.pass_time(IDLE_S + 1)
    assert world.upstream.wire.is_closed
    assert world.pool.connections_now() == ()


def test_a_pool_that_closes_lets_its_calls_end(world: World) -> None:
    stream = world.call()
    world.pool.close()
    world.answer()
    assert world.outcome(stream) == (0, "")
    world.pass_time(1.0)
    assert world.upstream.wire.is_closed


def test_a_pool_that_closes_serves_who_waits_for_its_connection(made: Callable[..., World]) -> None:
    world = made()
    stream, ours = connecting(world)
    assert not ours.is_ready
    world.pool.close()
    world.go()
    world.answer()
    assert world.outcome(stream) == (0, "")
    assert world.upstream.wire.is_closed


def test_a_pool_that_closes_serves_who_waits_for_a_stream(made: Callable[..., World]) -> None:
    world = made()
    world.settings = ((frames.MAX_CONCURRENT_STREAMS, 1),)
    first = world.call()
    world.refuses = True
    second = world.call()
    assert len(world.calls.waiting) == 1
    world.pool.close()
    for call in range(2):
        world.answer(world.upstream.calls[call])
    assert [world.outcome(stream) for stream in (first, second)] == [(0, "")] * 2
    assert world.upstream.wire.is_closed


def test_a_connection_that_comes_when_its_pool_has_closed_is_closed(made: Callable[..., World]) -> None:
    world = made()
    stream = world.client.request(block(*CALL), True, None)
    world.feed(world.client.take())
    world.client.reset(stream, frames.CANCEL)
    world.feed(world.client.take())
    world.pool.close()
    world.go()
    world.pass_time(0.0)
    assert world.upstream.wire.is_closed
    assert world.pool.connections_now() == ()


def test_what_the_client_hears_is_valid_to_the_last_frame(world: World) -> None:
    for _ in range(20):
        world.call((b"x-a", b"1"))
        world.answer()
    assert not any(kind == FAILED for kind, *_ in world.events)


@pytest.mark.parametrize("method", [b"HEAD", b"GET"])
def test_a_refused_head_request_gets_no_body(world: World, method: bytes) -> None:
    """Clients take DATA behind the answer to HEAD for a malformed answer."""
    fields = (b":method", method), (b":scheme", b"http"), (b":path", b"/"), (b":authority", b"a")
    request = block(*fields, (b"expect", b"nonsense"))
    stream = world.client.request(request, True, None, is_head=method == b"HEAD")
    world.go()
    (kind, answer), *_ = world.heard(stream)
    assert (kind, answer.status) == (HEAD, 417)
    assert stream.state == CLOSED
    assert (world.answers.get(1, b"") == b"") == (method == b"HEAD")
    assert not any(kind == RESET for kind, _ in world.heard(stream))
