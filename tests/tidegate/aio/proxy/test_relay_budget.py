"""The budget of waiting bodies: bounded memory, no error, no standstill."""

import asyncio
import resource
import socket
from pathlib import Path

import pytest

from tests.support.http.backend import OK, answering
from tests.support.http.loopback import LOOPS, Relay, RelayApp, play, until
from tidegate.aio.loop import sockets
from tidegate.aio.proxy.exchange import Exchange
from tidegate.aio.proxy.server import Limits

pytestmark = [pytest.mark.live, pytest.mark.parametrize("loop", sorted(LOOPS))]

SIZE = 300_000
BUDGET = 8 << 20
FIRST_READ = 64 * 1024
"""What the kernel holds of a connection that was not read yet, about."""
MIB = 1 << 20


def resident() -> int:
    """Bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


class Waiting(RelayApp):
    def __init__(self) -> None:
        super().__init__()
        self.waiting: list[Exchange] = []

    def start(self, ex: Exchange) -> None:
        super().start(ex)
        self.waiting.append(ex)


class Uploads:
    """Clients without buffers of their own: what the kernel does not take stays unsent."""

    def __init__(self, port: int, count: int) -> None:
        self._data = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % SIZE + b"x" * SIZE
        self._sent: dict[socket.socket, int] = {}
        for _ in range(count):
            client = socket.create_connection(("127.0.0.1", port))
            client.setblocking(False)
            self._sent[client] = 0

    def push(self) -> None:
        """Sends what goes."""
        for client, sent in self._sent.items():
            while sent < len(self._data):
                try:
                    sent += client.send(self._data[sent : sent + 65536])
                except BlockingIOError:
                    break
            self._sent[client] = sent

    def answered(self) -> int:
        """How many have their whole answer."""
        count = 0
        for client in self._sent:
            try:
                count += client.recv(4096, socket.MSG_PEEK).endswith(b"ok")
            except BlockingIOError:
                continue
        return count

    def close(self) -> None:
        """Resets: an orderly end would wait behind bytes that are not read."""
        for client in self._sent:
            sockets.reset_on_close(client)
            client.close()


def test_a_thousand_waiting_uploads_take_bounded_memory(loop: str) -> None:
    count = 1000
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 3 * count + 200:
        count = (hard - 200) // 3
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 3 * count + 200), hard))

    async def scene(relay: Relay) -> None:
        app = relay.app
        assert isinstance(app, Waiting)
        before = resident()
        uploads = Uploads(relay.port, count)
        try:
            async with asyncio.timeout(60):
                while len(app.waiting) < count:
                    uploads.push()
                    await asyncio.sleep(0.01)
                for _ in range(20):
                    uploads.push()
                    await asyncio.sleep(0.02)
                assert relay.server.budget.used == sum(len(ex.body) for ex in app.waiting)
                assert relay.server.budget.used < BUDGET + count * 2 * FIRST_READ
                assert resident() - before < BUDGET + count * 2 * FIRST_READ + 64 * MIB
                assert all(ex.waiting for ex in app.waiting), "none was refused"
                app.pool = relay.pool
                for at in range(0, count, 50):
                    for ex in app.waiting[at : at + 50]:
                        assert app.pool is not None
                        ex.forward(app.pool)
                    while len(app.ended) < min(at + 50, count):
                        uploads.push()
                        await asyncio.sleep(0.001)
                assert relay.server.budget.used == 0
                await until(lambda: uploads.answered() == count)
        finally:
            uploads.close()

    try:
        app, _ = play(
            loop, answering(OK), scene, Limits(waiting_body_bytes=BUDGET), app=Waiting(), forwards=False, limit_s=90
        )
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert [ex.status for ex in app.ended] == [200] * count


def test_beyond_the_budget_a_body_is_read_on_when_it_is_sent(loop: str) -> None:
    async def scene(relay: Relay) -> None:
        app = relay.app
        assert isinstance(app, Waiting)
        uploads = Uploads(relay.port, 3)
        uploads.push()
        await until(lambda: len(app.waiting) == 3)
        for _ in range(5):
            uploads.push()
            await asyncio.sleep(0.02)
        stuck = [ex for ex in app.waiting if not ex.body_complete]
        assert stuck, "the budget is less than one body"
        assert relay.pool is not None
        stuck[-1].forward(relay.pool)
        while not app.ended:
            uploads.push()
            await asyncio.sleep(0.001)
        assert app.ended[0] is stuck[-1]
        for ex in app.waiting:
            if ex.waiting:
                ex.respond(503)
        uploads.close()

    play(loop, answering(OK), scene, Limits(waiting_body_bytes=20_000), app=Waiting(), forwards=False)


def test_a_client_that_vanishes_while_the_budget_pauses_it_is_noticed(loop: str) -> None:
    async def scene(relay: Relay) -> None:
        app = relay.app
        assert isinstance(app, Waiting)
        uploads = Uploads(relay.port, 2)
        uploads.push()
        await until(lambda: len(app.waiting) == 2)
        await asyncio.sleep(0.05)
        uploads.close()
        await until(lambda: app.running == 0)
        assert relay.server.budget.used == 0

    app, _ = play(loop, answering(OK), scene, Limits(waiting_body_bytes=20_000), app=Waiting(), forwards=False)
    assert [ex.status for ex in app.ended] == [499, 499]
