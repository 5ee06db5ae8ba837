"""Connections of HTTP/2 that write once per turn, and one of them that cannot."""

import asyncio
from typing import Any

import pytest

from tests.support.http.loopback import LOOPS, run_on, until
from tidegate.aio.loop.services import LoopServices
from tidegate.aio.loop.writes import FlushQueue
from tidegate.aio.upstream.http2 import H2Pool, H2Upstream


class Connection:
    """Counts how often it was flushed, and may raise."""

    def __init__(self, error: Exception | None = None) -> None:
        self.transport: Any = self
        self.flushed = self.aborted = 0
        self._error = error

    def abort(self) -> None:
        self.aborted += 1

    def flush(self) -> None:
        self.flushed += 1
        if self._error is not None:
            raise self._error


def test_one_that_cannot_write_takes_no_other_along() -> None:
    """One that were not flushed would keep its mark, and never be flushed again."""
    reported: list[tuple[str, BaseException]] = []
    gone = RuntimeError("the handler is closed")
    connections = [Connection(), Connection(gone), Connection()]

    async def main() -> None:
        turn = FlushQueue(asyncio.get_running_loop(), lambda name, error: reported.append((name, error)))
        for _ in range(2):
            for connection in connections:
                turn.touch(connection)
            assert repr(turn) == "<FlushQueue 3 touched>"
            await asyncio.sleep(0)

    asyncio.run(main())
    assert [connection.flushed for connection in connections] == [2, 2, 2]
    assert [connection.aborted for connection in connections] == [0, 2, 0], "its peer must not read on behind the hole"
    assert reported == [("HTTP/2 turn", gone)] * 2


@pytest.mark.live
@pytest.mark.parametrize("loop", sorted(LOOPS))
def test_a_connect_that_is_given_up_as_it_is_made_is_not_written_to(loop: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its time is over in the turn in which it was made: uvloop has closed it then, and does not report it."""
    made = H2Upstream.connection_made
    given_up: list[asyncio.Task[Any]] = []

    def give_up(self: H2Upstream, transport: asyncio.BaseTransport) -> None:
        given_up.extend(task for task in asyncio.all_tasks() if task.get_name().startswith("connect to"))
        given_up[0].cancel()
        made(self, transport)

    monkeypatch.setattr(H2Upstream, "connection_made", give_up)

    async def main() -> None:
        reported: list[BaseException] = []
        server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()[:2]
        services = LoopServices(asyncio.get_running_loop(), report=lambda name, error: reported.append(error))
        pool = H2Pool(f"{host}:{port}", services, 5.0, 0.0)
        pool._connect()
        await until(lambda: bool(given_up) and given_up[0].done())
        await asyncio.sleep(0.02)
        services.close()
        server.close()
        assert reported == []

    run_on(loop, main())
