"""Every store keeps the same promises: the suite runs over each opener listed here."""

from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from tests.support.live.redis_server import RedisServer
from tidegate.store.embedded import EmbeddedStore
from tidegate.store.records import Store

Opener = Callable[[], Awaitable[Store]]


@pytest.fixture
def redis_server(tmp_path: Path) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path)
    try:
        yield server
    finally:
        server.kill()


@pytest.fixture(params=["embedded", pytest.param("redis", marks=[pytest.mark.live, pytest.mark.needs(tool="redis")])])
def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> Opener:
    """Opens the store, each time the same one: a second call is a restart."""

    async def embedded() -> Store:
        return await EmbeddedStore.open(tmp_path / "state.db")

    if request.param == "embedded":
        return embedded
    server: RedisServer = request.getfixturevalue("redis_server")

    async def redis() -> Store:
        from tidegate.store.redis import RedisStore

        return await RedisStore.open(server.url)

    return redis
