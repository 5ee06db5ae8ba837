"""The sampled payloads of one worker that the process with the sinks has not taken yet."""

from collections.abc import Callable
from collections.abc import Set as AbstractSet
from typing import Any, Final

import msgspec

from tidegate.gateway.beside.batches import Batches
from tidegate.gateway.payloads.events import Payload

BUFFERED_BYTES: Final = 8 << 20
"""Bytes of payloads that wait to be taken at most. Our choice: four of the largest pairs."""

Batch = tuple[list[Payload], list[str | None]]
"""Payloads, request and answer in turns; and the URLs of the sinks that functions name now, None for files."""

_pack: Final = msgspec.msgpack.Encoder().encode
decode_batch: Final[Callable[[bytes], Batch]] = msgspec.msgpack.Decoder(Batch).decode
"""Returns a batch from its bytes. Raises msgspec.DecodeError for bytes that are none."""


class PayloadBatches(Batches[Payload]):
    """They go to the process of ``main.py``. A pair is a batch: it may have megabytes."""

    __slots__ = ("_named",)

    things = "events"

    def __init__(self, take: Callable[[Batches[Any]], None]) -> None:
        super().__init__(self._encoded, batch=2, room=BUFFERED_BYTES, take=take)
        self._named: AbstractSet[str | None] = frozenset()

    def keep(self, named: AbstractSet[str | None]) -> None:
        """Lets the sinks end that no function names any more."""
        if named != self._named:
            self.pack()
            self._named = named
            self._add(0, self._encoded([]))

    def _encoded(self, payloads: list[Payload]) -> bytes:
        return _pack((payloads, list(self._named)))
