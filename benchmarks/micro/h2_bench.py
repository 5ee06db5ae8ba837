"""Python time of one proxied unary RPC without sockets: recorded bytes through a server-role and a client-role engine.

    python -m benchmarks.micro.h2_bench [--load NAME]... [--subject engines|queue_proxy] [--rounds 200] [--profile]

Loads: ``same`` (the metadata of every call is the same), ``unique`` (each call has its own trace, request id and
``grpc-timeout``, which is taken out and written again), ``table`` (as ``same``, from a client that goes on using a
dynamic table). Blocks are written as grpc-go writes them: literals with Huffman codes. Every RPC is a read of its own
on both sides, as with few calls in flight; a ModelInfer of 270 bytes goes each way. The driver between the engines is
the tests' (``tests.support.http2.proxy``) and counts too. What a gateway before a queue_proxy costs: ``h2_hops_bench``.

Subject ``queue_proxy``: the whole path of a stranger's call through a queue_proxy, on fake transports: four client
connections with four calls in each read, all of their answers in one read, as with sixteen calls in flight.

``ratio`` is to the reference work of ``engine_bench``, which runs between the rounds: it says more than microseconds on
a machine with neighbours.
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
from hpack.huffman import HuffmanEncoder
from hpack.huffman_constants import REQUEST_CODES, REQUEST_CODES_LENGTH

from benchmarks.micro.engine_bench import FakeTransport, Subject, queue_proxy, reference
from tests.support.http2.proxy import Proxy
from tidegate.aio.allocator import keep_memory
from tidegate.aio.loop.run import quiet_collector
from tidegate.aio.loop.services import LoopServices
from tidegate.aio.proxy.http2_connection import H2Conn
from tidegate.aio.upstream.http2 import H2Upstream
from tidegate.headers import request_timeout_s
from tidegate.wire.http2 import frames, grpc_fields
from tidegate.wire.http2.block_memory import REQUEST, RESPONSE, Block, Blocks

CALLS = 1024
CONNECTIONS, TOGETHER = 4, 4
"""Of the subject ``queue_proxy``: connections, and calls in each read."""
LOADS = ("same", "unique", "table")
_REQUEST_FIELDS = (
    (b":method", b"POST"),
    (b":scheme", b"http"),
    (b":path", b"/inference.GRPCInferenceService/ModelInfer"),
    (b":authority", b"resnet.localhost:8080"),
    (b"content-type", b"application/grpc"),
    (b"user-agent", b"grpc-go/1.65.0"),
    (b"te", b"trailers"),
)
_ANSWER_FIELDS = ((b":status", b"200"), (b"content-type", b"application/grpc"))
_TRAILER_FIELDS = ((b"grpc-status", b"0"), (b"grpc-message", b""))
_TENSOR = b"\n\5input\x12\4FP32\x1a\2\1\x30"
_INFER = (
    b"\n\6resnet\x1a\x20" + b"i" * 32 + b"*%c%b" % (len(_TENSOR), _TENSOR) + b"2\4\n\2op:\xc0\1" + b"\0\0\x80?" * 48
)
_MESSAGE = b"\0" + len(_INFER).to_bytes(4, "big") + _INFER
_huffman = HuffmanEncoder(REQUEST_CODES, REQUEST_CODES_LENGTH).encode
_STATIC = {(b":method", b"POST"): b"\x83", (b":scheme", b"http"): b"\x86", (b":status", b"200"): b"\x88"}
_NAMES = {b":path": 4, b":authority": 1, b"content-type": 31, b"user-agent": 58}


def _string(text: bytes) -> bytes:
    coded = _huffman(text)
    return bytes((0x80 | len(coded),)) + coded if len(coded) < len(text) else bytes((len(text),)) + text


def _block(fields: tuple[tuple[bytes, bytes], ...]) -> bytes:
    block = b""
    for name, value in fields:
        index = _NAMES.get(name, 0)
        start = b"\0" + _string(name) if not index else bytes((index,)) if index < 15 else bytes((15, index - 15))
        block += _STATIC.get((name, value)) or start + _string(value)
    return block


def _headers(number: int, block: bytes, flags: int) -> bytes:
    return frames.frame_head(len(block) << 8 | frames.HEADERS, flags | frames.END_HEADERS, number) + block


def _data(number: int, flags: int) -> bytes:
    return frames.frame_head(len(_MESSAGE) << 8, flags, number) + _MESSAGE


def client_call(load: str, number: int, source: random.Random) -> bytes:
    if load == "same":
        block = _block(_REQUEST_FIELDS)
    elif load == "unique":
        block = _block(
            (
                *_REQUEST_FIELDS,
                (b"grpc-timeout", b"%du" % source.randrange(1_000_000, 10_000_000)),
                (b"traceparent", b"00-%032x-%016x-01" % (source.getrandbits(128), source.getrandbits(64))),
                (b"x-request-id", b"%032x" % source.getrandbits(128)),
            )
        )
    elif number == 1:  # every field goes into the table, the last one is index 62
        block = b"\x83\x86" + b"".join(
            (bytes((0x40 | _NAMES[name],)) if name in _NAMES else b"\x40" + _string(name)) + _string(value)
            for name, value in _REQUEST_FIELDS[2:]
        )
    else:
        block = b"\x83\x86\xc2\xc1\xc0\xbf\xbe"
    return _headers(number, block, 0) + _data(number, frames.END_STREAM)


def server_answer(number: int) -> bytes:
    head, trailers = _block(_ANSWER_FIELDS), _block(_TRAILER_FIELDS)
    return _headers(number, head, 0) + _data(number, 0) + _headers(number, trailers, frames.END_STREAM)


def _own(head: Block) -> bytes:
    """Header fields that a gateway adds, with the remaining time if there was a limit."""
    seconds = request_timeout_s(head)
    return grpc_fields.timeout(int(seconds * 1000)) if seconds is not None else b""


class Bench:
    """One client connection, one upstream connection, CALLS calls one after the other."""

    def __init__(self, load: str) -> None:
        source = random.Random(1)
        # More than an engine remembers of what came once, so that no call is known from an earlier round.
        self._rounds = [
            [(client_call(load, number, source), server_answer(number)) for number in range(1, 2 * CALLS, 2)]
            for _ in range(8 if load == "unique" else 1)
        ]
        self._requests = Blocks(REQUEST, lambda name: name == b"grpc-timeout")
        self._answers = Blocks(RESPONSE)
        acked = frames.frame_head(frames.SETTINGS, frames.ACK, 0)
        self._settings = frames.settings() + acked + frames.window_update(0, 1 << 30)
        self.round()

    def round(self) -> float:
        """CPU seconds per call."""
        proxy = Proxy(self._requests, self._answers, _own)
        proxy.from_client(frames.PREFACE + self._settings)
        proxy.from_upstream(self._settings)
        from_client, from_upstream = proxy.from_client, proxy.from_upstream
        self._rounds.append(calls := self._rounds.pop(0))
        to_client = b""
        begun = time.process_time()
        for request, answer in calls:
            from_client(request, 1.0)
            to_client, _ = from_upstream(answer, 1.0)
        spent = time.process_time() - begun
        if not to_client or proxy.server.streams or proxy.client.streams:
            raise RuntimeError("calls were not answered")
        return spent / CALLS


async def _made(services: LoopServices) -> Subject:
    return queue_proxy(services)


class SidecarBench:
    """The queue_proxy's application between HTTP/2 connections without sockets."""

    def __init__(self, load: str, loop: asyncio.AbstractEventLoop) -> None:
        source = random.Random(1)
        self._loop = loop
        self._rounds = []
        for _ in range(8 if load == "unique" else 1):
            turns = []
            for first in range(0, CALLS, CONNECTIONS * TOGETHER):
                numbers = range(first // CONNECTIONS, first // CONNECTIONS + TOGETHER)
                reads = [b"".join(client_call(load, 2 * n + 1, source) for n in numbers) for _ in range(CONNECTIONS)]
                turns.append(
                    (reads, b"".join(server_answer(2 * n + 1) for n in range(first, first + CONNECTIONS * TOGETHER)))
                )
            self._rounds.append(turns)
        services = LoopServices(loop)
        subject = loop.run_until_complete(_made(services))
        self._server, self._pool = subject.server, subject.pool
        acked = frames.frame_head(frames.SETTINGS, frames.ACK, 0)
        self._settings = frames.settings() + acked + frames.window_update(0, 1 << 30)
        self.round()

    def _turn_ends(self) -> None:
        self._loop.call_soon(self._loop.stop)
        self._loop.run_forever()

    def round(self) -> float:
        """CPU seconds per call."""
        clients = []
        for number in range(CONNECTIONS):
            client = H2Conn(self._server, cast(asyncio.Transport, FakeTransport("")), b"127.0.0.%d" % number, False)
            client.data_received(frames.PREFACE + self._settings)
            clients.append(client)
        calls = self._pool.for_calls()
        upstream = H2Upstream(calls)
        upstream.connection_made(cast(asyncio.Transport, FakeTransport("")))
        calls.connections[:] = [upstream]
        upstream.data_received(self._settings)
        self._turn_ends()
        self._rounds.append(turns := self._rounds.pop(0))
        begun = time.process_time()
        for reads, answers in turns:
            for client, read in zip(clients, reads, strict=True):
                client.data_received(read)
            upstream.data_received(answers)
            self._turn_ends()
        spent = time.process_time() - begun
        if upstream.engine.streams or any(client.engine.streams for client in clients):
            raise RuntimeError("calls were not answered")
        return spent / CALLS


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--load", action="append", choices=LOADS, help="default: all")
    parser.add_argument("--rounds", type=int, default=200, help=f"of {CALLS} calls; the best one counts")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--subject", choices=("engines", "queue_proxy"), default="engines")
    arguments = parser.parse_args()
    keep_memory()
    loop = uvloop.new_event_loop()
    for load in arguments.load or (LOADS if arguments.subject == "engines" else LOADS[:2]):
        bench = Bench(load) if arguments.subject == "engines" else SidecarBench(load, loop)
        quiet_collector()
        ours, theirs = bench.round(), reference()
        profile = cProfile.Profile() if arguments.profile else None
        if profile is not None:
            profile.runcall(bench.round)
        for _ in range(arguments.rounds):
            ours = min(ours, bench.round())
            theirs = min(theirs, reference())
        row = {
            "benchmark": "h2",
            "subject": arguments.subject,
            "load": load,
            "us_per_rpc": round(ours * 1e6, 2),
            "ratio": round(ours * CALLS / theirs, 3),
            "python": platform.python_version(),
        }
        print(json.dumps(row), flush=True)
        if profile is not None:
            pstats.Stats(profile).sort_stats("tottime").print_stats(25)


if __name__ == "__main__":
    main()
