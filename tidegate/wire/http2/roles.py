"""The two roles of an HTTP/2 engine: towards clients and towards upstreams."""

from typing import Any, Final

from tidegate.wire.http2 import frames
from tidegate.wire.http2.block_memory import Block, Blocks
from tidegate.wire.http2.engine import FIRST_SETTINGS, PREFACE, Engine
from tidegate.wire.http2.events import HEAD, RESET, Event
from tidegate.wire.http2.frames import END_STREAM, MAX_VALUE, ConnectionFault
from tidegate.wire.http2.grpc_fields import RESOURCE_EXHAUSTED, trailers_only
from tidegate.wire.http2.header_blocks import LIST_BYTES
from tidegate.wire.http2.hpack import literal
from tidegate.wire.http2.limits import (
    CONTROL_BURST,
    CONTROL_RATE,
    FRAME_BYTES,
    RESET_BURST,
    RESET_RATE,
    STREAM_WINDOW,
    STREAMS,
    TRUSTED,
    Allowance,
    Windows,
)
from tidegate.wire.http2.streams import BODY_DUE, ENDED, HEAD_DUE, Stream

_REMEMBERED: Final = 1024
_BODILESS: Final = -2
_LARGE_ANSWER: Final = literal(b":status", b"431")
_LARGE_CALL: Final = trailers_only(RESOURCE_EXHAUSTED, f"the call's metadata is larger than {LIST_BYTES} bytes")


class H2Server(Engine):
    """One connection from a client."""

    __slots__ = ("_gone", "_resets", "_served")

    def __init__(self, blocks: Blocks, windows: Windows | None = None) -> None:
        """``blocks`` of requests are shared by the connections of one listener, ``windows`` by all of a process."""
        start = frames.settings(
            (frames.HEADER_TABLE_SIZE, 0),
            (frames.MAX_CONCURRENT_STREAMS, STREAMS),
            (frames.INITIAL_WINDOW_SIZE, STREAM_WINDOW),
            (frames.MAX_FRAME_SIZE, FRAME_BYTES),
            (frames.MAX_HEADER_LIST_SIZE, LIST_BYTES),
        )
        super().__init__(blocks, PREFACE, start, windows)
        self._resets = Allowance(RESET_RATE, RESET_BURST)
        self._gone: dict[int, None] = {}
        """Streams that the server has reset: data in flight on them is skipped."""
        self._served = 0
        """Number of the latest stream that was processed."""

    def head(self, stream: Stream, block: bytes, ends: bool) -> None:
        """Sends the final head of a response."""
        if stream.sending == HEAD_DUE:
            stream.sending = BODY_DUE
            self._write_block(stream.number, block, END_STREAM if ends else 0)
            if ends:
                self._own_end(stream)

    def interim(self, stream: Stream, block: bytes) -> None:
        """Sends a head of status 1xx before the final one."""
        if stream.sending == HEAD_DUE:
            self._write_block(stream.number, block, 0)

    def trust_peer(self) -> None:
        """Raises the limits for a proxy of this deployment, which enforces them on each of its clients: all of them
        together may reset and send more than one."""
        self._resets = Allowance(TRUSTED * RESET_RATE, TRUSTED * RESET_BURST)
        self._control = Allowance(TRUSTED * CONTROL_RATE, TRUSTED * CONTROL_BURST)

    def prepare_goaway(self) -> None:
        """Announces GOAWAY (RFC 9113 section 6.8): a client that receives it opens no more streams, and streams in
        flight are still served. A round trip later :meth:`goaway` follows."""
        self._out.append(frames.goaway(MAX_VALUE, frames.NO_ERROR, b""))

    def _block(self, number: int, block: bytes, ends: bool, now: float, events: list[Event]) -> None:
        stream = self.streams.get(number)
        if stream is not None:
            self._trailers(stream, block, ends, now, events)
            return
        found = self._reader.read(block)
        if number <= self._last and number & 1:
            if number not in self._gone:
                raise ConnectionFault(frames.STREAM_CLOSED, "HEADERS on a closed stream")
            return
        if not number & 1:
            raise ConnectionFault(frames.PROTOCOL_ERROR, "a client's stream has an odd number")
        self._last = number
        if self.is_closing:
            return
        self._served = number
        self._control.level += 1.0
        if len(self.streams) >= STREAMS:
            self._refuse(number, frames.REFUSED_STREAM, now)
        elif found.fault or (ends and found.content_length):
            self._refuse(number, frames.PROTOCOL_ERROR, now)
        elif found.is_large:
            self._write_block(number, _LARGE_CALL if found.is_call else _LARGE_ANSWER, END_STREAM)
            if ends:
                self._remember(number)
            else:
                self._refuse(number, frames.NO_ERROR, now)
        else:
            self._open(number, found, ends, events)

    def _open(self, number: int, head: Block, ends: bool, events: list[Event]) -> None:
        stream = self.streams[number] = Stream(number, self._initial_window, STREAM_WINDOW, None)
        stream.sending = HEAD_DUE
        if ends:
            stream.receiving = ENDED
        elif head.content_length is not None:
            stream.left = head.content_length
        events.append((HEAD, stream, head, ends))

    def _refuse(self, number: int, code: int, now: float) -> None:
        """Resets a stream that was not reported."""
        self._out.append(frames.rst_stream(number, code))
        self._remember(number)
        self._count_reset(now)

    def _remember(self, number: int) -> None:
        if len(self._gone) >= _REMEMBERED:
            del self._gone[next(iter(self._gone))]
        self._gone[number] = None

    def _forget(self, stream: Stream) -> None:
        super()._forget(stream)
        self._remember(stream.number)

    def _own_end(self, stream: Stream) -> None:
        if stream.receiving == ENDED:
            del self.streams[stream.number]
            stream.drop()
        elif stream.left and not stream.lingers:
            self.reset(stream, frames.NO_ERROR)
        else:
            # It lingers, or all of the announced length has arrived and only the end flag is in flight: some clients
            # send it separately, and take a reset before it for a failure.
            stream.sending = ENDED

    def _peer_ended(self, stream: Stream) -> None:
        if stream.sending == ENDED and not stream.waiting and self.streams.get(stream.number) is stream:
            del self.streams[stream.number]
            stream.drop()

    def lingering(self, now: float, limit_s: float) -> list[Stream]:
        """Returns the answered streams with a request that has lacked its end for longer than ``limit_s``; called as
        :meth:`stalled`."""
        found = []
        for stream in self.streams.values():
            if stream.sending == ENDED and not stream.waiting:
                if not stream.since:
                    stream.since = now
                elif now - stream.since > limit_s:
                    found.append(stream)
        return found

    def _count_reset(self, now: float) -> None:
        if not self._resets.take(now):
            raise ConnectionFault(frames.ENHANCE_YOUR_CALM, "too many resets")

    def _peer_last(self) -> int:
        return self._served


class H2Client(Engine):
    """One connection to an upstream."""

    __slots__ = ()

    def __init__(self, blocks: Blocks, windows: Windows | None = None) -> None:
        """``blocks`` of responses are shared by the connections to one upstream, ``windows`` by all of a process."""
        start = frames.PREFACE + frames.settings(
            (frames.HEADER_TABLE_SIZE, 0),
            (frames.ENABLE_PUSH, 0),
            (frames.INITIAL_WINDOW_SIZE, STREAM_WINDOW),
            (frames.MAX_FRAME_SIZE, FRAME_BYTES),
            (frames.MAX_HEADER_LIST_SIZE, LIST_BYTES),
        )
        super().__init__(blocks, FIRST_SETTINGS, start, windows)
        # Frames on streams that were reset count there, too: many clients cancel on one connection.
        self._control = Allowance(TRUSTED * CONTROL_RATE, TRUSTED * CONTROL_BURST)
        self._last = -1

    def has_room(self) -> bool:
        """True if the upstream accepts one more request on this connection."""
        return len(self.streams) < self.peer_streams and not self.is_closing and self._last < MAX_VALUE - 1

    def request(self, block: bytes, ends: bool, owner: Any, *, is_head: bool = False) -> Stream:
        """Opens a stream for a request; only while :meth:`has_room`. ``is_head``: its response has no body."""
        if not self.has_room():
            raise RuntimeError(f"a request on {self!r}")
        self._last = number = self._last + 2
        stream = self.streams[number] = Stream(number, self._initial_window, STREAM_WINDOW, owner)
        stream.receiving = HEAD_DUE
        if is_head:
            stream.left = _BODILESS
        self._write_block(number, block, END_STREAM if ends else 0)
        if ends:
            stream.sending = ENDED
        return stream

    def _block(self, number: int, block: bytes, ends: bool, now: float, events: list[Event]) -> None:
        stream = self.streams.get(number)
        if stream is None:
            if self._is_idle(number):
                raise ConnectionFault(frames.PROTOCOL_ERROR, "HEADERS on an idle stream")
            self._spend(now)
            self._reader.read(block)
        elif stream.receiving == HEAD_DUE:
            self._answer(stream, self._reader.read(block), ends, now, events)
        else:
            self._trailers(stream, block, ends, now, events)

    def _answer(self, stream: Stream, head: Block, ends: bool, now: float, events: list[Event]) -> None:
        status = head.status
        length = head.content_length
        if stream.left == _BODILESS or status == 204 or status == 304:
            length = 0
        if head.fault or head.is_large or (ends and (length or status < 200)):
            self._break(stream, frames.ENHANCE_YOUR_CALM if head.is_large else frames.PROTOCOL_ERROR, now, events)
            return
        self._control.level += 1.0
        if status >= 200:
            stream.receiving = ENDED if ends else BODY_DUE
            stream.left = -1 if length is None else length
        events.append((HEAD, stream, head, ends))
        if ends:
            self._peer_ended(stream)

    def _peer_ended(self, stream: Stream) -> None:
        if stream.sending != ENDED or stream.waiting:
            self.reset(stream, frames.NO_ERROR)
        else:
            del self.streams[stream.number]
            stream.drop()

    def _peer_closes(self, last: int, events: list[Event]) -> None:
        self.is_closing = True
        for stream in [stream for number, stream in self.streams.items() if number > last]:
            self._forget(stream)
            events.append((RESET, stream, frames.REFUSED_STREAM, False))

    def _push_allowed(self) -> int:
        return 0
