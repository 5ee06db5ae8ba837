"""Hands a listening socket from one process to another: a unix socket and SCM_RIGHTS.

The taker makes an :class:`Inbox` and sends its path to the giver; the giver sends the socket before it answers, so that
the taker finds it there. Both processes have it then; a waiting connection belongs to the process that accepts it
first.
"""

import os
import socket
from pathlib import Path

GIVE_S = 1.0
"""For the taker's socket to take the message; it listens already."""
_WORD = b"listener"
_CLOEXEC = getattr(socket, "MSG_CMSG_CLOEXEC", 0)


def give_listener(sock: socket.socket, path: str) -> None:
    """Sends ``sock`` to the inbox at ``path``; raises OSError when it cannot be reached or ``sock`` is closed."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
        line.settimeout(GIVE_S)
        line.connect(path)
        socket.send_fds(line, [_WORD], [sock.fileno()])


class Inbox:
    """A unix socket (mode 0600) that takes listening sockets; a context manager."""

    def __init__(self, path: Path) -> None:
        """Raises OSError."""
        self.path = path
        path.unlink(missing_ok=True)
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._sock.bind(str(path))
            path.chmod(0o600)
            self._sock.listen(16)
            self._sock.setblocking(False)
        except OSError:
            self._sock.close()
            raise

    def take(self) -> socket.socket:
        """The socket that was sent, not inheritable and non-blocking; raises OSError when none was."""
        line, _ = self._sock.accept()
        with line:
            line.setblocking(False)
            word, descriptors, _, _ = socket.recv_fds(line, len(_WORD), 1, _CLOEXEC)
        if word != _WORD or len(descriptors) != 1:
            raise OSError("no socket was sent")
        found = socket.socket(fileno=descriptors[0])
        os.set_inheritable(found.fileno(), False)
        found.setblocking(False)
        if not found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            found.close()
            raise OSError("what was sent does not listen")
        return found

    def close(self) -> None:
        self._sock.close()
        self.path.unlink(missing_ok=True)

    def __enter__(self) -> "Inbox":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Inbox {self.path}>"
