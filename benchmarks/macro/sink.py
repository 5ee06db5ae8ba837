"""A server that takes what a gateway exports and only counts it, in a process of its own so that it delays no client.

    python -P -m benchmarks.macro.sink HOST:PORT

A POST is answered 200. A GET is answered with the bytes of all bodies since the last GET.
"""

import asyncio
import os
import re
import sys
from typing import cast

from tidegate.aio.loop import run as loop
from tidegate.aio.loop import sockets

NICENESS = 10
"""It takes what the client and the replica leave."""
_LENGTH = re.compile(rb"\r\ncontent-length: *([0-9]+)\r\n", re.IGNORECASE)
_ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b"


class Sink(asyncio.Protocol):
    """One connection; all of them count together."""

    taken = 0
    transport: asyncio.Transport

    def __init__(self) -> None:
        self._data = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._data += data
        while (end := self._data.find(b"\r\n\r\n")) >= 0:
            found = _LENGTH.search(self._data, 0, end + 2)
            size = int(found[1]) if found is not None else 0
            whole = end + 4 + size
            if len(self._data) < whole:
                return
            is_question = self._data.startswith(b"GET ")
            self._data = self._data[whole:]
            text = b""
            if is_question:
                text, Sink.taken = b"%d" % Sink.taken, 0
            else:
                Sink.taken += size
            self.transport.write(_ANSWER % (len(text), text))


async def serve(address: str) -> None:
    listener = await asyncio.get_running_loop().create_server(Sink, sock=sockets.listen(address))
    await listener.serve_forever()


if __name__ == "__main__":
    os.nice(NICENESS)
    loop.run(serve(sys.argv[1]))
