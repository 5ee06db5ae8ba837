"""Large bodies: CPU per 600 KB tensor up and down, memory under a slow reader, time to first byte of 220 KB prompts.

Uploads go to our own backend (nginx answers before it has the body), downloads come from a file of nginx. All pass
bodies on as they come (nginx: buffering off).
"""

import time
from collections.abc import Iterator

from benchmarks.macro import peers
from benchmarks.macro.clients import READ, Lane, inference, paced, wrk
from benchmarks.macro.harness import Bench, Server, Stage, open_socket
from benchmarks.macro.report import Book, Row, percentile

BOUNDS = {"upload": 0.8, "download": 0.45}
CONNECTIONS = 8
SLOW_BYTES, SLOW_BYTES_SMOKE = 200_000_000, 20_000_000
SLOW_RATE = 40e6
"""Bytes per second that the slow reader takes."""
SLOW_BOUND_MB = 16.0
PROMPT_BYTES, PROMPT_CONNECTIONS, PROMPT_RATE = 220_000, 150, 100.0
PROMPT_BOUND_MS = 20.0
SLOW, PROMPTS = "200 MB, slow reader", "220 KB, 150 connections, 100/s"


def measure(bench: Bench) -> Iterator[Row]:
    yield from _cpu(bench)
    book = Book("tensors")
    with Stage(bench) as stage:
        up = peers.origin(stage)
        for counts in bench.counted():
            proxy = peers.queue_proxy(stage, up.address, name=f"queue_proxy-{counts}")
            added = _prompts(up, proxy, bench.length_s(counts) * 2)
            if counts:
                book.add(PROMPTS, "queue_proxy", added_first_byte_p99_ms=added)
    yield book.row(PROMPTS, "queue_proxy", "added_first_byte_p99_ms", bound=PROMPT_BOUND_MS)
    with Stage(bench) as stage:
        down = peers.nginx_backend(stage)
        proxy = peers.queue_proxy(stage, down.address)
        book.add(SLOW, "queue_proxy", rss_growth_mb=_slow(proxy, SLOW_BYTES_SMOKE if bench.smoke else SLOW_BYTES))
    yield book.row(SLOW, "queue_proxy", "rss_growth_mb", bound=SLOW_BOUND_MB)


def _cpu(bench: Bench) -> Iterator[Row]:
    book = Book("tensors")
    names = []
    for load, target in (("upload", "upload"), ("download", "/files/tensor")):
        with Stage(bench) as stage:
            backend = peers.origin(stage) if load == "upload" else peers.nginx_backend(stage)
            candidates = peers.proxies(stage, backend.address, streaming=True)
            names = [server.name for server in candidates]
            for counts in bench.counted():
                for server in candidates:
                    visit = wrk(bench, server, target, bench.length_s(counts), connections=CONNECTIONS)
                    if load == "download" and visit.bytes_each < peers.TENSOR_BYTES:
                        raise RuntimeError(f"{server.name}: answers of {visit.bytes_each:.0f} bytes")
                    if counts:
                        book.add(load, server.name, cpu_us_per_request=visit.cpu_us, requests_per_s=visit.rps)
        for name in names:
            bound = BOUNDS[load] if name == "queue_proxy" else None
            yield book.row(load, name, "cpu_us_per_request", against="go", bound=bound)
            yield book.row(load, name, "requests_per_s", against="go")


def _prompts(direct: Server, proxy: Server, seconds: float) -> float:
    """Milliseconds that the proxy adds to the p99 of the first byte."""
    p99 = []
    for server in (direct, proxy):
        lane = Lane(server.address, inference(PROMPT_BYTES), PROMPT_RATE, PROMPT_CONNECTIONS)
        paced([lane], seconds)
        p99.append(percentile(lane.first_us, 99))
    return (p99[1] - p99[0]) / 1e3


def _slow(proxy: Server, size: int) -> float:
    """Growth of the proxy's memory in MB while a reader takes so many bytes at SLOW_RATE."""
    with open_socket(proxy.address) as warm:
        warm.sendall(b"GET /files/tensor HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        while warm.recv(READ):
            pass
    before = most = proxy.rss_mb()
    with open_socket(proxy.address) as sock:
        sock.sendall(b"GET /files/large HTTP/1.1\r\nHost: a\r\n\r\n")
        begun = time.monotonic()
        taken = 0
        while taken < size:
            data = sock.recv(READ)
            if not data:
                raise RuntimeError(f"the download ended after {taken} bytes")
            taken += len(data)
            most = max(most, proxy.rss_mb())
            time.sleep(max(0.0, begun + taken / SLOW_RATE - time.monotonic()))
    return most - before
