"""The most common shape of request heads, as one regular expression.

The general parser (``request_head.py``) validates a head, then searches it for the special fields. Of these nearly
every request has only Host, Content-Length and ``traceparent``, in their usual shape and in any order, and between
gateway and queue_proxy Tidegate's own fields in the one order in which the gateway writes them. Such a head is read
here in one pass that validates and finds at once, in half of the time. A head that differs in anything does not match
and goes to the general parser. On heads that match here both agree; a test compares them.

The pattern ends before the empty line, which the caller checks: so it always matches as far as it can and never
backtracks, and a head that is not plain has cost no more than the way to its first unusual line.

No field that matters to a request can hide in a head of this shape: the lines between the named ones can only begin
with the texts in :func:`_other_line`, and no name with such a beginning has a meaning here.
"""

import re
from functools import lru_cache
from typing import Final

from tidegate.wire.http1 import grammar

_LINE_END: Final = rb"[ -~]*+\r\n"
"""The rest of a line in printable ASCII. One range is checked in half of the time of the grammar's three; a value with
a TAB or a byte above 127 goes to the general parser."""
TRACE: Final = rb"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}"
_TOKEN_LINE: Final = rb"tidegate-token: ([!-~]{1,200})\r\n"


def _other_line() -> bytes:
    """Returns the pattern of a field line without a meaning here, by the beginning of its name. The most common ones
    come first, one with a letter of its own last. Probes reach a queue_proxy as requests of the agents ``kube-probe``
    and ``Knative-..``: they are not plain."""
    beginnings = (
        rb"[ABDJL-OQRSVWYZabdjl-oqrsvwyz]",  # Accept, Authorization, Origin, Referer, Sec-..: no known name
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


MIN_HEADERS: Final = 20
"""For a smaller limit a pattern does not pay."""
_NAMED_LINES: Final = 14
"""Maximum named lines of a plain head."""


@lru_cache(maxsize=16)
def plain_request(headers: int, *, internal: bool) -> re.Pattern[bytes]:
    """Returns the pattern of a plain head with at most ``headers`` fields (MIN_HEADERS or more).

    Groups: 1 method, 2 target, 3 fields with a CRLF before the first and after each; the named lines, three at most: 4,
    8, 11 Host, 5, 9, 12 ``traceparent``, 6, 10, 13 Content-Length; 7 a ``Connection: keep-alive`` line behind the first
    of them (the last such line). The caller checks that none of them is there twice, and that Host is present.

    ``internal``: the peer may be a gateway of this deployment. Then also 14 the line with the token, 15 the token, 16
    timeout, 17 batch, 18 the lines of credit and want (may be empty), 19 credit, 20 want, 21 ``x-forwarded-proto`` and
    22 ``x-forwarded-host`` lines, 23 a ``traceparent`` that the gateway made; 14 has no value for all other peers.

    Raises RuntimeError if this interpreter's regular expressions misjudge a sample.
    """
    left = headers - _NAMED_LINES
    first = left // 10  # Most heads have Host first, or early.
    repeat = b"{0,%d}" % ((left - first) // (4 if internal else 3))
    others = b"(?:" + _other_line() + b")" + repeat
    with_keep_alive = b"(?:" + _other_line() + rb"|([Cc]onnection: [Kk]eep-[Aa]live\r\n))" + repeat
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
    """Returns the pattern of the lines that a gateway adds behind the client's fields, in its order
    (``tidegate.gateway.chain``, ``aio.proxy.forwarding``)."""
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
    """Checks a pattern on samples: some releases of Python have broken repeats, and their effect must not be found out
    in service."""
    sample = b"PUT /a HTTP/1.1\r\nHost: a:1\r\nAccept: */*\r\nContent-Length: 3\r\nX-A: b\r\n\r\nabc"
    match = pattern.match(sample)
    if match is None or match.end() != len(sample) - 5 or match.group(1, 2, 4, 10) != (b"PUT", b"/a", b"a:1", b"3"):
        raise RuntimeError("the regular expressions of this Python misjudge a plain request")
    for unusual in (b"Transfer-Encoding: chunked", b" fold", b"X-A: \x00"):
        match = pattern.match(sample.replace(b"X-A: b", unusual))
        if match is None or match.end() != sample.index(b"X-A"):
            raise RuntimeError(f"the regular expressions of this Python take {unusual!r} for plain")
