"""HPACK (RFC 7541) as pure functions: static table, integers, Huffman code, and literals to write.

Tidegate writes no entry into a peer's dynamic table and uses no Huffman code: its output means the same in every block.
The dynamic table for input is kept by ``header_blocks.Reader``.
"""

from typing import Any, Final


class CompressionFault(Exception):
    """An unreadable block: the connection is lost with it (RFC 9113 section 4.3)."""


_ROWS: Final = """
    :authority | :method GET | :method POST | :path / | :path /index.html | :scheme http | :scheme https | :status
    200 | :status 204 | :status 206 | :status 304 | :status 400 | :status 404 | :status 500 | accept-charset |
    accept-encoding gzip, deflate | accept-language | accept-ranges | accept | access-control-allow-origin | age |
    allow | authorization | cache-control | content-disposition | content-encoding | content-language |
    content-length | content-location | content-range | content-type | cookie | date | etag | expect | expires |
    from | host | if-match | if-modified-since | if-none-match | if-range | if-unmodified-since | last-modified |
    link | location | max-forwards | proxy-authenticate | proxy-authorization | range | referer | refresh |
    retry-after | server | set-cookie | strict-transport-security | transfer-encoding | user-agent | vary | via |
    www-authenticate
"""
STATIC: Final[tuple[tuple[bytes, bytes], ...]] = (
    (b"", b""),
    *(
        (words[0], words[2])
        for words in (row.strip().encode().partition(b" ") for row in " ".join(_ROWS.split()).split("|"))
    ),
)
"""Name and value by index (RFC 7541 appendix A); index 0 is unused."""
_INDEX: Final = {STATIC[index]: index for index in range(len(STATIC) - 1, 0, -1)}
_NAME_INDEX: Final = {STATIC[index][0]: index for index in range(len(STATIC) - 1, 0, -1)}

_BITS: Final = """
13 23 28 28 28 28 28 28 28 24 30 28 28 30 28 28 28 28 28 28 28 28 30 28 28 28 28 28 28 28 28 28 6 10 10 12 13
6 8 11 10 10 8 11 8 6 6 6 5 5 5 6 6 6 6 6 6 6 7 8 15 6 12 10 13 6 7 7 7 7 7 7 7 7 7 7 7 7 7 7 7 7 7 7 7 7 7 7
8 7 8 13 19 13 14 6 15 5 6 5 6 5 6 6 6 5 7 7 6 6 6 5 6 7 6 5 5 6 7 7 7 7 7 15 11 14 13 28 20 22 20 20 22 22 22
23 22 23 23 23 23 23 24 23 24 24 22 23 24 23 23 23 23 21 22 23 22 23 23 24 22 21 20 22 22 23 23 21 23 22 22 24
21 22 23 23 21 21 22 21 23 22 23 23 20 22 22 22 23 22 22 23 26 26 20 19 22 23 22 25 26 26 26 27 27 26 24 25 19
21 26 27 27 26 27 24 21 21 26 26 28 27 27 27 20 24 20 21 22 21 21 23 22 22 25 25 24 24 26 23 26 27 26 26 27 27
27 27 27 28 27 27 27 27 27 26 30
"""
_LENGTHS: Final = tuple(int(bits) for bits in _BITS.split())
"""Bits of the code of each byte, the last one of the end mark (RFC 7541 appendix B). The code is canonical: codes of
one length are consecutive in the order of their symbols, so the lengths define it."""
_END: Final = 256


def _tree() -> list[list[int]]:
    """Returns the code as a tree: the two followers of each inner node, ``~symbol`` for a leaf."""
    nodes = [[0, 0]]
    code, length = 0, min(_LENGTHS)
    for symbol in sorted(range(len(_LENGTHS)), key=lambda symbol: (_LENGTHS[symbol], symbol)):
        code <<= _LENGTHS[symbol] - length
        length = _LENGTHS[symbol]
        at = 0
        for shift in range(length - 1, 0, -1):
            bit = code >> shift & 1
            if not nodes[at][bit]:
                nodes[at][bit] = len(nodes)
                nodes.append([0, 0])
            at = nodes[at][bit]
        nodes[at][code & 1] = ~symbol
        code += 1
    return nodes


_TREE: Final = _tree()


_Row = list[Any]
"""The transition of each byte from one node of the tree: (the row of the following node, the completed bytes), or None
until it is needed; the last item is the node. A plain list is the fastest table."""
_NODE: Final = 256
_ROWS_OF: Final[dict[int, _Row]] = {}


def _row(node: int) -> _Row:
    row = _ROWS_OF.get(node)
    if row is None:
        row = _ROWS_OF[node] = [*[None] * 256, node]
    return row


def _step(row: _Row, byte: int) -> tuple[_Row, bytes]:
    """Fills an entry."""
    node = row[_NODE]
    done = bytearray()
    for shift in range(7, -1, -1):
        node = _TREE[node][byte >> shift & 1]
        if node < 0:
            if ~node == _END:
                raise CompressionFault("end mark inside a string")
            done.append(~node)
            node = 0
    entry = row[byte] = (_row(node), bytes(done))
    return entry


_ROOT: Final = _row(0)


def _padding_ends() -> frozenset[int]:
    """Returns the nodes at which a string may end: the beginning of the end mark, at most seven bits of it."""
    node, ends = 0, {0}
    for _ in range(7):
        node = _TREE[node][1]
        ends.add(node)
    return frozenset(ends)


_ENDS: Final = _padding_ends()


def huffman(data: bytes) -> bytes:
    """Decodes ``data`` from the Huffman code."""
    row = _ROOT
    done: list[bytes] = []
    add = done.append
    for byte in data:
        try:
            row, piece = row[byte]
        except TypeError:  # The first use of this entry.
            row, piece = _step(row, byte)
        add(piece)
    if row[_NODE] not in _ENDS:
        raise CompressionFault("wrong padding of a string")
    return b"".join(done)


def integer(block: bytes, at: int, start: int) -> tuple[int, int]:
    """Returns the integer behind a full prefix (``start``), and the position behind it. Raises IndexError at the
    block's end."""
    shift = 0
    while True:
        byte = block[at]
        at += 1
        start += (byte & 127) << shift
        if byte < 128:
            return start, at
        shift += 7
        if shift > 28:
            raise CompressionFault("integer too large")


def _write_integer(value: int, prefix: int, first: int) -> bytes:
    if value < prefix:
        return bytes((first | value,))
    done = bytearray((first | prefix,))
    value -= prefix
    while value > 127:
        done.append(value & 127 | 128)
        value >>= 7
    done.append(value)
    return bytes(done)


def literal(name: bytes, value: bytes) -> bytes:
    """Returns one field that may be appended to any block: static index, or literal without indexing."""
    index = _INDEX.get((name, value))
    if index is not None:
        return bytes((0x80 | index,))
    return literal_name(name) + _write_integer(len(value), 127, 0) + value


def literal_name(name: bytes) -> bytes:
    """Returns the part of a literal before its value's length: for names that are written repeatedly."""
    index = _NAME_INDEX.get(name)
    if index is not None:
        return _write_integer(index, 15, 0)
    return b"\0" + _write_integer(len(name), 127, 0) + name
