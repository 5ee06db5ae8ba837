"""Request heads: one strict bytes regex per head, then one look at the few fields that matter.

The header block is not split: it is validated as a whole, and its lower-case copy is searched once for the names that
matter for framing, routing and forwarding. The fields to forward are one slice of it. Requests of the most common shape
are read by one regex alone (``plain.py``). Peer data never raises: the parser returns :class:`Rejected`.
"""

import re
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple, final

from tidegate.headers import BATCH_SIZE, INTERNAL_PREFIX, KEPT_FROM_CLIENTS, SHADOW, TIMEOUT_MS
from tidegate.wire.http1 import grammar
from tidegate.wire.http1.fields import (
    FORWARDING,
    NEVER_LISTED,
    Fields,
    Rejected,
    connection_options,
    read_length,
    request_specials,
    without_fields,
    without_internal,
)
from tidegate.wire.http1.grammar import SAMPLED, UNSAMPLED
from tidegate.wire.http1.plain import MIN_HEADERS, plain_request

_LOOKED_FOR = frozenset(
    {b"grpc-timeout", b"inference-header-content-length", b"k-network-probe", b"k-network-hash", b"prefer"}
)
"""Fields that apps look up in every request and few requests have: found together with the special ones."""
_ALWAYS_PASSING = _LOOKED_FOR | {b"host", b"content-length", b"traceparent", b"user-agent"}
_MODEL_MAY_SEE = frozenset({TIMEOUT_MS, BATCH_SIZE, SHADOW})


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadRules:
    """Limits of a head, and the fields that are forwarded."""

    head_bytes: int = 16 * 1024
    headers: int = 100
    target_bytes: int = 8 * 1024
    front_door: bool = True
    """True if peers are untrusted: ``tidegate-`` fields outside KEPT_FROM_CLIENTS are removed and invisible."""
    trusted: bool = False
    """True if the peer's forwarding fields are kept."""
    upgrades: frozenset[bytes] = frozenset({b"websocket"})
    passing: frozenset[bytes] = field(init=False, default=frozenset())
    """Special fields that are forwarded as received."""
    safe_bytes: int = field(init=False, default=0)
    """A head of at most this many bytes breaks no limit, the count of fields included: no field has less than 4 bytes
    (``a:`` CRLF)."""
    plain: Callable[[bytes, int], re.Match[bytes] | None] = field(init=False, repr=False)
    """Matches a plain head within the limit of headers."""
    plain_bytes: int = field(init=False, default=0)
    """A plain head of at most this many bytes breaks no limit."""

    def __post_init__(self) -> None:
        internal = KEPT_FROM_CLIENTS if self.front_door else _MODEL_MAY_SEE
        is_of_replica = self.trusted and not self.front_door  # The peer may be a gateway of this deployment.
        pattern = plain_request(max(self.headers, MIN_HEADERS), internal=is_of_replica)
        object.__setattr__(self, "plain", pattern.match)
        if self.headers >= MIN_HEADERS:
            object.__setattr__(self, "plain_bytes", min(self.head_bytes, self.target_bytes) - 2)
        passing = _ALWAYS_PASSING | internal | (FORWARDING if self.trusted else frozenset())
        object.__setattr__(self, "passing", passing)
        object.__setattr__(self, "safe_bytes", min(self.head_bytes, self.target_bytes, 4 * self.headers))


_SLASH = 0x2F
"""As a whole number."""
_ODD_DIGITS = frozenset(b"13579bdf")
_REFUSED_METHODS = frozenset({b"CONNECT", b"TRACE"})
_ONCE = frozenset({b"host", b"content-length", b"transfer-encoding", b"expect", b"upgrade"})


_request = grammar.REQUEST.match
_traceparent = grammar.TRACEPARENT.fullmatch


class Internal(NamedTuple):
    """The fields of a gateway's request, as received."""

    token: bytes
    timeout_ms: bytes
    """1-12 digits."""
    batch_size: bytes
    """1-9 digits."""
    credit: bytes | None
    """1-18 digits."""
    want: bytes | None


@final
class RequestHead(Fields):
    """A parsed request head."""

    __slots__ = (
        "_end",
        "_places",
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
    """Position behind the head in the parsed bytes."""
    authority: bytes
    """Host with port, lower case; b"" for HTTP/1.0 without Host."""
    host: bytes
    """Host without port, lower case."""
    version_minor: int
    content_length: int | None
    chunked: bool
    keep_alive: bool
    """True if the client wants the connection to stay open."""
    expect_continue: bool
    upgrade: bytes | None
    """The protocol token of an acceptable Upgrade request."""
    traced: int
    """Not 0 if a valid ``traceparent`` is among the fields: ``SAMPLED`` or ``UNSAMPLED`` (``grammar.py``)."""
    names_host: bool
    """True if a trusted peer's ``x-forwarded-host`` is among the fields."""
    names_proto: bool
    """True if a trusted peer's ``x-forwarded-proto`` is among the fields."""
    plain: bool
    """True for most requests: of the fields with a meaning here or for apps only Host, Content-Length, ``traceparent``
    and a ``Connection: keep-alive`` are present. So there is no upgrade, no expectation, no field of ``_LOOKED_FOR``,
    no ``tidegate-`` field, no probe's agent."""
    internal: "Internal | None"
    """The fields of a gateway in their usual form; None if they must be looked up with ``get``. They prove nothing:
    check the token."""

    @property
    def path(self) -> bytes:
        """The target before ``?``."""
        return self.target.partition(b"?")[0]

    def trace_fields(self) -> tuple[bytes, bytes]:
        """Returns its valid ``traceparent``, and its ``tracestate``; b"" without one."""
        places = self._places
        if places is None or b"tracestate" in places:
            return self.get(b"traceparent") or b"", self.get(b"tracestate") or b""
        return self._original[places[b"traceparent"]], b""

    def take_trace(self) -> None:
        """Removes its ``traceparent``: the application adds another one to what is forwarded."""
        place = None if self._places is None or self._block is not self._original else self._places.get(b"traceparent")
        if place is None:
            self.drop(b"traceparent")
        else:  # A tenth of the time.
            block = self._original
            self._block = block[: block.rfind(b"\n", 0, place.start)] + block[block.find(b"\n", place.stop) :]
        self.traced = UNSAMPLED

    def renew_parent(self, parent: bytes) -> bool:
        """Replaces the end of its ``traceparent``: the 16 digits of the parent, ``-`` and those of the flags.
        Returns False if there is none of version 00 at a known place: then it is removed, as by ``take_trace``."""
        block, places = self._original, self._places
        if places is None or self._block is not block or b"traceparent" not in places:
            if self.traced:
                self.take_trace()
            self.traced = UNSAMPLED
            return False
        stop = places[b"traceparent"].stop  # A template has them of version 00 alone.
        self._block = block[: stop - len(parent)] + parent + block[stop:]
        return True

    def without_trace(self) -> "RequestHead":
        """Returns a copy that is forwarded without a ``traceparent``."""
        copied = copy(self)
        copied.take_trace()
        return copied

    def __repr__(self) -> str:
        return f"<RequestHead {self.method!r} {self.target!r} at {self.host!r}>"


def _flag(trace: bytes) -> int:
    """Returns whether a valid ``traceparent`` is sampled: the last digit of its flags is odd. Later versions may have
    more behind it."""
    return SAMPLED if trace[54] in _ODD_DIGITS else UNSAMPLED


@lru_cache(maxsize=4096)
def _host_of(authority: bytes) -> bytes | None:
    """Returns the host without port of a lower-case Host value, or None if it is not ``uri-host [":" port]``."""
    match = grammar.HOST.fullmatch(authority)
    return match[1] if match is not None else None


def parse_request(data: bytes, at: int, rules: HeadRules) -> RequestHead | Rejected | None:
    """Returns the head that begins at ``data[at]``, or None if no whole head matches there.

    Whether the bytes may still become a head is checked by ``partial.check_partial``.
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
        # One of them is present twice:
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
    trace = trace or trace2 or trace3
    head.traced = 0 if trace is None else _flag(trace)
    head._end = end + 2
    head._block = head._original = block
    head._lower = head._values = head._places = head.upgrade = head.internal = None
    head.version_minor = 1
    head.keep_alive = head.plain = True
    head.chunked = head.expect_continue = head.names_host = head.names_proto = False
    if ours and ours[0] is not None:
        if head.traced and ours[-1] is not None:
            return parse_any_request(data, at, rules)
        _read_ours(head, match, ours)
    if kept_alive is not None:
        head._block = without_fields(head._block, head._block.lower(), (b"connection",))
    return head


def _read_ours(head: RequestHead, match: re.Match[bytes], ours: list[bytes]) -> None:
    """Reads a gateway's own fields, and sets the block without those that the model server may not see."""
    _, token, timeout, batch, _, credit, want, proto_line, host_line, trace = ours
    head.plain = False
    head.internal = Internal(token, timeout, batch, credit, want)
    head.traced = _flag(trace) if trace else head.traced
    head.names_proto = proto_line is not None
    head.names_host = host_line is not None
    start = match.start(3)
    token_from, token_to = match.span(14)
    slots_from, slots_to = match.span(18)
    block = head._block
    head._block = block[: token_from - start] + block[token_to - start : slots_from - start] + block[slots_to - start :]


@lru_cache(maxsize=4096)
def _plain_host(given: bytes) -> tuple[bytes, bytes]:
    """Returns authority and host of a plain Host field."""
    authority = given.lower()
    return authority, authority.partition(b":")[0]


def parse_any_request(data: bytes, at: int, rules: HeadRules) -> RequestHead | Rejected | None:
    """Parses as :func:`parse_request`: the general parser for every head."""
    match = _request(data, at)
    if match is None:
        return None
    head = RequestHead()
    head.method, head.target, minor, block = match.groups()
    head._end = end = match.end()
    if end - at > rules.safe_bytes and (rejected := _too_large(end - at, block, head.target, rules)) is not None:
        return rejected
    rejected = None
    head.version_minor = 1
    head.keep_alive = True
    head._block = head._original = block
    head._lower = lower = block.lower()
    head.chunked = head.expect_continue = head.names_host = head.names_proto = False
    head.traced = 0
    head._places = head.upgrade = head.internal = None
    found = request_specials(lower)
    head._values = values = dict(found)
    plain = 1
    if (value := values.get(b"content-length")) is not None:
        plain += 1
        head.content_length = length = int(value) if len(value) < 10 and value.isdigit() else read_length(value)
        if length is None:
            return Rejected(400, "invalid Content-Length")
    else:
        head.content_length = None
    value = values.get(b"traceparent")  # In lower case; with capitals as received it is none.
    if value is not None and _traceparent(value := value.rstrip(b" \t")) and block.find(value) >= 0:
        plain += 1
        head.traced = _flag(value)
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
        rejected = _unusual_target(head, authority)
        plain = 0
    else:
        head.authority, head.host = authority, host
    head.plain = plain == len(found)
    if rejected is None and not head.plain:
        rejected = _check_specials(head, found, values, rules)
    return head if rejected is None else rejected


def _too_large(size: int, block: bytes, target: bytes, rules: HeadRules) -> Rejected | None:
    if len(target) > rules.target_bytes:
        return Rejected(414, "target too long")
    if size > rules.head_bytes or block.count(b"\n") > rules.headers + 1:
        return Rejected(431, "head too large")
    return None


def _unusual_target(head: RequestHead, given: bytes | None) -> Rejected | None:
    """Handles absolute-form, ``*``, no Host, refused methods, Host with trailing white space, and an invalid Host."""
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
        # HTTP/1.0 may omit Host; the forwarded request is 1.1 and must not (RFC 9112 section 3.2).
        head._block = b"\r\nhost: localhost" + without_fields(head._block, head._block.lower(), (b"host",))
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
    without = without_fields(head._block, head._block.lower(), (b"host",))
    head._block = b"\r\nhost: %b%b" % (authority, without)
    return None


def _check_specials(
    head: RequestHead, found: list[tuple[bytes, bytes]], values: dict[bytes, bytes], rules: HeadRules
) -> Rejected | None:
    """Handles the fields that not every request has: framing by chunks, connection options, forwarding, internal
    names."""
    if len(values) != len(found):
        names = [name for name, _ in found]
        for name in _ONCE:
            if names.count(name) > 1:
                return Rejected(400, f"more than one {name.decode()} field")
        if names.count(b"traceparent") > 1:
            head.traced = 0  # Several count as none and are replaced (W3C Trace Context, section 3.2).
        head._values = values = dict(reversed(found))  # The first of each counts.
    strip = values.keys() - rules.passing
    if not head.traced and b"traceparent" in values:
        strip |= {b"traceparent", b"tracestate"}  # The state belongs to the trace that cannot be read.
    if rules.trusted:
        head.names_host = b"x-forwarded-host" in values
        head.names_proto = b"x-forwarded-proto" in values
    tokens: set[bytes] = set()
    if b"connection" in values and (
        values[b"connection"] != b"keep-alive" or len(values) != len(found) or not head.version_minor
    ):
        tokens = connection_options(found)
        strip |= tokens - NEVER_LISTED
        head.keep_alive = b"close" not in tokens and (head.version_minor > 0 or b"keep-alive" in tokens)
    if b"transfer-encoding" in values or b"expect" in values:
        rejected = _framing(head, values)
        if rejected is not None:
            return rejected
    if b"upgrade" in values:
        _check_upgrade(head, values[b"upgrade"].strip(b" \t"), tokens, rules)
    if strip:
        block = head._block
        lower = head._in_lower_case() if block is head._original else block.lower()
        once = len(values) == len(found)
        head._block = (without_internal(block, strip) if once else None) or without_fields(block, lower, strip)
        if rules.front_door:
            for name in strip:
                if name.startswith(INTERNAL_PREFIX):
                    del values[name]
    return None


def _framing(head: RequestHead, values: dict[bytes, bytes]) -> Rejected | None:
    """Checks Transfer-Encoding and Expect; both fields are stripped, and written again if they apply."""
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
    """Returns whether the field is a well-formed list that ends in ``chunked`` after a coding that is not implemented
    here."""
    codings = [item.strip(b" \t") for item in coding.split(b",")]
    return (
        len(codings) > 1
        and codings[-1] == b"chunked"
        and b"chunked" not in codings[:-1]
        and all(grammar.TOKEN.fullmatch(item) for item in codings)
    )


def _check_upgrade(head: RequestHead, protocol: bytes, tokens: set[bytes], rules: HeadRules) -> None:
    """Accepts GET with ``Connection: upgrade`` and one allowed protocol; any other request is a plain one."""
    if (
        head.method == b"GET"
        and head.version_minor
        and b"upgrade" in tokens
        and protocol in rules.upgrades
        and not head.chunked
        and not head.content_length
    ):
        head.upgrade = protocol
