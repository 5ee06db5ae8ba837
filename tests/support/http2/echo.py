"""The capture backend of the hostile HTTP/2 corpus without sockets: python-hyper's engine, strict, on given time.

It answers the calls of ``/corpus.Echo/`` and records what it was sent. Whatever reaches it malformed is a fault of the
proxy before it: :attr:`Record.malformed`.
"""

import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import (
    DataReceived,
    Event,
    RequestReceived,
    StreamEnded,
    StreamReset,
    TrailersReceived,
    WindowUpdated,
)
from h2.exceptions import ProtocolError, StreamClosedError, StreamIDTooLowError
from h2.settings import SettingCodes

from tidegate.headers import TimeoutFieldError, read_timeout_s

PROBE = "/corpus.Echo/Probe"
MOST_BYTES = 4 << 20
HELD_BYTES = 1 << 18
"""Of answers, written ahead of who takes them."""
PIECE_BYTES = 1 << 14
"""Of a large answer that are made at a time, for each stream."""
_GONE = (StreamClosedError, StreamIDTooLowError)
"""What is written on a stream that a later frame of the same bytes has reset."""
_CONNECTION_FIELDS = {b"connection", b"proxy-connection", b"keep-alive", b"transfer-encoding", b"upgrade"}
_token = re.compile(rb"[!#$%&'*+\-.^_`|~0-9a-z]+").fullmatch
_path = re.compile(rb"/[!-~\x80-\xff]*").fullmatch
_method = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+").fullmatch


@dataclass
class Record:
    """What reached the backend while one case ran, on whatever connection."""

    all: list["Call"] = field(default_factory=list)
    malformed: str = ""
    """The first fault."""
    sent: int = 0
    """DATA bytes of answers."""
    open_now: int = 0
    most_open: int = 0
    """Calls at once, without probes."""

    @property
    def calls(self) -> list["Call"]:
        """All but the probes."""
        return [call for call in self.all if call.path != PROBE]

    def fault(self, why: str) -> None:
        self.malformed = self.malformed or why

    def began(self, call: "Call") -> None:
        self.all.append(call)
        if call.path != PROBE:
            self.open_now += 1
            self.most_open = max(self.most_open, self.open_now)


@dataclass
class Call:
    """One request as it arrived."""

    record: Record
    fields: list[tuple[bytes, bytes]]
    path: str
    trailers: list[tuple[bytes, bytes]] = field(default_factory=list)
    body: bytes = b""
    complete: bool = False
    reset_at: float | None = None
    finished: bool = False
    """The backend itself has ended it."""
    answered: bool = False
    """Its head has been sent."""
    echoed: int = 0
    outbox: bytearray = field(default_factory=bytearray)
    """Of the answer, waiting for credit."""
    zeros: int = 0
    """Bytes of the answer that follow it, all of them zero."""
    trailer: list[tuple[bytes, bytes]] | None = None
    due: list[tuple[float, bytes, bool]] = field(default_factory=list)
    """(when, message, whether it is the last)."""
    deadline: float = float("inf")

    @property
    def open(self) -> bool:
        return not self.finished and self.reset_at is None

    def finish(self) -> None:
        """The backend is done with it."""
        self._leave()
        self.finished = True

    def lose(self, now: float) -> None:
        """The proxy has taken it back."""
        self._leave()
        if self.reset_at is None:
            self.reset_at = now

    def _leave(self) -> None:
        if self.open and self.path != PROBE:
            self.record.open_now -= 1

    def value(self, name: bytes) -> bytes | None:
        return next((value for key, value in self.fields if key == name), None)


def message(payload: bytes) -> bytes:
    return b"\0" + len(payload).to_bytes(4, "big") + payload


class Echo:
    """The backend's end of one connection; ``record`` tells where what begins now belongs."""

    def __init__(self, record: Callable[[], Record]) -> None:
        # Its own checks are switched off where ours say more exactly what the corpus forbids.
        self._wire = H2Connection(H2Configuration(client_side=False, header_encoding=None))
        self._wire.local_settings[SettingCodes.MAX_CONCURRENT_STREAMS] = 250
        self._wire.initiate_connection()
        self._record = record
        self.calls: dict[int, Call] = {}
        self._busy: dict[int, Call] = {}
        """Those that have something to do or to send."""
        self._may_write = True
        self._untaken = 0
        """Bytes of answers that were written and not taken yet."""
        self.now = 0.0

    def receive(self, data: bytes, now: float) -> None:
        """Bytes from the proxy."""
        self.now = now
        try:
            events = self._wire.receive_data(data)
        except ProtocolError as error:
            self._record().fault(f"{type(error).__name__}: {error}")
            return
        for event in events:
            with suppress(*_GONE):
                self._heard(event)

    def take(self) -> bytes:
        """What is to be sent; to be asked again until it is nothing."""
        self._fill()
        self._untaken = 0
        return self._wire.data_to_send()

    def pause(self) -> None:
        """The socket takes no more for now."""
        self._may_write = False

    def resume(self) -> None:
        """It does again."""
        self._may_write = True

    def _fill(self) -> None:
        for number, call in self._busy.items():
            if call.outbox and call.reset_at is None:
                self._flush(number, call)

    def lost(self, now: float) -> None:
        """The connection has ended."""
        for call in self.calls.values():
            call.lose(now)

    @property
    def is_timed(self) -> bool:
        """Whether something may wait for its time."""
        return bool(self._busy)

    def tick(self, now: float) -> None:
        """What is due at ``now``."""
        self.now = now
        for number, call in list(self._busy.items()):
            if not call.open:
                if call.reset_at is not None or (call.trailer is None and not call.outbox):
                    del self._busy[number]
                continue
            if now >= call.deadline:
                self._end(number, call, 4)
                continue
            while call.due and call.due[0][0] <= now and call.open:
                _, payload, last = call.due.pop(0)
                self._answer(number, call, message(payload))
                if last:
                    self._end(number, call, 0)

    def _heard(self, event: Event) -> None:
        if isinstance(event, RequestReceived):
            fields = [(bytes(name), bytes(value)) for name, value in event.headers]
            call = Call(self._record(), fields, (dict(fields).get(b":path", b"")).decode("latin-1"))
            self._check(call, fields, is_trailer=False)
            self.calls[event.stream_id] = self._busy[event.stream_id] = call
            call.record.began(call)
            self._begin(event.stream_id, call)
        elif isinstance(event, DataReceived):
            call = self.calls[event.stream_id]
            call.body += event.data
            size = event.flow_controlled_length
            if size and call.path.endswith("/Hold"):
                self._wire.increment_flow_control_window(size)
            elif size:
                self._wire.acknowledge_received_data(size, event.stream_id)
            if call.path.endswith("/Bidi") and call.open:
                self._echo(event.stream_id, call)
        elif isinstance(event, TrailersReceived):
            call = self.calls[event.stream_id]
            call.trailers = [(bytes(name), bytes(value)) for name, value in event.headers]
            self._check(call, call.trailers, is_trailer=True)
        elif isinstance(event, StreamEnded):
            call = self.calls[event.stream_id]
            call.complete = True
            length = call.value(b"content-length")
            if length is not None and int(length) != len(call.body):
                call.record.fault("content-length unlike the DATA")
            if call.open:
                self._whole(event.stream_id, call)
        elif isinstance(event, StreamReset):
            self.calls[event.stream_id].lose(self.now)
        elif isinstance(event, WindowUpdated):
            self._fill()

    def _begin(self, number: int, call: Call) -> None:
        if call.value(b":method") != b"POST":
            self._refuse(number, call, b"405", b"")
        elif not re.fullmatch(rb"application/grpc([+;].*)?", call.value(b"content-type") or b""):
            self._refuse(number, call, b"415", b"no\n")
        elif not call.path.startswith("/corpus.Echo/"):
            self._end(number, call, 12)
        else:
            try:
                limit = read_timeout_s(None, call.value(b"grpc-timeout"))
            except TimeoutFieldError:
                self._end(number, call, 13)
            else:
                if limit is not None and not call.path.endswith("/Stuck"):
                    call.deadline = self.now + limit

    def _refuse(self, number: int, call: Call, status: bytes, body: bytes) -> None:
        call.finish()
        self._wire.send_headers(number, [(b":status", status)], end_stream=not body)
        if body:
            self._wire.send_data(number, body, end_stream=True)

    def _messages(self, call: Call) -> list[bytes] | int:
        """Of the whole body; a status where it is no sequence of messages."""
        found, at = [], 0
        while at < len(call.body):
            if len(call.body) - at < 5 or call.body[at] > 1:
                return 13
            size = int.from_bytes(call.body[at + 1 : at + 5], "big")
            if size > MOST_BYTES:
                return 8
            if len(call.body) - at - 5 < size:
                return 13
            if call.body[at]:
                coding = call.value(b"grpc-encoding")
                return 13 if coding is None else 12
            found.append(call.body[at + 5 : at + 5 + size])
            at += 5 + size
        return found

    def _whole(self, number: int, call: Call) -> None:
        messages = self._messages(call)
        kind = call.path.rpartition("/")[2]
        if isinstance(messages, int):
            self._end(number, call, messages)
        elif kind == "Bidi":
            self._end(number, call, 0)
        elif len(messages) != 1:
            self._end(number, call, 13)
        else:
            self._serve(number, call, kind, messages[0])

    def _serve(self, number: int, call: Call, kind: str, payload: bytes) -> None:
        text = payload.decode("latin-1")
        if kind in ("Unary", "Probe"):
            self._answer(number, call, message(payload))
            self._end(number, call, 0)
        elif kind == "Stream":
            count, size, *gap = text.split()
            each = float(gap[0]) if gap else 0.0
            call.due = [(self.now + each * i, b"x" * int(size), i == int(count) - 1) for i in range(int(count))]
            self.tick(self.now)
        elif kind == "Sleep":
            call.due = [(self.now + float(text), b"slept", True)]
        elif kind == "Fail":
            status, _, rest = text.partition(" ")
            self._end(number, call, int(status), rest.encode("latin-1"))
        elif kind == "Big":
            call.zeros = int(text)
            self._answer(number, call, b"\0" + call.zeros.to_bytes(4, "big"))
            self._end(number, call, 0)
        elif kind not in ("Stuck", "Hold"):
            self._end(number, call, 12)

    def _echo(self, number: int, call: Call) -> None:
        while len(call.body) - call.echoed >= 5:
            size = int.from_bytes(call.body[call.echoed + 1 : call.echoed + 5], "big")
            end = call.echoed + 5 + size
            if len(call.body) < end:
                return
            self._answer(number, call, call.body[call.echoed : end])
            call.echoed = end

    def _answer(self, number: int, call: Call, data: bytes) -> None:
        self._head(number, call)
        call.outbox += data
        self._flush(number, call)

    def _head(self, number: int, call: Call) -> None:
        if not call.answered:
            call.answered = True
            self._wire.send_headers(number, [(b":status", b"200"), (b"content-type", b"application/grpc")])

    def _end(self, number: int, call: Call, status: int, text: bytes = b"") -> None:
        call.finish()
        self._head(number, call)
        call.trailer = [(b"grpc-status", b"%d" % status)] + ([(b"grpc-message", text)] if text else [])
        self._flush(number, call)

    def _flush(self, number: int, call: Call) -> None:
        try:
            while call.outbox and self._may_write and self._untaken < HELD_BYTES:
                room = min(self._wire.local_flow_control_window(number), self._wire.max_outbound_frame_size)
                if room <= 0:
                    return
                piece = bytes(call.outbox[:room])
                del call.outbox[:room]
                self._wire.send_data(number, piece)
                call.record.sent += len(piece)
                self._untaken += len(piece)
                if call.zeros and not call.outbox:
                    more = min(call.zeros, PIECE_BYTES)
                    call.outbox += bytes(more)
                    call.zeros -= more
            if call.trailer is not None and not call.outbox:
                self._wire.send_headers(number, call.trailer, end_stream=True)
                call.trailer = None
        except _GONE:
            call.trailer = None

    def _check(self, call: Call, fields: list[tuple[bytes, bytes]], *, is_trailer: bool) -> None:
        """The corpus' list of what is malformed."""
        seen: set[bytes] = set()
        regular = is_trailer
        for name, value in fields:
            fault = ""
            if name.startswith(b":"):
                if regular or name in seen or name not in (b":method", b":scheme", b":path", b":authority"):
                    fault = "pseudo-header"
            elif not _token(name) or name in _CONNECTION_FIELDS:
                fault = "name"
            elif name in (b"host", b"content-length") and name in seen:
                fault = "double"
            elif (name == b"te" and value != b"trailers") or (name == b"content-length" and not value.isdigit()):
                fault = "value"
            else:
                regular = True
            if any(byte in value for byte in b"\r\n\0") or value[:1] in (b" ", b"\t") or value[-1:] in (b" ", b"\t"):
                fault = "value"
            if (name == b":path" and not _path(value)) or (name == b":method" and not _method(value)):
                fault = "value"
            seen.add(name)
            if fault:
                call.record.fault(f"{fault}: {name!r}: {value[:40]!r}")
        host, authority = dict(fields).get(b"host"), dict(fields).get(b":authority")
        if host is not None and authority is not None and host != authority:
            call.record.fault("host unlike :authority")
