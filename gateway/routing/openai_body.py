"""Requests that name their function in the body: the model is read there, then they go the way of all others.

A call without a body may name it in its query.

Only the top level of a JSON object, or the fields of a form (``tidegate.wire``), are read, never the text of a prompt.
A body of up to ``WAITED_BYTES`` is read when it is whole: then all of it is known before a replica is chosen. A larger
one is read in pieces as they come. The request goes on as soon as its model is known, and the rest is read on its way
to the replica: a second ``model`` in there breaks the transfer off before its last byte. Until the model is known at
most ``GATHERED_BYTES`` are kept, and all waiting bodies share the process's budget.
"""

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote_plus

from tidegate.errors import BAD_REQUEST, QUEUE_FULL, TOO_LARGE, ErrorKind
from tidegate.wire.bodies.multipart import FormScan, boundary_of
from tidegate.wire.bodies.openai import FORM_FIELDS, CallRequest, RequestReader, read_request
from tidegate.wire.http1.fields import Rejected
from tidegate.wire.message_heads import AnyRequestHead

if TYPE_CHECKING:
    from tidegate.aio.proxy.exchange import Exchange

WAITED_BYTES: Final = 256 * 1024
"""A body that announces at most this size is waited for: as many bytes are kept of every waiting request."""
GATHERED_BYTES: Final = 32 << 20
"""Bytes kept of a body in which no model was found yet. Our choice: official clients write the prompt before the model,
and a prompt may contain some pictures."""
DISCARDED_BYTES: Final = 64 << 20
"""Bytes of a refused body that are read and dropped. A larger one is answered at once; its client may see a closed
connection."""
ELSEWHERE: Final = "name the function by host or by /functions/NAME/"
CROWDED: Final = f"the bodies of waiting requests take all the memory that they may: retry later, or {ELSEWHERE}"

_content_types = re.compile(rb"(?:^|\n)content-type:").findall
_json = re.compile(rb"(?:[^;]*[/+]json|application/x-www-form-urlencoded)[ \t]*(?:;|$)", re.IGNORECASE).match
"""Matches JSON types, and the type that curl states for any body by default."""
_charsets = re.compile(rb";[ \t]*charset[ \t]*=[ \t]*\"?([^\";]*)", re.IGNORECASE).findall
_codings = re.compile(rb"(?:^|\n)content-encoding:[ \t]*([^\r\n]*)").findall
_UTF_8: Final = (b"utf-8", b"utf8", b"us-ascii")
_is_form = re.compile(rb"multipart/form-data[ \t]*(?:;|$)", re.IGNORECASE).match

Named = Callable[["Exchange", str | None, CallRequest | None], None]
"""The request names this model (None if it names none), with its other fields if all of its body was read."""
Failed = Callable[["Exchange", ErrorKind, str], None]


class _Form:
    """Reads a form as a request: ``RequestReader`` for ``multipart/form-data``."""

    __slots__ = ("_scan",)

    def __init__(self, boundary: bytes) -> None:
        self._scan = FormScan(boundary, FORM_FIELDS)

    def feed(self, data: bytes) -> Rejected | None:
        return self._scan.feed(data)

    @property
    def model(self) -> str | Rejected | None:
        return self._scan.fields.get("model")

    def end(self) -> CallRequest | Rejected:
        bad = self._scan.end()
        if bad is not None:
            return bad
        asked = CallRequest()
        asked.model = self._scan.fields.get("model")
        asked.user = self._scan.fields.get("user")
        asked.stream = self._scan.fields.get("stream", "").lower() in ("true", "1")
        return asked


def read_model(ex: "Exchange", named: Named, failed: Failed) -> None:
    """Reads the body of a request until it has named its model, then calls ``named`` or ``failed`` once.

    ``failed`` may be called later as well: for an error in the rest of a body, after its first part went to a replica.
    """
    head = ex.head
    if ex.body_complete and not ex.body:
        _read_query(ex, named, failed)
        return
    content_type = head.get(b"content-type")
    refusal = _unreadable(head, content_type)
    if refusal is not None:
        failed(ex, BAD_REQUEST, refusal)
        return
    boundary = None
    if content_type is not None and _is_form(content_type):
        boundary = boundary_of(content_type)
        if boundary is None:
            failed(ex, BAD_REQUEST, "the form's Content-Type names no boundary, or a malformed one")
            return
    elif content_type is not None and not is_json(content_type):
        named(ex, None, None)  # A sound or a picture names no model.
        return
    if ex.body_complete and boundary is None:
        _finish(ex, read_request(ex.body), named, failed)
        return
    ex.proceed()
    _Reading(named, failed, boundary).begin(ex)


def _read_query(ex: "Exchange", named: Named, failed: Failed) -> None:
    """Reads the model of a call without a body (such as the beginning of a WebSocket) from its query."""
    models = queried_models(ex.head.target)
    if len(models) > 1:
        failed(ex, BAD_REQUEST, "the query names 'model' twice")
    else:
        named(ex, models[0] if models else None, None)


def _finish(ex: "Exchange", asked: CallRequest | Rejected, named: Named, failed: Failed) -> None:
    """The whole body was read."""
    if not ex.bytes_in:  # The head announced a body, which an empty frame or chunk then ended.
        _read_query(ex, named, failed)
    elif type(asked) is Rejected:
        failed(ex, BAD_REQUEST, asked.why)
    else:
        named(ex, asked.model, asked)


class _Reading:
    """Reads one body that is not complete yet, or a form."""

    __slots__ = ("_asked", "_boundary", "_failed", "_is_named", "_named", "_scan", "_verdict")

    def __init__(self, named: Named, failed: Failed, boundary: bytes | None) -> None:
        self._named, self._failed = named, failed
        self._boundary = boundary
        """Boundary of a form; None for JSON."""
        self._scan: RequestReader | _Form | None = None
        """Set once the body is read in pieces."""
        self._asked: CallRequest | Rejected | None = None
        """The fields of the request; set at the end of the body."""
        self._is_named = False
        """The request has gone on, and the rest of its body is read on its way."""
        self._verdict: tuple[ErrorKind, str] | None = None
        """The reason for which the request is refused once its body has come."""

    def begin(self, ex: "Exchange") -> None:
        if ex.body_complete:
            self._whole(ex)
        else:
            ex.read_ahead(GATHERED_BYTES)
            self._wait(ex)

    def _wait(self, ex: "Exchange") -> None:
        """Waits until the body is whole, or larger than what is waited for."""
        length = ex.head.content_length
        if ex.body_complete:
            ex.read_ahead()
            self._whole(ex)
        elif ex.is_over_budget:
            self._refuse(ex, QUEUE_FULL, CROWDED)
        elif ex.bytes_in < WAITED_BYTES and (length is None or length <= WAITED_BYTES):
            ex.on_body = self._wait
        else:
            self._scan = self._reader()
            ex.check = self._check
            bad = self._scan.feed(ex.body)
            if bad is not None:
                self._verdict = BAD_REQUEST, bad.why
            self._decide(ex)

    def _reader(self) -> RequestReader | _Form:
        return RequestReader() if self._boundary is None else _Form(self._boundary)

    def _whole(self, ex: "Exchange") -> None:
        """Reads a body that came completely before anything was read."""
        if self._boundary is None:
            _finish(ex, read_request(ex.body), self._named, self._failed)
            return
        scan = _Form(self._boundary)
        _finish(ex, scan.feed(ex.body) or scan.end(), self._named, self._failed)

    def _check(self, ex: "Exchange", data: bytes, is_last: bool) -> None:
        """Reads a further piece before it goes anywhere."""
        scan = self._scan
        if scan is None:
            return
        bad: CallRequest | Rejected | None = scan.feed(data)
        if bad is None and is_last:
            self._asked = bad = scan.end()
        if type(bad) is Rejected:
            if self._is_named:
                self._failed(ex, BAD_REQUEST, bad.why)
            else:
                self._verdict = BAD_REQUEST, bad.why

    def _decide(self, ex: "Exchange") -> None:
        """Decides whether the request may go on after what was read so far."""
        scan, asked = self._scan, self._asked
        model = None if scan is None else scan.model
        if self._verdict is not None:
            self._discard(ex)
        elif asked is not None:
            ex.check = None
            ex.read_ahead()
            _finish(ex, asked, self._named, self._failed)
        elif type(model) is Rejected:
            self._refuse(ex, BAD_REQUEST, model.why)
        elif type(model) is str:
            self._is_named = True
            ex.read_ahead()
            self._named(ex, model, None)
        elif ex.bytes_in >= GATHERED_BYTES:
            message = f"the first {GATHERED_BYTES >> 20} MiB of the body name no model: write it first, or {ELSEWHERE}"
            self._refuse(ex, TOO_LARGE, message)
        elif ex.is_over_budget:
            self._refuse(ex, QUEUE_FULL, CROWDED)
        else:
            ex.on_body = self._decide

    def _refuse(self, ex: "Exchange", kind: ErrorKind, message: str) -> None:
        self._verdict = kind, message
        self._discard(ex)

    def _discard(self, ex: "Exchange") -> None:
        """Refuses the request. Its client would not see the answer before it has sent all, within reason."""
        ex.check = None
        ex.discard()
        self._drained(ex)

    def _drained(self, ex: "Exchange") -> None:
        if self._verdict is None:
            return
        if ex.body_complete or max(ex.bytes_in, ex.head.content_length or 0) > DISCARDED_BYTES:
            self._failed(ex, *self._verdict)
        else:
            ex.on_body = self._drained


def is_json(content_type: bytes) -> bool:
    """Returns whether the body of a request is read as JSON, by its Content-Type."""
    return content_type == b"application/json" or _json(content_type) is not None


def queried_models(target: bytes) -> list[str]:
    """Returns the values of ``model`` in a request target's query."""
    query = target.partition(b"?")[2]
    pairs = [pair.partition(b"=") for pair in query.split(b"&")]
    return [
        unquote_plus(value.decode("latin-1"))
        for key, _, value in pairs
        if unquote_plus(key.decode("latin-1")) == "model"
    ]


def _unreadable(head: AnyRequestHead, content_type: bytes | None) -> str | None:
    """Returns the reason for which a body cannot be read for its model; None if it can be read."""
    fields = head.received_fields().lower()
    if b"content-encoding:" in fields and any(map(_is_coding, _codings(fields))):
        return f"the body is compressed, its model cannot be read: {ELSEWHERE}"
    if fields.count(b"content-type:") > 1 and len(_content_types(fields)) > 1:
        return "the request has several Content-Type fields"
    for named in () if content_type is None or b";" not in content_type else _charsets(content_type):
        if named.strip(b" \t").lower() not in _UTF_8:
            return f"the body is said to be in {named[:40].decode('latin-1')!r}: send UTF-8"
    return None


def _is_coding(value: bytes) -> bool:
    return value.strip(b" \t") not in (b"", b"identity")
