"""Python time of one proxied request without sockets: recorded bytes into the two protocol objects.

    python -m benchmarks.micro.engine_bench [--app NAME]... [--load NAME]... [--rounds 300] [--profile]

Applications on fake transports: ``relay`` (the engine alone, ``benchmarks.macro.relay``), ``queue_proxy`` (a stranger's
request through the whole queue_proxy) and ``credit`` (a gateway's request with a kept credit through it). All
connections are in flight at once, as under load. Stable to a few percent where the loopback benchmark is not, and
shows where the Python time goes; the kernel's share (15 us and more) is not in it.
"""

import argparse
import asyncio
import cProfile
import json
import platform
import pstats
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

from benchmarks.macro.relay import Relay
from queue_proxy.chain import Sidecar
from queue_proxy.drain import Life
from queue_proxy.live import NO_BOUND, client_limits
from queue_proxy.metrics import Identity, Measure
from queue_proxy.settings import ProxySettings
from tidegate.aio.channel import SlotPort
from tidegate.aio.exchange import ProxyApp
from tidegate.aio.loop import keep_memory, quiet_collector
from tidegate.aio.server import Limits, ProxyServer, ServerConn
from tidegate.aio.sweeper import Sweeper
from tidegate.aio.upstream import UpstreamConn, UpstreamPool
from tidegate.flow.slots import SlotLedger

CONNECTIONS = 32
VARIANTS = 1024
LOADS = ("post", "get")
_TOKEN = b"0123456789abcdef0123456789abcdef"
_BODY = (
    b'{"id":"%032x","inputs":[{"name":"input","shape":[%d,32],"datatype":"FP32","data":[' + b"0.125," * 31 + b"0.5]}]}"
)
_POST = (
    b"POST /v2/models/resnet/infer HTTP/1.1\r\nHost: resnet.localhost\r\nUser-Agent: bench/1.0\r\n"
    b"Accept: application/json\r\nAccept-Encoding: gzip, deflate\r\nContent-Type: application/json\r\n"
    b"Authorization: Bearer %040x\r\nX-Request-Id: %032x\r\ntraceparent: 00-%032x-%016x-01\r\n"
    b"%bContent-Length: %d\r\n\r\n%b"
)
_GET = b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
_ANSWER = (
    b"HTTP/1.1 200 OK\r\nServer: nginx/1.22.1\r\nDate: Fri, 21 Nov 2026 11:11:11 GMT\r\n"
    b"Content-Type: application/json\r\nContent-Length: 105\r\nConnection: keep-alive\r\n\r\n" + b"x" * 105
)


class FakeTransport:
    """Swallows what is written."""

    def __init__(self, peer: str) -> None:
        self._peer = (peer, 50000)

    def write(self, data: bytes) -> None:
        """Goes nowhere."""

    def is_closing(self) -> bool:
        return False

    def set_write_buffer_limits(self, high: int) -> None:
        """There is no buffer."""

    def get_extra_info(self, name: str) -> Any:
        return self._peer if name == "peername" else None

    def abort(self) -> None:
        raise RuntimeError("the connection was aborted")


@dataclass
class Subject:
    """An application with its server side and its pool, and what its requests carry beside the usual."""

    app: ProxyApp
    pool: UpstreamPool
    server: ProxyServer
    lines: Callable[[int], bytes]
    """Header lines of the requests on the n-th connection."""


def relay(sweeper: Sweeper) -> Subject:
    """The engine alone."""
    pool = UpstreamPool("127.0.0.1:1", sweeper)
    app = Relay(pool)
    return Subject(app, pool, ProxyServer(app, Limits(), sweeper), lambda _: b"")


def _queue_proxy(sweeper: Sweeper, token: bytes | None) -> tuple[SlotLedger, Subject]:
    settings = ProxySettings(limit=CONNECTIONS, revision="bench-00001")
    ledger = SlotLedger(incarnation="bench", limit=CONNECTIONS, fifo_bound=NO_BOUND)
    life = Life(limit=CONNECTIONS, phases=settings.phases, epoch=0)
    identity = Identity(function="", revision=settings.revision, group="", replica="", incarnation="bench")
    pool = UpstreamPool("127.0.0.1:1", sweeper)
    app = Sidecar(
        settings,
        token=token,
        ledger=ledger,
        life=life,
        measure=Measure(identity, time.monotonic()),
        pool=pool,
        clock=time.monotonic,
        pump=lambda: port.pump(),
        open_channel=lambda ex: None,
        suspect=lambda why: None,
    )
    port = SlotPort(
        ledger, asyncio.get_running_loop(), admit=app.admitted, reject=app.rejected, state=lambda state: None
    )
    life.model_ready(limit=CONNECTIONS, load_s=1.0, warm_s=None)
    ledger.ready(time.monotonic())
    port.pump()
    return ledger, Subject(app, pool, ProxyServer(app, client_limits(settings), sweeper), lambda _: b"")


def queue_proxy(sweeper: Sweeper) -> Subject:
    """The whole queue_proxy; its clients carry no credit."""
    return _queue_proxy(sweeper, None)[1]


def credit(sweeper: Sweeper) -> Subject:
    """The whole queue_proxy with a gateway before it that keeps its credits."""
    ledger, subject = _queue_proxy(sweeper, _TOKEN)
    numbers = list(ledger.opened("bench", time.monotonic()).idle)
    ledger.out.clear()
    subject.lines = lambda at: (
        b"tidegate-token: %b\r\ntidegate-credit: %d\r\ntidegate-timeout-ms: 30000\r\ntidegate-batch-size: 1\r\n"
        % (_TOKEN, numbers[at])
    )
    return subject


APPS: dict[str, Callable[[Sweeper], Subject]] = {"relay": relay, "queue_proxy": queue_proxy, "credit": credit}


def request(load: str, number: int, lines: bytes) -> bytes:
    """One request of a load; every POST differs."""
    if load == "get":
        return _GET[:-2] + lines + b"\r\n"
    body = _BODY % (number, number % 8 + 1)
    return _POST % (number, number, number + 1, number + 1, lines, len(body), body)


class Bench:
    """Connections and their requests, all in flight in every turn."""

    def __init__(self, app: str, load: str, sweeper: Sweeper) -> None:
        self._subject = subject = APPS[app](sweeper)
        self._clients = [ServerConn(subject.server) for _ in range(CONNECTIONS)]
        for number, client in enumerate(self._clients):
            client.connection_made(cast(asyncio.Transport, FakeTransport(f"127.0.0.{number + 1}")))
        self._upstreams = [UpstreamConn(subject.pool) for _ in range(CONNECTIONS)]
        for upstream in self._upstreams:
            upstream.connection_made(cast(asyncio.Transport, FakeTransport("127.0.0.1")))
            subject.pool.put(upstream)
        self._turns = [
            [request(load, first + at, subject.lines(at)) for at in range(CONNECTIONS)]
            for first in range(0, VARIANTS, CONNECTIONS)
        ]

    def round(self) -> float:
        """Sends every variant once; CPU seconds."""
        flush = self._subject.server.outbox.flush
        begun = time.process_time()
        for turn in self._turns:
            for client, data in zip(self._clients, turn, strict=True):
                client.data_received(data)
            flush()
            for upstream in self._upstreams:
                upstream.data_received(_ANSWER)
            flush()
        return time.process_time() - begun


async def measure(app: str, load: str, rounds: int, profile: cProfile.Profile | None) -> float:
    """Microseconds per request in the best round: interruptions only ever add."""
    sweeper = Sweeper(asyncio.get_running_loop())
    bench = Bench(app, load, sweeper)
    quiet_collector()
    if profile is not None:
        bench.round()
        profile.enable()
        for _ in range(20):
            bench.round()
        profile.disable()
    best = min(bench.round() for _ in range(rounds))
    sweeper.close()
    return best / VARIANTS * 1e6


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--app", action="append", choices=APPS, help="default: all")
    parser.add_argument("--load", action="append", choices=LOADS, help="default: both")
    parser.add_argument("--rounds", type=int, default=100, help=f"of {VARIANTS} requests; the best one counts")
    parser.add_argument("--profile", action="store_true")
    arguments = parser.parse_args()
    keep_memory()
    for app in arguments.app or APPS:
        for load in arguments.load or LOADS:
            profile = cProfile.Profile() if arguments.profile else None
            micros = asyncio.run(measure(app, load, arguments.rounds, profile))
            row = {
                "benchmark": "engine",
                "app": app,
                "load": load,
                "us_per_request": round(micros, 2),
                "connections": CONNECTIONS,
                "python": platform.python_version(),
            }
            print(json.dumps(row), flush=True)
            if profile is not None:
                pstats.Stats(profile).sort_stats("tottime").print_stats(40)


if __name__ == "__main__":
    main()
