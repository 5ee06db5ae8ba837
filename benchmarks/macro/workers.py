"""Several gateway workers on one port: what a request costs, how they scale, and clients that all meet one worker.

On two cores all workers share the proxy's core. Scaling needs 8 cores: workers on the first four, queue_proxies,
backend and load on the others.
"""

import select
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

from benchmarks.macro import peers
from benchmarks.macro.clients import READ, inference, wrk
from benchmarks.macro.harness import Bench, Server, Stage, open_socket
from benchmarks.macro.report import Book, Row, missing

CPU_BOUND, SCALING_BOUND, TOGETHER_BOUND = 1.15, 3.4, 0.95
SCALING_CORES, SCALED = 8, 4
CLIENTS, WORK_MS = 4, 5
TRIED = 32
"""Connections among which those are found that meet one worker."""
HASHED = f"{CLIENTS} clients, {WORK_MS} ms of work, limit {CLIENTS}"


def measure(bench: Bench) -> Iterator[Row]:
    book = Book("workers")
    with Stage(bench) as stage:
        upstream = peers.nginx_backend(stage).address
        fronts = {}
        for count in (1, 2):
            behind = peers.queue_proxy(stage, upstream, name=f"replica-{count}")
            front = peers.gateway(stage, [behind], name=f"workers-{count}", workers=count)
            fronts[front.name] = (front, behind)
        for counts in bench.counted():
            for name, (front, behind) in fronts.items():
                before = behind.cpu_us()
                visit = wrk(bench, front, "post", bench.length_s(counts))
                behind_us = (behind.cpu_us() - before) / (visit.rps * visit.seconds)
                if counts:
                    book.add("post", name, gateway_cpu_us_per_request=visit.cpu_us)
                    book.add("post", name, both_hops_cpu_us_per_request=visit.cpu_us + behind_us)
    for measure in ("gateway_cpu_us_per_request", "both_hops_cpu_us_per_request"):
        yield book.row("post", "workers-1", measure)
        yield book.row("post", "workers-2", measure, against="workers-1", bound=CPU_BOUND)
    yield from _one_worker(bench, book)
    yield from _scaling(bench, book)


# --- clients that all hash to one worker -----------------------------------------------------------------------------


def _one_worker(bench: Bench, book: Book) -> Iterator[Row]:
    with Stage(bench) as stage:
        backend = peers.origin(stage)
        behind = peers.queue_proxy(stage, backend.address, limit=CLIENTS)
        front = peers.gateway(stage, [behind], workers=SCALED)
        for counts in bench.counted():
            for kind in ("spread", "together"):
                done = _closed_loop(front, kind == "together", bench.length_s(counts))
                if counts:
                    book.add(HASHED, kind, requests_per_s=done)
    yield book.row(HASHED, "spread", "requests_per_s")
    yield book.row(HASHED, "together", "requests_per_s", against="spread", bound=TOGETHER_BOUND, least=True)


def _closed_loop(front: Server, together: bool, seconds: float) -> float:
    """Requests per second of CLIENTS connections, each of which asks again as soon as it has its answer."""
    request = inference().replace(b"\r\n", b"\r\nx-work-ms: %d\r\n" % WORK_MS, 1)
    with ExitStack() as stack:
        chosen = _chosen(front, together, stack, request)
        poll = stack.enter_context(select.epoll())
        for sock in chosen:
            poll.register(sock, select.EPOLLIN)
        by_fd = {sock.fileno(): sock for sock in chosen}
        done = 0
        begun = time.monotonic()
        for sock in chosen:
            sock.sendall(request)
        while time.monotonic() < begun + seconds:
            for descriptor, _ in poll.poll(1.0):
                _answer(by_fd[descriptor])
                by_fd[descriptor].sendall(request)
                done += 1
        return done / (time.monotonic() - begun)


def _chosen(front: Server, together: bool, stack: ExitStack, request: bytes) -> list[socket.socket]:
    """Connections of one worker, or of CLIENTS different ones; the others are closed."""
    by_worker: dict[int, list[socket.socket]] = {process.pid: [] for process in front.processes}
    port = int(front.address.rpartition(":")[2])
    for _ in range(TRIED):
        sock = open_socket(front.address)
        sock.sendall(request)
        _answer(sock)
        by_worker[_owner(port, sock.getsockname()[1], list(by_worker))].append(sock)
    groups = sorted(by_worker.values(), key=len)
    chosen = groups[-1][:CLIENTS] if together else [group[0] for group in groups if group]
    for group in groups:
        for sock in group:
            if sock in chosen:
                stack.enter_context(sock)
            else:
                sock.close()
    if len(chosen) != CLIENTS:
        raise RuntimeError(f"{TRIED} connections met only {len(chosen)} workers")
    return chosen


def _answer(sock: socket.socket) -> None:
    answer = sock.recv(READ)
    if not answer.startswith(b"HTTP/1.1 200"):
        raise RuntimeError(f"answered {answer[:200]!r}")


def _owner(port: int, client_port: int, processes: list[int]) -> int:
    """Which process holds the server's side of a connection, as the kernel lists it."""
    ends = [f":{port:04X}", f":{client_port:04X}"]
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()]
    name = next((f"socket:[{row[9]}]" for row in rows if [row[1][-5:], row[2][-5:]] == ends), "")
    for process in processes:
        for descriptor in Path(f"/proc/{process}/fd").iterdir():
            with suppress(OSError):
                if str(descriptor.readlink()) == name:
                    return process
    raise RuntimeError(f"no worker holds the connection from port {client_port}")


# --- scaling ---------------------------------------------------------------------------------------------------------


def _scaling(bench: Bench, book: Book) -> Iterator[Row]:
    cores = [str(core) for core in bench.machine.cores]
    if len(cores) < SCALING_CORES:
        yield missing(
            "workers", "post, a core each", f"workers-{SCALED}", f"{len(cores)} cores, {SCALING_CORES} wanted"
        )
        return
    load = "post, a core each"
    others = ",".join(cores[SCALED:])
    with Stage(bench) as stage:
        upstream = peers.nginx_backend(stage).address
        fronts = []
        for count in (1, SCALED):
            behind = [
                peers.queue_proxy(stage, upstream, name=f"replica-{count}-{n}", core=others) for n in range(SCALED)
            ]
            fronts.append(peers.gateway(stage, behind, name=f"workers-{count}", workers=count, cores=cores[:SCALED]))
        for counts in bench.counted():
            for front in fronts:
                visit = wrk(bench, front, "post", bench.length_s(counts), connections=256, threads=3, cores=others)
                if counts:
                    busy = visit.cpu_us * visit.rps / 1e4 / len(front.processes)
                    book.add(load, front.name, requests_per_s=visit.rps, busy_percent=busy)
    scaled = f"workers-{SCALED}"
    yield book.row(load, "workers-1", "requests_per_s")
    yield book.row(load, scaled, "requests_per_s", against="workers-1", bound=SCALING_BOUND, least=True)
    yield book.row(load, scaled, "busy_percent", note="below 90 the load was the limit, not the workers")
