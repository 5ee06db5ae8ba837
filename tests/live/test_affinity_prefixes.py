"""Conversations and adapters over several replicas with prefix caches of their own, through a whole deployment.

The model servers count what they find in their caches; each kind of affinity is a function of its own in one run.
"""

import asyncio
import json
import random
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest

from tests.support.live.deployment import Deployment, deployment, places

pytestmark = [pytest.mark.live, pytest.mark.early, pytest.mark.timeout(180)]

SERVER = Path(__file__).parents[1] / "support" / "models" / "openai_server.py"
REPLICAS = 3
ADAPTERS = [f"adapter-{number}" for number in range(9)]


def manifest(folder: Path, name: str, annotations: dict[str, str], models: list[str]) -> str:
    """A function that always has its replicas."""
    words = {"min-scale": str(REPLICAS), "max-scale": str(REPLICAS), **annotations}
    document = {
        "apiVersion": "tidegate.dev/v1alpha1",
        "kind": "Function",
        "metadata": {"name": name, "annotations": {f"tidegate.dev/{key}": value for key, value in words.items()}},
        "spec": {
            "server": {"command": [sys.executable, str(SERVER), "{port}"]},
            "protocol": "openai",
            "concurrency": 4,
            "models": [name, *models],
            "env": {"US_PER_WORD": "20", "CACHE_BLOCKS": "1500", "ADAPTERS": "4"},
        },
    }
    path = folder / f"{name}.json"
    path.write_text(json.dumps(document))
    return str(path)


@dataclass
class Found:
    """What the servers said."""

    prompt: int = 0
    cached: int = 0
    replicas: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    """Replicas by conversation or adapter."""
    loads: dict[str, int] = field(default_factory=dict)
    """Models that each replica has loaded."""

    @property
    def hit_rate(self) -> float:
        return self.cached / self.prompt


async def ask(
    http: httpx.AsyncClient, found: Found, model: str, name: str, messages: list[dict[str, str]], **fields: str
) -> str:
    body = {"model": model, "messages": messages, "max_tokens": 40}
    answer = await http.post("/v1/chat/completions", json=body, headers=fields)
    assert answer.status_code == 200, answer.text
    document = answer.json()
    found.prompt += document["usage"]["prompt_tokens"]
    found.cached += document["usage"]["prompt_tokens_details"]["cached_tokens"]
    replica = answer.headers["x-replica"]
    found.replicas[name].add(replica)
    found.loads[replica] = max(found.loads.get(replica, 0), int(answer.headers["x-loads"]))
    content: str = document["choices"][0]["message"]["content"]
    return content


async def converse(http: httpx.AsyncClient, found: Found, function: str, number: int) -> None:
    """Some turns behind one of two system prompts; the same words whatever the function is called."""
    rng = random.Random(number)
    system = f"you are system {number % 2} " + "and help " * 200
    messages = [{"role": "system", "content": system}]
    for turn in range(rng.randrange(3, 8)):
        said = " ".join(f"{rng.randrange(10**6)}" for _ in range(rng.randrange(20, 120)))
        messages.append({"role": "user", "content": f"turn {turn} {said}"})
        answer = await ask(http, found, function, f"talk {number}", messages, **{"x-session-id": f"talk-{number}"})
        messages.append({"role": "assistant", "content": answer})
        await asyncio.sleep(rng.uniform(0.0, 0.05))


async def conversations(world: Deployment, function: str) -> Found:
    """Forty, at most eight at the same time."""
    found = Found()
    limit = asyncio.Semaphore(8)
    async with httpx.AsyncClient(base_url=world.gateway, timeout=30.0, trust_env=False, verify=False) as http:

        async def one(number: int) -> None:
            async with limit:
                await converse(http, found, function, number)

        await asyncio.gather(*(one(number) for number in range(40)))
    sys.stdout.write(f"{function}: {found.hit_rate:.3f} of {found.prompt} words were cached\n")
    return found


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    folder = tmp_path_factory.mktemp("affinity")
    with deployment(folder, *places(folder, 20), "--gateway-workers", "1") as found:
        found.up()
        yield found


def deploy(world: Deployment, name: str, annotations: dict[str, str], models: Sequence[str] = ()) -> None:
    world.cli("deploy", manifest(world.folder, name, annotations, list(models)))
    world.until_replicas(REPLICAS, name=name)
    world.until(lambda: len(servers(world, name)) == REPLICAS, 15.0, f"answers of all replicas of {name}")


def servers(world: Deployment, name: str) -> set[str]:
    """Replicas that a round of short, different prompts reaches."""

    async def round_() -> set[str]:
        found = Found()
        async with httpx.AsyncClient(base_url=world.gateway, timeout=30.0, trust_env=False, verify=False) as http:
            texts = [[{"role": "user", "content": f"{number} {random.random()}"}] for number in range(24)]
            await asyncio.gather(*(ask(http, found, name, "x", text) for text in texts))
        return found.replicas["x"]

    return asyncio.run(round_())


def test_by_prefix_more_is_cached_than_by_hashing_and_without_the_client_naming_anything(world: Deployment) -> None:
    words: dict[str, dict[str, str]] = {
        "prefix": {"spread": "hash", "hash-on": "prefix"},
        "prompt": {"spread": "hash", "hash-on": "prompt"},
        "session": {"spread": "hash", "hash-on": "session"},
        "none": {},
    }
    found: dict[str, Found] = {}
    for name, annotations in words.items():
        deploy(world, name, annotations)
        found[name] = asyncio.run(conversations(world, name))
        world.cli("delete", name)
    rates = {name: each.hit_rate for name, each in found.items()}
    assert rates["prefix"] >= rates["prompt"] > rates["none"], rates
    assert rates["prefix"] >= rates["session"] - 0.02, rates
    served: set[str] = set()
    for replicas in found["prefix"].replicas.values():
        served |= replicas
    assert len(served) > 1, "more than one works"


def test_adapters_keep_to_the_replicas_that_have_loaded_them(world: Deployment) -> None:
    async def traffic(function: str) -> Found:
        rng = random.Random(5)
        found = Found()
        limit = asyncio.Semaphore(3)
        async with httpx.AsyncClient(base_url=world.gateway, timeout=30.0, trust_env=False, verify=False) as http:

            async def one(number: int) -> None:
                model = f"{function}-{rng.choice(ADAPTERS)}"
                async with limit:
                    await ask(http, found, model, model, [{"role": "user", "content": f"question {number}"}])

            await asyncio.gather(*(one(number) for number in range(300)))
        return found

    loads: dict[str, int] = {}
    for name, annotations in {"lora": {"spread": "hash", "hash-on": "model"}, "everywhere": {}}.items():
        deploy(world, name, annotations, [f"{name}-{adapter}" for adapter in ADAPTERS])
        found = asyncio.run(traffic(name))
        loads[name] = sum(found.loads.values())
        if name == "lora":
            assert len(found.loads) == REPLICAS, "everybody works"
        world.cli("delete", name)
    sys.stdout.write(f"models loaded for 300 requests: {loads}\n")
    assert loads["lora"] < loads["everywhere"] / 2


def test_a_replica_that_comes_or_goes_moves_few_conversations(world: Deployment) -> None:
    """One of three is killed under way: what it knew is lost, and nothing else; no request fails."""
    deploy(world, "moving", {"spread": "hash", "hash-on": "prefix", "idempotent": "true"})
    before = asyncio.run(conversations(world, "moving"))
    victim = next(iter(before.replicas["talk 1"]))
    record = next(key for key, pid in world.living().items() if str(pid) == victim)
    world.end(record)
    world.until(lambda: record not in world.living(), 15.0, "the end of one model server")
    world.until_replicas(REPLICAS, name="moving")
    after = asyncio.run(conversations(world, "moving"))
    assert after.hit_rate > before.hit_rate, "the same conversations again, most of them still cached"
