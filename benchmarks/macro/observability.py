"""Measures the cost of observing a gateway over sockets: metrics, access log and traces of 1 % of the requests.

Two gateways on the proxies' core get load in turns. ``off`` has its defaults. ``on`` writes a line of its access log
for each request into a file, traces one request of a hundred at a collector, and is scraped each second. Behind both
stands a replica that answers at once (``replica.py``), on the load's core, so the gateway limits the throughput. There
is the process that writes the log, too: it is no part of ``cpu_us_per_request``. Each request has a ``traceparent``,
and one of a hundred is *sampled*.

A visit of ``on`` counts only if its log has a line for each request and spans have arrived: nothing may be dropped.

``payloads``: two gateways at a fixed rate; one of them sends the bodies of 10 % of the requests, with a redaction list,
to a sink. The result is the client's p99.
"""

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

from benchmarks.macro import peers
from benchmarks.macro.clients import Lane, inference, paced, wrk
from benchmarks.macro.harness import Bench, Server, Stage, open_socket
from benchmarks.macro.report import Book, Row
from tidegate.records.payload_rules import PayloadRules

LOAD = "traced"
LEAST = 0.97
SCRAPE_S = 1.0
RATE, BODY_BYTES, P99_BOUND = 1000.0, 1000, 1.1
PACED = "1 KB POST, 1000/s"
_SCRAPE = b"GET /metrics HTTP/1.1\r\nHost: admin\r\nConnection: close\r\n\r\n"


def measure(bench: Bench) -> Iterator[Row]:
    yield from _throughput(bench)
    yield from _payloads(bench)


def _payloads(bench: Bench) -> Iterator[Row]:
    book = Book("observability")
    with Stage(bench) as stage, _collector() as sink:
        rules = PayloadRules(percent=10.0, sink=f"{sink.url}/events", redact="password")
        servers = (
            peers.gateway(stage, [peers.null_replica(stage)], name="off"),
            peers.gateway(stage, [peers.null_replica(stage)], name="payloads", payload=rules),
        )
        for number, counts in enumerate(bench.counted()):
            for server in servers[:: -1 if number % 2 else 1]:
                lane = Lane(server.address, inference(BODY_BYTES), RATE)
                paced([lane], bench.length_s(counts))
                if counts:
                    book.add(PACED, server.name, p50_us=lane.p50(), p99_us=lane.p99())
        if not sink.taken:
            raise RuntimeError("no event has arrived at the sink")
    yield book.row(PACED, "payloads", "p99_us", against="off", bound=P99_BOUND)
    yield book.row(PACED, "payloads", "p50_us", against="off")


def _throughput(bench: Bench) -> Iterator[Row]:
    book = Book("observability")
    with Stage(bench) as stage, _collector() as collector:
        log = stage.folder / "access.log"
        on = {"log": str(log), "access_sampling": 1.0, "log_format": "json"}
        on |= {"tracing_endpoint": collector.url, "tracing_ratio": 0.01}
        gateways = (
            peers.gateway(stage, [peers.null_replica(stage)], name="off"),
            peers.gateway(stage, [peers.null_replica(stage)], name="on", more=on),
        )
        _move_children(gateways[1], bench.machine.load_core)
        admin = f"unix:{stage.folder}/on-0.sock"
        for number, counts in enumerate(bench.counted()):
            for server in gateways[:: -1 if number % 2 else 1]:
                is_on = server.name == "on"
                _emptied(log)
                with _scraped(admin) if is_on else contextlib.nullcontext():
                    visit = wrk(bench, server, LOAD, bench.length_s(counts))
                if is_on:
                    _check(log, round(visit.rps * visit.seconds), collector)
                if counts:
                    book.add(LOAD, server.name, requests_per_s=visit.rps, cpu_us_per_request=visit.cpu_us)
    yield book.row(LOAD, "on", "requests_per_s", against="off", bound=LEAST, least=True)
    yield book.row(LOAD, "on", "cpu_us_per_request", against="off")
    yield book.row(LOAD, "off", "requests_per_s")
    yield book.row(LOAD, "off", "cpu_us_per_request")


def _move_children(server: Server, core: str) -> None:
    """Moves what the server's processes have started to another core."""
    for process in server.processes:
        for child in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split():
            os.sched_setaffinity(int(child), {int(core)})


class _Collector:
    def __init__(self, url: str) -> None:
        self.url = url
        self.taken = 0
        """Bytes of spans."""


@contextlib.contextmanager
def _collector() -> Iterator[_Collector]:
    """A collector that counts the bytes that it gets."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            collector.taken += len(self.rfile.read(int(self.headers["content-length"])))
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *words: object) -> None:
            """Writes nothing."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        collector = _Collector(f"http://127.0.0.1:{server.server_port}")
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield collector
        finally:
            server.shutdown()
            thread.join()


@contextlib.contextmanager
def _scraped(admin: str) -> Iterator[None]:
    """Asks for the metrics each second while the block runs."""
    is_over = threading.Event()

    def scrape() -> None:
        while not is_over.is_set():
            with open_socket(admin) as sock:
                sock.sendall(_SCRAPE)
                while sock.recv(1 << 16):
                    pass
            is_over.wait(SCRAPE_S)

    thread = threading.Thread(target=scrape)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def _emptied(log: Path) -> None:
    with contextlib.suppress(FileNotFoundError), log.open("r+b") as file:
        file.truncate()


def _check(log: Path, requests: int, collector: _Collector) -> None:
    """Raises RuntimeError if the gateway has not written down what it served."""
    time.sleep(0.6)  # two sweeps
    with log.open("rb") as file:
        lines = sum(1 for _ in file)
    if lines < requests:
        raise RuntimeError(f"the access log has {lines} lines of {requests} requests")
    end = time.monotonic() + 5.0
    while not collector.taken and time.monotonic() < end:
        time.sleep(0.1)
    if not collector.taken:
        raise RuntimeError("no span has arrived at the collector")
    collector.taken = 0
