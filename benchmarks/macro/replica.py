"""A replica without a queue_proxy and a model: grants slots to each gateway and answers every request at once.

    python -P -m benchmarks.macro.replica HOST:PORT SLOTS

For questions about the gateway alone: it takes a fifth of the gateway's time, so on a core beside it the gateway limits
the throughput.
"""

import asyncio
import re
import sys
from itertools import count
from typing import cast

from benchmarks.macro.origin import ANSWER
from tidegate.aio.loop import run as loop
from tidegate.aio.loop import sockets
from tidegate.flow.messages import Grant, State, Welcome, encode_message
from tidegate.records.replica_state import ConcurrencyUnit, ReplicaState

_WHOLE = (
    b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n"
    b"tidegate-timing: queue=0.010,model=0.100\r\ntidegate-credit: keep\r\n\r\n%b" % (len(ANSWER), ANSWER)
)
_CHANNEL = b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: tidegate-slots\r\n\r\n"
_LENGTH = re.compile(rb"\r\ncontent-length: *([0-9]+)\r\n", re.IGNORECASE)
_credits = count(1)


class Replica(asyncio.Protocol):
    """One connection of a gateway: its slot channel, or one request at a time."""

    transport: asyncio.Transport

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._data = b""
        self._is_channel = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if self._is_channel:
            return
        self._data = data = self._data + data if self._data else data
        end = data.find(b"\r\n\r\n")
        if end < 0:
            return
        found = _LENGTH.search(data, 0, end + 2)
        if found is None and data.find(b"tidegate-slots", 0, end) >= 0:
            self._is_channel = True
            grant = Grant(tuple((next(_credits), 1) for _ in range(self._slots)))
            welcome = Welcome("null", self._slots, ConcurrencyUnit.REQUESTS)
            messages = (welcome, State(ReplicaState.READY), grant)
            self.transport.write(_CHANNEL + b"".join(encode_message(message) for message in messages))
        elif found is None or len(data) >= end + 4 + int(found[1]):
            self._data = b""
            self.transport.write(_WHOLE)


async def serve(address: str, slots: int) -> None:
    running = asyncio.get_running_loop()
    listener = await running.create_server(lambda: Replica(slots), sock=sockets.listen(address))
    await listener.serve_forever()


if __name__ == "__main__":
    loop.run(serve(sys.argv[1], int(sys.argv[2])))
