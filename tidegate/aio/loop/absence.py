"""Notices clients that go away while their connections are not read from.

A loop sees neither the end nor a reset of a connection whose reading is paused. The kernel reports both to an epoll of
its own, which the loop watches like any descriptor: nothing is polled. Without epoll (macOS) the ticker asks, every
250 ms.
"""

import asyncio
import contextlib
import select
from collections.abc import Callable
from typing import Any, Final

from tidegate.aio.loop import sockets

_GONE: Final = getattr(select, "EPOLLRDHUP", 0) | getattr(select, "EPOLLHUP", 0) | getattr(select, "EPOLLERR", 0)


class AbsenceWatch:
    """The connections of one loop that are not read from."""

    __slots__ = ("_by_fd", "_epoll", "_loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._by_fd: dict[int, tuple[object, Callable[[], None]]] = {}
        self._epoll: Any = None

    def watch(self, owner: object, fd: int, gone: Callable[[], None]) -> None:
        """Calls ``gone`` once if the peer of ``fd`` goes away, unless the owner takes it back before."""
        if fd < 0 or not hasattr(select, "epoll"):
            return
        if self._epoll is None:
            self._epoll = select.epoll()
            self._loop.add_reader(self._epoll.fileno(), self._look)
        try:
            self._epoll.register(fd, _GONE)
        except FileExistsError:
            self._epoll.modify(fd, _GONE)
        except OSError:
            return  # The ticker asks.
        self._by_fd[fd] = (owner, gone)

    def watch_peer(self, owner: object, transport: asyncio.BaseTransport, gone: Callable[[], None]) -> int:
        """Watches the peer of a transport; returns the descriptor for :meth:`unwatch`, -1 without a socket."""
        sock = transport.get_extra_info("socket")
        fd = -1 if sock is None else int(sock.fileno())
        self.watch(owner, fd, gone)
        return fd

    def unwatch(self, owner: object, fd: int) -> None:
        """Takes a watch back. The descriptor may be closed by now, and be another connection's."""
        found = self._by_fd.get(fd)
        if found is not None and found[0] is owner:
            self._forget(fd)

    def _forget(self, fd: int) -> None:
        del self._by_fd[fd]
        with contextlib.suppress(OSError, ValueError):
            self._epoll.unregister(fd)

    def _look(self) -> None:
        for fd, _ in self._epoll.poll(0):
            found = self._by_fd.get(fd)
            if found is None:
                with contextlib.suppress(OSError, ValueError):
                    self._epoll.unregister(fd)
                continue
            self._forget(fd)
            found[1]()

    def close(self) -> None:
        if self._epoll is not None:
            self._loop.remove_reader(self._epoll.fileno())
            self._epoll.close()
            self._epoll = None
            self._by_fd.clear()

    def __repr__(self) -> str:
        return f"<AbsenceWatch of {len(self._by_fd)} connections>"


class PeerWatch:
    """The watch over one connection's peer; taken back when the connection is read again for good, or ends."""

    __slots__ = ("_absence", "_fd", "_gone")

    def __init__(self, absence: AbsenceWatch) -> None:
        self._absence = absence
        self._fd = -1
        """The descriptor while it is watched, else -1."""
        self._gone: Callable[[], None] | None = None
        """Set while it is watched: a bound method of the connection, and no circle is left to the collector."""

    def begin(self, transport: asyncio.BaseTransport, gone: Callable[[], None]) -> None:
        """Calls ``gone`` once if the peer goes away. Does nothing if it is watched already."""
        if self._fd < 0:
            self._gone = gone
            self._fd = self._absence.watch_peer(self, transport, self._noticed)

    def end(self) -> None:
        """Takes the watch back."""
        if self._fd >= 0:
            self._absence.unwatch(self, self._fd)
        self._fd, self._gone = -1, None

    def _noticed(self) -> None:
        gone = self._gone
        self._fd, self._gone = -1, None
        if gone is not None:
            gone()

    def __repr__(self) -> str:
        return f"<PeerWatch of descriptor {self._fd}>"


def peer_is_gone(transport: asyncio.BaseTransport) -> bool:
    """Returns whether the peer of a transport has gone, asked of its socket now."""
    sock = transport.get_extra_info("socket")
    return sock is None or sockets.peer_is_gone(sock)
