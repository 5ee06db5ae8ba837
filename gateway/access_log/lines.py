"""The lines of the access log: one per sampled request, as text or as JSON.

The lines of one batch are made together, by one format: what requests of one function have in common is a text that is
kept. Lines contain no query and no header: both may hold secrets.
"""

from collections.abc import Callable
from datetime import UTC, datetime
from json.encoder import encode_basestring_ascii
from typing import Final

from tidegate.gateway.access_log.records import NOTHING, Batch, Origin
from tidegate.gateway.counting.outcomes import ending_of

KEPT_TEXTS: Final = 1024
"""Common texts that are kept at most; then all are made again."""
_KNOWN: Final = 8192
"""Times below so many microseconds and numbers below this one are looked up: their texts are made once, since a format
takes ten times as long. Most requests are as short and as small."""

FIELDS: Final = (
    "time",  # end of the request, UTC
    "id",
    "function",  # that the client asked for
    "variant",  # another function that served in its place
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

Common = tuple[Origin, bytes, bytes, int]
"""Origin, method, target, status."""
Texts = tuple[bytes, bytes, bool]
"""What stands from the id to the bytes in, what stands behind the inferences, and whether a replica had the request."""


class _Form:
    """How lines are written: as text or as JSON."""

    __slots__ = ("_is_json", "_kept", "_none", "_quoted", "begin", "milliseconds", "names", "none")

    def __init__(self, *, is_json: bool) -> None:
        self._is_json = is_json
        # No value contains a blank, so text needs no quotes: a request's target and id cannot.
        self._quoted: Callable[[str], str] = encode_basestring_ascii if is_json else str
        self._none = "null" if is_json else "-"
        self.none = self._none.encode()
        self._kept: dict[Common, Texts] = {}
        """Results of ``texts``, by values without a query and a note."""
        self.begin = b'{"time":"' if is_json else b""
        """What stands before the time."""
        middle = '","level":"info","logger":"access","request_id":"' if is_json else " id="
        self.milliseconds = [f"{milliseconds:03d}Z{middle}".encode() for milliseconds in (*range(1000), 999)]
        """What stands between the second and the id; a product of floats may be 1000."""
        names = ("bytes_out", "total_ms", "wait_ms", "first_byte_ms", "inferences")
        self.names = tuple(self._pair(name, "").encode() for name in names)
        """What stands before the numbers from the second on."""

    def texts(self, origin: Origin, method: bytes, target: bytes, status: int) -> Texts:
        """Returns what a line has of these values."""
        path, note = target.partition(b"?")[0], origin[3]
        if note is not None and note[:4] != NOTHING[:4]:
            return self._made(origin, method, path, status)
        common = (*origin[:3], None), method, path, status
        found = self._kept.get(common)
        if found is None:
            if len(self._kept) >= KEPT_TEXTS:
                self._kept.clear()
            self._kept[common] = found = self._made(*common)
        return found if note is None or note[4] is None else (found[0], self._traced(found[1], note[4][3:35]), found[2])

    def _traced(self, last: bytes, trace_id: bytes) -> bytes:
        """Returns the end of a line with a trace id in the place of none."""
        untraced, traced = (self._pair("trace", value) for value in (self._none, self._quoted(trace_id.decode())))
        return last.replace(untraced.encode(), traced.encode())

    def id(self, given: bytes) -> bytes:
        """Returns a request id as a line has it between quotes."""
        return self._quoted(given.decode("latin-1"))[1:-1].encode() if self._is_json else given

    def _made(self, origin: Origin, method: bytes, path: bytes, status: int) -> Texts:
        function, revision, replica, note = origin
        uncounted, asked, ending, is_truncated, traceparent = note or NOTHING
        variant = None
        if uncounted is not None:
            function = uncounted
        if asked is not None:
            function, variant = asked, function
        quoted, none = self._quoted, self._none
        front = (
            ("function", none if function is None else quoted(function)),
            ("variant", none if variant is None else quoted(variant)),
            ("revision", none if revision is None else quoted(revision)),
            ("replica", quoted(replica) if replica else none),
            ("method", quoted(method.decode("latin-1"))),
            ("path", quoted(path.decode("latin-1"))),
            ("status", str(status)),
            ("bytes_in", ""),
        )
        last = (
            ("ending", quoted(ending_of(ending, status, is_truncated=is_truncated).value)),
            ("trace", none if traceparent is None else quoted(traceparent[3:35].decode())),
        )
        texts = ["".join(self._pair(name, value) for name, value in pairs) for pairs in (front, last)]
        quote = '"' if self._is_json else ""
        return (quote + texts[0]).encode(), (texts[1] + ("}\n" if self._is_json else "\n")).encode(), bool(replica)

    def _pair(self, name: str, value: str) -> str:
        return f',"{name}":{value}' if self._is_json else f" {name}={value}"

    def __repr__(self) -> str:
        return f"<_Form of {'JSON' if self._is_json else 'text'}>"


class Lines:
    """Makes the lines of one worker."""

    __slots__ = ("_form", "_known", "_numbers", "_offset", "_second", "_stamp")

    def __init__(self, *, as_json: bool, offset: float) -> None:
        """``offset``: Unix time less the worker's clock."""
        self._form = _Form(is_json=as_json)
        self._offset = offset
        self._second = float("-inf")
        """When the second of ``_stamp`` began, on the worker's clock."""
        self._stamp = b""
        """A line up to that second, with the point behind it."""
        self._known = [b"%d.%03d" % divmod(microseconds, 1000) for microseconds in range(_KNOWN)]
        """Milliseconds with three decimals."""
        self._numbers = [b"%d" % number for number in range(_KNOWN)]

    def made(self, batch: Batch) -> bytes:
        """Returns the lines of these requests."""
        origins, rows = batch
        form, known, second, none = self._form, self._known, self._second, self._form.none
        numbers, milliseconds = self._numbers, form.milliseconds
        out_name, total_name, wait_name, first_name, inferences_name = form.names
        pieces: list[bytes] = []
        add = pieces.extend
        texts: dict[tuple[int, bytes, bytes, int], Texts] = {}
        for row in rows:
            place, method, target, status, inferences, received, bound, first, end, given, bytes_in, bytes_out = row
            found = texts.get(row[:4])
            if found is None:
                found = texts[row[:4]] = form.texts(origins[place], method, target, status)
            front, last, has_replica = found
            if not second <= end < second + 1.0:
                second = self._begin_second(end)
            if not given.isalnum():
                given = form.id(given)
            micros = round((end - received) * 1e6)
            total = begun = known[micros] if 0 <= micros < _KNOWN else b"%.3f" % (micros * 1e-3)
            wait = known[0] if has_replica else none
            if bound != received and has_replica:
                micros = round((bound - received) * 1e6)
                wait = known[micros] if 0 <= micros < _KNOWN else b"%.3f" % (micros * 1e-3)
            if first != end:
                micros = round((first - received) * 1e6)
                begun = none if not first else known[micros] if 0 <= micros < _KNOWN else b"%.3f" % (micros * 1e-3)
            add(
                (
                    self._stamp,
                    milliseconds[int((end - second) * 1e3)],
                    given,
                    front,
                    numbers[bytes_in] if bytes_in < _KNOWN else b"%d" % bytes_in,
                    out_name,
                    numbers[bytes_out] if bytes_out < _KNOWN else b"%d" % bytes_out,
                    total_name,
                    total,
                    wait_name,
                    wait,
                    first_name,
                    begun,
                    inferences_name,
                    numbers[inferences] if inferences < _KNOWN else b"%d" % inferences,
                    last,
                )
            )
        return b"".join(pieces)

    def _begin_second(self, at: float) -> float:
        """Makes the stamp of this time, and returns when its second began."""
        unix = int(at + self._offset)
        self._stamp = self._form.begin + datetime.fromtimestamp(unix, UTC).strftime("%Y-%m-%dT%H:%M:%S.").encode()
        self._second = unix - self._offset
        return self._second

    def __repr__(self) -> str:
        return f"<Lines {self._form!r}>"
