"""The load client of a demo in its own process, against a server in this one."""

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import AsyncIterator

import pytest

from tidegate.control.cli.demo.sender import SenderError, sending
from tidegate.loadgen.clients.call import Request
from tidegate.loadgen.clients.outcomes import RequestOutcome, Shot

pytestmark = pytest.mark.live

SHOTS: list[Shot] = [(0.05 * number, Request(b"{}", 2)) for number in range(20)]


@contextlib.asynccontextmanager
async def server() -> AsyncIterator[str]:
    """Answers every POST; yields ``host:port``."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while await reader.readuntil(b"\r\n\r\n{}"):
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
        writer.close()

    running = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with running:
        host, port = running.sockets[0].getsockname()
        yield f"{host}:{port}"


def test_every_outcome_comes_with_its_times_on_this_machines_clock() -> None:
    async def scene() -> None:
        outcomes: list[RequestOutcome] = []
        async with server() as address:
            before = time.monotonic()
            with sending(address, "/infer", SHOTS) as sender:
                began = await sender.began()
                assert before < began < time.monotonic()
                assert sender.pid != os.getpid()
                while (report := await sender.report()) is not None:
                    outcomes += report[0]
        assert [each.at_s for each in sorted(outcomes, key=lambda each: each.at_s)] == pytest.approx(
            [at_s for at_s, _ in SHOTS], abs=1e-6
        )
        assert {(each.status, each.inferences) for each in outcomes} == {(200, 2)}
        assert all(0.0 < each.served_s <= each.latency_s for each in outcomes)

    asyncio.run(scene())


def test_a_client_that_is_killed_is_reported_and_one_that_is_left_ends() -> None:
    async def scene() -> None:
        async with server() as address:
            with sending(address, "/infer", [*SHOTS, (60.0, Request(b"{}"))]) as sender:
                await sender.began()
                os.kill(sender.pid, signal.SIGKILL)
                with pytest.raises(SenderError, match="has ended before its load"):
                    while await sender.report() is not None:
                        pass
            with sending(address, "/infer", [(60.0, Request(b"{}"))]) as sender:
                await sender.began()
            with pytest.raises(ProcessLookupError):
                os.kill(sender.pid, 0)

    asyncio.run(scene())
