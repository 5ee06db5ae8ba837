"""Python time of one unary RPC through a gateway and the queue_proxy behind it, without sockets, hop by hop.

    python -m benchmarks.micro.h2_hops_bench [--load same|unique]... [--rounds 100] [--profile gateway|queue_proxy]

What the gateway writes is what the queue_proxy reads, and back. Clients, loads and the server's answers are
``h2_bench``'s: four client connections with four calls in each read. Every call runs on a credit that is kept, as under
load. Prints CPU microseconds of each hop, of a stranger's calls through a queue_proxy alone for comparison, and
``ratio``, that of both hops to it: it says more than microseconds on a machine with neighbours.
"""

import argparse
import asyncio
import cProfile
import json
import platform
import pstats
import random
import time
from typing import cast

import uvloop

from benchmarks.micro.engine_bench import TOKEN, FakeTransport, queue_proxy_with_ledger
from benchmarks.micro.gateway_bench import core_on
from benchmarks.micro.h2_bench import CALLS, CONNECTIONS, LOADS, TOGETHER, SidecarBench, client_call, server_answer
from tidegate.aio.allocator import keep_memory
from tidegate.aio.loop.run import quiet_collector
from tidegate.aio.loop.services import LoopServices
from tidegate.aio.proxy.http2_connection import H2Conn
from tidegate.aio.proxy.server import Limits, ProxyServer
from tidegate.aio.upstream.http2 import H2Upstream
from tidegate.aio.upstream.pool import UpstreamPool
from tidegate.wire.http2 import frames

_CLIENT = (
    frames.PREFACE
    + frames.settings()
    + frames.frame_head(frames.SETTINGS, frames.ACK, 0)
    + frames.window_update(0, 1 << 30)
)
_SERVER = _CLIENT[len(frames.PREFACE) :]


class Wire(FakeTransport):
    """Keeps what is written until it is taken."""

    def __init__(self) -> None:
        super().__init__("127.0.0.1")
        self._data: list[bytes] = []

    def write(self, data: bytes) -> None:
        self._data.append(data)

    def take(self) -> bytes:
        """Returns the bytes written since the last call."""
        data = b"".join(self._data)
        self._data.clear()
        return data


class Hops:
    """A gateway's chain, a queue_proxy, and the connection between them."""

    def __init__(self, load: str, loop: asyncio.AbstractEventLoop) -> None:
        source = random.Random(1)
        self._loop = loop
        self._rounds = []
        for _ in range(8 if load == "unique" else 1):
            numbers = [range(first, first + TOGETHER) for first in range(0, CALLS // CONNECTIONS, TOGETHER)]
            self._rounds.append(
                [
                    [b"".join(client_call(load, 2 * n + 1, source) for n in some) for _ in range(CONNECTIONS)]
                    for some in numbers
                ]
            )
        self._sweeper = LoopServices(loop)
        loop.run_until_complete(self._begin())
        self.round()

    async def _begin(self) -> None:
        ledger, subject = queue_proxy_with_ledger(self._sweeper, TOKEN)
        numbers = list(ledger.opened("bench", time.monotonic()).idle)
        ledger.out.clear()
        self._proxy, self._model_pool = subject.server, subject.pool
        self._pool = UpstreamPool("127.0.0.1:1", self._sweeper)
        self._gateway = ProxyServer(core_on(self._pool, 1, numbers).chain, Limits(front_door=True), self._sweeper)

    def _client(self, server: ProxyServer, number: int) -> tuple[H2Conn, Wire]:
        transport = Wire()
        return H2Conn(server, cast(asyncio.Transport, transport), b"127.0.0.%d" % number, False), transport

    def _upstream(self, pool: UpstreamPool) -> tuple[H2Upstream, Wire]:
        transport = Wire()
        upstream = H2Upstream(pool.for_calls())
        upstream.connection_made(cast(asyncio.Transport, transport))
        pool.for_calls().connections[:] = [upstream]
        return upstream, transport

    def round(self, gateway: cProfile.Profile | None = None, proxy: cProfile.Profile | None = None) -> list[float]:
        """CPU seconds of each call in the gateway and in the queue_proxy; either can be profiled."""
        return self._loop.run_until_complete(self._round((gateway, proxy)))

    async def _round(self, profiles: tuple[cProfile.Profile | None, cProfile.Profile | None]) -> list[float]:
        clients = [self._client(self._gateway, number) for number in range(CONNECTIONS)]
        upstream, to_proxy = self._upstream(self._pool)
        inner, to_gateway = self._client(self._proxy, 1)
        model, to_model = self._upstream(self._model_pool)
        for client, _ in clients:
            client.data_received(_CLIENT)
        model.data_received(_SERVER)
        await asyncio.sleep(0)
        for _ in range(2):
            inner.data_received(to_proxy.take())
            upstream.data_received(to_gateway.take())
            await asyncio.sleep(0)
        to_model.take()
        self._rounds.append(turns := self._rounds.pop(0))
        spent = [0.0, 0.0]

        async def step(hop: int, feeds: list[tuple[H2Conn | H2Upstream, bytes]]) -> None:
            profile = profiles[hop]
            if profile is not None:
                profile.enable()
            begun = time.process_time()
            for connection, data in feeds:
                connection.data_received(data)
            await asyncio.sleep(0)
            spent[hop] += time.process_time() - begun
            if profile is not None:
                profile.disable()

        number = 1
        for reads in turns:
            await step(0, [(client, read) for (client, _), read in zip(clients, reads, strict=True)])
            await step(1, [(inner, to_proxy.take())])
            to_model.take()
            count = CONNECTIONS * TOGETHER
            await step(1, [(model, b"".join(server_answer(each) for each in range(number, number + 2 * count, 2)))])
            number += 2 * count
            await step(0, [(upstream, to_gateway.take())])
        if upstream.engine.streams or inner.engine.streams or any(client.engine.streams for client, _ in clients):
            raise RuntimeError("calls were not answered")
        return [each / CALLS for each in spent]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--load", action="append", choices=LOADS[:2], help="default: both")
    parser.add_argument("--rounds", type=int, default=100, help=f"of {CALLS} calls; the best one counts")
    parser.add_argument("--profile", choices=("gateway", "queue_proxy"))
    arguments = parser.parse_args()
    keep_memory()
    loop = uvloop.new_event_loop()
    for load in arguments.load or LOADS[:2]:
        hops, alone = Hops(load, loop), SidecarBench(load, loop)
        quiet_collector()
        best = [1.0, 1.0, 1.0]
        for _ in range(arguments.rounds):
            best = [min(pair) for pair in zip(best, [*hops.round(), alone.round()], strict=True)]
        gateway, proxy, stranger = best
        row = {
            "benchmark": "h2_hops",
            "load": load,
            "gateway_us": round(gateway * 1e6, 2),
            "queue_proxy_us": round(proxy * 1e6, 2),
            "alone_us": round(stranger * 1e6, 2),
            "ratio": round((gateway + proxy) / stranger, 3),
            "python": platform.python_version(),
        }
        print(json.dumps(row), flush=True)
        if arguments.profile:
            profile = cProfile.Profile()
            for _ in range(5):
                hops.round(**{"gateway" if arguments.profile == "gateway" else "proxy": profile})
            pstats.Stats(profile).sort_stats("tottime").print_stats(40)


if __name__ == "__main__":
    main()
