"""Decisions from bytes: a fuzzer's input states the bytes sent, their split, and the events meanwhile."""


class Plan:
    """Reads decisions from the front of ``data``; at its end every decision is 0."""

    __slots__ = ("_at", "_data")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def left(self) -> int:
        return len(self._data) - self._at

    def below(self, count: int) -> int:
        """Returns a number from 0 to ``count`` - 1 (at most 256)."""
        if self._at >= len(self._data):
            return 0
        value = self._data[self._at]
        self._at += 1
        return value % count

    def take(self, count: int) -> bytes:
        """Returns the next ``count`` bytes, fewer at the end."""
        taken = self._data[self._at : self._at + count]
        self._at += len(taken)
        return taken

    def rest(self) -> bytes:
        return self.take(self.left)


def cut(data: bytes, cuts: bytes) -> list[bytes]:
    """Returns ``data`` in pieces of the sizes in ``cuts`` (0: a large one), repeated."""
    if not cuts:
        return [data]
    pieces, at, turn = [], 0, 0
    while at < len(data):
        size = cuts[turn % len(cuts)] or 4096
        pieces.append(data[at : at + size])
        at += size
        turn += 1
    return pieces
