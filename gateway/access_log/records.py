"""What a worker keeps of the requests that get a line in the access log, until the log writer has taken it.

A request that ends costs its worker one tuple. A batch of them is packed at once, and the process that writes the log
(``main.py``) makes lines of it. What waits to be taken is bounded: beyond it lines are dropped and counted, and serving
goes on.
"""

import random
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import msgspec

from tidegate.gateway.counting.outcomes import Ending

if TYPE_CHECKING:
    from tidegate.aio.proxy.exchange import Exchange
    from tidegate.gateway.routing.request_state import RequestState

BATCH: Final = 64
"""Requests that are packed together at most. Our choice: what is kept of them fits the processor's cache."""
HANDED_BYTES: Final = 32 * 1024
"""Batches of so many bytes are handed over at once, which wakes the writer; fewer wait for the sweep. Our choice."""
BUFFERED_BYTES: Final = 1 << 20
"""Bytes of batches that wait to be taken at most."""

Common = tuple[str | None, str | None, str, bytes, bytes, int, Ending | None, bool]
"""Function, revision, replica, method, target, status, the ending that the status does not show, and whether the answer
broke off."""
Ended = tuple[Common, float, float, float, float, bytes, int, int, int, bytes | None]
"""The common part; times received, bound, first byte and end; request id, bytes in and out, inferences, trace id."""

_SIZE_BYTES: Final = 4
_pack: Final = msgspec.msgpack.Encoder().encode
_unpack: Final = msgspec.msgpack.Decoder(list[Ended]).decode


class AccessLog:
    """The batches of one worker that its log writer has not taken yet."""

    __slots__ = ("_batches", "_bytes", "_ended", "_rng", "_sampling", "_take", "dropped", "fault")

    def __init__(self, sampling: float, *, rng: random.Random, take: "Callable[[AccessLog], None]") -> None:
        """``sampling``: share of the requests that get a line; ``take`` is called when there is much to take."""
        self._sampling = sampling
        self._rng = rng
        self._take = take
        self._ended: list[Ended] = []
        """Requests that are not packed yet."""
        self._batches: deque[tuple[int, bytes]] = deque()
        self._bytes = 0
        self.dropped = 0
        """Lines that were not written: of batches that found no room here, and those that the writer reported."""
        self.fault: str | None = None
        """Why lines are not written now; None if they are. Set by the link to the writer."""

    def ended(self, ex: "Exchange", state: "RequestState") -> None:
        """A request has ended: it gets a line if it is sampled."""
        if self._sampling < 1.0 and self._rng.random() >= self._sampling:
            return
        head, router, counters, trace = ex.head, state.target.router, state.counters, state.trace
        self._ended.append(
            (
                (
                    None if router is None else router.name,
                    None if counters is None else counters.revision,
                    state.replica,
                    head.method,
                    head.target,
                    ex.status,
                    state.ending,
                    ex.truncated,
                ),
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
        if len(self._ended) >= BATCH:
            self.pack()
            if self._bytes >= HANDED_BYTES:
                self._take(self)

    def pack(self) -> None:
        """Makes a batch of the requests that have ended since the last one."""
        if not self._ended:
            return
        packed = _pack(self._ended)
        if self._bytes + len(packed) > BUFFERED_BYTES:
            self.dropped += len(self._ended)
        else:
            self._batches.append((len(self._ended), len(packed).to_bytes(_SIZE_BYTES, "big") + packed))
            self._bytes += len(packed)
        self._ended.clear()

    @property
    def fault_line(self) -> str | None:
        """The fault as ``tidegate status`` shows it, with the number of lines that were dropped."""
        return None if self.fault is None else f"{self.fault}; {self.dropped} lines were dropped"

    @property
    def has_batches(self) -> bool:
        """Whether some batch was not taken yet."""
        return bool(self._batches)

    def next(self) -> tuple[int, bytes] | None:
        """Removes and returns the oldest batch: the number of its lines, and its bytes for ``Unpacker``."""
        if not self._batches:
            return None
        batch = self._batches.popleft()
        self._bytes -= len(batch[1]) - _SIZE_BYTES
        return batch

    def __repr__(self) -> str:
        return f"<AccessLog {len(self._batches)} batches to take, {self.dropped} lines dropped>"


class Unpacker:
    """Reads batches from the pieces in which they arrive."""

    __slots__ = ("_rest",)

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[list[Ended]]:
        """Returns the batches that ``data`` completes. Raises msgspec.DecodeError for bytes that are none."""
        rest, at, found = self._rest + data, 0, []
        while len(rest) - at >= _SIZE_BYTES:
            start = at + _SIZE_BYTES
            end = start + int.from_bytes(rest[at:start], "big")
            if end > len(rest):
                break
            found.append(_unpack(rest[start:end]))
            at = end
        self._rest = rest[at:]
        return found

    def __repr__(self) -> str:
        return f"<Unpacker {len(self._rest)} bytes of a batch>"
