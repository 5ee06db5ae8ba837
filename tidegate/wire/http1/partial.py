"""Checks the beginning of a head that is not complete: garbage is refused at once, not at the head's time limit."""

from tidegate.wire.http1 import grammar
from tidegate.wire.http1.fields import Rejected
from tidegate.wire.http1.request_head import HeadRules


def check_partial(data: bytes, line: int, rules: HeadRules) -> Rejected | int:
    """Checks whether ``data``, not yet a whole head, may still become one.

    ``line`` is the start of the first unchecked line (0 at first). Returns the start of the first unfinished line,
    for the next call, or the refusal: garbage must not hang until the head timeout.
    """
    while (end := data.find(b"\r\n", line)) >= 0:
        end += 2
        if not line:
            rejected = _check_request_line(data[line:end], rules)
            if rejected is not None:
                return rejected
        elif not grammar.FIELD_LINE.fullmatch(data, line, end):
            # So is an empty line: it would have ended a head that matches.
            return Rejected(400, "malformed field")
        line = end
    if not line:
        if len(data) > rules.target_bytes + 64:
            return Rejected(414, "target too long")
        if not grammar.REQUEST_START.fullmatch(data, line):
            return Rejected(400, "not an HTTP request")
    elif not grammar.FIELD_START.fullmatch(data, line):
        return Rejected(400, "malformed field")
    if len(data) > rules.head_bytes:
        return Rejected(431, "head too large")
    return line


def _check_request_line(line: bytes, rules: HeadRules) -> Rejected | None:
    match = grammar.REQUEST_LINE.fullmatch(line)
    if match is None:
        return Rejected(400, "malformed request line")
    if len(match[2]) > rules.target_bytes:
        return Rejected(414, "target too long")
    if match[3] != b"1":
        return Rejected(505, "HTTP version not supported")
    return None


def check_partial_response(data: bytes, head_bytes: int = 64 * 1024) -> Rejected | None:
    """Returns None if ``data`` may still become a response head, else the refusal."""
    if len(data) > head_bytes:
        return Rejected(502, "response head too large")
    line, newline, rest = data.partition(b"\r\n")
    if not newline:
        return None if grammar.STATUS_START.fullmatch(data) else Rejected(502, "not an HTTP response")
    if b"\r\n\r\n" in data or rest.startswith(b"\r\n") or not grammar.RESPONSE.match(line + b"\r\n\r\n"):
        return Rejected(502, "malformed response head")
    return None
