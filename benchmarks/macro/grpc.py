"""gRPC per RPC: CPU time per call at a proxy, and through gateway and queue_proxy, beside nginx, HAProxy and Go.

A compiled client (``benchmarks/macro/gogrpc``) keeps 32 calls in flight over four connections and writes header blocks
as grpc-go does. ``unary``: a V2 ModelInfer of 300 bytes whose metadata repeats. ``unique``: the same, but each call has
a deadline and a traceparent of its own. ``bidi``: streams of ten messages, each sent when the echo of the one before
has come. ``large``: 600 KB up, 300 bytes down, eight at once.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.macro import grpc_peers, peers
from benchmarks.macro.harness import Bench, Stage
from benchmarks.macro.report import Book, Row, missing

OURS, BOTH = "queue_proxy", "gateway+replica"


@dataclass(frozen=True, slots=True)
class Load:
    """A load of calls, and its maximum cost relative to nginx."""

    words: tuple[str, ...]
    bound: float | None = None


LOADS = {
    "unary": Load((), 0.6),
    "unique": Load(("-unique",), 1.0),
    "bidi": Load(("-messages", "10")),
    "large": Load(("-size", str(peers.TENSOR_BYTES), "-in-flight", "8")),
}


def measure(bench: Bench) -> Iterator[Row]:
    if "gogrpc" not in bench.tools:
        yield missing("grpc", "all", "all", bench.absent["gogrpc"])
        return
    book = Book("grpc")
    with Stage(bench) as stage:
        direct = grpc_peers.backend(stage)
        candidates = grpc_peers.proxies(stage, direct.address)
        behind = peers.queue_proxy(stage, direct.address, name="replica", local=True)
        candidates.append(peers.both(peers.gateway(stage, [behind]), behind))
        for counts in bench.counted():
            for load, asked in LOADS.items():
                for server in (direct, *candidates):
                    visit = grpc_peers.load(bench, server, asked.words, bench.length_s(counts))
                    if counts:
                        book.add(
                            load,
                            server.name,
                            cpu_us_per_call=visit.cpu_us,
                            calls_per_s=visit.calls_per_s,
                            p50_us=visit.p50_us,
                            p99_us=visit.p99_us,
                        )
    for load, asked in LOADS.items():
        yield book.row(load, "direct", "calls_per_s")
        for server in candidates:
            bound = asked.bound if server.name == OURS else None
            yield book.row(load, server.name, "cpu_us_per_call", against="nginx", bound=bound)
            yield book.row(load, server.name, "calls_per_s", against="nginx")
            yield book.row(load, server.name, "p99_us", against="nginx")
        yield book.row(load, BOTH, "cpu_us_per_call", against=OURS)
