"""Invariants of body readers: a JSON object's members, a form's fields, a stream's events.

The first four bytes of an input state how the rest is split.
"""

import json

from tests.fuzz.bytes_plan import Plan, cut
from tidegate.wire.bodies.json_scan import FoundMembers, ObjectScan, read_object
from tidegate.wire.bodies.multipart import FormScan
from tidegate.wire.bodies.openai import KEYS, USAGE_BYTES, UsageFinder, request_of
from tidegate.wire.bodies.sse import EVENT_BYTES, EventStream
from tidegate.wire.http1.fields import Rejected


def _cut(data: bytes) -> tuple[bytes, list[bytes]]:
    plan = Plan(data)
    cuts = plan.take(4)
    text = plan.rest()
    return text, cut(text, cuts)


def bodies(data: bytes) -> None:
    """Any split and the decoder of whole bodies agree, and json.loads agrees with them."""
    body, pieces = _cut(data)
    results = [_comparable(_scanned(pieces)), _comparable(_scanned([body])), _comparable(read_object(body, KEYS))]
    assert results[0] == results[1] == results[2], results
    found = read_object(body, KEYS)
    if type(found) is FoundMembers:
        request_of(found)
        try:
            members = json.loads(body.decode(), object_pairs_hook=list)
        except (ValueError, RecursionError):
            return
        theirs = [(key, value) for key, value in members if key in KEYS.chosen]
        ours = [(key, json.loads(value, object_pairs_hook=list)) for key, value in found.chosen.items()]
        assert repr(ours) == repr(theirs), "NaN is not itself"


def _scanned(pieces: list[bytes]) -> FoundMembers | Rejected:
    scan = ObjectScan(KEYS)
    for piece in pieces:
        scan.feed(piece)
    return scan.end() or scan.found


def _comparable(found: FoundMembers | Rejected) -> str:
    return "refused" if type(found) is Rejected else repr(found)


def forms(data: bytes) -> None:
    """Any split gives the same fields."""
    body, pieces = _cut(data)
    results = []
    for parts in ([body], pieces):
        scan = FormScan(b"b", ("model",))
        for piece in parts:
            scan.feed(piece)
        results.append("refused" if scan.end() else repr(scan.fields))
    assert results[0] == results[1], results


def streams(data: bytes) -> None:
    """Any split gives the same events and the same usage."""
    body, pieces = _cut(data)
    results = []
    for parts in ([body], pieces):
        stream, finder = EventStream(), UsageFinder()
        events = []
        for piece in parts:
            events += stream.feed(piece)
            finder.feed(piece)
            assert len(stream._front) + len(stream._tail) <= EVENT_BYTES + 3
            assert len(finder._first) + len(finder._last) <= 2 * USAGE_BYTES
        results.append((events, stream.done, repr(finder)))
    assert results[0] == results[1], results
