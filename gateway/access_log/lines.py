"""The lines of the access log: one per sampled request, as text or as JSON.

The lines of one batch are made together, by one format: what requests of one function have in common is a text that is
kept. Lines contain no query and no header: both may hold secrets.
"""

from collections.abc import Callable
from datetime import UTC, datetime
from json.encoder import encode_basestring_ascii
from typing import Final

from tidegate.gateway.access_log.records import Batch, Common
from tidegate.gateway.counting.outcomes import ending_of

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


class _Form:
    """How lines are written: as text or as JSON."""

    __slots__ = ("_is_json", "_none", "_quoted", "kept", "unusual", "usual")

    def __init__(self, *, is_json: bool) -> None:
        self._is_json = is_json
        # No value contains a blank, so text needs no quotes: a request's target and id cannot.
        self._quoted: Callable[[str], str] = encode_basestring_ascii if is_json else str
        self._none = "null" if is_json else "-"
        self.kept: dict[Common, tuple[bytes, bytes]] = {}
        """Results of ``texts``, by requests without a query."""
        self.usual = self._line("%.3f")
        """The format of a line of a request that a replica has answered."""
        self.unusual = self._line("%b")
        """The same with texts for the wait and the first byte, one of which did not happen."""

    def texts(self, common: Common) -> tuple[bytes, bytes]:
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

    def _made(self, common: Common) -> tuple[bytes, bytes]:
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


class Lines:
    """Makes the lines of one worker."""

    __slots__ = ("_form", "_offset", "_second", "_stamp")

    def __init__(self, *, as_json: bool, offset: float) -> None:
        """``offset``: Unix time less the worker's clock."""
        self._form = _Form(is_json=as_json)
        self._offset = offset
        self._second = float("-inf")
        """When the second of ``_stamp`` began, on the worker's clock."""
        self._stamp = b""
        """Date and time of that second, with the point behind it."""

    def made(self, batch: Batch) -> bytes:
        """Returns the lines of these requests."""
        form = self._form
        formats: list[bytes] = []
        values: list[bytes | int | float] = []
        add, second = values.extend, self._second
        texts = [(*form.texts(common), bool(common[2])) for common in batch[0]]
        for place, received, bound, first, end, given, bytes_in, bytes_out, inferences, trace in batch[1]:
            if not second <= end < second + 1.0:
                second = self._begin_second(end)
            front, last, has_replica = texts[place]
            if trace is not None:
                last = form.traced(last, trace)
            if not given.isalnum():
                given = form.id(given)
            at, total = (end - second) * 1e3, (end - received) * 1e3
            if has_replica and first:
                formats.append(form.usual)
                wait, byte = (bound - received) * 1e3, (first - received) * 1e3
                add((self._stamp, at, given, front, bytes_in, bytes_out, total, wait, byte, inferences, last))
            else:
                formats.append(form.unusual)
                waited = form.milliseconds(bound - received if has_replica else None)
                begun = form.milliseconds(first - received if first else None)
                add((self._stamp, at, given, front, bytes_in, bytes_out, total, waited, begun, inferences, last))
        return b"".join(formats) % tuple(values)

    def _begin_second(self, at: float) -> float:
        """Makes the stamp of this time, and returns when its second began."""
        unix = int(at + self._offset)
        self._stamp = datetime.fromtimestamp(unix, UTC).strftime("%Y-%m-%dT%H:%M:%S.").encode()
        self._second = unix - self._offset
        return self._second

    def __repr__(self) -> str:
        return f"<Lines {self._form!r}>"
