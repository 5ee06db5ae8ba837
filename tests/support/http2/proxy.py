"""The smallest driver of the HTTP/2 engines: each stream of a client is one of the upstream connection.

It has no sockets: :meth:`Proxy.from_client` and :meth:`Proxy.from_upstream` take bytes and give what each side is sent.
"""

from collections.abc import Callable

from tidegate.wire.http2.block_memory import REQUEST, RESPONSE, Block, Blocks
from tidegate.wire.http2.engine import Engine
from tidegate.wire.http2.events import BODY, FAILED, HEAD, RESET, SENT, TRAILERS, Event
from tidegate.wire.http2.frames import CANCEL
from tidegate.wire.http2.roles import H2Client, H2Server
from tidegate.wire.http2.streams import Stream

Own = Callable[[Block], bytes]


def nothing(head: Block) -> bytes:
    """No own fields."""
    return b""


class Proxy:
    """One client connection and one upstream connection."""

    def __init__(self, requests: Blocks | None = None, answers: Blocks | None = None, own: Own = nothing) -> None:
        self.server = H2Server(requests or Blocks(REQUEST))
        self.client = H2Client(answers or Blocks(RESPONSE))
        self._own = own
        self.failed: int | None = None
        """Error code of our GOAWAY to the client."""

    def from_client(self, data: bytes, now: float = 0.0) -> tuple[bytes, bytes]:
        """What goes to the client, what to the upstream."""
        self.requests(self.server.receive(data, now))
        return self.server.take(), self.client.take()

    def from_upstream(self, data: bytes, now: float = 0.0) -> tuple[bytes, bytes]:
        """What goes to the client, what to the upstream."""
        self.answers(self.client.receive(data, now))
        return self.server.take(), self.client.take()

    def client_gone(self) -> bytes:
        """The client's connection has ended; what goes to the upstream."""
        for stream in self.server.streams.values():
            self.client.reset(stream.owner, CANCEL)
        return self.client.take()

    def requests(self, events: list[Event]) -> None:
        """Events of the client's connection."""
        server, client = self.server, self.client
        for kind, stream, value, ends in events:
            if kind == HEAD:
                stream.owner = client.request(
                    value.outgoing + self._own(value), ends, stream, is_head=value.method == b"HEAD"
                )
            elif kind == BODY:
                _pass(server, stream, client, value, ends)
            elif kind == TRAILERS:
                client.trailers(stream.owner, value.outgoing)
            elif kind == SENT:
                client.passed(stream.owner, value)
            elif kind == RESET:
                client.reset(stream.owner, CANCEL)
            elif kind == FAILED:
                self.failed = value
                self.client_gone_for_fault()

    def client_gone_for_fault(self) -> None:
        """As :meth:`client_gone`; what is sent is taken later."""
        for stream in list(self.server.streams.values()):
            self.client.reset(stream.owner, CANCEL)

    def answers(self, events: list[Event]) -> None:
        """Events of the upstream's connection."""
        server, client = self.server, self.client
        for kind, stream, value, ends in events:
            if kind == HEAD:
                if value.status < 200:
                    server.interim(stream.owner, value.outgoing)
                else:
                    server.head(stream.owner, value.outgoing, ends)
            elif kind == BODY:
                _pass(client, stream, server, value, ends)
            elif kind == TRAILERS:
                server.trailers(stream.owner, value.outgoing)
            elif kind == SENT:
                server.passed(stream.owner, value)
            elif kind == RESET:
                server.reset(stream.owner, value)


def _pass(source: Engine, stream: Stream, sink: Engine, piece: bytes, ends: bool) -> None:
    sent = sink.data(stream.owner, piece, ends)
    if sent:
        source.passed(stream, sent)
