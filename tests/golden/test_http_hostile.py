"""Every case of the hostile HTTP/1.1 corpus, live: client bytes -> our server -> a strict capture backend.

The corpus states the outcomes that RFC 9110 and RFC 9112 allow. All cases run at once, each on its own proxy and
backend, since most of their time is waiting for a verdict.
"""

import asyncio

import pytest

from tests.support.http_hostile import Case, judge, load, run_case
from tests.support.loopback import LOOPS, run_on

pytestmark = pytest.mark.live

_AT_ONCE = 24


async def _run_all(cases: list[Case]) -> dict[str, list[str]]:
    gate = asyncio.Semaphore(_AT_ONCE)

    async def verdict(case: Case) -> tuple[str, list[str]]:
        async with gate:
            return case["name"], judge(case, await run_case(case))

    # Slow cases first: together they last as long as the longest.
    cases = sorted(cases, key=lambda case: -case.get("wait", 0.0))
    return dict(await asyncio.gather(*(verdict(case) for case in cases)))


@pytest.mark.timeout(120)
@pytest.mark.parametrize("loop", sorted(LOOPS))
def test_every_case_ends_in_a_permitted_outcome(loop: str) -> None:
    cases = load()
    verdicts = run_on(loop, _run_all(cases))
    failed = {name: faults for name, faults in verdicts.items() if faults}
    assert not failed, "\n".join(f"{name}: {'; '.join(faults)}" for name, faults in failed.items())
    assert len(verdicts) == len({case["name"] for case in cases})
