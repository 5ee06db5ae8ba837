"""Event streams: CPU per event, how late an event is, events per second and core, and what others feel of a flood.

40 streams of 100 events/s each, so that hardly two events share a read and a wake-up brings few. What a wake-up costs
differs between minutes more than proxies do, so the ratio to nginx stands beside the microseconds. The delay is from
the upstream's write to our read, both on this machine's monotonic clock; it holds backend and client too. Then one
stream as fast as it goes, each event its own chunk: what the proxy's core passes per second of its CPU time; and the
latency of 10 small requests/s beside that stream.
"""

from collections.abc import Iterator

from benchmarks.macro import peers
from benchmarks.macro.clients import Lane, drained, inference, paced, streams
from benchmarks.macro.harness import Bench, Server, Stage
from benchmarks.macro.report import Book, Row, percentile

STREAMS, RATE, BESIDE_RATE = 40, 100, 10.0
PACED, FLOOD = f"{STREAMS} streams, {RATE} events/s each", "1 stream, flood"
BESIDE = f"{BESIDE_RATE:.0f} POST/s beside a flood"
CPU_BOUND_US, FIRST_BOUND_US, CHUNKS_BOUND = 20.0, 2000.0, 50_000.0
ROUNDS, PACED_ROUNDS = 3, 9
"""Of the floods, and (at least) of the paced streams, whose cost depends most on the minute."""


def measure(bench: Bench) -> Iterator[Row]:
    book = Book("events")
    rounds = list(bench.counted())[: ROUNDS + 1]
    more = () if bench.smoke else (True,) * (max(PACED_ROUNDS, bench.rounds) + 1 - len(rounds))
    with Stage(bench) as stage:
        direct = peers.origin(stage)
        candidates = peers.proxies(stage, direct.address, streaming=True)
        for number, counts in enumerate((*rounds, *more)):
            kept = book if counts else Book("warm-up")
            for server in (direct, *candidates)[:: -1 if number % 2 else 1]:
                _paced(kept, server, bench.length_s(counts))
        for counts in rounds:
            kept = book if counts else Book("warm-up")
            for server in candidates:
                before = server.cpu_us()
                found = streams(server, "/flood", 1, bench.length_s(counts), stamped=False)
                used = server.cpu_us() - before
                kept.add(FLOOD, server.name, events_per_cpu_s=found.count / used * 1e6)
        yield from _rows(book, [server.name for server in candidates])
        for counts in rounds:
            kept = book if counts else Book("warm-up")
            for server in candidates:
                lane = Lane(server.address, inference(), BESIDE_RATE, 40)
                with drained(bench, server, "/flood"):
                    paced([lane], bench.length_s(counts))
                kept.add(BESIDE, server.name, p50_us=lane.p50())
        for server in candidates:
            yield book.row(BESIDE, server.name, "p50_us", against="nginx")


def _paced(book: Book, server: Server, seconds: float) -> None:
    before = server.cpu_us()
    found = streams(server, f"/events/{RATE}", STREAMS, seconds)
    used = server.cpu_us() - before
    book.add(
        PACED,
        server.name,
        cpu_us_per_event=used / found.count,
        first_p50_us=percentile(found.first_us, 50),
        first_p99_us=percentile(found.first_us, 99),
        later_p50_us=percentile(found.later_us, 50),
        later_p99_us=percentile(found.later_us, 99),
    )


def _rows(book: Book, names: list[str]) -> Iterator[Row]:
    for name in ("direct", *names):
        is_ours = name == "queue_proxy"
        for delay in ("first_p50_us", "first_p99_us"):
            yield book.row(PACED, name, delay, bound=FIRST_BOUND_US if is_ours else None)
        yield book.row(PACED, name, "later_p50_us")
        yield book.row(PACED, name, "later_p99_us")
    for name in names:
        is_ours = name == "queue_proxy"
        if is_ours:
            yield book.row(PACED, name, "cpu_us_per_event", bound=CPU_BOUND_US)
        yield book.row(PACED, name, "cpu_us_per_event", against="nginx")
        if is_ours:
            yield book.row(PACED, name, "cpu_us_per_event", against="go")
        yield book.row(FLOOD, name, "events_per_cpu_s", bound=CHUNKS_BOUND if is_ours else None, least=True)
