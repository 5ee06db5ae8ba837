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
from tidegate.wire.http2.frames import (
    END_STREAM,
    MAX_VALUE,
    PADDED,
    ConnectionFault,
    frame_head,
    read_head,
    read_word,
)
from tidegate.wire.http2.header_blocks import Reader
from tidegate.wire.http2.hpack import CompressionFault
from tidegate.wire.http2.limits import (
    BLOCK_BYTES,
    CONTROL_BURST,
    CONTROL_RATE,
    FRAME_BYTES,
    Allowance,
    Windows,
)
from tidegate.wire.http2.sending import Sender
from tidegate.wire.http2.streams import BODY_DUE, ENDED, Stream

_CONNECTION_CREDIT: Final = 1 << 30
_PLAIN_MASK: Final = frames.END_HEADERS | PADDED | frames.HAS_PRIORITY
ANY, FIRST_SETTINGS, PREFACE, BLOCK = range(4)
"""The expected next frame."""


class OpenFrame:
    """The bytes of a frame, or of the preface, that are not all there yet."""

    __slots__ = ("_bytes", "_pieces", "needed")

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._bytes = 0
        self.needed = 0
        """Its size; 0 if there is none."""

    def begin(self, data: bytes, needed: int) -> None:
        """Keeps the first bytes of a frame."""
        self._pieces.append(data)
        self._bytes = len(data)
        self.needed = needed

    def completed(self, data: bytes) -> bytes | None:
        """Adds a read. Returns all bytes once there are enough."""
        self._pieces.append(data)
        self._bytes += len(data)
        if self._bytes < self.needed:
            return None
        whole = b"".join(self._pieces)
        self._pieces.clear()
        self.needed = 0
        return whole


class OpenBlock:
    """A header block that comes in several frames."""

    __slots__ = ("_bytes", "_pieces", "ends", "number")

    def __init__(self) -> None:
        self.number = 0
        """Of its stream."""
        self.ends = False
        """Its stream ends with it."""
        self._pieces: list[bytes] = []
        self._bytes = 0

    def begin(self, number: int, piece: bytes, ends: bool) -> None:
        self.number, self.ends, self._bytes = number, ends, 0
        self.add(piece)

    def add(self, piece: bytes) -> None:
        """Raises ConnectionFault if it is too large."""
        self._pieces.append(piece)
        self._bytes += len(piece)
        if self._bytes > BLOCK_BYTES:
            raise ConnectionFault(frames.ENHANCE_YOUR_CALM, "header block too large")

    def take(self) -> bytes:
        """Returns the whole block."""
        block = b"".join(self._pieces)
        self._pieces.clear()
        return block


class Engine(Sender):
    """The part that both roles share. Times are seconds of one monotonic clock."""

    __slots__ = (
        "_control",
        "_data_ends",
        "_data_left",
        "_data_stream",
        "_expects",
        "_held",
        "_last",
        "_open_block",
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
        self._held = OpenFrame()
        self._data_left = 0
        """Missing bytes of a DATA frame that has been reported in part."""
        self._data_stream = self.connection
        self._data_ends = False
        self._open_block = OpenBlock()
        self._last = 0
        """Number of the latest stream."""
        self._taken = 0
        """DATA bytes for which the peer has not got credit yet."""

    @property
    def is_head_due(self) -> bool:
        """True if the peer owes the rest of its preface, its first SETTINGS, or the rest of a header block or of any
        frame except DATA: for the head's time limit, which the driver keeps."""
        return self._expects != ANY or self._held.needed > 0

    # --- frames in --------------------------------------------------------------------------------------------------

    def receive(self, data: bytes, now: float) -> list[Event]:
        """Returns the events in ``data``."""
        events: list[Event] = []
        if self.is_over:
            return events
        if self._held.needed:
            whole = self._held.completed(data)
            if whole is None:
                return events
            data = whole
        try:
            self._read(data, now, events)
            if self._credited:
                self._use_credit(events)
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
                self._held.begin(data[at:], frames.HEAD_BYTES + (head >> 8))
                return
            elif kind == frames.HEADERS:
                self._headers(number, flags, data, start, at, now, events)
            elif kind == frames.WINDOW_UPDATE:
                self._window_update(number, data[start:at], now, events)
            else:
                self._rare(kind, number, flags, data[start:at], now, events)
        if at < size:
            self._held.begin(data[at:], frames.HEAD_BYTES)

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
            self._held.begin(data, len(frames.PREFACE))
            return len(data)
        self._expects = FIRST_SETTINGS
        return len(frames.PREFACE)

    def _check(self, kind: int, flags: int, number: int) -> None:
        if self._expects == BLOCK:
            if kind != frames.CONTINUATION or number != self._open_block.number:
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
            start, end = frames.unpadded(data, start, end)
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
        start, end = frames.block_in_headers(number, flags, data, start, end)
        ends = flags & END_STREAM != 0
        if flags & frames.END_HEADERS and end - start <= BLOCK_BYTES:
            self._block(number, data[start:end], ends, now, events)
            return
        self._expects = BLOCK
        self._open_block.begin(number, data[start:end], ends)

    def _rare(self, kind: int, number: int, flags: int, payload: bytes, now: float, events: list[Event]) -> None:
        if kind != frames.RST_STREAM:
            self._spend(now)
        frames.check_control(kind, number, flags, payload)
        if kind == frames.RST_STREAM:
            self._reset(number, payload, now, events)
        elif kind == frames.PING:
            if flags & frames.ACK:
                events.append((PONG, self.connection, payload, False))
            else:
                self._out.append(frames.ping(payload, frames.ACK))
        elif kind == frames.SETTINGS:
            self._settings(flags, payload, events)
        elif kind == frames.CONTINUATION:
            if self._expects != BLOCK:
                raise ConnectionFault(frames.PROTOCOL_ERROR, "CONTINUATION without HEADERS")
            self._open_block.add(payload)
            if flags & frames.END_HEADERS:
                self._expects = ANY
                self._block(number, self._open_block.take(), self._open_block.ends, now, events)
        elif kind == frames.PRIORITY and len(payload) != 5:
            stream = self.streams.get(number)
            if stream is None:
                raise ConnectionFault(frames.FRAME_SIZE_ERROR, "PRIORITY of a wrong size")
            self._break(stream, frames.FRAME_SIZE_ERROR, now, events)
        elif kind == frames.GOAWAY:
            self._peer_closes(read_word(payload)[0] & MAX_VALUE, events)
            events.append((CLOSING, self.connection, read_word(payload, 4)[0], False))

    def _reset(self, number: int, payload: bytes, now: float, events: list[Event]) -> None:
        if self._is_idle(number):
            raise ConnectionFault(frames.PROTOCOL_ERROR, "RST_STREAM on an idle stream")
        self._count_reset(now)
        stream = self.streams.get(number)
        if stream is not None:
            self._forget(stream)
            events.append((RESET, stream, read_word(payload)[0], False))

    def _settings(self, flags: int, payload: bytes, events: list[Event]) -> None:
        if flags & frames.ACK:
            self._reader.limit = 0
            return
        self._expects = ANY
        window = self._initial_window
        for name, value in frames.read_settings(payload, self._push_allowed()):
            if name == frames.HEADER_TABLE_SIZE:
                self._update_due = True
            elif name == frames.MAX_CONCURRENT_STREAMS:
                self.peer_streams = value
            elif name == frames.INITIAL_WINDOW_SIZE:
                window = value
            elif name == frames.MAX_FRAME_SIZE:
                self._frame_bytes = value
        self._out.append(frame_head(frames.SETTINGS, frames.ACK, 0))
        self._change_windows(window, events)
        events.append((SETTINGS, self.connection, 0, False))

    # --- windows ----------------------------------------------------------------------------------------------------

    def _window_update(self, number: int, payload: bytes, now: float, events: list[Event]) -> None:
        if len(payload) != 4:
            raise ConnectionFault(frames.FRAME_SIZE_ERROR, "WINDOW_UPDATE of a wrong size")
        increment = read_word(payload)[0] & MAX_VALUE
        stream = self.streams.get(number)
        if not number:
            self._credit(increment)
        elif stream is not None:
            if not self._credit_stream(stream, increment):
                self._break(stream, frames.FLOW_CONTROL_ERROR if increment else frames.PROTOCOL_ERROR, now, events)
        elif self._is_idle(number):
            raise ConnectionFault(frames.PROTOCOL_ERROR, "WINDOW_UPDATE on an idle stream")

    def passed(self, stream: Stream, size: int) -> None:
        """Notes that ``size`` body bytes of ``stream`` were consumed: the peer may send as many more."""
        stream.owed += size
        if stream.owed >= stream.granted >> 1 and stream.receiving == BODY_DUE and stream.number:
            self._out.append(frames.window_update(stream.number, stream.renew(self.windows)))

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
