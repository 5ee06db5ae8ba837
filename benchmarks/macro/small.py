"""Cost of a small request at a proxy: processor time per request, and its latency when the proxy is saturated.

Reference load: POST, 9 headers, about 300 bytes of V2 JSON, some 1000 variants with different ids; and one tiny GET. 32
connections. The backend's answer is constant, so the cache of response heads always hits.
"""

from collections.abc import Iterator

from benchmarks.macro import peers
from benchmarks.macro.clients import wrk
from benchmarks.macro.harness import Bench, Stage
from benchmarks.macro.report import Book, Row

BOUNDS = {"post": {"nginx": 1.6, "go": 0.5}, "get": {"nginx": 1.7, "go": 0.6}}
OURS = "queue_proxy"


def measure(bench: Bench) -> Iterator[Row]:
    book = Book("small")
    with Stage(bench) as stage:
        upstream = peers.nginx_backend(stage).address
        candidates = peers.proxies(stage, upstream)
        if not bench.smoke:
            candidates.append(peers.relay(stage, upstream))
        for counts in bench.counted():
            for load in BOUNDS:
                for server in candidates:
                    visit = wrk(bench, server, load, bench.length_s(counts))
                    if counts:
                        book.add(
                            load,
                            server.name,
                            cpu_us_per_request=visit.cpu_us,
                            requests_per_s=visit.rps,
                            p50_us=visit.p50_us,
                            p99_us=visit.p99_us,
                        )
    for load, bounds in BOUNDS.items():
        for server in candidates:
            ours = server.name == OURS
            yield book.row(
                load, server.name, "cpu_us_per_request", against="nginx", bound=bounds["nginx"] if ours else None
            )
            yield book.row(load, server.name, "requests_per_s", against="nginx")
        yield book.row(load, OURS, "cpu_us_per_request", against="go", bound=bounds["go"])
        yield book.row(load, OURS, "p99_us", against="go", their_measure="p50_us", bound=1.0)
