"""The shared half of both ends of an HTTP/2 connection (RFC 9113): bytes in, events out; commands in, bytes out.

Events are described in ``events.py``. Bytes to send collect in the engine; its user takes them once per iteration of
the event loop with :meth:`Engine.take`.

A stream ends with its response: a server that has answered before the request ended resets it with NO_ERROR (section
8.1), at once or, if it lingers, after a time. A client does the same for the part of the request that it has not sent
yet. Malformed messages are never reported. If a message turns out malformed later, its rest is not reported, and a
RESET is.

Credit is returned for the bytes passed to :meth:`Engine.passed`, per stream. The window of the connection is opened
wide and kept so, since the number of its streams bounds the bytes that a connection may hold.
"""

from typing import Final

from tidegate.wire.http2 import frames
from tidegate.wire.http2.block_memory import Blocks
from tidegate.wire.http2.events import BODY, CLOSING, FAILED, PONG, RESET, SETTINGS, TRAILERS, Event
from tidegate.wire.http2.frames import END_STREAM, MAX_VALUE, PADDED, frame_head, read_head, read_word
from tidegate.wire.http2.header_blocks import Reader
from tidegate.wire.http2.hpack import CompressionFault
from tidegate.wire.http2.limits import (
    BLOCK_BYTES,
    CONTROL_BURST,
    CONTROL_RATE,
    FRAME_BYTES,
    WIDER_WINDOWS,
    Allowance,
    Windows,
)
from tidegate.wire.http2.sending import Sender
from tidegate.wire.http2.streams import BODY_DUE, ENDED, Stream

_SETTINGS_BYTES: Final = 6 * 64
_CONNECTION_CREDIT: Final = 1 << 30
_PLAIN_MASK: Final = frames.END_HEADERS | PADDED | frames.HAS_PRIORITY
ANY, FIRST_SETTINGS, PREFACE, BLOCK = range(4)
"""The expected next frame."""


class ConnectionFault(Exception):
    """The connection is lost: error code and reason."""

    def __init__(self, code: int, why: str) -> None:
        super().__init__(why)
        self.code = code


class Engine(Sender):
    """The part that both roles share. Times are seconds of one monotonic clock."""

    __slots__ = (
        "_control",
        "_credited",
        "_data_ends",
        "_data_left",
        "_data_stream",
        "_expects",
        "_held",
        "_held_bytes",
        "_last",
        "_needed",
        "_pieces",
        "_pieces_bytes",
        "_pieces_ends",
        "_pieces_number",
        "_reader",
        "_taken",
        "connection",
        "is_closing",
        "is_over",
        "peer_streams",
        "windows",
    )

    def __init__(self, blocks: Blocks, expects: int, start: bytes, windows: Windows | None) -> None:
        super().__init__(start)
        self.windows = windows if windows is not None else Windows()
        """Budget for wider windows."""
        self._reader = Reader(blocks)
        self.connection = Stream(0, 0, 0, None)
        """The stream of events that concern no stream."""
        self.is_over = False
        """True if the connection has failed."""
        self.is_closing = False
        """True if either side has sent GOAWAY: no new streams."""
        self.peer_streams = MAX_VALUE
        """Maximum concurrent streams that the peer allows."""
        self._expects = expects
        self._control = Allowance(CONTROL_RATE, CONTROL_BURST)
        self._credited: dict[int, Stream] = {}
        """Streams with bytes that waited for the received credit. The credit is used after the whole of a read, since a
        peer may grant it byte by byte."""
        self._held: list[bytes] = []
        """An unfinished frame."""
        self._held_bytes = self._needed = 0
        self._data_left = 0
        """Missing bytes of a DATA frame that has been reported in part."""
        self._data_stream = self.connection
        self._data_ends = False
        self._pieces: list[bytes] = []
        """An unfinished header block."""
        self._pieces_bytes = self._pieces_number = 0
        self._pieces_ends = False
        self._last = 0
        """Number of the latest stream."""
        self._taken = 0
        """DATA bytes for which the peer has not got credit yet."""

    @property
    def is_head_due(self) -> bool:
        """True if the peer owes the rest of its preface, its first SETTINGS, or the rest of a header block or of any
        frame except DATA: for the head's time limit, which the driver keeps."""
        return self._expects != ANY or bool(self._held)

    # --- frames in --------------------------------------------------------------------------------------------------

    def receive(self, data: bytes, now: float) -> list[Event]:
        """Returns the events in ``data``."""
        events: list[Event] = []
        if self.is_over:
            return events
        if self._held:
            self._held.append(data)
            self._held_bytes += len(data)
            if self._held_bytes < self._needed:
                return events
            data = b"".join(self._held)
            self._held.clear()
        try:
            self._read(data, now, events)
            if self._credited:
                credited, self._credited = self._credited, {}
                self._release([stream for stream in credited.values() if stream.waiting], events)
        except ConnectionFault as fault:
            self._fail(fault.code, str(fault), events)
        except CompressionFault as fault:
            self._fail(frames.COMPRESSION_ERROR, str(fault), events)
        return events

    def _read(self, data: bytes, now: float, events: list[Event]) -> None:
        at = self._begin(data, now, events)
        size = len(data)
        streams = self.streams
        while size - at >= frames.HEAD_BYTES:
            head, flags, number = read_head(data, at)
            kind = head & 255
            number &= MAX_VALUE
            start = at + frames.HEAD_BYTES
            at = start + (head >> 8)
            if at - start > FRAME_BYTES:
                raise ConnectionFault(frames.FRAME_SIZE_ERROR, "frame too large")
            if self._expects:
                self._check(kind, flags, number)
            if at <= size:
                # Most frames, inlined: a whole head, and a whole piece of a body without padding.
                if kind == frames.HEADERS and flags & _PLAIN_MASK == frames.END_HEADERS and number:
                    if at - start <= BLOCK_BYTES:
                        self._block(number, data[start:at], flags & END_STREAM != 0, now, events)
                        continue
                elif not kind and start < at and not flags & PADDED:
                    stream = streams.get(number)
                    length = at - start
                    if (
                        stream is not None
                        and stream.receiving == BODY_DUE
                        and stream.left < 0
                        and stream.allowance >= length
                        and self._taken + length < _CONNECTION_CREDIT
                    ):
                        self._taken += length
                        stream.allowance -= length
                        self._control.level += 1.0
                        ends = flags & END_STREAM != 0
                        events.append((BODY, stream, data[start:at], ends))
                        if ends:
                            stream.receiving = ENDED
                            self._peer_ended(stream)
                        continue
            if kind == frames.DATA and (at <= size or not flags & PADDED):
                self._data(number, flags, data, start, at, now, events)
                if at > size:
                    return
            elif at > size:
                at = start - frames.HEAD_BYTES
                self._hold(data, at, frames.HEAD_BYTES + (head >> 8))
                return
            elif kind == frames.HEADERS:
                self._headers(number, flags, data, start, at, now, events)
            elif kind == frames.WINDOW_UPDATE:
                self._window_update(number, data[start:at], now, events)
            else:
                self._rare(kind, number, flags, data[start:at], now, events)
        if at < size:
            self._hold(data, at, frames.HEAD_BYTES)

    def _hold(self, data: bytes, at: int, needed: int) -> None:
        self._held.append(data[at:])
        self._held_bytes = len(data) - at
        self._needed = needed

    def _begin(self, data: bytes, now: float, events: list[Event]) -> int:
        """Reads the preface, or the rest of a DATA frame; returns the start of the frames behind it."""
        if self._data_left:
            piece = data[: self._data_left]
            self._data_left -= len(piece)
            self._body(self._data_stream, piece, self._data_ends and not self._data_left, now, events)
            return len(piece)
        if self._expects != PREFACE:
            return 0
        if not data.startswith(frames.PREFACE[: len(data)]):
            raise ConnectionFault(frames.PROTOCOL_ERROR, "not HTTP/2")
        if len(data) < len(frames.PREFACE):
            self._hold(data, 0, len(frames.PREFACE))
            return len(data)
        self._expects = FIRST_SETTINGS
        return len(frames.PREFACE)

    def _check(self, kind: int, flags: int, number: int) -> None:
        if self._expects == BLOCK:
            if kind != frames.CONTINUATION or number != self._pieces_number:
                raise ConnectionFault(frames.PROTOCOL_ERROR, "a header block without its end")
        elif kind != frames.SETTINGS or flags & frames.ACK:
            raise ConnectionFault(frames.PROTOCOL_ERROR, "the first frame is not SETTINGS")

    def _data(
        self, number: int, flags: int, data: bytes, start: int, end: int, now: float, events: list[Event]
    ) -> None:
        """Handles a DATA frame with the payload ``data[start:end]`` as far as it has arrived."""
        length = end - start
        self._taken += length
        if self._taken >= _CONNECTION_CREDIT:
            self._out.append(frames.window_update(0, self._taken))
            self._taken = 0
        stream = self.streams.get(number)
        if stream is None or stream.receiving != BODY_DUE:
            stream = self._stray_data(number, stream, now, events)
        else:
            stream.allowance -= length
            if stream.allowance < 0:
                self._break(stream, frames.FLOW_CONTROL_ERROR, now, events)
        ends = flags & END_STREAM != 0
        if flags & PADDED:
            start, end = _unpadded(data, start, end)
            self.passed(stream, length - (end - start))
        elif end > len(data):
            self._data_left = end - len(data)
            self._data_stream = stream
            self._data_ends = ends
            ends = False
        if start == end and not ends:
            self._spend(now)
        else:
            self._body(stream, data[start:end], ends, now, events)

    def _stray_data(self, number: int, stream: Stream | None, now: float, events: list[Event]) -> Stream:
        """Handles DATA on a stream that takes none; the data is skipped."""
        if stream is None:
            if self._is_idle(number):
                raise ConnectionFault(frames.PROTOCOL_ERROR, "DATA on an idle stream")
            self._spend(now)
        else:
            self._break(
                stream, frames.STREAM_CLOSED if stream.receiving == ENDED else frames.PROTOCOL_ERROR, now, events
            )
        return self.connection

    def _body(self, stream: Stream, piece: bytes, ends: bool, now: float, events: list[Event]) -> None:
        if stream.receiving != BODY_DUE or not stream.number:
            return
        if stream.left >= 0:
            stream.left -= len(piece)
            if stream.left < 0 or (ends and stream.left):
                self._break(stream, frames.PROTOCOL_ERROR, now, events)
                return
        if not piece and not ends:
            return
        self._control.level += 1.0
        events.append((BODY, stream, piece, ends))
        if ends:
            stream.receiving = ENDED
            self._peer_ended(stream)

    def _headers(
        self, number: int, flags: int, data: bytes, start: int, end: int, now: float, events: list[Event]
    ) -> None:
        if not number:
            raise ConnectionFault(frames.PROTOCOL_ERROR, "HEADERS on stream 0")
        if flags & PADDED:
            start, end = _unpadded(data, start, end)
        if flags & frames.HAS_PRIORITY:
            start += 5
        if start > end:
            raise ConnectionFault(frames.FRAME_SIZE_ERROR, "HEADERS too short")
        ends = flags & END_STREAM != 0
        if flags & frames.END_HEADERS and end - start <= BLOCK_BYTES:
            self._block(number, data[start:end], ends, now, events)
            return
        self._expects = BLOCK
        self._pieces_number, self._pieces_bytes, self._pieces_ends = number, 0, ends
        self._piece(data[start:end])

    def _piece(self, piece: bytes) -> None:
        self._pieces.append(piece)
        self._pieces_bytes += len(piece)
        if self._pieces_bytes > BLOCK_BYTES:
            raise ConnectionFault(frames.ENHANCE_YOUR_CALM, "header block too large")

    def _rare(self, kind: int, number: int, flags: int, payload: bytes, now: float, events: list[Event]) -> None:
        if kind == frames.RST_STREAM:
            self._reset(number, payload, now, events)
            return
        self._spend(now)
        if kind == frames.PING:
            self._ping(number, flags, payload, events)
        elif kind == frames.SETTINGS:
            self._settings(number, flags, payload, events)
        elif kind == frames.CONTINUATION:
            if self._expects != BLOCK:
                raise ConnectionFault(frames.PROTOCOL_ERROR, "CONTINUATION without HEADERS")
            self._piece(payload)
            if flags & frames.END_HEADERS:
                self._expects = ANY
                block = b"".join(self._pieces)
                self._pieces.clear()
                self._block(number, block, self._pieces_ends, now, events)
        elif kind == frames.PRIORITY:
            self._priority(number, payload, now, events)
        elif kind == frames.GOAWAY:
            self._goaway(number, payload, events)
        elif kind == frames.PUSH_PROMISE:
            raise ConnectionFault(frames.PROTOCOL_ERROR, "PUSH_PROMISE")

    def _priority(self, number: int, payload: bytes, now: float, events: list[Event]) -> None:
        if not number:
            raise ConnectionFault(frames.PROTOCOL_ERROR, "PRIORITY on stream 0")
        if len(payload) != 5:
            stream = self.streams.get(number)
            if stream is None:
                raise ConnectionFault(frames.FRAME_SIZE_ERROR, "PRIORITY of a wrong size")
            self._break(stream, frames.FRAME_SIZE_ERROR, now, events)

    def _reset(self, number: int, payload: bytes, now: float, events: list[Event]) -> None:
        if len(payload) != 4:
            raise ConnectionFault(frames.FRAME_SIZE_ERROR, "RST_STREAM of a wrong size")
        if self._is_idle(number):
            raise ConnectionFault(frames.PROTOCOL_ERROR, "RST_STREAM on an idle stream")
        self._count_reset(now)
        stream = self.streams.get(number)
        if stream is not None:
            self._forget(stream)
            events.append((RESET, stream, read_word(payload)[0], False))

    def _goaway(self, number: int, payload: bytes, events: list[Event]) -> None:
        if number:
            raise ConnectionFault(frames.PROTOCOL_ERROR, "GOAWAY on a stream")
        if len(payload) < 8:
            raise ConnectionFault(frames.FRAME_SIZE_ERROR, "GOAWAY too short")
        self._peer_closes(read_word(payload)[0] & MAX_VALUE, events)
        events.append((CLOSING, self.connection, read_word(payload, 4)[0], False))

    def _ping(self, number: int, flags: int, payload: bytes, events: list[Event]) -> None:
        if number:
            raise ConnectionFault(frames.PROTOCOL_ERROR, "PING on a stream")
        if len(payload) != 8:
            raise ConnectionFault(frames.FRAME_SIZE_ERROR, "PING of a wrong size")
        if flags & frames.ACK:
            events.append((PONG, self.connection, payload, False))
        else:
            self._out.append(frames.ping(payload, frames.ACK))

    def _settings(self, number: int, flags: int, payload: bytes, events: list[Event]) -> None:
        if number:
            raise ConnectionFault(frames.PROTOCOL_ERROR, "SETTINGS on a stream")
        if len(payload) % 6 or (flags & frames.ACK and payload):
            raise ConnectionFault(frames.FRAME_SIZE_ERROR, "SETTINGS of a wrong size")
        if flags & frames.ACK:
            self._reader.limit = 0
            return
        if len(payload) > _SETTINGS_BYTES:
            raise ConnectionFault(frames.ENHANCE_YOUR_CALM, "too many settings")
        self._expects = ANY
        window = self._initial_window
        for name, value in frames.read_settings(payload):
            if name == frames.HEADER_TABLE_SIZE:
                self._update_due = True
            elif name == frames.ENABLE_PUSH:
                if value > self._push_allowed():
                    raise ConnectionFault(frames.PROTOCOL_ERROR, "ENABLE_PUSH out of range")
            elif name == frames.MAX_CONCURRENT_STREAMS:
                self.peer_streams = value
            elif name == frames.INITIAL_WINDOW_SIZE:
                if value > MAX_VALUE:
                    raise ConnectionFault(frames.FLOW_CONTROL_ERROR, "INITIAL_WINDOW_SIZE out of range")
                window = value
            elif name == frames.MAX_FRAME_SIZE:
                if not frames.MIN_FRAME_BYTES <= value <= frames.MAX_FRAME_BYTES:
                    raise ConnectionFault(frames.PROTOCOL_ERROR, "MAX_FRAME_SIZE out of range")
                self._frame_bytes = value
        self._out.append(frame_head(frames.SETTINGS, frames.ACK, 0))
        if window != self._initial_window:
            self._change_windows(window, events)
        events.append((SETTINGS, self.connection, 0, False))

    # --- windows ----------------------------------------------------------------------------------------------------

    def _change_windows(self, window: int, events: list[Event]) -> None:
        change = window - self._initial_window
        self._initial_window = window
        for stream in self.streams.values():
            stream.window += change
            if stream.window > MAX_VALUE:
                raise ConnectionFault(frames.FLOW_CONTROL_ERROR, "window too large")
        if change > 0:
            self._release(self._blocked.values(), events)

    def _window_update(self, number: int, payload: bytes, now: float, events: list[Event]) -> None:
        if len(payload) != 4:
            raise ConnectionFault(frames.FRAME_SIZE_ERROR, "WINDOW_UPDATE of a wrong size")
        increment = read_word(payload)[0] & MAX_VALUE
        if not number:
            was_spent = self._window <= 0
            self._window += increment
            if not increment:
                raise ConnectionFault(frames.PROTOCOL_ERROR, "WINDOW_UPDATE of nothing")
            if self._window > MAX_VALUE:
                raise ConnectionFault(frames.FLOW_CONTROL_ERROR, "window too large")
            if was_spent and self._blocked:  # A stream that waits although there is credit waits for that of its own.
                self._credited.update(self._blocked)
            return
        stream = self.streams.get(number)
        if stream is None:
            if self._is_idle(number):
                raise ConnectionFault(frames.PROTOCOL_ERROR, "WINDOW_UPDATE on an idle stream")
            return
        stream.window += increment
        if not increment or stream.window > MAX_VALUE:
            self._break(stream, frames.FLOW_CONTROL_ERROR if increment else frames.PROTOCOL_ERROR, now, events)
        elif stream.waiting:
            self._credited[number] = stream

    def passed(self, stream: Stream, size: int) -> None:
        """Notes that ``size`` body bytes of ``stream`` were consumed: the peer may send as many more."""
        stream.owed += size
        if stream.owed >= stream.granted >> 1 and stream.receiving == BODY_DUE and stream.number:
            more = stream.owed
            stream.passed += more
            for least, window in WIDER_WINDOWS:
                if stream.passed >= least and stream.granted < window:
                    more += stream.widen(window, self.windows)
            self._out.append(frames.window_update(stream.number, more))
            stream.allowance += more
            stream.owed = 0

    # --- commands ---------------------------------------------------------------------------------------------------

    def goaway(self, code: int = frames.NO_ERROR, why: bytes = b"") -> None:
        """Accepts no more streams of the peer; existing ones continue."""
        self.is_closing = True
        self._out.append(frames.goaway(self._peer_last(), code, why))

    def end(self) -> None:
        """Ends all streams after the connection is lost."""
        self.is_over = True
        for stream in list(self.streams.values()):
            self._forget(stream)

    # --- faults and ends --------------------------------------------------------------------------------------------

    def _spend(self, now: float) -> None:
        if not self._control.take(now):
            raise ConnectionFault(frames.ENHANCE_YOUR_CALM, "too many frames that carry nothing")

    def _break(self, stream: Stream, code: int, now: float, events: list[Event]) -> None:
        """Resets ``stream`` for a fault of the peer."""
        self.reset(stream, code)
        events.append((RESET, stream, code, True))
        self._count_reset(now)

    def _fail(self, code: int, why: str, events: list[Event]) -> None:
        self.goaway(code, why.encode())
        self.is_over = True
        events.append((FAILED, self.connection, code, False))

    def _trailers(self, stream: Stream, block: bytes, ends: bool, now: float, events: list[Event]) -> None:
        found = self._reader.read(block, True)
        if stream.receiving == ENDED:
            self._break(stream, frames.STREAM_CLOSED, now, events)
        elif found.is_large:
            self._break(stream, frames.ENHANCE_YOUR_CALM, now, events)
        elif found.fault or not ends or stream.left > 0:
            self._break(stream, frames.PROTOCOL_ERROR, now, events)
        else:
            stream.receiving = ENDED
            events.append((TRAILERS, stream, found, True))
            self._peer_ended(stream)

    # --- what the roles differ in -----------------------------------------------------------------------------------

    def _block(self, number: int, block: bytes, ends: bool, now: float, events: list[Event]) -> None:
        """Handles a whole header block."""
        raise NotImplementedError

    def _is_idle(self, number: int) -> bool:
        """Returns whether there was no stream of this number yet."""
        return number > self._last or not number & 1

    def _peer_ended(self, stream: Stream) -> None:
        """Notes the end of the peer's message."""

    def _count_reset(self, now: float) -> None:
        """Counts a reset by the peer, or one that it caused."""

    def _peer_closes(self, last: int, events: list[Event]) -> None:
        """Handles GOAWAY: the peer has not processed our streams above ``last``, and will not."""

    def _peer_last(self) -> int:
        """Number of the peer's latest stream that was processed."""
        return 0

    def _push_allowed(self) -> int:
        """Largest legal value of ENABLE_PUSH."""
        return 1

    def __repr__(self) -> str:
        state = "over" if self.is_over else "closing" if self.is_closing else "open"
        return f"<{type(self).__name__} {state}, {len(self.streams)} streams, {len(self._blocked)} wait for credit>"


def _unpadded(data: bytes, start: int, end: int) -> tuple[int, int]:
    """Returns the start and end of a padded payload."""
    if start == end:
        raise ConnectionFault(frames.FRAME_SIZE_ERROR, "no room for the padding's length")
    padding = data[start]
    if padding >= end - start:
        raise ConnectionFault(frames.PROTOCOL_ERROR, "padding longer than the frame")
    return start + 1, end - padding
