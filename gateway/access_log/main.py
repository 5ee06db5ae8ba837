"""The process that writes the access log of one worker (a side process: ``gateway/beside/main.py``).

    python -P -m tidegate.gateway.access_log.main FORMAT OFFSET WORKER

Lines go to standard output, which is the worker's. When the disk is full, lines wait up to a bound; beyond it they are
dropped and reported.
"""

import os
import socket
import sys
from collections import deque
from itertools import islice
from typing import Final

from tidegate.aio.log_stream import say, use_json
from tidegate.gateway.access_log.lines import Lines
from tidegate.gateway.access_log.records import BUFFERED_BYTES, decode_batch
from tidegate.gateway.beside.main import begin, serve

EXIT_USAGE: Final = 2
_PIECES: Final = 1024
"""Pieces of one writev(2) at most, IOV_MAX of Linux."""


class Writer:
    """Writes the lines of ended requests to a file (a ``Task``)."""

    def __init__(self, output: int, lines: Lines) -> None:
        """``output``: descriptor of the file."""
        self._output = output
        self._lines = lines
        self._waiting: deque[tuple[bytes, int]] = deque()
        """What could not be written yet of the lines of each batch, and their number."""
        self._bytes = 0
        """Bytes of them."""
        self._handled = self._dropped = 0
        """Lines that are written or dropped, and those of them that are dropped."""
        self._fault: str | None = None

    @property
    def figures(self) -> tuple[int, int, str | None]:
        return self._handled, self._dropped, self._fault

    @property
    def is_busy(self) -> bool:
        return bool(self._waiting)

    def take(self, batch: bytes) -> None:
        found = decode_batch(batch)
        lines, count = self._lines.made(found), len(found[0])
        if self._waiting and self._bytes + len(lines) > BUFFERED_BYTES:
            self._handled += count
            self._dropped += count
        else:
            self._waiting.append((lines, count))
            self._bytes += len(lines)

    def turn(self) -> None:
        waiting = self._waiting
        if not waiting:
            return
        self._fault = None
        try:
            written = os.writev(self._output, [lines for lines, _ in islice(waiting, _PIECES)])
        except OSError as error:
            self._fault = error.strerror
            return
        self._bytes -= written
        while waiting and written >= len(waiting[0][0]):
            lines, count = waiting.popleft()
            written -= len(lines)
            self._handled += count
        if written:
            lines, count = waiting[0]
            waiting[0] = lines[written:], count

    def close(self) -> None:
        self.turn()
        if self._waiting:
            count = sum(count for _, count in self._waiting)
            say(f"access log: {count} of the last lines cannot be written: {self._fault or 'the output takes no more'}")

    def __repr__(self) -> str:
        return f"<Writer {self._handled} lines, {self._dropped} dropped>"


def main(arguments: list[str]) -> int:
    """Runs the writer to its end. Returns the exit code of the process."""
    try:
        form, offset, worker = arguments
        lines = Lines(as_json=form == "json", offset=float(offset))
    except ValueError:
        sys.stderr.write("usage: python -P -m tidegate.gateway.access_log.main text|json OFFSET WORKER\n")
        return EXIT_USAGE
    begin()
    if form == "json":
        use_json({"logger": "gateway", "worker": worker})
    serve(socket.socket(fileno=os.dup(0)), Writer(1, lines))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
