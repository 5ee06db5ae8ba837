"""What a worker keeps of the requests that get a line in the access log, until its log writer has taken it.

A request that ends costs its worker one tuple, its *row*, of values that it has already. Texts of a row are objects
that many requests share. What few requests have is a *note* beside the rows. The process that writes the log
(``main.py``) makes lines of it.
"""

import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import msgspec

from tidegate.gateway.beside.batches import Batches
from tidegate.gateway.counting.outcomes import Ending
from tidegate.wire.message_heads import method_and_path

if TYPE_CHECKING:
    from tidegate.aio.proxy.exchange import Exchange
    from tidegate.gateway.routing.request_state import RequestState

BATCH: Final = 64
"""Requests that ``ended`` packs together at most. The hot path packs as often as latencies are settled."""
LONG_BYTES: Final = 8 * 1024
"""A path of more bytes ends its batch, which then has half of the room at most."""
BUFFERED_BYTES: Final = 1 << 20
"""Bytes of batches that wait to be taken at most."""

Note = tuple[str | None, str | None, Ending | None, bool, bytes | None]
"""What few requests have: the function of one that was not counted for a revision, the function that was asked for if
another one served in its place, the ending that the status does not show, whether the answer broke off, and a
``traceparent`` with its trace id if it is sampled."""
NOTHING: Final[Note] = (None, None, None, False, None)
"""The note of most requests."""
Row = tuple[str, str, str, int, int, float, float, float, float, bytes, int, int]
"""Function and revision (``RevisionCounters.names``; empty if it was not counted for one), the id of the replica that
had the request last (empty if it reached none), method and path (``Target.line``), status, inferences; times received,
bound, first byte and end in seconds of the worker's clock; request id, bytes in and out."""
Batch = tuple[list[Row], list[tuple[int, Note]]]
"""Rows, and the notes of some of them by their places."""

_pack: Final = msgspec.msgpack.Encoder().encode
decode_batch: Final[Callable[[bytes], Batch]] = msgspec.msgpack.Decoder(Batch).decode
"""Returns a batch from its bytes. Raises msgspec.DecodeError for bytes that are none."""


class AccessLog(Batches[Any]):
    """The requests of one worker that its log writer has not taken yet."""

    __slots__ = ("_notes", "_rng", "_sampling", "rows")

    things = "lines"

    def __init__(self, sampling: float, *, rng: random.Random, take: Callable[[Batches[Any]], None]) -> None:
        """``sampling``: share of the requests that get a line; ``take`` is called when there is much to take."""
        super().__init__(self._encoded, batch=BATCH, room=BUFFERED_BYTES, take=take)
        self._sampling = sampling
        self._rng = rng
        self.rows: list[Row] | None = self._records if sampling >= 1.0 else None
        """Takes the rows of requests without a note, or with a trace alone (``count_end``); None if lines are drawn."""
        self._notes: list[tuple[int, Note]] = []

    def ended(self, ex: "Exchange", state: "RequestState") -> None:
        """A request has ended: it gets a line if it is sampled."""
        if self._sampling < 1.0 and self._rng.random() >= self._sampling:
            return
        router, counters, trace, head = state.target.router, state.counters, state.trace, ex.head
        rows = self._records
        note = (
            None if router is None or counters is not None else router.name,
            state.target.asked or None,
            state.ending,
            ex.truncated,
            None if trace is None else trace.parent,
        )
        if note != NOTHING:
            self._notes.append((len(rows), note))
        line = method_and_path(head.method, head.path)
        rows.append(
            (
                "" if counters is None else counters.names,
                state.replica,
                line,
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
        )
        if len(rows) >= BATCH or len(line) > LONG_BYTES:
            self.full()

    def note_trace(self, traceparent: bytes) -> None:
        """The next row is that of a sampled request without another note."""
        self._notes.append((len(self._records), (None, None, None, False, traceparent)))

    def _encoded(self, rows: list[Row]) -> bytes:
        data = _pack((rows, self._notes))
        self._notes.clear()
        return data
