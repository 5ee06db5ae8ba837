"""The reader of a connection's header blocks: each is read once, checked once, and cached by its bytes.

A block of fields in the static table or literals has the same meaning whenever it comes. A bounded dict from its bytes
to a :class:`~tidegate.wire.http2.block_memory.Block` (fields, verdict, forwarded form) therefore replaces HPACK for
most calls. Only a block that refers to the dynamic table, or writes into it, must be read by the connection's own
:class:`Reader`. Tidegate announces a table of size 0. A peer that follows writes no such blocks, or its entries are
dropped as they come; the blocks of a peer that does not follow are read correctly and forwarded as literals.

Below whole blocks, single representations are cached too: a call with a new trace and a new timeout, and no other new
fields, decodes and checks only these.
"""

from collections import deque
from typing import Final

from tidegate.wire.http2.block_memory import (
    LOOKED_AT,
    MALFORMED,
    REQUEST,
    RESPONSE,
    Block,
    Blocks,
    Field,
    Memory,
    Name,
    fill,
    is_value,
    read_field,
)
from tidegate.wire.http2.grpc_fields import is_grpc, with_edges_encoded
from tidegate.wire.http2.hpack import STATIC, CompressionFault, huffman, integer, literal
from tidegate.wire.http2.tails import FIELDS, Tail

LIST_BYTES: Final = 16 * 1024
"""Maximum size of a header list: names, values and 32 for each field (RFC 9113 section 6.5.2)."""
_OWN_BYTES: Final = 2 * 1024
"""Size above that for the fields that Tidegate's processes have added to a list that one of them has accepted."""
DEFAULT_TABLE_BYTES: Final = 4096
_SHARED_BYTES: Final = 400
"""Maximum size of a cached block."""

_ENTRY_BYTES: Final = 32
_QUICK: Final = 32
"""After this many blocks on the quick path one is read as a whole: by now the blocks may begin with more common
fields."""
_NEVER_INDEXED: Final = 16


class _Walk:
    """Results of reading a block from its first byte to its last."""

    __slots__ = ("count", "fields", "is_large", "known", "size", "stands_alone", "total", "writes")

    def __init__(self) -> None:
        self.fields: list[Field] = []
        self.is_large = False
        """True if the list is too large; the rest of it was only skipped."""
        self.stands_alone = True
        """True if the bytes mean the same in any block, as long as there is no dynamic table."""
        self.writes = False
        """True if the bytes write into the dynamic table, or would."""
        self.known = b""
        """The block up to the first field that was not seen before."""
        self.total = self.count = 0
        """Size of the list and number of fields up to that field."""
        self.size = 0
        """Size of the whole list."""


class _Beginning:
    """The common beginning of one client's calls: constant fields, before those that are new each time. A
    representation is self-delimiting, so a block that begins with these bytes begins with these fields."""

    __slots__ = ("block", "count", "fields", "head", "total")

    def __init__(self, walk: _Walk, kind: int | None) -> None:
        self.block = walk.known
        self.total = walk.total
        self.count = walk.count
        self.fields = walk.fields[: walk.count]
        self.head = Block()
        self.head.fault = fill(self.head, self.fields, kind)
        self.head.outgoing = b"".join([field[4] for field in self.fields])


class Reader:
    """Reads the header blocks of one connection in the order of their arrival; it owns the dynamic table."""

    __slots__ = ("_before", "_begun", "_blocks", "_max_list", "_quick", "_size", "_table", "capacity", "limit")

    def __init__(self, blocks: Blocks) -> None:
        self._blocks = blocks
        self._table: deque[Field] = deque()
        self._size = 0
        self._begun: list[_Beginning | None] = [None, None]
        """Common beginnings of heads and of trailers."""
        self._quick = 0
        """Blocks on the quick path (read only from their difference to the one before) since the last one on the full
        path."""
        self._max_list = LIST_BYTES if blocks.kind == REQUEST else LIST_BYTES + _OWN_BYTES
        """Maximum size of a list; a response of a queue_proxy contains Tidegate's own fields."""
        self._before = [b"", b""]
        """The known beginning of the last block (heads, trailers) that was not cached as a whole."""
        self.capacity = DEFAULT_TABLE_BYTES
        """Size of the dynamic table that the peer's encoder uses."""
        self.limit = DEFAULT_TABLE_BYTES
        """Maximum size that it may use: 0 once it has acknowledged our settings."""

    def read(self, block: bytes, is_trailer: bool = False) -> Block:
        """Returns the block in ``block``. Raises CompressionFault."""
        memory = self._blocks.trailers if is_trailer else self._blocks.heads
        found = memory.known.get(block)
        if found is not None and not (found.writes and self.capacity):
            return found
        read_tail = self._blocks.read_tail
        if read_tail is not None and not is_trailer:
            tail = read_tail(block)
            if tail is not None:
                self._max_list = LIST_BYTES + _OWN_BYTES
                made = self._read_parts(block, tail) or self._read_new(block, memory, is_trailer=False)
                self._max_list = LIST_BYTES
                return made
        return self._read_new(block, memory, is_trailer=is_trailer)

    def _read_parts(self, block: bytes, tail: Tail) -> Block | None:
        """Reads a block that seems to end with fields of Tidegate. Returns None if it must be read as a whole."""
        if self.capacity or block[0] & 0xE0 == 0x20:
            return None  # The front may change the dynamic table: it must be read only once.
        memory, front = self._blocks.heads, block[: tail.start]
        base = memory.known.get(front)
        if base is None:
            try:
                base = self._read_new(front, memory, is_trailer=False)
            except CompressionFault:
                return None  # The tail begins inside another field.
        if not base.is_call or base.size + len(block) - tail.start + FIELDS * _ENTRY_BYTES > self._max_list:
            return None
        return base.with_tail(tail)

    def _read_new(self, block: bytes, memory: Memory[Block], *, is_trailer: bool) -> Block:
        """Reads a block that is not cached by its bytes."""
        try:
            begun = self._begun[is_trailer]
            if begun is not None and self._quick < _QUICK and block.startswith(begun.block) and not begun.head.fault:
                quick = self._read_quick(block, begun)
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

    def _read_quick(self, block: bytes, begun: "_Beginning") -> Block | None:
        """Reads a block with a common beginning, followed by short literals of known names, as the trace, the deadline
        or the id of a call are written. Returns None if it must be read as a whole."""
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
                named = names.get(block[at:value_at])  # A longer name is not among these.
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
            if not is_sound or is_value(value) is None or name in LOOKED_AT:
                return None
            representation = block[start:at]
            if is_dropped:
                fields.append((name, value, True, representation, b""))
            else:
                fields.append((name, value, True, representation, representation))
                outgoing.append(representation)
            total += len(name) + len(value) + _ENTRY_BYTES
        made = begun.head.with_more(fields) if total <= self._max_list else None
        if made is not None:
            made.fields = begun.fields + fields
            made.size = total
            made.outgoing = b"".join(outgoing)
        return made

    def _learn(self, walk: "_Walk", *, is_trailer: bool) -> None:
        """Notes a common beginning after two blocks in a row with it: the next ones may have it, too."""
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
        if made.fault == MALFORMED and not (is_trailer and self._blocks.kind == REQUEST):
            trimmed = self._filled([self._trimmed(field) for field in fields], walk.size, is_trailer=is_trailer)
            if trimmed.is_call or self._blocks.kind == RESPONSE:
                return trimmed
        return made

    def _filled(self, fields: list[Field], size: int, *, is_trailer: bool) -> Block:
        made = Block()
        made.fault = fill(made, fields, None if is_trailer else self._blocks.kind)
        if not made.fault:
            made.fields, made.size = fields, size
            made.outgoing = b"".join([field[4] for field in fields])
        return made

    def _trimmed(self, field: Field) -> Field:
        """Returns the field without whitespace at the ends of its value. HTTP/2 calls that malformed; clients and
        servers of gRPC write it, in metadata and in messages that end with ``: ``."""
        name, value, is_sound, _, _ = field
        if is_sound or name in LOOKED_AT or name.startswith(b":"):
            return field
        value = with_edges_encoded(value) if name == b"grpc-message" else value.strip(b"\t ")
        return read_field(self._blocks.name(name), value, literal(name, value))

    def _resize(self, block: bytes) -> int:
        """Follows the table size updates at the beginning of ``block``; returns the end of them."""
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
        """Makes room in the dynamic table; if there is not enough of it, the table is empty afterwards."""
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
        """Reads the fields of ``block``, which begins with ``begun``."""
        walk = _Walk()
        fields = walk.fields
        known = self._blocks.fields.known
        static = self._blocks.static
        total = at = 0
        max_size = self._max_list
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
            if total <= max_size:
                fields.append(field)
        walk.is_large, walk.stands_alone, walk.writes = total > max_size, stands_alone, writes
        walk.size = total
        return walk

    def _literal(self, block: bytes, representation: bytes, index: int, name_at: int, value_at: int, end: int) -> Field:
        """Reads a representation that is not cached."""
        if index:
            named = self._blocks.static_names[index] if index < 62 else self._blocks.name(self._entry(index)[0])
        else:
            coded = block[name_at:value_at]
            named = self._blocks.names.known.get(coded) or self._name(coded)
        value = block[value_at + 1 : end] if block[value_at] & 127 != 127 else _long(block, value_at, end)
        if block[value_at] > 127:
            value = huffman(value)
        if representation[0] > 63 or index > 61:
            return read_field(named, value, literal(named[0], value))
        field = read_field(named, value, representation)
        if end - value_at <= _SHARED_BYTES:
            self._blocks.fields.keep(representation, field)
        return field

    def _name(self, coded: bytes) -> Name:
        """Reads a name that is not cached."""
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
    """Returns the bytes behind the length of a string of 127 bytes or more."""
    _, start = integer(data, at + 1, 127)
    return data[start:end]
