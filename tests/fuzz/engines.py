"""Invariants of the engines for any bytes; each function takes a fuzzer's input and raises if one is violated.

- nothing raises, and the same bytes mean the same in any split;
- an accepted message means the same when it is written again, as a proxy does;
- if an independent parser (h11) accepts it too, both agree on the end of a message.
"""

from dataclasses import dataclass, field

import h11

from tests.fuzz.bytes_plan import Plan, cut
from tidegate.wire.http1.chunked import ChunkDecoder, chunk, last_chunk
from tidegate.wire.http1.client import H1Client
from tidegate.wire.http1.fields import Rejected
from tidegate.wire.http1.request_head import HeadRules, RequestHead
from tidegate.wire.http1.response_head import ResponseHead
from tidegate.wire.http1.server import H1Server

RULES = HeadRules(head_bytes=4096, headers=30, target_bytes=1024)
BEHIND = HeadRules(head_bytes=65536, headers=200, target_bytes=8192, front_door=False, trusted=True)
BODY_BYTES = 8192
METHODS = (b"GET", b"HEAD", b"POST", b"PUT")


@dataclass(slots=True)
class Message:
    """A complete request or response."""

    start: tuple[bytes, ...]
    """Method and target, or the status."""
    fields: bytes
    body: bytes = b""
    trailers: bytes = b""
    chunked: bool = False
    by_path: bool = True
    """True if the target was received as a path."""


@dataclass(slots=True)
class SeenRequests:
    messages: list[Message] = field(default_factory=list)
    refused: int = 0
    """Status of the refusal that ended it; 0 without one."""
    ended: bool = False
    """True if no more requests follow on the connection."""


# --- requests -------------------------------------------------------------------------------------------------------


def read_requests(pieces: list[bytes], rules: HeadRules = RULES, body_bytes: int = BODY_BYTES) -> SeenRequests:
    """Returns the requests seen by a server that answers each one as soon as it is whole."""
    seen = SeenRequests()
    engine = H1Server(rules, body_bytes)
    message: Message | None = None
    for piece in pieces:
        event = engine.receive(piece)
        while event is not None and not seen.ended:
            if type(event) is Rejected:
                seen.refused, seen.ended = event.status, True
                assert 400 <= event.status <= 505, event
                engine.refuse(event)
                break
            if type(event) is RequestHead:
                message = Message(
                    (event.method, event.target), event.fields, chunked=event.chunked, by_path=event.target[:1] == b"/"
                )
                message.body = engine.body
            else:
                assert message is not None
                message.body += event.data
            event = None
            if engine.body_complete:
                assert message is not None
                message.trailers = engine.trailers
                assert engine.received == len(message.body) <= body_bytes
                seen.messages.append(message)
                message = None
                engine.respond(200, b"OK", b"\r\ncontent-length: 0\r\n", b"", 0)
                if engine.keep_alive:
                    event = engine.next()
                else:
                    seen.ended = True
    return seen


def requests(data: bytes) -> None:
    """Feeds any bytes from a client, in any pieces."""
    plan = Plan(data)
    cuts = plan.take(plan.below(8))
    stream = plan.rest()
    whole = read_requests([stream])
    parts = read_requests(cut(stream, cuts))
    bytewise = read_requests(cut(stream, b"\1"))
    assert whole == parts, (cuts, whole, parts)
    assert whole == bytewise, (whole, bytewise)
    for message in whole.messages:
        again = read_requests([write_request(message)], BEHIND)
        assert len(again.messages) == 1, (message, again)
        copy = again.messages[0]
        assert (copy.start, copy.body) == (message.start, message.body), (message, copy)
        assert copy.trailers == message.trailers, (message, copy)
    _agree_on_requests(stream, whole)


def write_request(message: Message) -> bytes:
    """Writes a request for an upstream as an exchange does."""
    head = b"%b %b HTTP/1.1\r\n%b" % (*message.start, message.fields)
    if not message.chunked:
        return head + b"\r\n" + message.body
    framed = chunk(message.body) if message.body else b""
    return b"%btransfer-encoding: chunked\r\n\r\n%b%b" % (head, framed, last_chunk(message.trailers))


def _agree_on_requests(stream: bytes, seen: SeenRequests) -> None:
    theirs = h11.Connection(h11.SERVER, max_incomplete_event_size=1 << 20)
    try:
        theirs.receive_data(stream)
        for message in seen.messages:
            event = theirs.next_event()
            if not isinstance(event, h11.Request):
                return
            body = b""
            while isinstance(piece := theirs.next_event(), h11.Data):
                body += bytes(piece.data)
            if not isinstance(piece, h11.EndOfMessage):
                return
            assert event.method == message.start[0], (event, message)
            assert body == message.body, (event, body, message)
            if theirs.their_state is not h11.DONE or theirs.our_state is not h11.SEND_RESPONSE:
                return
            theirs.send(h11.Response(status_code=200, headers=[("content-length", "0")]))
            theirs.send(h11.EndOfMessage())
            if theirs.states != {h11.CLIENT: h11.DONE, h11.SERVER: h11.DONE}:
                return
            theirs.start_next_cycle()
    except h11.RemoteProtocolError:
        return  # stricter in places of its own


# --- answers --------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Answer:
    status: int = 0
    fields: bytes = b""
    interim: list[int] = field(default_factory=list)
    body: bytes = b""
    trailers: bytes = b""
    complete: bool = False
    refused: bool = False
    reusable: bool = False


def read_answer(method: bytes, pieces: list[bytes], *, eof: bool) -> Answer:
    """Returns the response seen by a client that has sent one request."""
    engine = H1Client()
    engine.request(method)
    answer = Answer()
    for piece in pieces:
        event = engine.receive(piece)
        while event is not None and not answer.refused:
            if type(event) is Rejected:
                assert event.status == 502
                answer.refused = True
                event = None
            elif type(event) is ResponseHead:
                if event.status == 101:
                    engine.leftover()
                    answer.interim.append(101)
                    return answer
                if event.status < 200:
                    answer.interim.append(event.status)
                    event = engine.next()
                    continue
                assert not answer.status
                answer.status, answer.fields, answer.body = event.status, event.fields, bytes(engine.body)
                event = None
            else:
                assert not answer.complete
                answer.body += event.data
                event = None
            answer.complete = engine.complete
            answer.trailers = engine.trailers if engine.complete else b""
        if answer.complete or answer.refused:
            break
    answer.reusable = engine.reusable and engine.complete
    if eof and not answer.complete and not answer.refused:
        last = engine.eof()
        answer.complete = engine.complete
        answer.refused = type(last) is Rejected
        assert answer.complete is not answer.refused
        assert not engine.reusable
    return answer


def answers(data: bytes) -> None:
    """Feeds any bytes from an upstream, in any pieces."""
    plan = Plan(data)
    method = METHODS[plan.below(len(METHODS))]
    eof = plan.below(2) == 1
    cuts = plan.take(plan.below(8))
    stream = plan.rest()
    whole = read_answer(method, [stream], eof=eof)
    for pieces in (cut(stream, cuts), cut(stream, b"\1")):
        parts = read_answer(method, pieces, eof=eof)
        # Bytes behind the end may come after it, and then belong to no message yet.
        parts.reusable = whole.reusable = False
        if whole.refused and parts.refused:
            continue  # how much was passed on before the fault depends on the pieces
        assert whole == parts, (cuts, whole, parts)
    if whole.complete:
        _agree_on_answer(method, stream, eof, whole)


def _agree_on_answer(method: bytes, stream: bytes, eof: bool, answer: Answer) -> None:
    theirs = h11.Connection(h11.CLIENT, max_incomplete_event_size=1 << 20)
    theirs.send(h11.Request(method=method, target="/", headers=[("host", "a"), ("content-length", "0")]))
    theirs.send(h11.EndOfMessage())
    try:
        theirs.receive_data(stream)
        if eof:
            theirs.receive_data(b"")
        while isinstance(event := theirs.next_event(), h11.InformationalResponse):
            pass
        if not isinstance(event, h11.Response):
            return
        body = b""
        while isinstance(piece := theirs.next_event(), h11.Data):
            body += bytes(piece.data)
    except h11.RemoteProtocolError:
        return
    assert event.status_code == answer.status, (event, answer)
    assert isinstance(piece, h11.EndOfMessage), (piece, answer)
    assert body == answer.body, (body, answer)


# --- the chunked coding ---------------------------------------------------------------------------------------------


def decode(pieces: list[bytes]) -> tuple[bytes, bytes, bytes] | None:
    """Returns payload, trailers and the bytes behind; None if it was refused or is incomplete."""
    decoder = ChunkDecoder()
    body = b""
    for number, piece in enumerate(pieces):
        payload = decoder.feed(piece)
        if type(payload) is Rejected:
            return None
        body += payload
        if decoder.done:
            return body, decoder.trailers, decoder.rest + b"".join(pieces[number + 1 :])
    return None


def chunks(data: bytes) -> None:
    """Feeds any bytes as a chunked body, in any pieces."""
    plan = Plan(data)
    cuts = plan.take(plan.below(8))
    stream = plan.rest()
    whole = decode([stream])
    assert whole == decode(cut(stream, cuts)) == decode(cut(stream, b"\1"))
    if whole is not None:
        body, trailers, rest = whole
        again = (chunk(body) if body else b"") + last_chunk(trailers) + rest
        assert decode([again]) == whole
