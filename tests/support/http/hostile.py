"""Sends one case of the hostile HTTP/1.1 corpus to a proxy and judges what came of it."""

import asyncio
import base64
import json
import os
import re
import socket
import struct
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from tests.support.deadline import Patience
from tests.support.http.capture import CaptureBackend, Captured, Captures

Case = dict[str, Any]

STANDARD: dict[str, Any] = {
    "body_bytes": 1 << 20,
    "head_timeout_s": 2.0,
    "body_idle_timeout_s": 2.0,
    "idle_timeout_s": 5.0,
    "response_timeout_s": 15.0,
    "trusted_proxies": [],
}
"""The configuration under which the corpus states its outcomes, by the names of
``tidegate.aio.proxy.server.Limits``."""
CORPUS, OWN, ANSWERS = "http_hostile.jsonl", "http_hostile_own.jsonl", "http_hostile_answers.jsonl"
QUIET_S = 0.3
LATE_S, TIMES_SENT = 0.4, 15
LOCAL = "127.0.0.1"
"""How the corpora write the address of a case's client; a gateway's own, as a queue_proxy sees it."""
_METHOD = re.compile(rb"(?<![!-~])([!-~]{1,40}) [!-~]+ HTTP/1\.")
_OURS = Path(__file__).parents[2] / "golden" / "data"
_HEALTH, _NOT_HEALTH = b"/v2/health/", b"/v9/health/"


def load(name: str = CORPUS) -> list[Case]:
    """The cases of a file in ``$TIDEGATE_GOLDEN``, else of our own copy. Unreadable or empty: an error.

    The files that only we have (OWN, ANSWERS) are read from our folder where that one does not hold them.
    """
    path = Path(os.environ.get("TIDEGATE_GOLDEN") or _OURS) / name
    if name != CORPUS and not path.exists():
        path = _OURS / name
    cases = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    if not cases:
        raise ValueError(f"no cases in {path}")
    return cases


@dataclass
class Outcome:
    """What one case led to."""

    received: bytes = b""
    closed: bool = False
    statuses: list[int] = field(default_factory=list)
    interim: list[int] = field(default_factory=list)
    broken: str = ""
    late_s: float = 0.0
    """Seconds that sending it took longer than the case says."""
    backend: Captures = field(default_factory=Captures)


def raw_bytes(case: Case) -> bytes:
    """What is to be sent: ``raw``, ``raw_z``, or readable as ``text`` (a character per byte)."""
    if "text" in case:
        return cast(str, case["text"]).encode("latin-1")
    if "raw" in case:
        return base64.b64decode(case["raw"])
    return zlib.decompress(base64.b64decode(case["raw_z"]))


def for_front_door(case: Case) -> Case:
    """The case as it is sent to a gateway: it answers health calls by itself, so those paths become others of the
    same length, in what is sent and in what is expected."""
    raw = raw_bytes(case)
    if _HEALTH not in raw:
        return case
    expect = json.loads(json.dumps(case["expect"]).replace(_HEALTH.decode(), _NOT_HEALTH.decode()))
    for option in expect["any"]:
        for match in option.get("requests") or []:
            if match.get("body") is not None:
                body = base64.b64decode(match["body"]).replace(_HEALTH, _NOT_HEALTH)
                match["body"] = base64.b64encode(body).decode()
    text = raw.replace(_HEALTH, _NOT_HEALTH).decode("latin-1")
    return {key: value for key, value in case.items() if key not in ("raw", "raw_z")} | {"text": text, "expect": expect}


class _Client(asyncio.Protocol):
    transport: asyncio.Transport

    def __init__(self) -> None:
        self.received = bytearray()
        self.closed = asyncio.Event()
        self.last_activity = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's transports are no subclass

    def write(self, data: bytes) -> None:
        if data and not self.transport.is_closing():
            self.transport.write(data)

    def data_received(self, data: bytes) -> None:
        self.received += data
        self.last_activity = asyncio.get_running_loop().time()

    def eof_received(self) -> bool:
        self.closed.set()
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed.set()


async def run_case(case: Case, address: tuple[str, int], backend: CaptureBackend) -> Outcome:
    """Sends the case on a fresh connection to the proxy at ``address``, which stands before ``backend``.

    What of it reaches the backend only later is added to the outcome then: judge when no more can come. A case whose
    pieces the machine has held up was another one, against which the proxy's time limits are right: it is sent again.
    """
    outcome = await _run_once(case, address, backend)
    for _ in range(TIMES_SENT - 1):
        if outcome.late_s <= LATE_S:
            break
        outcome = await _run_once(case, address, backend)
    return outcome


async def _run_once(case: Case, address: tuple[str, int], backend: CaptureBackend) -> Outcome:
    outcome = Outcome(backend=backend.begin())
    raw = raw_bytes(case)
    methods = _METHOD.findall(raw)
    loop = asyncio.get_running_loop()
    sock = socket.socket()
    sock.setblocking(False)
    sock.bind((outcome.backend.client, 0))
    await loop.sock_connect(sock, address)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    _, client = await loop.create_connection(_Client, sock=sock)
    try:
        outcome.late_s = await _send(case, raw, client)
        await _await_verdict(case, methods, client, outcome)
    finally:
        outcome.received = bytes(client.received)
        outcome.closed = client.closed.is_set()
        client.transport.abort()
    _read_answers(methods, outcome)
    return outcome


async def _send(case: Case, raw: bytes, client: _Client) -> float:
    """Sends all pieces; seconds that this took longer than the case says."""
    clock = asyncio.get_running_loop().time
    at, due = 0, clock()
    for offset, pause_s in case.get("delays") or []:
        client.write(raw[at:offset])
        at = offset
        due += pause_s
        await asyncio.sleep(pause_s)
    client.write(raw[at:])
    client.last_activity = clock()
    late_s = client.last_activity - due
    if case.get("after") == "half_close" and not client.transport.is_closing():
        client.transport.write_eof()
    elif case.get("after") == "reset":
        await asyncio.sleep(0.15)
        sock = client.transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.transport.abort()
    return late_s


async def _await_verdict(case: Case, methods: list[bytes], client: _Client, outcome: Outcome) -> None:
    loop = asyncio.get_running_loop()
    patience = Patience(case.get("wait", 1.5))
    patient = "wait" in case
    while not client.closed.is_set() and not patience.is_over:
        now = loop.time()
        outcome.received = bytes(client.received)
        _read_answers(methods, outcome)
        quiet = now - max(client.last_activity, outcome.backend.last_activity) > QUIET_S
        if quiet and (_is_settings(outcome.received) or (outcome.statuses and (not patient or _enough(case, outcome)))):
            return
        await asyncio.sleep(0.02)


def _enough(case: Case, outcome: Outcome) -> bool:
    """With ``wait``: enough answers are there and no outcome asks for a close."""
    for expect in case["expect"]["any"]:
        then = (expect.get("then") or {}).get("kind")
        if expect.get("conn") == "close" or expect["kind"] == "close" or then == "close":
            return False
        needed = len(expect["requests"]) + (then == "reject") if expect["kind"] == "forward" else 1
        if len(outcome.statuses) < needed:
            return False
    return True


def _is_settings(received: bytes) -> bool:
    """Whether an answer begins as HTTP/2's do: with SETTINGS, no ACK, on stream 0."""
    return received[3:9] == b"\x04\x00\x00\x00\x00\x00"


def _read_answers(methods: list[bytes], outcome: Outcome) -> None:
    """Splits what came into answers, as a client that sent requests of ``methods`` would."""
    outcome.statuses, outcome.interim, outcome.broken = [], [], ""
    data = outcome.received
    if _is_settings(data):
        return
    while data:
        head, separator, rest = data.partition(b"\r\n\r\n")
        match = re.match(rb"HTTP/1\.[01] ([0-9]{3})(?: |\r|$)", head)
        if not separator or match is None:
            outcome.broken = f"not an answer: {data[:80]!r}"
            return
        status = int(match[1])
        if 100 <= status < 200:
            outcome.interim.append(status)
            data = rest
            continue
        index = len(outcome.statuses)
        method = methods[index] if index < len(methods) else b"GET"
        outcome.statuses.append(status)
        length = re.search(rb"\r\n(?i:content-length): *([0-9]+)", head)
        if method == b"HEAD" or status in (204, 304):
            data = rest
        elif length is not None:
            if len(rest) < int(length[1]):
                outcome.broken = f"an answer of {length[1].decode()} bytes was cut off after {len(rest)}"
            data = rest[int(length[1]) :]
        else:
            data = b""


# --- the verdict ----------------------------------------------------------------------------------------------------


def judge(case: Case, outcome: Outcome) -> list[str]:
    """What is wrong; empty: the case passes."""
    expect = case["expect"]
    faults = [f"malformed at the backend: {fault}" for fault in outcome.backend.malformed]
    for request in outcome.backend.requests:
        faults += [f"{text} reached the backend" for text in _seen(expect, request)]
    if (limit := expect.get("max_requests")) is not None and len(outcome.backend.requests) > limit:
        faults.append(f"{len(outcome.backend.requests)} requests at the backend")
    if expect.get("no_1xx") and outcome.interim:
        faults.append("an interim answer was sent")
    reasons = [_holds(option, outcome) for option in expect["any"]]
    if not any(reason == "" for reason in reasons):
        faults.append(f"no outcome holds: {'; '.join(reasons)}; {_described(outcome)}")
    return faults


def _described(outcome: Outcome) -> str:
    """An outcome in short: what is needed to find the cause."""
    reached = [(request.target, "whole" if request.complete else "cut off") for request in outcome.backend.requests]
    return f"received {outcome.received[:80]!r}, closed: {outcome.closed}, at the backend: {reached}"


def _seen(expect: Case, request: Captured) -> list[str]:
    target = request.target.decode("latin-1")
    return [text for text in expect.get("never_seen") or [] if text in target]


def _holds(option: Case, outcome: Outcome) -> str:
    """Why an outcome does not hold; "" when it does."""
    if outcome.broken:
        return outcome.broken
    complete = outcome.backend.complete
    kind = option["kind"]
    if kind == "h2":
        if outcome.backend.requests:
            return "a request reached the backend"
        return "" if _is_settings(outcome.received) else "no SETTINGS"
    if kind == "close":
        return "" if outcome.closed and not outcome.received and not complete else "not closed silently"
    if kind == "reject":
        return _rejected(option, outcome)
    return _forwarded(option, outcome)


def _rejected(option: Case, outcome: Outcome) -> str:
    if outcome.backend.complete:
        return "a complete request reached the backend"
    if len(outcome.statuses) != 1 or outcome.statuses[0] not in option["status"]:
        return f"answers {outcome.statuses}"
    if option.get("conn") == "close" and not outcome.closed:
        return "connection left open"
    return ""


def _forwarded(option: Case, outcome: Outcome) -> str:
    wanted, complete = option["requests"], outcome.backend.complete
    count = len(wanted)
    statuses = option.get("statuses") or [200] * count
    if len(complete) < count or outcome.statuses[:count] != statuses:
        return f"{len(complete)} requests, answers {outcome.statuses}"
    for match, request in zip(wanted, complete, strict=False):
        fault = _mismatch(match, request, outcome.backend.client)
        if fault:
            return fault
    extra_requests, extra_answers = complete[count:], outcome.statuses[count:]
    then = option.get("then")
    if then is None:
        if extra_requests or extra_answers:
            return f"more requests ({len(extra_requests)}) or answers {extra_answers}"
        return "connection left open" if option.get("conn") == "close" and not outcome.closed else ""
    if then["kind"] == "reject":
        ok = len(extra_answers) == 1 and extra_answers[0] in then["status"] and not extra_requests
        return "" if ok else f"then {extra_answers}"
    if then["kind"] == "close":
        return "" if outcome.closed and not extra_answers and not extra_requests else f"then {extra_answers}"
    return ""


def _mismatch(match: Case, request: Captured, client: str) -> str:
    checks = _simple_checks(match, request, client)
    head = request.head.replace(b"\r\n", b"")
    for name, value in (match.get("has") or {}).items():
        checks.append((f"has {name}", value.encode("latin-1") in request.values(name)))
    for name, pattern in (match.get("has_re") or {}).items():
        values = [value.decode("latin-1") for value in request.values(name)]
        checks.append((f"has_re {name}", any(re.search(pattern, value) for value in values)))
    for name, value in (match.get("has_b64") or {}).items():
        checks.append((f"has_b64 {name}", base64.b64decode(value) in request.values(name)))
    checks += [(f"lacks {name}", not request.values(name)) for name in match.get("lacks") or []]
    for name, value in (match.get("lacks_value") or {}).items():
        found = [item.decode("latin-1").lower() for item in request.values(name)]
        checks.append((f"lacks_value {name}", not any(value in item for item in found)))
    for name, value in (match.get("not_value") or {}).items():
        checks.append((f"not_value {name}", value.encode("latin-1") not in request.values(name)))
    checks += [(f"single {name}", len(request.values(name)) == 1) for name in match.get("single") or []]
    for name, value in (match.get("header_is") or {}).items():
        checks.append((f"header_is {name}", request.values(name) == [value.encode("latin-1")]))
    for text in match.get("lacks_bytes") or []:
        checks.append((f"lacks_bytes {text!r}", text.encode("latin-1") not in head))
    trailers = [name for name, _ in request.trailers]
    checks += [(f"lacks_trailers {name}", name not in trailers) for name in match.get("lacks_trailers") or []]
    return ", ".join(name for name, ok in checks if not ok)


def _simple_checks(match: Case, request: Captured, client: str) -> list[tuple[str, bool]]:
    checks: list[tuple[str, bool]] = []
    if match.get("method") is not None:
        checks.append(("method", request.method == match["method"]))
    if match.get("target") is not None:
        checks.append((f"target {request.target!r}", request.target == match["target"].encode("latin-1")))
    if match.get("target_b64") is not None:
        checks.append(("target", request.target == base64.b64decode(match["target_b64"])))
    if match.get("host") is not None:
        hosts = [value.decode("latin-1").lower() for value in request.values("host")]
        checks.append((f"host {hosts}", hosts == [match["host"].lower()]))
    if match.get("body") is not None:
        checks.append(("body", request.body == base64.b64decode(match["body"])))
    if match.get("body_len") is not None:
        checks.append(("body_len", len(request.body) == match["body_len"]))
    if match.get("xff_last") is not None:
        combined = b",".join(request.values("x-forwarded-for")).decode("latin-1")
        addresses = [address.strip() for address in combined.split(",")]
        if match["xff_last"] == LOCAL:
            # The case's own client, and behind it at most a gateway that the queue_proxy was called by.
            ok = [address for address in addresses if address != LOCAL][-1:] == [client]
        else:
            ok = addresses[-1] == match["xff_last"]
        checks.append((f"xff_last {combined}", ok))
    return checks
