"""Tenants that want more than there is, through a whole deployment: tokens by weight, room in the queue, turns.

So few requests a second that the callers always have some waiting, also where the machine has other work.
"""

import asyncio
import json
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import httpx
import pytest

from tests.support.live.deployment import Deployment, deployment

pytestmark = [pytest.mark.live, pytest.mark.early]

SERVER = Path(__file__).parents[1] / "support" / "models" / "openai_server.py"
WARM_S, RUN_S = 3.0, 15.0
LARGE, SMALL = 1000, 100
"""Words of a prompt."""
US_PER_WORD = 500
"""A large prompt takes 500 ms, a small one 50 ms."""
REFUSED_S = 0.5
"""A caller that was refused rests for so long."""


def key_of(tenant: str) -> str:
    return f"key-of-{tenant}-0123456789abcdef"


def tenants_file(folder: Path, **weights: float) -> str:
    for tenant in weights:
        (folder / f"{tenant}.key").write_text(key_of(tenant))
    rows = [{"name": tenant, "keys": [f"file:{tenant}.key"], "weight": weight} for tenant, weight in weights.items()]
    path = folder / "tenants.yaml"
    path.write_text(json.dumps({"tenants": rows}))
    return str(path)


def manifest(folder: Path, name: str, *, keys: bool = True, requests: int = 1000) -> str:
    document: dict[str, Any] = {
        "apiVersion": "tidegate.dev/v1alpha1",
        "kind": "Function",
        "metadata": {
            "name": name,
            "annotations": {"tidegate.dev/min-scale": "1", "tidegate.dev/max-scale": "1"},
        },
        "spec": {
            "server": {"command": [sys.executable, str(SERVER), "{port}"]},
            "protocol": "openai",
            "concurrency": 2,
            "env": {"US_PER_WORD": str(US_PER_WORD)},
            "queue": {"requests": requests},
        },
    }
    if keys:
        document["spec"]["access"] = {"api-keys": True}
    path = folder / f"{name}.json"
    path.write_text(json.dumps(document))
    return str(path)


@dataclass
class Load:
    """Closed loops of some tenants against one function."""

    world: Deployment
    function: str
    until: float
    tokens: Counter[str] = field(default_factory=Counter)
    """By tenant, of what was answered after the warm-up."""
    answers: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    latencies: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    counts_from: float = 0.0

    async def ask(self, http: httpx.AsyncClient, tenant: str, words: int) -> None:
        content = f"{tenant} " + "word " * (words - 4)
        body = {"model": self.function, "messages": [{"role": "user", "content": content}], "max_tokens": 4}
        asked = time.monotonic()
        fields = {"authorization": f"Bearer {key_of(tenant)}"}
        answer = await http.post("/v1/chat/completions", json=body, headers=fields)
        now = time.monotonic()
        if answer.status_code == 429:
            assert answer.headers["retry-after"]
            assert answer.json()["error"]["code"] == "queue_full", answer.text
            self.refused[tenant] += 1
            await asyncio.sleep(REFUSED_S)
            return
        assert answer.status_code == 200, answer.text
        if self.counts_from <= now <= self.until:
            self.tokens[tenant] += answer.json()["usage"]["total_tokens"]
            self.answers[tenant] += 1
            self.latencies[tenant].append(now - asked)

    async def loop(self, tenant: str, words: int) -> None:
        """A connection of its own, so that workers share the callers out."""
        async with httpx.AsyncClient(base_url=self.world.gateway, timeout=60.0, trust_env=False, verify=False) as http:
            while True:
                await self.ask(http, tenant, words)

    async def run(self, *callers: tuple[str, int, int], seconds: float = RUN_S) -> "Load":
        """Callers: (tenant, words of its prompts, loops). Those that still wait at the end leave. ``seconds``: of the
        run after its warm-up."""
        self.counts_from = time.monotonic() + WARM_S
        self.until = self.counts_from + seconds
        with suppress(TimeoutError):
            async with asyncio.timeout(WARM_S + seconds), asyncio.TaskGroup() as group:
                for tenant, words, loops in callers:
                    for _ in range(loops):
                        group.create_task(self.loop(tenant, words))
        figures = {"tokens": self.tokens, "answers": self.answers, "refused": self.refused, "median_s": self.medians()}
        sys.stdout.write(f"{self.function}: {figures}\n")
        return self

    def medians(self) -> dict[str, float]:
        """Seconds from call to answer, by tenant."""
        return {tenant: round(median(each), 3) for tenant, each in self.latencies.items()}


def loads(
    world: Deployment, functions: Sequence[str], *callers: tuple[str, int, int], seconds: float = RUN_S
) -> list[Load]:
    """The callers against each function, which share nothing, at the same time."""

    async def main() -> list[Load]:
        return await asyncio.gather(*(Load(world, each, 0.0).run(*callers, seconds=seconds) for each in functions))

    return asyncio.run(main())


@pytest.mark.parametrize("workers", [1, 2])
def test_ten_to_one_prompts_share_tokens_within_ten_percent(tmp_path: Path, workers: int) -> None:
    """Equal weights, two slots, far more callers than slots; a function without tenants shows what it is without."""
    file = tenants_file(tmp_path, large=1.0, small=1.0)
    with deployment(tmp_path, "--tenants-file", file, "--gateway-workers", str(workers)) as world:
        world.up()
        world.cli("deploy", manifest(tmp_path, "shared"))
        functions = ["shared"]
        if workers == 1:
            world.cli("deploy", manifest(tmp_path, "open", keys=False))
            functions.append("open")
        found, *plain = loads(world, functions, ("large", LARGE, 20), ("small", SMALL, 20))
        assert 0.9 < found.tokens["large"] / found.tokens["small"] < 1.1
        for each in plain:
            assert each.tokens["large"] / each.tokens["small"] > 5, "in the order of arrival"


@pytest.mark.alone  # callers that are refused must come back in time
def test_weights_light_callers_and_a_flood(tmp_path: Path) -> None:
    file = tenants_file(tmp_path, gold=3.0, plain=1.0, light=1.0)
    with deployment(tmp_path, "--tenants-file", file, "--gateway-workers", "1") as world:
        world.up()
        world.cli("deploy", manifest(tmp_path, "shared", requests=20))
        callers = (("gold", SMALL, 20), ("plain", SMALL, 40), ("light", SMALL, 1))
        (found,) = loads(world, ["shared"], *callers, seconds=8.0)  # some 300 answers
        assert 2.7 < found.tokens["gold"] / found.tokens["plain"] < 3.3
        assert found.refused["plain"] > 0, "it wants more than the room has"
        assert found.refused["light"] == 0, "one that asks for little is never refused for others' sake"
        assert found.medians()["light"] < found.medians()["plain"] / 2, "and hardly waits"
