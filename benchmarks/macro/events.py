"""Event streams: CPU per event, how late an event is, events per second and core, and what others feel of a flood.

40 streams of 100 events/s each, so that hardly two events share a read. The delay is from the upstream's write to our
read, both on this machine's monotonic clock; it holds backend and client too. Then one stream as fast as it goes, each
event its own chunk: what the proxy's core passes per second of its CPU time; and the latency of 20 small requests/s
beside that stream.
"""

from collections.abc import Iterator

from benchmarks.macro import peers
from benchmarks.macro.clients import Lane, drained, inference, paced, streams
from benchmarks.macro.harness import Bench, Stage
from benchmarks.macro.report import Book, Row, percentile

STREAMS, RATE, BESIDE_RATE = 40, 100, 20.0
PACED, FLOOD = f"{STREAMS} streams, {RATE} events/s each", "1 stream, flood"
BESIDE = f"{BESIDE_RATE:.0f} POST/s beside a flood"
CPU_BOUND_US, FIRST_BOUND_US, CHUNKS_BOUND = 20.0, 2000.0, 50_000.0
ROUNDS = 3


def measure(bench: Bench) -> Iterator[Row]:
    book = Book("events")
    with Stage(bench) as stage:
        direct = peers.origin(stage)
        candidates = peers.proxies(stage, direct.address, streaming=True)
        rounds = list(bench.counted())[: ROUNDS + 1]
        for counts in rounds:
            kept = book if counts else Book("warm-up")
            for server in (direct, *candidates):
                before = server.cpu_us()
                found = streams(server, f"/events/{RATE}", STREAMS, bench.length_s(counts))
                used = server.cpu_us() - before
                kept.add(
                    PACED,
                    server.name,
                    cpu_us_per_event=used / found.count,
                    first_p50_us=percentile(found.first_us, 50),
                    first_p99_us=percentile(found.first_us, 99),
                    later_p50_us=percentile(found.later_us, 50),
                    later_p99_us=percentile(found.later_us, 99),
                )
            for server in candidates:
                before = server.cpu_us()
                found = streams(server, "/flood", 1, bench.length_s(counts), stamped=False)
                used = server.cpu_us() - before
                kept.add(FLOOD, server.name, events_per_cpu_s=found.count / used * 1e6)
                lane = Lane(server.address, inference(), BESIDE_RATE, 4)
                with drained(bench, server, "/flood"):
                    paced([lane], bench.length_s(counts))
                kept.add(BESIDE, server.name, p50_us=lane.p50())
    for server in (direct, *candidates):
        ours = server.name == "queue_proxy"
        if server is not direct:
            bound = CPU_BOUND_US if ours else None
            yield book.row(PACED, server.name, "cpu_us_per_event", bound=bound)
        bound = FIRST_BOUND_US if ours else None
        yield book.row(PACED, server.name, "first_p50_us", bound=bound)
        yield book.row(PACED, server.name, "first_p99_us", bound=bound)
        yield book.row(PACED, server.name, "later_p50_us")
        yield book.row(PACED, server.name, "later_p99_us")
        if server is not direct:
            bound = CHUNKS_BOUND if ours else None
            yield book.row(FLOOD, server.name, "events_per_cpu_s", bound=bound, least=True)
            yield book.row(BESIDE, server.name, "p50_us", against="nginx")
