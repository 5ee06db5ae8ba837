"""The gateway at a working day's load: what it adds to 1 KB requests at 60 % of its capacity, and its scrapes.

`added`: gateway -> queue_proxy -> backend minus the backend alone, at 60 % of the requests/s that wrk got through the
same path just before. `scrape`: ``/metrics`` of a gateway that knows 100 functions, asked 20 times a second while
1,000 requests/s (answered by the gateway itself) probe its loop. A scrape that stops the loop delays the probes that
are due meanwhile, so the worst of them is compared with the worst in as long a time midway between two scrapes. The
CPU time of a whole scrape stands beside it.
"""

import bisect
import time
from collections.abc import Iterator
from dataclasses import replace

from benchmarks.macro import peers
from benchmarks.macro.clients import LEAD_S, Lane, inference, paced, wrk
from benchmarks.macro.harness import Bench, Server, Stage, answered
from benchmarks.macro.report import Book, Row, percentile

SHARE = 0.6
P50_BOUND_MS, P99_BOUND_MS, STALL_BOUND_MS = 1.0, 5.0, 1.0
BODY_BYTES = 1000
LOAD = "1 KB POST, 60 % of capacity"
FUNCTIONS, SCRAPES_PER_S, PROBES_PER_S = 100, 20.0, 1000.0
SCRAPE = f"{FUNCTIONS} functions, {SCRAPES_PER_S:.0f} scrapes/s"
_SCRAPE = b"GET /metrics HTTP/1.1\r\nHost: admin\r\n\r\n"
_PROBE = b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\n\r\n"


def measure(bench: Bench) -> Iterator[Row]:
    yield from _added(bench)
    yield from _scrapes(bench)


def _added(bench: Bench) -> Iterator[Row]:
    book = Book("overhead")
    with Stage(bench) as stage:
        direct = peers.nginx_backend(stage)
        behind = peers.queue_proxy(stage, direct.address, name="replica")
        path = peers.both(peers.gateway(stage, [behind]), behind)
        for counts in bench.counted():
            rate = SHARE * wrk(bench, path, "post1k", 1).rps
            lanes = [Lane(server.address, inference(BODY_BYTES), rate) for server in (direct, path)]
            for lane in lanes:
                paced([lane], bench.length_s(counts))
            if counts:
                book.add(
                    LOAD,
                    path.name,
                    rate_per_s=rate,
                    added_p50_ms=(lanes[1].p50() - lanes[0].p50()) / 1e3,
                    added_p99_ms=(lanes[1].p99() - lanes[0].p99()) / 1e3,
                )
    yield book.row(LOAD, path.name, "rate_per_s")
    yield book.row(LOAD, path.name, "added_p50_ms", bound=P50_BOUND_MS)
    yield book.row(LOAD, path.name, "added_p99_ms", bound=P99_BOUND_MS)


def _scrapes(bench: Bench) -> Iterator[Row]:
    book = Book("overhead")
    with Stage(bench) as stage:
        behind = peers.queue_proxy(stage, peers.nginx_backend(stage).address)
        others = [peers.route(f"f{number}", [replace(behind, name=f"f{number}-r")]) for number in range(FUNCTIONS)]
        front = peers.gateway(stage, [behind], others=others)
        admin = f"unix:{stage.folder}/gateway-0.sock"
        for route in others:
            answered(front.address, f"/v2/models/{route.name}/infer", host="localhost")
        for counts in bench.counted():
            stall, cpu = _stall(front, admin, bench.length_s(counts))
            if counts:
                book.add(SCRAPE, front.name, stall_p50_ms=stall[0], stall_p90_ms=stall[1], cpu_ms_per_scrape=cpu)
    yield book.row(SCRAPE, "gateway", "stall_p50_ms", bound=STALL_BOUND_MS)
    yield book.row(SCRAPE, "gateway", "stall_p90_ms", bound=STALL_BOUND_MS)
    yield book.row(SCRAPE, "gateway", "cpu_ms_per_scrape", note="of the loop, in slices")


def _stall(front: Server, admin: str, seconds: float) -> tuple[tuple[float, float], float]:
    """(p50, p90) of how much later the worst probe during a scrape is than in a time without one, in ms; CPU ms of a
    scrape."""
    probes, scrapes = Lane(front.address, _PROBE, PROBES_PER_S, 8), Lane(admin, _SCRAPE, SCRAPES_PER_S, 1)
    paced([probes, scrapes], seconds)
    half = 0.5 / SCRAPES_PER_S
    longest = half - 0.005  # the time without a scrape ends before the next one begins
    spans = [(due, due + min(whole / 1e6, longest)) for due, whole in zip(scrapes.due_s, scrapes.whole_us, strict=True)]
    during = _worst(probes, spans)
    between = _worst(probes, [(begin + half, end + half) for begin, end in spans])
    stall = [(percentile(during, p) - percentile(between, p)) / 1e3 for p in (50, 90)]
    return (stall[0], stall[1]), _cpu_ms(front, admin, seconds)


def _worst(probes: Lane, spans: list[tuple[float, float]]) -> list[float]:
    """The slowest probe that was due in each span, microseconds; those that just went before it count too."""
    order = sorted(zip(probes.due_s, probes.whole_us, strict=True))
    dues = [due for due, _ in order]
    worst = []
    for begin, end in spans:
        first = bisect.bisect_left(dues, begin - 1.0 / PROBES_PER_S)
        late = [whole for _, whole in order[first : bisect.bisect_right(dues, end)]]
        if late:
            worst.append(max(late))
    return worst


def _cpu_ms(front: Server, admin: str, seconds: float) -> float:
    """CPU of one scrape: with scrapes alone, less what the idle gateway takes."""
    before = front.cpu_us()
    time.sleep(seconds)
    idle_us = (front.cpu_us() - before) / seconds
    lane = Lane(admin, _SCRAPE, SCRAPES_PER_S, 1)
    before, begun = front.cpu_us(), time.monotonic()
    paced([lane], seconds)
    used = front.cpu_us() - before - idle_us * (time.monotonic() - begun)
    return used / (SCRAPES_PER_S * (seconds + LEAD_S)) / 1e3
