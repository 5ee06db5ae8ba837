"""The promises of every store (tidegate.store.records)."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from tidegate.store.records import VALUE_LIMIT, Change, ConflictError, Store, StoreFaultError

Opener = Callable[[], Awaitable[Store]]


def with_store(open_store: Opener, story: Callable[[Store], Awaitable[None]]) -> None:
    async def run() -> None:
        store = await open_store()
        try:
            await story(store)
        finally:
            await store.close()

    asyncio.run(run())


def test_a_record_is_read_as_written(open_store: Opener) -> None:
    async def story(store: Store) -> None:
        assert await store.get("functions/a") is None
        written = await store.put("functions/a", b"one")
        assert written == await store.get("functions/a")
        assert (written.key, written.value) == ("functions/a", b"one")
        assert written.version >= 1

    with_store(open_store, story)


def test_versions_rise_over_the_whole_store_and_are_never_reused(open_store: Opener) -> None:
    async def story(store: Store) -> None:
        first = await store.put("a", b"1")
        second = await store.put("b", b"1")
        assert await store.delete("a")
        third = await store.put("a", b"1")
        assert first.version < second.version < third.version
        with pytest.raises(ConflictError):
            await store.put("a", b"2", expect=first.version)

    with_store(open_store, story)


def test_compare_and_set(open_store: Opener) -> None:
    async def story(store: Store) -> None:
        first = await store.put("a", b"1", expect=0)
        with pytest.raises(ConflictError) as absent:
            await store.put("a", b"2", expect=0)
        assert absent.value.found == first.version
        second = await store.put("a", b"2", expect=first.version)
        with pytest.raises(ConflictError):
            await store.put("a", b"3", expect=first.version)
        with pytest.raises(ConflictError):
            await store.delete("a", expect=first.version)
        assert await store.delete("a", expect=second.version)
        assert not await store.delete("a")
        with pytest.raises(ConflictError):
            await store.delete("a", expect=second.version)

    with_store(open_store, story)


def test_of_writers_at_once_one_wins(open_store: Opener) -> None:
    async def story(store: Store) -> None:
        results = await asyncio.gather(
            *(store.put("leader", str(i).encode(), expect=0) for i in range(8)), return_exceptions=True
        )
        assert sum(isinstance(result, ConflictError) for result in results) == 7

    with_store(open_store, story)


def test_list_is_by_key_and_prefix(open_store: Opener) -> None:
    async def story(store: Store) -> None:
        for key in ("functions/b", "functions/a", "revisions/a/2", "functions_x"):
            await store.put(key, b"")
        assert [record.key for record in await store.list("functions/")] == ["functions/a", "functions/b"]
        assert len(await store.list()) == 4

    with_store(open_store, story)


def test_records_survive_a_restart(open_store: Opener) -> None:
    async def run() -> None:
        store = await open_store()
        written = await store.put("a", b"kept")
        await store.close()
        again = await open_store()
        try:
            assert await again.get("a") == written
            assert (await again.put("b", b"")).version > written.version
        finally:
            await again.close()

    asyncio.run(run())


@pytest.mark.parametrize("key", ["", "/a", "a/", "a//b", "a b", "ä", "x" * 600])
def test_a_bad_key_is_refused(open_store: Opener, key: str) -> None:
    async def story(store: Store) -> None:
        with pytest.raises(ValueError, match="not a key"):
            await store.put(key, b"")

    with_store(open_store, story)


def test_a_large_value_is_refused(open_store: Opener) -> None:
    async def story(store: Store) -> None:
        with pytest.raises(ValueError, match="at most"):
            await store.put("a", b"x" * (VALUE_LIMIT + 1))

    with_store(open_store, story)


def test_a_watch_tells_what_is_there_then_what_changes(open_store: Opener) -> None:
    async def story(store: Store) -> None:
        first = await store.put("f/a", b"1")
        await store.put("other", b"1")
        watch = store.watch("f/")
        assert await anext(watch) == Change("f/a", first.version, first)
        second = await store.put("f/b", b"2")
        assert await anext(watch) == Change("f/b", second.version, second)
        await store.delete("f/a")
        gone = await anext(watch)
        assert (gone.key, gone.record) == ("f/a", None)
        assert gone.version > second.version

    with_store(open_store, story)


def test_a_slow_watcher_misses_states_but_never_the_last(open_store: Opener) -> None:
    async def story(store: Store) -> None:
        watch = store.watch()
        opening = asyncio.ensure_future(anext(watch))  # noqa: TID251
        await asyncio.sleep(0)
        for number in range(50):
            await store.put("a", str(number).encode())
        seen = [await opening]
        while seen[-1].record is None or seen[-1].record.value != b"49":
            seen.append(await anext(watch))
        assert len(seen) <= 3

    with_store(open_store, story)


def test_closing_ends_watches_and_refuses_work(open_store: Opener) -> None:
    async def run() -> None:
        store = await open_store()
        await store.put("a", b"1")
        watch = store.watch()
        await anext(watch)
        await store.close()
        assert [change async for change in watch] == []
        with pytest.raises(StoreFaultError):
            await store.get("a")
        await store.close()

    asyncio.run(run())
