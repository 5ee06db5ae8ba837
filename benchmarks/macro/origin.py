"""A backend for what nginx cannot do: takes uploads whole, works for a while, streams events.

    python -P -m benchmarks.macro.origin HOST:PORT

A POST is answered when its body is there, ``x-work-ms`` milliseconds later where the request has that field.
``GET /events/RATE`` sends an event stream with RATE events per second, each with the monotonic clock in nanoseconds
at which it was written; ``GET /flood`` sends events as fast as they are taken, each a chunk of its own. Both end with
the connection.
"""

import asyncio
import re
import sys
import time
from typing import cast

from tidegate.aio.loop import run as loop
from tidegate.aio.loop import sockets

ANSWER = (
    b'{"model_name":"resnet","outputs":[{"name":"output","shape":[1,4],"datatype":"FP32","data":[0.1,0.2,0.3,0.4]}]}'
)
_WHOLE = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(ANSWER), ANSWER)
_STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
_EVENT = b'data: {"t":%d,"choices":[{"index":0,"delta":{"content":" tide"},"finish_reason":null}]}\n\n'
_LENGTH = re.compile(rb"\r\ncontent-length: *([0-9]+)\r\n", re.IGNORECASE)
_WORK = re.compile(rb"\r\nx-work-ms: *([0-9]+)\r\n", re.IGNORECASE)
_FLOOD_EVENTS = 64


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


_FLOOD = chunk(_EVENT % 10**12) * _FLOOD_EVENTS


class Origin(asyncio.Protocol):
    """One connection, one request at a time."""

    transport: asyncio.Transport

    def __init__(self, running: asyncio.AbstractEventLoop) -> None:
        self._loop = running
        self._head = b""
        self._missing = 0
        """Bytes of the body that have not come yet."""
        self._work_s = 0.0
        self._may_write = True
        self._gone = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._gone = True

    def pause_writing(self) -> None:
        self._may_write = False

    def resume_writing(self) -> None:
        self._may_write = True
        self._flood()

    def data_received(self, data: bytes) -> None:
        if self._missing:
            self._missing -= len(data)
            if not self._missing:
                self._answer()
            return
        self._head += data
        end = self._head.find(b"\r\n\r\n")
        if end < 0:
            return
        head, arrived = self._head[: end + 2], len(self._head) - end - 4
        self._head = b""
        if head.startswith(b"GET /events/"):
            self.transport.write(_STREAM)
            self._tick(1.0 / int(head.split(b" ", 2)[1].rpartition(b"/")[2]), self._loop.time())
        elif head.startswith(b"GET /flood"):
            self.transport.write(_STREAM)
            self._flood()
        else:
            length, work = _LENGTH.search(head), _WORK.search(head)
            self._work_s = int(work[1]) / 1000 if work else 0.0
            self._missing = (int(length[1]) if length else 0) - arrived
            if not self._missing:
                self._answer()

    def _answer(self) -> None:
        if self._work_s:
            self._loop.call_later(self._work_s, self._write)
        else:
            self._write()

    def _write(self) -> None:
        if not self._gone:
            self.transport.write(_WHOLE)

    def _tick(self, every_s: float, due: float) -> None:
        if not self._gone:
            self.transport.write(chunk(_EVENT % time.monotonic_ns()))
            self._loop.call_at(due + every_s, self._tick, every_s, due + every_s)

    def _flood(self) -> None:
        while self._may_write and not self.transport.is_closing():
            self.transport.write(_FLOOD)


async def main(listen: str) -> None:
    """Serves until it is killed."""
    running = asyncio.get_running_loop()
    server = await running.create_server(lambda: Origin(running), sock=sockets.listen(listen), backlog=4096)
    await server.serve_forever()


if __name__ == "__main__":
    loop.run(main(sys.argv[1]))
