"""Event streams: CPU per event, how late an event is, events per second and core, and what others feel of a flood.

Two paced loads, with an event a read: 16,000 events/s, where a wake-up brings many, for what an event costs; and 4,000,
where it brings few and its price is theirs, for how late they are. That price differs between minutes more than proxies
do, so ratios stand beside the microseconds. The delay is from the upstream's write to our read, both on this machine's
monotonic clock; it holds backend and client too. Then one stream as fast as it goes, each event its own chunk: what the
proxy's core passes per second of its CPU time; and the latency of 10 small requests/s beside that stream.
"""

from collections.abc import Iterator

from benchmarks.macro import peers
from benchmarks.macro.clients import Lane, drained, inference, paced, streams
from benchmarks.macro.harness import Bench, Server, Stage
from benchmarks.macro.report import Book, Row, percentile

BUSY, CALM = (80, 200), (40, 100)
"""Streams, and events per second of each."""
FLOOD, BESIDE_RATE = "1 stream, flood", 10.0
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
            for load in (BUSY, CALM):
                for server in (direct, *candidates)[:: -1 if number % 2 else 1]:
                    _paced(kept, load, server, bench.length_s(counts))
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


def _name(load: tuple[int, int]) -> str:
    return f"{load[0]} streams, {load[1]} events/s each"


def _paced(book: Book, load: tuple[int, int], server: Server, seconds: float) -> None:
    before = server.cpu_us()
    found = streams(server, f"/events/{load[1]}", load[0], seconds)
    used = server.cpu_us() - before
    book.add(
        _name(load),
        server.name,
        cpu_us_per_event=used / found.count,
        first_p50_us=percentile(found.first_us, 50),
        first_p99_us=percentile(found.first_us, 99),
        later_p50_us=percentile(found.later_us, 50),
        later_p99_us=percentile(found.later_us, 99),
    )


def _rows(book: Book, names: list[str]) -> Iterator[Row]:
    for name in ("direct", *names):
        for delay in ("first_p50_us", "first_p99_us"):
            yield book.row(_name(CALM), name, delay, bound=FIRST_BOUND_US if name == "queue_proxy" else None)
        yield book.row(_name(CALM), name, "later_p50_us")
        yield book.row(_name(CALM), name, "later_p99_us")
    for load in (BUSY, CALM):
        for name in names:
            if name == "queue_proxy":
                bound = CPU_BOUND_US if load is BUSY else None
                yield book.row(_name(load), name, "cpu_us_per_event", bound=bound)
                yield book.row(_name(load), name, "cpu_us_per_event", against="go")
            yield book.row(_name(load), name, "cpu_us_per_event", against="nginx")
    for name in names:
        bound = CHUNKS_BOUND if name == "queue_proxy" else None
        yield book.row(FLOOD, name, "events_per_cpu_s", bound=bound, least=True)
