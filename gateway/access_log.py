"""The access log: one line per sampled request, collected here and written by the sweep with one write.

The buffer is bounded: when the disk is full, lines are dropped and counted, and serving goes on. Lines contain no query
and no header: both may hold secrets.
"""

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from tidegate.gateway.routing.request_state import RequestState

if TYPE_CHECKING:
    from tidegate.aio.proxy.exchange import Exchange

BUFFERED_BYTES: Final = 1 << 20
"""Bytes of lines that wait to be written at most."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One request in the access log. Times in milliseconds; None if that did not happen, or is unknown."""

    time: str
    """End of the request, UTC."""
    id: str
    function: str | None
    revision: str | None
    replica: str | None
    method: str
    path: str
    status: int
    bytes_in: int
    bytes_out: int
    total_ms: float
    wait_ms: float | None
    """Time until it was bound to its last replica."""
    first_byte_ms: float | None
    inferences: int
    ending: str
    trace: str | None = None
    """Trace id; None if the request was not sampled."""


class AccessLog:
    """The lines of one worker that are not written yet."""

    __slots__ = ("_bytes", "_format", "_lines", "_offset", "_rng", "_sampling", "_second", "_stamp", "dropped")

    def __init__(self, sampling: float, *, as_json: bool, rng: random.Random, offset: float) -> None:
        """``sampling``: share of the requests that get a line; ``offset``: Unix time less the chain's clock."""
        self._sampling = sampling
        self._format: Callable[[Entry], str] = _json if as_json else _text
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
        line = (self._format(self._entry(ex, state, ending)) + "\n").encode()
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

    def _entry(self, ex: "Exchange", state: RequestState, ending: str) -> Entry:
        counters, received = state.counters, ex.received
        router = state.target.router
        return Entry(
            time=self._time(ex.ended + self._offset),
            id=state.request_id.decode("latin-1"),
            function=router.name if router is not None else None,
            revision=counters.revision if counters is not None else None,
            replica=state.replica or None,
            method=ex.head.method.decode("latin-1"),
            path=ex.head.path.decode("latin-1"),
            status=ex.status,
            bytes_in=ex.bytes_in,
            bytes_out=ex.bytes_out,
            total_ms=_ms(ex.ended - received),
            wait_ms=_ms(state.bound_at - received) if state.replica else None,
            first_byte_ms=_ms(ex.first_byte - received) if ex.first_byte else None,
            inferences=ex.inferences,
            ending=ending,
            trace=None if state.trace is None else state.trace.trace_id.decode(),
        )

    def _time(self, unix: float) -> str:
        second = int(unix)
        if second != self._second:
            self._second = second
            self._stamp = datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%S")
        return f"{self._stamp}.{int((unix - second) * 1000):03d}Z"

    def __repr__(self) -> str:
        return f"<AccessLog {len(self._lines)} lines to write, {self.dropped} dropped>"


def _ms(seconds: float) -> float:
    return round(seconds * 1e3, 3)


def _json(entry: Entry) -> str:
    return json.dumps({name: getattr(entry, name) for name in Entry.__slots__}, separators=(",", ":"))


def _text(entry: Entry) -> str:
    """Returns ``name=value`` pairs after the time; ``-`` for unknown values.

    No value contains a blank: a request's target and id cannot.
    """
    pairs = (
        f"{name}={'-' if value is None else value}"
        for name, value in ((name, getattr(entry, name)) for name in Entry.__slots__[1:])
    )
    return f"{entry.time} {' '.join(pairs)}"
