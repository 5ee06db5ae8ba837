"""Runs one case of the hostile HTTP/2 corpus against the engines, without sockets and on time of its own.

Client bytes -> ``H2Server`` -> the tests' driver -> ``H2Client`` -> :class:`tests.support.h2_echo.Echo`.
"""

import base64
import json
import os
import re
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hpack import Decoder

from tests.support.h2_echo import PROBE, Call, Echo, message
from tests.support.h2_proxy import Proxy
from tidegate.wire import h2_frames as wire
from tidegate.wire.h2_hpack import literal

Case = dict[str, Any]
STEP_S = 0.01
_OURS = Path(__file__).parents[1] / "golden" / "data"


def load() -> list[Case]:
    """The cases in ``$TIDEGATE_GOLDEN``, else of our own copy. Unreadable or empty: an error."""
    path = Path(os.environ.get("TIDEGATE_GOLDEN") or _OURS) / "h2_hostile.jsonl"
    cases = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    if not cases:
        raise ValueError(f"no cases in {path}")
    return cases


@dataclass
class Answer:
    """What the client got on one stream."""

    heads: list[list[tuple[str, str]]] = field(default_factory=list)
    data: bytes = b""
    ended: bool = False
    reset: int | None = None

    def last(self, name: str) -> str | None:
        return dict(self.heads[-1]).get(name) if self.heads else None

    def status(self) -> str | None:
        finals = [dict(head).get(":status", "") for head in self.heads]
        return next((status for status in finals if status and not status.startswith("1")), None)


class Run:
    """One case: a client's view of a fresh connection."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.now = 1000.0
        self.proxy = Proxy()
        self.backend = Echo()
        self.answers: dict[int, Answer] = {}
        self.goaway: int | None = None
        self.closed = False
        self.pongs: list[bytes] = []
        self.settings_acks = 0
        self.unacked_settings = 0
        self.unacked_pings: list[bytes] = []
        self.table = 4096
        self.fault = ""
        self.ended_at = 0.0
        self._decoder = Decoder()
        self._held = b""
        self._probed_at: float | None = None
        self._to_backend(self.proxy.client.take())
        self._to_client(self.proxy.server.take())

    # --- the wire ---------------------------------------------------------------------------------------------------

    def send(self, data: bytes) -> None:
        if not self.closed:
            to_client, to_backend = self.proxy.from_client(data, self.now)
            self._to_backend(to_backend)
            self._to_client(to_client)
            if self.proxy.failed is not None:
                self.closed = True

    def _to_backend(self, data: bytes) -> None:
        while True:
            if data:
                self.backend.receive(data, self.now)
            back = self.backend.take()
            if not back:
                return
            to_client, data = self.proxy.from_upstream(back, self.now)
            self._to_client(to_client)

    def _to_client(self, data: bytes) -> None:
        data = self._held + data
        at = 0
        while len(data) - at >= 9:
            head, flags, number = wire.read_head(data, at)
            end = at + 9 + (head >> 8)
            if len(data) < end:
                break
            if head >> 8 > 16384:
                self.fault = "a frame of the proxy's is too large"
            self._frame(head & 255, flags, number, data[at + 9 : end])
            at = end
        self._held = data[at:]

    def _frame(self, kind: int, flags: int, number: int, payload: bytes) -> None:
        answer = self.answers.setdefault(number, Answer())
        if kind == wire.HEADERS:
            assert flags & wire.END_HEADERS
            answer.heads.append(
                [(_text(name), _text(value)) for name, value in self._decoder.decode(payload, raw=True)]
            )
            if self._decoder.header_table.dynamic_entries:
                self.fault = "the proxy uses a dynamic table"
        elif kind == wire.DATA:
            answer.data += payload
        elif kind == wire.RST_STREAM:
            if answer.reset is None:
                answer.reset = wire.read_word(payload)[0]
        elif kind == wire.GOAWAY:
            self.goaway = wire.read_word(payload, 4)[0]
        elif kind == wire.SETTINGS:
            if flags & wire.ACK:
                self.settings_acks += 1
            else:
                self.unacked_settings += 1
                self.table = dict(wire.read_settings(payload)).get(wire.HEADER_TABLE_SIZE, self.table)
        elif kind == wire.PING:
            (self.pongs if flags & wire.ACK else self.unacked_pings).append(payload)
        if kind in (wire.HEADERS, wire.DATA) and flags & wire.END_STREAM:
            answer.ended = True

    # --- steps ------------------------------------------------------------------------------------------------------

    def wait(self, seconds: float) -> None:
        until = self.now + seconds
        while self.now < until:
            self.now += STEP_S
            self.backend.tick(self.now)
            self._to_backend(b"")

    def steps(self) -> None:
        for step in self.case["steps"]:
            if self.closed:
                break
            self._step(step)
        self.ended_at = self.now

    def _step(self, step: dict[str, Any]) -> None:
        if "send" in step or "send_z" in step:
            data = (
                base64.b64decode(step["send"]) if "send" in step else zlib.decompress(base64.b64decode(step["send_z"]))
            )
            for copy in range(step.get("repeat", 1)):
                moved = _moved(data, copy * step.get("stream_id_step", 0))
                for at in range(0, len(moved), step.get("every", len(moved))):
                    self.send(moved[at : at + step.get("every", len(moved))])
                    if "every" in step:
                        self.wait(step.get("pause", 0.002))
        elif "sleep" in step:
            self.wait(step["sleep"])
        elif "await" in step:
            until = self.now + step.get("limit", 2.0)
            while self.now < until and not self._reached(step["await"]):
                self.wait(STEP_S)
        elif "ack" in step:
            self._acknowledge()
        elif "half_close" in step or "reset" in step:
            self.closed = True
            self._to_backend(self.proxy.client_gone())
        elif "alive" not in step:
            raise ValueError(f"step {step} needs sockets")

    def _reached(self, what: str) -> bool:
        kind, *rest = what.split(":")
        if kind == "settings":
            return self.unacked_settings > 0
        if kind == "backend":
            return len(self.calls()) >= int(rest[0])
        answer = self.answers.get(int(rest[0]), Answer())
        if kind == "headers":
            return bool(answer.heads)
        if kind == "data":
            return len(answer.data) >= (int(rest[1]) if len(rest) > 1 else 1)
        return answer.ended or answer.reset is not None

    def _acknowledge(self) -> None:
        for _ in range(self.unacked_settings):
            self.send(wire.frame_head(wire.SETTINGS, wire.ACK, 0))
        for payload in self.unacked_pings:
            self.send(wire.ping(payload, wire.ACK))
        self.unacked_settings = 0
        self.unacked_pings.clear()

    # --- verdict ----------------------------------------------------------------------------------------------------

    def calls(self) -> list[Call]:
        return [call for call in self.backend.calls.values() if call.path != PROBE]

    def probe(self) -> bool:
        number = self.case.get("next", 101)
        if self._probed_at is None:
            self._probed_at = self.now
            self._acknowledge()
            block = b"".join(
                (
                    b"\x20" if self.table < 4096 else b"",
                    literal(b":method", b"POST"),
                    literal(b":scheme", b"http"),
                    literal(b":path", PROBE.encode()),
                    literal(b":authority", b"a.example"),
                    literal(b"te", b"trailers"),
                    literal(b"content-type", b"application/grpc"),
                )
            )
            self.send(wire.headers(number, block, 0, 16384))
            probe = message(b"probe")
            self.send(wire.frame_head(len(probe) << 8, wire.END_STREAM, number) + probe)
        return self._is_ok(number, {"data": base64.b64encode(message(b"probe")).decode()})

    def _is_ok(self, number: int, outcome: dict[str, Any]) -> bool:
        answer = self.answers.get(number, Answer())
        return (
            answer.ended
            and answer.status() == "200"
            and (dict(answer.heads[0]).get("content-type") or "").startswith("application/grpc")
            and answer.last("grpc-status") == "0"
            and ("data" not in outcome or answer.data == base64.b64decode(outcome["data"]))
            and ("data_len" not in outcome or len(answer.data) == outcome["data_len"])
        )

    def holds(self, outcome: dict[str, Any]) -> bool:
        kind = outcome["kind"]
        answer = self.answers.get(outcome.get("stream", -1), Answer())
        probes = outcome.get("probe", True)
        if kind == "any":
            return True
        if kind == "conn_error":
            if "codes" in outcome and self.goaway is not None:
                return bool(self.goaway in outcome["codes"])
            return self.closed or self.goaway is not None
        if kind == "stream_error":
            return (
                answer.reset is not None
                and answer.reset in outcome.get("codes", (answer.reset,))
                and (not probes or self.probe())
            )
        over = answer.ended or answer.reset is not None
        if kind == "http_status":
            return over and int(answer.status() or 0) in outcome["status"] and (not probes or self.probe())
        if kind == "grpc":
            return (
                over
                and int(answer.last("grpc-status") or -1) in outcome["status"]
                and outcome.get("message", answer.last("grpc-message")) == answer.last("grpc-message")
                and (not probes or self.probe())
            )
        if kind == "ok":
            numbers = outcome.get("streams", [outcome.get("stream")])
            return all(self._is_ok(number, outcome) for number in numbers) and (
                not outcome.get("probe") or self.probe()
            )
        if kind == "usable":
            return self.now - self.ended_at >= 0.15 and self.probe()
        if kind == "ping_ack":
            return bool(self.pongs.count(base64.b64decode(outcome["payload"])) >= outcome.get("count", 1))
        if kind == "settings_ack":
            return bool(self.settings_acks >= outcome.get("count", 1))
        if kind == "all":
            return all(self.holds(one) for one in outcome["of"])
        return kind == "close" and self.closed

    def verdict(self) -> list[str]:
        """What is wrong, after the steps."""
        expect = self.case["expect"]
        until = self.now + self.case.get("wait", 1.5)
        winner = None
        while winner is None and self.now <= until:
            winner = next((one for one in expect["any"] if self.holds(one)), None)
            self.wait(STEP_S)
        faults = [self.fault] if self.fault else []
        if winner is None:
            faults.append(f"none of {[one['kind'] for one in expect['any']]} holds: {self!r}")
        self.wait(0.05)
        return faults + self._conditions(expect, winner)

    def _conditions(self, expect: dict[str, Any], winner: dict[str, Any] | None) -> list[str]:
        calls = self.calls()
        faults = [f"malformed at the backend: {self.backend.malformed}"] if self.backend.malformed else []
        measured = {
            "max_requests": len(calls),
            "max_complete": sum(call.complete for call in calls),
            "max_open": self.backend.most_open,
            "max_backend_sent": self.backend.sent,
        }
        faults += [f"{key}: {value}" for key, value in measured.items() if value > expect.get(key, value)]
        for text in expect.get("never_seen", ()):
            if any(
                text.encode() in name + b"\0" + value for call in calls for name, value in call.fields + call.trailers
            ):
                faults.append(f"the backend has seen {text}")
        if "cancel" in expect:
            self.wait(max(0.0, self.ended_at + expect["cancel"] - self.now))
            if any(call.open for call in calls):
                faults.append("a call goes on at the backend")
        for stream, most in expect.get("max_data", {}).items():
            numbers = list(self.answers) if stream == "*" else [int(stream)]
            if any(len(self.answers.get(number, Answer()).data) > most for number in numbers):
                faults.append("too much DATA")
        if "saw" in expect and winner is not None and winner["kind"] in ("ok", "grpc", "all"):
            faults += _unlike(calls[0], expect["saw"])
        return faults

    def __repr__(self) -> str:
        answers = {
            number: (answer.status(), answer.last("grpc-status"), answer.reset, answer.ended, len(answer.data))
            for number, answer in self.answers.items()
            if number
        }
        return f"<Run goaway {self.goaway}, closed {self.closed}, {answers}>"


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
        joined = ", ".join(value.decode() for key, value in call.fields if key.decode() == name)
        if not re.search(pattern, joined):
            faults.append(f"field {name}")
    faults += [f"field {name}" for name in saw.get("lacks", ()) if name in fields]
    return faults


def _text(value: bytes | str) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else value


def _moved(data: bytes, by: int) -> bytes:
    """The frames with ``by`` added to each stream id that is not 0."""
    if not by:
        return data
    moved, at = bytearray(data), 0
    while at < len(data):
        head, _, number = wire.read_head(data, at)
        if number:
            moved[at + 5 : at + 9] = (number + by).to_bytes(4, "big")
        at += 9 + (head >> 8)
    return bytes(moved)


def run(case: Case) -> list[str]:
    """What is wrong about the case; empty: nothing."""
    one = Run(case)
    one.steps()
    return one.verdict()
