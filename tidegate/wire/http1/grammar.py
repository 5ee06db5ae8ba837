"""The byte grammar of HTTP/1.1 (RFC 9110, RFC 9112) as strict regular expressions, with a self-test.

Quantifiers on character classes are possessive, so that failing input stays linear; quantifiers on groups are plain
``*``, because possessive groups match wrongly before CPython 3.11.5 (cpython issues 106052 and 100061).
"""

import re

TCHAR = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]"
VALUE = rb"[\t -~\x80-\xff]"
TARGET = rb"[!\"$-~]"
"""Visible ASCII without ``#``: a fragment is not part of a request target."""

FIELDS = rb"(\r\n(?:" + TCHAR + rb"++:" + VALUE + rb"*+\r\n)*)"
"""The CRLF before the first field, and every field with its own CRLF."""

REQUEST = re.compile(rb"(" + TCHAR + rb"{1,32}) (" + TARGET + rb"++) HTTP/1\.([0-9])" + FIELDS + rb"\r\n")
"""Groups: method, target, minor version, fields with the CRLF before the first and after each of them."""
RESPONSE = re.compile(rb"HTTP/1\.([01]) ([1-9][0-9][0-9])(?: (" + VALUE + rb"*+))?" + FIELDS + rb"\r\n")
"""Groups: minor version, status, reason (may be None), fields as in REQUEST."""

FIELD_LINE = re.compile(TCHAR + rb"++:" + VALUE + rb"*+\r\n")
FIELD_START = re.compile(rb"(?:" + TCHAR + rb"++(?::" + VALUE + rb"*+\r?)?|\r)?")
"""Possible beginnings of a field line, and of the empty line (``\\r``)."""
REQUEST_LINE = re.compile(rb"(" + TCHAR + rb"{1,32}) (" + TARGET + rb"++) HTTP/([0-9])\.([0-9])\r\n")


def _beginnings(literal: bytes, rest: bytes) -> bytes:
    """Returns a pattern for every beginning of ``literal``, and for all of it followed by ``rest``."""
    pattern = rest
    for byte in reversed(literal):
        pattern = rb"(?:" + re.escape(bytes([byte])) + pattern + rb")?"
    return pattern


_VERSION_START = _beginnings(b"HTTP/", rb"(?:[0-9](?:\.(?:[0-9]\r?)?)?)?")
REQUEST_START = re.compile(rb"(?:" + TCHAR + rb"{1,32}(?: (?:" + TARGET + rb"++(?: " + _VERSION_START + rb")?)?)?)?")
"""Possible beginnings of a request line."""
_STATUS = rb"(?:[01](?: (?:[1-9](?:[0-9](?:[0-9](?: " + VALUE + rb"*+)?\r?)?)?)?)?)?"
STATUS_START = re.compile(_beginnings(b"HTTP/1.", _STATUS))
"""Possible beginnings of a status line."""

HOST = re.compile(rb"(\[[0-9a-f:.]{2,45}\]|[0-9a-z\-._~!$&'()*+,;=%]{1,255})(?::[0-9]{0,5})?")
"""Lower-case host (group 1) and optional port."""
_TRACE = rb"-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}"
TRACEPARENT = re.compile(rb"00" + _TRACE + rb"|(?!00|ff)[0-9a-f]{2}" + _TRACE + rb"(?:-[!-~]*+)?")
"""W3C trace context: version 00 exactly, later versions may contain more."""
SAMPLED = 1
UNSAMPLED = 2
"""``AnyRequestHead.traced`` of a valid ``traceparent``, by its flag. HTTP/2's heads have ``True`` for both."""
TOKEN = re.compile(TCHAR + rb"{1,128}")
CHUNK_SIZE = re.compile(rb"([0-9A-Fa-f]{1,16})(?:[\t ]*+;[\t -~\x80-\xff]*+)?\r\n")
CHUNK_SIZE_START = re.compile(rb"[0-9A-Fa-f]{0,16}(?:[\t ]*+(?:;[\t -~\x80-\xff]*+)?)?\r?")

_SAMPLES = (
    (b"GET / HTTP/1.1\r\nHost: a\r\nX-A: b\r\nAccept: */*\r\n\r\n", True),
    (b"POST /v2/models/m/infer?x=%20 HTTP/1.1\r\nhost: a.example:80\r\ncontent-length: 3\r\n\r\nabc", True),
    (b"GET / HTTP/1.0\r\n\r\n", True),
    (b"GET / HTTP/1.1\r\nHost: a\r\nX A: b\r\n\r\n", False),
    (b"GET / HTTP/1.1\r\nHost: a\r\nX-A: b\nX-B: c\r\n\r\n", False),
    (b"GET / HTTP/1.1\r\nHost: a\r\n X-A: b\r\n\r\n", False),
    (b"GET / HTTP/1.1\r\nHost: a\r\nX-A: b\x00\r\n\r\n", False),
    (b"GET  / HTTP/1.1\r\nHost: a\r\n\r\n", False),
    (b"GET /#f HTTP/1.1\r\nHost: a\r\n\r\n", False),
)
_FIELD_SAMPLES = (
    b"\r\nHost: a\r\nX-A: b\r\nAccept: */*\r\n",
    b"\r\nhost: a.example:80\r\ncontent-length: 3\r\n",
    b"\r\n",
)


def self_test() -> None:
    """Checks the head grammar on this interpreter (some 3.11 releases have broken possessive groups).

    Raises RuntimeError naming the sample that failed.
    """
    for sample, accepted in _SAMPLES:
        if (REQUEST.match(sample) is not None) is not accepted:
            raise RuntimeError(f"the regular expressions of this Python misjudge {sample!r}")
    for (sample, _), block in zip(_SAMPLES, _FIELD_SAMPLES, strict=False):
        match = REQUEST.match(sample)
        if match is None or match[4] != block:
            raise RuntimeError(f"the regular expressions of this Python return wrong groups for {sample!r}")
    response = RESPONSE.match(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nX: y\r\n\r\nok")
    if response is None or response.groups() != (b"1", b"200", b"OK", b"\r\nContent-Length: 2\r\nX: y\r\n"):
        raise RuntimeError("the regular expressions of this Python return wrong groups for a response")
