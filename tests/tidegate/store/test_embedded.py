"""The SQLite file: a full disk, a damaged file, its mode."""

import asyncio
from pathlib import Path

import pytest

from tidegate.store.embedded import EmbeddedStore
from tidegate.store.records import StoreFaultError


def test_a_full_disk_is_said_aloud_and_reads_go_on(tmp_path: Path) -> None:
    async def run() -> None:
        store = await EmbeddedStore.open(tmp_path / "state.db", max_pages=16)
        first = await store.put("a", b"small")
        with pytest.raises(StoreFaultError, match="full"):
            await store.put("b", b"x" * 500_000)
        assert "full" in str(store.fault)
        assert await store.get("a") == first
        assert await store.get("b") is None
        second = await store.put("a", b"again")
        assert str(store.fault) == "None"
        assert second.version == first.version + 1, "a write that failed takes no number"
        await store.close()

    asyncio.run(run())


def test_a_file_that_is_no_database_is_a_fault_with_its_name(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    path.write_bytes(b"this is not a database, and it is long enough to be read as one" * 20)

    async def run() -> None:
        with pytest.raises(StoreFaultError, match=r"state\.db"):
            await EmbeddedStore.open(path)

    asyncio.run(run())


def test_only_the_owner_may_read(tmp_path: Path) -> None:
    async def run() -> None:
        store = await EmbeddedStore.open(tmp_path / "state.db")
        await store.put("a", b"secret")
        await store.close()

    asyncio.run(run())
    assert (tmp_path / "state.db").stat().st_mode & 0o777 == 0o600
