"""A gRPC call without sockets: what an application does with it is written down, as in ``edge_exchange``."""

from collections.abc import Callable, Sequence
from typing import Any

from tests.support.http2.grpc_client import framed
from tests.support.worlds.fake_exchange import FakeExchange
from tests.support.worlds.gateway_chain import Door
from tidegate.aio.proxy.grpc_call import LocalReply
from tidegate.errors import ErrorKind, Executed
from tidegate.wire.http2 import grpc_fields
from tidegate.wire.http2.block_memory import REQUEST, Blocks
from tidegate.wire.http2.header_blocks import Reader
from tidegate.wire.http2.heads import CallHead, request_drops
from tidegate.wire.http2.hpack import literal

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


class FakeRpc(FakeExchange):
    """One call. ``messages`` are what it was answered with here, ``code`` and ``message`` its status."""

    is_rpc = True

    def __init__(self, app: Any, head: CallHead, body: bytes, *, complete: bool, now: float) -> None:
        super().__init__(app, head, body, complete=complete, now=now)  # type: ignore[arg-type]  # one head like the other
        self.messages: list[bytes] = []
        self.code: int | None = None
        self.message = ""
        self.unsent = 0
        """Of its answer, what the client has not read."""
        self.local_reply: LocalReply | None = None

    def reply(self, *messages: bytes, status: int = 0, message: str = "") -> None:
        for one in messages:
            self.send(one)
        self.end(status, message)

    def serve(self, callback: Callable[[Any], None]) -> None:
        self.local_reply = LocalReply(callback, self.body)
        callback(self)

    def take_message(self) -> tuple[bool, bytes] | None:
        assert self.local_reply is not None
        return self.local_reply.take()

    def send(self, message: bytes) -> None:
        assert not self.is_ended
        self.messages.append(message)

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
            grpc_fields.STATUS_OF_HTTP.get(kind.status, grpc_fields.INTERNAL),
            message,
            extra,
        )
        self._finish(kind.status)

    def more(self, *messages: bytes, complete: bool = False) -> None:
        """More of the request of a call that is answered here."""
        assert self.local_reply is not None
        self.local_reply.add(b"".join(map(framed, messages)))
        self.body_complete = complete
        self.local_reply.callback(self)  # type: ignore[arg-type]  # this stand-in


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
