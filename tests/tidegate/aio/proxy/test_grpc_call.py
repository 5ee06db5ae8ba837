"""gRPC calls through a proxy's connections: what each end and the application receive, without sockets."""

import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.support.http.loopback import RelayApp
from tests.support.worlds.h2_world import ANSWER, CALL, MESSAGE, HoldingApp, World, block, status
from tidegate.aio.proxy.grpc_call import CALL_KEPT_BYTES, GrpcCall, LocalReply
from tidegate.aio.proxy.server import Limits
from tidegate.aio.upstream.http1 import MAX_INTERIMS, TOO_MANY_INTERIMS
from tidegate.errors import QUEUE_FULL
from tidegate.wire.http2 import frames, grpc_fields
from tidegate.wire.http2.block_memory import Block
from tidegate.wire.http2.events import HEAD, RESET, TRAILERS
from tidegate.wire.http2.heads import AnswerHead, CallHead
from tidegate.wire.http2.limits import STREAM_WINDOW

CANCELLED = [(RESET, frames.CANCEL)]


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


def calls(world: World) -> list[GrpcCall]:
    """Those that have ended."""
    return world.app.ended  # type: ignore[return-value]  # Rpcs are exchanges to applications


# --- calls that go well -----------------------------------------------------------------------------------------------


def test_a_unary_call(world: World) -> None:
    stream = world.call((b"x-a", b"1"), (b"x-b-bin", b"AAEC/w"))
    (head,) = world.upstream.heads
    assert (head.path, head.authority) == (b"/pkg.Service/Method", b"f.localhost:8080")
    assert (head.get(b"x-a"), head.get(b"x-b-bin"), head.get(b"te")) == (b"1", b"AAEC/w", b"trailers")
    assert world.upstream.bodies == {1: MESSAGE}
    assert world.upstream.ended(world.upstream.calls[0]) == [(1, 0)], "the end of the request came with its body"
    world.answer()
    assert [kind for kind, _ in world.heard(stream)] == [HEAD, TRAILERS]
    assert world.answers == {1: MESSAGE}
    assert world.outcome(stream) == (0, "")
    assert world.app.log == ["start", "answering 200", "finished 200"]
    (ex,) = calls(world)
    assert (ex.is_rpc, ex.bytes_in, ex.bytes_out, ex.truncated) == (True, 10, 10, False)


def test_who_asked_and_under_which_trace_is_reported(world: World) -> None:
    world.call()
    (head,) = world.upstream.heads
    assert head.get(b"x-forwarded-for") == b"127.0.0.1"
    assert head.get(b"x-forwarded-proto") == b"http"
    assert head.get(b"via") == b"2.0 tidegate"
    assert (head.get(b"traceparent") or b"").startswith(b"00-")
    trace = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    world.call((b"traceparent", trace), (b"x-forwarded-for", b"6.6.6.6"))
    world.call((b"traceparent", b"nonsense"))
    _, valid, invalid = world.upstream.heads
    assert [value for name, value, *_ in valid.fields if name == b"traceparent"] == [trace]
    assert [value for name, value, *_ in valid.fields if name == b"x-forwarded-for"] == [b"127.0.0.1"]
    (made_anew,) = [value for name, value, *_ in invalid.fields if name == b"traceparent"]
    assert made_anew.startswith(b"00-")
    world.client.streams.clear()


def test_fields_of_ours_go_no_further_and_are_not_seen(made: Callable[..., World]) -> None:
    app = HoldingApp()
    world = made(app=app)
    world.call((b"tidegate-token", b"forged"), (b"tidegate-timeout-ms", b"5"))
    (ex,) = app.waiting
    assert ex.head.get(b"tidegate-token") is None
    assert ex.head.control(b"tidegate-timeout-ms") == b"5"
    assert not ex.head.plain
    ex.forward(world.pool, b"tidegate-token: real\r\ntidegate-credit: 7\r\n")
    world.go()
    (head,) = world.upstream.heads
    assert [value for name, value, *_ in head.fields if name.startswith(b"tidegate-")] == [b"real", b"7"]


def test_streams_flow_both_ways(world: World) -> None:
    stream = world.call(body=None)
    theirs = world.upstream.calls[0]
    world.upstream.engine.head(theirs, block(*ANSWER), False)
    for number in range(5):
        piece = b"\0\0\0\0\1%d" % number
        world.client.data(stream, piece, False)
        world.go()
        assert world.upstream.bodies[1].endswith(piece), "each message is passed on at once"
        world.upstream.engine.data(theirs, piece, False)
        world.go()
        assert world.answers[1].endswith(piece)
    world.client.data(stream, b"", True)
    world.upstream.engine.trailers(theirs, status(0))
    world.go()
    assert world.outcome(stream) == (0, "")
    assert world.app.log == ["start", "answering 200", "finished 200"]


def test_large_messages_take_no_memory_while_none_reads_them(world: World) -> None:
    size = 4 << 20
    stream = world.call(body=None)
    world.upstream.passes = False
    for _ in range(size >> 14):
        world.client.data(stream, b"u" * (1 << 14), False)
        world.go()
    theirs = world.upstream.calls[0]
    assert len(world.upstream.bodies[1]) == STREAM_WINDOW
    (ours,) = world.upstream.ours.engine.streams.values()  # type: ignore[union-attr]  # it is there
    assert ours.waiting <= STREAM_WINDOW, "what waits in the proxy"
    world.upstream.passes = True
    world.upstream.engine.passed(theirs, STREAM_WINDOW)
    world.client.data(stream, b"", True)
    world.go()
    assert len(world.upstream.bodies[1]) == size
    world.passes = False
    world.upstream.engine.head(theirs, block(*ANSWER), False)
    for _ in range(size >> 14):
        world.upstream.engine.data(theirs, b"d" * (1 << 14), False)
        world.go()
    assert len(world.answers[1]) == STREAM_WINDOW
    (towards_client,) = world.protocol.engine.streams.values()  # type: ignore[attr-defined]  # an H2Conn by now
    assert towards_client.waiting <= STREAM_WINDOW
    world.passes = True
    world.client.passed(stream, STREAM_WINDOW)
    world.upstream.engine.trailers(theirs, status(0))
    world.go()
    assert len(world.answers[1]) == size
    assert world.outcome(stream) == (0, "")


def test_an_answer_of_trailers_alone_counts_as_its_status(world: World) -> None:
    stream = world.call()
    engine = world.upstream.engine
    engine.head(world.upstream.calls[0], grpc_fields.trailers_only(5, "caf\u00e9 100%"), True)
    world.go()
    assert world.outcome(stream) == (5, "caf%C3%A9 100%25")
    assert world.app.log == ["start", "answering 404", "finished 404"]


@pytest.mark.parametrize(("code", "http"), [(0, 200), (3, 400), (4, 504), (8, 429), (13, 500), (14, 503), (99, 500)])
def test_a_status_in_trailers_is_counted_as_http_has_it(world: World, code: int, http: int) -> None:
    stream = world.call()
    world.answer(None, MESSAGE, code)
    assert world.outcome(stream)[0] == code
    assert world.app.log[-1] == f"finished {http}"


# --- the deadline -----------------------------------------------------------------------------------------------------


def test_the_own_timeout_is_reported_reduced(made: Callable[..., World]) -> None:
    app = HoldingApp()
    world = made(app=app)
    world.call((b"grpc-timeout", b"10S"))
    (ex,) = app.waiting
    assert ex.head.timeout_s == 10.0
    ex.set_deadline(ex.received + 10.0)
    ex.forward(world.pool)
    world.go()
    (timeout,) = [value for name, value, *_ in world.upstream.heads[0].fields if name == b"grpc-timeout"]
    assert timeout.endswith(b"m")
    assert 9000 < int(timeout[:-1]) <= 10000


def test_a_deadline_before_an_answer_is_the_applications(world: World) -> None:
    stream = world.call()
    world.pass_time(301)
    assert world.outcome(stream) == (4, "too late")
    assert world.upstream.ended(world.upstream.calls[0])[1:] == CANCELLED
    assert world.app.log == ["start", "expired", "finished 504"]


def test_a_deadline_in_the_middle_of_a_stream_ends_it_with_a_status(world: World) -> None:
    stream = world.call()
    theirs = world.upstream.calls[0]
    world.upstream.engine.head(theirs, block(*ANSWER), False)
    world.upstream.engine.data(theirs, MESSAGE, False)
    world.go()
    world.pass_time(301)
    assert world.outcome(stream) == (4, "too late")
    assert [kind for kind, _ in world.heard(stream)] == [HEAD, TRAILERS]
    assert world.upstream.ended(theirs)[1:] == CANCELLED
    assert world.app.log == ["start", "answering 200", "expired", "finished 504"]


# --- who leaves, and who breaks off ---------------------------------------------------------------------------------


@pytest.mark.parametrize("answered", [False, True])
def test_a_client_that_cancels_cancels_upstream(world: World, answered: bool) -> None:
    stream = world.call(body=b"\0\0\0\0\7hal", ends=False)
    theirs = world.upstream.calls[0]
    if answered:
        world.upstream.engine.head(theirs, block(*ANSWER), False)
        world.go()
    world.client.reset(stream, frames.CANCEL)
    world.go()
    assert world.upstream.ended(theirs) == CANCELLED, "never an end that the client did not send"
    assert world.app.log[-2:] == ["abandoned", "finished 499"]


def test_a_client_that_is_gone_cancels_all_of_its_calls(world: World) -> None:
    for _ in range(3):
        world.call(body=None)
    world.protocol.connection_lost(ConnectionResetError())
    world.go()
    assert [world.upstream.ended(one) for one in world.upstream.calls] == [CANCELLED] * 3
    assert world.app.log.count("finished 499") == 3


def test_a_request_that_turns_malformed_is_cancelled_upstream(world: World) -> None:
    stream = world.call((b"content-length", b"99"), ends=False)
    world.client.data(stream, b"x" * 90, True)
    world.go()
    assert world.heard(stream) == [(RESET, frames.PROTOCOL_ERROR)]
    assert world.upstream.ended(world.upstream.calls[0]) == CANCELLED
    assert world.app.log[-2:] == ["abandoned", "finished 400"]


@pytest.mark.parametrize("answered", [False, True])
def test_a_reset_of_the_upstream_passes_with_its_code(world: World, answered: bool) -> None:
    stream = world.call()
    theirs = world.upstream.calls[0]
    if answered:
        world.upstream.engine.head(theirs, block(*ANSWER), False)
        world.go()
    world.upstream.engine.reset(theirs, frames.ENHANCE_YOUR_CALM)
    world.go()
    assert world.outcome(stream) == (-frames.ENHANCE_YOUR_CALM, "")
    assert world.app.log[-1] == "finished 429"
    assert not calls(world)[0].truncated, "it is the server's answer to this call, and no failure of the replica"


@pytest.mark.parametrize("ends_with", ["head", "data", "trailers", "nonsense"])
def test_an_answer_without_a_status_passes_and_is_counted_as_a_failure(world: World, ends_with: str) -> None:
    """Clients take it for UNKNOWN, whatever HTTP has said."""
    world.call()
    engine, call = world.upstream.engine, world.upstream.calls[0]
    engine.head(call, block(*ANSWER), ends_with == "head")
    if ends_with == "data":
        engine.data(call, MESSAGE, True)
    elif ends_with != "head":
        engine.trailers(call, block((b"grpc-status", b"abc") if ends_with == "nonsense" else (b"x-a", b"b")))
    world.go()
    assert world.app.log[-1] == "finished 500"
    assert not calls(world)[0].truncated


@pytest.mark.parametrize("where", ["head", "trailers"])
def test_an_answer_with_too_much_metadata_ends_its_call_and_costs_no_replica(world: World, where: str) -> None:
    """A server may repeat what a client has sent it."""
    stream = world.call()
    engine, call = world.upstream.engine, world.upstream.calls[0]
    large = [(b"x-%d" % number, b"v" * 4000) for number in range(5)]
    engine.head(call, block(*ANSWER, *(large if where == "head" else ())), False)
    engine.trailers(call, status(0) + block(*large))
    world.go()
    assert world.outcome(stream)[0] == grpc_fields.RESOURCE_EXHAUSTED
    assert world.app.log[-1] == "finished 429"
    assert not any(line.startswith("upstream failed") for line in world.app.log)


def test_what_the_upstream_refused_is_sent_again(world: World) -> None:
    stream = world.call()
    world.upstream.engine.reset(world.upstream.calls[0], frames.REFUSED_STREAM)
    world.go()
    assert world.app.log == ["start", "upstream failed, sent False"]
    world.answer()
    assert world.outcome(stream) == (0, "")
    assert world.upstream.bodies == {1: MESSAGE, 3: MESSAGE}


def test_calls_above_the_last_of_a_goaway_go_elsewhere(world: World) -> None:
    looked_at, beyond = world.call(), world.call()
    first = world.upstream
    first.engine._served = 1
    first.engine.goaway()
    world.go()
    assert len(world.upstreams) == 2
    assert world.upstream.bodies == {1: MESSAGE}
    world.answer()
    assert world.outcome(beyond) == (0, "")
    first.engine.head(first.calls[0], grpc_fields.trailers_only(0, ""), True)
    world.go()
    assert world.outcome(looked_at) == (0, "")
    assert first.wire.is_closed, "it has nothing more to do"


def test_an_upstream_lost_before_an_answer_is_the_applications(world: World) -> None:
    stream = world.call()
    world.lose(world.upstream)
    assert world.outcome(stream) == (14, "reset by peer")
    assert world.app.log == ["start", "upstream failed, sent True", "finished 502"]


def test_an_upstream_lost_in_the_middle_is_reported_in_trailers(world: World) -> None:
    stream = world.call()
    world.upstream.engine.head(world.upstream.calls[0], block(*ANSWER), False)
    world.go()
    world.lose(world.upstream)
    assert world.outcome(stream) == (14, "the upstream broke off: reset by peer")
    assert calls(world)[0].truncated


def test_a_gateway_is_reported_that_the_trailers_are_none_of_the_servers(made: Callable[..., World]) -> None:
    app = HoldingApp()
    world = made(app=app)
    stream = world.call()
    app.waiting[0].mark_as_gateway()
    app.waiting[0].forward(world.pool)
    world.go()
    world.upstream.engine.head(world.upstream.calls[0], block(*ANSWER), False)
    world.go()
    world.lose(world.upstream)
    assert world.heard(stream)[-1][1].get(b"tidegate-outcome") == b"started"


@pytest.mark.parametrize(("more", "is_truncated"), [((), False), (((b"tidegate-outcome", b"started"),), True)])
def test_trailers_that_a_queue_proxy_wrote_are_a_broken_answer(
    world: World, more: tuple[tuple[bytes, bytes], ...], is_truncated: bool
) -> None:
    stream = world.call()
    engine, call = world.upstream.engine, world.upstream.calls[0]
    engine.head(call, block(*ANSWER), False)
    engine.trailers(call, status(14, b"gone") + block(*more))
    world.go()
    assert world.outcome(stream) == (14, "gone")
    assert world.heard(stream)[-1][1].get(b"tidegate-outcome") is None
    assert calls(world)[0].truncated is is_truncated


def test_an_upstream_that_cannot_be_reached(made: Callable[..., World]) -> None:
    world = made()
    world.refuses = True
    stream = world.call()
    assert world.app.log[:2] == ["start", "upstream failed, sent False"]
    assert world.outcome(stream)[0] == 14


def test_an_upstream_that_breaks_the_rules_loses_its_connection_and_no_client(world: World) -> None:
    stream = world.call()
    assert world.upstream.ours is not None
    world.upstream.ours.data_received(frames.frame_head(4 << 8 | frames.WINDOW_UPDATE, 0, 0) + bytes(4))
    world.go()
    assert world.outcome(stream)[0] == 14
    assert not world.wire.is_closed
    again = world.call()
    world.answer()
    assert world.outcome(again) == (0, "")


def test_a_call_that_waits_for_a_further_connection_outlives_one_that_cannot_be_made(
    made: Callable[..., World],
) -> None:
    """The present connection serves, but only what it has: no call may wait for the others to end."""
    world = made(begin=False)
    world.settings = ((frames.MAX_CONCURRENT_STREAMS, 1),)
    world.go()
    first = world.call()
    assert world.upstream.calls
    world.refuses = True
    second = world.call()
    assert not world.heard(second)
    assert len(world.upstreams) == 1
    world.refuses = False
    world.pass_time(0.3)
    assert [len(each.calls) for each in world.upstreams] == [1, 1]
    for upstream in world.upstreams:
        upstream.engine.head(upstream.calls[0], block(*ANSWER), False)
        upstream.engine.trailers(upstream.calls[0], status(0))
    world.go()
    assert [world.outcome(each)[0] for each in (first, second)] == [0, 0]


def test_a_call_that_works_on_although_none_waits(made: Callable[..., World]) -> None:
    world = made(hold_s=60.0)
    stream = world.call()
    world.client.reset(stream, frames.CANCEL)
    world.go()
    (ex,) = calls(world)
    ended: list[int] = []
    assert ex.held is not None
    ex.held.on_end = lambda: ended.append(1)
    assert ended == []
    world.answer()
    assert ended == [1]
    assert world.upstream.ended(world.upstream.calls[0]) == [(1, 0)]


def test_a_call_is_not_held_for_ever(made: Callable[..., World]) -> None:
    world = made(hold_s=60.0)
    stream = world.call()
    world.client.reset(stream, frames.CANCEL)
    world.go()
    ended: list[int] = []
    held = calls(world)[0].held
    assert held is not None
    held.on_end = lambda: ended.append(1)
    world.pass_time(61)
    assert ended == [1]
    assert world.upstream.ended(world.upstream.calls[0])[1:] == CANCELLED


def test_the_stream_of_a_held_call_is_free_as_soon_as_it_has_ended(made: Callable[..., World]) -> None:
    world = made(hold_s=60.0, begin=False)
    world.settings = ((frames.MAX_CONCURRENT_STREAMS, 1),)
    world.go()
    held = world.call()
    world.refuses = True
    world.client.reset(held, frames.CANCEL)
    world.go()
    second = world.call()
    assert len(world.upstream.calls) == 1, "the only stream is taken"
    world.answer()
    assert len(world.upstream.calls) == 2, "without a sweep"
    world.answer()
    assert world.outcome(second) == (0, "")


def test_a_connection_that_closes_is_closed_with_its_last_held_call(made: Callable[..., World]) -> None:
    world = made(hold_s=60.0)
    stream = world.call()
    world.client.reset(stream, frames.CANCEL)
    world.upstream.engine.goaway()
    world.go()
    assert not world.upstream.wire.is_closed
    world.answer()
    assert world.upstream.wire.is_closed


# --- waiting, holding, and what the application does ------------------------------------------------------------------


def test_a_waiting_call_fails_with_its_id_and_a_message_that_can_be_read(made: Callable[..., World]) -> None:
    app = HoldingApp()
    world = made(app=app)
    stream = world.call((b"x-request-id", b"r-1"))
    app.waiting[0].fail(QUEUE_FULL, "the queue is full: caf\u00e9", extra=b"retry-after: 3\r\n")
    world.go()
    (kind, answer), *rest = world.heard(stream)
    assert (kind, rest) == (HEAD, [])
    assert (answer.status, answer.grpc_status) == (200, 8)
    assert grpc_fields.decode_message(answer.get(b"grpc-message")) == "the queue is full: caf\u00e9"
    assert (answer.get(b"x-request-id"), answer.get(b"retry-after")) == (b"r-1", b"3")
    assert app.log[-1] == "finished 429"


def test_an_outcome_is_reported_with_its_http_status(made: Callable[..., World]) -> None:
    app = HoldingApp()
    world = made(app=app)
    stream = world.call()
    app.waiting[0].fail(QUEUE_FULL, "no", extra=b"tidegate-outcome: not-started\r\n")
    world.go()
    answer = world.heard(stream)[0][1]
    assert (answer.get(b"tidegate-status"), answer.get(b"tidegate-outcome")) == (b"429", b"not-started")


def test_a_failure_reported_with_its_outcome_keeps_its_status_and_goes_back(made: Callable[..., World]) -> None:
    seen: list[int] = []

    class Taker(RelayApp):
        def answering(self, ex: Any, head: Any) -> bytes | None:
            seen.append(head.status)
            if head.control(b"tidegate-outcome") is None:
                return b"x-own: 1\r\n"
            ex.forward(self.pool)
            return None

    world = made(app=Taker())
    stream = world.call()
    more = block((b"tidegate-outcome", b"not-started"), (b"tidegate-status", b"409"))
    world.upstream.engine.head(world.upstream.calls[0], grpc_fields.trailers_only(10, "stale") + more, True)
    world.go()
    assert len(world.upstream.calls) == 2
    world.answer(None, MESSAGE, 0, (b"tidegate-timing", b"queue=0.000,model=1.000"))
    assert seen == [409, 200]
    head = world.heard(stream)[0][1]
    assert (head.get(b"x-own"), head.get(b"tidegate-timing")) == (b"1", None)
    assert world.outcome(stream) == (0, "")


def test_bodies_of_waiting_calls_have_a_budget(made: Callable[..., World]) -> None:
    app = HoldingApp()
    world = made(Limits(waiting_body_bytes=100_000), app=app)
    first = world.call(body=b"x" * 60_000, ends=False)
    assert world.server.budget.used == 60_000
    second = world.call(body=b"x" * 60_000, ends=False)
    assert world.heard(first) == []
    assert world.outcome(second)[0] == 8
    assert world.server.budget.used == 60_000
    app.waiting[0].forward(world.pool)
    world.go()
    assert world.server.budget.used == 0


@pytest.mark.parametrize("how", ["taken back", "lost"])
def test_a_call_that_waits_again_counts_although_it_was_sent_at_once(made: Callable[..., World], how: str) -> None:
    class Taker(RelayApp):
        def answering(self, ex: Any, head: Any) -> bytes | None:
            return b"" if head.status == 200 else None

        def upstream_failed(self, ex: Any, sent: bool, why: str) -> None:
            """It waits."""

    world = made(Limits(waiting_body_bytes=100_000), app=Taker())
    world.call()
    world.answer()
    world.upstream.calls.clear()
    streams = [world.call(body=b"x" * 60_000, ends=False) for _ in range(2)]
    assert world.server.budget.used == 0
    for _ in streams:
        call = world.upstream.calls.pop(0)
        if how == "lost":
            world.upstream.engine.reset(call, frames.REFUSED_STREAM)
        else:
            world.upstream.engine.head(call, grpc_fields.trailers_only(10, "stale"), True)
        world.go()
        assert world.server.budget.used == 60_000
    assert world.heard(streams[0]) == []
    assert world.outcome(streams[1])[0] == 8


SLOW = Limits(body_idle_timeout_s=10.0, body_min_rate=100.0)


def test_a_first_message_that_drips_ends_the_call(made: Callable[..., World]) -> None:
    app = HoldingApp()
    world = made(SLOW, app=app)
    stream = world.call(body=b"\0\0\0\x10\0" + b"x" * 100, ends=False)
    world.pass_time(9.0)
    assert world.heard(stream) == []
    world.pass_time(10.5)
    code, message = world.outcome(stream)
    assert code == 4
    assert "limits.body-min-rate 100 bytes/s" in message
    assert (world.server.budget.slow, calls(world)[0].status) == (1, 408)


def test_a_large_first_message_is_held_to_the_rate_also_where_it_was_sent(made: Callable[..., World]) -> None:
    world = made(SLOW)
    stream = world.call(body=b"\0\0\x10\0\0" + b"x" * (STREAM_WINDOW - 5), ends=False)
    for _ in range(2):
        world.client.data(stream, b"x" * 9, False)
        world.go()
    world.pass_time(5.0)
    assert world.heard(stream) == []
    world.pass_time(15.5)
    assert world.outcome(stream)[0] == 4
    assert (RESET, frames.CANCEL) in [(kind, value) for kind, _, value, _ in world.upstream.events]


@pytest.mark.parametrize("body", [MESSAGE, MESSAGE + b"\0\0\0"])
def test_between_the_messages_of_a_stream_there_may_be_silence(made: Callable[..., World], body: bytes) -> None:
    """A model may take its time for the first answer, and its client has nothing to say meanwhile."""
    world = made(SLOW)
    stream = world.call(body=body, ends=False)
    world.pass_time(200.0)
    assert world.heard(stream) == []
    waiting = made(SLOW, app=HoldingApp())
    full = waiting.call(body=b"\0\0\x10\0\0" + b"x" * (STREAM_WINDOW - 5), ends=False)
    waiting.pass_time(200.0)
    assert waiting.heard(full) == [], "it has no credit for more"


def test_a_held_body_flows_when_the_upstream_says_so(made: Callable[..., World]) -> None:
    app = HoldingApp()
    world = made(app=app)
    stream = world.call(body=b"a" * 1000, ends=False)
    app.waiting[0].forward(world.pool, hold=True)
    world.go()
    assert world.upstream.heads[0].get(b"expect") == b"100-continue"
    size = 2 * CALL_KEPT_BYTES
    for _ in range(size >> 10):
        world.client.data(stream, b"b" * 1024, False)
        world.go()
    assert len(world.upstream.bodies[1]) <= CALL_KEPT_BYTES
    assert app.waiting[0].replayable
    world.upstream.engine.interim(world.upstream.calls[0], block((b":status", b"100")))
    world.client.data(stream, b"", True)
    world.go()
    assert len(world.upstream.bodies[1]) == 1000 + size
    assert world.upstream.ended(world.upstream.calls[0]) == [(1, 0)]
    assert world.heard(stream) == [], "the 100 is between us and the upstream"
    world.answer()
    assert world.outcome(stream) == (0, "")


def test_a_gateway_that_holds_is_reported_to_go_on(made: Callable[..., World]) -> None:
    app = HoldingApp()
    world = made(Limits(front_door=False, trusted_proxies=("127.0.0.0/8",)), app=app)
    stream = world.call((b"expect", b"100-continue"), body=None)
    app.waiting[0].proceed()
    world.go()
    assert [(kind, value.status) for kind, value in world.heard(stream)] == [(HEAD, 100)]
    app.waiting[0].forward(world.pool)
    world.go()
    assert world.upstream.heads[0].get(b"expect") is None


def test_a_gateways_fields_are_read_at_a_replica(made: Callable[..., World]) -> None:
    app = HoldingApp()
    world = made(Limits(front_door=False, trusted_proxies=("127.0.0.0/8",)), app=app)
    fields = ((b"tidegate-token", b"t"), (b"tidegate-timeout-ms", b"900"), (b"tidegate-batch-size", b"3"))
    world.call(*fields, (b"tidegate-credit", b"12"), (b"tidegate-want", b"w"))
    assert app.waiting[0].head.internal == (b"t", b"900", b"3", b"12", b"w")
    world.call(*fields[:2], (b"tidegate-batch-size", b"3x"))
    assert app.waiting[1].head.internal is None
    app.waiting[0].forward(world.pool)
    world.go()
    (head,) = world.upstream.heads
    kept = {name for name, *_ in head.fields if name.startswith(b"tidegate-")}
    assert kept == {b"tidegate-timeout-ms", b"tidegate-batch-size"}, "what a model server may see"


def test_trailers_of_a_held_request_are_not_forgotten(made: Callable[..., World]) -> None:
    app = HoldingApp()
    world = made(app=app)
    app.on_start = lambda ex: ex.forward(world.pool, hold=True)
    stream = world.client.request(block(*CALL), False, None)
    world.client.data(stream, MESSAGE, False)
    world.client.trailers(stream, block((b"x-sum", b"1")))
    world.go()
    assert world.upstream.bodies == {1: MESSAGE}
    assert [(kind, value.get(b"x-sum")) for kind, _, value, _ in world.upstream.events if kind == TRAILERS] == [
        (TRAILERS, b"1")
    ]
    world.answer()
    assert world.outcome(stream) == (0, "")


def test_another_path_for_the_upstream(made: Callable[..., World]) -> None:
    app = HoldingApp()
    world = made(app=app)
    world.call()
    app.waiting[0].forward(world.pool, target=b"/other.Service/Method")
    world.go()
    assert world.upstream.heads[0].path == b"/other.Service/Method"
    assert world.upstream.heads[0].authority == b"f.localhost:8080"


def test_a_field_that_is_dropped_once_is_there_in_the_next_equal_call(made: Callable[..., World]) -> None:
    app = HoldingApp()
    world = made(app=app)
    for _ in range(3):
        world.call((b"authorization", b"secret"))
    app.waiting[2].head.drop(b"authorization")
    world.call((b"authorization", b"secret"))
    for ex in app.waiting[2:]:
        ex.forward(world.pool)
    world.go()
    assert [head.get(b"authorization") for head in world.upstream.heads] == [None, b"secret"]
    assert b"authorization: secret\r\n" in app.waiting[2].head.received_fields()


# --- answered here ----------------------------------------------------------------------------------------------------


def test_a_call_answered_here(made: Callable[..., World]) -> None:
    app = HoldingApp()
    world = made(app=app)
    stream = world.call()
    app.waiting[0].reply(b"one")
    world.go()
    assert world.answers[1] == b"\0\0\0\0\3one"
    assert world.outcome(stream) == (0, "")
    assert app.log[-1] == "finished 200"


def test_a_stream_answered_here_message_by_message(made: Callable[..., World]) -> None:
    def echo(ex: GrpcCall, reply: LocalReply) -> None:
        while (found := reply.take()) is not None:
            reply.send(found[1].upper())
        if ex.body_complete:
            ex.end()

    app = HoldingApp()
    app.on_start = lambda ex: ex.serve(lambda reply: echo(ex, reply))
    world = made(app=app)
    stream = world.call(body=b"\0\0\0\0\1a\0\0\0\0\2b", ends=False)
    assert world.answers[1] == b"\0\0\0\0\1A"
    world.client.data(stream, b"c", True)
    world.go()
    assert world.answers[1] == b"\0\0\0\0\1A\0\0\0\0\2BC"
    assert world.outcome(stream) == (0, "")


def test_a_message_that_is_too_large_for_an_own_answer(made: Callable[..., World]) -> None:
    app = HoldingApp()
    app.on_start = lambda ex: ex.serve(LocalReply.take)
    world = made(app=app)
    stream = world.call(body=b"\0\xff\xff\xff\xff", ends=False)
    assert world.outcome(stream)[0] == 8


# --- nothing is left --------------------------------------------------------------------------------------------------


def test_an_ended_call_is_freed_at_once(world: World) -> None:
    class Forgetful(list[Any]):
        """Keeps nothing alive."""

        def append(self, one: Any) -> None:
            super().append(one.status)

    world.app.ended = Forgetful()
    gc.collect()
    gc.disable()
    try:
        before = sum(type(one) is GrpcCall for one in gc.get_objects())
        stream = world.call()
        world.answer()
        cancelled = world.call(body=None)
        world.client.reset(cancelled, frames.CANCEL)
        world.go()
        assert world.outcome(stream) == (0, "")
        assert sum(type(one) is GrpcCall for one in gc.get_objects()) == before == 0
    finally:
        gc.enable()


def test_applications_see_an_rpc_where_they_see_an_exchange() -> None:
    from tidegate.aio.proxy.exchange import Exchange

    http_only = {"upgrade", "gather", "is_over_budget", "check", "discard", "body_due", "client_gone", "upstream_slow"}
    public = {name for name in dir(Exchange) if not name.startswith("_")}
    of_engine = {"connected", "connect_failed", "tunnelled", "tunnel_closed", "response", "response_data", "truncate"}
    of_engine |= {"pause_upstream", "resume_upstream", "upstream_slow", "response_passed", "sink"}
    assert public - set(dir(GrpcCall)) - http_only - of_engine == set()


def test_a_call_that_is_like_no_other_leaves_nothing_to_the_collector(world: World) -> None:
    """Thousands of such calls a second would wait for it, each with its block and head."""
    kinds = (GrpcCall, Block, CallHead, AnswerHead)
    gc.collect()
    gc.disable()
    try:
        world.app.ended = []
        for number in range(20):
            world.call((b"x-number", b"%d" % number))
            world.answer(None, MESSAGE, 0, (b"x-number", b"%d" % number))
        world.app.ended.clear()
        world.events.clear()
        world.upstream.events.clear()
        world.upstream.heads.clear()
        world.upstream.calls.clear()
        before = sum(type(one) in kinds for one in gc.get_objects())
        gc.collect()
        assert sum(type(one) in kinds for one in gc.get_objects()) == before
    finally:
        gc.enable()


def test_an_upstream_that_sends_interim_answers_without_end_loses_its_call(world: World) -> None:
    stream = world.call()
    theirs = world.upstream.calls[0]
    for _ in range(MAX_INTERIMS):
        world.upstream.engine.interim(theirs, block((b":status", b"103")))
        world.go()
    assert world.app.log == ["start"]
    world.upstream.engine.interim(theirs, block((b":status", b"103")))
    world.go()
    assert world.outcome(stream) == (14, TOO_MANY_INTERIMS)
