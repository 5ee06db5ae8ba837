"""Python time of one proxied request without sockets: recorded bytes into the two protocol objects.

    python -m benchmarks.micro.engine_bench [--app NAME]... [--load NAME]... [--rounds 200] [--profile]
    python -m benchmarks.micro.engine_bench --against FILE [--tolerance 0.05]

Applications on fake transports: ``relay`` (the engine alone, ``benchmarks.macro.relay``), ``queue_proxy`` (a stranger's
request through the whole queue_proxy) and ``credit`` (a gateway's request with a kept credit through it). All
connections are in flight at once, as under load. It shows where the Python time goes; the kernel's share (15 us and
more) is not in it.

Times differ between machines, and on one machine with its neighbours. So a fixed piece of pure Python (``reference``)
runs between the rounds, and ``ratio`` is the best round divided by the best reference: both minima are of moments in
which nothing disturbed, and a slower clock slows both. The ratio of one build repeats within 2-3 %. Keep the lines of a
run in a file; ``--against FILE`` compares with it and ends with status 1 where a ratio is worse by more than the
tolerance (a case that looks worse is measured a second and a third time, since disturbance only ever adds).
"""

import argparse
import asyncio
import cProfile
import json
import platform
import pstats
import re
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from benchmarks.macro.relay import Relay
from tidegate.aio.allocator import keep_memory
from tidegate.aio.channel import SlotPort
from tidegate.aio.loop.run import quiet_collector
from tidegate.aio.loop.services import LoopServices
from tidegate.aio.proxy.exchange import ProxyApp
from tidegate.aio.proxy.http1_connection import ServerConn
from tidegate.aio.proxy.server import Limits, ProxyServer
from tidegate.aio.upstream.http1 import UpstreamConn
from tidegate.aio.upstream.pool import UpstreamPool
from tidegate.flow.slots import SlotLedger
from tidegate.queue_proxy.chain import Sidecar
from tidegate.queue_proxy.lifecycle import ReplicaLifecycle
from tidegate.queue_proxy.live import NO_BOUND, client_limits
from tidegate.queue_proxy.metrics import Identity, ReplicaCounters
from tidegate.queue_proxy.settings import ProxySettings

CONNECTIONS = 32
VARIANTS = 1024
LOADS = ("post", "get")
TOKEN = b"0123456789abcdef0123456789abcdef"
_BODY = (
    b'{"id":"%032x","inputs":[{"name":"input","shape":[%d,32],"datatype":"FP32","data":[' + b"0.125," * 31 + b"0.5]}]}"
)
_POST = (
    b"POST /v2/models/resnet/infer HTTP/1.1\r\nHost: resnet.localhost\r\nUser-Agent: bench/1.0\r\n"
    b"Accept: application/json\r\nAccept-Encoding: gzip, deflate\r\nContent-Type: application/json\r\n"
    b"Authorization: Bearer %040x\r\nX-Request-Id: %032x\r\ntraceparent: 00-%032x-%016x-01\r\n"
    b"Content-Length: %d\r\n%b\r\n%b"
)
_OF_GATEWAY = (
    b"tidegate-token: %b\r\ntidegate-timeout-ms: 30000\r\ntidegate-batch-size: 1\r\ntidegate-credit: %d\r\n"
    b'x-forwarded-for: 127.0.0.1\r\nforwarded: for=127.0.0.1;host="resnet.localhost";proto=http\r\n'
    b"via: 1.1 tidegate\r\nx-forwarded-proto: http\r\nx-forwarded-host: resnet.localhost\r\n"
)
"""Header fields that a gateway adds behind the client's."""
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


def relay(services: LoopServices) -> Subject:
    """The engine alone."""
    pool = UpstreamPool("127.0.0.1:1", services)
    app = Relay(pool)
    return Subject(app, pool, ProxyServer(app, Limits(), services), lambda _: b"")


def queue_proxy_with_ledger(services: LoopServices, token: bytes | None) -> tuple[SlotLedger, Subject]:
    """The whole queue_proxy, and who knows its credits; ``token``: of the gateways that it trusts."""
    settings = ProxySettings(limit=CONNECTIONS, revision="bench-00001")
    ledger = SlotLedger(incarnation="bench", limit=CONNECTIONS, fifo_bound=NO_BOUND)
    lifecycle = ReplicaLifecycle(limit=CONNECTIONS, phases=settings.phases, epoch=0)
    identity = Identity(function="", revision=settings.revision, group="", replica="", incarnation="bench")
    pool = UpstreamPool("127.0.0.1:1", services)
    app = Sidecar(
        settings,
        token=token,
        ledger=ledger,
        lifecycle=lifecycle,
        counters=ReplicaCounters(identity, time.monotonic()),
        pool=pool,
        clock=time.monotonic,
        pump=lambda: port.pump(),
        open_channel=lambda ex: None,
        check_model=lambda why: None,
    )
    port = SlotPort(
        ledger,
        asyncio.get_running_loop(),
        admit=app.slots.admitted,
        reject=app.slots.rejected,
        state=lambda state: None,
    )
    lifecycle.model_ready(limit=CONNECTIONS, load_s=1.0, warm_s=None)
    ledger.ready(time.monotonic())
    port.pump()
    return ledger, Subject(app, pool, ProxyServer(app, client_limits(settings), services), lambda _: b"")


def queue_proxy(services: LoopServices) -> Subject:
    """The whole queue_proxy; its clients carry no credit."""
    return queue_proxy_with_ledger(services, None)[1]


def credit(services: LoopServices) -> Subject:
    """The whole queue_proxy with a gateway before it that keeps its credits."""
    ledger, subject = queue_proxy_with_ledger(services, TOKEN)
    numbers = list(ledger.opened("bench", time.monotonic()).idle)
    ledger.out.clear()
    subject.lines = lambda at: _OF_GATEWAY % (TOKEN, numbers[at])
    return subject


APPS: dict[str, Callable[[LoopServices], Subject]] = {"relay": relay, "queue_proxy": queue_proxy, "credit": credit}


def request(load: str, number: int, lines: bytes) -> bytes:
    """One request of a load; every POST differs."""
    if load == "get":
        return _GET[:-2] + lines + b"\r\n"
    body = _BODY % (number, number % 8 + 1)
    return _POST % (number, number, number + 1, number + 1, len(body), lines, body)


class Bench:
    """Connections and their requests, all in flight in every turn."""

    def __init__(self, app: str, load: str, services: LoopServices) -> None:
        self._subject = subject = APPS[app](services)
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


class _Plain:
    """For the reference: attributes and calls."""

    __slots__ = ("count", "names", "text")

    def __init__(self, text: bytes) -> None:
        self.text = text
        self.count = 0
        self.names: list[bytes] = []

    def take(self, name: bytes) -> int:
        self.names.append(name)
        self.count += len(name)
        return self.count


_FIELD = re.compile(rb"\n([a-z-]++):[\t ]*+([^\r]*+)")


def reference() -> float:
    """The same kinds of work as the engine's, frozen: regex, slots, calls, bytes, a dict. CPU seconds for 1024 turns.

    Never change it: every kept ratio is a ratio to this.
    """
    text = b"\r\nhost: a.example\r\ncontent-type: application/json\r\nx-request-id: 0123456789abcdef\r\n" * 3
    begun = time.process_time()
    for number in range(VARIANTS):
        plain = _Plain(text)
        found = dict(_FIELD.findall(text))
        for name in found:
            plain.take(name)
        plain.text = b"%b %d %b" % (plain.text[:80], number, b"".join(plain.names))
        if plain.text.find(b"zzz") >= 0 or plain.count < 0:
            raise RuntimeError("the reference does not do its work")
    return time.process_time() - begun


@dataclass(frozen=True)
class Cost:
    """Cost of the best round."""

    us_per_request: float
    ratio: float
    """To the best turn of the reference in the same run."""


async def measure(app: str, load: str, rounds: int, profile: cProfile.Profile | None) -> Cost:
    """The best of all rounds: interruptions only ever add."""
    services = LoopServices(asyncio.get_running_loop())
    bench = Bench(app, load, services)
    quiet_collector()
    if profile is not None:
        bench.round()
        profile.enable()
        for _ in range(20):
            bench.round()
        profile.disable()
    ours, theirs = float("inf"), float("inf")
    for _ in range(rounds):
        ours = min(ours, bench.round())
        theirs = min(theirs, reference())
    services.close()
    return Cost(ours / VARIANTS * 1e6, ours / theirs)


def worse(app: str, load: str, rounds: int, kept: float, tolerance: float, cost: Cost) -> Cost:
    """The cost after up to two further looks, as long as it seems worse than ``kept``."""
    for _ in range(2):
        if cost.ratio <= kept * (1 + tolerance):
            break
        again = asyncio.run(measure(app, load, rounds, None))
        cost = min(cost, again, key=lambda one: one.ratio)
    return cost


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--app", action="append", choices=APPS, help="default: all")
    parser.add_argument("--load", action="append", choices=LOADS, help="default: both")
    parser.add_argument("--rounds", type=int, default=200, help=f"of {VARIANTS} requests; the best one counts")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--against", type=Path, metavar="FILE", help="lines of an earlier run")
    parser.add_argument("--tolerance", type=float, default=0.05)
    arguments = parser.parse_args()
    keep_memory()
    kept: dict[tuple[str, str], float] = {}
    if arguments.against is not None:
        rows = [json.loads(line) for line in arguments.against.read_text().splitlines() if line.startswith("{")]
        kept = {(row["app"], row["load"]): row["ratio"] for row in rows}
    regressed = False
    for app in arguments.app or APPS:
        for load in arguments.load or LOADS:
            profile = cProfile.Profile() if arguments.profile else None
            cost = asyncio.run(measure(app, load, arguments.rounds, profile))
            before = kept.get((app, load))
            if before is not None:
                cost = worse(app, load, arguments.rounds, before, arguments.tolerance, cost)
                regressed |= cost.ratio > before * (1 + arguments.tolerance)
            row = {
                "benchmark": "engine",
                "app": app,
                "load": load,
                "us_per_request": round(cost.us_per_request, 2),
                "ratio": round(cost.ratio, 3),
                "connections": CONNECTIONS,
                "python": platform.python_version(),
            }
            print(json.dumps(row if before is None else row | {"kept_ratio": before}), flush=True)
            if profile is not None:
                pstats.Stats(profile).sort_stats("tottime").print_stats(40)
    return 1 if regressed else 0


if __name__ == "__main__":
    sys.exit(main())
