"""What a process that answers a gRPC call itself has read of its request."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from tidegate.wire.grpc.first_message import MESSAGE_HEAD
from tidegate.wire.http2.limits import STREAM_WINDOW

if TYPE_CHECKING:
    from tidegate.aio.proxy.grpc_call import GrpcCall


OWN_BYTES: Final = STREAM_WINDOW - MESSAGE_HEAD
"""Largest message: more never comes before somebody has taken it."""


class LocalReply:
    """The bytes that nobody has taken yet; the stream's window bounds them."""

    __slots__ = ("_body", "announced", "callback")

    def __init__(self, callback: "Callable[[GrpcCall], object]", body: bytes) -> None:
        self.callback = callback
        self._body = bytearray(body)
        self.announced = 0
        """Length of the message that comes next."""

    def add(self, data: bytes) -> None:
        self._body += data

    def take(self) -> tuple[bool, bytes] | None:
        """Whether the next message is compressed, and the message; None: it is not there yet."""
        body = self._body
        if len(body) < MESSAGE_HEAD:
            return None
        self.announced = int.from_bytes(body[1:MESSAGE_HEAD], "big")
        end = MESSAGE_HEAD + self.announced
        if len(body) < end or self.is_too_large:
            return None
        found = body[0] != 0, bytes(body[MESSAGE_HEAD:end])
        del body[:end]
        return found

    @property
    def is_too_large(self) -> bool:
        """The next message has more bytes than any that a process answers by itself."""
        return self.announced > OWN_BYTES

    def __repr__(self) -> str:
        return f"<OwnAnswer {len(self._body)} bytes not taken>"
