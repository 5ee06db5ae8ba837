"""The hostile HTTP/1.1 corpora, live: client bytes -> a real process -> a strict capture backend.

``http_hostile.jsonl`` is the corpus whose outcomes RFC 9110 and RFC 9112 allow; ``http_hostile_own.jsonl`` has more of
the same format, for the rules of ours that the first does not reach. Each runs against a gateway (with a queue_proxy
behind it), a queue_proxy and a bare relay, on uvloop and on plain asyncio. Most of a case's time is waiting for its
verdict, so all doors of a loop work side by side; behind one door cases run one after the other, and what one leaves
behind (a slot, a byte, a connection) the next one meets.
"""

import asyncio
from contextlib import AsyncExitStack
from functools import cache

import pytest

from tests.support.http_capture import CaptureBackend
from tests.support.http_doors import KINDS, Door, door, loop_of
from tests.support.http_hostile import CORPUS, OWN, STANDARD, Case, for_front_door, judge, load, run_case
from tests.support.loopback import LOOPS, run_on

pytestmark = [pytest.mark.live, pytest.mark.timeout(150)]

FILES = {"corpus": CORPUS, "own": OWN}
LANES = {"gateway": 8, "queue_proxy": 10, "relay": 16}

Verdicts = dict[tuple[str, str, str], list[str]]
"""What is wrong, by file, kind of door and name of the case; an empty list: nothing."""


def _cases(file: str, kind: str) -> list[Case]:
    """A queue_proxy leaves room in a head for what a gateway adds: ``doors`` of a case says where it holds."""
    return [case for case in load(FILES[file]) if kind in case.get("doors", KINDS)]


async def _lane(
    kind: str, loop: str, all_open: asyncio.Barrier, waiting: list[tuple[str, Case]], verdicts: Verdicts
) -> None:
    """One door, and one case after the other until none is left."""
    async with AsyncExitStack() as stack:
        backend = CaptureBackend()
        stack.push_async_callback(backend.close)
        way: Door = await stack.enter_async_context(door(kind, loop, await backend.start(), STANDARD))
        assert {loop_of(pid) for pid in way.pids} <= {loop}
        await all_open.wait()  # starting processes takes the time that cases are given
        while waiting:
            file, case = waiting.pop()
            if kind == "gateway":
                case = for_front_door(case)
            verdicts[file, kind, case["name"]] = judge(case, await run_case(case, way.address, backend))


@cache
def _verdicts(loop: str) -> Verdicts:
    """Runs every case of every file at every door."""
    verdicts: Verdicts = {}

    async def main() -> None:
        all_open = asyncio.Barrier(sum(LANES.values()))
        async with asyncio.TaskGroup() as group:
            for kind in KINDS:
                # Slow cases first: together they last as long as the longest.
                cases = [(file, case) for file in FILES for case in _cases(file, kind)]
                cases.sort(key=lambda item: item[1].get("wait", 0.0))
                for _ in range(LANES[kind]):
                    group.create_task(_lane(kind, loop, all_open, cases, verdicts))

    run_on(loop, main())
    return verdicts


@pytest.mark.parametrize("loop", sorted(LOOPS))
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("file", FILES)
def test_every_case_ends_in_a_permitted_outcome(file: str, kind: str, loop: str) -> None:
    verdicts = _verdicts(loop)
    names = [case["name"] for case in _cases(file, kind)]
    assert len(set(names)) == len(names)
    failed = {name: faults for name in names if (faults := verdicts[file, kind, name])}
    assert not failed, "\n".join(f"{name}: {'; '.join(faults)}" for name, faults in failed.items())
