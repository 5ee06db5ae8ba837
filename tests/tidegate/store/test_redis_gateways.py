"""The meeting place of remote gateways in a real Redis."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tests.support.live.redis_server import RedisServer
from tidegate.store.records import StoreFaultError
from tidegate.store.redis_gateways import OtherDeploymentError, RedisGateways

pytestmark = [pytest.mark.live, pytest.mark.needs(tool="redis")]


def meet(folder: Path, what: Callable[[RedisServer, RedisGateways], Awaitable[None]]) -> None:
    async def run() -> None:
        server = RedisServer(folder)
        redis = RedisGateways(server.url, "blue")
        try:
            await what(server, redis)
        finally:
            await redis.close()
            server.kill()

    asyncio.run(run())


def test_only_a_newer_table_replaces_the_one_that_is_there(tmp_path: Path) -> None:
    async def main(server: RedisServer, redis: RedisGateways) -> None:
        assert await redis.table((-1, -1)) is None
        assert (await redis.meet()).version == (-1, -1)
        assert await redis.put_table((2, 7), b"first") == (2, 7)
        assert await redis.put_table((1, 99), b"of a leader that was replaced") == (2, 7)
        assert await redis.put_table((2, 6), b"late") == (2, 7)
        assert await redis.table((-1, -1)) == b"first"
        assert await redis.put_table((2, 8), b"second") == (2, 8)
        assert await redis.table((2, 7)) == b"second"
        assert await redis.table((2, 8)) is None
        assert await redis.put_table((3, 1), b"of its successor") == (3, 1)
        assert (await redis.meet()).version == (3, 1)
        other = RedisGateways(server.url, "green")
        assert await other.table((-1, -1)) is None, "another deployment"
        await other.close()

    meet(tmp_path, main)


def test_gateways_register_and_leave(tmp_path: Path) -> None:
    async def main(server: RedisServer, redis: RedisGateways) -> None:
        await redis.register("a", b"1")
        await redis.register("b", b"2")
        await redis.register("a", b"3")
        assert (await redis.meet()).gateways == {"a": b"3", "b": b"2"}
        await redis.leave("b")
        assert (await redis.meet()).gateways == {"a": b"3"}

    meet(tmp_path, main)


def test_what_waits_is_read_once_and_a_table_wakes_its_readers(tmp_path: Path) -> None:
    async def main(server: RedisServer, redis: RedisGateways) -> None:
        await redis.ask(b"before")
        async with asyncio.timeout(10.0), asyncio.TaskGroup() as group:
            reading = group.create_task(redis.asked("$", 5.0))
            waiting = group.create_task(redis.next_table(30.0))
            while not reading.done():  # The read may begin after a first one.
                await redis.ask(b"echo")
                await asyncio.sleep(0.01)
            while not waiting.done():
                await redis.put_table((1, 1), b"table")
                await asyncio.sleep(0.01)
        after, found = reading.result()
        assert found[0] == b"echo" and after != "$"
        await redis.ask(b"more")
        while (more := await redis.asked(after, 1.0))[1][-1] != b"more":
            after = more[0]

    meet(tmp_path, main)


def test_a_redis_that_is_away_is_a_fault(tmp_path: Path) -> None:
    async def main(server: RedisServer, redis: RedisGateways) -> None:
        server.kill()
        with pytest.raises(StoreFaultError):
            await redis.meet()
        server.start()
        await asyncio.sleep(redis.rest_s)
        assert await redis.put_table((1, 1), b"table") == (1, 1)

    meet(tmp_path, main)


def test_the_table_of_another_deployment_by_the_same_name_is_not_read(tmp_path: Path) -> None:
    async def main(server: RedisServer, redis: RedisGateways) -> None:
        ours, theirs = (RedisGateways(server.url, "blue", mark=mark) for mark in ("one", "two"))
        try:
            assert await theirs.table((-1, -1)) is None
            await redis.put_table((1, 1), b"of a version without marks")
            assert await theirs.table((-1, -1)) == b"of a version without marks"
            await ours.put_table((1, 2), b"ours")
            assert await ours.table((-1, -1)) == b"ours"
            with pytest.raises(OtherDeploymentError):
                await theirs.table((1, 2))
        finally:
            await ours.close()
            await theirs.close()

    meet(tmp_path, main)
