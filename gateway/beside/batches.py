"""What a worker collects for one of its side processes, until that process has taken it. Pure.

Records are packed together, so a request costs its worker little; what waits is bounded. Beyond the bound records are
dropped and counted, and serving goes on.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Generic, TypeVar

HANDED_BYTES: Final = 128 * 1024
"""Batches of so many bytes are handed over at once, which wakes the other process; fewer wait for the sweep. With
32 KB a worker took 5 % more for each request of an access log: its clients wait while the other process runs."""
SIZE_BYTES: Final = 4

T = TypeVar("T")


class Batches(Generic[T]):
    """The records of one worker for one side process."""

    __slots__ = (
        "_batch", "_bytes", "_encode", "_packed", "_records", "_room", "_take", "delivered", "dropped", "fault"
    )  # fmt: skip

    def __init__(
        self, encode: Callable[[list[T]], bytes], *, batch: int, room: int, take: "Callable[[Batches[T]], None]"
    ) -> None:
        """``batch``: records that are packed together at most; ``room``: bytes that wait at most, or a single
        batch; ``take`` is called when there is much to take."""
        self._encode = encode
        self._batch = batch
        self._room = room
        self._take = take
        self._records: list[T] = []
        """Records that are not packed yet."""
        self._packed: deque[tuple[int, bytes, bytes]] = deque()
        self._bytes = 0
        self.delivered = 0
        """Records that the side process has written, exported or delivered."""
        self.dropped = 0
        """Records that found no room here, were lost with their process, or that it has dropped."""
        self.fault: str | None = None
        """Why records do not come to their end now; None if they do. Set by the link to the process."""

    def put(self, records: Sequence[T]) -> None:
        """Takes records."""
        self._records.extend(records)
        if len(self._records) >= self._batch:
            self.full()

    def full(self) -> None:
        """A batch is complete: packs it, and hands over what there is if that is much."""
        self.pack()
        if self._bytes >= HANDED_BYTES:
            self._take(self)

    def pack(self) -> None:
        """Makes a batch of the records that were put since the last one."""
        if self._records:
            self._add(self._count(), self._encode(self._records))
            self._records.clear()

    def _count(self) -> int:
        """Returns how many things were put since the last batch."""
        return len(self._records)

    def _add(self, count: int, data: bytes) -> None:
        if self._packed and self._bytes + len(data) > self._room:  # One that waits alone may be larger than the room.
            self.dropped += count
        else:
            self._packed.append((count, len(data).to_bytes(SIZE_BYTES, "big"), data))
            self._bytes += len(data)

    @property
    def fault_line(self) -> str | None:
        """The fault as ``tidegate status`` shows it, with the number of records that were dropped."""
        return None if self.fault is None else f"{self.fault}; {self.dropped} {self.things} were dropped"

    things = "records"
    """How people call them."""

    @property
    def has_batches(self) -> bool:
        """Whether some batch was not taken yet."""
        return bool(self._packed)

    def all(self) -> tuple[int, bytes]:
        """Removes all batches. Returns the number of their records, and their bytes for ``Frames``; b"" if there is
        none."""
        packed = self._packed
        count = sum(count for count, _, _ in packed)
        data = b"".join([piece for _, size, data in packed for piece in (size, data)])
        packed.clear()
        self._bytes = 0
        return count, data

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {len(self._packed)} batches to take, {self.dropped} dropped>"


class Frames:
    """Reads batches from the pieces in which they arrive."""

    __slots__ = ("_rest",)

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """Returns the batches that ``data`` completes."""
        rest, at, found = self._rest + data, 0, []
        while len(rest) - at >= SIZE_BYTES:
            start = at + SIZE_BYTES
            end = start + int.from_bytes(rest[at:start], "big")
            if end > len(rest):
                break
            found.append(rest[start:end])
            at = end
        self._rest = rest[at:]
        return found

    def __repr__(self) -> str:
        return f"<Frames {len(self._rest)} bytes of a batch>"
