"""What a hostile backend answers, and what of it a client may see: the other direction of the hostile corpus.

The format is described in :mod:`tests.support.http.answers`. Every case runs behind a gateway (with its queue_proxy), a
queue_proxy and a bare relay, on uvloop and on plain asyncio.
"""

import asyncio
from contextlib import AsyncExitStack
from functools import cache

import pytest

from tests.support.http.answers import Case, HostileBackend, run_case
from tests.support.http.doors import door, ways
from tests.support.http.hostile import ANSWERS, load
from tests.support.http.loopback import run_on

pytestmark = [pytest.mark.live, pytest.mark.timeout(120)]

LANES = {"gateway": 5, "queue_proxy": 6, "relay": 6}


Verdicts = dict[tuple[str, str], list[str]]
"""What is wrong, by kind of door and name of the case."""


async def _lane(kind: str, loop: str, all_open: asyncio.Barrier, waiting: list[Case], verdicts: Verdicts) -> None:
    async with AsyncExitStack() as stack:
        backend = HostileBackend()
        stack.push_async_callback(backend.close)
        way = await stack.enter_async_context(
            # Else a request of which less than 256 KB have come would not be with the backend yet.
            door(kind, loop, await backend.start(), route={"request_buffering": False})
        )
        await all_open.wait()  # starting processes takes the time that cases are given
        while waiting:
            case = waiting.pop()
            verdicts[kind, case["name"]] = await run_case(case, way.address, backend)


@cache
def _verdicts(kind: str, loop: str) -> Verdicts:
    verdicts: Verdicts = {}

    async def main() -> None:
        all_open = asyncio.Barrier(LANES[kind])
        async with asyncio.TaskGroup() as group:
            waiting = load(ANSWERS)
            for _ in range(LANES[kind]):
                group.create_task(_lane(kind, loop, all_open, waiting, verdicts))

    run_on(loop, main())
    return verdicts


@pytest.mark.parametrize(("kind", "loop"), ways())
def test_no_answer_of_a_backend_deceives_a_client(kind: str, loop: str) -> None:
    verdicts = _verdicts(kind, loop)
    names = [case["name"] for case in load(ANSWERS)]
    assert len(set(names)) == len(names)
    failed = {name: faults for name in names if (faults := verdicts[kind, name])}
    assert not failed, "\n".join(f"{name}: {'; '.join(faults)}" for name, faults in failed.items())
