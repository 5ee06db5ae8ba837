"""What a worker keeps of the requests that get a line in the access log, until its log writer has taken it.

A request that ends costs its worker one tuple, its *row*. What requests of one replica have in common is their
*origin*, which stands once in a batch; what few requests have is a *note* at an origin of their own. The process that
writes the log (``main.py``) makes lines of it.
"""

import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import msgspec

from tidegate.gateway.beside.batches import Batches
from tidegate.gateway.counting.outcomes import Ending

if TYPE_CHECKING:
    from tidegate.aio.proxy.exchange import Exchange
    from tidegate.gateway.counting.counters import RevisionCounters
    from tidegate.gateway.routing.request_state import RequestState

BATCH: Final = 64
"""Requests that are packed together at most. Our choice: what is kept of them fits the processor's cache."""
LONG_BYTES: Final = 8 * 1024
"""A target of more bytes ends its batch. Our choice: the default of ``limits.target-bytes``, so that by default no
request is looked at for it, and a batch has half of the room."""
BUFFERED_BYTES: Final = 1 << 20
"""Bytes of batches that wait to be taken at most."""

Note = tuple[str | None, str | None, Ending | None, bool, bytes | None]
"""What few requests have: the function of one that was not counted for a revision, the function that was asked for if
another one served in its place, the ending that the status does not show, whether the answer broke off, and a
``traceparent`` with its trace id if it is sampled."""
NOTHING: Final[Note] = (None, None, None, False, None)
"""The note of most requests."""
Origin = tuple[str | None, str | None, str, Note | None]
"""Function, revision, and the id of the replica that had the request last (empty if it reached none); a note, or None
for NOTHING."""
Row = tuple[int, bytes, bytes, int, int, float, float, float, float, bytes, int, int]
"""Place of its origin in the batch; method, target, status, inferences; times received, bound, first byte and end in
seconds of the worker's clock; request id, bytes in and out."""
Batch = tuple[list[Origin], list[Row]]

_pack: Final = msgspec.msgpack.Encoder().encode
decode_batch: Final[Callable[[bytes], Batch]] = msgspec.msgpack.Decoder(Batch).decode
"""Returns a batch from its bytes. Raises msgspec.DecodeError for bytes that are none."""


class AccessLog(Batches[Any]):
    """The requests of one worker that its log writer has not taken yet."""

    __slots__ = ("_origins", "_rng", "_sampling", "places", "rows")

    things = "lines"

    def __init__(
        self,
        sampling: float,
        *,
        rng: random.Random,
        take: Callable[[Batches[Any]], None],
        target_bytes: int = LONG_BYTES,
    ) -> None:
        """``sampling``: share of the requests that get a line; ``take`` is called when there is much to take;
        ``target_bytes``: the longest target that a request may have."""
        super().__init__(self._encoded, batch=BATCH, room=BUFFERED_BYTES, take=take)
        self._sampling = sampling
        self._rng = rng
        self.rows: list[Row] | None = self._records if sampling >= 1.0 and target_bytes <= LONG_BYTES else None
        """Takes the rows of requests without a note, or with a trace alone (``count_end``); None while each must be
        looked at."""
        self._origins: list[Origin] = []
        self.places: dict[str, int] = {}
        """Where the origins without a note are, by the replicas' ids."""

    def meet_variants(self) -> None:
        """From now on another function than was asked for may serve a request (``gateway/routing/variants.py``)."""
        self.rows = None

    def ended(self, ex: "Exchange", state: "RequestState") -> None:
        """A request has ended: it gets a line if it is sampled."""
        if self._sampling < 1.0 and self._rng.random() >= self._sampling:
            return
        router, counters, trace = state.target.router, state.counters, state.trace
        rows = self._records
        note = (
            None if router is None or counters is not None else router.name,
            state.target.asked or None,
            state.ending,
            ex.truncated,
            None if trace is None else trace.parent,
        )
        if counters is None or note != NOTHING:
            place = self._add_origin(counters, state.replica, note)
        elif state.replica in self.places:
            place = self.places[state.replica]
        else:
            place = self.place(counters, state.replica)
        rows.append(row(ex, state, place))
        if len(rows) >= BATCH or len(ex.head.target) > LONG_BYTES:
            self.full()

    def place(self, counters: "RevisionCounters", replica: str) -> int:
        """Adds the origin of requests without a note and returns its place."""
        place = self._add_origin(counters, replica, None)
        if replica:  # The others are of any revision.
            self.places[replica] = place
        return place

    def place_sampled(self, counters: "RevisionCounters", replica: str, traceparent: bytes) -> int:
        """Adds the origin of a sampled request without another note and returns its place."""
        origins = self._origins
        origins.append((counters.function, counters.revision, replica, (None, None, None, False, traceparent)))
        return len(origins) - 1

    def _add_origin(self, counters: "RevisionCounters | None", replica: str, note: Note | None) -> int:
        function, revision = (None, None) if counters is None else (counters.function, counters.revision)
        self._origins.append((function, revision, replica, note))
        return len(self._origins) - 1

    def _encoded(self, rows: list[Row]) -> bytes:
        data = _pack((self._origins, rows))
        self._origins.clear()
        self.places.clear()
        return data


def row(ex: "Exchange", state: "RequestState", place: int) -> Row:
    """Returns the row of a request that has ended."""
    head = ex.head
    return (
        place,
        head.method,
        head.target,
        ex.status,
        ex.inferences,
        ex.received,
        state.bound_at,
        ex.first_byte,
        ex.ended,
        state.request_id,
        ex.bytes_in,
        ex.bytes_out,
    )
