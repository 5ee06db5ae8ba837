"""A worker's link to one of its side processes."""

import asyncio
import contextlib
import json
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from time import monotonic
from typing import Any, Final

from tidegate.aio.log_stream import say
from tidegate.gateway.beside.batches import Batches

RESTART_S: Final = 1.0
MOST_RESTART_S: Final = 60.0
"""A process that has ended is started again so long after its start, at the earliest; one that has not come up later
each time."""
LAST_S: Final = 1.0
"""Time for which a worker that ends waits until the last records have come to their end."""
KILL_S: Final = 0.1
"""Time for which a worker waits for the end of a process whose socket is closed; the kernel may hold it for a disk."""
ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that a side process does not heed, also not before it could say so."""
IS_SLOW: Final = "does not keep up"


class SideProcess:
    """Starts that process, sends it the batches of one worker, and starts it again if it has ended."""

    def __init__(self, loop: asyncio.AbstractEventLoop, title: str, verb: str, *command: str, last_s: float = LAST_S):
        """``title`` and ``verb`` name its task in lines for people (``access log``, ``writes it``); ``command``: its
        module and arguments; ``last_s``: time for the last records when the worker ends."""
        self._loop = loop
        self._title = title
        self._who = f"the process that {verb}"
        self._command = (sys.executable, "-P", "-m", *command)
        self._last_s = last_s
        self._batches: Batches[Any] | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._sock: socket.socket | None = None
        self._is_blocked = False
        """The socket takes no more now; the loop calls when it does again."""
        self._started = 0.0
        self._pause_s = RESTART_S
        self._rest = b""
        """The end of a batch of which the process has the beginning."""
        self._has_reported = False
        self._sent = self._handled = self._dropped = 0
        """Records that the present process was sent, that it has done with, and that it has dropped."""
        self._lost = 0
        """Records that were dropped here when this was looked at last."""
        self._heard = b""

    @property
    def is_started(self) -> bool:
        """Whether ``start`` was called."""
        return self._batches is not None

    @property
    def _slow(self) -> str:
        return f"{self._who} {IS_SLOW}"

    def start(self, batches: Batches[Any], now: float) -> None:
        """Starts the process for these records."""
        self._batches = batches
        self._started = now
        self._rest = self._heard = b""
        self._has_reported = False
        self._sent = self._handled = self._dropped = 0
        with contextlib.ExitStack() as opened:
            try:
                ours, theirs = (opened.enter_context(each) for each in socket.socketpair())
                self._process = spawned(self._command, theirs)
            except OSError as error:
                self._failed(batches, f"{self._who} cannot be started: {error.strerror}")
                return
            opened.pop_all()
        theirs.close()
        ours.setblocking(False)
        self._sock = ours
        self._is_blocked = False
        self._loop.add_reader(ours, self._readable)

    def take(self, batches: Batches[Any]) -> None:
        """Sends what the socket takes now, and the rest when it takes more; what waits is bounded by ``batches``."""
        sock = self._sock
        if sock is None or self._is_blocked:
            return
        try:
            while True:
                if not self._rest:
                    count, self._rest = batches.all()
                    if not self._rest:
                        return
                    self._sent += count
                self._rest = self._rest[sock.send(self._rest) :]
        except BlockingIOError:
            self._is_blocked = True
            self._loop.add_writer(sock, self._writable)
        except OSError:
            self._ended()

    def _writable(self) -> None:
        if self._sock is not None and self._batches is not None:
            self._unblock(self._sock)
            self.take(self._batches)

    def _unblock(self, sock: socket.socket) -> None:
        if self._is_blocked:
            self._is_blocked = False
            self._loop.remove_writer(sock)

    def sweep(self, now: float) -> None:
        """Sends what has come together, and starts a process if there is none. Called some times a second."""
        batches = self._batches
        if batches is None:
            return
        batches.pack()
        if self._sock is None and now - self._started >= self._pause_s:
            self.start(batches, now)
        self.take(batches)
        is_slow = batches.has_batches and batches.dropped > self._lost and self._sock is not None
        self._lost = batches.dropped
        if is_slow:
            batches.fault = self._slow
        elif batches.fault == self._slow and not batches.has_batches:
            batches.fault = None

    def close(self) -> None:
        """Sends the last batches and waits, not for long, until they have come to their end."""
        batches, sock, process = self._batches, self._sock, self._process
        if batches is None:
            return
        batches.pack()
        left, data = batches.all()
        if sock is None or process is None:
            self._say_lost(left)
            return
        self._loop.remove_reader(sock)
        self._unblock(sock)
        self._sock = None
        until = monotonic() + self._last_s
        try:
            with sock:
                sock.settimeout(self._last_s)
                sock.sendall(self._rest + data)  # The time is that of all together.
                sock.shutdown(socket.SHUT_WR)
                process.wait(max(0.01, until - monotonic()))
        except (OSError, subprocess.TimeoutExpired):
            self._say_lost(self._sent - self._handled + left)

    def _readable(self) -> None:
        """Reads the process's reports; the newest one says it all."""
        sock, batches = self._sock, self._batches
        if sock is None or batches is None:
            return
        try:
            data = sock.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._ended()
            return
        *reports, self._heard = (self._heard + data).split(b"\n")
        if reports:
            self._has_reported = True
            self._pause_s = RESTART_S
            handled, dropped, fault = json.loads(reports[-1])
            batches.delivered += handled - dropped - (self._handled - self._dropped)
            batches.dropped += dropped - self._dropped
            self._lost += dropped - self._dropped
            self._handled, self._dropped = handled, dropped
            if fault is not None or batches.fault != self._slow:
                batches.fault = fault

    def _ended(self) -> None:
        """The process has ended although its worker has not: what it had and had not reported counts as dropped."""
        sock, process, batches = self._sock, self._process, self._batches
        if sock is None or process is None or batches is None:
            return
        self._loop.remove_reader(sock)
        self._unblock(sock)
        sock.close()
        self._sock = None
        try:
            end = f"has ended with {process.wait(KILL_S)}"
        except subprocess.TimeoutExpired:
            process.kill()
            end = "has closed its socket"
        batches.dropped += self._sent - self._handled
        self._rest = b""
        self._failed(batches, f"{self._who} {end}")

    def _failed(self, batches: Batches[Any], fault: str) -> None:
        """There is no process. Says so once, and not at each further try."""
        if not self._has_reported:
            self._pause_s = min(2.0 * self._pause_s, MOST_RESTART_S)
        if batches.fault != fault:
            say(f"{self._title}: {fault}; {batches.things} that it had are lost, and another one is started")
        batches.fault = fault

    def _say_lost(self, count: int) -> None:
        if count and self._batches is not None:
            things = self._batches.things
            say(f"{self._title}: up to {count} of the last {things} are lost: {self._who} did not come to its end")

    def __repr__(self) -> str:
        return f"<SideProcess {self._title}, {self._process!r}, {self._sent} sent>"


def spawned(command: Sequence[str], stdin: socket.socket, *, output: int | None = None) -> subprocess.Popen[bytes]:
    """Starts a process in which the ending signals are held back: it inherits the mask. ``output``: descriptor of its
    standard output in place of ours. Raises OSError."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    try:
        return subprocess.Popen(command, stdin=stdin.fileno(), stdout=output)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
