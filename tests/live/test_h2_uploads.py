"""Uploads over HTTP/2 in tiny frames, to a model server that does not read them for long: what the proxy holds."""

import asyncio
import os
from pathlib import Path

import pytest

from tests.support.http.loopback import run_on, start_relay, until
from tests.support.http2.live import H2Client, connect, rss_mb
from tests.support.http2.view import View
from tidegate.wire.http2 import frames as wire
from tidegate.wire.http2.hpack import literal

pytestmark = [
    pytest.mark.live,
    pytest.mark.timeout(60),
    pytest.mark.parametrize("loop", ["uvloop", pytest.param("asyncio", marks=pytest.mark.deep)]),
]

UPLOADS = 8
NUMBERS = range(1, 2 * UPLOADS, 2)
FIELDS = (b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/"), (b":authority", b"a")
HEAD = b"".join(literal(*field) for field in FIELDS)
PIECE = b"xy" * 8192
BOUND_MB = 24.0
"""Each may hold 256 KB that wait for the upstream and a read; the rest is what this process takes to send that."""


def frames(number: int) -> bytes:
    """``PIECE`` in frames of two bytes."""
    return (wire.frame_head(2 << 8, 0, number) + b"xy") * (len(PIECE) // 2)


async def upload(client: H2Client, view: View) -> int:
    """Sends as long as there is credit; how many bytes each stream has sent."""
    sent, idle = dict.fromkeys(NUMBERS, 0), 0
    made = {number: frames(number) for number in NUMBERS}
    while idle < 50:
        ready = [n for n in NUMBERS if sent[n] + len(PIECE) <= view.initial_window + view.credit.get(n, 0)]
        idle = 0 if ready else idle + 1
        for number in ready:
            client.write(made[number])
            sent[number] += len(PIECE)
        await client.drain(20.0)
        await asyncio.sleep(0 if ready else 0.01)
    return sum(sent.values())


def test_tiny_frames_are_held_as_what_they_carry(loop: str, tmp_path: Path) -> None:
    taken = 0
    reads = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal taken
        await reads.wait()
        while piece := await reader.read(1 << 16):
            taken += 2 * piece.count(b"x")
        writer.close()

    async def main() -> None:
        server = await asyncio.start_unix_server(serve, tmp_path / "model", limit=1)
        relay = await start_relay(f"unix:{tmp_path / 'model'}")
        client = await connect((relay.host, relay.port))
        try:
            await scene(client)
        finally:
            client.transport.abort()
            reads.set()
            await relay.close()
            server.close()

    async def scene(client: H2Client) -> None:
        view = View({"name": "upload"}, client.write)
        client.on_data = view.received
        client.write(wire.PREFACE + wire.settings() + wire.window_update(0, 1 << 30))
        await until(lambda: view.unacked_settings > 0)
        view.acknowledge()
        for number in NUMBERS:
            client.write(wire.headers(number, HEAD, 0, 16384))
        before = rss_mb([os.getpid()])
        sent = await upload(client, view)
        grown = rss_mb([os.getpid()]) - before
        print(loop, f"{sent} bytes sent, grown by {grown:.0f} MB")  # noqa: T201
        assert sent > UPLOADS * 100_000
        assert grown < BOUND_MB
        reads.set()
        await until(lambda: taken >= sent)

    run_on(loop, main())
