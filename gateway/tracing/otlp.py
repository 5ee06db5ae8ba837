"""OTLP's request of a trace exporter, as protocol buffers. Pure.

Field numbers are those of ``opentelemetry/proto/trace/v1/trace.proto`` and the messages that it imports; they are
stable (OTLP 1.0). The encoder writes only what Tidegate's spans have.
"""

import struct
from binascii import unhexlify
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


class Span(msgspec.Struct, frozen=True, gc=False):
    """One span.

    ``trace_id`` (32), ``span_id`` and ``parent_id`` (16, or empty: a root) are hexadecimal digits."""

    service: str
    """``service.name`` of the process that it stands for."""
    instance: str
    """``service.instance.id``: worker or replica."""
    name: str
    kind: int
    trace_id: bytes
    span_id: bytes
    parent_id: bytes
    start: float
    """Unix time in seconds, as ``end``."""
    end: float
    attributes: Attributes = ()
    """Attributes that many spans share. Their encoding is kept."""
    is_error: bool = False
    trace_state: str = ""
    own: Attributes = ()
    """Attributes that no other span has."""


def encode_span(span: Span) -> bytes:
    """Returns the span as field ``spans`` of a ``ScopeSpans``."""
    start, end = round(span.start * 1e9), round(max(span.start, span.end) * 1e9)
    body = b"".join(
        (
            b"\x0a\x10",
            unhexlify(span.trace_id),
            b"\x12\x08",
            unhexlify(span.span_id),
            _bytes(3, span.trace_state.encode()) if span.trace_state else b"",
            b"\x22\x08" + unhexlify(span.parent_id) if span.parent_id else b"",
            _named(span.name, span.kind),
            _TIMES.pack(0x39, start, 0x41, end),
            _shared(span.attributes),
            _attributes(span.own) if span.own else b"",
            _ERROR if span.is_error else b"",
        )
    )
    return b"\x12%b%b" % (_varint(len(body)), body)


def encode_request(spans: Iterable[tuple[Span, bytes]], version: str) -> bytes:
    """Returns an ``ExportTraceServiceRequest``: the spans (each with :func:`encode_span` of it) by their resource."""
    resources: dict[tuple[str, str], list[bytes]] = {}
    for span, encoded in spans:
        resources.setdefault((span.service, span.instance), []).append(encoded)
    scope = _bytes(1, _bytes(1, b"tidegate") + _bytes(2, version.encode()))
    return b"".join(
        _bytes(1, _resource(*names, version) + _bytes(2, scope + b"".join(encoded_spans)))
        for names, encoded_spans in resources.items()
    )


@lru_cache(maxsize=256)
def _resource(service: str, instance: str, version: str) -> bytes:
    named = (("service.name", service), ("service.instance.id", instance), ("service.version", version))
    return _bytes(1, b"".join(_bytes(1, _pair(key, value)) for key, value in named))


@lru_cache(maxsize=256)
def _named(name: str, kind: int) -> bytes:
    return _bytes(5, name.encode()) + b"\x30" + _varint(kind)


def _attributes(attributes: Attributes) -> bytes:
    return b"".join(_bytes(9, _pair(key, value)) for key, value in attributes)


_shared = lru_cache(maxsize=1024)(_attributes)


def _pair(key: str, value: Value) -> bytes:
    any_value = b"\x18" + _varint(value) if isinstance(value, int) else _bytes(1, value.encode("utf-8", "replace"))
    return _bytes(1, key.encode()) + _bytes(2, any_value)


def _bytes(number: int, data: bytes) -> bytes:
    size = len(data)
    if size < 0x80 and number < 16:
        return b"%c%c%b" % (number << 3 | 2, size, data)
    return b"%b%b%b" % (_varint(number << 3 | 2), _varint(size), data)


def _varint(value: int) -> bytes:
    """Returns a whole number of at least 0 in groups of seven bits."""
    if value < 0x80:
        return bytes((value,))
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
