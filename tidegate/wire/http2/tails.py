"""Tails: the fields that Tidegate's processes append to a header block, in one shape, written and read as a whole.

These fields are new with each call: appended to repeated metadata they would make every block unique. A block with such
a tail is therefore split before it: the front is cached by its bytes, the tail is matched by one pattern. A
representation is self-delimiting (RFC 7541 section 6): if both parts are read to their ends, together they are the
fields of the block, whatever wrote it. The presence of a tail proves nothing about its writer: only the token does.
"""

import re
from collections.abc import Callable
from typing import Final, NamedTuple

from tidegate import headers
from tidegate.wire.http1.grammar import TRACEPARENT
from tidegate.wire.http2.hpack import literal, literal_name

FIELDS: Final = 10
"""Maximum fields of a tail."""


class Tail(NamedTuple):
    """The end of a block."""

    start: int
    """Position of its first byte."""
    fields: dict[bytes, bytes]
    """Values by name, in order."""
    outgoing: bytes
    """The forwarded fields, as literals."""


ReadTail = Callable[[bytes], Tail | None]
"""Returns None if the block has no such tail."""

_TRACE_NAME: Final = literal_name(b"traceparent") + b"\x37"
_TRACE_BYTES: Final = len(_TRACE_NAME) + 0x37
_TOKEN_NAME: Final = literal_name(headers.TOKEN)
_TIMEOUT_NAME: Final = literal_name(headers.TIMEOUT_MS)
_BATCH_NAME: Final = literal_name(headers.BATCH_SIZE)
_CREDIT_NAME: Final = literal_name(headers.CREDIT)
_WANT_NAME: Final = literal_name(headers.WANT)
_ID_NAME: Final = literal_name(headers.REQUEST_ID)
EXPECTATION: Final = literal(b"expect", b"100-continue")

_TOKEN_VALUE: Final = rb"([!-~]{1,126})"
_WANT_VALUE: Final = rb"([0-9][0-9 ]{0,124}[0-9])"
_ID_VALUE: Final = rb"([!-~]{1,126})"
_call_tail = re.compile(
    rb"(?:%b(%b))?%b(.)%b(%b(.)([0-9]{1,12})%b(.)([0-9]{1,9}))(?:%b(.)([0-9]{1,18}))?(?:%b(.)%b)?(%b(.)%b)?"
    rb"(?:%b(.)([0-9]{1,8}[HMSmun]))?(%b)?"
    % (
        re.escape(_TRACE_NAME),
        TRACEPARENT.pattern,
        _TOKEN_NAME,
        _TOKEN_VALUE,
        _TIMEOUT_NAME,
        _BATCH_NAME,
        _CREDIT_NAME,
        _WANT_NAME,
        _WANT_VALUE,
        _ID_NAME,
        _ID_VALUE,
        literal_name(b"grpc-timeout"),
        re.escape(EXPECTATION),
    ),
    re.DOTALL,
).fullmatch
_call_lines = re.compile(
    rb"tidegate-token: %b\r\ntidegate-timeout-ms: ([0-9]{1,12})\r\ntidegate-batch-size: ([0-9]{1,9})\r\n"
    rb"(?:tidegate-credit: ([0-9]{1,18})\r\n)?(?:tidegate-want: %b\r\n)?(?:x-request-id: %b\r\n)?"
    % (_TOKEN_VALUE, _WANT_VALUE, _ID_VALUE)
).fullmatch


def call_tail(lines: bytes) -> bytes | None:
    """Returns a gateway's header lines for a queue_proxy as the middle of a tail; in front of it may be a trace, behind
    it a timeout and an expectation. Returns None for other lines."""
    match = _call_lines(lines)
    if match is None:
        return None
    token, timeout, batch, credit, want, request_id = match.groups()
    parts = [
        b"%b%c%b%b%c%b%b%c%b"
        % (_TOKEN_NAME, len(token), token, _TIMEOUT_NAME, len(timeout), timeout, _BATCH_NAME, len(batch), batch)
    ]
    if credit is not None:
        parts.append(b"%b%c%b" % (_CREDIT_NAME, len(credit), credit))
    if want is not None:
        parts.append(b"%b%c%b" % (_WANT_NAME, len(want), want))
    if request_id is not None:
        parts.append(b"%b%c%b" % (_ID_NAME, len(request_id), request_id))
    return b"".join(parts)


def read_call_tail(block: bytes) -> Tail | None:
    """Reads the fields that a gateway adds to a call. Forwarded are the trace, the time and the size, and the id."""
    start = block.rfind(_TOKEN_NAME)
    if start < 0:
        return None
    if start >= _TRACE_BYTES and block.startswith(_TRACE_NAME, start - _TRACE_BYTES):
        start -= _TRACE_BYTES
    match = _call_tail(block, start)
    if match is None:
        return None
    (
        trace,
        token_size,
        token,
        stated,
        ms_size,
        ms,
        batch_size,
        batch,
        credit_size,
        credit,
        want_size,
        want,
        identity,
        id_size,
        request_id,
        timeout_size,
        timeout,
        expectation,
    ) = match.groups()
    if ord(token_size) != len(token) or ord(ms_size) != len(ms) or ord(batch_size) != len(batch):
        return None
    fields = {headers.TOKEN: token, headers.TIMEOUT_MS: ms, headers.BATCH_SIZE: batch}
    outgoing: bytes = stated
    if trace is not None:
        fields = {b"traceparent": trace, **fields}
        outgoing = _TRACE_NAME + trace + outgoing
    if credit is not None:
        if ord(credit_size) != len(credit):
            return None
        fields[headers.CREDIT] = credit
    if want is not None:
        if ord(want_size) != len(want):
            return None
        fields[headers.WANT] = want
    if identity is not None:
        if ord(id_size) != len(request_id):
            return None
        fields[headers.REQUEST_ID] = request_id
        outgoing += identity
    if timeout is not None:
        if ord(timeout_size) != len(timeout):
            return None
        fields[b"grpc-timeout"] = timeout
    if expectation is not None:
        fields[b"expect"] = b"100-continue"
    return Tail(start, fields, outgoing)
