"""The main loop of every side process: takes the batches that arrive on a socket, and reports what became of them.

The socket is its standard input. Each report is a line: how many records it has done with, how many of them it has
dropped, and what keeps it from its task. It ends once its worker has gone and all that the worker had sent is done.
"""

import json
import os
import select
import signal
import socket
from time import monotonic
from typing import Final, Protocol

from tidegate.aio.allocator import keep_memory
from tidegate.gateway.beside.batches import Frames

EVERY_S: Final = 0.25
"""Time after which what could not be done is tried again, and between two reports."""
_READ_BYTES: Final = 256 * 1024


class Task(Protocol):
    """What a side process does with the records of its worker."""

    @property
    def figures(self) -> tuple[int, int, str | None]:
        """Records that it has done with, those of them that it has dropped, and why the others wait; None: nothing
        keeps them."""

    @property
    def is_busy(self) -> bool:
        """Whether anything of it is left to do."""

    def take(self, batch: bytes) -> None:
        """Takes one batch. Raises msgspec.DecodeError for bytes that are none."""

    def turn(self) -> None:
        """Goes on with what is left to do. Must not wait for long."""

    def close(self) -> None:
        """The worker has gone: brings the rest to its end, or gives up."""


NICENESS: Final = 5
"""A worker and its replicas go before it. Under full load it still gets a quarter of what one of them gets."""


def begin() -> None:
    """Makes this process one that ends with its worker, after the worker's last record, and that does not delay it."""
    keep_memory()  # It reads 128 KB at once: without it, a hundred page faults each time.
    os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))  # Its worker may have real-time priority.
    os.nice(NICENESS)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


def serve(sock: socket.socket, task: Task) -> None:
    """Runs the task until the worker has gone."""
    frames = Frames()
    known = _report(sock, task, None)  # It is up.
    reported = monotonic()
    while True:
        is_waited_for = task.is_busy or task.figures != known
        ready, _, _ = select.select([sock], [], [], EVERY_S if is_waited_for else None)
        data = b""
        if ready:
            try:
                data = sock.recv(_READ_BYTES)
            except ConnectionError:
                break
            if not data:
                break
        for batch in frames.feed(data):
            task.take(batch)
        task.turn()
        if monotonic() - reported >= EVERY_S:  # Each report wakes the worker.
            reported = monotonic()
            known = _report(sock, task, known)
    task.close()


def _report(
    sock: socket.socket, task: Task, known: tuple[int, int, str | None] | None
) -> tuple[int, int, str | None] | None:
    """Sends a report if it differs from the last one. Returns the one that the worker has now."""
    figures = task.figures
    if figures == known:
        return known
    try:
        sock.send(json.dumps(figures).encode() + b"\n", socket.MSG_DONTWAIT)
    except OSError:
        return known  # The worker has gone, or is busy: the next report says it too.
    return figures
