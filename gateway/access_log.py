"""The access log: one line per sampled request, collected here and written by the sweep with one write.

The buffer is bounded: when the disk is full, lines are dropped and counted, and serving goes on. Lines contain no query
and no header: both may hold secrets.
"""

import random
from collections.abc import Callable
from datetime import UTC, datetime
from json.encoder import encode_basestring_ascii
from typing import TYPE_CHECKING, Final

from tidegate.gateway.routing.request_state import RequestState

if TYPE_CHECKING:
    from tidegate.aio.proxy.exchange import Exchange

BUFFERED_BYTES: Final = 1 << 20
"""Bytes of lines that wait to be written at most."""


FIELDS: Final = (
    "time",  # end of the request, UTC
    "id",
    "function",
    "revision",
    "replica",
    "method",
    "path",
    "status",
    "bytes_in",
    "bytes_out",
    "total_ms",
    "wait_ms",  # until it was bound to its last replica
    "first_byte_ms",
    "inferences",
    "ending",
    "trace",  # trace id of a sampled request
)
"""The fields of a line, in their order; unknown ones are ``-`` in text and ``null`` in JSON."""

_TEXT: Final = "%s " + " ".join(f"{name}=%s" for name in FIELDS[1:]) + "\n"
_JSON: Final = "{" + ",".join(f'"{name}":%s' for name in FIELDS) + "}\n"


class AccessLog:
    """The lines of one worker that are not written yet."""

    __slots__ = (
        "_bytes",
        "_lines",
        "_none",
        "_offset",
        "_quoted",
        "_rng",
        "_sampling",
        "_second",
        "_stamp",
        "_template",
        "dropped",
    )

    def __init__(self, sampling: float, *, as_json: bool, rng: random.Random, offset: float) -> None:
        """``sampling``: share of the requests that get a line; ``offset``: Unix time less the chain's clock."""
        self._sampling = sampling
        self._template, self._none = (_JSON, "null") if as_json else (_TEXT, "-")
        # No value contains a blank, so text needs no quotes: a request's target and id cannot.
        self._quoted: Callable[[str], str] = encode_basestring_ascii if as_json else str
        self._rng = rng
        self._offset = offset
        self._lines: list[bytes] = []
        self._bytes = 0
        self._second = -1
        self._stamp = ""
        """Text of ``_second``, without a zone."""
        self.dropped = 0

    def ended(self, ex: "Exchange", state: RequestState, ending: str) -> None:
        """Adds a line for a request that has ended, if it is sampled."""
        if self._sampling < 1.0 and self._rng.random() >= self._sampling:
            return
        line = self._line(ex, state, ending).encode()
        if self._bytes + len(line) > BUFFERED_BYTES:
            self.dropped += 1
            return
        self._lines.append(line)
        self._bytes += len(line)

    def take(self) -> bytes:
        """Removes and returns the bytes to write now; bytes that could not be written go to ``unwritten``."""
        data = b"".join(self._lines)
        self._lines.clear()
        self._bytes = 0
        return data

    def unwritten(self, data: bytes) -> None:
        """Puts back the end of what was taken and could not be written: it is tried again."""
        if data:
            self._lines.insert(0, data)
            self._bytes += len(data)

    def _line(self, ex: "Exchange", state: RequestState, ending: str) -> str:
        quoted, none = self._quoted, self._none
        head, counters, received = ex.head, state.counters, ex.received
        router, replica, trace = state.target.router, state.replica, state.trace
        return self._template % (  # One format: this runs for every request.
            quoted(self._time(ex.ended + self._offset)),
            quoted(state.request_id.decode("latin-1")),
            none if router is None else quoted(router.name),
            none if counters is None else quoted(counters.revision),
            quoted(replica) if replica else none,
            quoted(head.method.decode("latin-1")),
            quoted(head.path.decode("latin-1")),
            ex.status,
            ex.bytes_in,
            ex.bytes_out,
            round((ex.ended - received) * 1e3, 3),
            round((state.bound_at - received) * 1e3, 3) if replica else none,
            round((ex.first_byte - received) * 1e3, 3) if ex.first_byte else none,
            ex.inferences,
            quoted(ending),
            none if trace is None else quoted(trace.trace_id.decode()),
        )

    def _time(self, unix: float) -> str:
        second = int(unix)
        if second != self._second:
            self._second = second
            self._stamp = datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%S")
        return f"{self._stamp}.{int((unix - second) * 1000):03d}Z"

    def __repr__(self) -> str:
        return f"<AccessLog {len(self._lines)} lines to write, {self.dropped} dropped>"
