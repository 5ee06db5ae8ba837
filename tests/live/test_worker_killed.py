"""One of three gateway workers is killed under the load of a quota: every client is answered, and the quota holds."""

import asyncio
import re
import sys
import time
from collections import Counter
from pathlib import Path

import httpx
import pytest

from tests.support.live.deployment import REQUEST, deployment
from tests.support.live.tenants import ACME, closed_function, room_in_the_minute, tenants_file

pytestmark = [pytest.mark.live, pytest.mark.timeout(240)]

QUOTA = 450
RATE = 30.0
SECONDS = 28.0
"""At most, of one minute; it is over when so many were refused:"""
REFUSED = 60
CONNECTIONS = 24


@pytest.mark.early
def test_one_of_three_workers_is_killed_under_the_load_of_a_quota(tmp_path: Path) -> None:
    """Clients of one connection each, which send again what was cut off unanswered, as clients do. In one window of a
    minute they are admitted as often as the quota says, within 1 %: what the killed worker had reported counts, its
    unspent share comes back, and what it admitted after its last report (0.3 s) is all that the pool does not know of.
    No client whose connection another worker holds notices."""
    file = tenants_file(tmp_path, f"{{requests-per-minute: {QUOTA}}}")
    with deployment(tmp_path, "--gateway-workers", "3", "--tenants-file", str(file)) as place:
        place.up()
        closed_function(place, {"api-keys": True})
        url = f"{place.gateway}/v2/models/echo/infer"
        codes: Counter[int] = Counter()
        cut: list[str] = []
        windows: set[int] = set()

        async def ask(http: httpx.AsyncClient) -> int:
            while True:
                try:
                    return (await http.post(url, json=REQUEST, headers={"x-api-key": ACME})).status_code
                except httpx.TransportError as error:
                    cut.append(type(error).__name__)
                    assert len(cut) <= CONNECTIONS, "each client loses its connection once at most"

        async def client(end: float, every_s: float) -> None:
            due = time.monotonic()
            async with httpx.AsyncClient(trust_env=False, verify=False, timeout=20.0) as http:
                while (now := time.monotonic()) < end and codes[429] < REFUSED:
                    await asyncio.sleep(max(0.0, due - now))
                    due = max(due + every_s, time.monotonic() - every_s)
                    codes[await ask(http)] += 1
                    windows.add(int(time.time()) // 60)

        async def run() -> None:
            await room_in_the_minute(SECONDS)
            end = time.monotonic() + SECONDS
            async with asyncio.TaskGroup() as group:
                for _ in range(CONNECTIONS):
                    group.create_task(client(end, CONNECTIONS / RATE))
                await asyncio.sleep(8.0)
                place.end(next(name for name in sorted(place.living()) if re.fullmatch(r"gateway-g\d", name)))

        asyncio.run(run())
        drift = codes[200] / QUOTA - 1
        printed = (
            f"{dict(codes)}, {len(cut)} cut off and sent again ({', '.join(sorted(set(cut)))}), drift {drift:+.2%}"
        )
        sys.stdout.write(f"\nquota {QUOTA}/min, one of 3 workers killed: {printed}\n")
        assert len(windows) == 1, "the machine is too slow for it"
        assert codes.keys() == {200, 429}
        assert abs(drift) <= 0.01
