"""Bytes from one socket to another through a pipe of the kernel: they never come to user space (Linux, splice(2)).

The pipe is empty between two calls, so all connections of an event loop share one. What the second socket does not take
comes out of the pipe into a ``bytes`` and goes the ordinary way. A transport goes on reading its socket meanwhile: what
it reads is the sign that more has come, and all ends and errors are still its own to find. docs/adr/0046 says what this
gains.
"""

import asyncio
import contextlib
import errno
import os

try:
    from fcntl import F_SETPIPE_SZ, fcntl
    from os import SPLICE_F_MOVE, SPLICE_F_NONBLOCK, pipe2, splice
except ImportError:  # not Linux
    IS_THERE = False
else:
    IS_THERE = True

LEAST_BYTES = 64 * 1024
"""Least missing part of a body that is spliced: for less the system calls cost more than two copies."""
HELD_BYTES = 256 * 1024
"""In the pipe at most; as much as a connection that is written to may hold back."""
MOST_BYTES = 1024 * 1024
"""In one call, then other connections have their turn."""
GLIMPSE_BYTES = 64 * 1024
"""Read of a socket at once where the rest is going to be moved."""
GLIMPSED_BYTES = GLIMPSE_BYTES + LEAST_BYTES
"""Least missing part of a body for which the next read is short: of a shorter body too little would be left."""
_NEVER = (errno.EINVAL, errno.ENOSYS, errno.EPERM)
"""The kernel cannot do it with such sockets, or a sandbox does not let us."""


class Splicer:
    """Moves bytes between non-blocking stream sockets. Belongs to one event loop; not for two threads."""

    __slots__ = ("_pipe", "buffer", "is_usable")

    def __init__(self) -> None:
        self._pipe: tuple[int, int] | None = None
        """Read end, write end."""
        self.is_usable = IS_THERE
        """False where it cannot be done; :meth:`move` moves nothing then."""
        self.buffer = memoryview(bytearray(GLIMPSE_BYTES))
        """For every :class:`Glimpse` of this loop: what was read there leaves it before the next read."""

    def move(self, source: int, sink: int, size: int) -> tuple[int, bytes]:
        """Moves at most ``size`` bytes that have arrived at the socket ``source`` to the socket ``sink``.

        Returns the number of bytes that ``sink`` took, and the bytes behind them that it did not take. Ends and errors
        of either socket are not reported: the next read or write finds them.
        """
        pipe = self._pipe or self._open()
        if pipe is None:
            return 0, b""
        try:
            return self._through(*pipe, source, sink, size)
        except BaseException:
            self.close()  # What is left in there is one client's, and not for the next.
            raise

    def _through(self, reading: int, writing: int, source: int, sink: int, size: int) -> tuple[int, bytes]:
        passed = 0
        while passed < size:
            try:
                held = splice(source, writing, min(size - passed, HELD_BYTES), flags=SPLICE_F_MOVE | SPLICE_F_NONBLOCK)
            except OSError as error:
                if error.errno in _NEVER:
                    self.is_usable = False
                break
            if not held:
                break
            while held:
                try:
                    taken = splice(reading, sink, held, flags=SPLICE_F_MOVE | SPLICE_F_NONBLOCK)
                except OSError:
                    return passed, _read(reading, held)
                passed += taken
                held -= taken
        return passed, b""

    def _open(self) -> tuple[int, int] | None:
        """Opens the pipe. Returns None if no descriptor is left, or if splicing is not possible here."""
        if self.is_usable:
            with contextlib.suppress(OSError):
                self._pipe = pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
                fcntl(self._pipe[1], F_SETPIPE_SZ, HELD_BYTES)  # else it holds less at a time
        return self._pipe

    def close(self) -> None:
        """Closes the pipe; the next move opens another one."""
        pipe, self._pipe = self._pipe, None
        for end in pipe or ():
            os.close(end)

    def __repr__(self) -> str:
        return f"<Splicer {'open' if self._pipe else 'closed' if self.is_usable else 'not usable'}>"


def _read(reading: int, size: int) -> bytes:
    pieces = []
    while size:
        pieces.append(os.read(reading, size))
        size -= len(pieces[-1])
    return b"".join(pieces)


class Glimpse(asyncio.BufferedProtocol):
    """Stands before a protocol and reads little at once, so that there is something left to be moved."""

    __slots__ = ("_buffer", "_protocol")

    def __init__(self, protocol: asyncio.Protocol, buffer: memoryview) -> None:
        self._protocol = protocol
        self._buffer = buffer

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self._protocol.data_received(self._buffer[:nbytes].tobytes())

    def eof_received(self) -> bool | None:
        return self._protocol.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self._protocol.connection_lost(exc)

    def pause_writing(self) -> None:
        self._protocol.pause_writing()

    def resume_writing(self) -> None:
        self._protocol.resume_writing()


def sink_of(transport: asyncio.Transport) -> int | None:
    """Returns the descriptor of a transport's socket if bytes may be written to it directly: nothing waits before them,
    and they are not encrypted."""
    if transport.is_closing() or transport.get_write_buffer_size():
        return None
    if transport.get_extra_info("ssl_object") is not None:
        return None
    sock = transport.get_extra_info("socket")
    return None if sock is None else int(sock.fileno())
