"""The link to a Redis that does not go on."""

import asyncio

import pytest
from redis import exceptions
from redis.asyncio import BlockingConnectionPool

from tidegate.store.redis_link import RedisLink


def test_a_link_is_closed_although_its_connections_do_not_close_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that ends on a busy machine goes on with what it has still to do, and its exit code is 0."""

    async def disconnect(self: BlockingConnectionPool, inuse_connections: bool = True) -> None:
        raise exceptions.TimeoutError("Timed out closing connection after 0.5")

    monkeypatch.setattr(BlockingConnectionPool, "disconnect", disconnect)

    async def run() -> None:
        await RedisLink("redis://127.0.0.1:1/0").close()

    asyncio.run(run())
