"""The output of an HTTP/2 connection: frames within the peer's windows, and the bytes that wait for credit."""

from collections.abc import Iterable
from math import inf

from tidegate.wire.http2 import frames
from tidegate.wire.http2.events import SENT, Event
from tidegate.wire.http2.frames import END_STREAM, MAX_VALUE, ConnectionFault, frame_head
from tidegate.wire.http2.streams import BODY_DUE, ENDED, Stream


class Sender:
    """The sending half of both roles. Body bytes wait per stream, heads never."""

    __slots__ = (
        "_blocked",
        "_credited",
        "_frame_bytes",
        "_initial_window",
        "_out",
        "_update_due",
        "_window",
        "is_full",
        "streams",
    )

    def __init__(self, start: bytes) -> None:
        self.streams: dict[int, Stream] = {}
        """Open streams by number."""
        self.is_full = False
        """True while the transport buffers much: body bytes wait here, see :meth:`resume`."""
        self._out = [start, frames.window_update(0, MAX_VALUE - frames.DEFAULT_WINDOW)]
        self._window = self._initial_window = frames.DEFAULT_WINDOW
        self._frame_bytes = frames.MIN_FRAME_BYTES
        self._update_due = True
        """True if the next block begins with a table size update."""
        self._blocked: dict[int, Stream] = {}
        self._credited: dict[int, Stream] = {}
        """Streams with bytes that waited for the received credit. The credit is used after the whole of a read, since a
        peer may grant it byte by byte."""

    @property
    def is_out_of_credit(self) -> bool:
        """True if the peer has left no credit for the connection as a whole."""
        return self._window <= 0

    def take(self) -> bytes:
        """Returns the bytes to send now, b"" for none, and passes them to the caller."""
        out = self._out
        if not out:
            return b""
        data = b"".join(out)
        out.clear()
        return data

    def data(self, stream: Stream, data: bytes, ends: bool) -> int:
        """Sends a piece of a body; returns the number of bytes sent. The rest is kept, and SENT reports when it is
        sent."""
        if stream.sending != BODY_DUE:
            return 0
        size = len(data)
        if (
            not stream.waiting
            and size <= stream.window
            and size <= self._window
            and size <= self._frame_bytes
            and not self.is_full
        ):
            stream.window -= size
            self._window -= size
            if ends:
                self._out += (frame_head(size << 8, END_STREAM, stream.number), data)
                self._own_end(stream)
            elif size:
                self._out += (frame_head(size << 8, 0, stream.number), data)
            return size
        if size:
            stream.wait(data)
        if ends:
            stream.closing = True
            stream.sending = ENDED
        self._blocked[stream.number] = stream
        return self._drain(stream)

    def trailers(self, stream: Stream, block: bytes) -> None:
        """Sends the end of a message."""
        if stream.sending != BODY_DUE:
            return
        if stream.waiting:
            stream.tail = block
            stream.sending = ENDED
            return
        self._write_block(stream.number, block, END_STREAM)
        self._own_end(stream)

    def reset(self, stream: Stream, code: int) -> None:
        """Resets a stream now; does nothing if it is over."""
        if self.streams.get(stream.number) is stream:
            self._out.append(frames.rst_stream(stream.number, code))
            self._forget(stream)

    def ping(self, payload: bytes) -> None:
        """Requests a PONG with these eight bytes."""
        self._out.append(frames.ping(payload))

    def pause(self) -> None:
        """Notes that the transport is full: body bytes wait here from now on."""
        self.is_full = True

    def resume(self) -> list[Event]:
        """Continues after the transport has room; returns SENT events of the bytes that waited."""
        self.is_full = False
        events: list[Event] = []
        self._release(self._blocked.values(), events)
        return events

    def stalled(self, now: float, limit_s: float, rest_s: float = inf) -> list[Stream]:
        """Returns the streams with bytes that have waited for the peer's credit for longer than ``limit_s`` without
        progress, or as the rest of an ended message for longer than ``rest_s``, with progress or not. The times count
        from the first call that finds them so: a periodic service makes it."""
        found = []
        for stream in self._blocked.values():
            if stream.sending == ENDED and not stream.ended:
                stream.ended = now
            if not stream.since:
                stream.since = now
            elif now - stream.since > limit_s:
                found.append(stream)
                continue
            if stream.ended and now - stream.ended > rest_s:
                found.append(stream)
        return found

    # --- the peer's windows -----------------------------------------------------------------------------------------

    def _credit(self, increment: int) -> None:
        """The peer accepts more bytes on the connection. Raises ConnectionFault."""
        was_spent = self._window <= 0
        self._window += increment
        if not increment:
            raise ConnectionFault(frames.PROTOCOL_ERROR, "WINDOW_UPDATE of nothing")
        if self._window > MAX_VALUE:
            raise ConnectionFault(frames.FLOW_CONTROL_ERROR, "window too large")
        if was_spent and self._blocked:  # A stream that waits although there is credit waits for that of its own.
            self._credited.update(self._blocked)

    def _credit_stream(self, stream: Stream, increment: int) -> bool:
        """The peer accepts more bytes of a stream. Returns False if it may not."""
        stream.window += increment
        if not increment or stream.window > MAX_VALUE:
            return False
        if stream.waiting:
            self._credited[stream.number] = stream
        return True

    def _use_credit(self, events: list[Event]) -> None:
        """Sends the bytes that waited for the credit of the last read."""
        credited, self._credited = self._credited, {}
        self._release([stream for stream in credited.values() if stream.waiting], events)

    def _change_windows(self, window: int, events: list[Event]) -> None:
        """The peer has another initial window: those of all streams change by as much. Raises ConnectionFault."""
        change = window - self._initial_window
        if not change:
            return
        self._initial_window = window
        for stream in self.streams.values():
            stream.window += change
            if stream.window > MAX_VALUE:
                raise ConnectionFault(frames.FLOW_CONTROL_ERROR, "window too large")
        if change > 0:
            self._release(self._blocked.values(), events)

    # --- inside -----------------------------------------------------------------------------------------------------

    def _write_block(self, number: int, block: bytes, flags: int) -> None:
        if self._update_due:
            # This side uses a table of size 0, whatever size the peer allows.
            self._update_due = False
            block = b"\x20" + block
        if len(block) <= self._frame_bytes:
            self._out += (frame_head(len(block) << 8 | frames.HEADERS, flags | frames.END_HEADERS, number), block)
        else:
            self._out.append(frames.headers(number, block, flags, self._frame_bytes))

    def _release(self, streams: Iterable[Stream], events: list[Event]) -> None:
        """Sends waiting bytes, a frame of each stream in turn."""
        sent: dict[Stream, int] = {}
        turn = [stream for stream in streams if stream.window > 0]
        while turn:
            again = []
            for stream in turn:
                if self._window <= 0:
                    break
                size = self._drain(stream, once=True)
                if size:
                    sent[stream] = sent.get(stream, 0) + size
                    if stream.waiting:
                        again.append(stream)
                        self._blocked[stream.number] = self._blocked.pop(stream.number)  # Last in the next round.
            turn = again
        events.extend((SENT, stream, size, not stream.waiting) for stream, size in sent.items())

    def _drain(self, stream: Stream, *, once: bool = False) -> int:
        """Sends waiting bytes as far as the windows allow, or one frame of them; returns their number."""
        sent = 0
        number = stream.number
        while stream.waiting and not self.is_full:
            limit = min(stream.window, self._window, self._frame_bytes)
            if limit <= 0:
                break
            piece = stream.take(limit)
            size = len(piece)
            stream.window -= size
            self._window -= size
            sent += size
            ends = END_STREAM if stream.closing and not stream.waiting else 0
            self._out += (frame_head(size << 8, ends, number), piece)
            if ends:
                stream.since = 0.0
                self._blocked.pop(number, None)
                self._own_end(stream)
                return sent
            if once:
                break
        if sent:
            stream.since = 0.0
        if not stream.waiting:
            self._blocked.pop(number, None)
            if stream.tail is not None:
                self._write_block(number, stream.tail, END_STREAM)
                self._own_end(stream)
            elif stream.closing:
                self._out.append(frame_head(0, END_STREAM, number))
                self._own_end(stream)
        return sent

    def _forget(self, stream: Stream) -> None:
        self.streams.pop(stream.number, None)
        self._blocked.pop(stream.number, None)
        stream.drop()

    def _own_end(self, stream: Stream) -> None:
        """Notes the end of our message."""
        stream.sending = ENDED
