"""Latency added by a proxy at a fixed 2,000 requests/s, far below saturation.

Reference POST, evenly spaced, 32 connections; latency counts from the due time. In each round the same percentile
without a proxy is subtracted.
"""

from collections.abc import Iterator

from benchmarks.macro import peers
from benchmarks.macro.clients import Lane, inference, paced
from benchmarks.macro.harness import Bench, Server, Stage
from benchmarks.macro.report import Book, Row

RATE = 2000.0
P50_BOUND, P99_BOUND = 1.8, 3.5
LOAD = "2000/s"


def round_of(book: Book, load: str, direct: Server, proxies: list[Server], rate: float, seconds: float) -> None:
    """Visits the backend, then every proxy; books what each adds."""
    base = Lane(direct.address, inference(), rate)
    paced([base], seconds)
    book.add(load, "direct", p50_us=base.p50(), p99_us=base.p99())
    for server in proxies:
        lane = Lane(server.address, inference(), rate)
        paced([lane], seconds)
        book.add(load, server.name, added_p50_us=lane.p50() - base.p50(), added_p99_us=lane.p99() - base.p99())


def measure(bench: Bench) -> Iterator[Row]:
    book = Book("latency")
    with Stage(bench) as stage:
        direct = peers.nginx_backend(stage)
        candidates = peers.proxies(stage, direct.address)
        for counts in bench.counted():
            round_of(book if counts else Book("warm-up"), LOAD, direct, candidates, RATE, bench.length_s(counts))
    yield book.row(LOAD, "direct", "p50_us")
    yield book.row(LOAD, "direct", "p99_us")
    for server in candidates:
        ours = server.name == "queue_proxy"
        yield book.row(LOAD, server.name, "added_p50_us", against="nginx", bound=P50_BOUND if ours else None)
        yield book.row(LOAD, server.name, "added_p99_us", against="nginx", bound=P99_BOUND if ours else None)
