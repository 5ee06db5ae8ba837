"""Calls under whatever both ends do, in whatever order: at the end every one was finished once, and nothing is left."""

from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.worlds.h2_world import ANSWER, CALL, HoldingApp, World, block, status
from tidegate.aio.proxy.grpc_call import GrpcCall
from tidegate.aio.proxy.server import Limits
from tidegate.errors import QUEUE_FULL
from tidegate.wire.http2 import frames
from tidegate.wire.http2.limits import WIDE_BYTES
from tidegate.wire.http2.streams import BODY_DUE

OPS = (
    "call", "open", "up", "end", "trailers", "cancel", "forward", "hold", "fail", "reply", "head", "down", "whole",
    "only", "refuse", "reset", "interim", "goaway", "lose", "jam", "free", "jam up", "free up", "unpass", "pass",
    "time", "garbage", "gone",
)  # fmt: skip


class Chaos:
    """One world, and what the steps of an example do to it; a step for which there is no call does nothing."""

    def __init__(self, hold_s: float) -> None:
        self.app = HoldingApp()
        self.app.answering = self._answering  # type: ignore[method-assign]  # decides as the steps say
        self.takes_back = False
        self.world = World(Limits(waiting_body_bytes=200_000), self.app, hold_s=hold_s)
        self.is_gone = False
        self.finished: list[GrpcCall] = []

    def _answering(self, ex: Any, head: Any) -> bytes | None:
        if self.takes_back and ex.replayable:
            self.takes_back = False
            return None
        return b"x-own: 1\r\n"

    def step(self, op: str, number: int) -> None:
        world = self.world
        if op in ("call", "open", "up", "end", "trailers", "cancel", "garbage", "unpass", "pass", "gone"):
            if not self.is_gone and not world.client.is_over and not world.wire.is_closed:
                self._client(op, number)
        elif op in ("forward", "hold", "fail", "reply"):
            waiting = [ex for ex in self.app.waiting if ex.waiting and not ex.is_ended]
            if waiting:
                self._decide(op, waiting[number % len(waiting)])
        elif op in ("jam", "free"):
            if not world.wire.is_closed and hasattr(world.protocol, "engine"):
                (world.protocol.pause_writing if op == "jam" else world.protocol.resume_writing)()
        elif op == "time":
            world.pass_time((1.0, 70.0, 400.0)[number % 3])
        elif world.upstreams:
            self._upstream(op, world.upstreams[number % len(world.upstreams)], number)
        world.go()

    def _client(self, op: str, number: int) -> None:
        client = self.world.client
        streams = list(client.streams.values())
        if op in ("call", "open"):
            if client.has_room():
                stream = client.request(block(*CALL, (b"x-n", b"%d" % number)), False, None)
                client.data(stream, b"\0\0\0\0\5hello", op == "call")
        elif op == "garbage":
            self.world.feed(bytes((number % 256,)) * 20)
        elif op == "gone":
            self.is_gone = True
            self.world.protocol.connection_lost(ConnectionResetError())
            self.world.wire.is_closed = True
        elif op in ("unpass", "pass"):
            self.world.passes = op == "pass"
        elif streams:
            stream = streams[number % len(streams)]
            if op == "cancel":
                client.reset(stream, frames.CANCEL)
            elif stream.sending == BODY_DUE:
                if op == "trailers":
                    client.trailers(stream, block((b"x-sum", b"1")))
                else:
                    client.data(stream, b"u" * (number * 700), op == "end")

    def _decide(self, op: str, ex: GrpcCall) -> None:
        if op == "fail":
            ex.fail(QUEUE_FULL, "no")
        elif op == "reply":
            ex.reply(b"here")
        else:
            ex.forward(self.world.pool, b"x-lines: 1\r\n", hold=op == "hold")

    def _upstream(self, op: str, upstream: Any, number: int) -> None:
        engine = upstream.engine
        if op == "lose":
            upstream.ours.connection_lost(ConnectionResetError("reset"))
        elif op == "goaway":
            engine.goaway()
        elif op in ("jam up", "free up") and not upstream.ours.is_lost:
            (upstream.ours.pause_writing if op == "jam up" else upstream.ours.resume_writing)()
        streams = list(engine.streams.values())
        if not streams:
            return
        stream = streams[number % len(streams)]
        self.takes_back = number % 7 == 0
        if op in ("head", "whole"):
            engine.head(stream, block(*ANSWER), False)
        elif op == "only":
            engine.head(stream, block(*ANSWER) + status(number % 17), True)
        elif op == "interim":
            engine.interim(stream, block((b":status", b"100" if number % 2 else b"103")))
        elif op == "down":
            engine.data(stream, b"d" * (number * 700), False)
        elif op in ("refuse", "reset"):
            engine.reset(stream, frames.REFUSED_STREAM if op == "refuse" else frames.INTERNAL_ERROR)
        if op == "whole":
            engine.data(stream, b"\0\0\0\0\0", False)
            engine.trailers(stream, status(number % 17))

    def end(self) -> None:
        world = self.world
        if not self.is_gone:
            world.protocol.connection_lost(None)
            world.wire.is_closed = True
        world.go()
        for upstream in world.upstreams:
            if upstream.ours is not None:
                upstream.ours.connection_lost(None)
        world.go()
        assert len(self.app.ended) == len(set(map(id, self.app.ended))) == self.app.log.count("start")
        assert world.server.budget.used == 0
        assert world.services.windows.left == WIDE_BYTES
        assert world.pool.connections == 0
        world.close()


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.tuples(st.sampled_from(OPS), st.integers(0, 120)), max_size=40), st.sampled_from((0.0, 60.0)))
def test_every_call_is_finished_once_and_nothing_is_left(steps: list[tuple[str, int]], hold_s: float) -> None:
    chaos = Chaos(hold_s)
    try:
        for op, number in [("call", 1), ("forward", 0), *steps]:
            chaos.step(op, number)
    except BaseException:
        chaos.world.errors.clear()
        chaos.app.running = 0
        chaos.world.close()
        raise
    chaos.end()
