"""Measures the cost of observing a gateway over sockets: metrics, access log and traces of 1 % of the requests.

Three gateways on the proxies' core get load in turns, and each is the first as often as the others. ``off`` has its
defaults, and so has ``again``: its ratio to ``off`` shows what the measurement itself varies by. ``on`` writes a line
of its access log for each request into a file, traces one request of a hundred at a collector, and is scraped each
second. Behind each stands a replica that answers at once (``replica.py``), on the load's core, so the gateway limits
the throughput. There are the processes that write the log and export spans, too: ``cpu_us_per_request`` is that of the
worker alone, and ``cpu_us_with_sides`` has theirs as well. Each request has a ``traceparent``, and one of a hundred is
*sampled*.

A visit of ``on`` counts only if its log has a line for each request and spans have arrived: nothing may be dropped.

``payloads``: three gateways at a fixed rate; one of them sends the bodies of 10 % of the requests, with a redaction
list, to a sink. The result is the client's p99, beside that of ``again``. Of one second it is the tenth largest time,
which differs between rounds by more than half. So six rounds make one figure, in which each gateway has had each turn
twice.

On a machine that does other work, run it as root under ``chrt -r 2``: load, replicas and workers go first, then the
processes that write and export, then other programs. On a machine that is too busy for the log writer the measurement
fails, because lines are dropped.
"""

import contextlib
import http.client
import os
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.macro import peers
from benchmarks.macro.clients import Lane, inference, paced, wrk
from benchmarks.macro.harness import Bench, Server, Stage, cpu_ns, free_port, open_socket, tree
from benchmarks.macro.report import Book, Row, percentile, pooled
from tidegate.records.payload_rules import PayloadRules

LOAD = "traced"
LEAST, MOST = 0.97, 1.03
SCRAPE_S = 1.0
RATE, BODY_BYTES, P99_BOUND = 1000.0, 1000, 1.1
PACED = "1 KB POST, 1000/s"
TURNS = 6
"""Orders in which three gateways have their turns."""
_SCRAPE = b"GET /metrics HTTP/1.1\r\nHost: admin\r\nConnection: close\r\n\r\n"


def measure(bench: Bench) -> Iterator[Row]:
    yield from _throughput(bench)
    yield from _payloads(bench)


def _payloads(bench: Bench) -> Iterator[Row]:
    book = Book("observability")
    with Stage(bench) as stage:
        sink = _sink(stage)
        rules = PayloadRules(percent=10.0, sink=f"http://{sink.address}/events", redact="password")
        servers = (
            peers.gateway(stage, [peers.null_replica(stage)], name="off"),
            peers.gateway(stage, [peers.null_replica(stage)], name="payloads", payload=rules),
            peers.gateway(stage, [peers.null_replica(stage)], name="again"),
        )
        _move_children(servers[1], bench.machine.load_core)
        times: dict[str, list[list[float]]] = {server.name: [] for server in servers}
        for number, counts in enumerate(bench.counted()):
            for server in _turned(servers, number):
                lane = Lane(server.address, inference(BODY_BYTES), RATE)
                paced([lane], bench.length_s(counts))
                if counts:
                    times[server.name].append(lane.whole_us)
        for name, rounds in times.items():
            for each in pooled(rounds, TURNS):
                book.add(PACED, name, p50_us=percentile(each, 50), p99_us=percentile(each, 99))
        if not _taken(sink):
            raise RuntimeError("no event has arrived at the sink")
    yield book.row(PACED, "payloads", "p99_us", against="off", bound=P99_BOUND)
    yield book.row(PACED, "again", "p99_us", against="off")
    yield book.row(PACED, "payloads", "p50_us", against="off")
    yield book.row(PACED, "again", "p50_us", against="off")


def _throughput(bench: Bench) -> Iterator[Row]:
    book = Book("observability")
    with Stage(bench) as stage:
        collector = _sink(stage)
        log = stage.folder / "access.log"
        on = {"log": str(log), "access_sampling": 1.0, "log_format": "json"}
        on |= {"tracing_endpoint": f"http://{collector.address}", "tracing_ratio": 0.01}
        gateways = (
            peers.gateway(stage, [peers.null_replica(stage)], name="off"),
            peers.gateway(stage, [peers.null_replica(stage)], name="on", more=on),
            peers.gateway(stage, [peers.null_replica(stage)], name="again"),
        )
        _move_children(gateways[1], bench.machine.load_core)
        admin = f"unix:{stage.folder}/on-0.sock"
        for number, counts in enumerate(bench.counted()):
            for server in _turned(gateways, number):
                is_on = server.name == "on"
                _emptied(log)
                before = _sides_us(server)
                with _scraped(admin) if is_on else contextlib.nullcontext():
                    visit = wrk(bench, server, LOAD, bench.length_s(counts))
                requests = round(visit.rps * visit.seconds)
                sides_us = (_sides_us(server) - before) / requests
                if is_on:
                    _check(log, requests, collector)
                if counts:
                    book.add(LOAD, server.name, requests_per_s=visit.rps, cpu_us_per_request=visit.cpu_us - sides_us)
                    book.add(LOAD, server.name, cpu_us_with_sides=visit.cpu_us)
    yield book.row(LOAD, "on", "requests_per_s", against="off", bound=LEAST, least=True)
    yield book.row(LOAD, "again", "requests_per_s", against="off")
    yield book.row(LOAD, "on", "cpu_us_per_request", against="off", bound=MOST)
    yield book.row(LOAD, "again", "cpu_us_per_request", against="off")
    yield book.row(LOAD, "on", "cpu_us_with_sides", against="off")
    yield book.row(LOAD, "off", "requests_per_s")
    yield book.row(LOAD, "off", "cpu_us_per_request")


def _turned(servers: Sequence[Server], number: int) -> Sequence[Server]:
    """Returns the servers in the order of round ``number``: another one is the first each time, and every second time
    round they go backwards."""
    first = number % len(servers)
    turned = (*servers[first:], *servers[:first])
    return turned[::-1] if number // len(servers) % 2 else turned


def _move_children(server: Server, core: str) -> None:
    """Moves what the server's processes have started to another core. Where this process has a real-time priority
    above the lowest, they get the lowest, as if there were no other programs."""
    is_first = os.sched_getparam(0).sched_priority > 1
    for process in server.processes:
        for child in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split():
            for task in Path(f"/proc/{child}/task").iterdir():
                os.sched_setaffinity(int(task.name), {int(core)})
                if is_first:
                    os.sched_setscheduler(int(task.name), os.SCHED_RR, os.sched_param(1))


def _sides_us(server: Server) -> float:
    """Processor time of the side processes of a gateway."""
    return sum(cpu_ns(each) for process in server.processes for each in tree(process.pid)[1:]) / 1e3


def _sink(stage: Stage) -> Server:
    address = f"127.0.0.1:{free_port()}"
    return stage.module("sink", stage.bench.machine.load_core, ["benchmarks.macro.sink", address], address)


def _taken(sink: Server) -> int:
    """Returns the bytes that have come to it since the last call."""
    connection = http.client.HTTPConnection(sink.address, timeout=5.0)
    try:
        connection.request("GET", "/")
        return int(connection.getresponse().read())
    finally:
        connection.close()


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


def _lines(log: Path) -> int:
    with log.open("rb") as file:
        return sum(1 for _ in file)


def _check(log: Path, requests: int, collector: Server) -> None:
    """Raises RuntimeError if the gateway has not written down what it served."""
    end = time.monotonic() + 5.0
    while (lines := _lines(log)) < requests and time.monotonic() < end:
        time.sleep(0.1)
    if lines < requests:
        raise RuntimeError(f"the access log has {lines} lines of {requests} requests")
    while not (taken := _taken(collector)) and time.monotonic() < end:
        time.sleep(0.1)
    if not taken:
        raise RuntimeError("no span has arrived at the collector")
