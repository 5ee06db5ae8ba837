"""Tenants of live tests: their file, a function that asks who calls, and load that is counted by the second."""

import asyncio
import json
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

import httpx

from tests.support.live.deployment import REQUEST, Deployment
from tidegate.records.tenants import digest

ACME = "tg-live-key-of-acme-55d7c0"
SECOND = "tg-live-key-of-second-c41d09"
OTHER = "tg-live-key-of-other-8e1f3a"
CONNECTIONS = 48
LATE_S = 0.5
LATE_IN_ALL_S = 8.0
"""So much later than it should be a load may end on a busy machine."""


def tenants_file(folder: Path, quotas: str = "{}") -> Path:
    """``acme`` and ``second`` with these quotas, and ``other``, which may call nothing that there is."""
    file = folder / "tenants.yaml"
    file.write_text(
        f"""tenants:
- {{name: acme, keys: ["sha256:{digest(ACME.encode())}"], quotas: {quotas}}}
- {{name: second, keys: ["sha256:{digest(SECOND.encode())}"], quotas: {quotas}}}
- {{name: other, keys: ["sha256:{digest(OTHER.encode())}"], functions: [nothing]}}
"""
    )
    return file


def closed_function(
    place: Deployment, access: Mapping[str, Any], *, work_until: Path | None = None, concurrency: int = 64
) -> None:
    """Deploys ``echo`` with this rule and waits until it is ready."""
    place.handler(work_until=work_until)
    manifest = place.folder / "function.yaml"
    spec = {"server": {"handler": "echo.py:Echo"}, "access": access, "concurrency": concurrency}
    head = {"apiVersion": "tidegate.dev/v1alpha1", "kind": "Function"}
    metadata = {"name": "echo", "annotations": {"tidegate.dev/min-scale": "1", "tidegate.dev/max-scale": "1"}}
    manifest.write_text(json.dumps({**head, "metadata": metadata, "spec": spec}))
    place.cli("deploy", str(manifest))
    place.until(lambda: place.status("echo")["ready"] > 0, 20.0, "a replica")


async def infer_load(url: str, key: str, *, seconds: float, rate: float) -> dict[int, Counter[int]]:
    """Requests at a steady rate over many connections; status codes by the second of the wall clock in which they were
    answered, as the answers say it: this end may be late."""
    found: dict[int, Counter[int]] = defaultdict(Counter)
    limits = httpx.Limits(max_connections=CONNECTIONS, max_keepalive_connections=CONNECTIONS)
    async with (
        httpx.AsyncClient(limits=limits, timeout=20.0, trust_env=False, verify=False) as client,
        asyncio.TaskGroup() as group,
    ):

        async def one() -> None:
            answer = await client.post(url, json=REQUEST, headers={"x-api-key": key})
            second = int(parsedate_to_datetime(answer.headers["date"]).timestamp())
            found[second][answer.status_code] += 1

        begun, number = time.monotonic(), 0
        while (now := time.monotonic()) < begun + seconds:
            # This end may be too slow for the rate: what is late is left out, so that it does not pile up here.
            number = max(number + 1, int((now - begun - LATE_S) * rate))
            await asyncio.sleep(max(0.0, begun + number / rate - now))
            group.create_task(one())
    return found


async def room_in_the_minute(seconds: float) -> None:
    """Waits until a window of a minute has so many seconds left, and some more. It need not be a new one: nothing has
    used it."""
    passed = time.time() % 60.0
    if passed + seconds + LATE_IN_ALL_S > 60.0:
        await asyncio.sleep(60.0 - passed + 0.5)


async def in_one_minute(loads: Sequence[tuple[str, float]], seconds: float, key: str = ACME) -> list[Counter[int]]:
    """Status codes of each load (URL, requests a second), all in one window of a minute: exact, whatever is late."""
    await room_in_the_minute(seconds)
    found = await asyncio.gather(*(infer_load(url, key, seconds=seconds, rate=rate) for url, rate in loads))
    minutes = {second // 60 for each in found for second in each}
    assert len(minutes) == 1, "the machine is too slow for it: a minute's requests took longer"
    return [sum(each.values(), Counter[int]()) for each in found]
