"""What a worker keeps of the requests that get a line in the access log, until its log writer has taken it.

A request that ends costs its worker one tuple. A batch of them is packed at once, with what they have in common
standing there once, and the process that writes the log (``main.py``) makes lines of it.
"""

import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import msgspec

from tidegate.gateway.beside.batches import Batches
from tidegate.gateway.counting.counters import RevisionCounters
from tidegate.gateway.counting.outcomes import Ending

if TYPE_CHECKING:
    from tidegate.aio.proxy.exchange import Exchange
    from tidegate.gateway.routing.function import FunctionRouter
    from tidegate.gateway.routing.request_state import RequestState

BATCH: Final = 64
"""Requests that are packed together at most. Our choice: what is kept of them fits the processor's cache."""
BUFFERED_BYTES: Final = 1 << 20
"""Bytes of batches that wait to be taken at most."""

Common = tuple[str | None, str | None, str | None, str, bytes, bytes, int, Ending | None, bool, bytes | None]
"""Function that was asked for, another one that served in its place, revision, replica, method, target, status, the
ending that the status does not show, whether the answer broke off, and the trace id if the request is sampled."""
_Key = tuple["RevisionCounters | FunctionRouter | tuple[Any, str] | None", str, bytes, bytes, int, Ending | None, bool]
"""A common part without a trace: its owner (with the name of the function that was asked for, if it is another one),
replica, method, target, status, ending, and whether the answer broke off."""
Ended = tuple[int, float, float, float, float, bytes, int, int, int]
"""Place of the common part in the batch; times received, bound, first byte and end in seconds; request id, bytes in and
out, inferences."""
Batch = tuple[list[Common], list[Ended]]

_pack: Final = msgspec.msgpack.Encoder().encode
decode_batch: Final[Callable[[bytes], Batch]] = msgspec.msgpack.Decoder(Batch).decode
"""Returns a batch from its bytes. Raises msgspec.DecodeError for bytes that are none."""


class AccessLog(Batches[Ended]):
    """The requests of one worker that its log writer has not taken yet."""

    __slots__ = ("_common", "_is_special", "_places", "_rng", "_sampling")

    things = "lines"

    def __init__(self, sampling: float, *, rng: random.Random, take: Callable[[Batches[Any]], None]) -> None:
        """``sampling``: share of the requests that get a line; ``take`` is called when there is much to take."""
        super().__init__(self._encoded, batch=BATCH, room=BUFFERED_BYTES, take=take)
        self._sampling = sampling
        self._rng = rng
        self._is_special = sampling < 1.0
        """More must be looked at than that which every line has."""
        self._common: list[Common] = []
        """Common parts of the batch that is being collected."""
        self._places: dict[_Key, int] = {}
        """Where they are; without those of traces."""

    def meet_variants(self) -> None:
        """From now on another function than was asked for may serve a request (``gateway/routing/variants.py``)."""
        self._is_special = True

    def ended(self, ex: "Exchange", state: "RequestState") -> None:
        """A request has ended: it gets a line if it is sampled."""
        owner: RevisionCounters | FunctionRouter | tuple[Any, str] | None = state.counters or state.target.router
        if self._is_special:
            if self._sampling < 1.0 and self._rng.random() >= self._sampling:
                return
            if state.target.asked:
                owner = owner, state.target.asked
        head, records = ex.head, self._records
        key = owner, state.replica, head.method, head.target, ex.status, state.ending, ex.truncated
        if state.trace is not None:
            place = self._new(key, state.trace.trace_id)
        else:
            try:  # Quicker than ``get`` for one that is there.
                place = self._places[key]
            except KeyError:
                place = self._places[key] = self._new(key, None)
        records.append(
            (
                place,
                ex.received,
                state.bound_at,
                ex.first_byte,
                ex.ended,
                state.request_id,
                ex.bytes_in,
                ex.bytes_out,
                ex.inferences,
            )
        )
        if len(records) >= BATCH:
            self.full()

    def _new(self, key: "_Key", trace_id: bytes | None) -> int:
        """Adds a common part and returns its place."""
        owner, replica, method, target, status, ending, is_truncated = key
        asked = None
        if isinstance(owner, tuple):
            owner, asked = owner
        function = variant = revision = None
        if isinstance(owner, RevisionCounters):
            function, revision = owner.function, owner.revision
        elif owner is not None:
            function = owner.name
        if asked is not None:
            function, variant = asked, function
        self._common.append(
            (function, variant, revision, replica, method, target, status, ending, is_truncated, trace_id)
        )
        return len(self._common) - 1

    def _encoded(self, records: list[Ended]) -> bytes:
        data = _pack((self._common, records))
        self._common.clear()
        self._places.clear()
        return data
