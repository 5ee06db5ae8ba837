"""Request and response heads: one strict bytes regex per head, then one look at the few fields that matter.

The header block is not taken apart: it is validated as a whole, its lower-case copy is searched once for the names
that decide about framing, routing and forwarding, and what may pass is forwarded as one slice. Requests of the
commonest shape are read by one regex alone (``plain.py``). Peer data never raises; it returns :class:`Rejected`.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import ClassVar, NamedTuple, final

from tidegate.headers import BATCH_SIZE, INTERNAL_PREFIX, KEPT_FROM_CLIENTS, SHADOW, TIMEOUT_MS
from tidegate.wire.http1 import grammar
from tidegate.wire.http1.plain import FEWEST_HEADERS, plain_request


@final
class Rejected:
    """Bytes that are refused: the status to answer with (502 for a response) and why."""

    __slots__ = ("status", "why")

    def __init__(self, status: int, why: str) -> None:
        self.status = status
        self.why = why

    def __repr__(self) -> str:
        return f"<Bad {self.status}: {self.why}>"


_FORWARDING = frozenset({b"forwarded", b"x-forwarded-for", b"x-forwarded-proto", b"x-forwarded-host"})
_LOOKED_FOR = frozenset({b"grpc-timeout", b"inference-header-content-length", b"k-network-probe", b"k-network-hash"})
"""Fields that apps ask every request for and few requests have: found with the special ones."""
_ALWAYS_PASSING = _LOOKED_FOR | {b"host", b"content-length", b"traceparent", b"user-agent"}
_MODEL_MAY_SEE = frozenset({TIMEOUT_MS, BATCH_SIZE, SHADOW})


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadRules:
    """What a head may be, and which of its fields pass."""

    head_bytes: int = 16 * 1024
    headers: int = 100
    target_bytes: int = 8 * 1024
    front_door: bool = True
    """Peers are strangers: ``tidegate-`` fields outside KEPT_FROM_CLIENTS are removed and invisible."""
    trusted: bool = False
    """The peer's forwarding fields are kept."""
    upgrades: frozenset[bytes] = frozenset({b"websocket"})
    passing: frozenset[bytes] = field(init=False, default=frozenset())
    """Special fields that are forwarded as they came."""
    surely_small: int = field(init=False, default=0)
    """A head of so few bytes breaks no limit, counting included: no field has less than 4 bytes (``a:`` CRLF)."""
    plain: Callable[[bytes, int], re.Match[bytes] | None] = field(init=False, repr=False)
    """Matches a plain head within the limit of headers."""
    plain_bytes: int = field(init=False, default=0)
    """So long a plain head may be without breaking a limit."""

    def __post_init__(self) -> None:
        internal = KEPT_FROM_CLIENTS if self.front_door else _MODEL_MAY_SEE
        is_of_replica = self.trusted and not self.front_door  # The peer may be a gateway of this deployment.
        pattern = plain_request(max(self.headers, FEWEST_HEADERS), internal=is_of_replica)
        object.__setattr__(self, "plain", pattern.match)
        if self.headers >= FEWEST_HEADERS:
            object.__setattr__(self, "plain_bytes", min(self.head_bytes, self.target_bytes) - 2)
        passing = _ALWAYS_PASSING | internal | (_FORWARDING if self.trusted else frozenset())
        object.__setattr__(self, "passing", passing)
        object.__setattr__(self, "surely_small", min(self.head_bytes, self.target_bytes, 4 * self.headers))


_PLAIN_RESPONSE = frozenset({b"content-length", b"connection", b"keep-alive"})
_SLASH = 0x2F
_REFUSED_METHODS = frozenset({b"CONNECT", b"TRACE"})
_ONCE = frozenset({b"host", b"content-length", b"transfer-encoding", b"expect", b"upgrade"})
_NEVER_LISTED = _FORWARDING | {
    b"host",
    b"content-length",
    b"transfer-encoding",
    b"authorization",
    b"via",
    b"traceparent",
}
"""Fields that survive although a peer lists them in Connection."""

_specials: Callable[[bytes], list[tuple[bytes, bytes]]] = re.compile(
    rb"\n(host|content-length|transfer-encoding|connection|expect|upgrade|traceparent|keep-alive|proxy-connection|te"
    rb"|http2-settings|forwarded|x-forwarded-(?:for|proto|host)|tidegate-[^:]*+|grpc-timeout"
    rb"|inference-header-content-length|k-network-(?:probe|hash)|user-agent(?=:[\t ]*+k)):[\t ]*+([^\r]*+)"
).findall
_response_specials: Callable[[bytes], list[tuple[bytes, bytes]]] = re.compile(
    rb"\n(content-length|transfer-encoding|connection|keep-alive|proxy-connection|upgrade|te|tidegate-[^:]*+)"
    rb":[\t ]*+([^\r]*+)"
).findall

_request = grammar.REQUEST.match
_response = grammar.RESPONSE.match
_traceparent = grammar.TRACEPARENT.fullmatch


class _Fields:
    """A validated header block: look-up and removal. Every line is preceded and followed by CRLF."""

    __slots__ = ("_block", "_lower", "_original", "_values")

    _looked_for: ClassVar[frozenset[bytes]] = frozenset()
    """Names that are among the special fields if they are there at all."""
    _block: bytes
    """What is forwarded."""
    _original: bytes
    _lower: bytes | None
    """``_original`` in lower case; None: nobody has asked yet."""
    _values: dict[bytes, bytes] | None
    """The special fields and every ``tidegate-`` field that may be seen, values in lower case; None: as above."""

    @property
    def fields(self) -> bytes:
        """Header lines to pass on, each ``name: value CRLF``; hop-by-hop and stripped fields are gone."""
        return self._block[2:]

    def received_fields(self) -> bytes:
        """All header lines as received, each ``name: value CRLF`` (the commonest Connection line may be missing)."""
        return self._original[2:]

    def get(self, name: bytes) -> bytes | None:
        """Value of the first field ``name`` (given in lower case) without surrounding white space, or None.

        Sees the head as received, also fields that are not passed on.
        """
        values = self._values
        if values is None:  # a plain head of a request: every field that it has may be seen
            if name in self._looked_for:
                return None
        elif (value := values.get(name)) is None:
            if name in self._looked_for or name.startswith(INTERNAL_PREFIX):
                return None  # the answer for most requests, in a third of the time
        elif value.isdigit():
            return value  # as received: digits have no case
        lower = self._lower
        if lower is None:
            self._lower = lower = self._original.lower()
        at = lower.find(b"\n%b:" % name)
        if at < 0:
            return None
        at += len(name) + 2
        return self._original[at : lower.find(b"\r", at)].strip(b" \t")

    def control(self, name: bytes) -> bytes | None:
        """Value of a ``tidegate-`` field in lower case, None where it is not there: :meth:`get` in a fifth of the time.

        Numbers and words of the protocol between our own processes mean the same in lower case.
        """
        values = self._values
        if values is None:
            self._values = values = dict(reversed(_specials(self._in_lower_case())))
        return values.get(name)

    def mentions(self, text: bytes) -> bool:
        """Whether ``text`` (in lower case) stands anywhere in the fields: one quick no instead of several look-ups."""
        return self._in_lower_case().find(text) >= 0  # `in` first tries the bytes as a number: 0.2 us for an exception

    def _in_lower_case(self) -> bytes:
        lower = self._lower
        if lower is None:
            self._lower = lower = self._original.lower()
        return lower

    def drop(self, *names: bytes) -> None:
        """Removes fields (names in lower case) from what is passed on."""
        self._block = _without(self._block, self._block.lower(), names)


class Internal(NamedTuple):
    """The fields of a gateway's request, as they stand there."""

    token: bytes
    timeout_ms: bytes
    """1-12 digits."""
    batch_size: bytes
    """1-9 digits."""
    credit: bytes | None
    """1-18 digits."""
    want: bytes | None


@final
class RequestHead(_Fields):
    """A parsed request head."""

    __slots__ = (
        "_end",
        "authority",
        "chunked",
        "content_length",
        "expect_continue",
        "host",
        "internal",
        "keep_alive",
        "method",
        "names_host",
        "names_proto",
        "plain",
        "target",
        "traced",
        "upgrade",
        "version_minor",
    )

    _looked_for = _LOOKED_FOR
    method: bytes
    target: bytes
    """Origin-form (absolute-form is reduced to it) or ``*``; otherwise as received, never decoded."""
    _end: int
    """Position behind the head in what was parsed."""
    authority: bytes
    """Host with port, lower case; b"" for HTTP/1.0 without Host."""
    host: bytes
    """Host without port, lower case."""
    version_minor: int
    content_length: int | None
    chunked: bool
    keep_alive: bool
    """Whether the client wants the connection to stay open."""
    expect_continue: bool
    upgrade: bytes | None
    """The protocol token of an acceptable Upgrade request."""
    traced: bool
    """A valid ``traceparent`` is among the fields."""
    names_host: bool
    """A trusted peer's ``x-forwarded-host`` is among the fields."""
    names_proto: bool
    """A trusted peer's ``x-forwarded-proto`` is among the fields."""
    plain: bool
    """What most requests are: none of the fields that mean something to us or to apps but Host, Content-Length,
    ``traceparent`` and a ``Connection: keep-alive``; so no upgrade, no expectation, nothing of ``_LOOKED_FOR``, no
    ``tidegate-`` field, no probe's agent."""
    internal: "Internal | None"
    """What a gateway wrote in the usual way; None: look for it with ``get``. Nothing is proven by it: see the token."""

    @property
    def path(self) -> bytes:
        """The target before ``?``."""
        return self.target.partition(b"?")[0]

    def __repr__(self) -> str:
        return f"<RequestHead {self.method!r} {self.target!r} at {self.host!r}>"


@final
class ResponseHead(_Fields):
    """A parsed response head."""

    __slots__ = ("_end", "_kept", "chunked", "content_length", "keep_alive", "reason", "status", "upgrade")
    _end: int
    """Position behind the head in what was parsed."""
    _kept: bytes
    """``_block`` before an app dropped fields: heads are shared by equal answers."""

    status: int
    reason: bytes
    content_length: int | None
    chunked: bool
    keep_alive: bool
    """Whether the upstream keeps the connection open."""
    upgrade: bytes | None

    @property
    def plain(self) -> bool:
        """200, framed by length, keep-alive, nothing internal: what most answers are."""
        return (
            self.status == 200
            and self.content_length is not None
            and self.keep_alive
            and self._values is not None
            and self._values.keys() <= _PLAIN_RESPONSE
        )

    def restore(self) -> None:
        """Takes ``drop`` back: the next equal answer shares this head."""
        self._block = self._kept

    def __repr__(self) -> str:
        return f"<ResponseHead {self.status}>"


def _without(block: bytes, lower: bytes, names: tuple[bytes, ...] | set[bytes]) -> bytes:
    """``block`` without the fields ``names``; ``lower`` is its lower-case copy."""
    spans = []
    for name in names:
        key = b"\n%b:" % name
        at = lower.find(key)
        while at >= 0:
            end = lower.index(b"\n", at + 1)
            spans.append((at, end))
            at = lower.find(key, end)
    if not spans:
        return block
    spans.sort()
    pieces, position = [], 0
    for at, end in spans:
        pieces.append(block[position:at])
        position = end
    pieces.append(block[position:])
    return b"".join(pieces)


@lru_cache(maxsize=4096)
def _host_of(authority: bytes) -> bytes | None:
    """Host without port of a lower-case Host value; None when it is not ``uri-host [":" port]``."""
    match = grammar.HOST.fullmatch(authority)
    return match[1] if match is not None else None


def _length(value: bytes) -> int | None:
    """Content-Length: 1-18 ASCII digits; None otherwise."""
    value = value.strip(b" \t")
    return int(value) if value.isdigit() and len(value) <= 18 else None


def parse_request(data: bytes, at: int, rules: HeadRules) -> RequestHead | Rejected | None:
    """The head that begins at ``data[at]``; None: no whole head matches there.

    None says nothing about whether one may still come: see ``partial.check_partial``.
    """
    match = rules.plain(data, at)
    if match is None:
        return parse_any_request(data, at, rules)
    end = match.end()
    method, target, block, host, trace, length, kept_alive, host2, trace2, length2, host3, trace3, length3, *ours = (
        match.groups()
    )
    authority = host or host2 or host3
    if (
        not authority
        or data[end : end + 2] != b"\r\n"  # A slice: startswith with a position takes five times as long.
        or end - at > rules.plain_bytes
        # One of them twice:
        or ((host or host2) and host3)
        or (host and host2)
        or ((length or length2) and length3)
        or (length and length2)
        or ((trace or trace2) and trace3)
        or (trace and trace2)
    ):
        return parse_any_request(data, at, rules)
    length = length or length2 or length3
    head = RequestHead()
    head.method = method
    head.target = target
    head.content_length = None if length is None else int(length)
    head.authority, head.host = _plain_host(authority)
    head.traced = (trace or trace2 or trace3) is not None
    head._end = end + 2
    head._block = head._original = block
    head._lower = head._values = head.upgrade = head.internal = None
    head.version_minor = 1
    head.keep_alive = head.plain = True
    head.chunked = head.expect_continue = head.names_host = head.names_proto = False
    if ours and ours[0] is not None:
        if head.traced and ours[-1] is not None:
            return parse_any_request(data, at, rules)
        _read_ours(head, match, ours)
    if kept_alive is not None:
        head._block = _without(head._block, head._block.lower(), (b"connection",))
    return head


def _read_ours(head: RequestHead, match: re.Match[bytes], ours: list[bytes]) -> None:
    """A gateway's own fields: what they say, and the block without those that the model server may not see."""
    _, token, timeout, batch, _, credit, want, proto_line, host_line, trace = ours
    head.plain = False
    head.internal = Internal(token, timeout, batch, credit, want)
    head.traced = head.traced or trace is not None
    head.names_proto = proto_line is not None
    head.names_host = host_line is not None
    start = match.start(3)
    token_from, token_to = match.span(14)
    slots_from, slots_to = match.span(18)
    block = head._block
    head._block = block[: token_from - start] + block[token_to - start : slots_from - start] + block[slots_to - start :]


@lru_cache(maxsize=4096)
def _plain_host(given: bytes) -> tuple[bytes, bytes]:
    """Authority and host of a plain Host field."""
    authority = given.lower()
    return authority, authority.partition(b":")[0]


def parse_any_request(data: bytes, at: int, rules: HeadRules) -> RequestHead | Rejected | None:
    """As :func:`parse_request`, the general way for every head."""
    match = _request(data, at)
    if match is None:
        return None
    head = RequestHead()
    head.method, head.target, minor, block = match.groups()
    head._end = end = match.end()
    if end - at > rules.surely_small and (bad := _too_large(end - at, block, head.target, rules)) is not None:
        return bad
    bad = None
    head.version_minor = 1
    head.keep_alive = True
    head._block = head._original = block
    head._lower = lower = block.lower()
    head.chunked = head.expect_continue = head.traced = head.names_host = head.names_proto = False
    head.upgrade = head.internal = None
    found = _specials(lower)
    head._values = values = dict(found)
    plain = 1
    if (value := values.get(b"content-length")) is not None:
        plain += 1
        head.content_length = length = int(value) if len(value) < 10 and value.isdigit() else _length(value)
        if length is None:
            return Rejected(400, "invalid Content-Length")
    else:
        head.content_length = None
    if (value := values.get(b"traceparent")) is not None and _traceparent(value):
        plain += 1
        head.traced = True
    if minor == b"0":
        head.version_minor = 0
        head.keep_alive = False
    authority = values.get(b"host")
    if (
        authority is None
        or (host := _host_of(authority)) is None
        or head.target[0] != _SLASH
        or head.method in _REFUSED_METHODS
    ):
        bad = _unusual_target(head, authority)
        plain = 0
    else:
        head.authority, head.host = authority, host
    head.plain = plain == len(found)
    if bad is None and not head.plain:
        bad = _examine_rest(head, found, values, rules)
    return head if bad is None else bad


def _too_large(size: int, block: bytes, target: bytes, rules: HeadRules) -> Rejected | None:
    if len(target) > rules.target_bytes:
        return Rejected(414, "target too long")
    if size > rules.head_bytes or block.count(b"\n") > rules.headers + 1:
        return Rejected(431, "head too large")
    return None


def _unusual_target(head: RequestHead, given: bytes | None) -> Rejected | None:
    """Absolute-form, ``*``, no Host, refused methods, Host with trailing white space, invalid Host."""
    if head.method in _REFUSED_METHODS:
        return Rejected(405, "method not allowed")
    if given is None and head.version_minor:
        return Rejected(400, "Host missing")
    authority = b"" if given is None else given.strip(b" \t")
    named = _host_of(authority) if authority or head.version_minor else b""
    if named is None:
        return Rejected(400, "invalid Host")
    head.authority, head.host = authority, named
    if not authority:
        # HTTP/1.0 may omit Host, what we forward is 1.1 and must not (RFC 9112 section 3.2).
        head._block = b"\r\nhost: localhost" + _without(head._block, head._block.lower(), (b"host",))
    if head.target[0] == _SLASH:
        return None
    if head.target == b"*":
        return None if head.method == b"OPTIONS" else Rejected(400, "asterisk-form without OPTIONS")
    scheme, separator, rest = head.target.partition(b"://")
    if not separator or scheme.lower() not in (b"http", b"https"):
        return Rejected(400, "target is neither a path nor an http URI")
    cut = min((at for at in (rest.find(b"/"), rest.find(b"?")) if at >= 0), default=len(rest))
    authority = rest[:cut].lower()
    host = _host_of(authority)
    if host is None:
        return Rejected(400, "invalid authority")
    target = rest[cut:]
    head.target = target if target.startswith(b"/") else b"/" + target
    head.authority, head.host = authority, host
    without = _without(head._block, head._block.lower(), (b"host",))
    head._block = b"\r\nhost: %b%b" % (authority, without)
    return None


def _tokens(found: list[tuple[bytes, bytes]]) -> set[bytes]:
    """The options that all Connection fields list; what is no token is ignored."""
    tokens = {token.strip(b" \t") for name, value in found if name == b"connection" for token in value.split(b",")}
    return {token for token in tokens if grammar.TOKEN.fullmatch(token)}


def _examine_rest(
    head: RequestHead, found: list[tuple[bytes, bytes]], values: dict[bytes, bytes], rules: HeadRules
) -> Rejected | None:
    """The fields that not every request has: framing by chunks, connection options, forwarding, internal names."""
    if len(values) != len(found):
        names = [name for name, _ in found]
        for name in _ONCE:
            if names.count(name) > 1:
                return Rejected(400, f"more than one {name.decode()} field")
        if names.count(b"traceparent") > 1:
            head.traced = False  # Several are none (W3C Trace Context, section 3.2): they go, a new one is made.
        head._values = values = dict(reversed(found))  # the first of each counts
    strip = values.keys() - rules.passing
    if not head.traced and b"traceparent" in values:
        strip.add(b"traceparent")
    if rules.trusted:
        head.names_host = b"x-forwarded-host" in values
        head.names_proto = b"x-forwarded-proto" in values
    tokens: set[bytes] = set()
    if b"connection" in values and (
        values[b"connection"] != b"keep-alive" or len(values) != len(found) or not head.version_minor
    ):
        tokens = _tokens(found)
        strip |= tokens - _NEVER_LISTED
        head.keep_alive = b"close" not in tokens and (head.version_minor > 0 or b"keep-alive" in tokens)
    if b"transfer-encoding" in values or b"expect" in values:
        bad = _framing(head, values)
        if bad is not None:
            return bad
    if b"upgrade" in values:
        _consider_upgrade(head, values[b"upgrade"].strip(b" \t"), tokens, rules)
    if strip:
        block = head._block
        lower = head._in_lower_case() if block is head._original else block.lower()
        once = len(values) == len(found)
        head._block = (_without_internal(block, strip) if once else None) or _without(block, lower, strip)
        if rules.front_door:
            for name in strip:
                if name.startswith(INTERNAL_PREFIX):
                    del values[name]
    return None


def _without_internal(block: bytes, names: set[bytes]) -> bytes | None:
    """``block`` without the fields ``names``, each of which is there once, if they are just the internal ones and
    written in lower case, as a gateway does; None: they are not."""
    if not all(map(_is_internal, names)):
        return None
    without, count = _internal_lines(b"", block)
    return without if count == len(names) else None


_internal_lines = re.compile(rb"\r\ntidegate-(?!timeout-ms:|batch-size:|priority:)[^\r]*+").subn


def _is_internal(name: bytes) -> bool:
    return name.startswith(INTERNAL_PREFIX)


def _framing(head: RequestHead, values: dict[bytes, bytes]) -> Rejected | None:
    """Transfer-Encoding and Expect; both fields are stripped and written anew where they apply."""
    coding = values.get(b"transfer-encoding")
    if coding is not None:
        if coding.strip(b" \t") != b"chunked":
            return Rejected(501 if _foreign_coding(coding) else 400, "transfer coding other than chunked")
        if head.content_length is not None:
            return Rejected(400, "Content-Length beside Transfer-Encoding")
        if head.version_minor == 0:
            return Rejected(400, "Transfer-Encoding in HTTP/1.0")
        head.chunked = True
    expectation = values.get(b"expect")
    if expectation is not None and head.version_minor:
        if expectation.strip(b" \t") != b"100-continue":
            return Rejected(417, "unknown expectation")
        head.expect_continue = head.chunked or bool(head.content_length)
    return None


def _foreign_coding(coding: bytes) -> bool:
    """Whether the field is a well-formed list that ends in ``chunked`` after a coding that we do not implement."""
    codings = [item.strip(b" \t") for item in coding.split(b",")]
    return (
        len(codings) > 1
        and codings[-1] == b"chunked"
        and b"chunked" not in codings[:-1]
        and all(grammar.TOKEN.fullmatch(item) for item in codings)
    )


def _consider_upgrade(head: RequestHead, protocol: bytes, tokens: set[bytes], rules: HeadRules) -> None:
    """Accepts GET with ``Connection: upgrade`` and one allowed protocol; anything else is a plain request."""
    if (
        head.method == b"GET"
        and head.version_minor
        and b"upgrade" in tokens
        and protocol in rules.upgrades
        and not head.chunked
        and not head.content_length
    ):
        head.upgrade = protocol


def parse_response(data: bytes, at: int, head_bytes: int = 64 * 1024) -> ResponseHead | Rejected | None:
    """As :func:`parse_request`, for what an upstream sends. Every fault is a 502."""
    match = _response(data, at)
    if match is None:
        return None
    minor, status, reason, block = match.groups()
    head = ResponseHead()
    head._end = match.end()
    if head._end - at > head_bytes:
        return Rejected(502, "response head too large")
    head.status = int(status)
    head.reason = reason or b""
    head.keep_alive = minor == b"1"
    head.content_length = None
    head.chunked = False
    head.upgrade = None
    head._block = head._original = block
    head._lower = lower = block.lower()
    found = _response_specials(lower)
    head._values = dict(found)
    if len(found) == 1 and found[0][0] == b"content-length":
        head.content_length = length = _length(found[0][1])
        if length is None:
            return Rejected(502, "invalid Content-Length")
    elif found:
        bad = _examine_response(head, found, lower)
        if bad is not None:
            return bad
    head._kept = head._block
    return head


def _examine_response(head: ResponseHead, found: list[tuple[bytes, bytes]], lower: bytes) -> Rejected | None:
    head._values = values = dict(found)
    names = [name for name, _ in found]
    strip = set(values) - {b"content-length"}
    if (value := values.get(b"content-length")) is not None:
        head.content_length = length = _length(value)
        if length is None or names.count(b"content-length") > 1:
            return Rejected(502, "invalid Content-Length")
    if (value := values.get(b"transfer-encoding")) is not None:
        if value.strip(b" \t") != b"chunked" or names.count(b"transfer-encoding") > 1:
            return Rejected(502, "transfer coding other than chunked")
        if head.content_length is not None:
            return Rejected(502, "Content-Length beside Transfer-Encoding")
        head.chunked = True
    if b"connection" in values:
        tokens = _tokens(found)
        head.keep_alive = b"close" not in tokens and (head.keep_alive or b"keep-alive" in tokens)
        strip.update(tokens - _NEVER_LISTED)
        if b"upgrade" in tokens:
            head.upgrade = values.get(b"upgrade", b"").strip(b" \t") or None
    once = len(values) == len(found)
    head._block = (_without_internal(head._block, strip) if once else None) or _without(head._block, lower, strip)
    return None


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
        if (_request(sample) is not None) is not accepted:
            raise RuntimeError(f"the regular expressions of this Python misjudge {sample!r}")
    for (sample, _), block in zip(_SAMPLES, _FIELD_SAMPLES, strict=False):
        match = _request(sample)
        if match is None or match[4] != block:
            raise RuntimeError(f"the regular expressions of this Python return wrong groups for {sample!r}")
    response = _response(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nX: y\r\n\r\nok")
    if response is None or response.groups() != (b"1", b"200", b"OK", b"\r\nContent-Length: 2\r\nX: y\r\n"):
        raise RuntimeError("the regular expressions of this Python return wrong groups for a response")
