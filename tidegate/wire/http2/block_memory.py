"""A cache of header blocks: fields and blocks are kept by their bytes.

Equal blocks and equal representations occur again and again on the connections of one listener, or to one upstream,
which share a :class:`Blocks`.
"""

import re
from collections.abc import Callable
from typing import Any, Final, Generic, TypeVar, final

from tidegate.wire.http1 import grammar
from tidegate.wire.http2.grpc_fields import is_grpc
from tidegate.wire.http2.hpack import STATIC
from tidegate.wire.http2.tails import ReadTail, Tail

_KEPT_ENTRIES: Final = 1024

REQUEST, RESPONSE = range(2)

_is_name = re.compile(rb"[!#$%&'*+\-.^_`|~0-9a-z]++").fullmatch
is_value = re.compile(rb"(?![\t ])" + grammar.VALUE + rb"*+(?<![\t ])").fullmatch
_is_method = grammar.TOKEN.fullmatch
_is_path = re.compile(rb"/" + grammar.TARGET + rb"*+").fullmatch
_is_scheme = re.compile(rb"[a-z][a-z0-9+\-.]{0,31}").fullmatch
_is_status = re.compile(rb"[1-5][0-9][0-9]").fullmatch
_CONNECTION_FIELDS: Final = frozenset(
    (b"connection", b"proxy-connection", b"keep-alive", b"transfer-encoding", b"upgrade", b"http2-settings")
)
_SINGLE: Final = frozenset((b"content-length", b"host"))
_MEANINGFUL: Final = _SINGLE | {b"grpc-status"}
LOOKED_AT: Final = _MEANINGFUL | {b"te", b"content-type"}
"""Fields that are not only forwarded: they are interpreted together with the whole of a block."""
MALFORMED: Final = "a malformed field"
_PSEUDO: Final = (frozenset((b":method", b":scheme", b":path", b":authority")), frozenset((b":status",)))

Field = tuple[bytes, bytes, bool, bytes, bytes]
"""Name, value, whether it is well-formed by itself, a representation with this meaning in any block, and its forwarded
form: b"" if the field is dropped."""
Name = tuple[bytes, bool, bool]
"""A field's name, whether it is a valid name, and whether fields of this name are dropped."""
Kept = TypeVar("Kept")


class Memory(Generic[Kept]):
    """A bounded cache that keeps an entry on its second occurrence: the first one is only noted, so that unique entries
    evict nothing."""

    __slots__ = ("_once", "known")

    def __init__(self) -> None:
        self.known: dict[bytes, Kept] = {}
        self._once: set[int] = set()

    def keep(self, key: bytes, value: Kept) -> None:
        """Keeps ``value`` if ``key`` has occurred before."""
        mark = hash(key)
        if mark in self._once:
            if len(self.known) >= _KEPT_ENTRIES:
                self.known.clear()
            self.known[key] = value
            return
        if len(self._once) >= 4 * _KEPT_ENTRIES:
            self._once.clear()
        self._once.add(mark)

    def __repr__(self) -> str:
        return f"<Memory {len(self.known)} kept>"


@final
class Block:
    """One header block, or trailers. Equal blocks share it: it is never changed, except for :attr:`memo`."""

    __slots__ = (
        "_first",
        "_values",
        "authority",
        "base",
        "content_length",
        "fault",
        "fields",
        "grpc_status",
        "host",
        "is_call",
        "is_large",
        "memo",
        "method",
        "outgoing",
        "path",
        "scheme",
        "size",
        "status",
        "tail",
        "writes",
    )

    def __init__(self) -> None:
        self.method = self.scheme = self.path = self.authority = self.host = b""
        """Authority and host (which has no port) in lower case."""
        self.status = 0
        self.content_length: int | None = None
        self.grpc_status: int | None = None
        self.is_call = False
        """True for a request that is a gRPC call."""
        self.fault = ""
        """Reason why it is malformed; the other attributes are then invalid."""
        self.is_large = False
        """True if its list is over the limit; the other attributes are then invalid, except :attr:`is_call` if that was
        seen before."""
        self.fields: list[Field] = []
        """All fields in order, without those of a :attr:`tail`."""
        self.size = 0
        """Size of the list, as the limit counts it."""
        self.tail: dict[bytes, bytes] | None = None
        """Tidegate's own fields at its end, if it was read in two parts."""
        self.outgoing = b""
        """Its fields as literals, without the dropped ones: the block to forward, to which own fields are appended."""
        self.memo: Any = None
        """Belongs to the driver: its results about this block (a route, the parts of the path)."""
        self.writes = False
        """True if it would write into a dynamic table with room: only without one it is identified by its bytes."""
        self._values: dict[bytes, bytes] = {}
        self.base: Block | None = None
        """The block that it begins with, if many blocks do and only short fields of their own follow."""
        self._first: dict[bytes, bytes] | None = None
        """The values of the fields of :attr:`base`: those count first."""

    def with_more(self, fields: list[Field]) -> "Block | None":
        """Returns this block with more fields behind it, without ``outgoing``. Returns None if they must be interpreted
        together."""
        if self.fault:
            return None
        made = Block()
        made.method, made.scheme, made.path, made.authority = self.method, self.scheme, self.path, self.authority
        made.host, made.is_call = self.host, self.is_call
        made.status, made.content_length, made.grpc_status = self.status, self.content_length, self.grpc_status
        first = made._first = self._values
        made.base = self
        values = made._values
        for name, value, is_sound, _, _ in fields:
            if not is_sound or name in LOOKED_AT:
                return None
            if name not in first and name not in values:
                values[name] = value
        return made

    def with_tail(self, tail: Tail) -> "Block | None":
        """Returns this block with a tail behind it, or None if they must be interpreted together."""
        first, values, more = self._first, self._values, tail.fields
        if self.fault or self.is_large or not more.keys().isdisjoint(values):
            return None
        made = Block()
        if first is None:
            made._first, made._values = values, more
        elif more.keys().isdisjoint(first):
            made._first, made._values = first, values | more
        else:
            return None
        made.method, made.scheme, made.path, made.authority = self.method, self.scheme, self.path, self.authority
        made.host, made.is_call = self.host, self.is_call
        made.status, made.content_length, made.grpc_status = self.status, self.content_length, self.grpc_status
        made.base, made.fields, made.tail = self, self.fields, more
        made.outgoing = self.outgoing + tail.outgoing
        return made

    def get(self, name: bytes) -> bytes | None:
        """Returns the value of the first field with this lower-case name, or None; not for pseudo-headers."""
        found = self._values.get(name)
        if found is None and self._first is not None:
            return self._first.get(name)
        return found

    def lacks(self, names: frozenset[bytes]) -> bool:
        """Returns whether none of these fields is present."""
        return names.isdisjoint(self._values) and (self._first is None or names.isdisjoint(self._first))

    @property
    def first(self) -> dict[bytes, bytes] | None:
        """The values of the fields of its :attr:`base`."""
        return self._first

    @property
    def own(self) -> dict[bytes, bytes]:
        """The values of the fields behind its :attr:`base`; read-only."""
        return self._values

    def values(self) -> dict[bytes, bytes]:
        """Returns the first value of each name."""
        return self._values if self._first is None else self._first | self._values

    def __repr__(self) -> str:
        what = self.fault or (
            f"{self.method.decode()} {self.path!r}" if self.method else str(self.status or "trailers")
        )
        return f"<Block {what}, {len(self._values)} fields>"


def drops_nothing(name: bytes) -> bool:
    """Forwards every field."""
    return False


class Blocks:
    """The cache that the connections of one listener, or to one upstream, share."""

    __slots__ = ("drops", "fields", "heads", "kind", "names", "read_tail", "static", "static_names", "trailers")

    def __init__(
        self, kind: int, drops: Callable[[bytes], bool] = drops_nothing, read_tail: ReadTail | None = None
    ) -> None:
        """``kind`` of the heads: REQUEST or RESPONSE. ``drops``: whether fields of a name are not forwarded.
        ``read_tail``: reads the fields that Tidegate's processes append to heads; it drops the same names."""
        self.read_tail = read_tail
        self.kind = kind
        self.drops = drops
        self.heads: Memory[Block] = Memory()
        self.trailers: Memory[Block] = Memory()
        self.fields: Memory[Field] = Memory()
        """Fields by representation: a representation is self-delimiting, so equal bytes are equal fields in any
        place."""
        self.names: Memory[Name] = Memory()
        """Names by their coded bytes."""
        self.static = tuple(
            read_field(self.name(name), value, bytes((0x80 | index,))) for index, (name, value) in enumerate(STATIC)
        )
        """Fields of HPACK's static table, by index."""
        self.static_names = tuple(self.name(name) for name, _ in STATIC)
        """Names of HPACK's static table, by index."""

    def name(self, name: bytes) -> Name:
        """Returns the properties of a name."""
        return name, _is_name(name) is not None and name not in _CONNECTION_FIELDS, self.drops(name)

    def __repr__(self) -> str:
        return f"<Blocks {len(self.heads.known)} heads, {len(self.trailers.known)} trailers>"


def read_field(named: Name, value: bytes, representation: bytes) -> Field:
    name, is_sound, is_dropped = named
    if is_sound:
        is_sound = is_value(value) is not None and (name != b"te" or value == b"trailers")
    return name, value, is_sound, representation, b"" if is_dropped else representation


def fill(block: Block, fields: list[Field], kind: int | None) -> str:
    """Puts the fields into ``block``. Returns the reason why they are malformed, or "". With ``kind`` None they are
    trailers."""
    values = block._values
    pseudo: dict[bytes, bytes] = {}
    allowed = _PSEUDO[kind] if kind is not None else ()
    for name, value, is_sound, _, _ in fields:
        if name.startswith(b":"):
            if values or name in pseudo or name not in allowed:
                return "a pseudo-header out of its place"
            pseudo[name] = value
        elif not is_sound:
            return MALFORMED
        elif name not in values:
            values[name] = value
        elif name in _SINGLE:
            return "a field that may be there once"
    length = values.get(b"content-length")
    if kind is None and not _SINGLE.isdisjoint(values):
        return "a field that no trailers have"
    if length is not None:
        if not length.isdigit() or len(length) > 18:
            return "a malformed content-length"
        block.content_length = int(length)
    status = values.get(b"grpc-status")
    if status is not None and status.isdigit() and len(status) < 4:
        block.grpc_status = int(status)
    if kind == REQUEST:
        return _fill_request(block, pseudo)
    return _fill_response(block, pseudo) if kind == RESPONSE else ""


def _fill_request(block: Block, pseudo: dict[bytes, bytes]) -> str:
    block.method = method = pseudo.get(b":method", b"")
    block.scheme = scheme = pseudo.get(b":scheme", b"")
    block.path = path = pseudo.get(b":path", b"")
    host = block._values.get(b"host")
    block.authority = authority = pseudo.get(b":authority", host or b"").lower()
    if _is_method(method) is None or _is_scheme(scheme) is None:
        return "a malformed method or scheme"
    if _is_path(path) is None and (path != b"*" or method != b"OPTIONS"):
        return "a malformed path"
    match = grammar.HOST.fullmatch(authority)
    if match is None or (host is not None and host.lower() != authority):
        return "a malformed authority"
    block.host = match[1]
    block.is_call = method == b"POST" and is_grpc(block._values.get(b"content-type"))
    return ""


def _fill_response(block: Block, pseudo: dict[bytes, bytes]) -> str:
    status = pseudo.get(b":status", b"")
    if _is_status(status) is None or status == b"101":
        return "a malformed status"
    block.status = int(status)
    return ""
