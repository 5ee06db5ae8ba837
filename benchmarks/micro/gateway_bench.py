"""Python time of one request through the gateway's chain, without sockets: what it adds to the engine alone.

    python -m benchmarks.micro.gateway_bench [--load NAME]... [--rounds 100] [--replicas 1] [--profile]

The fake transports and loads of ``engine_bench``; the chain has a real waiting room whose replicas granted one credit
per connection, and every answer keeps its credit, so this is the steady state under load. Each answer carries its own
timing, as a queue_proxy's answers do. Prints one JSON line per load: the gateway, the bare engine on the same answers,
and what lies between.
"""

import argparse
import asyncio
import cProfile
import json
import platform
import pstats
import random
import re
import time
from collections.abc import Iterable
from typing import cast

from benchmarks.macro.relay import Relay
from benchmarks.micro.engine_bench import CONNECTIONS, LOADS, VARIANTS, FakeTransport, request
from tests.support.worlds.routes import function
from tidegate.activator.room import WaitingRoom
from tidegate.aio.allocator import keep_memory
from tidegate.aio.loop.run import quiet_collector
from tidegate.aio.loop.services import LoopServices
from tidegate.aio.proxy.detached import next_exchange, second_copy, shadow_copy, swap_clients, tap_response
from tidegate.aio.proxy.early_stream import begin_stream
from tidegate.aio.proxy.exchange import ProxyApp
from tidegate.aio.proxy.http1_connection import ServerConn
from tidegate.aio.proxy.server import Limits, ProxyServer
from tidegate.aio.upstream.http1 import UpstreamConn
from tidegate.aio.upstream.pool import UpstreamPool
from tidegate.flow.messages import Grant, State, Welcome
from tidegate.function import ConcurrencyUnit
from tidegate.gateway.access.quota_pool import QuotaCounters
from tidegate.gateway.access_log.records import AccessLog
from tidegate.gateway.core import GatewayCore
from tidegate.gateway.counting.counters import Report
from tidegate.gateway.effects import ChainEffects, ExchangeTools, Quotas, RoomHost, Time, Upstreams
from tidegate.gateway.tracing.trace import Tracer
from tidegate.records.replica_state import ReplicaState
from tidegate.records.route_table import RouteTable

_ANSWER = (
    b"HTTP/1.1 200 OK\r\nServer: nginx/1.22.1\r\nDate: Fri, 21 Nov 2026 11:11:11 GMT\r\n"
    b"Content-Type: application/json\r\nContent-Length: 105\r\n"
    b"tidegate-timing: queue=0.%03d,model=%d.%03d\r\ntidegate-credit: keep\r\n\r\n" + b"x" * 105
)


def no_quotas() -> QuotaCounters:
    """Asked for only where a function has a quota."""
    raise RuntimeError("the benchmark's function has no quota")


def core_on(
    pool: UpstreamPool,
    replicas: int,
    granted: Iterable[int] = range(1, CONNECTIONS + 1),
    *,
    access_log: AccessLog | None = None,
    tracer: Tracer | None = None,
) -> GatewayCore:
    """A gateway worker with one function, its default, whose replicas granted a credit per connection."""
    room = WaitingRoom(rng=random.Random(1))
    core = GatewayCore(
        room=room,
        report=Report("bench", "bench", time.monotonic()),
        token="0123456789abcdef0123456789abcdef",
        rng=random.Random(2),
        effects=ChainEffects(
            time=Time(clock=time.monotonic, wall=time.time, alarm=lambda when: None),
            room=RoomHost(run=lambda command: None, reschedule=lambda: None),
            upstreams=Upstreams(
                pool_of={f"unix:/r{index}": pool for index in range(replicas)}.__getitem__,
                fetch_metadata=lambda revision, address, path: None,
                probe=lambda replica, address, path: None,
            ),
            exchanges=ExchangeTools(
                second_copy=second_copy,
                swap_clients=swap_clients,
                shadow_copy=shadow_copy,
                tap_response=tap_response,
                next_exchange=next_exchange,
                begin_stream=begin_stream,
            ),
            quotas=Quotas(open_counters=no_quotas, ask_pool=lambda wanted, asking, decided: None),
            convert_elsewhere=lambda function, arguments, done, is_wanted: None,
        ),
        access_log=access_log,
        tracer=tracer,
    )
    route = function([(f"r{index}", "cpu") for index in range(replicas)], name="resnet")
    core.apply(RouteTable(epoch=1, number=1, workers=1, default="resnet", functions=(route,)))
    room.arrive("first", "resnet-00001", 1, time.monotonic() + 60.0, time.monotonic())
    room.withdraw("first", time.monotonic())
    for index in range(replicas):
        name = f"r{index}"
        core.linked(name)
        core.heard(name, Welcome(name, CONNECTIONS, ConcurrencyUnit.REQUESTS))
        core.heard(name, State(ReplicaState.READY))
        core.heard(name, Grant(tuple((number, 1) for number in granted)))
    core.settle()
    return core


def _flagged(data: bytes, number: int, sampled_every: int) -> bytes:
    """Returns the request, not sampled unless its number is a multiple of ``sampled_every``."""
    if sampled_every and number % sampled_every == 0:
        return data
    return re.sub(rb"(traceparent: [0-9a-f-]{53})01", rb"\g<1>00", data)


class Bench:
    """Connections and their requests, all in flight in every turn."""

    def __init__(
        self, app: ProxyApp, pool: UpstreamPool, load: str, services: LoopServices, *, sampled_every: int = 1
    ) -> None:
        """``sampled_every``: of so many requests with a ``traceparent`` one is sampled; 0: none."""
        self._server = ProxyServer(app, Limits(), services)
        self._clients = [ServerConn(self._server) for _ in range(CONNECTIONS)]
        for number, client in enumerate(self._clients):
            client.connection_made(cast(asyncio.Transport, FakeTransport(f"127.0.0.{number + 1}")))
        self._upstreams = [UpstreamConn(pool) for _ in range(CONNECTIONS)]
        for upstream in self._upstreams:
            upstream.connection_made(cast(asyncio.Transport, FakeTransport("127.0.0.1")))
            pool.put(upstream)
        numbers = range(0, VARIANTS, CONNECTIONS)
        self._turns = [
            [_flagged(request(load, first + at, b""), first + at, sampled_every) for at in range(CONNECTIONS)]
            for first in numbers
        ]
        self._answers = [
            [_ANSWER % ((first + at) % 1000, (first + at) % 7, first + at) for at in range(CONNECTIONS)]
            for first in numbers
        ]

    def round(self) -> float:
        """Sends every variant once; CPU seconds."""
        flush = self._server.outbox.flush
        begun = time.process_time()
        for turn, answers in zip(self._turns, self._answers, strict=True):
            for client, data in zip(self._clients, turn, strict=True):
                client.data_received(data)
            flush()
            for upstream, answer in zip(self._upstreams, answers, strict=True):
                upstream.data_received(answer)
            flush()
        return time.process_time() - begun


async def measure(load: str, rounds: int, replicas: int, profile: cProfile.Profile | None) -> tuple[float, float]:
    """Microseconds per request of the gateway and of the engine alone, each in its best round."""
    services = LoopServices(asyncio.get_running_loop())
    gateway_pool, relay_pool = (UpstreamPool("127.0.0.1:1", services) for _ in range(2))
    core = core_on(gateway_pool, replicas)
    gateway = Bench(core.chain, gateway_pool, load, services)
    relay = Bench(Relay(relay_pool), relay_pool, load, services)
    quiet_collector()
    if profile is not None:
        gateway.round()
        profile.enable()
        for _ in range(20):
            gateway.round()
        profile.disable()
    best = [1e9, 1e9]
    for _ in range(rounds):  # In turns: both meet the same interruptions.
        best[0] = min(best[0], gateway.round())
        best[1] = min(best[1], relay.round())
    (demand,) = core.report.demands(lambda _: None)
    if demand.answered != demand.arrivals or demand.failed:
        raise RuntimeError(f"not every request was answered: {demand}")
    services.close()
    return best[0] / VARIANTS * 1e6, best[1] / VARIANTS * 1e6


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--load", action="append", choices=LOADS, help="default: both")
    parser.add_argument("--rounds", type=int, default=100, help=f"of {VARIANTS} requests; the best one counts")
    parser.add_argument("--replicas", type=int, default=1)
    parser.add_argument("--profile", action="store_true")
    arguments = parser.parse_args()
    keep_memory()
    for load in arguments.load or LOADS:
        profile = cProfile.Profile() if arguments.profile else None
        gateway_us, relay_us = asyncio.run(measure(load, arguments.rounds, arguments.replicas, profile))
        row = {
            "benchmark": "gateway",
            "load": load,
            "us_per_request": round(gateway_us, 2),
            "engine_us": round(relay_us, 2),
            "added_us": round(gateway_us - relay_us, 2),
            "replicas": arguments.replicas,
            "python": platform.python_version(),
        }
        print(json.dumps(row), flush=True)
        if profile is not None:
            pstats.Stats(profile).sort_stats("tottime").print_stats(45)


if __name__ == "__main__":
    main()
