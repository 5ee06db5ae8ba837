"""A gRPC client without sockets: our own client engine against a server's protocol, in one loop.

Bytes go over at once in both directions; what the server writes later (its calls are tasks) is heard when it comes.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

from tidegate.wire.grpc.first_message import MESSAGE_HEAD
from tidegate.wire.http2 import grpc_fields
from tidegate.wire.http2.block_memory import RESPONSE, Block, Blocks
from tidegate.wire.http2.events import BODY, HEAD, RESET, TRAILERS
from tidegate.wire.http2.hpack import literal
from tidegate.wire.http2.roles import H2Client
from tidegate.wire.http2.streams import Stream


def framed(message: bytes, *, compressed: bool = False) -> bytes:
    """A message as it stands in a body."""
    return bytes((compressed,)) + len(message).to_bytes(4, "big") + message


class ClientCall:
    """One call: what has come of its answer."""

    def __init__(self, client: "Client") -> None:
        self._client = client
        self.stream: Stream | None = None
        self.http_status = 0
        self.head: Block | None = None
        self.body = b""
        self.status: int | None = None
        self.message = ""
        self.reset: int | None = None
        self.is_over = asyncio.Event()
        self.changed = asyncio.Event()

    @property
    def messages(self) -> list[bytes]:
        found, at = [], 0
        while len(self.body) - at >= MESSAGE_HEAD:
            size = int.from_bytes(self.body[at + 1 : at + 5], "big")
            found.append(self.body[at + 5 : at + 5 + size])
            at += 5 + size
        return found

    def send(self, *messages: bytes, ends: bool = False) -> None:
        """More of the request."""
        self.send_raw(b"".join(map(framed, messages)), ends=ends)

    def send_raw(self, data: bytes, *, ends: bool = False) -> None:
        assert self.stream is not None
        self._client.engine.data(self.stream, data, ends)
        self._client.flush()

    def cancel(self) -> None:
        assert self.stream is not None
        self._client.engine.reset(self.stream, 8)
        self._client.flush()

    async def ended(self) -> tuple[int | None, str]:
        """Status and message, once they are there."""
        await self.is_over.wait()
        return self.status, self.message

    async def has(self, count: int) -> list[bytes]:
        """The messages, once there are so many."""
        while len(self.messages) < count and not self.is_over.is_set():
            self.changed.clear()
            await self.changed.wait()
        return self.messages


class Client(asyncio.Transport):
    """One connection to a server's protocol, which sees it as its transport."""

    def __init__(self, server: asyncio.Protocol, *, takes: bool = True) -> None:
        """``takes``: returns credit for what comes."""
        super().__init__()
        self.engine = H2Client(Blocks(RESPONSE))
        self._server = server
        self._takes = takes
        self._now = 0.0
        self.is_closed = False
        server.connection_made(self)
        self.flush()

    def call(
        self,
        path: str,
        *messages: bytes,
        ends: bool = True,
        fields: Sequence[tuple[bytes, bytes]] = (),
        method: bytes = b"POST",
        content_type: bytes = b"application/grpc",
    ) -> ClientCall:
        """Starts a call with these messages."""
        made = ClientCall(self)
        head = [
            (b":method", method),
            (b":scheme", b"http"),
            (b":path", path.encode()),
            (b":authority", b"localhost"),
            (b"content-type", content_type),
            (b"te", b"trailers"),
            *fields,
        ]
        block = b"".join(literal(name, value) for name, value in head)
        made.stream = self.engine.request(block, ends and not messages, made)
        if messages:
            made.send(*messages, ends=ends)
        self.flush()
        return made

    def flush(self) -> None:
        while data := self.engine.take():
            self._server.data_received(data)

    def write(self, data: Any) -> None:
        for kind, stream, value, ends in self.engine.receive(bytes(data), self._now):
            call = stream.owner
            if not isinstance(call, ClientCall):
                continue
            if kind == HEAD:
                call.http_status, call.head = value.status, value
            elif kind == BODY:
                call.body += value
                if self._takes:
                    self.engine.passed(stream, len(value))
            elif kind == RESET and call.reset is None:
                call.reset = value
            if kind in (HEAD, TRAILERS) and value.grpc_status is not None:
                call.status = value.grpc_status
                call.message = grpc_fields.decode_message(value.get(b"grpc-message") or b"")
            if ends or kind in (RESET, TRAILERS):
                call.is_over.set()
            call.changed.set()
        asyncio.get_running_loop().call_soon(self.flush)  # settings, credit: not inside the server's own write

    def close(self) -> None:
        if not self.is_closed:
            self.is_closed = True
            asyncio.get_running_loop().call_soon(self._server.connection_lost, None)

    def abort(self) -> None:
        self.close()

    def is_closing(self) -> bool:
        return self.is_closed
