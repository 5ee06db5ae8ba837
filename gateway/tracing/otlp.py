"""OTLP's request of a trace exporter, as protocol buffers. Pure.

Field numbers are those of ``opentelemetry/proto/trace/v1/trace.proto`` and the messages that it imports; they are
stable (OTLP 1.0). The encoder writes only what Tidegate's spans have.
"""

import struct
from collections.abc import Iterable
from functools import lru_cache
from typing import Final

import msgspec

INTERNAL: Final = 1
SERVER: Final = 2
CLIENT: Final = 3
"""Kinds of spans."""

_TIMES: Final = struct.Struct("<BQBQ")
"""Fields 7 and 8, start and end in nanoseconds."""
_ERROR: Final = b"\x7a\x02\x18\x02"
"""Field 15, a status: field 3, ``STATUS_CODE_ERROR``."""

Value = str | int
Attributes = tuple[tuple[str, Value], ...]


class SpanType:
    """The values that many spans share, and how they are encoded. A process makes few of them."""

    __slots__ = ("attributes", "before_times", "behind_times", "is_error", "kind", "name", "resource")

    def __init__(
        self,
        service: str,
        instance: str,
        name: str,
        kind: int = INTERNAL,
        attributes: Attributes = (),
        *,
        is_error: bool = False,
    ) -> None:
        """``service``: ``service.name`` of the process that its spans stand for; ``instance``: worker or replica, its
        ``service.instance.id``."""
        self.resource = service, instance
        self.name = name
        self.kind = kind
        self.attributes = attributes
        self.is_error = is_error
        self.before_times = _bytes(5, name.encode()) + b"\x30" + _varint(kind)
        self.behind_times = _attributes(attributes) + (_ERROR if is_error else b"")

    def __repr__(self) -> str:
        return f"<SpanType {self.name!r} of {self.resource}>"


class Span(msgspec.Struct, frozen=True, gc=False):
    """One span. ``trace_id`` has 16 bytes, ``span_id`` and ``parent_id`` have 8; a root's ``parent_id`` is empty."""

    type: SpanType
    trace_id: bytes
    span_id: bytes
    parent_id: bytes
    start: float
    """Unix time in seconds, as ``end``."""
    end: float
    trace_state: str = ""
    own: Attributes = ()
    """Attributes that no other span has."""


def encode_span(span: Span) -> bytes:
    """Returns the span as field ``spans`` of a ``ScopeSpans``."""
    shared = span.type
    start, end, parent_id = int(span.start * 1e9), int(span.end * 1e9), span.parent_id
    body = b"".join(
        (
            b"\x0a\x10",
            span.trace_id,
            b"\x12\x08",
            span.span_id,
            _bytes(3, span.trace_state.encode()) if span.trace_state else b"",
            b"\x22\x08" if parent_id else b"",
            parent_id,
            shared.before_times,
            _TIMES.pack(0x39, start, 0x41, end if end > start else start),
            shared.behind_times,
            _attributes(span.own) if span.own else b"",
        )
    )
    return b"\x12" + _varint(len(body)) + body


def encode_request(spans: Iterable[tuple[Span, bytes]], version: str) -> bytes:
    """Returns an ``ExportTraceServiceRequest``: the spans (each with :func:`encode_span` of it) by their resource."""
    resources: dict[tuple[str, str], list[bytes]] = {}
    for span, encoded in spans:
        resources.setdefault(span.type.resource, []).append(encoded)
    scope = _bytes(1, _bytes(1, b"tidegate") + _bytes(2, version.encode()))
    pieces: list[bytes] = []  # Joined once: nested messages would copy all spans four times.
    for names, encoded_spans in resources.items():
        resource, size = _resource(*names, version), len(scope) + sum(map(len, encoded_spans))
        head = resource + b"\x12" + _varint(size)
        pieces += (b"\x0a", _varint(len(head) + size), head, scope, *encoded_spans)
    return b"".join(pieces)


@lru_cache(maxsize=256)
def _resource(service: str, instance: str, version: str) -> bytes:
    named = (("service.name", service), ("service.instance.id", instance), ("service.version", version))
    return _bytes(1, b"".join(_bytes(1, _pair(key, value)) for key, value in named))


def _attributes(attributes: Attributes) -> bytes:
    return b"".join(_bytes(9, _pair(key, value)) for key, value in attributes)


def _pair(key: str, value: Value) -> bytes:
    any_value = b"\x18" + _varint(value) if isinstance(value, int) else _bytes(1, value.encode("utf-8", "replace"))
    return _bytes(1, key.encode()) + _bytes(2, any_value)


def _bytes(number: int, data: bytes) -> bytes:
    size = len(data)
    if size < 0x80 and number < 16:
        return bytes((number << 3 | 2, size)) + data
    return _varint(number << 3 | 2) + _varint(size) + data


def _varint(value: int) -> bytes:
    """Returns a whole number of at least 0 in groups of seven bits."""
    if value < 0x80:
        return bytes((value,))
    if value < 0x4000:
        return bytes((value & 0x7F | 0x80, value >> 7))
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
