"""Clients that measure: wrk for CPU and throughput, our own where its pace or its patience matters.

Our own run in this process, on the load core. They sleep in epoll until something is due or has come; a client that
spins there would take the core from the backend and add milliseconds to everybody's p99.
"""

import ctypes
import gc
import json
import os
import re
import select
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

from benchmarks.macro.harness import HERE, Bench, Server, open_socket
from benchmarks.macro.report import percentile

READ = 1 << 18
PATIENCE_S = 10.0
LEAD_S = 0.2
"""At the start of a paced visit, not counted."""
_CLOCK_MONOTONIC, _NONBLOCK, _ABSOLUTE = 1, os.O_NONBLOCK, 1
_HEAD = re.compile(rb"HTTP/1\.1 2[0-9][0-9] .*?\r\ncontent-length: *([0-9]+)\r\n", re.IGNORECASE | re.DOTALL)
_CHUNKED_HEAD = re.compile(rb"HTTP/1\.1 2[0-9][0-9] .*?\r\ntransfer-encoding: *chunked\r\n", re.IGNORECASE | re.DOTALL)
_LAST_CHUNK = b"\r\n0\r\n\r\n"
CHUNKED = -2
"""Bytes that are missing of an answer in chunks: its end is seen when it comes. (-1: its head is missing.)"""
_STAMP = re.compile(rb'"t":([0-9]+),')


def inference(size: int = 300) -> bytes:
    """A POST as in ``load.lua``, with a body of ``size`` bytes."""
    head = b'{"id":"%032x","inputs":[{"name":"input","shape":[1,24],"datatype":"FP32","data":[0.5' % size
    body = (head + b",0.125" * (max(0, size - len(head) - 4) // 6) + b"]}]}").ljust(size)
    return (
        b"POST /v2/models/resnet/infer HTTP/1.1\r\nHost: resnet.localhost\r\nUser-Agent: bench/1.0\r\n"
        b"Accept: application/json\r\nAccept-Encoding: gzip, deflate\r\nContent-Type: application/json\r\n"
        b"Authorization: Bearer 0123456789abcdef0123456789abcdef\r\nX-Request-Id: 0123456789abcdef\r\n"
        b"traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\r\nContent-Length: %d\r\n\r\n%b"
        % (len(body), body)
    )


# --- wrk -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Visit:
    """One run of wrk against one server."""

    cpu_us: float
    """Processor time of the server per request."""
    rps: float
    p50_us: float
    p99_us: float
    bytes_each: float
    seconds: float


def wrk(
    bench: Bench,
    server: Server,
    load: str,
    seconds: int,
    *,
    connections: int = 32,
    threads: int = 1,
    cores: str | None = None,
) -> Visit:
    """Raises RuntimeError when a request failed. ``load`` as ``load.lua`` knows it."""
    command = [bench.tools["taskset"], "-c", cores or bench.machine.load_core, bench.tools["wrk"]]
    command += [f"-t{threads}", f"-c{connections}", f"-d{seconds}s", "-s", str(HERE / "load.lua")]
    before = server.cpu_us()
    done = subprocess.run(
        [*command, f"http://{server.address}", "--", load], capture_output=True, text=True, check=True
    )
    used = server.cpu_us() - before
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    if not lines:
        raise RuntimeError(f"wrk printed no result: {done.stdout}{done.stderr}")
    result = json.loads(lines[0].removeprefix("RESULT "))
    if result["errors"] or not result["requests"]:
        raise RuntimeError(f"{server.name}, {load}: {result['errors']} of {result['requests']} requests failed")
    took, requests = result["duration_us"] / 1e6, result["requests"]
    each = result["bytes"] / requests
    return Visit(used / requests, requests / took, result["p50_us"], result["p99_us"], each, took)


# --- a fixed rate ----------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Lane:
    """Requests to one address at a fixed rate, over connections that are kept open."""

    address: str
    request: bytes
    rate: float
    """Requests per second, evenly spaced."""
    connections: int = 32
    first_us: list[float] = field(default_factory=list)
    """From when each request was due to the first byte of its answer."""
    whole_us: list[float] = field(default_factory=list)
    """To the last byte."""
    due_s: list[float] = field(default_factory=list)
    """When each was due, on the monotonic clock."""

    def p50(self) -> float:
        return percentile(self.whole_us, 50)

    def p99(self) -> float:
        return percentile(self.whole_us, 99)


class _Connection:
    """One request at a time; what is left to write, and the answer so far."""

    __slots__ = ("due", "first", "head", "lane", "missing", "out", "sock")

    def __init__(self, lane: "_Pacer", sock: socket.socket) -> None:
        self.lane = lane
        self.sock = sock
        self.out = memoryview(b"")
        self.head = b""
        self.missing = -1
        self.due = self.first = 0.0


class _Pacer:
    """One lane at work."""

    def __init__(self, lane: Lane, epoll: select.epoll, by_fd: dict[int, _Connection], stack: ExitStack) -> None:
        self.lane = lane
        self.next_due = 0.0
        self.counted_from = 0.0
        self.running = 0
        self._epoll = epoll
        self._idle: deque[_Connection] = deque()
        self._late: deque[float] = deque()
        """Due, and no connection was free: they count from when they were due."""
        for _ in range(lane.connections):
            sock = stack.enter_context(open_socket(lane.address))
            sock.setblocking(False)
            connection = by_fd[sock.fileno()] = _Connection(self, sock)
            epoll.register(sock, select.EPOLLIN)
            self._idle.append(connection)

    def begin(self, at: float) -> None:
        self.next_due = at
        self.counted_from = at + LEAD_S

    def turn(self, now: float, until: float) -> None:
        """Sends what is due."""
        while self.next_due <= now and self.next_due < until:
            if self._idle:
                self._send(self._idle.popleft(), self.next_due)
            else:
                self._late.append(self.next_due)
            self.next_due += 1.0 / self.lane.rate

    @property
    def busy(self) -> bool:
        return self.running > 0 or bool(self._late)

    def _send(self, connection: _Connection, due: float) -> None:
        self.running += 1
        connection.due, connection.first, connection.head, connection.missing = due, 0.0, b"", -1
        connection.out = memoryview(self.lane.request)
        self.write(connection)

    def write(self, connection: _Connection) -> None:
        try:
            sent = connection.sock.send(connection.out)
        except BlockingIOError:
            sent = 0
        was_blocked = len(connection.out) < len(self.lane.request)
        connection.out = connection.out[sent:]
        if connection.out:
            self._epoll.modify(connection.sock, select.EPOLLIN | select.EPOLLOUT)
        elif was_blocked or sent < len(self.lane.request):
            self._epoll.modify(connection.sock, select.EPOLLIN)

    def read(self, connection: _Connection, now: float) -> None:
        data = connection.sock.recv(READ)
        if not data:
            raise RuntimeError(f"{self.lane.address} closed a connection")
        if not connection.first:
            connection.first = now
        if connection.missing == CHUNKED:
            connection.head = connection.head[-len(_LAST_CHUNK) :] + data
        elif connection.missing < 0:
            connection.head += data
            end = connection.head.find(b"\r\n\r\n")
            if end < 0:
                return
            head = connection.head[: end + 2]
            if (found := _HEAD.match(head)) is not None:
                connection.missing = int(found[1]) - (len(connection.head) - end - 4)
            elif _CHUNKED_HEAD.match(head) is not None:
                connection.missing = CHUNKED
            else:
                raise RuntimeError(f"{self.lane.address} answered {connection.head[:200]!r}")
        else:
            connection.missing -= len(data)
        if connection.missing == CHUNKED and connection.head.endswith(_LAST_CHUNK):
            connection.missing = 0
        if not connection.missing:
            self._done(connection)

    def _done(self, connection: _Connection) -> None:
        self.running -= 1
        due = connection.due
        if due >= self.counted_from:
            self.lane.first_us.append((connection.first - due) * 1e6)
            self.lane.whole_us.append((time.monotonic() - due) * 1e6)
            self.lane.due_s.append(due)
        if self._late:
            self._send(connection, self._late.popleft())
        else:
            self._idle.append(connection)


@contextmanager
def _ticks(start: float, every_s: float) -> Iterator[int]:
    """A timer descriptor that becomes readable at ``start`` (monotonic) and every ``every_s`` seconds after.

    epoll's own timeout has whole milliseconds; ``os.timerfd_create`` is not there before Python 3.13.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = libc.timerfd_create(_CLOCK_MONOTONIC, _NONBLOCK)
    if descriptor < 0:
        raise OSError(ctypes.get_errno(), "timerfd_create")
    parts = [int(part) for t in (every_s, start) for part in (t, (t % 1) * 1e9)]
    if libc.timerfd_settime(descriptor, _ABSOLUTE, (ctypes.c_long * 4)(*parts), None) < 0:
        raise OSError(ctypes.get_errno(), "timerfd_settime")
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def _no_collections() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def paced(lanes: Sequence[Lane], seconds: float) -> None:
    """Runs all lanes at their rates for so long; their timings are in them afterwards.

    A request's time counts from when it was due, also where this client or the server was late. Raises RuntimeError
    when one failed or is not answered within some seconds after the end.
    """
    by_fd: dict[int, _Connection] = {}
    with ExitStack() as stack:
        stack.enter_context(_no_collections())
        epoll = stack.enter_context(select.epoll())
        pacers = [_Pacer(lane, epoll, by_fd, stack) for lane in lanes]
        start = time.monotonic() + 0.01
        until = start + LEAD_S + seconds
        ticks = stack.enter_context(_ticks(start, 1.0 / max(lane.rate for lane in lanes)))
        epoll.register(ticks, select.EPOLLIN)
        for pacer in pacers:
            pacer.begin(start)
        now = start
        while now < until or any(pacer.busy for pacer in pacers):
            for descriptor, event in epoll.poll(PATIENCE_S):
                if descriptor == ticks:
                    os.read(ticks, 8)
                    continue
                connection = by_fd[descriptor]
                if event & select.EPOLLOUT:
                    connection.lane.write(connection)
                if event & ~select.EPOLLOUT:
                    connection.lane.read(connection, time.monotonic())
            now = time.monotonic()
            for pacer in pacers:
                pacer.turn(now, until)
            if now > until + PATIENCE_S:
                raise RuntimeError(f"{sum(pacer.running for pacer in pacers)} requests were never answered")


# --- event streams ---------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Events:
    """Events received on event streams."""

    count: int = 0
    first_us: list[float] = field(default_factory=list)
    """From when the upstream wrote the first event of each stream to when it was read here."""
    later_us: list[float] = field(default_factory=list)
    """The same of the others."""


def streams(server: Server, target: str, connections: int, seconds: float, *, stamped: bool = True) -> Events:
    """Reads so many streams, for so long from when all of them run; they open evenly over a fifth of a second. Raises
    RuntimeError when one ends, is refused or brings nothing. ``stamped`` False: only counts."""
    found = Events()
    request = b"GET %b HTTP/1.1\r\nHost: resnet.localhost\r\nAccept: text/event-stream\r\n\r\n" % target.encode()
    with ExitStack() as stack:
        stack.enter_context(_no_collections())
        epoll = stack.enter_context(select.epoll())
        fresh: dict[int, bytes] = {}
        by_fd: dict[int, socket.socket] = {}
        for _ in range(connections):
            sock = stack.enter_context(open_socket(server.address))
            by_fd[sock.fileno()] = sock
            epoll.register(sock, select.EPOLLIN)
            fresh[sock.fileno()] = b""
            sock.sendall(request)
            _take(epoll, by_fd, fresh, found, stamped, LEAD_S / connections)
        patience = time.monotonic() + PATIENCE_S
        while fresh:
            _take(epoll, by_fd, fresh, found, stamped, 1.0)
            if time.monotonic() > patience:
                raise RuntimeError(f"{server.name}{target}: {len(fresh)} of {connections} streams brought nothing")
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            _take(epoll, by_fd, fresh, found, stamped, 1.0)
    return found


_DRAIN = """
import socket, sys
with socket.create_connection((sys.argv[1], int(sys.argv[2]))) as sock:
    sock.sendall(b"GET " + sys.argv[3].encode() + b" HTTP/1.1\\r\\nHost: resnet.localhost\\r\\n\\r\\n")
    while sock.recv(1 << 20):
        pass
"""


@contextmanager
def drained(bench: Bench, server: Server, target: str) -> Iterator[None]:
    """Another process on the load core takes an endless answer as fast as it comes, while the block runs."""
    command = [bench.tools["taskset"], "-c", bench.machine.load_core, sys.executable, "-c", _DRAIN]
    process = subprocess.Popen([*command, *server.address.rsplit(":", 1), target])
    time.sleep(LEAD_S)
    try:
        yield
        if process.poll() is not None:
            raise RuntimeError(f"{server.name}{target} ended")
    finally:
        process.kill()
        process.wait()


def _take(
    epoll: select.epoll,
    by_fd: dict[int, socket.socket],
    fresh: dict[int, bytes],
    found: Events,
    stamped: bool,
    wait_s: float,
) -> None:
    """Reads once what has come, waiting at most so long."""
    for descriptor, _ in epoll.poll(wait_s):
        data = by_fd[descriptor].recv(READ)
        now = time.monotonic_ns()
        if not data:
            raise RuntimeError("an event stream ended")
        is_first = descriptor in fresh
        if is_first:
            data = fresh[descriptor] + data
            if b"data:" not in data:
                fresh[descriptor] = data
                continue
            if not data.startswith(b"HTTP/1.1 200"):
                raise RuntimeError(f"an event stream was refused: {data[:100]!r}")
            del fresh[descriptor]
        found.count += data.count(b"data:")
        if stamped:
            delays = [(now - int(stamp)) / 1e3 for stamp in _STAMP.findall(data)]
            if is_first:
                found.first_us += delays[:1]
                delays = delays[1:]
            found.later_us += delays
