"""Model servers that misbehave in HTTP/2, scripted frame by frame, behind real processes.

What a client receives, that a call which no server has looked at is not lost, and that the next call is served.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import cast

import pytest

from tests.support.http.doors import door
from tests.support.http.loopback import run_on, until
from tests.support.http2.echo import PROBE, message
from tests.support.http2.live import connect
from tests.support.http2.view import PROBED, View, probe_call
from tidegate.wire.http2 import frames as wire
from tidegate.wire.http2.hpack import literal

pytestmark = [pytest.mark.live, pytest.mark.timeout(60)]

KINDS = ("gateway", "queue_proxy")
LIMITS = {"head_timeout_s": 2.0, "idle_timeout_s": 20.0, "response_timeout_s": 10.0, "trusted_proxies": []}
HEAD = literal(b":status", b"200") + literal(b"content-type", b"application/grpc")
END = literal(b"grpc-status", b"0")
ANSWER = message(b"probe")
OK, INTERNAL, UNAVAILABLE, UNKNOWN, CANCELLED, DEADLINE = "0", "13", "14", "2", "1", "4"
RESOURCE_EXHAUSTED = "8"


def headers(number: int, block: bytes, flags: int = 0) -> bytes:
    return wire.headers(number, block, flags, 16384)


def data(number: int, payload: bytes, flags: int = 0) -> bytes:
    return wire.frame_head(len(payload) << 8, flags, number) + payload


def whole(number: int) -> bytes:
    """A right answer to the probe."""
    return headers(number, HEAD) + data(number, ANSWER) + headers(number, END, wire.END_STREAM)


@dataclass
class Upstream:
    """What came, over all connections."""

    script: Callable[["Connection", int], None]
    """Called with each whole request: the connection and the number of its stream."""
    greeting: bytes = wire.settings()
    calls: int = 0
    spoken: int = 0
    connections: list["Connection"] = field(default_factory=list)

    async def start(self) -> asyncio.Server:
        loop = asyncio.get_running_loop()
        return await loop.create_server(lambda: Connection(self), "127.0.0.1", 0)


class Connection(asyncio.Protocol):
    """One that the proxy has opened."""

    transport: asyncio.Transport

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream
        self._held = b""
        self._is_greeted = False
        self.index = -1
        """Of those that speak; a probe only connects."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._upstream.connections.append(self)
        self.transport.write(self._upstream.greeting)

    def write(self, data: bytes) -> None:
        self.transport.write(data)

    def data_received(self, data: bytes) -> None:
        self._held += data
        if not self._is_greeted:
            if len(self._held) < len(wire.PREFACE):
                return
            self._is_greeted = True
            self.index = self._upstream.spoken
            self._upstream.spoken += 1
            self._held = self._held.removeprefix(wire.PREFACE)
        while len(self._held) >= 9:
            head, flags, number = wire.read_head(self._held, 0)
            end = 9 + (head >> 8)
            if len(self._held) < end:
                return
            kind, self._held = head & 255, self._held[end:]
            if kind == wire.SETTINGS and not flags & wire.ACK:
                self.write(wire.frame_head(wire.SETTINGS, wire.ACK, 0))
            elif kind in (wire.HEADERS, wire.DATA) and flags & wire.END_STREAM:
                self._upstream.calls += 1
                self._upstream.script(self, number)


async def ask(view: View, numbers: range, within_s: float = 8.0) -> list[str | None]:
    """The grpc-status of each call; "RST n" where it was reset; all are over in time."""
    view.answers.clear()
    for number in numbers:
        view._send(probe_call(number, 0))
    await until(lambda: all(n in view.answers and view.answers[n].over for n in numbers), within_s)
    found: list[str | None] = []
    for number in numbers:
        answer = view.answers[number]
        status = answer.last("grpc-status")
        found.append(f"RST {answer.reset}" if status is None and answer.reset is not None else status)
        if status == OK:
            assert view.is_ok(number, PROBED), f"call {number} got {bytes(answer.data)!r}"
    return found


def play(
    kind: str, upstream: Upstream, first: range, permitted: set[str | None], *, again: range | None = None
) -> None:
    """Calls at once on the streams ``first``, then on ``again``: each ends with a permitted status. Then some are
    served right, by a script that has come to its senses."""

    async def main() -> None:
        server = await upstream.start()
        host, port = server.sockets[0].getsockname()[:2]
        async with door(kind, "uvloop", f"{host}:{port}", LIMITS, slots="100") as way:
            client = await connect(way.address)
            view = View({"name": PROBE}, client.write)
            client.on_data = view.received
            client.write(wire.PREFACE + wire.settings() + wire.window_update(0, 1 << 30))
            await until(lambda: view.unacked_settings > 0, 5.0)
            view.acknowledge()
            try:
                outcome = await ask(view, first)
                assert set(outcome) <= permitted, outcome
                if again is not None:
                    outcome = await ask(view, again)
                    assert set(outcome) <= permitted, outcome
                upstream.script = lambda connection, number: connection.write(whole(number))
                upstream.greeting = wire.settings()
                assert await ask(view, range(101, 109, 2)) == [OK] * 4
                assert not view.goaways
                assert not client.closed
            finally:
                client.transport.abort()
                for connection in upstream.connections:
                    connection.transport.abort()
                server.close()
                await asyncio.sleep(0.02)

    run_on("uvloop", main())


TEN = range(1, 21, 2)


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_leaving_server_has_not_looked_at_goes_elsewhere(kind: str) -> None:
    """GOAWAY names the first stream as the last one: that one is answered, the others are sent on a new connection."""

    def script(connection: Connection, number: int) -> None:
        if connection.index:
            connection.write(whole(number))
        elif number == 1:
            connection.write(wire.goaway(1, wire.NO_ERROR, b"") + whole(1))

    upstream = Upstream(script)
    play(kind, upstream, TEN, {OK})
    assert upstream.spoken > 1
    assert upstream.calls > len(TEN) + 4


@pytest.mark.parametrize("kind", KINDS)
def test_refused_streams_are_sent_again(kind: str) -> None:
    refused: list[int] = []

    def script(connection: Connection, number: int) -> None:
        if len(refused) < 3:
            refused.append(number)
            connection.write(wire.rst_stream(number, wire.REFUSED_STREAM))
        else:
            connection.write(whole(number))

    play(kind, Upstream(script), TEN, {OK})
    assert len(refused) == 3


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("at", ["before the head", "after the head", "within a message", "before the trailers"])
def test_a_server_that_breaks_off_is_reported_in_trailers(kind: str, at: str) -> None:
    parts: dict[str, Callable[[int], bytes]] = {
        "before the head": lambda number: b"",
        "after the head": lambda number: headers(number, HEAD),
        "within a message": lambda number: headers(number, HEAD) + data(number, ANSWER[:7]),
        "before the trailers": lambda number: headers(number, HEAD) + data(number, ANSWER),
    }

    def script(connection: Connection, number: int) -> None:
        connection.write(parts[at](number))
        connection.transport.close()

    play(kind, Upstream(script), range(1, 3, 2), {UNAVAILABLE, INTERNAL, "RST 2", "RST 8"})


RESETS = {code: {str(status), f"RST {code}"} for code, status in ((2, 13), (8, 1), (11, 8), (12, 7), (1, 13))}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("code", RESETS)
def test_a_reset_passes(kind: str, code: int) -> None:
    """With its code, or as the status that gRPC gives it (gRPC over HTTP2, errors)."""

    def script(connection: Connection, number: int) -> None:
        connection.write(headers(number, HEAD) + wire.rst_stream(number, code))

    play(kind, Upstream(script), TEN, cast(set[str | None], RESETS[code]))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "block",
    [
        b"\0\x01X\x01v",
        literal(b"transfer-encoding", b"chunked"),
        literal(b"x-a", b"a\r\nb: c"),
        literal(b":status", b"200"),
        b"\xff\xff\xff\xff\xff\xff",
    ],
    ids=["upper case", "of a connection", "line feed", "status twice", "no header block"],
)
def test_a_malformed_head_is_not_passed_on(kind: str, block: bytes) -> None:
    def script(connection: Connection, number: int) -> None:
        connection.write(headers(number, HEAD + block) + data(number, ANSWER) + headers(number, END, wire.END_STREAM))

    play(kind, Upstream(script), range(1, 3, 2), {UNAVAILABLE, INTERNAL, UNKNOWN, "RST 1", "RST 2"})


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("where", ["head", "trailers"])
def test_too_much_metadata_of_an_answer_ends_its_call_alone(kind: str, where: str) -> None:
    """A server may repeat what a client sent it: neither other calls nor the replica pay for that."""
    large = literal(b"x-large", b"l" * 60_000)

    def script(connection: Connection, number: int) -> None:
        head, end = (HEAD + large, END) if where == "head" else (HEAD, END + large)
        connection.write(headers(number, head) + data(number, ANSWER) + headers(number, end, wire.END_STREAM))

    play(kind, Upstream(script), TEN, {RESOURCE_EXHAUSTED}, again=range(21, 41, 2))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "frames",
    [
        data(0, b"x"),
        wire.frame_head(6 << 8 | wire.PING, 0, 0) + bytes(6),
        data(99, b"x"),
        wire.frame_head(5 << 8 | 5, wire.END_HEADERS, 1) + bytes(5),
        wire.settings((wire.MAX_FRAME_SIZE, 1)),
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        data(1, bytes(200_000)),
    ],
    ids=["data on 0", "short ping", "idle stream", "push", "settings", "HTTP/1", "beyond its window"],
)
def test_a_server_that_breaks_the_protocol_is_left(kind: str, frames: bytes) -> None:
    """The call that runs there fails with a status; the client's connection and the next calls do not."""

    def script(connection: Connection, number: int) -> None:
        connection.write(headers(number, HEAD) + frames)

    play(kind, Upstream(script), range(1, 3, 2), {UNAVAILABLE, INTERNAL, UNKNOWN, "RST 1", "RST 2", "RST 3", "RST 8"})


@pytest.mark.parametrize("kind", KINDS)
def test_a_server_of_http_1_alone_is_reported_as_such(kind: str) -> None:
    upstream = Upstream(lambda connection, number: None, greeting=b"HTTP/1.1 400 Bad Request\r\n\r\n")
    play(kind, upstream, TEN, {UNAVAILABLE, "12"})


@pytest.mark.parametrize("kind", KINDS)
def test_an_answer_without_trailers_ends(kind: str) -> None:
    def script(connection: Connection, number: int) -> None:
        connection.write(headers(number, HEAD) + data(number, ANSWER, wire.END_STREAM))

    play(kind, Upstream(script), TEN, {None, UNKNOWN, INTERNAL, "RST 2", "RST 1"})


@pytest.mark.parametrize("kind", KINDS)
def test_one_stream_at_a_time(kind: str) -> None:
    """A server that takes one call at once on a connection gets no second one there, once it has said so."""
    open_now = most = 0

    def script(connection: Connection, number: int) -> None:
        nonlocal open_now, most
        is_first = connection.index == 0
        open_now += is_first
        most = max(most, open_now)

        def answer() -> None:
            nonlocal open_now
            open_now -= is_first
            connection.write(whole(number))

        asyncio.get_running_loop().call_later(0.05, answer)

    upstream = Upstream(script, greeting=wire.settings((wire.MAX_CONCURRENT_STREAMS, 1)))
    play(kind, upstream, range(1, 3, 2), {OK}, again=range(3, 23, 2))
    assert most == 1
