"""What one process of the load client drives: ``python -m benchmarks.micro.load_bench [--seconds 5] [--rate 5000]``.

A trivial server in a process of its own answers every request with the same bytes. Prints one JSON line: for HTTP/1.1
and gRPC the closed loop of 64 callers (the most that client and server reach together here) and the open loop at
``--rate`` (whether it left on time), with the client's share of a core; ``us_per_request`` is its processor time.
"""

import argparse
import asyncio
import functools
import json
import platform
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tidegate.aio.loop import run as loop
from tidegate.aio.loop.services import LoopServices
from tidegate.loadgen.arrivals.processes import poisson
from tidegate.loadgen.clients.bodies import v2_body
from tidegate.loadgen.clients.call import Request
from tidegate.loadgen.clients.client import LoadClient
from tidegate.loadgen.clients.grpc_calls import V2, GrpcCalls, framed
from tidegate.loadgen.clients.http_calls import HttpCalls
from tidegate.loadgen.clients.runs import LoadRun
from tidegate.loadgen.clients.workers import Caller
from tidegate.loadgen.reports.record import About, report_of
from tidegate.loadgen.reports.tally import Tally
from tidegate.wire.http2 import grpc_fields
from tidegate.wire.http2.block_memory import REQUEST, Blocks
from tidegate.wire.http2.events import BODY as BODY_EVENT
from tidegate.wire.http2.hpack import literal
from tidegate.wire.http2.roles import H2Server

CALLERS = 64
ANSWER = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n" + b"x" * 100
BODY = Request(v2_body(1))
OK = literal(b"grpc-status", b"0")


class Trivial(asyncio.Protocol):
    """Answers each read: a client here never sends its next request before it has the answer."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.transport.write(ANSWER)  # type: ignore[attr-defined]  # a transport of a connection


class TrivialGrpc(asyncio.Protocol):
    """The same over HTTP/2: an empty message and ``OK``."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.engine = H2Server(Blocks(REQUEST))

    def data_received(self, data: bytes) -> None:
        for kind, stream, _, ends in self.engine.receive(data, 0.0):
            if kind == BODY_EVENT and ends:
                self.engine.head(stream, grpc_fields.ANSWER, False)
                self.engine.data(stream, framed(b""), False)
                self.engine.trailers(stream, OK)
        self.transport.write(self.engine.take())  # type: ignore[attr-defined]  # as above


async def serve(kind: str) -> None:
    protocol = TrivialGrpc if kind == "grpc" else Trivial
    server = await asyncio.get_running_loop().create_server(protocol, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


@contextmanager
def server(kind: str) -> Iterator[int]:
    """A trivial server; its port."""
    command = [sys.executable, "-m", "benchmarks.micro.load_bench", "--serve", kind]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield int(process.stdout.readline())
        finally:
            process.terminate()


async def measured(client: LoadClient, drive: Callable[[LoadRun], Any]) -> dict[str, float | int | bool]:
    tally = Tally()
    run = LoadRun(client, lambda call: tally.add(call, run.began))
    began, cpu = time.monotonic(), time.process_time()
    await drive(run)
    wall_s, cpu_s = time.monotonic() - began, time.process_time() - cpu
    await client.close()
    about = About(
        target="", mode="", protocol="", seed=1, is_partial=False, began="",
        sent=run.sent, wall_s=wall_s, cpu_s=cpu_s,
    )  # fmt: skip
    found = report_of(tally, about)
    return {
        "sent": found.sent,
        "good": found.good,
        "rate_per_s": round(found.rate_per_s),
        "us_per_request": round(cpu_s / max(1, found.sent) * 1e6, 1),
        "busy": round(found.client.busy, 2),
        "late": found.client.late,
        "lag_p99_ms": round(found.client.lag_p99_s * 1e3, 2),
        "is_bottleneck": found.client.is_bottleneck,
    }


async def main(seconds: float, rate: float) -> None:
    services = LoopServices(asyncio.get_running_loop())
    found: dict[str, Any] = {"python": platform.python_version(), "asked_per_s": rate}
    for kind in ("http", "grpc"):
        with server(kind) as port:

            def client(kind: str = kind, port: int = port) -> LoadClient:
                common: dict[str, Any] = {"most": 1024, "timeout_s": 10.0, "clock": time.monotonic}
                if kind == "http":
                    return HttpCalls("127.0.0.1", port, "/infer", **common)
                return GrpcCalls(f"127.0.0.1:{port}", V2 + "ModelInfer", services=services, **common)

            request = Request(framed(BODY.body)) if kind == "grpc" else BODY
            draw = functools.partial(lambda given: given, request)
            times = poisson(lambda at_s: rate, seconds, rate, random.Random(1))
            schedule = [(at_s, request) for at_s in times]
            callers = [Caller(seconds) for _ in range(CALLERS)]
            found[kind] = {
                "closed": await measured(client(), functools.partial(LoadRun.closed_loop, workers=callers, draw=draw)),
                "open": await measured(client(), functools.partial(LoadRun.open_loop, schedule=schedule)),
            }
    services.close()
    print(json.dumps(found))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--rate", type=float, default=5000.0)
    parser.add_argument("--serve", choices=("http", "grpc"))
    arguments = parser.parse_args()
    loop.run(serve(arguments.serve) if arguments.serve else main(arguments.seconds, arguments.rate))
