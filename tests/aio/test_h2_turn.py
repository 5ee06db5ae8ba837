"""Connections of HTTP/2 that write once per turn, and one of them that cannot."""

import asyncio
from typing import Any

from tidegate.aio.h2_turn import Turn


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
    """Whoever were not flushed would keep its mark, and never be flushed again."""
    told: list[tuple[str, BaseException]] = []
    gone = RuntimeError("the handler is closed")
    connections = [Connection(), Connection(gone), Connection()]

    async def main() -> None:
        turn = Turn(asyncio.get_running_loop(), lambda name, error: told.append((name, error)))
        for _ in range(2):
            for connection in connections:
                turn.touch(connection)
            assert repr(turn) == "<Turn 3 touched>"
            await asyncio.sleep(0)

    asyncio.run(main())
    assert [connection.flushed for connection in connections] == [2, 2, 2]
    assert [connection.aborted for connection in connections] == [0, 2, 0], "its peer must not read on behind the hole"
    assert told == [("HTTP/2 turn", gone)] * 2
