"""A way to a port of this machine that can be cut as a network is: packets are dropped, and no end notices at once."""

import contextlib
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Self

from tests.support.live.redis_server import _free_port as free_port


class Wire:
    """Forwards connections of a port of its own, each by two threads. As root, for ``iptables``."""

    def __init__(self, port: int) -> None:
        self._target = port
        self.port = free_port()
        self._listener = socket.create_server(("127.0.0.1", self.port))
        self._sockets: list[socket.socket] = []
        self._thread = threading.Thread(target=self._accept, daemon=True)

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    def _accept(self) -> None:
        while True:
            try:
                here, _ = self._listener.accept()
                there = socket.create_connection(("127.0.0.1", self._target))
            except OSError:
                return
            self._sockets += [here, there]
            for pair in ((here, there), (there, here)):
                threading.Thread(target=self._copy, args=pair, daemon=True).start()

    @staticmethod
    def _copy(source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while piece := source.recv(1 << 16):
                sink.sendall(piece)
        for each in (source, sink):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    @contextmanager
    def cut(self) -> Iterator[None]:
        """Drops every packet on the way to and from this port."""
        rules = [
            ["INPUT", "-i", "lo", "-p", "tcp", f"--{end}", str(self.port), "-j", "DROP"] for end in ("dport", "sport")
        ]
        for rule in rules:
            subprocess.run(["iptables", "-w", "-I", *rule], check=True, capture_output=True)
        try:
            yield
        finally:
            for rule in rules:
                subprocess.run(["iptables", "-w", "-D", *rule], check=False, capture_output=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        for each in (self._listener, *self._sockets):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
