"""Small writes that wait for a peer which does not read count by their number, too.

What waits is bounded by ``WRITE_BUFFER_BYTES``, but for each turn of the loop with a write uvloop keeps some 800 bytes
beside what it carries: 50,000 events of six bytes are 40 MB. Over TLS nothing waits, as the transport has it,
before 64 KB do, so that the count begins later there: some 2 MB.
"""

import asyncio

WRITE_BUFFER_BYTES = 256 * 1024
"""Beyond it the other side of an exchange is not read."""
SMALL_BYTES = 1024
SMALL_WRITES = 256
"""So many writes of less than that which wait are a full buffer, whatever they carry."""


class SmallWrites:
    """Those that wait in one transport, whose limit is ``WRITE_BUFFER_BYTES``."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting = 0

    def note(self, transport: asyncio.Transport) -> None:
        """One of less than ``SMALL_BYTES`` is about to be written, and the transport has not said that it is full: with
        too many it says so."""
        if not transport.get_write_buffer_size():
            self._waiting = 0
        elif self._waiting < SMALL_WRITES:
            self._waiting += 1
        else:
            transport.set_write_buffer_limits(high=0)

    def forget(self, transport: asyncio.Transport) -> None:
        """The transport has room again, or gets another protocol."""
        if self._waiting >= SMALL_WRITES and not transport.is_closing():
            transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
        self._waiting = 0

    def __repr__(self) -> str:
        return f"<SmallWrites {self._waiting}>"
