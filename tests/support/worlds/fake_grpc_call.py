"""A gRPC call without sockets: what an application does with it is written down, as in ``edge_exchange``."""

from collections.abc import Callable, Sequence
from typing import Any, cast

from tests.support.http2.grpc_client import framed
from tests.support.worlds.fake_exchange import FakeExchange
from tests.support.worlds.gateway_chain import Door
from tidegate.aio.proxy.grpc_call import GrpcCall, LocalReply
from tidegate.errors import ErrorKind, Executed
from tidegate.wire.grpc.first_message import MESSAGE_HEAD
from tidegate.wire.http2 import grpc_fields
from tidegate.wire.http2.block_memory import REQUEST, Blocks
from tidegate.wire.http2.header_blocks import Reader
from tidegate.wire.http2.heads import CallHead, request_drops
from tidegate.wire.http2.hpack import literal
from tidegate.wire.http2.streams import Stream

INFER = "/inference.GRPCInferenceService/ModelInfer"


def call_head(path: str, authority: str = "127.0.0.1:8080", fields: Sequence[tuple[str, str]] = ()) -> CallHead:
    """The head of a call as the front door reads it."""
    drops = request_drops(front_door=True, trusted=False)
    pairs = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", path),
        (":authority", authority),
        ("content-type", "application/grpc"),
        *fields,
    ]
    block = b"".join(literal(name.encode(), value.encode()) for name, value in pairs)
    found = Reader(Blocks(REQUEST, drops)).read(block)
    assert not found.fault, found.fault
    return CallHead(found, front_door=True, trusted=False)


class SpokenEngine:
    """The engine of the client's connection: messages of an answer are written down at their call."""

    def __init__(self, messages: list[bytes]) -> None:
        self._messages = messages

    def head(self, stream: Stream, block: bytes, ends: bool) -> None:
        """The answer begins."""

    def data(self, stream: Stream, data: bytes, ends: bool) -> int:
        self._messages.append(data[MESSAGE_HEAD:])
        return len(data)

    def passed(self, stream: Stream, size: int) -> None:
        """The client may send more."""


class FakeRpc(FakeExchange):
    """One call. ``messages`` are what it was answered with here, ``code`` and ``message`` its status."""

    is_rpc = True

    def __init__(self, app: Any, head: CallHead, body: bytes, *, complete: bool, now: float) -> None:
        super().__init__(app, head, body, complete=complete, now=now)  # type: ignore[arg-type]  # one head like the other
        self.messages: list[bytes] = []
        self.code: int | None = None
        self.message = ""
        self._stream = Stream(1, 0, 0, self)
        """Its ``waiting`` is what the client has not read of the answer."""
        self._client: Any
        self._client.engine = SpokenEngine(self.messages)

    def reply(self, message: bytes, extra: bytes = b"") -> None:
        self.serve().send(message)
        self.end(extra=extra)

    def serve(self, callback: Callable[[LocalReply], object] | None = None) -> LocalReply:
        assert self.waiting
        self._stream.owner = reply = LocalReply(cast(GrpcCall, self), callback)
        reply.go_on()
        return reply

    def end(self, status: int = 0, message: str = "", extra: bytes = b"") -> None:
        assert not self.is_ended
        self.code, self.message, self.extra = status, message, extra
        self._finish(grpc_fields.http_status(status))

    def fail(
        self,
        kind: ErrorKind,
        message: str,
        *,
        function: str | None = None,
        executed: Executed = Executed.FALSE,
        request_id: str | None = None,
        extra: bytes = b"",
    ) -> None:
        assert not self.is_ended
        self.code, self.message, self.extra = (
            grpc_fields.status_of(kind.status),
            message,
            extra,
        )
        self._finish(kind.status)

    def more(self, *messages: bytes, complete: bool = False) -> None:
        """More of the request of a call that is answered here."""
        reply = self._stream.owner
        assert isinstance(reply, LocalReply)
        reply.client_data(b"".join(map(framed, messages)), complete)


def call(
    door: Door,
    path: str,
    *messages: bytes,
    authority: str = "127.0.0.1:8080",
    fields: Sequence[tuple[str, str]] = (),
    body: bytes | None = None,
    complete: bool = True,
) -> FakeRpc:
    """A call arrives with these messages, or with a body as it is."""
    data = b"".join(map(framed, messages)) if body is None else body
    made = FakeRpc(door.chain, call_head(path, authority, fields), data, complete=complete, now=door.now)
    made.start()
    return made
