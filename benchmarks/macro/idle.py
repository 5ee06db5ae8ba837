"""Many idle keep-alive connections: memory of the proxy, and the CPU time of looking after them.

Each connection has had one request. The limit of open files is raised as far as it goes; where that is not enough for
10,000, there are fewer, and the row says so.
"""

import resource
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import ExitStack

from benchmarks.macro import peers
from benchmarks.macro.clients import READ
from benchmarks.macro.harness import Bench, Server, Stage, open_socket
from benchmarks.macro.report import Book, Row

WANTED, WANTED_SMOKE = 10_000, 500
SPARE_FILES = 200
PER_ADDRESS = 5_000
"""Connections from one loopback address."""
GROWTH_BOUND_MB = 60.0
REQUEST = b"GET / HTTP/1.1\r\nHost: resnet.localhost\r\n\r\n"


def files() -> int:
    """Raises the limit of open files of this process and its children to the hard one, which it returns."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY:
        hard = 1 << 20
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def measure(bench: Bench) -> Iterator[Row]:
    book = Book("idle")
    wanted = WANTED_SMOKE if bench.smoke else WANTED
    count = min(wanted, files() - SPARE_FILES)
    load = f"{count} connections"
    with Stage(bench) as stage:
        upstream = peers.nginx_backend(stage).address
        candidates = peers.proxies(stage, upstream, only=("go", "queue_proxy"))
        for server in candidates:
            book.add(load, server.name, **_hold(server, count, 1.0 if bench.smoke else 5.0))
    note = "" if count == wanted else f"{wanted} need more open files"
    for server in candidates:
        bound = GROWTH_BOUND_MB if server.name == "queue_proxy" else None
        yield book.row(load, server.name, "rss_growth_mb", bound=bound, note=note)
        yield book.row(load, server.name, "rss_mb")
        yield book.row(load, server.name, "idle_cpu_percent")


def _hold(server: Server, count: int, seconds: float) -> dict[str, float]:
    """Opens the connections, one request on each, then watches for so long."""
    with ExitStack() as stack:
        _ask(server, stack, 0)
        before = server.rss_mb()
        held = [_ask(server, stack, number) for number in range(count)]
        time.sleep(0.5)
        cpu = server.cpu_us()
        time.sleep(seconds)
        used = server.cpu_us() - cpu
        grown = server.rss_mb()
        for sock in held:
            sock.setblocking(False)
            try:
                if not sock.recv(1):
                    raise RuntimeError(f"{server.name} closed an idle connection")
            except BlockingIOError:
                pass
    return {"rss_growth_mb": grown - before, "rss_mb": grown, "idle_cpu_percent": used / seconds / 1e4}


def _ask(server: Server, stack: ExitStack, number: int) -> socket.socket:
    """One more connection that has had an answer."""
    sock = stack.enter_context(open_socket(server.address, f"127.0.0.{2 + number // PER_ADDRESS}"))
    # Ends with a reset: thousands of ports in TIME_WAIT would stand in the way of the next program that binds.
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.sendall(REQUEST)
    answer = sock.recv(READ)
    if not answer.startswith(b"HTTP/1.1 200"):
        raise RuntimeError(f"{server.name} answered {answer[:100]!r}")
    return sock
