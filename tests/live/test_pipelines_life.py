"""A pipeline of three stages under a load that changes, while its processes are killed: nothing is lost, the order of
the stages is kept, and the times of the stages add up to the whole."""

import asyncio
import os
import re
import signal
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from tests.live.test_pipelines import Pipelines, timing
from tests.support.live.deployment import deployment, places

pytestmark = pytest.mark.live

STAGES = ("one", "two", "three")
DIGITS = """\
import time

class Stage:
    arrays = "plain"
    inputs = {{"x": ("FP64", [-1, 1])}}
    outputs = {{"x": ("FP64", [-1, 1])}}
    concurrency = 2

    def predict(self, inputs):
        time.sleep({work_s})
        return {{"x": [[10 * value + {added} for value in row] for row in inputs["x"]]}}
"""
MOST_S = 60.0
"""Until a request is answered: a killed replica is replaced within this."""
BETWEEN_MS = 2.0
ROUNDING_MS = 0.01
"""Each time in the answer has three digits."""


class Load:
    """Clients that send numbers, each its own; an answer has the digits of the stages behind it, in their order."""

    def __init__(self, place: Pipelines) -> None:
        self.url = f"{place.place.gateway}/v2/models/whole/infer"
        self.sent = self.answered = 0
        self.wrong: list[str] = []
        self.cut: list[str] = []
        self.gaps_ms: list[float] = []
        self.beyond_ms: list[float] = []
        """What a client waited beyond the gateway's total."""

    async def client(self, end: float, busy: Callable[[int], bool], number: int) -> None:
        async with httpx.AsyncClient(trust_env=False, verify=False, timeout=MOST_S) as http:
            while time.monotonic() < end:
                if not busy(number):
                    await asyncio.sleep(0.1)
                    continue
                self.sent += 1
                await self.one(http, self.sent)

    async def one(self, http: httpx.AsyncClient, value: int) -> None:
        body = {"inputs": [{"name": "x", "shape": [1, 1], "datatype": "FP64", "data": [value]}]}
        answer: httpx.Response | None = None
        began = 0.0
        while answer is None:
            began = time.monotonic()
            try:
                answer = await http.post(self.url, json=body)
            except httpx.TransportError as error:
                self.cut.append(repr(error))  # the gateway worker was killed: it is sent again, as clients do
        if answer.status_code != 200:
            self.wrong.append(f"{value}: {answer.status_code} {answer.text[:200]}")
        elif answer.json()["outputs"][0]["data"] != [1000.0 * value + 123.0]:
            self.wrong.append(f"{value}: {answer.text[:200]}")
        else:
            self.answered += 1
            found, took_ms = timing(answer), 1e3 * (time.monotonic() - began)
            self.gaps_ms.append(found["total"] - sum(found[name] for name in ("entry", *STAGES, "answer")))
            self.beyond_ms.append(took_ms - found["total"])


@pytest.mark.parametrize(
    "seconds",
    [
        pytest.param(25.0, marks=[pytest.mark.timeout(300), pytest.mark.early]),
        pytest.param(600.0, marks=[pytest.mark.timeout(1200), pytest.mark.deep]),
    ],
)
def test_three_stages_under_a_changing_load_survive_the_death_of_each_process(seconds: float, tmp_path: Path) -> None:
    more = '    tidegate.dev/idempotent: "true"\n    tidegate.dev/min-scale: "2"\n'
    with deployment(tmp_path, "--gateway-workers", "2", *places(tmp_path, 16)) as place:
        place.up()
        world = Pipelines(place, tmp_path)
        stages = [
            world.stage(name, added=float(at), work_s=0.01 * at, scale=2, more=more, code=DIGITS)
            for at, name in enumerate(STAGES, 1)
        ]
        listed = [f"function: {name}" for name in STAGES]
        world.deploy(*stages, world.pipeline("whole", *listed, annotations="{tidegate.dev/latency: 10s}"))
        place.until(lambda: all(place.status(name)["ready"] == 2 for name in STAGES), 90.0, "two replicas of each")
        load = Load(world)

        def killed(pids: list[int]) -> None:
            for pid in pids:
                os.kill(pid, signal.SIGKILL)

        def kill_replica() -> None:
            killed(place.status("two")["revisions"][0]["replicas"][0]["pids"])

        def kill_sidecar() -> None:
            """The first process of a replica is its queue_proxy."""
            killed(place.status("three")["revisions"][0]["replicas"][0]["pids"][:1])

        def kill_worker() -> None:
            place.end(next(name for name in sorted(place.living()) if re.fullmatch(r"gateway-g\d", name)))

        def kill_control() -> None:
            place.kill()
            time.sleep(1.0)
            place.up()

        async def run() -> None:
            began = time.monotonic()
            end = began + seconds

            def busy(number: int) -> bool:
                """Six clients in every second fifth of the time, else two."""
                return number < 2 or int(5.0 * (time.monotonic() - began) / seconds) % 2 == 1

            async with asyncio.TaskGroup() as group:
                for number in range(6):
                    group.create_task(load.client(end, busy, number))
                for kill in (kill_replica, kill_sidecar, kill_worker, kill_control):
                    await asyncio.sleep(seconds / 5.0)
                    await asyncio.to_thread(kill)

        asyncio.run(run())
        worst, seen = max(map(abs, load.gaps_ms)), statistics.median(load.beyond_ms)
        later = sum(each >= BETWEEN_MS for each in load.beyond_ms)
        sys.stdout.write(
            f"\n{load.answered} of {load.sent} answered, {len(load.cut)} cut off with their worker and sent again; the"
            f" whole less its parts: at most {worst:.3f} ms; clients waited {seen:.2f} ms more (median), {later} of"
            f" them {BETWEEN_MS:g} ms or more\n"
        )
        assert not load.wrong, load.wrong[:3]
        assert load.answered == load.sent > 50
        assert len(load.cut) <= 12, "what the killed worker had, and no more"
        assert worst < ROUNDING_MS, "no time is lost between two stages, whatever the machine does"
        assert 0.0 <= min(load.beyond_ms) < BETWEEN_MS
        view = place.status("whole")
        assert view["state"] == "ready" and sum(each["budget_s"] for each in view["budgets"]) == pytest.approx(10.0)
