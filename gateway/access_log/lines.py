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
"""Times below so many microseconds are looked up: their texts are made once, since a format of a float takes ten times
as long. Most requests are as short."""

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

_TEXT_BEGIN: Final = "%b%03dZ id=%b"
_JSON_BEGIN: Final = '{"time":"%b%03dZ","level":"info","logger":"access","request_id":"%b"'


Common = tuple[Origin, bytes, bytes, int]
"""Origin, method, target, status."""
Texts = tuple[bytes, bytes, bool]
"""The fields from the function to the status, those from the ending to the end of the line, and whether a replica had
the request."""


class _Form:
    """How lines are written: as text or as JSON."""

    __slots__ = ("_is_json", "_kept", "_none", "_quoted", "line", "none")

    def __init__(self, *, is_json: bool) -> None:
        self._is_json = is_json
        # No value contains a blank, so text needs no quotes: a request's target and id cannot.
        self._quoted: Callable[[str], str] = encode_basestring_ascii if is_json else str
        self._none = "null" if is_json else "-"
        self.none = self._none.encode()
        self._kept: dict[Common, Texts] = {}
        """Results of ``texts``, by values without a query and a note."""
        self.line = self._line()
        """The format of a line."""

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
        )
        last = (
            ("ending", quoted(ending_of(ending, status, is_truncated=is_truncated).value)),
            ("trace", none if traceparent is None else quoted(traceparent[3:35].decode())),
        )
        texts = ["".join(self._pair(name, value) for name, value in pairs) for pairs in (front, last)]
        return texts[0].encode(), (texts[1] + ("}\n" if self._is_json else "\n")).encode(), bool(replica)

    def _line(self) -> bytes:
        begin = _JSON_BEGIN if self._is_json else _TEXT_BEGIN
        pairs = (
            ("bytes_in", "%d"),
            ("bytes_out", "%d"),
            ("total_ms", "%b"),
            ("wait_ms", "%b"),
            ("first_byte_ms", "%b"),
            ("inferences", "%d"),
        )
        return (begin + "%b" + "".join(self._pair(*pair) for pair in pairs) + "%b").encode()

    def _pair(self, name: str, value: str) -> str:
        return f',"{name}":{value}' if self._is_json else f" {name}={value}"

    def __repr__(self) -> str:
        return f"<_Form {self.line!r}>"


class Lines:
    """Makes the lines of one worker."""

    __slots__ = ("_form", "_known", "_offset", "_second", "_stamp")

    def __init__(self, *, as_json: bool, offset: float) -> None:
        """``offset``: Unix time less the worker's clock."""
        self._form = _Form(is_json=as_json)
        self._offset = offset
        self._second = float("-inf")
        """When the second of ``_stamp`` began, on the worker's clock."""
        self._stamp = b""
        """Date and time of that second, with the point behind it."""
        self._known = [b"%d.%03d" % divmod(microseconds, 1000) for microseconds in range(_KNOWN)]
        """Milliseconds with three decimals."""

    def made(self, batch: Batch) -> bytes:
        """Returns the lines of these requests."""
        origins, rows = batch
        form, known, second, none = self._form, self._known, self._second, self._form.none
        values: list[bytes | int] = []
        add = values.extend
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
                    int((end - second) * 1e3),
                    given,
                    front,
                    bytes_in,
                    bytes_out,
                    total,
                    wait,
                    begun,
                    inferences,
                    last,
                )
            )
        return form.line * len(rows) % tuple(values)

    def _begin_second(self, at: float) -> float:
        """Makes the stamp of this time, and returns when its second began."""
        unix = int(at + self._offset)
        self._stamp = datetime.fromtimestamp(unix, UTC).strftime("%Y-%m-%dT%H:%M:%S.").encode()
        self._second = unix - self._offset
        return self._second

    def __repr__(self) -> str:
        return f"<Lines {self._form!r}>"
