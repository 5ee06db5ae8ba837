"""What a worker keeps of the requests that get a line in the access log, until its log writer has taken it.

A request that ends costs its worker one tuple. A batch of them is packed at once, and the process that writes the log
(``main.py``) makes lines of it.
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

Common = tuple[str | None, str | None, str, bytes, bytes, int, Ending | None, bool]
"""Function, revision, replica, method, target, status, the ending that the status does not show, and whether the answer
broke off."""
_Key = tuple["RevisionCounters | FunctionRouter | None", str, bytes, bytes, int, Ending | None, bool]
"""A common part, with the object that has the names of its function and revision."""
Ended = tuple[int, float, float, float, float, bytes, int, int, int, bytes | None]
"""Place of the common part in the batch; times received, bound, first byte and end; request id, bytes in and out,
inferences, trace id."""
Batch = tuple[list[Common], list[Ended]]

_pack: Final = msgspec.msgpack.Encoder().encode
decode_batch: Final[Callable[[bytes], Batch]] = msgspec.msgpack.Decoder(Batch).decode
"""Returns a batch from its bytes. Raises msgspec.DecodeError for bytes that are none."""


class AccessLog(Batches[Ended]):
    """The requests of one worker that its log writer has not taken yet."""

    __slots__ = ("_common", "_places", "_rng", "_sampling")

    things = "lines"

    def __init__(self, sampling: float, *, rng: random.Random, take: Callable[[Batches[Any]], None]) -> None:
        """``sampling``: share of the requests that get a line; ``take`` is called when there is much to take."""
        super().__init__(self._encoded, batch=BATCH, room=BUFFERED_BYTES, take=take)
        self._sampling = sampling
        self._rng = rng
        self._common: list[Common] = []
        """Common parts of the batch that is being collected."""
        self._places: dict[_Key, int] = {}
        """Where they are."""

    def ended(self, ex: "Exchange", state: "RequestState") -> None:
        """A request has ended: it gets a line if it is sampled."""
        if self._sampling < 1.0 and self._rng.random() >= self._sampling:
            return
        head, records, trace = ex.head, self._records, state.trace
        key = (
            state.counters or state.target.router,
            state.replica,
            head.method,
            head.target,
            ex.status,
            state.ending,
            ex.truncated,
        )
        place = self._places.get(key)
        records.append(
            (
                self._new(key) if place is None else place,
                ex.received,
                state.bound_at,
                ex.first_byte,
                ex.ended,
                state.request_id,
                ex.bytes_in,
                ex.bytes_out,
                ex.inferences,
                None if trace is None else trace.trace_id,
            )
        )
        if len(records) >= BATCH:
            self.full()

    def _new(self, key: "_Key") -> int:
        """Adds a common part and returns its place."""
        owner, replica, method, target, status, ending, is_truncated = key
        function = revision = None
        if isinstance(owner, RevisionCounters):
            function, revision = owner.function, owner.revision
        elif owner is not None:
            function = owner.name
        place = self._places[key] = len(self._common)
        self._common.append((function, revision, replica, method, target, status, ending, is_truncated))
        return place

    def _encoded(self, records: list[Ended]) -> bytes:
        data = _pack((self._common, records))
        self._common.clear()
        self._places.clear()
        return data
