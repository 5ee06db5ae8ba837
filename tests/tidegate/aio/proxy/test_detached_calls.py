"""Copies of gRPC calls: who answers the client, what is reset, and what a tap receives; without sockets."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.worlds.h2_world import ANSWER, MESSAGE, HoldingApp, World, block
from tidegate.aio.proxy.detached import second_copy, shadow_copy, swap_clients, tap_response
from tidegate.aio.proxy.grpc_call import GrpcCall
from tidegate.wire.http1.events import Piece
from tidegate.wire.http2 import frames
from tidegate.wire.http2.events import HEAD, RESET, TRAILERS
from tidegate.wire.message_heads import AnyResponseHead

OTHER = b"\0\0\0\0\5other"


class Racing(HoldingApp):
    """Whose head comes first has the client."""

    def __init__(self) -> None:
        super().__init__()
        self.first: Any = None
        self.copy: Any = None

    def again(self) -> Any:
        (self.first,) = self.waiting
        assert self.pool is not None
        self.first.forward(self.pool)
        self.copy = second_copy(self.first)
        if self.copy is not None:
            self.running += 1
            self.copy.forward(self.pool)
        return self.copy

    def answering(self, ex: Any, head: AnyResponseHead) -> bytes | None:
        if ex is self.copy:
            swap_clients(self.first, ex)
        elif self.copy is not None:
            self.copy.client_gone()
        self.first = self.copy = None
        return super().answering(ex, head)


@pytest.fixture
def app() -> Racing:
    return Racing()


@pytest.fixture
def world(app: Racing) -> Iterator[World]:
    made = World(app=app)
    yield made
    made.close()


@pytest.mark.parametrize("winner", [0, 1])
def test_the_first_answer_goes_to_the_client_and_the_other_copy_is_cancelled(
    world: World, app: Racing, winner: int
) -> None:
    stream = world.call()
    assert app.again() is not None
    world.go()
    calls = world.upstream.calls
    assert [world.upstream.bodies[call.number] for call in calls] == [MESSAGE, MESSAGE]
    world.answer(calls[winner], OTHER)
    assert [kind for kind, _ in world.heard(stream)] == [HEAD, TRAILERS]
    assert (world.answers, world.outcome(stream)) == ({stream.number: OTHER}, (0, ""))
    assert (RESET, frames.CANCEL) in world.upstream.ended(calls[1 - winner])
    assert sorted(ex.status for ex in app.ended) == [200, 499]
    app.waiting.clear()
    again = world.call()
    app.waiting[0].forward(world.pool)
    world.go()
    world.answer()
    assert world.outcome(again) == (0, ""), "the connection serves on"


def test_a_status_in_trailers_wins_too(world: World, app: Racing) -> None:
    stream = world.call()
    app.again()
    world.go()
    world.answer(world.upstream.calls[1], b"", 5)
    assert world.outcome(stream)[0] == 5


def test_a_client_that_cancels_after_the_copy_won_ends_the_copy(world: World, app: Racing) -> None:
    stream = world.call()
    app.again()
    world.go()
    copy = world.upstream.calls[1]
    world.upstream.engine.head(copy, block(*ANSWER), False)
    world.go()
    assert app.copy is None, "it has the client"
    world.client.reset(stream, frames.CANCEL)
    world.go()
    assert (RESET, frames.CANCEL) in world.upstream.ended(copy)
    assert [ex.status for ex in app.ended] == [499, 499]


def test_a_call_whose_client_still_sends_has_no_copy(world: World, app: Racing) -> None:
    stream = world.call(ends=False)
    assert app.again() is None
    world.go()
    world.client.data(stream, b"", True)
    world.go()
    world.answer()
    assert world.outcome(stream) == (0, "")


def test_a_shadow_and_a_tapped_answer_give_the_same_messages(world: World, app: Racing) -> None:
    stream = world.call()
    (first,) = app.waiting
    served: list[Piece] = []
    copied: list[Piece] = []
    first.forward(world.pool)
    copy = shadow_copy(first, app, 1.0, copied.append)
    assert isinstance(copy, GrpcCall)
    tap_response(first, served.append)
    app.running += 1
    copy.forward(world.pool, b"tidegate-shadow: true\r\n")
    world.go()
    one, two = world.upstream.calls
    assert world.upstream.heads[1].get(b"tidegate-shadow") == b"true"
    world.answer(one)
    world.answer(two, OTHER)
    assert (b"".join(served), b"".join(copied)) == (MESSAGE, OTHER)
    assert (world.answers, world.outcome(stream)) == ({stream.number: MESSAGE}, (0, ""))
    assert [ex.status for ex in app.ended] == [200, 200]
