"""gRPC as fields of HTTP/2: content type, paths, deadlines, statuses and their messages.

Messages of calls are forwarded untouched, compressed or not; the beginning of an inference request is read by
``tidegate.wire.grpc.first_message``.
"""

import re
from functools import lru_cache
from typing import Final

from tidegate.wire.http2.hpack import literal, literal_name

OK: Final = 0
CANCELLED: Final = 1
UNKNOWN: Final = 2
INVALID_ARGUMENT: Final = 3
DEADLINE_EXCEEDED: Final = 4
NOT_FOUND: Final = 5
PERMISSION_DENIED: Final = 7
RESOURCE_EXHAUSTED: Final = 8
FAILED_PRECONDITION: Final = 9
ABORTED: Final = 10
UNIMPLEMENTED: Final = 12
INTERNAL: Final = 13
UNAVAILABLE: Final = 14
UNAUTHENTICATED: Final = 16
_STATUS_OF_HTTP: Final = {
    400: INVALID_ARGUMENT,
    401: UNAUTHENTICATED,
    403: PERMISSION_DENIED,
    404: UNIMPLEMENTED,
    409: ABORTED,
    413: RESOURCE_EXHAUSTED,
    429: RESOURCE_EXHAUSTED,
    502: UNAVAILABLE,
    503: UNAVAILABLE,
    504: DEADLINE_EXCEEDED,
}
"""The gRPC status of a failure of Tidegate, by the HTTP status of its kind (``tidegate.errors``). A transient failure
is UNAVAILABLE: clients retry it."""
_HTTP_OF_STATUS: Final = (200, 408, 500, 400, 504, 404, 409, 403, 429, 400, 409, 400, 404, 500, 503, 500, 401)
_INTERNAL_ERROR: Final = 500

_V2: Final = b"/inference.GRPCInferenceService/"
INFER_PATHS: Final = frozenset({_V2 + b"ModelInfer", _V2 + b"ModelStreamInfer"})
"""V2's calls that carry inferences: a ModelInferRequest per message."""

_path = re.compile(rb"/([^/]++)/([^/]++)").fullmatch
_TIMEOUT: Final = literal_name(b"grpc-timeout")
ANSWER: Final = literal(b":status", b"200") + literal(b"content-type", b"application/grpc")
_plain = re.compile(rb"[^ -$&-~]")
_edges = re.compile(rb"\A[ \t]+|[ \t]+\Z")
_MESSAGE_BYTES: Final = 4096
"""Maximum size of a status message as sent. gRPC's own clients drop, at random, responses with more than 8 KB of
metadata, and report that in place of the status. Our choice: half of it."""
_cut_off = re.compile(rb"(?:%[C-F][0-9A-F](?:%[89AB][0-9A-F]){0,3})?(?:%[0-9A-F]?)?\Z").search
"""A possible part of a character at the end of a truncated message."""
_LARGEST_TIMEOUT: Final = 99_999_999


def http_status(status: int) -> int:
    """Returns the HTTP status as which a gRPC status is counted. A client's fault is 4xx, a server's failure 500 to
    504; CANCELLED by a server is 408, since 499 stands for disconnected clients."""
    return _HTTP_OF_STATUS[status] if status < len(_HTTP_OF_STATUS) else _INTERNAL_ERROR


def status_of(http: int) -> int:
    """Returns the gRPC status of an answer of Tidegate with this HTTP status."""
    return OK if http < 300 else _STATUS_OF_HTTP.get(http, INTERNAL)


def ended_status(http: int, status: int | None) -> int:
    """Returns the HTTP status as which a response is counted, from its HTTP status ``http`` and the gRPC status
    ``status`` of its end. ``status`` None stands for a missing or invalid number: clients take that for UNKNOWN, unless
    HTTP has reported a failure."""
    if status:
        return http_status(status)
    return http if status == OK or http >= 400 else http_status(UNKNOWN)


@lru_cache(maxsize=1024)
def split_path(path: bytes) -> tuple[bytes, bytes] | None:
    """Returns service and method of a call, or None if it is not the path of a call."""
    match = _path(path)
    return None if match is None else (match[1], match[2])


def is_grpc(content_type: bytes | None) -> bool:
    """Returns whether this content-type is gRPC: ``application/grpc`` alone, or with a suffix or parameters."""
    if content_type is None or not content_type.lower().startswith(b"application/grpc"):
        return False
    return content_type[16:17] in (b"", b"+", b";", b" ")


def timeout(ms: int) -> bytes:
    """Returns a ``grpc-timeout`` field of the remaining time, to be appended to a block. Eight digits of milliseconds
    are 27 hours: no call has more left. (``tidegate.headers`` reads such a field.)"""
    value = b"%dm" % min(max(ms, 0), _LARGEST_TIMEOUT)
    return b"%b%c%b" % (_TIMEOUT, len(value), value)


def encode_message(message: str) -> bytes:
    """Encodes a ``grpc-message``: UTF-8, percent-encoded except for printable ASCII; a very long one is truncated."""
    value = _plain.sub(_percent, message.encode("utf-8", "replace"))
    if len(value) > _MESSAGE_BYTES:
        value = value[: _MESSAGE_BYTES - 3]
        half = _cut_off(value)
        value = value[: half.start() if half is not None else None] + b"..."
    return with_edges_encoded(value)


def with_edges_encoded(value: bytes) -> bytes:
    """Encodes spaces at both ends of a ``grpc-message``: gRPC allows them, HTTP/2 does not."""
    return _edges.sub(_percent, value)


def _percent(match: re.Match[bytes]) -> bytes:
    return b"".join([b"%%%02X" % byte for byte in match[0]])


def decode_message(value: bytes) -> str:
    """Decodes a ``grpc-message``. Wrong escapes and bytes are left as they are."""
    decoded = re.sub(rb"%([0-9A-Fa-f]{2})", lambda match: bytes((int(match[1], 16),)), value)
    return decoded.decode("utf-8", "replace")


def trailers(status: int, message: str) -> bytes:
    """Returns the block that ends a response after its head was sent."""
    block = literal(b"grpc-status", b"%d" % status)
    return block + literal(b"grpc-message", encode_message(message)) if message else block


def trailers_only(status: int, message: str) -> bytes:
    """Returns the one block of a response that is only a status. The HTTP status is 200: the call's failure is
    gRPC's."""
    return ANSWER + trailers(status, message)
