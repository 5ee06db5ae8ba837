"""A model server that does as its switches and requests say: ``python scripted_server.py --listen ADDRESS [...]``.

``ADDRESS`` is ``unix:/path`` or ``host:port``. Standard library only, so that it starts in milliseconds under any
interpreter (uvloop with ``--fast``, if it is installed).

Requests. Every ``POST`` runs for ``x-work-ms`` and is answered with its own ``x-id`` and the number of body bytes, or
with ``x-size`` bytes, or ``x-events`` server-sent events ``x-gap-ms`` apart, or with its body (``--echo``). Its status
is ``x-status``. A request runs from its head on, body included. A ``GET`` with ``upgrade: websocket`` gets 101 and its
bytes back, as WebSocket messages if it brings a key. ``GET /events?count=N&every=S`` is an event stream.

Paths. ``/ready`` and ``/v2/health/ready`` are ready (``/ready`` after ``--ready-after`` seconds). ``GET /hold`` is
answered after ``POST /release``. ``GET /die`` ends the process. ``POST /mood`` with ``{"breaks": true}`` makes it close
the connection of every later request, with ``{"delay_s": 3}`` makes them slow; ``GET /probe`` is 503 while it breaks.
``/tidegate/declared`` answers ``--declared``. Every other ``GET`` is metadata.

``GET /stats`` counts. ``total``: requests; ``running``; ``ended``; ``cancelled``: closed by the other side first.
``most`` is the most that ran at once for a connection that the other side still holds, which is what a slot bounds
(slots, rule 7): the kernel is asked, since this loop may see the next request before the end of an aborted connection.
``most_worked`` is the most that ran at once at all. ``seen`` is the fields of the last 20 requests.

It stops working on a request when its connection closes, unless it has ``--keep-working``.

The journal (``--journal FILE``) survives a kill. One line per event, times in nanoseconds of the machine's monotonic
clock, which all processes share: ``L - time`` when it listens, ``S id time running`` at the head (``running`` as in
``most``, this one included), ``E id time`` at the end, ``X id time`` when the other side closed first.
"""

import argparse
import asyncio
import json
import os
import re
import select
import socket
import sys
from collections import deque
from collections.abc import Callable
from time import monotonic_ns
from typing import Any, cast

FIELD = re.compile(
    rb"\r\n(content-length|transfer-encoding|expect|upgrade|sec-websocket-key|x-[a-z-]+): *([^\r\n]*)", re.IGNORECASE
)
EVENT_STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


class Model:
    """The state that all connections share."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.ready_at = asyncio.get_running_loop().time() + options.ready_after
        self.breaks = False
        self.delay_s = 0.0
        self.held: list[Connection] = []
        """Connections with a request for ``/hold``."""
        self.total = self.most = self.most_worked = self.ended = self.cancelled = 0
        self.running: set[Connection] = set()
        self.heads: deque[bytes] = deque(maxlen=20)
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
        self._journal = os.open(options.journal, flags, 0o600) if options.journal else None

    def note(self, kind: str, name: str, *more: int) -> None:
        if self._journal is not None:
            text = " ".join([kind, name or "-", str(monotonic_ns()), *map(str, more)])
            os.write(self._journal, text.encode() + b"\n")

    def started(self, connection: "Connection", head: bytes) -> None:
        self.total += 1
        self.heads.append(head)
        self.running.add(connection)
        self.most_worked = max(self.most_worked, len(self.running))
        running = sum(not one.is_left() for one in self.running) if len(self.running) > 1 else 1
        self.most = max(self.most, running)
        self.note("S", connection.name, running)

    def finished(self, connection: "Connection", *, is_left: bool) -> None:
        self.running.discard(connection)
        if is_left:
            self.cancelled += 1
        else:
            self.ended += 1
        self.note("X" if is_left else "E", connection.name)

    def release(self) -> None:
        for connection in self.held:
            connection.answer(200, b"held")
        self.held.clear()

    def stats(self) -> bytes:
        counts = {"total": self.total, "most": self.most, "most_worked": self.most_worked, "ended": self.ended}
        counts |= {"cancelled": self.cancelled, "running": len(self.running)}
        return json.dumps(counts | {"seen": [_fields_of(head) for head in self.heads]}).encode()


def _fields_of(head: bytes) -> dict[str, str]:
    first, *lines = head.decode("latin-1").split("\r\n")
    fields = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines if line)}
    return fields | {"path": first.split(" ")[1]}


class Connection(asyncio.Protocol):
    """One connection; requests one after the other."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._loop = asyncio.get_running_loop()
        self._buffer = b""
        self._left: int | None = 0
        """Body bytes still to come; None if it is chunked, until its end."""
        self._bytes = 0
        self._kept: list[bytes] = []
        """The body, if the answer needs it."""
        self._path = b""
        self._fields: dict[bytes, bytes] = {}
        self._is_running = self._is_closed = False
        self._tunnel: Callable[[bytes], bytes] | None = None
        self._socket = WebSocketEcho()
        self._timer: asyncio.TimerHandle | None = None
        self.name = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def is_left(self) -> bool:
        """Returns True if the other side has closed already, as the kernel knows."""
        sock: socket.socket | None = self._transport.get_extra_info("socket")
        if sock is None or sock.fileno() < 0:
            return True
        poll = select.poll()
        poll.register(sock.fileno(), select.POLLRDHUP)
        return bool(poll.poll(0))

    def data_received(self, data: bytes) -> None:
        if self._tunnel is not None:
            self._transport.write(self._tunnel(data))
            if self._socket.is_closed:
                self._transport.close()
            return
        self._buffer += data
        while self._buffer and (self._body() if self._is_running else self._head()):
            pass

    # --- reading ------------------------------------------------------------------------------------------------------

    def _head(self) -> bool:
        """Reads a head. Returns False if it is not there yet."""
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0 or self._timer is not None:
            return False
        head, self._buffer = self._buffer[: end + 2], self._buffer[end + 4 :]
        method, self._path, _ = head.split(b" ", 2)
        self._fields = {name.lower(): value for name, value in FIELD.findall(head)}
        if method == b"GET":
            self._get(self._path)
            return True
        self._left = None if self._fields.get(b"transfer-encoding") == b"chunked" else self._length()
        self._bytes = 0
        self._kept.clear()
        self.name = self._fields.get(b"x-id", b"").decode()
        self._is_running = True
        if self._path not in (b"/mood", b"/release"):
            self._model.started(self, head)
        if b"expect" in self._fields:
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        return self._body()

    def _length(self) -> int:
        return int(self._fields.get(b"content-length", b"0"))

    def _body(self) -> bool:
        """Reads the part of the body that is there. Returns False if more must come, or the work has begun."""
        if self._timer is not None:
            return False  # A pipelined request waits.
        if self._left is None:
            return self._chunk()
        taken = min(self._left, len(self._buffer))
        self._take(self._buffer[:taken])
        self._left -= taken
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
        start, end = line + 2, line + 2 + size
        if len(self._buffer) < end + 2:
            return False
        self._take(self._buffer[start:end])
        self._buffer = self._buffer[end + 2 :]
        if size:
            return True
        self._work()
        return not self._is_running

    def _take(self, data: bytes) -> None:
        self._bytes += len(data)
        if self._model.options.echo or self._path == b"/mood":
            self._kept.append(data)

    # --- answering ----------------------------------------------------------------------------------------------------

    def _get(self, target: bytes) -> None:
        path, _, query = target.partition(b"?")
        model = self._model
        if b"upgrade" in self._fields:
            self._upgrade()
        elif path == b"/stats":
            self.answer(200, model.stats())
        elif path == b"/tidegate/declared":
            declared = model.options.declared
            self.answer(200 if declared else 404, json.dumps({"concurrency": declared}).encode() if declared else b"")
        elif path == b"/v2/health/ready":
            self.answer(200, b'{"ready":true}')
        elif path == b"/ready":
            self.answer(200 if self._loop.time() >= model.ready_at else 503, b"{}")
        elif path == b"/probe":
            self.answer(503 if model.breaks else 200, b"{}")
        elif path == b"/hold":
            model.held.append(self)
        elif path == b"/die":
            sys.stderr.write("Traceback: the weights are cursed\n")
            sys.stderr.flush()
            os._exit(3)
        elif path == b"/events":
            given = dict(part.split(b"=") for part in query.split(b"&"))
            self._transport.write(EVENT_STREAM)
            self._event(0, int(given[b"count"]), float(given[b"every"]), lambda number: b"data: %d\n\n" % number)
        else:
            name = path.rpartition(b"/")[2].decode()
            self.answer(200, json.dumps({"name": name, "platform": "scripted"}).encode())

    def _upgrade(self) -> None:
        head = b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n"
        key = self._fields.get(b"sec-websocket-key")
        if key is None:
            self._tunnel = bytes
        else:
            import base64
            import hashlib

            accept = hashlib.sha1(key + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest()
            head += b"sec-websocket-accept: " + base64.b64encode(accept) + b"\r\n"
            self._tunnel = self._socket.feed
        early, self._buffer = self._buffer, b""
        self._transport.write(head + b"\r\n" + self._tunnel(early))

    def _work(self) -> None:
        if self._path == b"/mood":
            mood = json.loads(b"".join(self._kept))
            self._model.breaks = mood.get("breaks", self._model.breaks)
            self._model.delay_s = mood.get("delay_s", self._model.delay_s)
        elif self._path == b"/release":
            self._model.release()
        else:
            work_ms = float(self._fields.get(b"x-work-ms", self._model.options.work_ms))
            self._then(self._model.delay_s or work_ms / 1000, self._begin_answer)
            return
        self._is_running = False
        self.answer(200, b"{}")

    def _then(self, after_s: float, what: Callable[[], None]) -> None:
        if after_s:
            self._timer = self._loop.call_later(after_s, self._run, what)
        else:
            what()

    def _run(self, what: Callable[[], None]) -> None:
        self._timer = None
        what()
        if self._is_busy():
            return
        if self._is_closed:
            self._transport.close()
        elif self._buffer:
            self.data_received(b"")

    def _is_busy(self) -> bool:
        return self._is_running or self._timer is not None

    def _begin_answer(self) -> None:
        fields = self._fields
        if self._model.breaks:
            self._finished()
            self._transport.close()
        elif b"x-events" in fields:
            self._transport.write(EVENT_STREAM)
            name = self.name.encode()
            gap_s = float(fields.get(b"x-gap-ms", b"0")) / 1000
            self._event(0, int(fields[b"x-events"]), gap_s, lambda n: b"data: %b %d %d\n\n" % (name, n, monotonic_ns()))
        else:
            size = int(fields.get(b"x-size", b"0"))
            answer = b"x" * size if size else b'{"id":"%b","bytes":%d}' % (self.name.encode(), self._bytes)
            extra = b""
            if self._model.options.echo:
                answer, extra = b"".join(self._kept), b"x-bytes: %d\r\n" % self._bytes
            self._finished()
            self.answer(int(fields.get(b"x-status", b"200")), answer, extra)

    def _event(self, number: int, count: int, gap_s: float, event_of: Callable[[int], bytes]) -> None:
        if number == count:
            self._finished()
            self._transport.write(b"0\r\n\r\n")
            return
        event = event_of(number)
        self._transport.write(b"%x\r\n%b\r\n" % (len(event), event))
        self._then(gap_s, lambda: self._event(number + 1, count, gap_s, event_of))

    def _finished(self) -> None:
        if self._is_running:
            self._is_running = False
            self._model.finished(self, is_left=False)

    def answer(self, status: int, body: bytes, extra: bytes = b"") -> None:
        if self._transport.is_closing():
            return
        head = b"HTTP/1.1 %d X\r\ncontent-type: application/json\r\n%bcontent-length: %d\r\n\r\n"
        self._transport.write(head % (status, extra, len(body)) + body)

    # --- the end ------------------------------------------------------------------------------------------------------

    def eof_received(self) -> bool:
        self._left_by_peer()
        return self._is_running

    def connection_lost(self, exc: Exception | None) -> None:
        if self in self._model.held:
            self._model.held.remove(self)
        self._left_by_peer()

    def _left_by_peer(self) -> None:
        self._is_closed = True
        if self._is_running and self._timer is not None and self._model.options.keep_working:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._is_running:
            self._is_running = False
            if self._path not in (b"/mood", b"/release"):
                self._model.finished(self, is_left=True)


class WebSocketEcho:
    """Echoes the frames of a client (RFC 6455 section 5.2), unmasked; a pong for a ping."""

    __slots__ = ("_buffer", "is_closed")

    def __init__(self) -> None:
        self._buffer = b""
        self.is_closed = False
        """The client has sent a close frame."""

    def feed(self, data: bytes) -> bytes:
        self._buffer += data
        out = b""
        while (frame := self._next()) is not None:
            out += frame
        return out

    def _next(self) -> bytes | None:
        data = self._buffer
        if len(data) < 2:
            return None
        size, at = data[1] & 0x7F, 2
        if size > 125:
            width = 2 if size == 126 else 8
            size, at = int.from_bytes(data[2 : 2 + width], "big"), 2 + width
        if len(data) < at + 4 + size:
            return None
        mask, body = data[at : at + 4], data[at + 4 : at + 4 + size]
        self._buffer = data[at + 4 + size :]
        plain = bytes(byte ^ mask[index % 4] for index, byte in enumerate(body))
        self.is_closed = data[0] & 0x0F == 8
        first = data[0] & 0xF0 | 10 if data[0] & 0x0F == 9 else data[0]
        length = bytes([size]) if size < 126 else b"\x7e" + size.to_bytes(2, "big")
        return bytes([first]) + length + plain


def options_of(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--listen", required=True)
    parser.add_argument("--journal")
    parser.add_argument("--delay", type=float, default=0.0, help="seconds before it listens (its load time)")
    parser.add_argument("--ready-after", type=float, default=0.0, help="seconds before /ready is 200")
    parser.add_argument("--declared", type=int, default=0, help="requests at once, for /tidegate/declared")
    parser.add_argument("--work-ms", type=float, default=0.0, help="work of a request without x-work-ms")
    parser.add_argument("--echo", action="store_true", help="answer a POST with its body")
    parser.add_argument("--keep-working", action="store_true", help="go on after a disconnect")
    parser.add_argument("--fast", action="store_true", help="uvloop, if it is installed")
    parser.add_argument("--die-at-start", metavar="WORDS")
    parser.add_argument("--ignore-sigterm", action="store_true")
    parser.add_argument("--child", action="store_true", help="start a process that outlives this one")
    parser.add_argument("--daemon", action="store_true", help="start one in a session of its own")
    return parser.parse_args(arguments)


def prepare(options: argparse.Namespace) -> None:
    """Does the odd things that come before serving."""
    if options.die_at_start:
        sys.exit(options.die_at_start)
    if options.ignore_sigterm:
        import signal

        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if options.child or options.daemon:
        import subprocess

        nap = [sys.executable, "-c", "import time; time.sleep(60)"]
        subprocess.Popen(nap, start_new_session=options.daemon)


async def serve(options: argparse.Namespace) -> None:
    await asyncio.sleep(options.delay)
    loop = asyncio.get_running_loop()
    model = Model(options)
    server: Any
    if options.listen.startswith("unix:"):
        server = await loop.create_unix_server(lambda: Connection(model), options.listen[5:], backlog=1024)
    else:
        host, _, port = options.listen.rpartition(":")
        server = await loop.create_server(lambda: Connection(model), host, int(port), backlog=1024)
    model.note("L", "-")
    print("model server listens", flush=True)  # noqa: T201
    await server.serve_forever()


def new_event_loop(is_fast: bool) -> asyncio.AbstractEventLoop:
    if is_fast:
        try:
            import uvloop
        except ImportError:  # The plain loop does as well.
            pass
        else:
            return uvloop.new_event_loop()
    return asyncio.new_event_loop()


def main() -> None:
    options = options_of()
    prepare(options)
    with asyncio.Runner(loop_factory=lambda: new_event_loop(options.fast)) as runner:
        runner.run(serve(options))


if __name__ == "__main__":
    main()
