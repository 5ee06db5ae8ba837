"""A client and an upstream of HTTP/2 around a proxy's connections, without sockets: both ends are engines of ours."""

import asyncio
from collections.abc import Callable
from time import monotonic
from typing import Any, cast

from tests.support.http.loopback import RelayApp
from tidegate.aio.loop.services import LoopServices
from tidegate.aio.proxy.grpc_call import GrpcCall
from tidegate.aio.proxy.http1_connection import ServerConn
from tidegate.aio.proxy.server import Limits, ProxyServer
from tidegate.aio.upstream.http2 import H2Pool, H2Upstream
from tidegate.aio.upstream.pool import UpstreamPool
from tidegate.wire.http2 import frames
from tidegate.wire.http2.block_memory import REQUEST, RESPONSE, Block, Blocks
from tidegate.wire.http2.events import BODY, CLOSING, FAILED, HEAD, RESET, TRAILERS, Event
from tidegate.wire.http2.hpack import literal
from tidegate.wire.http2.roles import H2Client, H2Server
from tidegate.wire.http2.streams import Stream

Fields = tuple[tuple[bytes, bytes], ...]
CALL: Fields = (
    (b":method", b"POST"),
    (b":scheme", b"http"),
    (b":path", b"/pkg.Service/Method"),
    (b":authority", b"f.localhost:8080"),
    (b"content-type", b"application/grpc"),
    (b"te", b"trailers"),
)
ANSWER: Fields = ((b":status", b"200"), (b"content-type", b"application/grpc"))
MESSAGE = b"\0\0\0\0\5hello"


def block(*fields: tuple[bytes, bytes]) -> bytes:
    return b"".join(literal(*field) for field in fields)


def status(code: int, message: bytes = b"") -> bytes:
    """Trailers."""
    return block((b"grpc-status", b"%d" % code), (b"grpc-message", message))


class Wire(asyncio.Transport):
    """A transport that takes all and remembers it."""

    def __init__(self) -> None:
        super().__init__()
        self.sent = b""
        self.unsent = 0
        """Bytes that the peer has not made room for."""
        self.is_read = True
        self.is_closed = self.is_aborted = False
        self.protocol: asyncio.BaseProtocol | None = None

    def take(self) -> bytes:
        data, self.sent = self.sent, b""
        return data

    def reads(self) -> bool:
        return self.is_read

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 1) if name == "peername" else default

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Buffers are full when the test says so."""

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.protocol = protocol

    def can_write_eof(self) -> bool:
        return False

    def is_closing(self) -> bool:
        return self.is_closed

    def write(self, data: Any) -> None:
        assert not self.is_closed
        self.sent += data

    def close(self) -> None:
        self.is_closed = True

    def abort(self) -> None:
        self.is_closed = self.is_aborted = True

    def pause_reading(self) -> None:
        self.is_read = False

    def resume_reading(self) -> None:
        self.is_read = True


class Upstream:
    """One connection to the upstream, and what reached it."""

    def __init__(self, settings: tuple[tuple[int, int], ...]) -> None:
        self.engine = H2Server(Blocks(REQUEST))
        self.wire = Wire()
        self.ours: H2Upstream | None = None
        self.calls: list[Stream] = []
        self.heads: list[Block] = []
        self.bodies: dict[int, bytes] = {}
        self.events: list[Event] = []
        self.engine._out.append(frames.settings(*settings))
        self.passes = True
        """Whether it takes what comes: gives credit for it."""

    def hear(self, data: bytes) -> None:
        for event in self.engine.receive(data, 0.0):
            kind, stream, value, _ = event
            self.events.append(event)
            if kind == HEAD:
                self.calls.append(stream)
                self.heads.append(value)
                self.bodies[stream.number] = b""
            elif kind == BODY:
                self.bodies[stream.number] += value
                if self.passes:
                    self.engine.passed(stream, len(value))

    def ended(self, stream: Stream) -> list[tuple[int, int]]:
        """How a call's request ended here: (kind, code), nothing while it goes on."""
        return [
            (kind, value if kind == RESET else 0)
            for kind, about, value, ends in self.events
            if about is stream and (kind == RESET or ends)
        ]


class MemoryPool(H2Pool):
    """Connects to upstreams in memory."""

    def __init__(self, world: "World", hold_s: float) -> None:
        super().__init__("memory:1", world.services, 5.0, hold_s)
        self._world = world

    async def _open_connection(self) -> H2Upstream:
        if self._world.refuses:
            raise ConnectionRefusedError(111, "Connection refused")
        upstream = Upstream(self._world.settings)
        upstream.ours = H2Upstream(self)
        upstream.ours.connection_made(upstream.wire)
        self._world.upstreams.append(upstream)
        return upstream.ours


class World:
    """One client connection of a proxy; :meth:`go` carries bytes until all are silent."""

    def __init__(
        self, limits: Limits | None = None, app: RelayApp | None = None, *, hold_s: float = 0.0, begin: bool = True
    ) -> None:
        self.loop = asyncio.new_event_loop()
        asyncio._set_running_loop(self.loop)
        self.errors: list[BaseException] = []
        self.services = LoopServices(self.loop, interval_s=1e6, report=lambda name, error: self.errors.append(error))
        self.refuses = False
        self.settings: tuple[tuple[int, int], ...] = ()
        """Of the upstreams that are connected to from now on."""
        self.upstreams: list[Upstream] = []
        self.pool = UpstreamPool("127.0.0.1:1", self.services, hold_s=hold_s)
        self.pool._calls = self.calls = MemoryPool(self, hold_s)
        self.app = app or RelayApp()
        self.app.pool = self.pool
        self.server = ProxyServer(self.app, limits or Limits(), self.services)
        self.wire = Wire()
        self.protocol: asyncio.Protocol = ServerConn(self.server)
        self.protocol.connection_made(self.wire)
        self.client = H2Client(Blocks(RESPONSE))
        self.events: list[Event] = []
        self.answers: dict[int, bytes] = {}
        self.passes = True
        """Whether the client takes what comes: gives credit for it."""
        if begin:
            self.go()

    def close(self) -> None:
        self.server.abort()
        self.pool.close()
        self.services.close()
        self._turn()
        asyncio._set_running_loop(None)
        self.loop.close()
        assert self.errors == []
        assert self.app.running == 0, self.app.log

    def _turn(self) -> None:
        """One turn of the loop, which counts as running between turns, too: what a test calls may start tasks."""
        asyncio._set_running_loop(None)
        self.loop.call_soon(self.loop.stop)
        self.loop.run_forever()
        asyncio._set_running_loop(self.loop)

    def feed(self, data: bytes) -> None:
        """Bytes of the client."""
        self.protocol.data_received(data)
        if self.wire.protocol is not None:
            self.protocol = cast(asyncio.Protocol, self.wire.protocol)

    def go(self) -> None:
        quiet = 0
        while quiet < 3:
            quiet += 1
            if data := self.client.take():
                quiet = 0
                self.feed(data)
            self._turn()
            for upstream in self.upstreams:
                if data := upstream.wire.take():
                    quiet = 0
                    upstream.hear(data)
                if (data := upstream.engine.take()) and not upstream.wire.is_closed and upstream.ours is not None:
                    quiet = 0
                    upstream.ours.data_received(data)
            self._turn()
            if data := self.wire.take():
                quiet = 0
                self._hear(data)

    def _hear(self, data: bytes) -> None:
        for event in self.client.receive(data, 0.0):
            kind, stream, value, _ = event
            self.events.append(event)
            if kind == BODY:
                self.answers[stream.number] = self.answers.get(stream.number, b"") + value
                if self.passes:
                    self.client.passed(stream, len(value))

    # --- the client ---------------------------------------------------------------------------------------------------

    def call(self, *more: tuple[bytes, bytes], body: bytes | None = MESSAGE, ends: bool = True) -> Stream:
        """A call with more fields; ``body`` None: nothing but its head."""
        stream = self.client.request(block(*CALL, *more), False, None)
        if body is not None:
            self.client.data(stream, body, ends)
        self.go()
        return stream

    def heard(self, stream: Stream) -> list[tuple[int, Any]]:
        """What the client received of a call: (kind, block or code), bodies apart."""
        kinds = (HEAD, TRAILERS, RESET)
        return [(kind, value) for kind, about, value, _ in self.events if about is stream and kind in kinds]

    def outcome(self, stream: Stream) -> tuple[int, str]:
        """How a call ended for the client: its gRPC status and message, or (-code, "") where it was reset."""
        kind, value = self.heard(stream)[-1]
        if kind == RESET:
            return -value, ""
        assert kind in (TRAILERS, HEAD)
        return value.grpc_status, (value.get(b"grpc-message") or b"").decode()

    @property
    def goodbyes(self) -> list[int]:
        """Codes of the GOAWAYs that the client has got."""
        return [value for kind, _, value, _ in self.events if kind in (CLOSING, FAILED)]

    # --- the upstream -------------------------------------------------------------------------------------------------

    @property
    def upstream(self) -> Upstream:
        return self.upstreams[-1]

    def answer(self, stream: Stream | None = None, body: bytes = MESSAGE, code: int = 0, *more: Any) -> None:
        """A whole answer to a call, by default to the last one."""
        stream = stream or self.upstream.calls[-1]
        engine = self.upstream.engine
        engine.head(stream, block(*ANSWER, *more), False)
        if body:
            engine.data(stream, body, False)
        engine.trailers(stream, status(code))
        self.go()

    def lose(self, upstream: Upstream) -> None:
        """The upstream's connection dies."""
        assert upstream.ours is not None
        upstream.ours.connection_lost(ConnectionResetError("reset by peer"))
        self.go()

    # --- time ---------------------------------------------------------------------------------------------------------

    def pass_time(self, seconds: float) -> None:
        """As if so much time had passed since the last bytes."""
        self.services.tick(monotonic() + seconds)
        self.go()


class HoldingApp(RelayApp):
    """Keeps calls waiting until the test forwards them."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting: list[GrpcCall] = []
        self.on_start: Callable[[GrpcCall], object] | None = None

    def start(self, ex: Any) -> None:
        self.running += 1
        self.log.append("start")
        self.waiting.append(ex)
        if self.on_start is not None:
            self.on_start(ex)
