"""gRPC calls over cleartext HTTP/2, on one or two connections of the data plane's own engine.

A call sends one message and half-closes. A streaming call (V2's ``ModelStreamInfer``) records the times of its
messages, as an event stream does for its outputs.
"""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final, cast

from tidegate.aio.loop.services import LoopServices
from tidegate.aio.upstream.http2 import H2Pool, H2Upstream
from tidegate.loadgen.clients.call import BROKEN, CONNECT, MALFORMED, Call
from tidegate.loadgen.clients.client import LoadClient
from tidegate.wire.grpc.first_message import MESSAGE_HEAD
from tidegate.wire.http2 import grpc_fields
from tidegate.wire.http2.block_memory import Block
from tidegate.wire.http2.hpack import literal
from tidegate.wire.http2.streams import Stream

if TYPE_CHECKING:
    from tidegate.aio.proxy.grpc_call import GrpcCall

CONNECT_S: Final = 10.0
V2: Final = "/inference.GRPCInferenceService/"
NAMES: Final = (
    "OK",
    "CANCELLED",
    "UNKNOWN",
    "INVALID_ARGUMENT",
    "DEADLINE_EXCEEDED",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
    "FAILED_PRECONDITION",
    "ABORTED",
    "OUT_OF_RANGE",
    "UNIMPLEMENTED",
    "INTERNAL",
    "UNAVAILABLE",
    "DATA_LOSS",
    "UNAUTHENTICATED",
)
"""Names of gRPC's status codes, by number."""


def framed(message: bytes) -> bytes:
    """Returns a message with gRPC's length prefix, uncompressed."""
    return b"\0%b%b" % (len(message).to_bytes(4, "big"), message)


class GrpcCalls(LoadClient):
    """Calls of ``path`` at ``address`` (``host:port``); request bodies are framed messages. ``is_stream``: record the
    times of the answer's messages. ``on_data`` receives the bytes of answers as they arrive."""

    def __init__(
        self,
        address: str,
        path: str,
        *,
        services: LoopServices,
        authority: str | None = None,
        fields: Iterable[tuple[str, str]] = (),
        is_stream: bool = False,
        on_data: Callable[[bytes], None] | None = None,
        most: int,
        timeout_s: float,
        clock: Callable[[], float],
    ) -> None:
        super().__init__(most=most, timeout_s=timeout_s, clock=clock)
        head = (
            (":method", "POST"),
            (":scheme", "http"),
            (":path", path),
            (":authority", authority or address),
            ("content-type", "application/grpc"),
            ("te", "trailers"),
            *fields,
        )
        self.head = b"".join(literal(name.lower().encode(), value.encode()) for name, value in head)
        self.is_stream = is_stream
        self.is_known_stream = path.endswith("/ModelStreamInfer")
        """Whether the gateway knows from the method that the answer is a stream."""
        self.on_data = on_data
        self._sweeper = services
        self._pool = H2Pool(address, services, CONNECT_S, 0.0)
        self._running: dict[Call, _Running] = {}

    def finish(self, call: Call, error: str | None = None, at: float | None = None) -> None:
        self._running.pop(call, None)
        super().finish(call, error, at)

    def _send(self, call: Call) -> None:
        running = self._running[call] = _Running(self, call)
        upstream = self._pool.take()
        if upstream is None:
            self._pool.wait(cast("GrpcCall", running))
        else:
            running.begin(upstream)

    def _give_up(self, call: Call) -> None:
        self._running[call].cancel()

    async def _close(self) -> None:
        for running in tuple(self._running.values()):
            running.cancel()
        self._running.clear()
        self._pool.close()
        for upstream in tuple(self._pool.connections):
            upstream.close()


class _Running:
    """A call in flight; owner of its stream, in the place of the data plane's ``GrpcCall``."""

    __slots__ = ("_call", "_client", "_last", "_left", "_stream", "_upstream", "attempts", "is_ended")

    def __init__(self, client: GrpcCalls, call: Call) -> None:
        self._client = client
        self._call = call
        self._stream: Stream | None = None
        self._upstream: H2Upstream | None = None
        self.is_ended = False
        self._left = b""
        """The incomplete message at the end of a streamed answer."""
        self._last = 0.0
        self.attempts = 0

    def begin(self, upstream: H2Upstream) -> None:
        """Writes the request."""
        self._upstream = upstream
        self._stream = upstream.engine.request(self._client.head, False, self)
        upstream.engine.data(self._stream, self._call.request.body, True)
        upstream.touch()

    def connected(self, upstream: H2Upstream, attempt: int) -> None:
        """Writes the request on a connection that has room for it."""
        if not self.is_ended:
            self.begin(upstream)

    def connect_failed(self, attempt: int, why: str) -> None:
        """Fails the call: no connection could be made."""
        self._end(CONNECT)

    def not_understood(self, attempt: int, why: str) -> None:
        """Fails the call: the server speaks HTTP/1.1."""
        self._end(MALFORMED)

    def interim(self, block: Block) -> None:
        """Ignores an informational response."""

    def sent(self, size: int) -> None:
        """Ignores a part of a large message that was written later."""

    def answer_head(self, block: Block, ends: bool) -> None:
        """Takes the response head, or a whole response without messages."""
        if block.status != 200:
            self._call.code = str(block.status)
        elif self._client.is_known_stream:
            self._call.began = self._client.clock()
        if ends:
            self._conclude(block)

    def answer_data(self, data: bytes, ends: bool) -> None:
        """Takes a piece of the response."""
        if self._client.is_stream:
            self._take(data)
        if self._client.on_data is not None:
            self._client.on_data(data)
        if ends:
            self._end(MALFORMED)  # gRPC's answers end with trailers.
        elif self._upstream is not None and self._stream is not None:
            self._upstream.engine.passed(self._stream, len(data))

    def answer_trailers(self, block: Block) -> None:
        """Takes the end of the response."""
        self._conclude(block)

    def upstream_reset(self, code: int, ours: bool) -> None:
        """Fails the call: the stream was reset."""
        self._end(MALFORMED if ours else BROKEN)

    def upstream_lost(self, why: str) -> None:
        """Fails the call: the connection was lost."""
        self._end(BROKEN)

    def cancel(self) -> None:
        """Resets the stream; no result is wanted any more."""
        upstream, stream = self._upstream, self._stream
        self.is_ended = True
        self._upstream = self._stream = None
        if upstream is not None and stream is not None:
            upstream.cancel(stream)

    def _take(self, data: bytes) -> None:
        """Extracts the messages that are complete."""
        text = self._left + data if self._left else data
        now = self._client.clock()
        while len(text) >= MESSAGE_HEAD:
            end = MESSAGE_HEAD + int.from_bytes(text[1:5], "big")
            if len(text) < end:
                break
            text = text[end:]
            if self._call.first:
                self._call.gaps.append(now - self._last)
            else:
                self._call.first = now
            self._last = now
        self._left = text

    def _conclude(self, block: Block) -> None:
        status, call = block.grpc_status, self._call
        if call.code is None and status is None:
            self._end(MALFORMED)
            return
        if status is not None:
            call.code = NAMES[status] if status < len(NAMES) else str(status)
        call.is_good = status == grpc_fields.OK
        self._end(None)

    def _end(self, error: str | None) -> None:
        if self.is_ended:
            return
        self.is_ended = True
        upstream, stream = self._upstream, self._stream
        self._upstream = self._stream = None
        if upstream is not None and stream is not None:
            upstream.ended(stream)
        self._client.finish(self._call, error)
