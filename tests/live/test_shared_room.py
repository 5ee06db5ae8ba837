"""One waiting room over all gateway workers of a machine: uneven clients fill it, and a killed worker leaves it."""

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.live.deployment import REQUEST, Deployment, deployment

pytestmark = [pytest.mark.live, pytest.mark.timeout(120)]

BOUND = 12


WAITS = """
import pathlib, time
class Echo:
    arrays = "plain"
    inputs = {"x": ("FP32", [-1, 2])}
    def predict(self, inputs):
        while not pathlib.Path(GO).exists():
            time.sleep(0.02)
        return {"y": inputs["x"]}
"""


def manifest(world: Deployment, go: Path) -> str:
    """A function whose calls end when the file ``go`` is there."""
    path = world.folder / "echo.yaml"
    (world.folder / "echo.py").write_text(f"GO = {str(go)!r}\n{WAITS}")
    path.write_text(
        "apiVersion: tidegate.dev/v1alpha1\n"
        "kind: Function\n"
        "metadata: {name: echo, annotations: {tidegate.dev/max-scale: '1', tidegate.dev/concurrency: '1'}}\n"
        f"spec: {{server: {{handler: '{world.folder}/echo.py:Echo'}}, queue: {{requests: {BOUND}}}}}\n"
    )
    return str(path)


def settled(world: Deployment) -> dict[str, Any]:
    """The traffic of the function when all requests of the test are known."""

    def look() -> dict[str, Any] | None:
        traffic: dict[str, Any] = world.status("echo")["traffic"]
        return traffic if traffic["refused"] and traffic["requests"] >= BOUND + 4 else None

    found: dict[str, Any] = world.until(look, 10.0, "all requests")
    return found


def worker_of(world: Deployment, port: int) -> str:
    """The record of the gateway worker that has the connection from this local port."""
    here = int(world.gateway.rpartition(":")[2])
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    (inode,) = (row[9] for row in rows if row[1].endswith(f":{here:04X}") and row[2].endswith(f":{port:04X}"))
    for record, pid in world.living().items():
        links = (Path(f"/proc/{pid}/fd")).iterdir()
        if any(str(link.readlink()) == f"socket:[{inode}]" for link in links if link.is_symlink()):
            return record
    raise AssertionError(f"no process has the connection from port {port}")


def test_one_connection_may_fill_the_room_and_a_killed_worker_leaves_it(tmp_path: Path) -> None:
    go = tmp_path / "go"
    go.touch()  # for the calls of the start
    with deployment(tmp_path, "--gateway-workers", "4") as world:
        world.up()
        world.cli("deploy", manifest(world, go))
        go.unlink()

        async def main() -> None:
            url = f"{world.gateway}/v2/models/echo/infer"
            async with (
                httpx.AsyncClient(http1=False, http2=True, timeout=90.0, trust_env=False, verify=False) as one,
                asyncio.TaskGroup() as group,
            ):
                stream = (await one.get(f"{world.gateway}/v2/health/live")).extensions["network_stream"]

                async def call() -> None:
                    with suppress(httpx.HTTPError):  # its worker is killed
                        await one.post(url, json=REQUEST)

                for _ in range(BOUND + 4):
                    group.create_task(call())
                found = await asyncio.to_thread(settled, world)
                # One more or less: the first one has its slot before the others arrive, or waits for it too.
                assert found["refused"] in (3, 4), "all places of the room are for one worker's clients"

                async def asked() -> int:
                    try:
                        return (await asyncio.to_thread(world.infer, timeout=60.0)).status_code
                    except httpx.TransportError:
                        return 0  # it waited at the worker that is killed

                others = [group.create_task(asked()) for _ in range(3)]
                done, _ = await asyncio.wait(others, return_when=asyncio.FIRST_COMPLETED, timeout=30.0)
                assert {each.result() for each in done} == {429}, "it is full at every worker"
                port = stream.get_extra_info("client_addr")[1]
                await asyncio.to_thread(world.end, worker_of(world, port))
                await asyncio.sleep(0.1)
                answers = [group.create_task(asked()) for _ in range(4)]
                await asyncio.wait(answers, timeout=0.5)
                go.touch()
                assert [await each for each in answers] == [200] * 4, "its requests are gone with it"

        asyncio.run(main())
