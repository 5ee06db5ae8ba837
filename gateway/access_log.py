"""The access log: one line per sampled request, collected here and written some times a second with one write.

A request that ends costs its worker one tuple. The lines of ``BATCH`` requests are made together, by one format: what
requests of one function have in common is a text that is kept. The buffer is bounded: when the disk is full, lines are
dropped and counted, and serving goes on. Lines contain no query and no header: both may hold secrets.
"""

import random
from collections.abc import Callable
from datetime import UTC, datetime
from json.encoder import encode_basestring_ascii
from typing import TYPE_CHECKING, Final

from tidegate.gateway.counting.outcomes import Ending
from tidegate.gateway.outcome_step import ending_of
from tidegate.gateway.routing.request_state import RequestState

if TYPE_CHECKING:
    from tidegate.aio.proxy.exchange import Exchange

BUFFERED_BYTES: Final = 1 << 20
"""Bytes of lines that wait to be written at most."""
WRITTEN_BYTES: Final = 64 * 1024
"""Lines of so many bytes are written at once; fewer wait for the sweep."""
BATCH: Final = 64
"""Requests whose lines are made together at most. Our choice: what is kept of them fits the processor's cache."""
KEPT_TEXTS: Final = 1024
"""Common texts that are kept at most; then all are made again."""

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
"""The fields of a line of text, in their order; unknown ones are ``-``, and ``null`` in JSON. In JSON ``id`` is called
``request_id``, as in the lines of all processes, and ``level`` and ``logger`` stand before it."""

_TEXT_BEGIN: Final = "%b%03dZ id=%b"
_JSON_BEGIN: Final = '{"time":"%b%03dZ","level":"info","logger":"access","request_id":"%b"'

_Common = tuple[str | None, str | None, str, bytes, bytes, int, Ending | None, bool]
"""Function, revision, replica, method, target, status, the ending that the status does not show, and whether the answer
broke off."""
_Ended = tuple[_Common, float, float, float, float, bytes, int, int, int, bytes | None]
"""The common part; times received, bound, first byte and end; request id, bytes in and out, inferences, trace id."""


class _Form:
    """How lines are written: as text or as JSON."""

    __slots__ = ("_is_json", "_none", "_quoted", "kept", "unusual", "usual")

    def __init__(self, *, is_json: bool) -> None:
        self._is_json = is_json
        # No value contains a blank, so text needs no quotes: a request's target and id cannot.
        self._quoted: Callable[[str], str] = encode_basestring_ascii if is_json else str
        self._none = "null" if is_json else "-"
        self.kept: dict[_Common, tuple[bytes, bytes]] = {}
        """Results of ``texts``, by requests without a query."""
        self.usual = self._line("%.3f")
        """The format of a line of a request that a replica has answered."""
        self.unusual = self._line("%b")
        """The same with texts for the wait and the first byte, one of which did not happen."""

    def texts(self, common: _Common) -> tuple[bytes, bytes]:
        """Returns the fields from the function to the status, and those from the ending to the end of a line without a
        trace."""
        target = common[4]
        if target.find(b"?") >= 0:
            common = (*common[:4], target.partition(b"?")[0], *common[5:])
        found = self.kept.get(common)
        if found is None:
            if len(self.kept) >= KEPT_TEXTS:
                self.kept.clear()
            self.kept[common] = found = self._made(common)
        return found

    def traced(self, last: bytes, trace_id: bytes) -> bytes:
        """Returns the end of a line with a trace id in the place of none."""
        untraced, traced = (self._pair("trace", value) for value in (self._none, self._quoted(trace_id.decode())))
        return last.replace(untraced.encode(), traced.encode())

    def id(self, given: bytes) -> bytes:
        """Returns a request id as a line has it between quotes."""
        return self._quoted(given.decode("latin-1"))[1:-1].encode() if self._is_json else given

    def milliseconds(self, seconds: float | None) -> bytes:
        """Returns a time in a line's unusual format; None: it did not happen."""
        return self._none.encode() if seconds is None else b"%.3f" % (seconds * 1e3)

    def _made(self, common: _Common) -> tuple[bytes, bytes]:
        function, revision, replica, method, path, status, ending, is_truncated = common
        quoted, none = self._quoted, self._none
        front = (
            ("function", none if function is None else quoted(function)),
            ("revision", none if revision is None else quoted(revision)),
            ("replica", quoted(replica) if replica else none),
            ("method", quoted(method.decode("latin-1"))),
            ("path", quoted(path.decode("latin-1"))),
            ("status", str(status)),
        )
        last = (("ending", quoted(ending_of(ending, status, is_truncated=is_truncated).value)), ("trace", none))
        texts = ["".join(self._pair(name, value) for name, value in pairs) for pairs in (front, last)]
        return texts[0].encode(), (texts[1] + ("}\n" if self._is_json else "\n")).encode()

    def _line(self, time: str) -> bytes:
        begin = _JSON_BEGIN if self._is_json else _TEXT_BEGIN
        pairs = (
            ("bytes_in", "%d"),
            ("bytes_out", "%d"),
            ("total_ms", "%.3f"),
            ("wait_ms", time),
            ("first_byte_ms", time),
            ("inferences", "%d"),
        )
        return (begin + "%b" + "".join(self._pair(*pair) for pair in pairs) + "%b").encode()

    def _pair(self, name: str, value: str) -> str:
        return f',"{name}":{value}' if self._is_json else f" {name}={value}"

    def __repr__(self) -> str:
        return f"<_Form {self.usual!r}>"


class AccessLog:
    """The lines of one worker that are not written yet."""

    __slots__ = (
        "_bytes",
        "_ended",
        "_fault",
        "_flush",
        "_form",
        "_is_stuck",
        "_lines",
        "_offset",
        "_rng",
        "_sampling",
        "_second",
        "_stamp",
        "dropped",
    )

    def __init__(
        self,
        sampling: float,
        *,
        as_json: bool,
        rng: random.Random,
        offset: float,
        flush: "Callable[[AccessLog], None]",
    ) -> None:
        """``sampling``: share of the requests that get a line; ``offset``: Unix time less the chain's clock; ``flush``
        is called when there is much to write."""
        self._sampling = sampling
        self._form = _Form(is_json=as_json)
        self._rng = rng
        self._offset = offset
        self._flush = flush
        self._ended: list[_Ended] = []
        """Requests whose lines are not made yet."""
        self._lines: list[bytes] = []
        self._bytes = 0
        self._fault: str | None = None
        self._is_stuck = False
        """The last write has not taken all lines."""
        self._second = float("-inf")
        """When the second of ``_stamp`` began, on the chain's clock."""
        self._stamp = b""
        """Date and time of that second, with the point behind it."""
        self.dropped = 0

    def ended(self, ex: "Exchange", state: RequestState) -> None:
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
            self._make_lines()
            if self._bytes >= WRITTEN_BYTES and not self._is_stuck:
                self._flush(self)

    def take(self) -> bytes:
        """Removes and returns the bytes to write now; bytes that could not be written go to ``unwritten``."""
        if self._ended:
            self._make_lines()
        data = b"".join(self._lines)
        self._lines.clear()
        self._bytes = 0
        self._is_stuck = False
        return data

    def unwritten(self, data: bytes, fault: str | None = None) -> None:
        """Puts back the end of what was taken and could not be written, for the reason ``fault``: the next sweep tries
        again."""
        self._fault = fault
        if data:
            self._lines.insert(0, data)
            self._bytes += len(data)
            self._is_stuck = True

    @property
    def fault(self) -> str | None:
        """Why lines cannot be written now, for ``tidegate status``; None if they can."""
        return None if self._fault is None else f"{self._fault}; {self.dropped} lines were dropped"

    def _make_lines(self) -> None:
        """Makes the lines of the requests that have ended since the last call."""
        form = self._form
        formats: list[bytes] = []
        values: list[bytes | int | float] = []
        kept, add, second = form.kept, values.extend, self._second
        for common, received, bound, first, end, given, bytes_in, bytes_out, inferences, trace in self._ended:
            if not second <= end < second + 1.0:
                second = self._begin_second(end)
            front, last = kept.get(common) or form.texts(common)
            if trace is not None:
                last = form.traced(last, trace)
            if not given.isalnum():
                given = form.id(given)
            at, total = (end - second) * 1e3, (end - received) * 1e3
            if common[2] and first:
                formats.append(form.usual)
                wait, byte = (bound - received) * 1e3, (first - received) * 1e3
                add((self._stamp, at, given, front, bytes_in, bytes_out, total, wait, byte, inferences, last))
            else:
                formats.append(form.unusual)
                waited = form.milliseconds(bound - received if common[2] else None)
                begun = form.milliseconds(first - received if first else None)
                add((self._stamp, at, given, front, bytes_in, bytes_out, total, waited, begun, inferences, last))
        lines = b"".join(formats) % tuple(values)
        if self._bytes + len(lines) > BUFFERED_BYTES:
            self.dropped += len(self._ended)
        else:
            self._lines.append(lines)
            self._bytes += len(lines)
        self._ended.clear()

    def _begin_second(self, at: float) -> float:
        """Makes the stamp of this time, and returns when its second began."""
        unix = int(at + self._offset)
        self._stamp = datetime.fromtimestamp(unix, UTC).strftime("%Y-%m-%dT%H:%M:%S.").encode()
        self._second = unix - self._offset
        return self._second

    def __repr__(self) -> str:
        return f"<AccessLog {len(self._lines)} batches to write, {self.dropped} dropped>"
