"""Python time of one proxied request without sockets: recorded bytes into the two protocol objects.

    python -m benchmarks.micro.engine_bench [--requests 20000] [--profile]

The relay application of ``benchmarks.macro.relay`` on fake transports. Stable to a few percent where the loopback
benchmark is not, and shows where the Python time goes; the kernel's share (15 us and more) is not in it.
"""

import argparse
import asyncio
import cProfile
import json
import platform
import pstats
import time
from typing import Any, cast

from benchmarks.macro.relay import Relay
from tidegate.aio.server import Limits, ProxyServer, ServerConn
from tidegate.aio.sweeper import Sweeper
from tidegate.aio.upstream import UpstreamConn, UpstreamPool

_BODY = (
    b'{"id":"%032x","inputs":[{"name":"input","shape":[%d,32],"datatype":"FP32","data":[' + b"0.125," * 31 + b"0.5]}]}"
)
_POST = (
    b"POST /v2/models/resnet/infer HTTP/1.1\r\nHost: resnet.localhost\r\nUser-Agent: bench/1.0\r\n"
    b"Accept: application/json\r\nAccept-Encoding: gzip, deflate\r\nContent-Type: application/json\r\n"
    b"Authorization: Bearer %040x\r\nX-Request-Id: %032x\r\ntraceparent: 00-%032x-%016x-01\r\n"
    b"Content-Length: %d\r\n\r\n%b"
)
_GET = b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
_ANSWER = (
    b"HTTP/1.1 200 OK\r\nServer: nginx/1.22.1\r\nDate: Fri, 21 Nov 2026 11:11:11 GMT\r\n"
    b"Content-Type: application/json\r\nContent-Length: 105\r\nConnection: keep-alive\r\n\r\n" + b"x" * 105
)


class FakeTransport:
    """Swallows what is written."""

    def __init__(self) -> None:
        self.written = 0

    def write(self, data: bytes) -> None:
        self.written += len(data)

    def is_closing(self) -> bool:
        return False

    def set_write_buffer_limits(self, high: int) -> None:
        """There is no buffer."""

    def get_extra_info(self, name: str) -> Any:
        return ("127.0.0.1", 50000) if name == "peername" else None

    def abort(self) -> None:
        raise RuntimeError("the connection was aborted")


def post(number: int) -> bytes:
    body = _BODY % (number, number % 8 + 1)
    return _POST % (number, number, number + 1, number + 1, len(body), body)


async def measure(load: str, requests: int, profile: cProfile.Profile | None) -> float:
    """Microseconds per request."""
    sweeper = Sweeper(asyncio.get_running_loop())
    pool = UpstreamPool("127.0.0.1:1", sweeper)
    server = ProxyServer(Relay(pool), Limits(), sweeper)
    client = ServerConn(server)
    client.connection_made(cast(asyncio.Transport, FakeTransport()))
    upstream = UpstreamConn(pool)
    upstream.connection_made(cast(asyncio.Transport, FakeTransport()))
    pool.put(upstream)
    variants = [post(number) for number in range(1000)] if load == "post" else [_GET] * 1000
    best = float("inf")
    for repeat in range(5):
        if profile is not None and repeat == 4:
            profile.enable()
        begun = time.process_time()
        for number in range(requests):
            client.data_received(variants[number % 1000])
            upstream.data_received(_ANSWER)
        best = min(best, time.process_time() - begun)
        if profile is not None:
            profile.disable()
    sweeper.close()
    return best / requests * 1e6


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--requests", type=int, default=20_000, help="per repetition; the best of 5 counts")
    parser.add_argument("--profile", action="store_true")
    arguments = parser.parse_args()
    for load in ("post", "get"):
        profile = cProfile.Profile() if arguments.profile and load == "post" else None
        micros = asyncio.run(measure(load, arguments.requests, profile))
        row = {
            "benchmark": "engine",
            "load": load,
            "us_per_request": round(micros, 2),
            "python": platform.python_version(),
        }
        print(json.dumps(row))
        if profile is not None:
            pstats.Stats(profile).sort_stats("tottime").print_stats(30)


if __name__ == "__main__":
    main()
