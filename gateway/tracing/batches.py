"""The spans of one worker that its exporter has not taken yet."""

from collections.abc import Callable
from typing import Any, Final

import msgspec

from tidegate.gateway.beside.batches import Batches
from tidegate.gateway.tracing.otlp import Span

BATCH: Final = 64
"""Spans that are packed together at most."""
BUFFERED_BYTES: Final = 1 << 20
"""Bytes of spans that wait to be taken at most, some 4,000 spans."""

_pack: Final = msgspec.msgpack.Encoder().encode
decode_batch: Final = msgspec.msgpack.Decoder(list[Span]).decode
"""Returns spans from their bytes. Raises msgspec.DecodeError for bytes that are none."""


class SpanBatches(Batches[Span]):
    """They go to the process of ``main.py``."""

    __slots__ = ()

    things = "spans"

    def __init__(self, take: Callable[[Batches[Any]], None]) -> None:
        super().__init__(_pack, batch=BATCH, room=BUFFERED_BYTES, take=take)
