"""Turns of reading: after some reads of a peer that sends as fast as we read, the other connections have their turn."""

import asyncio
from collections.abc import Callable
from typing import Final

FULL_READ_BYTES: Final = 128 * 1024
"""A read of so much: more is waiting. uvloop would read the same socket up to 32 times before it looks at another."""
READS_PER_TURN: Final = 4
"""Full reads of one connection in one turn of the loop; where what was read is work of its own (chunks, which may be as
small as the peer likes, or frames), it is one."""


class ReadTurns:
    """The full reads of one connection in the present turn of the loop."""

    __slots__ = ("_reads", "is_over")

    def __init__(self) -> None:
        self._reads = 0
        self.is_over = False
        """Whether the connection is read again in the next turn only."""

    def take(self, reads: int, go_on: Callable[[], object]) -> bool:
        """Counts full reads. Returns True if the connection has had its turn: its owner stops reading, and ``go_on`` is
        called in the next turn."""
        if not self._reads:
            asyncio.get_running_loop().call_soon(self._next, go_on)
        self._reads += reads
        self.is_over = self._reads >= READS_PER_TURN
        return self.is_over

    def _next(self, go_on: Callable[[], object]) -> None:
        was_over, self.is_over = self.is_over, False
        self._reads = 0
        if was_over:
            go_on()

    def __repr__(self) -> str:
        return f"<ReadTurns {self._reads} of {READS_PER_TURN} reads>"
