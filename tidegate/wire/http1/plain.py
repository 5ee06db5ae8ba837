"""What most request heads look like, as one regular expression.

The general way (``head.py``) validates a head, then searches it for the fields that mean something. Nearly every
request has of those only Host, Content-Length and ``traceparent`` in their usual shape and in any order, and between
gateway and queue_proxy our own fields in the one order in which we write them. Such a head is read here in one pass
that validates and finds at once: half of the time. A head that differs in anything does not match and goes the general
way; on what matches here both ways agree, and a test compares them.

The pattern ends before the empty line, which the caller checks: so it always matches as far as it can and never tries
again, and a head that is not plain has cost no more than the way to its first unusual line.

Nothing that decides about a request can hide in a head of this shape: the lines between the named ones can only begin
with what :func:`_other_line` lists, and no such name means anything to us.
"""

import re
from functools import lru_cache
from typing import Final

from tidegate.wire.http1 import grammar

_LINE_END: Final = rb"[ -~]*+\r\n"
"""The rest of a line in printable ASCII: one range is checked in half of the time of the grammar's three, and a value
with a TAB or a byte above 127 goes the general way."""
TRACE: Final = rb"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}"
_TOKEN_LINE: Final = rb"tidegate-token: ([!-~]{1,200})\r\n"


def _other_line() -> bytes:
    """A field line that means nothing to us, by how its name begins; the commonest first, one with a letter of its own
    last. Probes reach a queue_proxy as requests of the agents ``kube-probe`` and ``Knative-..``: they are not plain."""
    beginnings = (
        rb"[ABDJL-OQRSVWYZabdjl-oqrsvwyz]",  # Accept, Authorization, Origin, Referer, Sec-..: no name we know
        rb"[Uu]ser-[Aa]gent:(?![\t ]*+[Kk])",
        rb"[Cc]ontent-[TtEeDd]",  # -Type, -Encoding, -Disposition
        rb"[Xx]-[A-EG-Za-eg-z]",  # not X-Forwarded
        rb"[Cc]ookie:",
        rb"[Cc]ache-",
        rb"[Tt]racestate:",
        rb"[Pp]r[ai]",  # Pragma, Priority
        rb"[Ii][fd]",  # If-.., Idempotency-Key
        rb"[Ee]lastic",
    )
    rest = grammar.TCHAR + rb"*+:" + _LINE_END
    return b"|".join(beginning + (_LINE_END if b":" in beginning else rest) for beginning in beginnings)


FEWEST_HEADERS: Final = 20
"""A smaller limit is not worth a pattern."""
_NAMED_LINES: Final = 14
"""At most so many lines of a plain head are named ones."""


@lru_cache(maxsize=16)
def plain_request(headers: int, *, internal: bool) -> re.Pattern[bytes]:
    """The pattern of a plain head with at most ``headers`` fields (FEWEST_HEADERS or more).

    Groups: 1 method, 2 target, 3 fields with a CRLF before the first and after each; the named lines, three at most:
    4, 8, 11 Host, 5, 9, 12 ``traceparent``, 6, 10, 13 Content-Length; 7 a ``Connection: keep-alive`` line behind the
    first of them (the last such line). Whether one of them is there twice, or Host not at all, is the caller's to see.

    ``internal``: the peer may be a gateway of ours. Then also 14 the line with the token, 15 the token, 16 timeout,
    17 batch, 18 the lines of credit and want (may be empty), 19 credit, 20 want, 21 ``x-forwarded-proto`` and
    22 ``x-forwarded-host`` lines, 23 a ``traceparent`` that the gateway made; 14 is None for everybody else.

    Raises RuntimeError where this interpreter's regular expressions misjudge a sample.
    """
    left = headers - _NAMED_LINES
    first = left // 10  # Most name Host at once, or soon.
    most = b"{0,%d}" % ((left - first) // (4 if internal else 3))
    others = b"(?:" + _other_line() + b")" + most
    with_keep_alive = b"(?:" + _other_line() + rb"|([Cc]onnection: [Kk]eep-[Aa]live\r\n))" + most
    named = (
        rb"(?:[Hh]ost: ([0-9A-Za-z\-._~]{1,255}(?::[0-9]{1,5})?)|[Tt]raceparent: (" + TRACE + rb")"
        rb"|[Cc]ontent-[Ll]ength: ([0-9]{1,9}))\r\n"
    )
    pattern = re.compile(
        rb"(GET|POST|PUT|HEAD|DELETE|PATCH|OPTIONS) (/" + grammar.TARGET + rb"*+) HTTP/1\.1(\r\n"
        rb"(?:"
        + _other_line()
        + rb"){0,%d}" % first
        + (rb"(?:" + named + with_keep_alive + rb")?")
        + (rb"(?:" + named + others + rb")?") * 2
        + (_ours(others) if internal else b"")
        + rb")"
    )
    _test(pattern)
    return pattern


def _ours(others: bytes) -> bytes:
    """What a gateway adds behind the client's fields, in its order (``tidegate.gateway.chain``, ``aio.forwarding``)."""
    return (
        rb"(?:(" + _TOKEN_LINE + rb")"
        rb"tidegate-timeout-ms: ([0-9]{1,12})\r\n"
        rb"tidegate-batch-size: ([0-9]{1,9})\r\n"
        rb"((?:tidegate-credit: ([0-9]{1,18})\r\n)?(?:tidegate-want: ([0-9 ]{1,120})\r\n)?)"
        + others
        + rb"(?:x-forwarded-for: "
        + _LINE_END
        + rb"forwarded: "
        + _LINE_END
        + rb")?via: "
        + _LINE_END
        + rb"(x-forwarded-proto: "
        + _LINE_END
        + rb")?(x-forwarded-host: "
        + _LINE_END
        + rb")?(?:traceparent: ("
        + TRACE
        + rb")\r\n)?)?"
    )


def _test(pattern: re.Pattern[bytes]) -> None:
    """Some releases of Python have broken repeats; what they would do to a head must not be found out in service."""
    sample = b"PUT /a HTTP/1.1\r\nHost: a:1\r\nAccept: */*\r\nContent-Length: 3\r\nX-A: b\r\n\r\nabc"
    match = pattern.match(sample)
    if match is None or match.end() != len(sample) - 5 or match.group(1, 2, 4, 10) != (b"PUT", b"/a", b"a:1", b"3"):
        raise RuntimeError("the regular expressions of this Python misjudge a plain request")
    for bad in (b"Transfer-Encoding: chunked", b" fold", b"X-A: \x00"):
        match = pattern.match(sample.replace(b"X-A: b", bad))
        if match is None or match.end() != sample.index(b"X-A"):
            raise RuntimeError(f"the regular expressions of this Python take {bad!r} for plain")
