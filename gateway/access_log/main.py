"""The process that writes the access log of one worker.

    python -P -m tidegate.gateway.access_log.main FORMAT OFFSET WORKER

Its standard input is a socket: batches of ended requests come in, reports go out, a line each. Lines go to standard
output, which is the worker's. It ends once its worker has gone and all that the worker had sent is written. When the
disk is full, lines wait up to a bound; beyond it they are dropped and reported.
"""

import json
import os
import select
import signal
import socket
import sys
from collections import deque
from time import monotonic
from typing import Final

from tidegate.aio.log_stream import say, use_json
from tidegate.gateway.access_log.lines import Lines
from tidegate.gateway.access_log.records import BUFFERED_BYTES, Unpacker

EVERY_S: Final = 0.25
"""Time after which lines that could not be written are tried again, and between two reports."""
_READ_BYTES: Final = 256 * 1024
EXIT_USAGE: Final = 2


class Writer:
    """Writes the lines of the batches that arrive on a socket to a file."""

    def __init__(self, sock: socket.socket, output: int, lines: Lines) -> None:
        """``output``: descriptor of the file."""
        self._sock = sock
        self._output = output
        self._lines = lines
        self._unpacker = Unpacker()
        self._waiting = b""
        """Lines that could not be written yet."""
        self._ends: deque[tuple[int, int]] = deque()
        """Of each batch that waits: where it ends, in bytes of all that were made, and its lines."""
        self._made = self._written = 0
        """Bytes of lines."""
        self._handled = self._dropped = 0
        """Lines that are written or dropped, and those of them that are dropped."""
        self._reported = 0
        """``_handled`` in the last report."""
        self._fault: str | None = None

    def run(self) -> None:
        """Writes until the worker has gone."""
        self._report()  # It is up.
        reported = monotonic()
        while True:
            is_waited_for = self._waiting or self._handled != self._reported
            ready, _, _ = select.select([self._sock], [], [], EVERY_S if is_waited_for else None)
            data = b""
            if ready:
                try:
                    data = self._sock.recv(_READ_BYTES)
                except ConnectionError:
                    break
                if not data:
                    break
            self._take(data)
            self._write()
            if monotonic() - reported >= EVERY_S:  # Each report wakes the worker.
                reported = monotonic()
                self._report()
        self._write()
        if self._ends:
            lines = sum(lines for _, lines in self._ends)
            say(f"access log: {lines} of the last lines cannot be written: {self._fault or 'the output takes no more'}")

    def _take(self, data: bytes) -> None:
        for batch in self._unpacker.feed(data):
            lines = self._lines.made(batch)
            if len(self._waiting) + len(lines) > BUFFERED_BYTES:
                self._handled += len(batch)
                self._dropped += len(batch)
            else:
                self._waiting += lines
                self._made += len(lines)
                self._ends.append((self._made, len(batch)))

    def _write(self) -> None:
        if not self._waiting:
            return
        self._fault = None
        try:
            written = os.write(self._output, self._waiting)
        except OSError as error:
            self._fault = error.strerror
            return
        self._waiting = self._waiting[written:]
        self._written += written
        while self._ends and self._ends[0][0] <= self._written:
            self._handled += self._ends.popleft()[1]

    def _report(self) -> None:
        """Reports how many lines are written or dropped, how many are dropped, and what keeps it from writing."""
        line = json.dumps([self._handled, self._dropped, self._fault]).encode() + b"\n"
        try:
            self._sock.send(line, socket.MSG_DONTWAIT)
        except OSError:
            return  # The worker has gone, or is busy: the next report says it too.
        self._reported = self._handled

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
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # It ends with its worker, after the worker's last line.
    if form == "json":
        use_json({"logger": "gateway", "worker": worker})
    Writer(socket.socket(fileno=os.dup(0)), 1, lines).run()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
