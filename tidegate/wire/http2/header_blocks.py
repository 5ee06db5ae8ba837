"""Header blocks: read once, checked once, remembered by their bytes.

A block whose fields are in the static table or literal means the same whenever it comes, so a bounded dict from its
bytes to a :class:`Block` (fields, verdict, and what is sent on) replaces HPACK for most calls. Only what refers to the
dynamic table, or writes into it, must be read by the connection's own :class:`Reader`. We announce a table of size 0:
a peer that follows writes no such blocks, or its entries are dropped as they come; one that does not is read correctly
and sent on as literals.

Below whole blocks, single representations are remembered too: a call whose only new fields are its trace and its
timeout decodes and checks no others.
"""

import re
from collections import deque
from collections.abc import Callable
from typing import Any, Final, Generic, TypeVar, final

from tidegate.wire.grpc.grpc import is_grpc, with_edges_encoded
from tidegate.wire.http1 import grammar
from tidegate.wire.http2.hpack import STATIC, CompressionFault, huffman, integer, literal
from tidegate.wire.http2.tails import FIELDS, ReadTail, Tail

LIST_BYTES: Final = 16 * 1024
"""Of a header list: names, values and 32 for each field (RFC 9113 section 6.5.2)."""
_OWN_BYTES: Final = 2 * 1024
"""Above it, for what processes of ours have added to a list that one of them has let pass."""
DEFAULT_TABLE_BYTES: Final = 4096
_SHARED_BYTES: Final = 400
"""No longer block is kept."""
_SHARED: Final = 1024
_ENTRY_BYTES: Final = 32
_QUICK: Final = 32
"""After so many blocks that went the short way one is looked at as a whole: they may begin with more by now."""
_NEVER_INDEXED: Final = 16

REQUEST, RESPONSE = range(2)

_name = re.compile(rb"[!#$%&'*+\-.^_`|~0-9a-z]++").fullmatch
_value = re.compile(rb"(?![\t ])" + grammar.VALUE + rb"*+(?<![\t ])").fullmatch
_method = grammar.TOKEN.fullmatch
_path = re.compile(rb"/" + grammar.TARGET + rb"*+").fullmatch
_scheme = re.compile(rb"[a-z][a-z0-9+\-.]{0,31}").fullmatch
_status = re.compile(rb"[1-5][0-9][0-9]").fullmatch
_CONNECTION_FIELDS: Final = frozenset(
    (b"connection", b"proxy-connection", b"keep-alive", b"transfer-encoding", b"upgrade", b"http2-settings")
)
_SINGLE: Final = frozenset((b"content-length", b"host"))
_MEANINGFUL: Final = _SINGLE | {b"grpc-status"}
_LOOKED_AT: Final = _MEANINGFUL | {b"te", b"content-type"}
"""Not only passed on: they are read together with the whole of a block."""
_MALFORMED: Final = "a malformed field"
_PSEUDO: Final = (frozenset((b":method", b":scheme", b":path", b":authority")), frozenset((b":status",)))

Field = tuple[bytes, bytes, bool, bytes, bytes]
"""Name, value, whether it is well-formed by itself, a representation that means it in any block, and what of that is
sent on: b"" where the field is dropped."""
Name = tuple[bytes, bool, bool]
"""A field's name, whether a field may be called so, and whether it is dropped."""
Kept = TypeVar("Kept")


class Memory(Generic[Kept]):
    """A bounded dict of what comes again: the first time only that it came is noted, so that what never comes again
    drives out nothing."""

    __slots__ = ("_once", "known")

    def __init__(self) -> None:
        self.known: dict[bytes, Kept] = {}
        self._once: set[int] = set()

    def keep(self, key: bytes, value: Kept) -> None:
        """Keeps ``value``, if ``key`` was seen before."""
        mark = hash(key)
        if mark in self._once:
            if len(self.known) >= _SHARED:
                self.known.clear()
            self.known[key] = value
            return
        if len(self._once) >= 4 * _SHARED:
            self._once.clear()
        self._once.add(mark)

    def __repr__(self) -> str:
        return f"<Memory {len(self.known)} kept>"


@final
class Block:
    """One header block, or trailers. Equal blocks share it: nobody changes it, but for :attr:`memo`."""

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
        """A request that is a gRPC call."""
        self.fault = ""
        """Why it is malformed; nothing else holds then."""
        self.is_large = False
        """Its list is over the limit; nothing else holds then but :attr:`is_call`, if that was seen before."""
        self.fields: list[Field] = []
        """All of them, in order, but for those of a :attr:`tail`."""
        self.size = 0
        """Of the list, as it is limited."""
        self.tail: dict[bytes, bytes] | None = None
        """Fields of ours at its end, where it was read in two parts."""
        self.outgoing = b""
        """Its fields as literals, without those that are dropped: what is sent on, with own fields behind it."""
        self.memo: Any = None
        """Of the driver: what it found out about this block (a route, the parts of the path)."""
        self.writes = False
        """It would write into a dynamic table that had room: only without one it is known by its bytes."""
        self._values: dict[bytes, bytes] = {}
        self.base: Block | None = None
        """What it begins with, where many blocks do and only short fields of their own follow."""
        self._first: dict[bytes, bytes] | None = None
        """The same of the fields that many blocks begin with, where this is one of them: those count first."""

    def with_more(self, fields: list[Field]) -> "Block | None":
        """This block with more fields behind it; None where they must be looked at together. Not its ``outgoing``."""
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
            if not is_sound or name in _LOOKED_AT:
                return None
            if name not in first and name not in values:
                values[name] = value
        return made

    def with_tail(self, tail: Tail) -> "Block | None":
        """This block with a tail behind it; None where they must be looked at together."""
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
        """Value of the first field with this lower-case name; not of pseudo-headers."""
        found = self._values.get(name)
        if found is None and self._first is not None:
            return self._first.get(name)
        return found

    def lacks(self, names: frozenset[bytes]) -> bool:
        """None of these fields is there."""
        return names.isdisjoint(self._values) and (self._first is None or names.isdisjoint(self._first))

    @property
    def first(self) -> dict[bytes, bytes] | None:
        """Those of its :attr:`base`."""
        return self._first

    @property
    def own(self) -> dict[bytes, bytes]:
        """What follows its :attr:`base`; not to be changed."""
        return self._values

    def values(self) -> dict[bytes, bytes]:
        """The first of each name."""
        return self._values if self._first is None else self._first | self._values

    def __repr__(self) -> str:
        what = self.fault or (
            f"{self.method.decode()} {self.path!r}" if self.method else str(self.status or "trailers")
        )
        return f"<Block {what}, {len(self._values)} fields>"


def drops_nothing(name: bytes) -> bool:
    """Passes every field on."""
    return False


class Blocks:
    """What the connections of one listener, or to one upstream, remember together."""

    __slots__ = ("drops", "fields", "heads", "kind", "names", "read_tail", "static", "static_names", "trailers")

    def __init__(
        self, kind: int, drops: Callable[[bytes], bool] = drops_nothing, read_tail: ReadTail | None = None
    ) -> None:
        """``kind`` of the heads: REQUEST or RESPONSE. ``drops``: whether a field of this name is not sent on.
        ``read_tail``: reads what processes of ours add to heads; it drops the same."""
        self.read_tail = read_tail
        self.kind = kind
        self.drops = drops
        self.heads: Memory[Block] = Memory()
        self.trailers: Memory[Block] = Memory()
        self.fields: Memory[Field] = Memory()
        """By representation: they end by themselves, so equal bytes are equal fields wherever they stand."""
        self.names: Memory[Name] = Memory()
        """By Huffman code."""
        self.static = tuple(
            _field(self.name(name), value, bytes((0x80 | index,))) for index, (name, value) in enumerate(STATIC)
        )
        """Those of HPACK's static table, by index,"""
        self.static_names = tuple(self.name(name) for name, _ in STATIC)
        """and their names."""

    def name(self, name: bytes) -> Name:
        """What is to be known of a name."""
        return name, _name(name) is not None and name not in _CONNECTION_FIELDS, self.drops(name)

    def __repr__(self) -> str:
        return f"<Blocks {len(self.heads.known)} heads, {len(self.trailers.known)} trailers>"


def _field(named: Name, value: bytes, representation: bytes) -> Field:
    name, is_sound, is_dropped = named
    if is_sound:
        is_sound = _value(value) is not None and (name != b"te" or value == b"trailers")
    return name, value, is_sound, representation, b"" if is_dropped else representation


class _Walk:
    """What is seen in a block from its first byte to its last."""

    __slots__ = ("count", "fields", "is_large", "known", "size", "stands_alone", "total", "writes")

    def __init__(self) -> None:
        self.fields: list[Field] = []
        self.is_large = False
        """The list is too large; the rest of it was only followed."""
        self.stands_alone = True
        """The bytes mean the same in any block, as long as there is no dynamic table."""
        self.writes = False
        """They write into it, or would."""
        self.known = b""
        """The block up to the first field that was not seen before,"""
        self.total = self.count = 0
        """the size of the list so far, and how many fields."""
        self.size = 0
        """Of the whole list."""


class _Beginning:
    """How calls of one client begin: fields that stay, before those that are new each time. A representation ends by
    itself, so a block that begins with these bytes begins with these fields."""

    __slots__ = ("block", "count", "fields", "head", "total")

    def __init__(self, walk: _Walk, kind: int | None) -> None:
        self.block = walk.known
        self.total = walk.total
        self.count = walk.count
        self.fields = walk.fields[: walk.count]
        self.head = Block()
        self.head.fault = _fill(self.head, self.fields, kind)
        self.head.outgoing = b"".join([field[4] for field in self.fields])


class Reader:
    """Reads the header blocks of one connection in the order in which they come; the dynamic table is here."""

    __slots__ = ("_before", "_begun", "_blocks", "_most", "_quick", "_size", "_table", "capacity", "limit")

    def __init__(self, blocks: Blocks) -> None:
        self._blocks = blocks
        self._table: deque[Field] = deque()
        self._size = 0
        self._begun: list[_Beginning | None] = [None, None]
        """Of heads and of trailers."""
        self._quick = 0
        """Blocks that were only looked at from where they differ from the one before, since the last that was not."""
        self._most = LIST_BYTES if blocks.kind == REQUEST else LIST_BYTES + _OWN_BYTES
        """Of a list; an answer comes with fields of ours where it comes from a queue_proxy."""
        self._before = [b"", b""]
        """What was known of the last block that was not known as a whole."""
        self.capacity = DEFAULT_TABLE_BYTES
        """What the peer's encoder uses of a dynamic table."""
        self.limit = DEFAULT_TABLE_BYTES
        """What it may use: 0 once it has acknowledged our settings."""

    def read(self, block: bytes, *, is_trailer: bool = False) -> Block:
        """What ``block`` says. Raises CompressionFault."""
        memory = self._blocks.trailers if is_trailer else self._blocks.heads
        found = memory.known.get(block)
        if found is not None and not (found.writes and self.capacity):
            return found
        read_tail = self._blocks.read_tail
        if read_tail is not None and not is_trailer:
            tail = read_tail(block)
            if tail is not None:
                self._most = LIST_BYTES + _OWN_BYTES
                made = self._read_parts(block, tail) or self._read_new(block, memory, is_trailer=False)
                self._most = LIST_BYTES
                return made
        return self._read_new(block, memory, is_trailer=is_trailer)

    def _read_parts(self, block: bytes, tail: Tail) -> Block | None:
        """A block whose end looks like fields of ours; None: it must be read as a whole."""
        if self.capacity or block[0] & 0xE0 == 0x20:
            return None  # What is in front may change the dynamic table: it is read once.
        memory, front = self._blocks.heads, block[: tail.start]
        base = memory.known.get(front)
        if base is None:
            try:
                base = self._read_new(front, memory, is_trailer=False)
            except CompressionFault:
                return None  # Its beginning is inside another field.
        if not base.is_call or base.size + len(block) - tail.start + FIELDS * _ENTRY_BYTES > self._most:
            return None
        return base.with_tail(tail)

    def _read_new(self, block: bytes, memory: Memory[Block], *, is_trailer: bool) -> Block:
        """A block that is not known by its bytes."""
        try:
            begun = self._begun[is_trailer]
            if begun is not None and self._quick < _QUICK and block.startswith(begun.block) and not begun.head.fault:
                quick = self._look(block, begun)
                if quick is not None:
                    self._quick += 1
                    if len(block) <= _SHARED_BYTES:
                        memory.keep(block, quick)
                    return quick
            at = self._resize(block) if block and block[0] & 0xE0 == 0x20 else 0
            if at:
                block = block[at:]
                found = memory.known.get(block)
                if found is not None and not (found.writes and self.capacity):
                    return found
            return self._read(block, memory, is_trailer=is_trailer)
        except IndexError:
            raise CompressionFault("a block ends inside a field") from None

    def _read(self, block: bytes, memory: Memory[Block], *, is_trailer: bool) -> Block:
        begun = self._begun[is_trailer]
        if begun is not None and (begun.head.fault or not block.startswith(begun.block)):
            begun = None
        self._quick = 0
        walk = self._walk(block, begun)
        if walk.is_large:
            made = Block()
            made.is_large = True
            made.is_call = any(field[0] == b"content-type" and is_grpc(field[1]) for field in walk.fields)
            return made
        if walk.stands_alone:
            same = block
        else:
            same = b"".join([field[3] for field in walk.fields])
            found = memory.known.get(same)
            if found is not None:
                return found
        made = self._made(walk, begun, is_trailer=is_trailer)
        if made.fault:
            return made
        if len(block) <= _SHARED_BYTES:
            made.writes = walk.writes and walk.stands_alone
            memory.keep(same, made)
        if walk.count and (begun is None or walk.count != begun.count):
            self._learn(walk, is_trailer=is_trailer)
        return made

    def _look(self, block: bytes, begun: "_Beginning") -> Block | None:
        """A block that begins as others did and goes on with short literals under known names, as a trace, a deadline
        or an id of each call are written; None: it must be looked at as a whole."""
        blocks = self._blocks
        names = blocks.names.known
        at, size, total = len(begun.block), len(block), begun.total
        fields, outgoing = [], [begun.head.outgoing]
        while at < size:
            start = at
            index = block[at]
            at += 1
            if not index or index == _NEVER_INDEXED:
                value_at = at + 1 + (block[at] & 127)
                named = names.get(block[at:value_at])  # A longer name is none of these.
                if named is None:
                    return None
            elif index < 15:
                named, value_at = blocks.static_names[index], at
            elif index == 15 and block[at] < 62 - 15:
                named, value_at = blocks.static_names[15 + block[at]], at + 1
            else:
                return None
            length = block[value_at]
            at = value_at + 1 + (length & 127)
            if length & 127 == 127 or at > size:
                return None
            value = block[value_at + 1 : at]
            if length > 127:
                value = huffman(value)
            name, is_sound, is_dropped = named
            if not is_sound or _value(value) is None or name in _LOOKED_AT:
                return None
            representation = block[start:at]
            if is_dropped:
                fields.append((name, value, True, representation, b""))
            else:
                fields.append((name, value, True, representation, representation))
                outgoing.append(representation)
            total += len(name) + len(value) + _ENTRY_BYTES
        made = begun.head.with_more(fields) if total <= self._most else None
        if made is not None:
            made.fields = begun.fields + fields
            made.size = total
            made.outgoing = b"".join(outgoing)
        return made

    def _learn(self, walk: "_Walk", *, is_trailer: bool) -> None:
        """Two blocks in a row that begin in one way: the next ones may, too."""
        if walk.known == self._before[is_trailer]:
            kind = None if is_trailer else self._blocks.kind
            self._begun[is_trailer] = _Beginning(walk, kind)
        self._before[is_trailer] = walk.known

    def _made(self, walk: "_Walk", begun: "_Beginning | None", *, is_trailer: bool) -> Block:
        fields = walk.fields
        if begun is not None:
            more = fields[begun.count :]
            made = begun.head.with_more(more)
            if made is not None:
                made.fields, made.size = fields, walk.size
                made.outgoing = begun.head.outgoing + b"".join([field[4] for field in more])
                return made
        made = self._filled(fields, walk.size, is_trailer=is_trailer)
        if made.fault == _MALFORMED and not (is_trailer and self._blocks.kind == REQUEST):
            trimmed = self._filled([self._trimmed(field) for field in fields], walk.size, is_trailer=is_trailer)
            if trimmed.is_call or self._blocks.kind == RESPONSE:
                return trimmed
        return made

    def _filled(self, fields: list[Field], size: int, *, is_trailer: bool) -> Block:
        made = Block()
        made.fault = _fill(made, fields, None if is_trailer else self._blocks.kind)
        if not made.fault:
            made.fields, made.size = fields, size
            made.outgoing = b"".join([field[4] for field in fields])
        return made

    def _trimmed(self, field: Field) -> Field:
        """The field without whitespace at the ends of its value. HTTP/2 calls that malformed; clients and servers of
        gRPC write it, in metadata and in messages that end with ``: ``."""
        name, value, is_sound, _, _ = field
        if is_sound or name in _LOOKED_AT or name.startswith(b":"):
            return field
        value = with_edges_encoded(value) if name == b"grpc-message" else value.strip(b"\t ")
        return _field(self._blocks.name(name), value, literal(name, value))

    def _resize(self, block: bytes) -> int:
        """Follows the table size updates at the beginning of ``block``; where they end."""
        at = 0
        while at < len(block) and block[at] & 0xE0 == 0x20:
            size = block[at] & 31
            at += 1
            if size == 31:
                size, at = integer(block, at, 31)
            if size > self.limit:
                raise CompressionFault("a dynamic table larger than allowed")
            self.capacity = size
            self._evict(0)
        return at

    def _evict(self, room: int) -> None:
        """Makes room; without enough of it the table is empty afterwards."""
        while self._table and self._size + room > self.capacity:
            name, value, _, _, _ = self._table.pop()
            self._size -= len(name) + len(value) + _ENTRY_BYTES

    def _entry(self, index: int) -> Field:
        if 0 < index < len(STATIC):
            return self._blocks.static[index]
        index -= len(STATIC)
        if not 0 <= index < len(self._table):
            raise CompressionFault("an index of no field")
        return self._table[index]

    def _walk(self, block: bytes, begun: "_Beginning | None") -> "_Walk":
        """The fields of ``block``, which begins with ``begun``."""
        walk = _Walk()
        fields = walk.fields
        known = self._blocks.fields.known
        static = self._blocks.static
        total = at = 0
        most = self._most
        if begun is not None:
            fields += begun.fields
            total, at = begun.total, len(begun.block)
        size = len(block)
        stands_alone, writes, all_known = True, False, True
        while at < size:
            start = at
            first = block[at]
            at += 1
            if first > 127:
                index = first & 127
                if 0 < index < 62:
                    field = static[index]
                else:
                    if index == 127:
                        index, at = integer(block, at, 127)
                    field = self._entry(index)
                    stands_alone = all_known = False
            else:
                prefix = 63 if first > 63 else 15
                if 31 < first < 64:
                    raise CompressionFault("a table size update behind a field")
                index = first & prefix
                if index == prefix:
                    index, at = integer(block, at, prefix)
                name_at = at
                if not index:
                    length = block[at] & 127
                    at += 1
                    if length == 127:
                        length, at = integer(block, at, 127)
                    at += length
                value_at = at
                length = block[at] & 127
                at += 1
                if length == 127:
                    length, at = integer(block, at, 127)
                at += length
                if at > size:
                    raise CompressionFault("a block ends inside a field")
                representation = block[start:at]
                found = known.get(representation) if index < 62 else None
                if all_known and (found is None or prefix == 63):
                    walk.known, walk.total, walk.count, all_known = block[:start], total, len(fields), False
                if found is not None:
                    field = found
                else:
                    field = self._literal(block, representation, index, name_at, value_at, at)
                if index > 61:
                    stands_alone = False
                if prefix == 63:
                    writes = True
                    self._insert(field)
            total += len(field[0]) + len(field[1]) + _ENTRY_BYTES
            if total <= most:
                fields.append(field)
        walk.is_large, walk.stands_alone, walk.writes = total > most, stands_alone, writes
        walk.size = total
        return walk

    def _literal(self, block: bytes, representation: bytes, index: int, name_at: int, value_at: int, end: int) -> Field:
        """A representation that was not seen before."""
        if index:
            named = self._blocks.static_names[index] if index < 62 else self._blocks.name(self._entry(index)[0])
        else:
            coded = block[name_at:value_at]
            named = self._blocks.names.known.get(coded) or self._name(coded)
        value = block[value_at + 1 : end] if block[value_at] & 127 != 127 else _long(block, value_at, end)
        if block[value_at] > 127:
            value = huffman(value)
        if representation[0] > 63 or index > 61:
            return _field(named, value, literal(named[0], value))
        field = _field(named, value, representation)
        if end - value_at <= _SHARED_BYTES:
            self._blocks.fields.keep(representation, field)
        return field

    def _name(self, coded: bytes) -> Name:
        """A name that was not seen before."""
        name = coded[1:] if coded[0] & 127 != 127 else _long(coded, 0, len(coded))
        named = self._blocks.name(huffman(name) if coded[0] > 127 else name)
        if len(coded) <= 64:
            self._blocks.names.keep(coded, named)
        return named

    def _insert(self, field: Field) -> None:
        room = len(field[0]) + len(field[1]) + _ENTRY_BYTES
        self._evict(room)
        if room <= self.capacity:
            self._table.appendleft(field)
            self._size += room

    def __repr__(self) -> str:
        return f"<Reader {len(self._table)} entries, {self._size} of {self.capacity} bytes>"


def _long(data: bytes, at: int, end: int) -> bytes:
    """What stands behind the length of a string of 127 bytes or more."""
    _, start = integer(data, at + 1, 127)
    return data[start:end]


def _fill(block: Block, fields: list[Field], kind: int | None) -> str:
    """Puts the fields into ``block``; why they are malformed, or "". ``kind`` None: trailers."""
    values = block._values
    pseudo: dict[bytes, bytes] = {}
    allowed = _PSEUDO[kind] if kind is not None else ()
    for name, value, is_sound, _, _ in fields:
        if name.startswith(b":"):
            if values or name in pseudo or name not in allowed:
                return "a pseudo-header out of its place"
            pseudo[name] = value
        elif not is_sound:
            return _MALFORMED
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
    if _method(method) is None or _scheme(scheme) is None:
        return "a malformed method or scheme"
    if _path(path) is None and (path != b"*" or method != b"OPTIONS"):
        return "a malformed path"
    match = grammar.HOST.fullmatch(authority)
    if match is None or (host is not None and host.lower() != authority):
        return "a malformed authority"
    block.host = match[1]
    block.is_call = method == b"POST" and is_grpc(block._values.get(b"content-type"))
    return ""


def _fill_response(block: Block, pseudo: dict[bytes, bytes]) -> str:
    status = pseudo.get(b":status", b"")
    if _status(status) is None or status == b"101":
        return "a malformed status"
    block.status = int(status)
    return ""
