"""The hostile HTTP/2 and gRPC corpora, live: client bytes -> a real process -> a strict capture backend.

``h2_hostile.jsonl`` is the corpus; ``h2_hostile_own.jsonl`` has more of the same format, for the rules of RFC 9113,
RFC 7541 and ours that the first does not reach. Each case runs against a gateway (with a queue_proxy behind it) and a
queue_proxy, on uvloop and on plain asyncio. Most of a case's time is waiting for its verdict, so all doors of a loop
work side by side; behind one door cases run one after the other, and what one leaves behind (a slot, a stream, a
connection) the next one meets. At the end nothing may be in flight. ``tests/tidegate/wire/http2/test_hostile.py`` runs
the same files against the engines alone.
"""

import asyncio
from contextlib import AsyncExitStack
from functools import cache

import pytest

from tests.support.deadline import starved_s
from tests.support.http.doors import door, loop_of, ways
from tests.support.http.loopback import run_on
from tests.support.http2.capture import H2Capture
from tests.support.http2.live import run_case
from tests.support.http2.view import CORPUS, OWN, Case, load

pytestmark = [pytest.mark.live, pytest.mark.early(70)]

FILES = {"corpus": CORPUS, "own": OWN}
KINDS = ("gateway", "queue_proxy")
LANES = 7
"""Doors of each kind at once."""
SLOTS = "250"
"""As many as the backend takes streams."""
LATE_S, TIMES_RUN = 0.4, 5
"""A case that fails while processes waited so long for a processor was another one: it is run again."""
LIMITS = {
    "head_timeout_s": 2.0,
    "idle_timeout_s": 5.0,
    "response_timeout_s": 15.0,
    "body_idle_timeout_s": 10.0,
    "trusted_proxies": [],
}
"""The standard configuration of the corpus; streams, windows, lists and rates are our defaults."""

Verdicts = dict[tuple[str, str, str], list[str]]
"""What is wrong, by file, kind of door and name of the case; an empty list: nothing."""


async def _lane(
    kind: str, loop: str, all_open: asyncio.Barrier, waiting: list[tuple[str, Case]], verdicts: Verdicts
) -> None:
    """One door, and one case after the other until none is left."""
    async with AsyncExitStack() as stack:
        backend = H2Capture()
        stack.push_async_callback(backend.close)
        way = await stack.enter_async_context(door(kind, loop, await backend.start(), LIMITS, slots=SLOTS))
        assert {loop_of(pid) for pid in way.pids} <= {loop}
        await all_open.wait()  # starting processes takes the time that cases are given
        file = name = ""
        while waiting:
            file, case = waiting.pop()
            name = case["name"]
            for _ in range(TIMES_RUN):
                starved = starved_s()
                verdicts[file, kind, name] = await run_case(case, way.address, backend, way.pids)
                if not verdicts[file, kind, name] or starved_s() - starved < LATE_S:
                    break
        if left := await way.left_in_flight():
            verdicts[file, kind, name].append(f"{left} calls are still in flight behind this door")


@cache
def _verdicts(kind: str, loop: str) -> Verdicts:
    """Runs every case at doors of one kind."""
    verdicts: Verdicts = {}

    async def main() -> None:
        all_open = asyncio.Barrier(LANES)
        async with asyncio.TaskGroup() as group:
            # Slow cases first: together they last as long as the longest.
            cases = [(file, case) for file in FILES for case in load(FILES[file])]
            cases.sort(key=lambda item: item[1].get("wait", 0.0))
            for _ in range(LANES):
                group.create_task(_lane(kind, loop, all_open, cases, verdicts))

    run_on(loop, main())
    return verdicts


@pytest.mark.parametrize(("kind", "loop"), ways(KINDS))
@pytest.mark.parametrize("file", FILES)
def test_every_case_ends_in_a_permitted_outcome(file: str, kind: str, loop: str) -> None:
    names = [case["name"] for case in load(FILES[file])]
    assert len(set(names)) == len(names)
    verdicts = _verdicts(kind, loop)
    failed = {name: faults for name in names if (faults := verdicts[file, kind, name])}
    assert not failed, "\n".join(f"{name}: {'; '.join(faults)}" for name, faults in failed.items())
