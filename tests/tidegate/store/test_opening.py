"""`store.url` chooses the store."""

import asyncio
import sys
from pathlib import Path

import pytest

from tests.support.live.redis_server import RedisServer
from tidegate.errors import InvalidInputError
from tidegate.store.embedded import EmbeddedStore
from tidegate.store.opening import open_store


def test_embedded_and_what_is_neither(tmp_path: Path) -> None:
    async def run() -> None:
        store = await open_store("embedded", tmp_path / "state.db")
        assert isinstance(store, EmbeddedStore)
        await store.close()
        with pytest.raises(InvalidInputError, match="scheme: got etcd; allowed: redis"):
            await open_store("etcd://here", tmp_path / "state.db")

    asyncio.run(run())


def test_without_the_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "redis", None)
    for module in ("tidegate.store.redis", "tidegate.store.redis_link"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    with pytest.raises(InvalidInputError, match=r"pip install 'tidegate\[redis\]'"):
        asyncio.run(open_store("redis://here", tmp_path / "state.db"))


@pytest.mark.live
@pytest.mark.needs(tool="redis")
def test_redis(redis_server: RedisServer, tmp_path: Path) -> None:
    async def run() -> None:
        store = await open_store(redis_server.url, tmp_path / "state.db")
        written = await store.put("a", b"1")
        assert await store.get("a") == written
        await store.close()

    asyncio.run(run())
