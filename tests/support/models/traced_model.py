"""A fast model server with a journal: ``python edge_traced_model.py --listen unix:/path | host:port [--journal FILE]``.

Every ``POST`` runs for ``x-work-ms`` and is answered with its own ``x-id`` and the number of body bytes, or ``x-size``
bytes, or ``x-events`` server-sent events ``x-gap-ms`` apart. A request runs from its head on, body included. A GET with
``upgrade: websocket`` gets 101 and every byte back. It stops working on a request the moment its connection closes.

The journal survives a kill. One line per event, times in nanoseconds of the machine's monotonic clock, which all
processes share: ``L - time`` when it listens, ``S id time running`` at the head (``running``: requests whose
connection the other side still holds, this one included), ``E id time`` at the end, ``X id time`` when the other side
closed first. ``GET /stats`` has the counts. Standard library only, uvloop where it is there.
"""

import argparse
import asyncio
import json
import os
import re
import select
import signal
import socket
from collections.abc import Callable
from time import monotonic_ns
from typing import Any, cast

try:
    from uvloop import new_event_loop
except ImportError:  # the plain loop does as well
    from asyncio import new_event_loop  # type: ignore[assignment]

FIELD = re.compile(rb"\r\n(content-length|transfer-encoding|expect|upgrade|x-[a-z-]+): *([^\r\n]*)", re.IGNORECASE)
PROBES = {b"/v2/health/ready": b'{"ready":true}', b"/ready": b"{}"}


class Model:
    """What all connections share."""

    def __init__(self, journal: str | None) -> None:
        self.total = self.most = self.ended = self.gone = 0
        self.running: set[Connection] = set()
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
        self._journal = os.open(journal, flags, 0o600) if journal else None

    def note(self, kind: str, name: str, *more: int) -> None:
        if self._journal is not None:
            text = " ".join([kind, name or "-", str(monotonic_ns()), *map(str, more)])
            os.write(self._journal, text.encode() + b"\n")

    def started(self, connection: "Connection") -> None:
        self.total += 1
        self.running.add(connection)
        running = sum(not one.is_left() for one in self.running) if len(self.running) > 1 else 1
        self.most = max(self.most, running)
        self.note("S", connection.name, running)

    def finished(self, connection: "Connection", *, gone: bool) -> None:
        self.running.discard(connection)
        if gone:
            self.gone += 1
        else:
            self.ended += 1
        self.note("X" if gone else "E", connection.name)

    def stats(self) -> bytes:
        counts = {"total": self.total, "most": self.most, "ended": self.ended, "gone": self.gone}
        return json.dumps(counts | {"running": len(self.running)}).encode()


class Connection(asyncio.Protocol):
    """One connection; requests one after the other."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._loop = asyncio.get_running_loop()
        self._buffer = b""
        self._left: int | None = 0
        """Body bytes still to come; None: chunked, until its end."""
        self._bytes = 0
        self._fields: dict[bytes, bytes] = {}
        self._is_running = self._is_tunnel = False
        self._timer: asyncio.TimerHandle | None = None
        self.name = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def is_left(self) -> bool:
        """Whether the other side has closed already, by the word of the kernel."""
        sock: socket.socket | None = self._transport.get_extra_info("socket")
        if sock is None or sock.fileno() < 0:
            return True
        poll = select.poll()
        poll.register(sock.fileno(), select.POLLRDHUP)
        return bool(poll.poll(0))

    def data_received(self, data: bytes) -> None:
        if self._is_tunnel:
            self._transport.write(data)
            return
        self._buffer += data
        while self._buffer and (self._body() if self._is_running else self._head()):
            pass

    def _head(self) -> bool:
        """Reads a head; False: not there yet."""
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            return False
        head, self._buffer = self._buffer[: end + 2], self._buffer[end + 4 :]
        method, path, _ = head.split(b" ", 2)
        self._fields = {name.lower(): value for name, value in FIELD.findall(head)}
        if method == b"GET":
            self._get(path)
            return True
        chunked = self._fields.get(b"transfer-encoding") == b"chunked"
        self._left = None if chunked else int(self._fields.get(b"content-length", b"0"))
        self._bytes = 0
        self.name = self._fields.get(b"x-id", b"").decode()
        self._is_running = True
        self._model.started(self)
        if b"expect" in self._fields:
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        return self._body()

    def _get(self, path: bytes) -> None:
        if b"upgrade" in self._fields:
            self._is_tunnel = True
            answer = b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n"
            self._transport.write(answer + self._buffer)
        elif path == b"/stats":
            self._answer(200, self._model.stats())
        elif path == b"/tidegate/declared":
            self._answer(404, b"")
        else:
            self._answer(200, PROBES.get(path, b'{"name":"m","platform":"edge"}'))

    def _body(self) -> bool:
        """Reads of the body what is there; False: more must come, or the work has begun."""
        if self._timer is not None:
            return False  # pipelined
        if self._left is None:
            return self._chunk()
        taken = min(self._left, len(self._buffer))
        self._left -= taken
        self._bytes += taken
        self._buffer = self._buffer[taken:]
        if self._left:
            return False
        self._work()
        return not self._is_running

    def _chunk(self) -> bool:
        line = self._buffer.find(b"\r\n")
        if line < 0:
            return False
        size = int(self._buffer[:line], 16)
        if len(self._buffer) < line + 4 + size:
            return False
        self._buffer = self._buffer[line + 4 + size :]
        self._bytes += size
        if size:
            return True
        self._work()
        return not self._is_running

    def _work(self) -> None:
        if b"x-die" in self._fields:
            os.kill(os.getpid(), signal.SIGKILL)
        work_s = float(self._fields.get(b"x-work-ms", b"0")) / 1000
        self._then(work_s, self._begin_answer)

    def _then(self, after_s: float, what: Callable[[], None]) -> None:
        if after_s:
            self._timer = self._loop.call_later(after_s, self._run, what)
        else:
            what()

    def _run(self, what: Callable[[], None]) -> None:
        self._timer = None
        what()
        if not self._is_running and self._buffer:
            self.data_received(b"")

    def _begin_answer(self) -> None:
        fields = self._fields
        if b"x-events" in fields:
            self._transport.write(
                b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
            )
            self._event(0)
            return
        size = int(fields.get(b"x-size", b"0"))
        answer = b"x" * size if size else b'{"id":"%b","bytes":%d}' % (self.name.encode(), self._bytes)
        self._finished()
        self._answer(int(fields.get(b"x-status", b"200")), answer)

    def _event(self, number: int) -> None:
        if number == int(self._fields[b"x-events"]):
            self._finished()
            self._transport.write(b"0\r\n\r\n")
            return
        event = b"data: %b %d %d\n\n" % (self.name.encode(), number, monotonic_ns())
        self._transport.write(b"%x\r\n%b\r\n" % (len(event), event))
        self._then(float(self._fields.get(b"x-gap-ms", b"0")) / 1000, lambda: self._event(number + 1))

    def _finished(self) -> None:
        self._is_running = False
        self._model.finished(self, gone=False)

    def _answer(self, status: int, body: bytes) -> None:
        head = b"HTTP/1.1 %d X\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % (status, len(body))
        self._transport.write(head + body)

    def eof_received(self) -> bool:
        self._gone()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._gone()

    def _gone(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._is_running:
            self._is_running = False
            self._model.finished(self, gone=True)


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--listen", required=True)
    parser.add_argument("--journal")
    options = parser.parse_args()
    loop = asyncio.get_running_loop()
    model = Model(options.journal)
    server: Any
    if options.listen.startswith("unix:"):
        server = await loop.create_unix_server(lambda: Connection(model), options.listen[5:], backlog=1024)
    else:
        host, _, port = options.listen.rpartition(":")
        server = await loop.create_server(lambda: Connection(model), host, int(port), backlog=1024)
    model.note("L", "-")
    await server.serve_forever()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(main())
