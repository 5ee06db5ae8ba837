"""Accepts the connections of a listening socket itself, so that each may be refused before its TLS handshake.

A loop's own server begins the handshake with every connection that it accepts: clients that send nothing would take all
descriptors, uncounted, until their handshakes time out.
"""

import asyncio
import socket
from collections.abc import Callable
from typing import Final

PER_TURN: Final = 32
"""Connections that are accepted in one turn of the loop."""
PAUSE_S: Final = 0.1
"""Time without accepting after an error, such as that the process has no descriptor left."""


class Acceptor:
    """A listening, non-blocking socket whose connections go to ``accepted`` with their address."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        sock: socket.socket,
        accepted: Callable[[socket.socket, object], None],
    ) -> None:
        self._loop = loop
        self._sock = sock
        self._accepted = accepted
        self._again: asyncio.TimerHandle | None = None
        self._begin()

    def _begin(self) -> None:
        self._again = None
        self._loop.add_reader(self._sock.fileno(), self._readable)

    def _readable(self) -> None:
        for _ in range(PER_TURN):
            try:
                connection, address = self._sock.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError:
                self._loop.remove_reader(self._sock.fileno())
                self._again = self._loop.call_later(PAUSE_S, self._begin)
                return
            connection.setblocking(False)
            self._accepted(connection, address)

    def close(self) -> None:
        """Stops accepting and closes the socket."""
        if self._again is not None:
            self._again.cancel()
        if self._sock.fileno() >= 0:
            self._loop.remove_reader(self._sock.fileno())
            self._sock.close()

    def __repr__(self) -> str:
        return f"<Acceptor {self._sock!r}>"
