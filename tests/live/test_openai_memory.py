"""Bodies that name their model late, many at once: bounded memory, each answered, no other client disturbed."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from tests.support.live.live_edge import edge, infer, run, table

pytestmark = [pytest.mark.live, pytest.mark.timeout(90)]

MIB = 1 << 20
BUDGET = 24 * MIB
SIZE = 6 * MIB
CLIENTS = 40


def resident(pid: int) -> int:
    """Most bytes that a process ever had in memory."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))


def prompt(size: int) -> bytes:
    return b'{"messages":[{"role":"user","content":"%b"}],' % (b"x" * size)


def test_many_large_prompts_before_their_models_take_bounded_memory() -> None:
    """The clients send all but the end and wait: what the gateway holds then is what counts."""

    async def main() -> None:
        async with edge() as world:
            world.limits = {"waiting_body_bytes": BUDGET}
            world.start_gateway()
            replica = world.start_replica(limit="4")
            await world.gateway_ready()
            await world.replica_ready(replica)
            await world.put_table(table(1, replica, protocol="openai"))
            gateway = world.workers[0].pid
            async with world.client() as http:
                await http.post("/v1/chat/completions", content=prompt(SIZE) + b'"model":"m"}')
                before = resident(gateway)
                held = asyncio.Event()
                sent = 0

                piece = prompt(SIZE)

                async def body() -> AsyncIterator[bytes]:
                    nonlocal sent
                    for at in range(0, len(piece), 65536):
                        yield piece[at : at + 65536]
                    sent += 1
                    await held.wait()
                    yield b'"model":"m"}'

                async def ask() -> httpx.Response:
                    headers = {"content-type": "application/json"}
                    return await http.post("/v1/chat/completions", content=body(), headers=headers)

                tasks = [asyncio.get_running_loop().create_task(ask()) for _ in range(CLIENTS)]
                while True:
                    await asyncio.sleep(0.02)
                    if sent + sum(task.done() for task in tasks) >= CLIENTS:
                        break
                assert (await infer(http)).status_code == 200, "others are served meanwhile"
                held.set()
                answers = await asyncio.gather(*tasks)
            served = [answer for answer in answers if answer.status_code == 200]
            refused = [answer for answer in answers if answer.status_code == 429]
            assert (len(served) >= 2, len(served) + len(refused)) == (True, CLIENTS)
            assert len(served) * SIZE <= BUDGET + CLIENTS * MIB
            for answer in refused:
                assert answer.headers["retry-after"] == "1"
                assert "all the memory" in json.loads(answer.content)["error"]["message"]
            assert resident(gateway) - before < 2 * BUDGET + CLIENTS * MIB

    run(main())


def test_more_than_is_gathered_without_a_model_is_refused() -> None:
    async def main() -> None:
        async with edge() as world:
            world.start_gateway()
            await world.gateway_ready()
            await world.put_table(table(1, protocol="openai"))
            async with world.client() as http:
                answer = await http.post("/v1/chat/completions", content=prompt(33 * MIB) + b'"model":"m"}')
            assert answer.status_code == 413
            assert answer.json()["error"]["code"] == "body_too_large"

    run(main())
