"""The lines of the access log: one per sampled request, as text or as JSON.

The lines of one batch are made together, by one format: what requests of one function have in common is a text that is
kept. Lines contain no query and no header: both may hold secrets.
"""

from collections.abc import Callable
from datetime import UTC, datetime
from json.encoder import encode_basestring_ascii
from typing import Final

from tidegate.gateway.access_log.records import NOTHING, Batch, Note, Row
from tidegate.gateway.counting.outcomes import ending_of

KEPT_TEXTS: Final = 1024
"""Common texts that are kept at most; then all are made again."""
_KNOWN: Final = 8192
"""Numbers below this one and times below so many microseconds are looked up, since a format takes ten times as long."""
_NUMBERS: Final = tuple(b"%d" % number for number in range(_KNOWN))
_FRACTIONS: Final = tuple(b".%03d" % microseconds for microseconds in range(1000))
_rounded: Final = float.__round__
"""As ``round``, without its look-up."""

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

Common = tuple[str, str, str, int]
"""Function and revision, replica, method and path, status."""
Texts = tuple[bytes, bytes, bytes, bool]
"""What stands from the id to the bytes in, around the wait of a request that did not wait, and behind the inferences;
whether a replica had the request."""
_FRONT, _LAST, _WIDTH = 2, 12, 13
"""Places of texts among the pieces of a line, and their number."""


class _Form:
    """How lines are written: as text or as JSON."""

    __slots__ = (
        "_is_json",
        "_none",
        "_quoted",
        "begin",
        "kept",
        "milliseconds",
        "names",
        "none",
    )

    def __init__(self, *, is_json: bool) -> None:
        self._is_json = is_json
        # No value contains a blank, so text needs no quotes: a request's target and id cannot.
        self._quoted: Callable[[str], str] = encode_basestring_ascii if is_json else str
        self._none = "null" if is_json else "-"
        self.none = self._none.encode()
        self.kept: dict[Common, Texts] = {}
        """Texts of lines without a note."""
        self.begin = b'{"time":"' if is_json else b""
        """What stands before the time."""
        middle = '","level":"info","logger":"access","request_id":"' if is_json else " id="
        self.milliseconds = [f"{milliseconds:03d}Z{middle}".encode() for milliseconds in (*range(1000), 999)]
        """What stands between the second and the id; a product of floats may be 1000."""
        names = ("bytes_out", "total_ms", "wait_ms", "first_byte_ms", "inferences")
        self.names = tuple(self._pair(name, "").encode() for name in names)
        """What stands before the numbers from the second on."""

    def known(self, common: Common) -> Texts:
        """Returns the texts of these values, and keeps them."""
        if len(self.kept) >= KEPT_TEXTS:
            self.kept.clear()
        self.kept[common] = found = self.texts(common, NOTHING)
        return found

    def traced(self, last: bytes, trace_id: bytes) -> bytes:
        """Returns the end of a line with a trace id in the place of none."""
        untraced, traced = (self._pair("trace", value) for value in (self._none, self._quoted(trace_id.decode())))
        return last.replace(untraced.encode(), traced.encode())

    def id(self, given: bytes) -> bytes:
        """Returns a request id as a line has it between quotes."""
        if not self._is_json or given.replace(b"-", b"0").isalnum():  # As a UUID: nothing of it needs an escape.
            return given
        return self._quoted(given.decode("latin-1"))[1:-1].encode()

    def texts(self, common: Common, note: Note) -> Texts:
        """Returns the texts of a line."""
        names, replica, line, status = common
        function, _, revision = names.partition(" ") if names else (None, None, None)
        method, _, path = line.partition(" ")
        uncounted, asked, ending, is_truncated, traceparent = note
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
            ("method", quoted(method)),
            ("path", quoted(path)),
            ("status", str(status)),
            ("bytes_in", ""),
        )
        last = (
            ("ending", quoted(ending_of(ending, status, is_truncated=is_truncated).value)),
            ("trace", none if traceparent is None else quoted(traceparent[3:35].decode())),
        )
        around_wait = (("wait_ms", "0.000" if replica else none), ("first_byte_ms", ""))
        begin, middle, end = (
            "".join(self._pair(name, value) for name, value in pairs) for pairs in (front, around_wait, last)
        )
        if self._is_json:
            begin, end = '"' + begin, end + "}"
        return begin.encode(), middle.encode(), (end + "\n").encode(), bool(replica)

    def _pair(self, name: str, value: str) -> str:
        return f',"{name}":{value}' if self._is_json else f" {name}={value}"

    def __repr__(self) -> str:
        return f"<_Form of {'JSON' if self._is_json else 'text'}>"


class Lines:
    """Makes the lines of one worker."""

    __slots__ = ("_form", "_offset", "_second", "_stamp", "_times")

    def __init__(self, *, as_json: bool, offset: float) -> None:
        """``offset``: Unix time less the worker's clock."""
        self._form = _Form(is_json=as_json)
        self._offset = offset
        self._second = float("-inf")
        """When the second of ``_stamp`` began, on the worker's clock."""
        self._stamp = b""
        """A line up to that second, with the point behind it."""
        self._times = [_time(microseconds) for microseconds in range(_KNOWN)]

    def made(self, batch: Batch) -> bytes:
        """Returns the lines of these requests."""
        rows, notes = batch
        form, times, numbers, kept, none = self._form, self._times, _NUMBERS, self._form.kept, self._form.none
        out_name, total_name, wait_name, first_name, inferences_name = form.names
        second, millisecond, over, stamp = self._second, 1.0, 0.0, b""  # No time lies between.
        pieces: list[bytes] = []
        add = pieces.extend
        for names, replica, line, status, inferences, received, bound, first, end, given, bytes_in, bytes_out in rows:
            try:
                front, wait, last, has_replica = kept[names, replica, line, status]
            except KeyError:
                front, wait, last, has_replica = form.known((names, replica, line, status))
            if not millisecond <= (end - second) * 1e3 < over:
                second, millisecond, stamp = self._begin_millisecond(end)
                over = millisecond + 1.0
            if bound != received and has_replica:
                wait = b"%b%b%b" % (wait_name, _time(_rounded((bound - received) * 1e6)), first_name)
            total, begun = _rounded((end - received) * 1e6), _rounded((first - received) * 1e6)
            add(
                (
                    stamp,
                    given if given.isalnum() else form.id(given),
                    front,
                    numbers[bytes_in] if bytes_in < _KNOWN else b"%d" % bytes_in,
                    out_name,
                    numbers[bytes_out] if bytes_out < _KNOWN else b"%d" % bytes_out,
                    total_name,
                    times[total] if 0 <= total < _KNOWN else _time(total),
                    wait,
                    (times[begun] if 0 <= begun < _KNOWN else _time(begun)) if first else none,
                    inferences_name,
                    numbers[inferences] if inferences < _KNOWN else b"%d" % inferences,
                    last,
                )
            )
        for place, note in notes:
            self._add_note(pieces, place * _WIDTH, rows[place], note)
        return b"".join(pieces)

    def _add_note(self, pieces: list[bytes], at: int, row: Row, note: Note) -> None:
        """Puts what the note says into the line whose pieces begin ``at`` this place."""
        if note[:4] == NOTHING[:4] and note[4] is not None:
            pieces[at + _LAST] = self._form.traced(pieces[at + _LAST], note[4][3:35])
        else:
            pieces[at + _FRONT], _, pieces[at + _LAST], _ = self._form.texts(row[:4], note)

    def _begin_millisecond(self, at: float) -> tuple[float, float, bytes]:
        """Returns when the second of this time began, its millisecond, and how a line of it begins."""
        second = self._second
        if not second <= at < second + 1.0:
            unix = int(at + self._offset)
            self._stamp = self._form.begin + datetime.fromtimestamp(unix, UTC).strftime("%Y-%m-%dT%H:%M:%S.").encode()
            self._second = second = unix - self._offset
        millisecond = int((at - second) * 1e3)
        return second, float(millisecond), self._stamp + self._form.milliseconds[millisecond]

    def __repr__(self) -> str:
        return f"<Lines {self._form!r}>"


def _time(microseconds: int) -> bytes:
    """Returns milliseconds with three decimals."""
    if microseconds < 0:
        return b"%.3f" % (microseconds * 1e-3)
    milliseconds, fraction = divmod(microseconds, 1000)
    return (_NUMBERS[milliseconds] if milliseconds < _KNOWN else b"%d" % milliseconds) + _FRACTIONS[fraction]
