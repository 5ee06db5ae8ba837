"""A worker's link to the process that writes its access log."""

import asyncio
import contextlib
import json
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from time import monotonic
from typing import Final

from tidegate.aio.log_stream import say
from tidegate.gateway.access_log.records import AccessLog

RESTART_S: Final = 1.0
MOST_RESTART_S: Final = 60.0
"""A writer that has ended is started again so long after its start, at the earliest; one that has not come up later
each time."""
LAST_S: Final = 1.0
"""Time for which a worker that ends waits until the last lines are written."""
KILL_S: Final = 0.1
"""Time for which a worker waits for the end of a writer whose socket is closed; the kernel may hold it for a disk."""
ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that a writer does not heed, also not before it could say so."""
SLOW: Final = "the process that writes it does not keep up"


class LogWriter:
    """Starts that process, sends it the batches of one worker, and starts it again if it has ended."""

    def __init__(self, loop: asyncio.AbstractEventLoop, form: str, *, offset: float, worker: str) -> None:
        """``form``: ``text`` or ``json``; ``offset``: Unix time less the worker's clock."""
        self._loop = loop
        self._command = (sys.executable, "-P", "-m", "tidegate.gateway.access_log.main", form, repr(offset), worker)
        self._log: AccessLog | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._sock: socket.socket | None = None
        self._started = 0.0
        self._pause_s = RESTART_S
        self._rest = b""
        """The end of a batch of which the writer has the beginning."""
        self._has_reported = False
        self._sent = self._handled = self._dropped = 0
        """Lines that the present writer was sent, that it has had, and that it has dropped."""
        self._lost = 0
        """Lines that were dropped here when this was looked at last."""
        self._heard = b""

    def start(self, log: AccessLog, now: float) -> None:
        """Starts the process for this log."""
        self._log = log
        self._started = now
        self._rest = self._heard = b""
        self._has_reported = False
        self._sent = self._handled = self._dropped = 0
        with contextlib.ExitStack() as opened:
            try:
                ours, theirs = (opened.enter_context(each) for each in socket.socketpair())
                self._process = spawned(self._command, theirs)
            except OSError as error:
                self._failed(log, f"the process that writes it cannot be started: {error.strerror}")
                return
            opened.pop_all()
        theirs.close()
        ours.setblocking(False)
        self._sock = ours
        self._loop.add_reader(ours, self._readable)

    def take(self, log: AccessLog) -> None:
        """Sends what the socket takes now; the rest stays in the log, which is bounded."""
        sock = self._sock
        if sock is None:
            return
        try:
            while True:
                if not self._rest:
                    batch = log.next()
                    if batch is None:
                        return
                    lines, self._rest = batch
                    self._sent += lines
                self._rest = self._rest[sock.send(self._rest) :]
        except BlockingIOError:
            return
        except OSError:
            self._ended()

    def sweep(self, now: float) -> None:
        """Sends what has come together, and starts a writer if there is none. Called some times a second."""
        log = self._log
        if log is None:
            return
        log.pack()
        if self._sock is None and now - self._started >= self._pause_s:
            self.start(log, now)
        self.take(log)
        is_slow = log.has_batches and log.dropped > self._lost and self._sock is not None
        self._lost = log.dropped
        if is_slow:
            log.fault = SLOW
        elif log.fault == SLOW and not log.has_batches:
            log.fault = None

    def close(self) -> None:
        """Sends the last batches and waits, not for long, until they are written."""
        log, sock, process = self._log, self._sock, self._process
        if log is None:
            return
        log.pack()
        left = list(iter(log.next, None))
        if sock is None or process is None:
            _say_lost(sum(lines for lines, _ in left))
            return
        self._loop.remove_reader(sock)
        self._sock = None
        until = monotonic() + LAST_S
        try:
            with sock:
                sock.settimeout(LAST_S)
                sock.sendall(b"".join((self._rest, *(data for _, data in left))))  # The time is that of all together.
                sock.shutdown(socket.SHUT_WR)
                process.wait(max(0.01, until - monotonic()))
        except (OSError, subprocess.TimeoutExpired):
            _say_lost(self._sent - self._handled + sum(lines for lines, _ in left))

    def _readable(self) -> None:
        """Reads the writer's reports; the newest one says it all."""
        sock, log = self._sock, self._log
        if sock is None or log is None:
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
            self._handled, dropped, fault = json.loads(reports[-1])
            log.dropped += dropped - self._dropped
            self._lost += dropped - self._dropped
            self._dropped = dropped
            if fault is not None or log.fault != SLOW:
                log.fault = fault

    def _ended(self) -> None:
        """The writer has ended although its worker has not: what it had and had not reported counts as dropped."""
        sock, process, log = self._sock, self._process, self._log
        if sock is None or process is None or log is None:
            return
        self._loop.remove_reader(sock)
        sock.close()
        self._sock = None
        try:
            end = f"has ended with {process.wait(KILL_S)}"
        except subprocess.TimeoutExpired:
            process.kill()
            end = "has closed its socket"
        lost = self._sent - self._handled
        log.dropped += lost
        self._rest = b""
        self._failed(log, f"the process that writes it {end}")

    def _failed(self, log: AccessLog, fault: str) -> None:
        """There is no writer. Says so once, and not at each further try."""
        if not self._has_reported:
            self._pause_s = min(2.0 * self._pause_s, MOST_RESTART_S)
        if log.fault != fault:
            say(f"access log: {fault}; lines that it had are lost, and another one is started")
        log.fault = fault

    def __repr__(self) -> str:
        return f"<LogWriter {self._process!r}, {self._sent} lines sent>"


def spawned(command: Sequence[str], stdin: socket.socket, *, output: int | None = None) -> subprocess.Popen[bytes]:
    """Starts a process in which the ending signals are held back: it inherits the mask. ``output``: descriptor of its
    standard output in place of ours. Raises OSError."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    try:
        return subprocess.Popen(command, stdin=stdin.fileno(), stdout=output)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _say_lost(lines: int) -> None:
    if lines:
        say(f"access log: up to {lines} of the last lines are lost: no process is there that writes them in time")
