"""Listening sockets, addresses and what the kernel knows about a peer."""

import contextlib
import fcntl
import os
import select
import socket
import struct
import termios
from pathlib import Path

BACKLOG = 4096
"""asyncio's default of 100 makes connection bursts wait a second for a SYN retry."""
UNIX = "unix:"


def is_unix(address: str) -> bool:
    """Returns True if ``address`` is ``unix:/path``."""
    return address.startswith(UNIX)


def host_port(address: str) -> tuple[str, int]:
    """``127.0.0.1:8080`` or ``[::1]:8080`` in its two parts; raises ValueError for anything else."""
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ValueError(f"address must be host:port or unix:/path, got {address!r}")
    return host.strip("[]"), int(port)


def is_loopback(address: str) -> bool:
    """Returns True if other machines cannot reach ``address``."""
    return is_unix(address) or host_port(address)[0].startswith(("127.", "::1", "localhost"))


def listen(address: str, *, reuse_port: bool = False) -> socket.socket:
    """A listening, non-blocking socket on ``host:port`` (port 0: any free one) or ``unix:/path`` (mode 0600).

    A stale unix socket file is replaced. Raises OSError when the address is taken.
    """
    if is_unix(address):
        return _listen_unix(Path(address.removeprefix(UNIX)))
    host, port = host_port(address)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if reuse_port:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock.bind((host, port))
        sock.listen(BACKLOG)
        sock.setblocking(False)
    except OSError:
        sock.close()
        raise
    return sock


def _listen_unix(path: Path) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
        sock.bind(str(path))
        path.chmod(0o600)
        sock.listen(BACKLOG)
        sock.setblocking(False)
    except OSError:
        sock.close()
        raise
    return sock


def remove(address: str) -> None:
    """Removes the file of ``unix:/path``, if it is there."""
    with contextlib.suppress(FileNotFoundError):
        Path(address.removeprefix(UNIX)).unlink()


def accept_all(sock: socket.socket) -> list[socket.socket]:
    """The connections that stand in the queue of a listening, non-blocking socket."""
    accepted: list[socket.socket] = []
    while True:
        try:
            connection, _ = sock.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return accepted
        except OSError:  # Out of descriptors, or the socket is closed: the rest stays where it is.
            return accepted
        connection.setblocking(False)
        accepted.append(connection)


def notice_loss(sock: socket.socket) -> None:
    """A TCP peer that vanished without a word (power, network) is noticed within about 30 s; no-op for others."""
    if sock.family not in (socket.AF_INET, socket.AF_INET6):
        return
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in (
            ("TCP_KEEPIDLE", 10),
            ("TCP_KEEPINTVL", 5),
            ("TCP_KEEPCNT", 3),
            ("TCP_USER_TIMEOUT", 30_000),
        ):
            option = getattr(socket, name, None)
            if option is not None:
                sock.setsockopt(socket.IPPROTO_TCP, option, value)


def inherited(fd: int) -> socket.socket:
    """The listening socket behind an inherited file descriptor; family and type are read from the kernel."""
    sock = socket.socket(fileno=fd)
    sock.setblocking(False)
    return sock


def address_of(sock: socket.socket) -> str:
    """The bound address as ``host:port`` or ``unix:/path``."""
    name = sock.getsockname()
    if sock.family == socket.AF_UNIX:
        return UNIX + os.fsdecode(name)
    host, port = name[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


_GONE = getattr(select, "POLLRDHUP", 0) | select.POLLHUP | select.POLLERR


def peer_is_gone(sock: socket.socket) -> bool:
    """Returns True if the peer has closed or reset a connection that is not being read (1-2 us).

    While reading is paused an event loop sees neither; on Linux POLLRDHUP reports both. Where the platform lacks it
    only errors are seen.
    """
    fd = sock.fileno()
    if fd < 0:
        return True
    poll = select.poll()
    poll.register(fd, _GONE)
    return bool(poll.poll(0))


def is_readable(sock: socket.socket) -> bool:
    """Returns True if bytes (or the end) wait to be read."""
    fd = sock.fileno()
    if fd < 0:
        return False
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(0))


def reset_on_close(sock: socket.socket) -> None:
    """Makes the next close send RST, so that a peer that reads until EOF sees the truncation."""
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def has_unsent(sock: socket.socket) -> bool:
    """Returns True if bytes that were written wait in the kernel for the peer to make room for them (1 us).

    An end of the connection would stand behind them until the peer reads again; a reset overtakes them.
    """
    with contextlib.suppress(OSError, ValueError):
        return fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, bytes(4)) != bytes(4)
    return False
