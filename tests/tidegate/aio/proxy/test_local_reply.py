"""Calls that a process answers by itself, message by message."""

from collections.abc import Callable, Iterator

import pytest

from tests.support.http2.grpc_client import framed
from tests.support.worlds.h2_world import HoldingApp, World, block
from tidegate.aio.proxy.detached import second_copy
from tidegate.aio.proxy.grpc_call import LOCAL_BYTES, GrpcCall, LocalReply
from tidegate.wire.http2 import frames
from tidegate.wire.http2.streams import Stream

Messages = list[tuple[bool, bytes] | None]


class Served(HoldingApp):
    """Answers every call here; ``taken`` are the messages of its requests."""

    def __init__(self) -> None:
        super().__init__()
        self.taken: Messages = []
        self.turns = 0
        self.on_start = self._serve
        self.replies: list[LocalReply] = []

    def _serve(self, ex: GrpcCall) -> None:
        self.replies.append(ex.serve(self._turn))

    def _turn(self, reply: LocalReply) -> None:
        self.turns += 1
        while (found := reply.take()) is not None:
            self.taken.append(found)


@pytest.fixture
def app() -> Served:
    return Served()


@pytest.fixture
def world(app: Served) -> Iterator[World]:
    made = World(app=app)
    yield made
    made.close()


def more(world: World, stream: Stream, data: bytes, ends: bool = False) -> None:
    world.client.data(stream, data, ends)
    world.go()


def test_messages_are_taken_one_by_one_as_they_become_whole(world: World, app: Served) -> None:
    stream = world.call(body=framed(b"a") + framed(b"", compressed=True)[:3], ends=False)
    assert app.taken == [(False, b"a")]
    more(world, stream, framed(b"", compressed=True)[3:] + framed(b"c"))
    assert app.taken == [(False, b"a"), (True, b""), (False, b"c")]
    (ex,) = app.waiting
    assert (ex.bytes_in, ex.body_complete) == (16 + 1, False)
    assert repr(app.replies[0]) == "<LocalReply 0 bytes not taken>"


@pytest.mark.parametrize(
    ("size", "outcome"), [(LOCAL_BYTES, None), (LOCAL_BYTES + 1, (8, "a message of 65532 bytes is larger than 65531"))]
)
def test_a_message_that_would_never_be_whole_ends_the_call(
    world: World, app: Served, size: int, outcome: tuple[int, str] | None
) -> None:
    """The stream's window ends before a larger message does."""
    stream = world.call(body=framed(bytes(size))[:9], ends=False)
    assert app.taken == []
    if outcome is not None:
        assert world.outcome(stream) == outcome
        return
    more(world, stream, framed(bytes(size))[9:])
    assert app.taken == [(False, bytes(size))]


def test_the_client_gets_credit_for_what_is_taken(world: World, app: Served) -> None:
    stream = world.call(body=framed(bytes(40_000)), ends=False)
    for _ in range(5):
        more(world, stream, framed(bytes(40_000)))
    assert len(app.taken) == 6


@pytest.mark.parametrize("trailers", [False, True])
def test_the_end_of_a_request_is_an_occasion_to_go_on(world: World, app: Served, trailers: bool) -> None:
    stream = world.call(body=framed(b"a"), ends=False)
    before = app.turns
    if trailers:
        world.client.trailers(stream, block((b"x-sum", b"1")))
        world.go()
    else:
        more(world, stream, b"", ends=True)
    assert (app.turns, app.waiting[0].body_complete) == (before + 1, True)


def test_an_answer_waits_for_a_client_that_does_not_read(world: World, app: Served) -> None:
    world.passes = False
    world.call(ends=False)
    (reply,) = app.replies
    reply.send(bytes(100_000))
    world.go()
    assert reply.unsent > 0
    before, world.passes = app.turns, True
    world.client.passed(next(iter(world.client.streams.values())), 65_535)
    world.go()
    assert reply.unsent == 0
    assert app.turns > before, "there is room for more"


@pytest.mark.parametrize(
    "leave",
    [
        lambda world, stream: world.client.reset(stream, frames.CANCEL),
        lambda world, stream: world.protocol.connection_lost(None),
    ],
)
def test_a_client_that_goes_ends_the_call(world: World, app: Served, leave: Callable[[World, Stream], object]) -> None:
    leave(world, world.call(ends=False))
    world.go()
    assert [ex.status for ex in app.ended] == [499]


def test_the_deadline_ends_the_call(world: World, app: Served) -> None:
    stream = world.call(ends=False)
    app.waiting[0].deadline = 0.0
    world.pass_time(1.0)
    assert world.outcome(stream)[0] == 4


def test_a_call_is_served_once_and_has_no_copy(world: World, app: Served) -> None:
    world.call()
    (ex,) = app.waiting
    assert second_copy(ex) is None
    app.replies[0].send(b"x")
    with pytest.raises(RuntimeError, match="serving of"):
        ex.serve()
