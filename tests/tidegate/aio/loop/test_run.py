"""How a data-plane process runs."""

import asyncio
import gc
from collections.abc import Iterator

import pytest
import uvloop

from tidegate.aio.allocator import keep_memory
from tidegate.aio.loop import run as loop


@pytest.fixture(autouse=True)
def collector_as_before() -> Iterator[None]:
    thresholds = gc.get_threshold()
    yield
    gc.set_threshold(*thresholds)
    gc.unfreeze()


def test_a_process_runs_on_uvloop_with_a_quiet_collector() -> None:
    async def main() -> tuple[bool, tuple[int, int, int]]:
        await asyncio.sleep(0)
        return isinstance(asyncio.get_running_loop(), uvloop.Loop), gc.get_threshold()

    assert loop.run(main()) == (True, (50_000, 20, 50))


def test_the_allocator_takes_its_settings_where_it_is_glibc() -> None:
    assert isinstance(keep_memory(), bool)
