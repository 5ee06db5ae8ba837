"""Redis alone: it goes, stands still, comes back, refuses; nothing hangs and no change is lost."""

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.support.live.certificates import make_certificate
from tests.support.live.redis_server import RedisServer
from tidegate.store.records import VALUE_LIMIT, Change, StoreFaultError
from tidegate.store.redis import LOG_ENTRIES, RedisStore
from tidegate.store.redis_link import RedisLink, Script

pytestmark = pytest.mark.live
needs_redis = pytest.mark.needs(tool="redis")

SOON_S = 5.0


async def soon(store: RedisStore, key: str, value: bytes) -> None:
    """Writes as soon as Redis is back."""
    async with asyncio.timeout(SOON_S):
        while True:
            try:
                await store.put(key, value)
            except StoreFaultError:
                await asyncio.sleep(0.05)
            else:
                return


async def next_change(watch: AsyncIterator[Change]) -> Change:
    async with asyncio.timeout(SOON_S):
        return await anext(watch)


@needs_redis
def test_killed_and_started_again(redis_server: RedisServer) -> None:
    """kill -9: calls fail at once; afterwards everything confirmed is there and the watch tells what changed."""

    async def run() -> None:
        store = await RedisStore.open(redis_server.url)
        first = await store.put("a", b"1")
        await store.put("gone", b"1")
        watch = store.watch()
        assert {(await next_change(watch)).key, (await next_change(watch)).key} == {"a", "gone"}
        redis_server.kill()
        for _ in range(3):
            begun = time.monotonic()
            with pytest.raises(StoreFaultError, match=str(redis_server.port)):
                await store.put("a", b"2")
            assert time.monotonic() - begun < 1
        assert store.fault is not None
        redis_server.start()
        await soon(store, "a", b"3")
        assert await store.delete("gone")
        assert str(store.fault) == "None"
        second, third = await next_change(watch), await next_change(watch)
        assert second.record is not None and (second.key, second.record.value) == ("a", b"3")
        assert (third.key, third.record) == ("gone", None)
        assert first.version < second.version < third.version
        await store.close()

    asyncio.run(run())


@needs_redis
def test_standing_still(redis_server: RedisServer) -> None:
    """SIGSTOP: the first call fails after its limit, those after it at once; it goes on by itself."""

    async def run() -> None:
        store = await RedisStore.open(redis_server.url, call_s=0.3)
        await store.put("a", b"1")
        watch = store.watch()
        await next_change(watch)
        redis_server.pause()
        try:
            begun = time.monotonic()
            with pytest.raises(StoreFaultError, match="no answer within"):
                await store.put("a", b"2", expect=0)
            first = time.monotonic()
            with pytest.raises(StoreFaultError, match="no answer within"):
                await store.get("a")
            assert first - begun < 2
            assert time.monotonic() - first < 0.25
            await asyncio.sleep(1.5)
        finally:
            redis_server.go_on()
        await soon(store, "b", b"1")
        assert (await next_change(watch)).key == "b"
        await store.close()

    asyncio.run(run())


@needs_redis
def test_slow_answers_are_answers(redis_server: RedisServer) -> None:
    async def run() -> None:
        store = await RedisStore.open(redis_server.url)
        await store.put("a", b"1")
        redis_server.pause()
        asyncio.get_running_loop().call_later(0.3, redis_server.go_on)
        written = await store.put("a", b"2")
        assert await store.get("a") == written
        await store.close()

    asyncio.run(run())


@needs_redis
def test_a_call_is_cancelled_at_every_step(redis_server: RedisServer) -> None:
    """It ends there and then, and the next answers belong to the next questions."""

    async def run() -> None:
        store = await RedisStore.open(redis_server.url)
        first, second = await store.put("a", b"1"), await store.put("b", b"2")
        for step in range(200):
            async with asyncio.TaskGroup() as group:
                task = group.create_task(store.get("a"))
                for _ in range(step % 40):
                    await asyncio.sleep(0)
                was_done = task.done()
                task.cancel()
            assert was_done or task.cancelled()
        assert [*await asyncio.gather(store.get("a"), store.get("b"))] == [first, second]
        await store.close()

    asyncio.run(run())


@needs_redis
def test_data_that_is_lost_is_gone_for_a_watch_too(redis_server: RedisServer) -> None:
    """Redis is emptied: keys are reported as deleted, and versions rise none the less."""

    async def run() -> None:
        store = await RedisStore.open(redis_server.url)
        before = await store.put("a", b"1")
        await store.put("b", b"1")
        watch = store.watch()
        await next_change(watch)
        await next_change(watch)
        link = RedisLink(redis_server.url)
        await link.script(Script("return redis.call('FLUSHALL')"), [], [])
        again = await store.put("b", b"1")
        assert again.version > before.version
        changes = {change.key: change for change in [await next_change(watch), await next_change(watch)]}
        assert changes["a"].record is None
        assert changes["b"].record == again
        await link.close()
        await store.close()

    asyncio.run(run())


@needs_redis
def test_a_watch_that_is_far_behind_reads_everything(redis_server: RedisServer) -> None:
    async def run() -> None:
        store = await RedisStore.open(redis_server.url)
        await store.put("first", b"1")
        watch = store.watch()
        await next_change(watch)
        await store.delete("first")
        for number in range(LOG_ENTRIES + 200):
            await store.put("busy", str(number).encode())
        last = {change.key: change.record for change in [await next_change(watch), await next_change(watch)]}
        assert last["first"] is None
        assert last["busy"] is not None and last["busy"].value == str(LOG_ENTRIES + 199).encode()
        await store.close()

    asyncio.run(run())


@needs_redis
def test_two_processes_see_each_other(redis_server: RedisServer) -> None:
    async def run() -> None:
        one, other = await RedisStore.open(redis_server.url), await RedisStore.open(redis_server.url)
        watch = one.watch("f/")
        await one.put("f/a", b"1")
        await next_change(watch)
        waiting = asyncio.ensure_future(next_change(watch))  # noqa: TID251
        await asyncio.sleep(0.1)
        begun = time.monotonic()
        written = await other.put("f/a", b"2")
        assert (await waiting).record == written
        assert time.monotonic() - begun < 0.8, "the stream wakes a watch before its beat"
        await other.close()
        await one.close()

    asyncio.run(run())


@needs_redis
def test_closing_wakes_a_watch_that_waits(redis_server: RedisServer) -> None:
    async def run() -> None:
        store = await RedisStore.open(redis_server.url)
        waiting = asyncio.ensure_future(anext(aiter(store.watch()), None))  # noqa: TID251
        await asyncio.sleep(0.1)
        begun = time.monotonic()
        await store.close()
        assert await asyncio.wait_for(waiting, SOON_S) is None
        assert time.monotonic() - begun < 0.8

    asyncio.run(run())


@needs_redis
def test_a_record_that_somebody_made_too_large(redis_server: RedisServer) -> None:
    async def run() -> None:
        store = await RedisStore.open(redis_server.url)
        await store.put("a", b"1")
        link = RedisLink(redis_server.url)
        text = f"return redis.call('HSET', 'tidegate:values', 'a', string.rep('x', {VALUE_LIMIT + 1}))"
        await link.script(Script(text), [], [])
        for work in (store.get("a"), store.list()):
            with pytest.raises(StoreFaultError, match=f"a has {VALUE_LIMIT + 1} bytes; allowed: at most {VALUE_LIMIT}"):
                await work
        await link.close()
        await store.close()

    asyncio.run(run())


@needs_redis
def test_a_full_redis_is_said_aloud_and_reads_go_on(tmp_path: Path) -> None:
    server = RedisServer(tmp_path, "--maxmemory", "3mb", "--maxmemory-policy", "noeviction")

    async def run() -> None:
        store = await RedisStore.open(server.url)
        first = await store.put("a", b"small")
        with pytest.raises(StoreFaultError, match="maxmemory"):
            for number in range(8):
                await store.put(f"b{number}", b"x" * 900_000)
        assert "maxmemory" in str(store.fault)
        assert await store.get("a") == first
        await store.close()

    try:
        asyncio.run(run())
    finally:
        server.kill()


def fails(url: str, call_s: float = 2.0) -> str:
    """What opening ``url`` says."""
    with pytest.raises(StoreFaultError) as caught:
        asyncio.run(RedisStore.open(url, call_s=call_s))
    return str(caught.value)


@needs_redis
def test_calls_of_a_start_may_be_slow(redis_server: RedisServer) -> None:
    """As on a machine that is busy with the start. Later ones may not."""

    async def run() -> None:
        store = await RedisStore.open(redis_server.url, call_s=0.01, start_s=30.0)
        link = store._link
        assert await link._run(lambda: asyncio.sleep(0.1, "late"), 0.01) == "late"
        link._patient_until = asyncio.get_running_loop().time()
        with pytest.raises(StoreFaultError, match=r"no answer within 0\.01 s"):
            await link._run(lambda: asyncio.sleep(30.0), 0.01)
        await store.close()

    asyncio.run(run())


def test_no_server_there() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        said = fails(f"redis://127.0.0.1:{port}/0")
    assert f"redis://127.0.0.1:{port}/0" in said
    assert "refused" in said or "Connect call failed" in said


def test_somebody_who_never_answers() -> None:
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen()
        begun = time.monotonic()
        assert "no answer within 0.2 s" in fails(f"redis://127.0.0.1:{deaf.getsockname()[1]}", 0.2)
        assert time.monotonic() - begun < 2


@needs_redis
def test_wrong_password(tmp_path: Path) -> None:
    server = RedisServer(tmp_path, "--requirepass", "right")
    try:
        assert "user and password are refused" in fails(server.url)
        said = fails(server.url.replace("127", ":wrong@127", 1))
        assert "user and password are refused" in said
        assert "wrong@" not in said
    finally:
        server.kill()


@needs_redis
def test_a_database_that_is_not_there(redis_server: RedisServer) -> None:
    assert "DB index is out of range" in fails(redis_server.url[:-1] + "99")


@pytest.fixture
def tls_server(tmp_path: Path) -> Iterator[tuple[RedisServer, Path]]:
    pair = make_certificate(tmp_path)
    server = RedisServer(tmp_path, tls=pair)
    try:
        yield server, pair[0]
    finally:
        server.kill()


@needs_redis
def test_tls(tls_server: tuple[RedisServer, Path], tmp_path: Path) -> None:
    """With the right authority it works; without one, with a name that is not in it, and without TLS it is said."""
    server, certificate = tls_server
    secure = f"rediss://127.0.0.1:{server.port}/0"

    async def run() -> None:
        store = await RedisStore.open(f"{secure}?ssl_ca_certs={certificate}")
        await store.put("a", b"1")
        await store.close()

    asyncio.run(run())
    assert "certificate is not trusted" in fails(secure)
    (tmp_path / "other").mkdir()
    other, _ = make_certificate(tmp_path / "other")
    assert "certificate is not trusted" in fails(f"{secure}?ssl_ca_certs={other}")
    assert "a Redis with TLS has rediss://" in fails(server.url)


@needs_redis
def test_tls_towards_a_redis_without(redis_server: RedisServer) -> None:
    said = fails(redis_server.url.replace("redis:", "rediss:"), call_s=0.3)
    assert "a Redis without TLS has redis://" in said
