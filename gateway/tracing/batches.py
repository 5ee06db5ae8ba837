"""The traced requests of one worker that its exporter has not taken yet."""

from collections.abc import Callable
from operator import itemgetter
from typing import Any, Final

import msgspec

from tidegate.gateway.beside.batches import Batches
from tidegate.gateway.tracing.facts import Facts, Traced

BATCH: Final = 16
"""Requests that are packed together at most."""
BUFFERED_BYTES: Final = 1 << 20
"""Bytes of them that wait to be taken at most, some 3,000 requests."""

_pack: Final = msgspec.msgpack.Encoder().encode
_spans: Final[Callable[[Traced], int]] = itemgetter(0)
decode_batch: Final = msgspec.msgpack.Decoder(list[Facts]).decode
"""Returns traced requests from their bytes. Raises msgspec.DecodeError for bytes that are none."""


class SpanBatches(Batches[Traced]):
    """They go to the process of ``main.py``, and are counted by their spans."""

    __slots__ = ()

    things = "spans"

    def __init__(self, take: Callable[[Batches[Any]], None]) -> None:
        super().__init__(_pack, batch=BATCH, room=BUFFERED_BYTES, take=take)

    def add(self, traced: Traced) -> None:
        """Takes one that is over."""
        records = self._records
        records.append(traced)
        if len(records) >= BATCH:
            self.full()

    def _count(self) -> int:
        return sum(map(_spans, self._records))
