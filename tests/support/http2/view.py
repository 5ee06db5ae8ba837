"""One case of the hostile HTTP/2 corpus as its client sees it: what came, the probe, and the verdict.

How bytes travel and time passes is the business of who runs the case: ``h2_hostile`` (engines, no sockets) and
``h2_live`` (sockets and processes).
"""

import base64
import json
import os
import re
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hpack import Decoder, HPACKError

from tests.support.http2.echo import PROBE, Call, Record, message
from tidegate.wire.http2 import frames
from tidegate.wire.http2.hpack import literal

Case = dict[str, Any]
FRAME_BYTES = 16384
WAIT_S = 1.5
USABLE_AFTER_S = 0.15
CORPUS, OWN = "h2_hostile.jsonl", "h2_hostile_own.jsonl"
_OURS = Path(__file__).parents[2] / "golden" / "data"


def load(name: str = CORPUS) -> list[Case]:
    """The cases of a file in ``$TIDEGATE_GOLDEN``, else of our own copy. Unreadable or empty: an error.

    The file that only we have (OWN) is read from our folder where that one does not hold it.
    """
    path = Path(os.environ.get("TIDEGATE_GOLDEN") or _OURS) / name
    if name != CORPUS and not path.exists():
        path = _OURS / name
    cases = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    if not cases:
        raise ValueError(f"no cases in {path}")
    return cases


def step_bytes(step: Case) -> Iterator[bytes]:
    """What a sending step sends, copy by copy."""
    data = base64.b64decode(step["send"]) if "send" in step else zlib.decompress(base64.b64decode(step["send_z"]))
    for copy in range(step.get("repeat", 1)):
        yield moved(data, copy * step.get("stream_id_step", 0))


def moved(data: bytes, by: int) -> bytes:
    """The frames with ``by`` added to each stream id that is not 0."""
    if not by:
        return data
    changed, at = bytearray(data), 0
    while at < len(data):
        head, _, number = frames.read_head(data, at)
        if number:
            changed[at + 5 : at + 9] = (number + by).to_bytes(4, "big")
        at += 9 + (head >> 8)
    return bytes(changed)


def call_block(path: str, *more: tuple[bytes, bytes], table: int = 0) -> bytes:
    """The header block of a call, literals only, for a peer that announced a table of that size: below 4096 it begins
    with an update to 0, which is legal for any."""
    fields = (
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", path.encode()),
        (b":authority", b"a.example"),
        (b"te", b"trailers"),
        (b"content-type", b"application/grpc"),
        *more,
    )
    return (b"\x20" if table < 4096 else b"") + b"".join(literal(*field) for field in fields)


def probe_call(number: int, table: int) -> bytes:
    """A valid unary call on a stream, for a peer that announced a table of that size."""
    body = message(b"probe")
    head = frames.headers(number, call_block(PROBE, table=table), 0, FRAME_BYTES)
    return head + frames.frame_head(len(body) << 8, frames.END_STREAM, number) + body


PROBED = {"data": base64.b64encode(message(b"probe")).decode()}
"""What such a call is answered."""


@dataclass
class Answer:
    """What the client got on one stream."""

    heads: list[list[tuple[str, str]]] = field(default_factory=list)
    data: bytearray = field(default_factory=bytearray)
    ended: bool = False
    reset: int | None = None

    @property
    def over(self) -> bool:
        return self.ended or self.reset is not None

    def last(self, name: str) -> str | None:
        return dict(self.heads[-1]).get(name) if self.heads else None

    def status(self) -> str | None:
        finals = [dict(head).get(":status", "") for head in self.heads]
        return next((status for status in finals if status and not status.startswith("1")), None)


class View:
    """The client's end of one connection."""

    def __init__(self, case: Case, send: Callable[[bytes], None]) -> None:
        self.case = case
        self._send = send
        self.answers: dict[int, Answer] = {}
        self.goaways: list[int] = []
        self.h1 = b""
        """What came, where it is HTTP/1."""
        self.closed = False
        self.stalled = False
        self.pongs: list[bytes] = []
        self.settings_acks = 0
        self.unacked_settings = 0
        self.unacked_pings: list[bytes] = []
        self.table = 4096
        self.initial_window = 65535
        """Of the streams that the client opens."""
        self.credit: dict[int, int] = {}
        """By WINDOW_UPDATE, of each stream and of the connection (0)."""
        self.faults: list[str] = []
        """Of the proxy's own frames."""
        self.inserted = False
        """The proxy used a dynamic table."""
        self.ended_at = 0.0
        """When the last step was over."""
        self._decoder = Decoder()
        self._held = b""
        self._pieces = b""
        self._probed = False

    # --- what comes -------------------------------------------------------------------------------------------------

    def received(self, data: bytes) -> None:
        """Bytes of the proxy's."""
        if self.h1 or (not self._held and not self.answers and data[:5] == b"HTTP/"):
            self.h1 += data
            return
        data = self._held + data
        at = 0
        while len(data) - at >= 9:
            head, flags, number = frames.read_head(data, at)
            end = at + 9 + (head >> 8)
            if head >> 8 > FRAME_BYTES:
                self.faults.append(f"a frame of {head >> 8} bytes, or none at all: {data[at : at + 20]!r}")
                self._held = b""
                return
            if len(data) < end:
                break
            self._frame(head & 255, flags, number, data[at + 9 : end])
            at = end
        self._held = data[at:]

    def _frame(self, kind: int, flags: int, number: int, payload: bytes) -> None:
        answer = self.answers.setdefault(number, Answer())
        if kind in (frames.HEADERS, frames.CONTINUATION):
            self._pieces += payload
            if flags & frames.END_HEADERS:
                self._block(answer)
        elif kind == frames.DATA:
            answer.data += payload
        elif kind == frames.RST_STREAM:
            if answer.reset is None:
                answer.reset = frames.read_word(payload)[0]
        elif kind == frames.GOAWAY:
            self.goaways.append(frames.read_word(payload, 4)[0])
        elif kind == frames.SETTINGS:
            if flags & frames.ACK:
                self.settings_acks += 1
            else:
                self.unacked_settings += 1
                settings = dict(frames.read_settings(payload, 1))
                self.table = settings.get(frames.HEADER_TABLE_SIZE, self.table)
                self.initial_window = settings.get(frames.INITIAL_WINDOW_SIZE, self.initial_window)
        elif kind == frames.WINDOW_UPDATE:
            self.credit[number] = self.credit.get(number, 0) + frames.read_word(payload)[0]
        elif kind == frames.PING:
            (self.pongs if flags & frames.ACK else self.unacked_pings).append(payload)
        if kind in (frames.HEADERS, frames.DATA) and flags & frames.END_STREAM:
            answer.ended = True

    def _block(self, answer: Answer) -> None:
        try:
            fields = self._decoder.decode(self._pieces, raw=True)
        except HPACKError as error:
            self.faults.append(f"a header block does not decode: {error}")
        else:
            answer.heads.append([(_text(name), _text(value)) for name, value in fields])
        self._pieces = b""
        self.inserted = self.inserted or bool(self._decoder.header_table.dynamic_entries)

    # --- what is sent -----------------------------------------------------------------------------------------------

    def reached(self, what: str, record: Record) -> bool:
        """Whether that for which an ``await`` step waits has come."""
        kind, *rest = what.split(":")
        if kind == "settings":
            return self.unacked_settings > 0
        if kind == "backend":
            return len(record.calls) >= int(rest[0])
        answer = self.answers.get(int(rest[0]), Answer())
        if kind == "headers":
            return bool(answer.heads)
        if kind == "data":
            return len(answer.data) >= (int(rest[1]) if len(rest) > 1 else 1)
        return answer.over

    def acknowledge(self) -> None:
        """All SETTINGS and PINGs that came so far."""
        for _ in range(self.unacked_settings):
            self._send(frames.frame_head(frames.SETTINGS, frames.ACK, 0))
        for payload in self.unacked_pings:
            self._send(frames.ping(payload, frames.ACK))
        self.unacked_settings = 0
        self.unacked_pings.clear()

    def probe(self) -> bool:
        """Whether the probe call, sent now unless it was, has been answered."""
        number = self.case.get("next", 101)
        if not self._probed:
            self._probed = True
            self.acknowledge()
            self._send(probe_call(number, self.table))
        return self.is_ok(number, PROBED)

    # --- verdict ----------------------------------------------------------------------------------------------------

    def is_ok(self, number: int, outcome: dict[str, Any]) -> bool:
        """Whether a call was answered, and with that."""
        answer = self.answers.get(number, Answer())
        return (
            answer.ended
            and answer.status() == "200"
            and (dict(answer.heads[0]).get("content-type") or "").startswith("application/grpc")
            and answer.last("grpc-status") == "0"
            and ("data" not in outcome or answer.data == base64.b64decode(outcome["data"]))
            and ("data_len" not in outcome or len(answer.data) == outcome["data_len"])
        )

    def holds(self, outcome: dict[str, Any], now: float) -> bool:
        """Whether an outcome has come about."""
        kind = outcome["kind"]
        answer = self.answers.get(outcome.get("stream", -1), Answer())
        probes = outcome.get("probe", True)
        if kind == "conn_error":
            if "codes" in outcome and self.goaways:
                return any(code in outcome["codes"] for code in self.goaways)
            return self.closed or bool(self.goaways)
        if kind == "stream_error":
            is_named = answer.reset is not None and answer.reset in outcome.get("codes", (answer.reset,))
            return is_named and (not probes or self.probe())
        if kind == "http_status":
            is_named = answer.over and int(answer.status() or 0) in outcome["status"]
            return is_named and (not probes or self.probe())
        if kind == "grpc":
            text = answer.last("grpc-message")
            is_named = answer.over and int(answer.last("grpc-status") or -1) in outcome["status"]
            return is_named and outcome.get("message", text) == text and (not probes or self.probe())
        if kind == "ok":
            numbers = outcome.get("streams", [outcome.get("stream")])
            return all(self.is_ok(n, outcome) for n in numbers) and (not outcome.get("probe") or self.probe())
        if kind == "usable":
            return now - self.ended_at >= USABLE_AFTER_S and self.probe()
        if kind == "all":
            return all(self.holds(one, now) for one in outcome["of"])
        return self._holds_simply(kind, outcome)

    def _holds_simply(self, kind: str, outcome: dict[str, Any]) -> bool:
        if kind == "ping_ack":
            return bool(self.pongs.count(base64.b64decode(outcome["payload"])) >= outcome.get("count", 1))
        if kind == "settings_ack":
            return bool(self.settings_acks >= outcome.get("count", 1))
        if kind == "h1":
            head = re.match(rb"HTTP/1\.[01] ([0-9]{3})[ \r].*?\r\n\r\n", self.h1, re.DOTALL)
            return head is not None and int(head[1]) in outcome["status"]
        if kind == "close":
            return self.closed and not (self.answers or self._held or self.h1)
        if kind == "stalled":
            return self.stalled
        if kind == "any":
            return True
        raise ValueError(f"no outcome {kind}")

    def judge(self, record: Record, winner: dict[str, Any] | None) -> list[str]:
        """What is wrong when all is over; ``winner``: the outcome that held."""
        expect = self.case["expect"]
        faults = list(self.faults)
        if record.malformed:
            faults.append(f"malformed at the backend: {record.malformed}")
        if winner is None:
            faults.append(f"none of {[one['kind'] for one in expect['any']]} holds: {self!r}")
        measured = {
            "max_requests": len(record.calls),
            "max_complete": sum(call.complete for call in record.calls),
            "max_open": record.most_open,
            "max_backend_sent": record.sent,
        }
        faults += [f"{key}: {value}" for key, value in measured.items() if value > expect.get(key, value)]
        for text in expect.get("never_seen", ()):
            if any(text.encode() in name + b"\0" + value for name, value in _all_fields(record)):
                faults.append(f"the backend has seen {text}")
        if "cancel" in expect:
            faults += self._uncancelled(record, self.ended_at + expect["cancel"])
        for stream, most in expect.get("max_data", {}).items():
            numbers = list(self.answers) if stream == "*" else [int(stream)]
            if any(len(self.answers.get(number, Answer()).data) > most for number in numbers):
                faults.append("too much DATA")
        if expect.get("no_dynamic_table") and self.inserted:
            faults.append("the proxy uses a dynamic table")
        if "saw" in expect and winner is not None and winner["kind"] in ("ok", "grpc", "all"):
            faults += _unlike(record.calls[0], expect["saw"])
        return faults

    def _uncancelled(self, record: Record, until: float) -> list[str]:
        """Calls that were not taken back by then, or were ended as if they were whole."""
        late = [call for call in record.calls if not call.finished and (call.reset_at is None or call.reset_at > until)]
        faults = [f"{len(late)} calls were not cancelled in time"] if late else []
        if sum(call.complete for call in record.calls) > self._streams_ended():
            faults.append("a call was ended instead of cancelled")
        return faults

    def _streams_ended(self) -> int:
        """So many messages of the case's own steps end."""
        ended = 0
        for step in self.case["steps"]:
            if "send" not in step and "send_z" not in step:
                continue
            for data in step_bytes(step):
                at = len(frames.PREFACE) if data.startswith(frames.PREFACE) else 0
                while len(data) - at >= 9:
                    head, flags, _ = frames.read_head(data, at)
                    ended += head & 255 in (frames.HEADERS, frames.DATA) and bool(flags & frames.END_STREAM)
                    at += 9 + (head >> 8)
        return ended

    def __repr__(self) -> str:
        answers = {
            number: (answer.status(), answer.last("grpc-status"), answer.reset, answer.ended, len(answer.data))
            for number, answer in list(self.answers.items())[:6]
            if number
        }
        return f"<View goaways {self.goaways}, closed {self.closed}, h1 {self.h1[:40]!r}, {answers}>"


def _all_fields(record: Record) -> Iterator[tuple[bytes, bytes]]:
    for call in record.calls:
        yield from call.fields
        yield from call.trailers


def _unlike(call: Call, saw: dict[str, Any]) -> list[str]:
    fields = {name.decode("latin-1"): value.decode("latin-1") for name, value in call.fields}
    faults = []
    if saw.get("path", call.path) != call.path:
        faults.append(f"path {call.path}")
    if "authority" in saw and {fields[name] for name in (":authority", "host") if name in fields} != {saw["authority"]}:
        faults.append("authority")
    if "body" in saw and base64.b64decode(saw["body"]) != call.body:
        faults.append("body")
    faults += [f"field {name}" for name, value in saw.get("has", {}).items() if fields.get(name) != value]
    for name, pattern in saw.get("has_re", {}).items():
        joined = ", ".join(value.decode("latin-1") for key, value in call.fields if key.decode("latin-1") == name)
        if not re.search(pattern, joined):
            faults.append(f"field {name}")
    faults += [f"field {name}" for name in saw.get("lacks", ()) if name in fields]
    return faults


def _text(value: bytes | str) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else value
