"""Many HTTP/2 clients that behave as they like within the grammar, at the same time, on few upstream connections.

They open calls of every kind, send them in pieces, give credit late, reset calls, half-close, and go without a word.
Meanwhile a well-behaved client calls: whatever the others do, each of its calls is answered, with its own bytes.
Afterwards nothing is in flight, and nothing malformed has reached the backend.
"""

import asyncio
import random

import pytest

from tests.support.http.doors import door
from tests.support.http.loopback import LOOPS, run_on
from tests.support.http2.capture import H2Capture
from tests.support.http2.echo import PROBE, message
from tests.support.http2.live import Address, H2Client, connect, is_alive
from tests.support.http2.view import View, call_block
from tidegate.wire.http2 import frames as wire
from tidegate.wire.http2.hpack import literal

pytestmark = [pytest.mark.live, pytest.mark.timeout(120)]

KINDS = ("gateway", "queue_proxy")
LIMITS = {"head_timeout_s": 2.0, "idle_timeout_s": 20.0, "trusted_proxies": []}
CLIENTS, LIVES = 12, 10
"""Clients at once, and connections that each has one after the other."""
PATIENCE_S = 10.0


def _head(method: str, source: random.Random) -> bytes:
    fields: list[tuple[bytes, bytes]] = []
    if source.random() < 0.5:
        fields.append((b"grpc-timeout", b"%dm" % source.choice((20, 200, 5000))))
    if source.random() < 0.5:
        fields.append((b"x-trace", b"%032x" % source.getrandbits(128)))
    return call_block(f"/corpus.Echo/{method}", *fields)


def _text(method: str, source: random.Random) -> bytes:
    return {
        "Stream": b"%d 1000 0.005" % source.randrange(1, 20),
        "Sleep": b"%.2f" % source.uniform(0.0, 0.3),
        "Big": b"%d" % source.randrange(300_000),
        "Fail": b"%d no %d" % (source.randrange(1, 17), source.randrange(100)),
    }.get(method, source.randbytes(source.randrange(40_000)))


class _Call:
    """What is left to send of one call."""

    def __init__(self, number: int, method: str, source: random.Random) -> None:
        self.number = number
        body = message(_text(method, source))
        cuts = sorted(source.randrange(len(body)) for _ in range(source.randrange(3)))
        self.pieces = [body[a:b] for a, b in zip([0, *cuts], [*cuts, len(body)], strict=True)]
        self.has_trailers = source.random() < 0.2

    def frames(self) -> bytes:
        """The next piece, in frames of at most 16 KB."""
        piece = self.pieces.pop(0)
        is_last = not self.pieces
        found = b""
        for at in range(0, max(1, len(piece)), 16384):
            part = piece[at : at + 16384]
            ends = is_last and not self.has_trailers and at + 16384 >= len(piece)
            found += wire.frame_head(len(part) << 8, wire.END_STREAM if ends else 0, self.number) + part
        if is_last and self.has_trailers:
            found += wire.headers(self.number, b"\x20" + literal(b"x-end", b"1"), wire.END_STREAM, 16384)
        return found


async def _life(address: Address, source: random.Random) -> None:
    """One connection, from its preface to an end of some kind."""
    client = await connect(address)
    view = View({"name": "chaos"}, client.write)
    client.on_data = view.received
    window = source.choice((0, 1000, 65535, 1 << 20))
    client.write(wire.PREFACE + wire.settings((wire.INITIAL_WINDOW_SIZE, window)))
    calls: list[_Call] = []
    opened: list[int] = []
    sent = 0
    for step in range(source.randrange(10, 80)):
        choice = source.random()
        if step == 5:
            view.acknowledge()
        if choice < 0.4 and len(opened) < 60:
            number = 2 * len(opened) + 1
            method = source.choice(("Unary", "Bidi", "Stream", "Sleep", "Stuck", "Hold", "Fail", "Big", "Missing"))
            client.write(wire.headers(number, _head(method, source), 0, 16384))
            opened.append(number)
            calls.append(_Call(number, method, source))
        elif choice < 0.75 and calls and sent < 60_000:
            call = source.choice(calls)
            frames = call.frames()
            sent += len(frames)
            if sent < 60_000:  # of the connection's first window
                client.write(frames)
            if not call.pieces or sent >= 60_000:
                calls.remove(call)
        elif choice < 0.85 and opened:
            number = source.choice(opened)
            client.write(wire.rst_stream(number, source.choice((wire.CANCEL, wire.NO_ERROR, 99))))
            calls = [call for call in calls if call.number != number]
        elif choice < 0.95 and opened:
            client.write(wire.window_update(source.choice((0, source.choice(opened))), source.randrange(1, 100_000)))
        else:
            await asyncio.sleep(source.uniform(0.0, 0.05))
        if client.closed:
            break
    await asyncio.sleep(source.uniform(0.0, 0.2))
    end = source.random()
    if end < 0.3 and not client.closed:
        client.transport.write_eof()
        await asyncio.sleep(0.05)
    if end < 0.6 and not client.closed:
        client.reset()
    client.transport.abort()
    assert not view.faults
    assert all(code in (wire.NO_ERROR, wire.ENHANCE_YOUR_CALM) for code in view.goaways), view


async def _client(address: Address, seed: int) -> None:
    source = random.Random(seed)
    for _ in range(LIVES):
        await _life(address, source)


class _Steady:
    """One connection that calls the echo, four calls at a time, each with bytes of its own."""

    def __init__(self, client: H2Client) -> None:
        self._client = client
        self._view = View({"name": "steady"}, client.write)
        client.on_data = self._view.received
        self.done = 0

    async def run(self, over: asyncio.Event) -> None:
        source = random.Random(7)
        clock = asyncio.get_running_loop().time
        self._client.write(wire.PREFACE + wire.settings() + wire.window_update(0, 1 << 30))
        number = 1
        while not over.is_set():
            bodies = {}
            for _ in range(4):
                bodies[number] = message(source.randbytes(source.randrange(20_000)))
                block = call_block(PROBE)
                self._client.write(wire.headers(number, block, 0, 16384))
                for at in range(0, len(bodies[number]), 16384):
                    part = bodies[number][at : at + 16384]
                    ends = wire.END_STREAM if at + 16384 >= len(bodies[number]) else 0
                    self._client.write(wire.frame_head(len(part) << 8, ends, number) + part)
                number += 2
            until = clock() + PATIENCE_S
            answers = self._view.answers
            while not all(n in answers and answers[n].over for n in bodies):
                assert not self._client.closed, "the connection of the client that does nothing wrong was ended"
                assert clock() < until, f"no answer: {[n for n in bodies if n not in answers or not answers[n].over]}"
                await asyncio.sleep(0.005)
            for n, body in bodies.items():
                assert answers[n].last("grpc-status") == "0", (n, answers[n].heads, answers[n].reset)
                assert answers[n].data == body, f"call {n} got other bytes"
                answers.pop(n)
                self.done += 1


@pytest.mark.parametrize("loop", sorted(LOOPS))
@pytest.mark.parametrize("kind", KINDS)
def test_none_suffers_from_what_others_do(kind: str, loop: str) -> None:
    async def main() -> None:
        backend = H2Capture()
        async with door(kind, loop, await backend.start(), LIMITS, slots="1000") as way:
            client = await connect(way.address)
            steady, over = _Steady(client), asyncio.Event()
            try:
                async with asyncio.TaskGroup() as group:
                    work = group.create_task(steady.run(over))
                    async with asyncio.TaskGroup() as others:
                        for seed in range(CLIENTS):
                            others.create_task(_client(way.address, seed))
                    over.set()
                    await work
                assert way.world is not None
                assert way.replica is not None
                left = -1
                for _ in range(100):
                    if not (left := (await way.world.sample(way.replica.admin))["in_flight"]):
                        break
                    await asyncio.sleep(0.05)
                assert left == 0, f"{left} calls are still in flight"
                assert not backend.record.malformed
                assert not [call for call in backend.record.calls if call.open], "calls go on at the backend"
                assert len(backend.record.calls) > CLIENTS * LIVES
                assert steady.done > 20
                assert await is_alive(way.address)
            finally:
                client.transport.abort()
                await asyncio.sleep(0.02)
                await backend.close()

    run_on("uvloop", main())
